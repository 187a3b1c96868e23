"""``reput config``: shows the options of a command and where their values come from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from reput.cli.commands import Command, Group, given_to
from reput.cli.configfile import Given, command_of, name_of
from reput.cli.printer import Result, Table, printed
from reput.store.errors import UsageError

app = typer.Typer(cls=Group, help="Show what a command would run with.", no_args_is_help=True)
COLUMNS = ("option", "value", "from")


@app.command(
    "show", cls=Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)  # fmt: skip
@printed
def show(
    context: typer.Context,
    call: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND [OPTION]...",
            help="The command's words, and options as they would be given to it.",
        ),
    ],
) -> Result:
    """Show every option of a command with its value, and where the value comes from.

    The command does not run. Its values come from the call itself, the environment, the file that
    `reput --config` names, or the defaults; the first of them that has one counts.
    """
    root = context.find_root()
    words: list[str] = []
    while call and call[0] in getattr(command_of(root.command, words), "commands", {}):
        words.append(call.pop(0))
    command = command_of(root.command, words or call[:1])
    if hasattr(command, "commands"):
        raise UsageError(f"{words[-1]} is a group of commands: {', '.join(command.commands)}")
    parent: Any = root
    for depth in range(1, len(words)):
        group = command_of(root.command, words[:depth])
        parent = typer.Context(group, parent=parent, info_name=words[depth - 1])
    # resilient: an argument that is missing has no value, and is shown so
    asked = command.make_context(words[-1], list(call), parent=parent, resilient_parsing=True)
    given = given_to(asked)
    rows = [_row(asked, parameter, given) for parameter in command.params]
    return Result(
        [dict(zip(COLUMNS, row, strict=True)) for row in rows],
        [Table(f"reput {' '.join(words)}", COLUMNS, rows)],
    )


def _row(asked: Any, parameter: Any, given: dict[str, Given]) -> tuple[str, object, str]:
    name = name_of(parameter)
    match asked.get_parameter_source(parameter.name).name:
        case "COMMANDLINE":
            return name, _shown(asked.params[parameter.name]), "call"
        case "DEFAULT_MAP":
            return name, _shown(given[name].value), given[name].origin
        case _:
            return name, _shown(asked.params[parameter.name]), "default"


def _shown(value: object) -> object:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value if isinstance(value, bool | None) else str(value)
