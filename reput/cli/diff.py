"""``reput diff``: where two stores differ in what follows from their logs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from reput.cli import options, render, tables
from store.errors import UsageError
from store.state.built import hash_slot_count
from upkeep.compare import DIRECTORY_KINDS, KINDS, compare_stores

DIFFERENT = 1


def diff(
    store_a: Annotated[Path, typer.Argument(help="Root of a store, or of another output.")],
    store_b: Annotated[Path, typer.Argument(help="The one to compare it with.")],
    only: Annotated[
        str | None,
        options.value(
            "KINDS",
            "Kinds, with commas: `consumequeue`, `index`, ..., `checkpoint`, whose times "
            "differ of themselves; all but that if not given.",
        ),
    ] = None,
    broker_conf: options.BrokerConf = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare queues and indexes; name the first entry of each that differs.

    Reads only. Exit code 0 where nothing differs, 1 where something does, 2 if called wrongly.
    """
    kinds = DIRECTORY_KINDS if only is None else options.kinds_option(only, KINDS)
    roots = (store_a, store_b)
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"{root} is not a directory; give a store's root, or an output's")
    slots = hash_slot_count(roots, broker_conf)
    found = compare_stores(*roots, kinds, hash_slot_count=slots)
    if not found.compared:
        raise UsageError(f"neither {store_a} nor {store_b} holds {' or '.join(kinds)}")
    if as_json:
        render.print_json({"equal": found.is_equal, **asdict(found)})
    else:
        tables.print_differences(found.differences, *roots)
        for line in tables.comparison_lines(found):
            tables.print_line(line)
    if not found.is_equal:
        raise typer.Exit(DIFFERENT)
