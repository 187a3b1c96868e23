"""Measures how fast the messages of a log become rows of a table."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import logs, measures
from bench.context import Context
from bench.logs import GIB, Log
from bench.measures import Figures, Row
from reput.sinks.delta.table import DeltaTarget
from reput.sinks.iceberg.catalog import TableName
from reput.sinks.iceberg.table import IcebergTarget
from reput.store import fsops
from reput.store.config import read_store_settings
from reput.store.follower import FollowerTarget
from reput.streaming.config import DispatcherConfig
from reput.streaming.followers import Followers

BODY_SIZE = 300
SIZE_SHARE = 0.125
"""Share of the main log's size: 1 GiB of 8."""


def _iceberg(directory: Path) -> FollowerTarget:
    """A table in a catalog of sqlite beside it."""
    properties = {"uri": f"sqlite:///{directory}/lake.db", "warehouse": f"file://{directory}"}
    return IcebergTarget(TableName("lake", ("db", "messages")), {"type": "sql", **properties})


@dataclass(frozen=True, slots=True)
class _Table:
    title: str
    target: Callable[[Path], FollowerTarget]
    topic_count: int
    goal: int
    """Messages/s."""


TABLES = {
    "delta": _Table("Delta", lambda at: DeltaTarget(str(at / "rows")), 8, 1_000_000),
    "iceberg": _Table("Iceberg", _iceberg, 8, 700_000),
    "iceberg-200": _Table("Iceberg", _iceberg, 200, 600_000),
}
"""By the name of the row."""


def measure_tables(context: Context) -> Iterator[Row]:
    """Measure a follower alone, without queues, from an empty table to the log's end.

    The page cache is warm; the first pass, which loads kernels, is not counted.
    """
    for name, table in TABLES.items():
        if name in context.row_names:
            yield _measure(context, name, table)


def _measure(context: Context, name: str, table: _Table) -> Row:
    with context.directory(name) as directory:
        topics = table.topic_count
        with logs.log_writer(directory / "store", BODY_SIZE, topic_count=topics) as writer:
            log = writer.grow(int(SIZE_SHARE * context.gib * GIB))
        context.say(f"{name}: {log.title}")
        logs.warm(log)
        seconds = []
        for number in range(context.rounds + 1):
            place = directory / f"table-{number}"
            seconds.append(_seconds(log, place, table.target(place)))
            context.say(f"round {number}/{context.rounds}: {seconds[-1]:.1f} s")
            fsops.remove_tree(place)
            measures.freeze_as_reput()
    rates = Figures(
        "messages/s", tuple(log.message_count / pass_seconds for pass_seconds in seconds[1:])
    )
    size = f"{log.end_offset / GIB:.2f} GiB of log"
    return Row(
        name=name,
        title=f"a local {table.title} table, {topics} topics, {BODY_SIZE} bytes, {size}",
        goal=f">= {table.goal:,} messages/s",
        result=f"{rates.median:,.0f} messages/s",
        met=context.judged(rates.median >= table.goal),
        figures={"reput": rates},
    )


def _seconds(log: Log, directory: Path, target: FollowerTarget) -> float:
    """Return the seconds of one pass into a table of its own, with all rows committed."""
    output = directory / "output"
    config = DispatcherConfig(log.store, output, followers=(target,))
    fsops.make_directories(config.state_directory, directory)
    followers = Followers(config, read_store_settings(log.store), "0" * 32)
    began = time.perf_counter()
    followers.start(log.end_offset, log.end_offset)
    try:
        followers.catch_up(threading.Event())
        return time.perf_counter() - began
    finally:
        followers.close()
