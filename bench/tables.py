"""Measures how fast the messages of a log become rows of a table."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench import logs, measures
from bench.context import Context
from bench.logs import GIB, Log
from bench.measures import Figures, Row
from reput.sinks.delta.table import DeltaTarget
from reput.store import fsops
from reput.store.config import read_store_settings
from reput.streaming.config import DispatcherConfig
from reput.streaming.followers import Followers

BODY_SIZE = 300
GOAL = 1_000_000
SIZE_SHARE = 0.125
"""Share of the main log's size: 1 GiB of 8."""


def measure_delta(context: Context) -> Iterator[Row]:
    """Measure a follower alone, without queues, from an empty table to the log's end.

    The page cache is warm; the first pass, which loads kernels, is not counted.
    """
    with context.directory("delta") as directory:
        with logs.log_writer(directory / "store", BODY_SIZE) as writer:
            log = writer.grow(int(SIZE_SHARE * context.gib * GIB))
        context.say(f"log: {log.title}")
        logs.warm(log)
        seconds = []
        for number in range(context.rounds + 1):
            seconds.append(_seconds(log, directory / f"table-{number}"))
            context.say(f"round {number}/{context.rounds}: {seconds[-1]:.1f} s")
            fsops.remove_tree(directory / f"table-{number}")
            measures.freeze_as_reput()
    rates = Figures(
        "messages/s", tuple(log.message_count / pass_seconds for pass_seconds in seconds[1:])
    )
    yield Row(
        name="delta",
        title=f"a local Delta table, {BODY_SIZE} bytes, {log.end_offset / GIB:.2f} GiB of log",
        goal=f">= {GOAL:,} messages/s",
        result=f"{rates.median:,.0f} messages/s",
        met=context.judged(rates.median >= GOAL),
        figures={"reput": rates},
    )


def _seconds(log: Log, directory: Path) -> float:
    """Return the seconds of one pass into a table of its own, with all rows committed."""
    output = directory / "output"
    config = DispatcherConfig(log.store, output, followers=(DeltaTarget(str(directory / "rows")),))
    fsops.make_directories(config.state_directory, directory)
    followers = Followers(config, read_store_settings(log.store), "0" * 32)
    began = time.perf_counter()
    followers.start(log.end_offset, log.end_offset)
    try:
        followers.catch_up(threading.Event())
        return time.perf_counter() - began
    finally:
        followers.close()
