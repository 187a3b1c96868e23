"""``reput status``: shows where a store and its queues stand."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from rich.console import Console

from reput.cli import options, render, tables
from store.config import NO_PROPERTY_FILE, StoreSettings
from upkeep.status import FollowerStatus, OutputStatus, QueueStatus, read_status

WATCH_SECONDS = 2.0
CLEAR_FROM_HOME = "\x1b[H\x1b[J"
"""Erases below the cursor's home: a terminal scrolls nothing of it into its history."""


@options.with_options(settings=options.output_settings)
def status(
    store: options.Store,
    settings: StoreSettings,
    output: options.ReadOutput = None,
    topic: Annotated[
        list[str] | None,
        options.value("TOPIC", "Show each queue of this topic; may be repeated.", "--topic", "-t"),
    ] = None,
    watch: Annotated[
        bool,
        options.flag("Show it again every two seconds until Ctrl-C or SIGTERM.", "--watch", "-w"),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show the log's end, the watermark, the lag, the quarantine and every topic's queues.

    Reads only. The lag in seconds is the age of the first message that is not dispatched yet.
    """
    console = Console()
    with render.stopped_by_signals() as stop:
        while True:
            found = read_status(settings, output or store, topic)
            if as_json:
                render.print_json(asdict(found))
            else:
                if watch and console.is_terminal and not console.is_dumb_terminal:
                    sys.stdout.write(CLEAR_FROM_HOME)
                _show(found, topic)
            if not watch or stop.wait(WATCH_SECONDS):
                return


def _show(found: OutputStatus, topics: Sequence[str] | None) -> None:
    lag = "unknown"
    if found.watermark is None:
        lag = "unknown without a watermark"
    if found.lag_bytes is not None and found.lag_seconds is not None:
        many = found.lag_messages is None
        count = "many messages" if many else tables.counted(found.lag_messages or 0, "message")
        seconds = tables.human_seconds(found.lag_seconds)
        lag = f"{seconds}, {count}, {tables.human_bytes(found.lag_bytes)}"
    quarantine = ", ".join(
        f"{tables.escaped(one.reason)} {tables.counted(one.ranges, 'range')} of "
        f"{tables.counted(one.bytes, 'byte')}"
        for one in found.quarantine
    )
    lines = {
        "time": tables.time_text(time.time_ns() // 1_000_000),
        "settings": tables.escaped(found.broker_conf or NO_PROPERTY_FILE),
        "commitlog": tables.escaped(", ".join(found.commit_log_directories)),
        "log": f"[{found.log_min}, {found.log_end})",
        "watermark": "none, reput has not built here"
        if found.watermark is None
        else str(found.watermark),
        "lag": lag,
        "writer": f"process {found.writer_pid}" if found.writer_pid else "none",
        "quarantine": quarantine or "none",
        "gaps": f"{found.gaps:,}",
    }
    for name, text in lines.items():
        tables.print_line(f"{name:11} {text}")
    for follower in found.followers:
        tables.print_fields(f"follower {follower.name}", _follower_fields(follower))
    if not found.queues:
        tables.print_line(f"no queues{' of ' + ', '.join(topics) if topics else ''}")
    elif topics is not None:
        columns = ("topic", "queue", "min offset", "max offset")
        rows = [(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in found.queues]
        tables.print_table("queues", columns, rows)
    else:
        tables.print_table("topics", ("topic", "queues", "messages"), _topic_rows(found.queues))


def _topic_rows(queues: Sequence[QueueStatus]) -> list[tuple[object, ...]]:
    by_topic: dict[str, list[int]] = {}
    for queue in queues:
        by_topic.setdefault(queue.topic, []).append(queue.max_offset - queue.min_offset)
    return [(topic, len(counts), f"{sum(counts):,}") for topic, counts in by_topic.items()]


def _follower_fields(found: FollowerStatus) -> dict[str, object]:
    counts = {"rows": found.rows, "lost bytes": found.lost_bytes, **found.counts}
    return {
        "target": found.target,
        "position": tables.known(found.position),
        "lag": tables.lag_text(found.lag_bytes),
        "counts": ", ".join(f"{name} {count:,}" for name, count in counts.items() if count),
        "failing since": found.failing_since,
        "last error": found.error,
    }
