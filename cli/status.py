"""``reput status``: shows where a store and its queues stand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from reput.cli import options, render, severalstores, texts
from reput.cli.printer import Part, Record, Result, Table, printed
from reput.cli.statuscheck import Checked, check
from reput.store.commandline import command_line
from reput.store.config import NO_PROPERTY_FILE, StoreSettings
from reput.store.errors import ReputError, StoreError, UsageError
from reput.store.log.systemtopics import WAITING_TOPICS
from reput.streaming.waiting import until_ready
from reput.upkeep.watch.check import Thresholds
from reput.upkeep.watch.status import FollowerStatus, OutputStatus, QueueStatus, read_status

if TYPE_CHECKING:
    from reput.readers.inventory import Inventory

WATCH_SECONDS = 2.0
STORE_COLUMNS = ("store", "watermark", "lag", "in bytes", "writer", "faults")


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at a store or at several."""

    result: Result
    checked: Sequence[Checked]
    """The outputs that were read, for ``--check``."""
    failed: Sequence[str] = ()
    """A line for each store that cannot be read, or whose run ended without stopping."""


SHOWN_REPEATS = 10
"""Queues whose offsets began again that get a line."""


def _limits(
    warn_lag: Annotated[
        str | None,
        options.value("TIME", "With `--check`, warn of a lag beyond this: `30s`.", "--warn-lag"),
    ] = None,
    crit_lag: Annotated[
        str | None,
        options.value("TIME", "With `--check`, a lag beyond this is critical: `5m`.", "--crit-lag"),
    ] = None,
) -> Thresholds:
    def seconds(option: str, text: str | None) -> float | None:
        return None if text is None else options.duration_option_ms(option, text) / 1000

    return Thresholds(seconds("--warn-lag", warn_lag), seconds("--crit-lag", crit_lag))


@printed
@options.with_options(limits=_limits)
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
    as_check: Annotated[
        bool,
        options.flag(
            "Print one line for Nagios; exit codes: 0 OK, 1 warning, 2 critical, 3 unknown.",
            "--check",
        ),
    ] = False,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    *,
    limits: Thresholds,
    as_json: options.AsJson = False,
) -> Iterator[Result]:
    """Show the log's end, the watermark, the lag, the quarantine and every topic's queues.

    Reads only. The lag in seconds is the age of the first message that is not dispatched yet. With
    `--stores` it shows a row for each store. The exit code is 1 if a store cannot be read, or if a
    run of it was killed or failed and nothing has run since.
    """
    sizes = (commitlog_file_size, consume_queue_file_size)

    def looker() -> Callable[[], _Look]:
        several = severalstores.several_stores(store, stores, outputs)
        if several is not None:
            several.refuse({"output": output, "topic": topic, "broker_conf": broker_conf})
            return partial(_look_at_all, several, sizes)
        return partial(_look_at_one, store or Path(), output, (broker_conf, *sizes), topic)

    if as_check and (watch or as_json or topic):
        raise UsageError("--check prints one line: leave out --watch, --json and --topic")
    if as_check:
        yield check(lambda: looker()().checked, limits)
        return
    if limits != Thresholds():
        raise UsageError("--warn-lag and --crit-lag are for --check")
    look = looker()
    with render.stopped_by_signals() as stop:
        while True:
            reading = until_ready(look, stop) if watch else look()
            if reading is None:
                return
            yield replace(reading.result, has_settings=True, is_screen=watch)
            if not watch or stop.wait(WATCH_SECONDS):
                break
    if reading.failed:
        raise StoreError("; ".join(reading.failed))


def _look_at_one(
    store: Path,
    output: Path | None,
    files: tuple[Path | None, str | None, str | None],
    topics: Sequence[str] | None,
) -> _Look:
    settings = options.output_settings(store, output, *files)
    state = read_status(settings, output or store, topics)
    failed = [state.unstopped_run] if state.unstopped_run else []
    waiting = None if topics else _waiting(settings, output or store, state)
    content = {**asdict(state), "waiting": waiting and asdict(waiting)}
    parts = _parts(state, (store, output or store), topics, waiting)
    return _Look(Result(content, parts), [Checked("", state)], failed)


def _waiting(settings: StoreSettings, output: Path, state: OutputStatus) -> Inventory | None:
    """Count the messages that wait for a broker; None where no queue can hold one."""
    if WAITING_TOPICS.isdisjoint(queue.topic for queue in state.queues):
        return None
    from reput.readers.inventory import take_inventory  # noqa: PLC0415
    from reput.readers.messagestore import MessageStore  # noqa: PLC0415

    with MessageStore(settings.root, output=output, settings=settings) as opened:
        return take_inventory(opened, settings.root)


def _look_at_all(
    several: severalstores.SeveralStores, sizes: tuple[str | None, str | None]
) -> _Look:
    rows: list[severalstores.StoreRow] = []
    checked, failed = [], []
    for root, output in several.find().items():
        state = _read(root, output, sizes)
        checked.append(Checked(output.name, state))
        if isinstance(state, ReputError):
            unknown = [*["unknown"] * (len(STORE_COLUMNS) - 2), "cannot be read"]
            rows.append((root, output, str(state), {}, unknown))
            failed.append(f"{root}: {state}")
        else:
            fields = asdict(state)
            del fields["queues"]
            rows.append((root, output, None, fields, _cells(state)))
            failed += [state.unstopped_run] if state.unstopped_run else []
    return _Look(severalstores.result(STORE_COLUMNS, rows), checked, failed)


def _read(
    root: Path, output: Path, sizes: tuple[str | None, str | None]
) -> OutputStatus | ReputError:
    """Return the status of one of several stores, without its queues, or why it cannot be read."""
    try:
        return read_status(options.output_settings(root, output, None, *sizes), output, ())
    except (ReputError, OSError) as error:
        return render.error_of_store(error)


def _cells(state: OutputStatus) -> Sequence[str]:
    """Return the row of one of several stores, without the store."""
    faults = ["run ended without stopping"] * (state.unstopped_run is not None)
    faults += [f"{follower.name} fails" for follower in state.followers if follower.error]
    bad = sum(count.bytes for count in state.quarantine)
    for size, where in ((state.unqueued_bytes, "in no queue"), (bad, "quarantined")):
        faults += [f"{texts.human_bytes(size)} {where}"] * (size > 0)
    faults += [texts.counted(state.gaps, "gap")] * (state.gaps > 0)
    return (
        texts.known(state.watermark), texts.human_seconds(state.lag_seconds),
        texts.human_bytes(state.lag_bytes), str(state.writer_pid or "none"),
        ", ".join(faults) or "none",
    )  # fmt: skip


def _parts(
    state: OutputStatus,
    place: tuple[Path, Path],
    topics: Sequence[str] | None,
    waiting: Inventory | None,
) -> Iterator[Part]:
    lag = texts.lag_words(state.lag_bytes, state.lag_messages, state.lag_seconds)
    quarantine = ", ".join(
        f"{count.reason} {texts.counted(count.ranges, 'range')} of "
        f"{texts.counted(count.bytes, 'byte')}"
        for count in state.quarantine
    )
    has_built = state.watermark is not None
    lines: dict[str, object] = {
        "time": texts.time_text(time.time_ns() // 1_000_000),
        "settings": state.broker_conf or NO_PROPERTY_FILE,
        "commitlog": ", ".join(state.commit_log_directories),
        "log": f"[{state.log_min}, {state.log_end})",
        "watermark": state.watermark if has_built else "none, reput has not built here",
        "lag": lag if has_built else "unknown without a watermark",
        "writer": state.writer_pid and f"process {state.writer_pid}",
        "in no queue": state.unqueued,
        "quarantine": quarantine or None,
        "gaps": texts.grouped(state.gaps),
    }
    if waiting is not None:
        halves = texts.counted(waiting.halves, "open half message")
        lines["waiting"] = (
            f"{texts.counted(waiting.delayed, 'delayed message')}, up to "
            f"{texts.counted(waiting.timed, 'timed message')}, "
            f"{'up to ' * waiting.are_all_halves}{halves}, which only a broker delivers"
        )
    if state.queues_beyond_log:
        lines["beyond log"] = (
            f"{texts.counted(len(state.queues_beyond_log), 'queue')} with units beyond the log's "
            f"end, {state.queues_beyond_log[0]} first; a broker cuts them when it "
            f"starts, and so does {command_line('run', *place, '--adopt', '--once')}"
        )
    yield Record("", lines)
    for repeat in state.repeated[:SHOWN_REPEATS]:
        first = repeat.first_physical_offset
        choice = ("--topic", repeat.topic, "--from", str(repeat.begin))
        rebuild = command_line("rebuild", *place, *choice)
        yield (
            f"begin again topic {repeat.topic} queue {repeat.queue_id}: "
            f"{texts.counted(repeat.messages, 'message')} from physical offset {first} on are in "
            f"no queue; {rebuild} gives it to them"
        )
    if len(state.repeated) > SHOWN_REPEATS:
        more = texts.counted(len(state.repeated) - SHOWN_REPEATS, "queue")
        yield f"begin again {more} more; --json lists them"
    for follower in state.followers:
        yield Record(f"follower {follower.name}", _follower_fields(follower))
    if not state.queues:
        yield f"no queues{' of ' + ', '.join(topics) if topics else ''}"
    elif topics is not None:
        columns = ("topic", "queue", "min offset", "max offset")
        rows = [(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in state.queues]
        yield Table("queues", columns, rows)
    else:
        yield Table("topics", ("topic", "queues", "messages"), _topic_rows(state.queues))


def _topic_rows(queues: Sequence[QueueStatus]) -> list[tuple[object, ...]]:
    by_topic: dict[str, list[int]] = {}
    for queue in queues:
        by_topic.setdefault(queue.topic, []).append(queue.max_offset - queue.min_offset)
    return [
        (topic, texts.grouped(len(counts)), texts.grouped(sum(counts)))
        for topic, counts in by_topic.items()
    ]


def _follower_fields(follower: FollowerStatus) -> dict[str, object]:
    counts = {
        "rows": follower.rows,
        "lost bytes": follower.lost_bytes,
        "internal records left out": follower.internal_left_out,
        **follower.counts,
    }
    return {
        "target": follower.target,
        "position": texts.known(follower.position),
        "lag": texts.human_bytes(follower.lag_bytes),
        "counts": ", ".join(f"{name} {count:,}" for name, count in counts.items() if count),
        "failing since": follower.failing_since and texts.moment_text(follower.failing_since),
        "last error": follower.error,
    }
