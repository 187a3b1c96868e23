"""Values of options that are given in a TOML file or in the environment.

The command line is strongest, then the variable ``REPUT_COMMAND_OPTION``, then the file. A key of
the file counts for every command below its table: at the top for all commands that have such an
option, in ``[checkpoints]`` for those of that group, in ``[checkpoints.list]`` for one. The
innermost table is strongest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from reput.store.errors import UsageError

CONFIG_VARIABLE = "REPUT_CONFIG"
_FLAG_TEXTS = {"true": True, "1": True, "false": False, "0": False}


class Given(NamedTuple):
    """The value of an option, and where it stands."""

    value: Any
    origin: str


class ConfigFile:
    """A TOML file of options, whose names have no dashes before them; and arguments, in small
    letters."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if the file cannot be read or is no TOML."""
        import tomllib  # noqa: PLC0415

        self.path = path
        try:
            self.content: Mapping[str, Any] = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is no TOML: {error}") from error

    def given(self, words: Sequence[str], root: Any) -> dict[str, Given]:
        """Return the values for a command, by the names of its options.

        ``words`` call the command, ``root`` is the group of all commands. Raises UsageError for a
        key that is no option of any command below its table, and for a value of a wrong kind.
        """
        entries: dict[str, Given] = {}
        group, table = root, self.content
        options = named_parameters(command_of(root, words))
        for depth in range(len(words) + 1):
            place = f"[{'.'.join(words[:depth])}] of {self.path}" if depth else str(self.path)
            for key, value in table.items():
                if depth < len(words) and key in group.commands:
                    if not isinstance(value, Mapping):
                        raise UsageError(f"{place}: {key} must be a table")
                elif key in options:
                    entries[key] = Given(_typed(f"{place}: {key}", options[key], value), place)
                else:
                    _check_known(place, key, value, group)
            if depth < len(words):
                table, group = table.get(words[depth], {}), group.commands[words[depth]]
        return entries


def values_given(words: Sequence[str], root: Any, file: ConfigFile | None) -> dict[str, Given]:
    """Return the values for the command that ``words`` call, by the names of its options: the
    environment's above the file's. Raises UsageError."""
    return (file.given(words, root) if file else {}) | _of_environment(words, root)


def _of_environment(words: Sequence[str], root: Any) -> dict[str, Given]:
    """An option that may be repeated takes several values, with blanks between them."""
    variables: dict[str, Given] = {}
    for name, parameter in named_parameters(command_of(root, words)).items():
        variable = "_".join(("reput", *words, name)).replace("-", "_").upper()
        text = os.environ.get(variable, "")
        if text:
            value: Any = text.split() if _is_repeated(parameter) else text
            if _is_flag(parameter):
                value = _FLAG_TEXTS.get(text.lower(), text)
            variables[name] = Given(_typed(variable, parameter, value), f"environment, {variable}")
    return variables


def named_parameters(command: Any) -> dict[str, Any]:
    """Return a command's options and arguments by their names in a file."""
    return {name_of(parameter): parameter for parameter in command.params}


def name_of(parameter: Any) -> str:
    """Return the name of an option or argument in a file: the one that ``--help`` shows, without
    dashes before it and in small letters."""
    longest: str = max(parameter.opts, key=len)
    if not longest.startswith("-"):
        shown = str(parameter.metavar)
        longest = shown.lower() if shown.isidentifier() else longest
    return longest.removeprefix("--").replace("_", "-")


def command_of(root: Any, words: Sequence[str]) -> Any:
    """Return the command that ``words`` call. Raises UsageError if there is none."""
    member = root
    for word in words:
        commands = getattr(member, "commands", {})
        if word not in commands:
            raise UsageError(f"no command is named {' '.join(words)!r}{_nearest(word, commands)}")
        member = commands[word]
    return member


def options_below(command: Any) -> set[str]:
    """Return the names of the options of a command, or of all commands of a group."""
    commands = getattr(command, "commands", None)
    if commands is None:
        return set(named_parameters(command))
    return set(commands).union(*map(options_below, commands.values()))


def _check_known(place: str, key: str, value: Any, group: Any) -> None:
    """Raise UsageError unless a key is an option of a command below its table."""
    commands = getattr(group, "commands", {})
    if isinstance(value, Mapping):
        raise UsageError(f"{place}: no command is named {key!r}{_nearest(key, commands)}")
    names = options_below(group)
    if key not in names:
        raise UsageError(f"{place}: no option is named {key!r}{_nearest(key, names)}")


def _typed(what: str, parameter: Any, value: Any) -> Any:
    """Return a value as typer takes it: a bool for a flag, text for anything else."""
    if _is_flag(parameter):
        if not isinstance(value, bool):
            raise UsageError(f"{what} is {value!r}; it must be true or false")
        return value
    if _is_repeated(parameter):
        return [_text(what, item) for item in (value if isinstance(value, list) else [value])]
    return _text(what, value)


def _text(what: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float | date | datetime):
        raise UsageError(f"{what} is {value!r}; it must be one text or number")
    return value.isoformat() if isinstance(value, date) else str(value)


def _is_flag(parameter: Any) -> bool:
    return bool(getattr(parameter, "is_flag", False))


def _is_repeated(parameter: Any) -> bool:
    return bool(getattr(parameter, "multiple", False) or parameter.nargs == -1)


def _nearest(name: str, names: set[str] | Mapping[str, Any]) -> str:
    matches = get_close_matches(name, sorted(names), 1)
    return f" (did you mean {matches[0]}?)" if matches else ""
