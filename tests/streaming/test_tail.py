"""The end of a live log, followed in steps: a broker's appends, Spark, and what is Spark's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reput.store import fsops
from reput.store.errors import NoSpaceError, StoreError
from reput.store.log.record import Record
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts
from reput.streaming import space
from reput.streaming.commit import Committer
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.foreachbatch import BatchFunction
from reput.streaming.progress import Progress
from reput.workload.appender import Appender
from tests.support.configs import configured
from tests.support.golden import difference

pytestmark = pytest.mark.usefixtures("spark")

LIMIT = 1 << 17
HOUR_MS = 3_600_000
"""A step after this time would outlast the test."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appender]:
    """The only writer of a store, whose log has a few files."""
    with Appender(tmp_path / "store", file_size=1 << 18) as appender:
        append(appender, 2_000)
        yield appender


def append(broker: Appender, count: int) -> None:
    """Messages of two topics with two queues each."""
    for index in range(count):
        topic = b"Even" if index % 2 else b"Odd"
        broker.append(Record(topic=topic, queue_id=index % 4 // 2, body=b"b" * 300))


def follow(
    broker: Appender,
    output: Path,
    show: Callable[[Progress, threading.Event], None],
    **options: Any,
) -> Progress:
    """Follow the log until ``show`` sets the event that it is given."""
    stop = threading.Event()
    config = configured(broker.root, output, index=False, **options)
    return run_dispatcher(config, stop, lambda progress: show(progress, stop))


def check_is_whole(broker: Appender, output: Path, directory: Path) -> None:
    """A further run finds the rest, and all queues are those of a run that builds them at once."""
    for path in (output, directory / "whole"):
        config = configured(broker.root, path, once=True, index=False)
        assert run_dispatcher(config, threading.Event()).end_offset == broker.end_offset
    assert difference(output / "consumequeue", directory / "whole" / "consumequeue") == []


def test_a_backlog_is_read_without_a_pause_and_a_stop_ends_one(
    broker: Appender, tmp_path: Path
) -> None:
    """After a step the pause is an hour: the run ends only if the backlog has none, if its end
    becomes durable in one, and if the stop ends it. Nothing is lost."""
    output, backlog = tmp_path / "output", broker.end_offset

    def show(progress: Progress, stop: threading.Event) -> None:
        if backlog < broker.end_offset:
            stop.set()
        elif progress.end_offset == backlog:
            append(broker, 5)

    progress = follow(
        broker, output, show, max_bytes_per_trigger=LIMIT, latency_ms=HOUR_MS
    )  # fmt: skip
    assert progress.batches > backlog // LIMIT
    check_is_whole(broker, output, tmp_path)


def test_a_step_that_fails_ends_the_run_as_a_batch_does(
    broker: Appender,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark's batch, which is held open, does not delay the error."""
    backlog, commit = broker.end_offset, Committer.commit

    def failing(committer: Committer, batch: DispatchBatch) -> DispatchCounts:
        if batch.end > backlog:
            raise StoreError("this commit fails")
        return commit(committer, batch)

    def show(progress: Progress, _stop: threading.Event) -> None:
        if progress.end_offset == backlog == broker.end_offset:
            append(broker, 5)

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "commit", failing)
        with pytest.raises(StoreError, match="this commit fails"):
            follow(broker, tmp_path / "output", show)
    failed = [record for record in caplog.records if record.getMessage() == "batch failed"]
    assert [vars(record)["fields"]["cause"] for record in failed] == ["this commit fails"]
    check_is_whole(broker, tmp_path / "output", tmp_path)


def test_an_attempt_after_a_full_disk_begins_at_the_watermark(
    broker: Appender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps before it were visible and not durable: they are dispatched again, and are counted
    once."""
    backlog, commit = broker.end_offset, Committer.commit
    refused, appends = list[int](), iter(range(2))

    def failing(committer: Committer, batch: DispatchBatch) -> DispatchCounts:
        if batch.start > backlog and not refused:
            refused.append(batch.end)
            raise NoSpaceError("the disk is full")
        return commit(committer, batch)

    def show(progress: Progress, stop: threading.Event) -> None:
        if progress.position < broker.end_offset:
            return
        if next(appends, None) is None:
            stop.set()
        else:
            append(broker, 5)

    monkeypatch.setattr(Committer, "commit", failing)
    monkeypatch.setattr(space, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(fsops, "has_space", lambda _: True)
    progress = follow(broker, tmp_path / "output", show, durable_latency_ms=HOUR_MS)
    assert refused
    assert (progress.counts.messages, progress.counts.duplicates) == (2_010, 0)
    check_is_whole(broker, tmp_path / "output", tmp_path)


def test_a_replay_after_a_full_disk_begins_at_what_was_durable(
    broker: Appender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watermark does not tell, since it is at the log's end: all is written again."""
    output, end, commit = tmp_path / "output", broker.end_offset, Committer.commit
    check_is_whole(broker, output, tmp_path)
    refused = list[int]()

    def failing(committer: Committer, batch: DispatchBatch) -> DispatchCounts:
        if batch.end == end and not refused:
            refused.append(batch.start)
            raise NoSpaceError("the disk is full")
        return commit(committer, batch)

    def show(progress: Progress, stop: threading.Event) -> None:
        if progress.position == end:
            stop.set()

    monkeypatch.setattr(Committer, "commit", failing)
    monkeypatch.setattr(space, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(fsops, "has_space", lambda _: True)
    progress = follow(
        broker, output, show,
        durable_latency_ms=HOUR_MS, replay_from="earliest", max_bytes_per_trigger=LIMIT,
    )  # fmt: skip
    assert refused > [0]
    assert progress.counts.messages == progress.counts.duplicates == 2_000
    check_is_whole(broker, output, tmp_path)


@pytest.mark.extended
def test_steps_and_tasks_dispatch_the_same(
    broker: Appender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small appends are followed, larger ones are backlogs: both take turns."""
    collected = list[int]()
    collect = BatchFunction._collect

    def counted(batches: BatchFunction, frame: Any) -> Any:
        collected.append(batches.progress.position)
        return collect(batches, frame)

    monkeypatch.setattr(BatchFunction, "_collect", counted)
    sizes, ends = iter([5, 100, 7, 2, 90, 3, 60, 11]), [broker.end_offset]

    def show(progress: Progress, stop: threading.Event) -> None:
        # a live reader leaves the last record until it has seen it twice
        if progress.end_offset < ends[-1]:
            return
        size = next(sizes, 0)
        if not size:
            stop.set()
        append(broker, size)
        ends.append(broker.end_offset)

    progress = follow(broker, tmp_path / "output", show, latency_ms=0, max_bytes_per_trigger=10_000)
    assert 1 < len(collected) < progress.batches
    check_is_whole(broker, tmp_path / "output", tmp_path)
