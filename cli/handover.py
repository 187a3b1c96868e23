"""``reput overlay handover``: lets the broker of a store go on after an overlay."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from reput.cli import options, texts
from reput.cli.printer import Result, printed
from reput.store.config import read_store_settings
from reput.store.files import OVERLAY_DIRECTORY


@printed
def handover(
    output: options.OverlayOutput,
    directory: Annotated[
        Path,
        typer.Argument(
            help="The directory to write; it must be new or empty.", metavar="DIRECTORY"
        ),
    ],
    store: Annotated[
        Path | None,
        options.value("STORE", "The store, where OUTPUT is another directory."),
    ] = None,
    broker_conf: options.BrokerConf = None,
) -> Result:
    """Write what a broker needs that is to run again on a store that was served with an overlay.

    Its notes of delivered messages and ended transactions are advanced by what the overlay has
    done, in files of their own. README.txt says where to put them, and delivered.json lists all
    that was done. Neither store nor overlay changes. Stop the server first.
    """
    from reput.overlay.base.handover import hand_over  # noqa: PLC0415

    base = read_store_settings(store or output, broker_conf)
    found = hand_over(base, output, output / OVERLAY_DIRECTORY, directory)
    outcomes = Counter(f"{one.kind} {one.outcome}" for one in found.done)
    repeated = [asdict(one) for one in found.done if one.is_repeated]
    fields = {
        "directory": str(directory),
        "files": list(found.files),
        "done": dict(sorted(outcomes.items())),
        "repeated": repeated,
    }
    done = texts.counted(len(found.done), "message")
    lines = [
        f"{done} delivered or ended by the overlay; the broker repeats {len(repeated)} of them",
        f"{directory}/README.txt says what to put where",
    ]
    return Result(fields, lines)
