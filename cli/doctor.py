"""``reput doctor``: names what is wrong, and the command for it."""

from __future__ import annotations

from dataclasses import asdict

from reput.cli import options
from reput.cli.printer import Result, printed
from reput.store.config import StoreSettings


@printed
@options.with_options(settings=options.output_settings)
def doctor(
    store: options.Store,
    settings: StoreSettings,
    output: options.ReadOutput = None,
) -> Result:
    """Look at a store and its output for everything that is wrong, and name the command for it.

    Reads only. Finds are listed in the order in which to heal them; look again after each command.
    The exit code is 1 if anything is wrong. Single entries are compared by `reput verify`.
    """
    from reput.upkeep.doctor import examine  # noqa: PLC0415

    finds = examine(settings, output or store)
    command = next((find.command for find in finds if find.command is not None), None)
    is_wrong = any(find.is_wrong for find in finds)
    last = f"next: {command}"
    if not is_wrong:
        last = "nothing is wrong; reput verify compares each entry with the log"
    elif command is None:
        last = "no command of reput heals this"
    return Result(
        {"finds": [asdict(find) for find in finds], "next": command},
        [*(f"{find.state}: {find.text}" for find in finds), last],
        exit_code=int(is_wrong),
        has_settings=True,
    )
