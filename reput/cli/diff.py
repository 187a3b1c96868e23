"""``reput diff``: names where the queues and indexes of two stores differ."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from reput.cli import options, render, tables
from reput.cli.comparison import comparison_lines, print_differences
from store.errors import UsageError
from store.index.indexfile import DEFAULT_MAX_HASH_SLOT_NUM, INDEX_DIRECTORY
from store.state.built import hash_slot_count
from upkeep.compare import DIRECTORY_KINDS, KINDS, compare_stores

DIFFERENT = 1


def diff(
    store_a: Annotated[
        Path,
        typer.Argument(
            help="The root directory of a store or of another output.", metavar="STORE_A"
        ),
    ],
    store_b: Annotated[
        Path, typer.Argument(help="The root directory to compare it with.", metavar="STORE_B")
    ],
    only: Annotated[
        str | None,
        options.value(
            "KINDS",
            "Compare only these kinds, with commas: `consumequeue`, `index`, ...; all but "
            "`checkpoint`, whose times always differ, if not given.",
        ),
    ] = None,
    broker_conf: options.BrokerConf = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare two stores' queues and indexes, and name the first entry of each that differs.

    Reads only. The exit code is 0 if nothing differs, 1 if anything does, 2 for a wrong call.
    """
    kinds = DIRECTORY_KINDS if only is None else options.kinds_option(only, KINDS)
    roots = (store_a, store_b)
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"{root} is not a directory; give a store's root, or an output's")
    slots = DEFAULT_MAX_HASH_SLOT_NUM
    if INDEX_DIRECTORY in kinds:
        slots = hash_slot_count(roots, broker_conf)
    found = compare_stores(*roots, kinds, hash_slot_count=slots)
    if not found.compared:
        raise UsageError(f"neither {store_a} nor {store_b} holds {' or '.join(kinds)}")
    if as_json:
        render.print_json({"equal": found.is_equal, **asdict(found)})
    else:
        print_differences(found.differences, *roots)
        for line in comparison_lines(found):
            tables.print_line(line)
    if not found.is_equal:
        raise typer.Exit(DIFFERENT)
