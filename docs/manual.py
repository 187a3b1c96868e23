"""The manual pages, made from the commands themselves while a wheel is built (``setup.py``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from reput.cli import app
from reput.cli.examples import EXAMPLES

EXIT_CODES = "0 for done, 1 for failed, 2 for called wrongly. An error is one line on stderr."


def pages(version: str) -> dict[str, str]:
    """Return file name -> text: reput.1, and a page for each command, such as
    reput-groups-reset.1."""
    root: Any = typer.main.get_command(app)
    found = dict(commands(root))
    made = {"reput.1": _overview(root, found, version)}
    for words, one in found.items():
        made[f"reput-{'-'.join(words)}.1"] = _page(words, one, version)
    return made


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words of every command, those in groups too, and the command."""
    if not hasattr(command, "list_commands"):
        yield words, command
        return
    for name in command.list_commands(None):
        yield from commands(command.get_command(None, name), (*words, name))


def _overview(root: Any, found: dict[tuple[str, ...], Any], version: str) -> str:
    parts = [
        _head(("reput",), root.help, version),
        ".SH SYNOPSIS",
        f"{_bold('reput')} {_bold('--config')} {_italic('FILE')} {_italic('COMMAND')} ...",
        ".SH DESCRIPTION",
        "Every command has a page of its own, such as",
        ".BR reput-run (1).",
        ".SH COMMANDS",
    ]
    for words, command in found.items():
        parts += [".TP", _bold(" ".join(words)), _text(_paragraphs(command)[0])]
    return "\n".join([*parts, *_options(root), ".SH EXIT STATUS", _text(EXIT_CODES), ""])


def _page(words: tuple[str, ...], command: Any, version: str) -> str:
    first, *more = _paragraphs(command)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    shown = [_italic(one.metavar or one.name.upper()) for one in arguments]
    parts = [_head(("reput", *words), first, version), ".SH SYNOPSIS"]
    parts += [" ".join([_bold(" ".join(("reput", *words))), *shown, _italic("[OPTION ...]")])]
    parts += [".SH DESCRIPTION", _text(first)]
    for paragraph in more:
        parts += [".PP", _text(paragraph)]
    if arguments:
        parts.append(".SH ARGUMENTS")
        for name, one in zip(shown, arguments, strict=True):
            parts += [".TP", name, _text(one.help or "")]
    parts += [*_options(command), ".SH EXAMPLES"]
    for example in EXAMPLES[" ".join(words)]:
        parts += [".PP", ".EX", _escaped(f"reput {example}"), ".EE"]
    return "\n".join([*parts, ".SH SEE ALSO", ".BR reput (1)", ""])


def _head(words: tuple[str, ...], summary: str, version: str) -> str:
    name = _escaped("-".join(words))
    summary = _text(summary.rstrip("."))
    return f'.TH "{name}" 1 "" "reput {version}"\n.SH NAME\n{name} \\- {summary}'


def _options(command: Any) -> Iterator[str]:
    """Yield the lines of the section of options."""
    yield ".SH OPTIONS"
    for one in command.params:
        if one.param_type_name != "option" or one.hidden:
            continue
        names = ", ".join(_bold(name) for name in (*one.opts, *one.secondary_opts))
        value = "" if one.is_flag else f" {_italic(one.metavar or 'VALUE')}"
        default = getattr(one.default, "value", one.default)
        known = default not in (None, False, ()) and not callable(default) and one.show_default
        yield from (".TP", f"{names}{value}")
        yield _text(one.help or "") + (f" Default: {_bold(str(default))}." if known else "")


def _paragraphs(command: Any) -> list[str]:
    return [" ".join(part.split()) for part in command.help.split("\n\n") if part.strip()]


def _text(markdown: str) -> str:
    """Return one line of roff for a line of markdown, what stands in backticks in bold."""
    parts = re.split(r"`([^`]*)`", " ".join(markdown.split()))
    return "".join(_bold(part) if at % 2 else _escaped(part) for at, part in enumerate(parts))


def _bold(text: str) -> str:
    return f"\\fB{_escaped(text)}\\fR"


def _italic(text: str) -> str:
    return f"\\fI{_escaped(text)}\\fR"


def _escaped(text: str) -> str:
    """Return ``text`` so that no character of it means anything to roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{text}" if text[:1] in (".", "'") else text
