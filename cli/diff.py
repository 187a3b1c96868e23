"""``reput diff``: names where the queues and indexes of two stores differ."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from reput.cli import moments, options, texts
from reput.cli.comparison import comparison_lines, difference_records
from reput.cli.printer import Result, Table, printed
from reput.store.config import StoreSettings
from reput.store.errors import UsageError
from reput.store.files import INDEX_DIRECTORY
from reput.store.index.indexfile import DEFAULT_MAX_HASH_SLOT_NUM
from reput.store.state.built import hash_slot_count
from reput.upkeep.compare import DIRECTORY_KINDS, KINDS, compare_stores
from reput.upkeep.moments import compare_moments


@printed
def diff(
    store_a: Annotated[
        Path,
        typer.Argument(
            help="The root directory of a store or of another output.", metavar="STORE_A"
        ),
    ],
    store_b: Annotated[
        Path | None,
        typer.Argument(help="The root directory to compare it with.", metavar="STORE_B"),
    ] = None,
    since: Annotated[
        str | None,
        options.value(
            "MOMENT",
            "Compare STORE_A as of this moment with itself as of `--as-of`, "
            "or now: a time, `offset:N` or `batch:N`.",
        ),
    ] = None,
    as_of: options.AsOf = None,
    output: options.ReadOutput = None,
    only: Annotated[
        str | None,
        options.value(
            "KINDS",
            "Compare only these kinds, with commas: `consumequeue`, `index`, ...; all but "
            "`checkpoint`, whose times always differ, if not given.",
        ),
    ] = None,
    broker_conf: options.BrokerConf = None,
) -> Result:
    """Compare two stores' queues and indexes, and name the first entry of each that differs.

    With `--since` compare two moments of one store, and show which queues grew by what. Reads only.
    The exit code is 0 if nothing differs, 1 if anything does, 2 for a wrong call.
    """
    if since is not None:
        if store_b is not None or only is not None:
            raise UsageError(
                "--since compares the queues of one store; leave STORE_B and --only out"
            )
        settings = options.output_settings(store_a, output, broker_conf)
        return _grown(settings, output or store_a, since, as_of)
    if store_b is None:
        raise UsageError("give STORE_B to compare with, or --since to compare two moments")
    if as_of is not None or output is not None:
        raise UsageError("--as-of and --output need --since, which compares two moments")
    kinds = DIRECTORY_KINDS if only is None else options.kinds_option(only, KINDS)
    roots = (store_a, store_b)
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"{root} is not a directory; give a store's root, or an output's")
    slots = DEFAULT_MAX_HASH_SLOT_NUM
    if INDEX_DIRECTORY in kinds:
        slots = hash_slot_count(roots, broker_conf)
    comparison = compare_stores(*roots, kinds, hash_slot_count=slots)
    if not comparison.compared:
        raise UsageError(f"neither {store_a} nor {store_b} holds {' or '.join(kinds)}")
    return Result(
        {"equal": comparison.is_equal, **asdict(comparison)},
        [*difference_records(comparison.differences, *roots), *comparison_lines(comparison)],
        exit_code=int(not comparison.is_equal),
    )


def _grown(settings: StoreSettings, output: Path, since: str, as_of: str | None) -> Result:
    earlier = moments.as_of("--since", since, settings, output)
    assert earlier is not None
    later = moments.as_of("--as-of", as_of, settings, output)
    growth = compare_moments(settings, output, earlier, later)
    columns = ("topic", "queue", "from offset", "to offset", "messages")
    rows = [
        (queue.topic, queue.queue_id, queue.from_offset, queue.to_offset,
         texts.grouped(queue.to_offset - queue.from_offset))
        for queue in growth.queues
    ]  # fmt: skip
    grown = texts.counted(len(rows), "queue")
    line = f"{grown} grew between physical offsets {growth.from_end} and {growth.to_end}"
    return Result(
        {"equal": not growth.queues, **asdict(growth)},
        [Table("queues", columns, rows), line],
        exit_code=int(bool(growth.queues)),
    )
