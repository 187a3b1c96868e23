"""``reput status``: shows where a store and its queues stand."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from reput.cli import options, render, severalstores, tables
from store.config import NO_PROPERTY_FILE
from store.errors import ReputError, StoreError
from streaming.waiting import until_ready
from upkeep.status import FollowerStatus, OutputStatus, QueueStatus, read_status

WATCH_SECONDS = 2.0
CLEAR_FROM_HOME = "\x1b[H\x1b[J"
"""Erases below the cursor's home: a terminal scrolls nothing of it into its history."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at a store or at several."""

    content: dict[str, Any]
    """The object that ``--json`` prints."""
    show: Callable[[], None]
    """Prints it for people."""
    unread: Sequence[str] = ()
    """A line for each store that cannot be read."""


SHOWN_REPEATS = 10
"""Queues whose offsets began again that get a line."""


def status(
    store: severalstores.OneStore = None,
    output: options.ReadOutput = None,
    stores: severalstores.Stores = None,
    outputs: severalstores.Outputs = None,
    topic: Annotated[
        list[str] | None,
        options.value("TOPIC", "Show each queue of this topic; may be repeated.", "--topic", "-t"),
    ] = None,
    watch: Annotated[
        bool,
        options.flag("Show it again every two seconds until Ctrl-C or SIGTERM.", "--watch", "-w"),
    ] = False,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the log's end, the watermark, the lag, the quarantine and every topic's queues.

    Reads only. The lag in seconds is the age of the first message that is not dispatched yet. With
    `--stores` it shows a row for each store; the exit code is 1 if one of them cannot be read.
    """
    several = severalstores.several_stores(store, stores, outputs)
    sizes = commitlog_file_size, consume_queue_file_size
    if several is not None:
        several.refuse({"output": output, "topic": topic, "broker_conf": broker_conf})
        look = partial(_look_at_all, several, sizes)
    else:
        files = broker_conf, *sizes
        look = partial(_look_at_one, store or Path(), output, files, topic)

    with render.stopped_by_signals() as stop:
        while True:
            found = until_ready(look, stop) if watch else look()
            if found is None:
                return
            if as_json:
                render.print_json(found.content)
            else:
                if watch and tables.is_terminal():
                    sys.stdout.write(CLEAR_FROM_HOME)
                found.show()
            if not watch or stop.wait(WATCH_SECONDS):
                break
    if found.unread:
        raise StoreError("; ".join(found.unread))


def _look_at_one(
    store: Path,
    output: Path | None,
    files: tuple[Path | None, str | None, str | None],
    topics: Sequence[str] | None,
) -> _Look:
    settings = options.output_settings(store, output, *files)
    found = read_status(settings, output or store, topics)
    return _Look(asdict(found), partial(_show, found, topics))


def _look_at_all(
    several: severalstores.SeveralStores, sizes: tuple[str | None, str | None]
) -> _Look:
    rows: list[dict[str, Any]] = []
    unread = []
    for root, output in several.find().items():
        row: dict[str, Any] = {"store": str(root), "output": str(output)}
        try:
            settings = options.output_settings(root, output, None, *sizes)
            row |= {**asdict(read_status(settings, output, ())), "error": None}
            del row["queues"]
        except ReputError as error:
            row["error"] = str(error)
            unread.append(f"{root}: {error}")
        rows.append(row)
    return _Look({"stores": rows}, partial(_show_all, rows), unread)


def _show_all(stores: Sequence[dict[str, Any]]) -> None:
    columns = ("store", "watermark", "lag", "writer", "quarantined", "gaps", "failing followers")
    rows = []
    for one in stores:
        if one["error"] is not None:
            rows.append((one["store"], *["unknown"] * (len(columns) - 1)))
            continue
        lag = "unknown" if one["lag_seconds"] is None else tables.human_seconds(one["lag_seconds"])
        failing = [each["name"] for each in one["followers"] if each["error"] is not None]
        rows.append(
            (
                one["store"], tables.known(one["watermark"]),
                f"{lag}, {tables.lag_text(one['lag_bytes'])}", one["writer_pid"] or "none",
                tables.counted(sum(each["bytes"] for each in one["quarantine"]), "byte"),
                f"{one['gaps']:,}", ", ".join(failing) or "none",
            )
        )  # fmt: skip
    tables.print_table("stores", columns, rows)


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
    for one in found.repeated[:SHOWN_REPEATS]:
        tables.print_line(
            f"begin again topic {one.topic} queue {one.queue_id}: "
            f"{tables.counted(one.messages, 'message')} from physical offset "
            f"{one.first_physical_offset} on are in no queue; reput rebuild --topic TOPIC --from "
            "OFFSET gives it to them"
        )
    if len(found.repeated) > SHOWN_REPEATS:
        more = tables.counted(len(found.repeated) - SHOWN_REPEATS, "queue")
        tables.print_line(f"begin again {more} more; --json lists them")
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
