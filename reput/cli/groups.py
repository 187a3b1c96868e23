"""``reput groups`` and ``reput lag``: show how far consumer groups have read a store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import options, render, tables
from reput.cli.commands import Command, DefaultGroup
from store.errors import NotFoundError

if TYPE_CHECKING:
    from readers.grouplag import CommittedOffsets, QueueLag
    from store.config import StoreSettings

app = typer.Typer(
    cls=DefaultGroup,
    help="Show consumer groups and what they have not consumed. `list` may be left out.",
    no_args_is_help=True,
)

OffsetsOutput = Annotated[
    Path | None,
    options.value(
        "DIR",
        "Root directory of queues and, where they exist, of committed offsets; the store itself "
        "if not given.",
        "--output",
        "-o",
    ),
]


@app.command("list", cls=Command)
def list_groups(
    store: options.Store,
    output: OffsetsOutput = None,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJson = False,
) -> None:
    """Show each consumer group with its lag over all of its topics."""
    settings = options.output_settings(
        store, output, broker_conf, commitlog_file_size, consume_queue_file_size
    )
    committed, lags = _read(settings, output)
    groups = [
        {"group": group, "topics": committed.topics(group), **_sum(list(found))}
        for group, found in groupby(lags, attrgetter("group"))
    ]
    if as_json:
        render.print_json({"offsets_file": str(committed.path), "groups": groups})
        return
    columns = ("group", "topics", "queues", *_LAG_COLUMNS)
    rows = [(one["group"], len(one["topics"]), one["queues"], *_lag_row(one)) for one in groups]
    _print(committed, columns, rows)


@app.command("show", cls=Command)
def show(
    store: options.Store,
    group: Annotated[
        str, typer.Argument(help="The consumer group.", callback=options.text, metavar="GROUP")
    ],
    output: OffsetsOutput = None,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJson = False,
) -> None:
    """Show each queue of a consumer group; exit code 1 if it has committed nothing."""
    settings = options.output_settings(
        store, output, broker_conf, commitlog_file_size, consume_queue_file_size
    )
    committed, lags = _read(settings, output, group=group)
    if as_json:
        queues = [asdict(one) for one in lags]
        render.print_json({"offsets_file": str(committed.path), "group": group, "queues": queues})
        return
    columns = ("topic", "queue", "min", "max", "committed", *_LAG_COLUMNS)
    rows = [
        (one.topic, one.queue_id, one.min_offset, one.max_offset, one.committed,
         *_lag_row(asdict(one.lag)))
        for one in lags
    ]  # fmt: skip
    _print(committed, columns, rows)


def lag(
    store: options.Store,
    group: Annotated[
        list[str] | None,
        options.value("GROUP", "Show only this consumer group; may be repeated."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        options.value("TOPIC", "Show only this topic; may be repeated.", "--topic", "-t"),
    ] = None,
    output: OffsetsOutput = None,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the lag of consumer groups in each of their topics.

    It is unknown where a group has not committed yet, or has committed beyond the queue's end. The
    age is that of the first message which is not consumed.
    """
    settings = options.output_settings(
        store, output, broker_conf, commitlog_file_size, consume_queue_file_size
    )
    committed, lags = _read(settings, output, groups=group, topics=topic)
    found = [
        {"group": name, "topic": of_topic, **_sum(list(queues))}
        for (name, of_topic), queues in groupby(lags, attrgetter("group", "topic"))
    ]
    if as_json:
        render.print_json({"offsets_file": str(committed.path), "lags": found})
        return
    rows = [(one["group"], one["topic"], one["queues"], *_lag_row(one)) for one in found]
    _print(committed, ("group", "topic", "queues", *_LAG_COLUMNS), rows)


_LAG_COLUMNS = ("messages", "bytes", "age")


def _read(
    settings: StoreSettings,
    output: Path | None,
    *,
    group: str | None = None,
    groups: list[str] | None = None,
    topics: list[str] | None = None,
) -> tuple[CommittedOffsets, list[QueueLag]]:
    """Raises NotFoundError where no offsets are known, or none of ``group``."""
    from readers.grouplag import CommittedOffsets, queue_lags  # noqa: PLC0415
    from readers.messagestore import MessageStore  # noqa: PLC0415

    # before the queues, so that no group is shown as having committed what has not arrived
    committed = CommittedOffsets.read(settings.root, output)
    if group is not None and group not in committed.groups():
        raise NotFoundError(
            f"consumer group {group} has no offsets in {committed.path}; reput groups list shows "
            "those that have"
        )
    now_ms = time.time_ns() // 1_000_000
    with MessageStore(settings.root, output=output, settings=settings) as opened:
        wanted = groups if group is None else [group]
        return committed, list(queue_lags(opened, committed, now_ms, groups=wanted, topics=topics))


def _sum(lags: list[QueueLag]) -> dict[str, Any]:
    from readers.grouplag import total  # noqa: PLC0415

    return {"queues": len(lags), **asdict(total(one.lag for one in lags))}


def _lag_row(lag: dict[str, Any]) -> tuple[str, str, str]:
    seconds = lag["seconds"]
    return (
        tables.known(lag["messages"]),
        tables.lag_text(lag["bytes"]),
        "unknown" if seconds is None else tables.human_seconds(seconds),
    )


def _print(
    committed: CommittedOffsets, columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]
) -> None:
    title = f"offsets in {tables.escaped(str(committed.path))}"
    if rows:
        tables.print_table(title, columns, rows)
    else:
        tables.print_line(f"{title}: no group has committed any that were asked for")
