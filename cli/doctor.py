"""``reput doctor``: names what is wrong, and the command for it."""

from __future__ import annotations

from dataclasses import asdict

import typer

from reput.cli import options, render, tables
from reput.cli.settingflags import with_flags
from reput.store.config import StoreSettings

FOUND = 1


@options.with_options(settings=options.output_settings)
def doctor(
    store: options.Store,
    settings: StoreSettings,
    output: options.ReadOutput = None,
    as_json: options.AsJson = False,
) -> None:
    """Look at a store and its output for everything that is wrong, and name the command for it.

    Reads only. Finds are listed in the order in which to heal them; look again after each command.
    The exit code is 1 if anything is wrong. Single entries are compared by `reput verify`.
    """
    from reput.upkeep.doctor import examine  # noqa: PLC0415

    finds = examine(settings, output or store)
    command = next((one.command for one in finds if one.command is not None), None)
    if as_json:
        render.print_report({"finds": [asdict(one) for one in finds], "next": command})
    else:
        for one in finds:
            tables.print_line(f"{one.state}: {tables.escaped(with_flags(one.text))}")
        if not any(one.is_wrong for one in finds):
            tables.print_line("nothing is wrong; reput verify compares each entry with the log")
        elif command is None:
            tables.print_line("no command of reput heals this")
        else:
            tables.print_line(f"next: {command}")
    if any(one.is_wrong for one in finds):
        raise typer.Exit(FOUND)
