"""The one printer of what commands answer: JSON for machines, tables and lines for people.

A command returns a ``Result``, or yields several, and prints nothing itself. rich lays tables out;
it is loaded when the first of them is printed, since a short command is done in the time of that.
"""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.cells import cell_len, set_cell_size

from reput.cli import options
from reput.cli.render import json_text
from reput.cli.settingflags import with_flags
from reput.cli.texts import escaped, folded, shown

SHOWN_LINES = 12
"""Lines of a terminal that one value may take; the rest is counted, not shown."""
_UNBROKEN = 1 << 30
_DUMB_WIDTH = 80
"""Columns of a terminal that cannot say how many it has."""
_CLEAR_FROM_HOME = "\x1b[H\x1b[J"
"""Erases below the cursor's home: a terminal scrolls nothing of it into its history."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below the names of their columns, nothing without rows; where the terminal is too narrow
    for the widest texts, each row is a record."""

    title: str
    """The line above it; empty for none."""
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    folds: bool = False
    """Whether texts of the last column may take several lines."""


@dataclass(frozen=True, slots=True)
class Record:
    """One thing with a line per field, and a line per entry of a field that is a mapping."""

    title: str
    fields: Mapping[str, object]
    is_listed: bool = False
    """Whether it is one of several, so that its fields stand below the title."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing of a list: its heading, and up to ``lines`` lines of its text below it."""

    heading: str
    body: str | None
    lines: int


Part = str | Table | Record | Entry
"""A part of what people read; a text is a sentence, broken between words where the terminal
ends."""


@dataclass(frozen=True, slots=True)
class Result:
    """The answer of a command in both forms; the one that is not printed is not iterated."""

    fields: object
    """The JSON value; with ``are_lines`` the values, one for each line."""
    parts: Iterable[Part]
    exit_code: int = 0
    are_lines: bool = False
    has_settings: bool = False
    """Whether lines of the library are in it, and nothing of a message: settings that they name are
    shown as options."""
    is_screen: bool = False
    """Whether it takes the place of all that a terminal shows."""


def printed(
    command: Callable[..., Result | Iterator[Result]], as_json: Any = options.AsJson
) -> Callable[..., None]:
    """Give a command ``--json``, unless it has that itself, and print what it returns or yields;
    exit with the last result's code."""
    own = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def called(**given: Any) -> None:
        is_seen = as_json is options.AsJson or sys.stdout.isatty()
        is_for_people = is_seen and not given["as_json"]
        answer = command(**{name: given[name] for name in own})
        code = 0
        for result in answer if isinstance(answer, Iterator) else (answer,):
            _print(result, is_for_people)
            code = result.exit_code
        if code:
            raise typer.Exit(code)

    flag = inspect.Parameter(
        "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=as_json
    )
    options.declare(called, [*own.values(), *([] if flag.name in own else [flag])])
    return called


printed_lines = functools.partial(printed, as_json=options.AsJsonLines)
"""``printed`` for a command that prints JSON lines wherever stdout is no terminal."""


def _print(result: Result, is_for_people: bool) -> None:
    in_words = with_flags if result.has_settings else str
    if not is_for_people:
        documents: Any = result.fields if result.are_lines else (result.fields,)
        for document in documents:
            # in UTF-8 whatever the locale is
            typer.echo(in_words(json_text(document)).encode())
        return
    if result.is_screen and is_terminal():
        typer.echo(_CLEAR_FROM_HOME, nl=False)
    for part in result.parts:
        match part:
            case str():
                _print_line(in_words(part))
            case Table():
                _print_table(part)
            case Record():
                _print_line(part.title, "bold" if part.is_listed else "italic")
                indent = "  " * part.is_listed
                _print_fields({indent + name: in_words(text) for name, text in _flat(part.fields)})
            case Entry():
                _print_line(part.heading, "bold")
                if part.body:
                    for line in folded(escaped(part.body), _width() - 2, part.lines):
                        typer.echo(f"  {line}")


def is_terminal() -> bool:
    """Whether stdout is a terminal that knows styles and can place its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _width() -> int:
    """Return the width of a line, which is broken on a terminal only."""
    if not sys.stdout.isatty():
        return _UNBROKEN
    return shutil.get_terminal_size().columns if is_terminal() else _DUMB_WIDTH


def _styled(text: str, style: str) -> str:
    return typer.style(text, **{style: True}) if is_terminal() else text


def _print_line(line: str, style: str | None = None) -> None:
    """Print a line; an empty one in a style, which is a title that is left out, is not printed."""
    for part in folded(escaped(line), _width(), _UNBROKEN) if line or style is None else ():
        typer.echo(part if style is None else _styled(part, style))


def _print_table(table: Table) -> None:
    if not table.rows:
        return
    _print_line(table.title, "italic")
    # rich takes 30 ms to load, for which people have a line to read already
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table as Layout  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    texts = [[shown(value) for value in row] for row in table.rows]
    console = Console(width=_width(), force_terminal=is_terminal())
    layout = Layout(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for at, name in enumerate(table.columns, 1):
        folds = table.folds and at == len(table.columns)
        layout.add_column(Text(escaped(name), "bold"), no_wrap=not folds)
    # all texts of a column are lines of one cell: a row of cells takes rich half a millisecond
    columns = ["\n".join(column) for column in zip(*texts, strict=True)]
    for row in texts if table.folds else [columns]:
        layout.add_row(*map(Text, row))
    measured = console.measure(layout, options=console.options.update(width=_UNBROKEN))
    if (measured.minimum if table.folds else measured.maximum) <= console.width:
        with console.capture() as captured:
            console.print(layout, end="")
        for line in captured.get().rstrip("\n").split("\n"):
            typer.echo(line.rstrip())
        return
    for number, row in enumerate(texts, 1):
        _print_line(f"[{number}]", "bold")
        _print_fields(dict(zip(map(escaped, table.columns), row, strict=True)))


def _flat(fields: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield names and texts, those of each entry of a mapping."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            for key, item in value.items():
                yield f"{escaped(name)} {escaped(str(key))}", shown(item)
        else:
            yield escaped(name), shown(value)


def _print_fields(fields: Mapping[str, str]) -> None:
    width = min(max(map(cell_len, fields), default=0), _width() // 2)
    for name, value in fields.items():
        first = _styled(f"{set_cell_size(name, width)}  ", "bold")
        for line in folded(value, max(_width() - width - 2, 1), SHOWN_LINES):
            typer.echo(first + line)
            first = " " * (width + 2)
