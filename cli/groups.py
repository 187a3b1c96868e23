"""``reput groups`` and ``reput lag``: show the lag of consumer groups, and move their offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import completion, options, render, texts
from reput.cli.commands import Command, DefaultGroup
from reput.cli.printer import Part, Result, Table, printed
from reput.store.config import StoreSettings
from reput.store.errors import UsageError

if TYPE_CHECKING:
    from reput.readers.grouplag import CommittedOffsets, QueueLag
    from reput.readers.messagestore import MessageStore
    from reput.readers.offsetreset import OffsetChange
    from reput.store.state.consumeroffset import Offsets

app = typer.Typer(
    cls=DefaultGroup,
    help="Show consumer groups with their lag, and move their offsets. `list` may be left out.",
    no_args_is_help=True,
)

Output = Annotated[
    Path | None,
    options.value(
        "DIR",
        "Root directory of queues and committed offsets; the store itself if not given.",
        "--output",
        "-o",
    ),
]
Group = Annotated[
    str,
    typer.Argument(
        help="The consumer group.", callback=options.text, metavar="GROUP",
        autocompletion=completion.groups,
    ),
]  # fmt: skip
Apply = Annotated[
    bool, options.flag("Write the offsets; otherwise they are only shown.", "--apply")
]
SomeTopics = Annotated[
    list[str] | None,
    options.value(
        "TOPIC",
        "Move the offsets in this topic only; may be repeated.",
        "--topic",
        "-t",
    ),
]


@app.command("list", cls=Command)
@printed
@options.with_options(settings=options.output_settings)
def list_groups(
    settings: StoreSettings,
    output: Output = None,
) -> Result:
    """Show each consumer group with its lag over all of its topics."""
    committed, lags = _read(settings, output)
    groups = [
        {"group": group, "topics": committed.topics(group), **_sum(list(group_lags))}
        for group, group_lags in groupby(lags, attrgetter("group"))
    ]
    rows = [
        (entry["group"], texts.grouped(len(entry["topics"])), texts.grouped(entry["queues"]),
         *_lag_row(entry))
        for entry in groups
    ]  # fmt: skip
    return _result(committed, {"groups": groups}, ("group", "topics", "queues"), rows)


@app.command("show", cls=Command)
@printed
@options.with_options(settings=options.output_settings)
def show(
    settings: StoreSettings,
    group: Group,
    output: Output = None,
) -> Result:
    """Show each queue of a consumer group; exit code 1 if it has committed nothing."""
    committed, lags = _read(settings, output, groups=[group])
    fields = {"group": group, "queues": [asdict(queue) for queue in lags]}
    rows = [
        (queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, queue.committed,
         *_lag_row(asdict(queue.lag)))
        for queue in lags
    ]  # fmt: skip
    return _result(committed, fields, ("topic", "queue", "min", "max", "committed"), rows)


@app.command("reset", cls=Command)
@printed
@options.with_options(settings=options.output_settings)
def reset(
    settings: StoreSettings,
    group: Group,
    topic: Annotated[str, options.value("TOPIC", "The topic to move in.", "--topic", "-t")],
    to_time: Annotated[
        str | None, options.time_value("Move to the first message stored then or later")
    ] = None,
    earliest: Annotated[
        bool, options.flag("Move to the first message that the log has.", "--earliest")
    ] = False,
    queue: Annotated[
        int | None, options.value("QUEUE", "With `--offset`, the queue to move in.", min=0)
    ] = None,
    offset: Annotated[
        int | None, options.value("OFFSET", "With `--queue`, the queue offset to move to.", min=0)
    ] = None,
    new: Annotated[
        bool, options.flag("Take a group that nobody knows yet, and so make it.", "--new")
    ] = False,
    apply: Apply = False,
    output: Output = None,
) -> Result:
    """Show, or write, a group's offsets for a time, for the beginning, or as they are given.

    Stop the group's members first: a running member commits its own position again.
    """
    from reput.readers import offsetreset  # noqa: PLC0415

    ways = (to_time is not None, earliest, offset is not None)
    if ways.count(True) != 1 or (queue is None) != (offset is None):
        raise UsageError("give one of --to-time, --earliest, and --queue with --offset")
    time_ms = options.optional_time_ms("--to-time", to_time)

    def plan(opened: MessageStore, committed: Offsets) -> list[OffsetChange]:
        if not new:
            offsetreset.check_group(settings.root, committed, group)
        if time_ms is not None:
            return offsetreset.reset_to_time(opened, committed, group, topic, time_ms)
        if queue is None or offset is None:
            return offsetreset.reset_to_earliest(opened, committed, group, topic)
        return offsetreset.reset_to_offset(opened, committed, group, topic, queue, offset)

    return _change(settings, output, plan, apply=apply)


@app.command("skip", cls=Command)
@printed
@options.with_options(settings=options.output_settings)
def skip(
    settings: StoreSettings,
    group: Group,
    topic: SomeTopics = None,
    apply: Apply = False,
    output: Output = None,
) -> Result:
    """Show, or write, a group's offsets beyond every message, in all topics where it has committed.

    Stop the group's members first: a running member commits its own position again.
    """
    from reput.readers import offsetreset  # noqa: PLC0415

    return _change(
        settings, output,
        lambda opened, committed: offsetreset.skip(opened, committed, group, topic),
        apply=apply,
    )  # fmt: skip


@app.command("clone", cls=Command)
@printed
@options.with_options(settings=options.output_settings)
def clone(
    settings: StoreSettings,
    group: Group,
    target: Annotated[
        str,
        typer.Argument(
            help="The group that gets its offsets.", callback=options.text, metavar="TARGET"
        ),
    ],
    topic: SomeTopics = None,
    apply: Apply = False,
    output: Output = None,
) -> Result:
    """Show, or write, a group's offsets for another group, in all topics but its retry topic.

    Stop the other group's members first: a running member commits its own position again.
    """
    from reput.readers import offsetreset  # noqa: PLC0415

    return _change(
        settings, output,
        lambda _opened, committed: offsetreset.clone(committed, group, target, topic),
        apply=apply,
    )  # fmt: skip


@printed
@options.with_options(settings=options.output_settings)
def lag(
    settings: StoreSettings,
    group: Annotated[
        list[str] | None,
        options.value("GROUP", "Show only this consumer group; may be repeated."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        options.value("TOPIC", "Show only this topic; may be repeated.", "--topic", "-t"),
    ] = None,
    output: Output = None,
) -> Result:
    """Show the lag of consumer groups in each of their topics.

    It is unknown where a group has not committed yet, or has committed beyond the queue's end. The
    age is that of the first message which is not consumed.
    """
    committed, lags = _read(settings, output, groups=group, topics=topic)
    sums = [
        {"group": name, "topic": of_topic, **_sum(list(queues))}
        for (name, of_topic), queues in groupby(lags, attrgetter("group", "topic"))
    ]
    rows = [
        (entry["group"], entry["topic"], texts.grouped(entry["queues"]), *_lag_row(entry))
        for entry in sums
    ]
    return _result(committed, {"lags": sums}, ("group", "topic", "queues"), rows)


def _read(
    settings: StoreSettings,
    output: Path | None,
    *,
    groups: list[str] | None = None,
    topics: list[str] | None = None,
) -> tuple[CommittedOffsets, list[QueueLag]]:
    """Raises NotFoundError where no offsets are known, or none of one of ``groups``."""
    from reput.readers.grouplag import CommittedOffsets, queue_lags  # noqa: PLC0415
    from reput.readers.messagestore import MessageStore  # noqa: PLC0415

    # before the queues, so that no group is shown as having committed what has not arrived
    committed = CommittedOffsets.read(settings.root, output)
    now_ms = time.time_ns() // 1_000_000
    with MessageStore(settings.root, output=output, settings=settings) as opened:
        _warn(opened, "no lag that is shown counts them")
        return committed, list(queue_lags(opened, committed, now_ms, groups=groups, topics=topics))


def _warn(store: MessageStore, meaning: str) -> None:
    """Print a warning if messages are in no queue, and what that means here."""
    if (line := store.note_coverage()) is not None:
        render.print_note(f"warning: {line} ({meaning})")


def _change(
    settings: StoreSettings,
    output: Path | None,
    plan: Callable[[MessageStore, Offsets], list[OffsetChange]],
    *,
    apply: bool,
) -> Result:
    from reput.readers.messagestore import MessageStore  # noqa: PLC0415
    from reput.readers.offsetreset import change_offsets  # noqa: PLC0415

    with MessageStore(settings.root, output=output, settings=settings) as opened:
        _warn(opened, "no offset leads to them yet")
        changes = change_offsets(settings.root, output, partial(plan, opened), apply=apply)
    rows = [(change.topic, change.queue_id, change.before, change.after) for change in changes]
    title = "offsets written" if apply else "offsets to write"
    table = Table(title, ("topic", "queue", "committed", "new"), rows)
    different = sum(change.before != change.after for change in changes)
    line = (
        f"{texts.counted(different, 'offset')} of {texts.counted(len(changes), 'queue')} "
        f"{'changed' if apply else 'would change; nothing was written, give --apply'}"
    )
    fields = {"applied": apply, "offsets": [asdict(change) for change in changes]}
    return Result(fields, [table, line])


def _sum(lags: list[QueueLag]) -> dict[str, Any]:
    from reput.readers.grouplag import total  # noqa: PLC0415

    return {"queues": len(lags), **asdict(total(queue.lag for queue in lags))}


def _lag_row(lag: dict[str, Any]) -> tuple[str, str, str]:
    seconds = texts.human_seconds(lag["seconds"])
    return texts.grouped(lag["messages"]), texts.human_bytes(lag["bytes"]), seconds


def _result(
    committed: CommittedOffsets,
    fields: dict[str, Any],
    columns: tuple[str, ...],
    rows: Sequence[tuple[object, ...]],
) -> Result:
    """Return ``fields`` for machines, for people ``columns`` and those of ``_lag_row``."""
    title = f"offsets in {committed.path}"
    part: Part = Table(title, (*columns, "messages", "bytes", "age"), rows)
    if not rows:
        part = f"{title}: none that were asked for"
    return Result({"offsets_file": str(committed.path), **fields}, [part])
