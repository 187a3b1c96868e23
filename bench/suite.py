"""All rows, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench import (
    catch_up,
    delivering,
    fresh,
    kafka,
    live,
    quiet,
    reading,
    scaling,
    sealing,
    serving,
    sparksources,
    tables,
)
from bench.context import Context
from bench.measures import Row
from bench.processes import BenchError

FAILED = "FAILED"
"""The result of a row whose processes failed."""

Group = Callable[[Context], Iterator[Row]]

GROUPS: tuple[tuple[Group, tuple[str, ...]], ...] = (
    (
        lambda context: catch_up.measure(context, 300),
        ("catch-up-300", "parse-limit-300", "cold-cache-300", "whole-process-300"),
    ),
    (
        lambda context: catch_up.measure(context, 1200),
        ("catch-up-1200", "parse-limit-1200", "cold-cache-1200"),
    ),
    (catch_up.measure_all_dispatchers, ("all-dispatchers-300",)),
    (live.measure_latency, tuple(live.LATENCY_ROWS)),
    (quiet.measure_first, (quiet.FIRST,)),
    (quiet.measure_idle, tuple(quiet.IDLE_ROWS)),
    (scaling.measure_sizes, ("log-size", "peak-memory")),
    (scaling.measure_cores, ("cores",)),
    (sparksources.measure, sparksources.ROW_NAMES),
    (tables.measure_tables, tuple(tables.TABLES)),
    (sealing.measure, tuple(sealing.ROWS)),
    (reading.measure, ("queue-iteration", "filtered-read")),
    (serving.measure_speed, serving.SPEED_ROWS),
    (serving.measure_wake, (serving.WAKE,)),
    (fresh.measure, (fresh.NAME,)),
    (serving.measure_groups, (serving.BALANCE, serving.HELD)),
    (delivering.measure, delivering.ROW_NAMES),
    (kafka.measure, (kafka.NAME,)),
    # last, because hundreds of thousands of files are removed slowly
    (scaling.measure_queues, ("queues-10000", "queues-100000")),
)
"""Groups of rows that share a log; a group yields those of its rows that are wanted. What a user
asks first is measured first, in case a run is stopped."""

ROW_NAMES = tuple(name for _, names in GROUPS for name in names)
HALF_AT = ROW_NAMES.index(quiet.FIRST)
HALVES = {1: ROW_NAMES[:HALF_AT], 2: ROW_NAMES[HALF_AT:]}
"""The rows in two runs of up to an hour each, of which half is for quiet minutes."""
QUICK_ROWS = ("catch-up-300", "parse-limit-300", "catch-up-1200", "parse-limit-1200")
NEED_MAVEN = (
    "catch-up-300", "catch-up-1200", "whole-process-300", "all-dispatchers-300", kafka.NAME,
    live.BESIDE_ROCKETMQ,
    fresh.NAME,
    *sparksources.ROW_NAMES, *serving.SPEED_ROWS, *delivering.ROW_NAMES,
)  # fmt: skip


def measure(context: Context) -> Iterator[Row]:
    """Yield all wanted rows, each as soon as it is measured.

    When a measured process fails, its group's remaining rows fail with it, but not the suite: they
    are missed goals, with the reason.
    """
    for group, names in GROUPS:
        missing = [name for name in names if name in context.row_names]
        if not missing:
            continue
        try:
            for row in group(context):
                missing.remove(row.name)
                yield row
        except BenchError as error:
            for name in missing:
                yield Row(name, "failed", goal="", result=FAILED, met=False, notes=[str(error)])
