"""The end of a log, followed in steps: without Spark, and mostly in virtual time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reput.store.config import read_store_settings
from reput.store.log import logtail
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from reput.store.log.status import Status
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts
from reput.store.state.logoffset import offset_json
from reput.streaming import dispatcher, following
from reput.streaming.following import (
    LOOK_SECONDS,
    QUIET_LOOK_SECONDS,
    TEND_SECONDS,
    Following,
)
from reput.streaming.indexes import Indexes
from reput.streaming.progress import Progress
from reput.workload.appender import Appender
from tests.support.configs import configured

STORE_ID = "0" * 32
LONGEST_SECONDS = 60.0
LATENCY_MS = 10
HOUR_MS = 3_600_000
COMMIT_SECONDS = 0.003
HOLE_SECONDS = 0.005
"""For so long the soak's appender leaves one (``tests/soak/appender.py``)."""
QUEUE_OFFSET_POSITION = 20


class _Waits(threading.Event):
    """An event that is waited for in virtual time."""

    def __init__(self, clock: SimpleNamespace) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if not self.is_set():
            self._clock.now += timeout
        return self.is_set()


class _Noticed(threading.Condition):
    """A condition that tells that somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Semaphore(0)

    def wait_for(self, *arguments: Any) -> Any:
        self.waits.release()
        return super().wait_for(*arguments)


@dataclass
class Log:
    """A log that grows, and what was dispatched of it."""

    broker: Appender
    log: CommitLog
    output: Path
    clock: SimpleNamespace
    ends: list[int]
    """Ends of the records that were appended."""
    steps: list[DispatchBatch]
    times: list[float]
    """Virtual times at which the steps were handed over."""

    def append(self, count: int = 1) -> None:
        """Append small messages."""
        for number in range(count):
            self.broker.append(Record(topic=b"T", queue_id=number % 2, body=b"b" * 100))
            self.ends.append(self.broker.end_offset)

    def following(self, progress: Progress, **options: Any) -> Following:
        """The object under test, in virtual time."""
        options = {"latency_ms": LATENCY_MS} | options
        config = configured(self.broker.root, self.output, index=False, **options)
        indexes = Indexes.of(config, read_store_settings(self.broker.root))
        found = Following(config, indexes, self.log, STORE_ID, progress)
        found._letting_go = _Waits(self.clock)
        found.begin()
        return found

    def commit(self, progress: Progress, step: DispatchBatch) -> None:
        """Take a step, which takes some time."""
        self.steps.append(step)
        self.times.append(self.clock.now)
        self.clock.now += COMMIT_SECONDS
        progress.advance(step.end, DispatchCounts(messages=step.message_count))

    def follow(self, progress: Progress, **options: Any) -> None:
        """Follow the log until all of it is dispatched, or a backlog is there."""
        found = self.following(progress, **options)

        def tend() -> None:
            if progress.position == self.broker.end_offset:
                found.let_go()

        found.run(lambda step: self.commit(progress, step), tend)


@pytest.fixture
def grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """A log of two records."""
    clock = SimpleNamespace(now=1_000.0)

    def sleep(seconds: float) -> None:
        assert seconds >= 0, "time.sleep raises ValueError"
        clock.now += seconds

    virtual = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(following, "time", virtual)
    monkeypatch.setattr(logtail, "time", virtual)
    with Appender(tmp_path / "store", file_size=1 << 16) as broker:
        broker.append(Record(topic=b"T", body=b"first"))
        directories = read_store_settings(tmp_path / "store").commit_log_directories
        with closing(CommitLog(directories)) as log:
            ends = [broker.end_offset]
            found = Log(broker, log, tmp_path / "output", clock, ends, [], [])
            found.append()
            yield found


def test_steps_are_limited_and_end_at_records(grows: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is known to be sealed is dispatched without a pause, which would be an hour."""
    monkeypatch.setattr(following, "STEP_BYTES", 1_000)
    grows.append(40)
    end = grows.broker.end_offset
    began = grows.clock.now
    grows.follow(Progress(0, 0, log_end=end), latency_ms=HOUR_MS)
    assert [step.start for step in grows.steps] == [0, *(step.end for step in grows.steps[:-1])]
    assert {step.end for step in grows.steps} <= {*grows.ends}
    assert grows.steps[-1].end == end
    assert all(step.end - step.start <= 1_000 for step in grows.steps)
    assert grows.clock.now - began < 1


@pytest.mark.parametrize("is_backlog", [False, True])
def test_what_is_larger_than_the_limit_is_left_to_tasks(grows: Log, is_backlog: bool) -> None:
    """Up to the limit it is followed. A batch of Spark that waits for the steps is told that there
    are none, and the lag is that of the end that was found."""
    end = grows.broker.end_offset
    progress = Progress(0, 0, log_end=0)
    found = grows.following(progress, max_bytes_per_trigger=end - is_backlog)
    found._changed = noticed = _Noticed()
    waited = list[bool]()
    thread = threading.Thread(target=lambda: waited.append(found.wait_for(end)))
    thread.start()
    assert noticed.waits.acquire(timeout=LONGEST_SECONDS)

    def tend() -> None:
        if progress.position == end:
            found.let_go()

    found.run(lambda step: grows.commit(progress, step), tend)
    thread.join(LONGEST_SECONDS)
    assert waited == [not is_backlog]
    assert bool(grows.steps) is not is_backlog
    assert progress.log_end == end


def test_a_step_has_the_time_between_two_begins(
    grows: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages come at each look, and a step takes a while; with eight stores in the process a
    step comes half as often."""
    poll = LogTail.poll

    def polled(tail: LogTail, *arguments: Any) -> int:
        if len(grows.steps) < 5:
            grows.append(3)
        return poll(tail, *arguments)

    monkeypatch.setattr(LogTail, "poll", polled)
    for others, seconds in ((0, 0.01), (7, 0.02)):
        grows.steps.clear()
        grows.times.clear()
        monkeypatch.setattr(following, "_FOLLOWING", {*range(others)})
        end = grows.broker.end_offset
        grows.follow(Progress(end, end))
        spaces = [later - before for before, later in pairwise(grows.times)]
        assert spaces[:4] == pytest.approx([seconds] * 4)
        assert len(following._FOLLOWING) == others, "what has ended takes no share"


def test_a_hole_that_lasts_for_milliseconds_is_waited_for(
    grows: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer than a broker may store a record's pieces in any order; zeros in the place of
    its queue offset look right until they are gone."""
    poll, at, filled = LogTail.poll, grows.broker.end_offset, list[float]()
    path = next((grows.broker.root / "commitlog").iterdir())

    def store(data: bytes) -> None:
        with path.open("r+b") as file:
            file.seek(at + QUEUE_OFFSET_POSITION)
            file.write(data)

    def polled(tail: LogTail, *arguments: Any) -> int:
        if grows.broker.end_offset == at:
            grows.append()
            store(bytes(8))
            filled.append(grows.clock.now + HOLE_SECONDS)
        elif grows.clock.now >= filled[0]:
            store((2).to_bytes(8, "big"))
        return poll(tail, *arguments)

    monkeypatch.setattr(LogTail, "poll", polled)
    progress = Progress(at, at, log_end=at)
    found = grows.following(progress)

    def tend() -> None:
        if grows.steps:
            found.let_go()

    found.run(lambda step: grows.commit(progress, step), tend)
    (step,) = grows.steps
    assert step.runs is not None
    assert [run.first_queue_offset for run in step.runs] == [2]
    assert grows.times[0] > filled[0]


def test_a_lone_message_is_sealed_by_the_next_look(
    grows: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a quiet time there are few looks; one that finds a record has more after it at once,
    and the second of these finds it unchanged for long enough."""
    looks, wholes, tends = list[float](), list[float](), list[float]()

    def looked(look: Any) -> Any:
        def look_at(tail: LogTail, *arguments: Any) -> Any:
            if grows.clock.now not in looks[-1:]:
                looks.append(grows.clock.now)
                if len(looks) == 1_000:
                    assert tail.is_idle
                    grows.append()
            if look is poll:
                wholes.append(grows.clock.now)
            return look(tail, *arguments)

        return look_at

    poll = LogTail.poll

    for name in ("poll", "is_unchanged"):
        monkeypatch.setattr(LogTail, name, looked(getattr(LogTail, name)))
    end = grows.broker.end_offset
    progress = Progress(0, 0, log_end=end)
    found = grows.following(progress)

    def tend() -> None:
        tends.append(grows.clock.now)
        if progress.position > end:
            found.let_go()

    found.run(lambda step: grows.commit(progress, step), tend)
    assert grows.steps[-1].end == grows.broker.end_offset
    spaces = [later - before for before, later in pairwise(looks)]
    assert spaces[900:999] == pytest.approx([QUIET_LOOK_SECONDS] * 99)
    assert len(looks) == 1_002
    assert grows.times[-1] - looks[999] == pytest.approx(2 * LOOK_SECONDS)
    assert 2 * LOOK_SECONDS > LogTail.SEAL_SECONDS
    assert spaces[1] == pytest.approx(LOOK_SECONDS), "it is not quiet yet"
    for times, seconds in ((tends, QUIET_LOOK_SECONDS), (wholes, TEND_SECONDS)):
        waits = [later - before for before, later in pairwise(times)]
        assert max(waits) < seconds + 2 * QUIET_LOOK_SECONDS, "what is due is due in quiet too"


def test_what_the_planner_has_sealed_is_dispatched(
    grows: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage that this process has seen for a moment its planner may have seen for long enough."""
    for grace in ("DAMAGE_GRACE_SECONDS", "HOLE_CHECK_SECONDS"):
        monkeypatch.setattr(LogTail, grace, 1e9)
    damaged = grows.broker.end_offset
    grows.append(2)
    path = next((grows.broker.root / "commitlog").iterdir())
    with path.open("r+b") as file:
        file.seek(damaged + 4)
        file.write(bytes(4))
    progress = Progress(damaged, damaged)
    found = grows.following(progress)
    looks = iter(range(3))

    def tend() -> None:
        if next(looks, None) is None:
            found.let_go()

    found.run(lambda step: grows.commit(progress, step), tend)
    assert grows.steps == []
    found.begin()
    found._changed = noticed = _Noticed()
    thread = threading.Thread(target=found.wait_for, args=(grows.broker.end_offset,))
    thread.start()
    assert noticed.waits.acquire(timeout=LONGEST_SECONDS)
    looks = iter(range(3))
    found.run(lambda step: grows.commit(progress, step), tend)
    thread.join(LONGEST_SECONDS)
    bad = [one for step in grows.steps for one in step.bad]
    assert [(one.start, one.end, one.status) for one in bad] == [
        (damaged, grows.ends[-2], Status.BAD_MAGIC)
    ]


def test_what_is_due_is_looked_after_once_a_second_whatever_the_latency(grows: Log) -> None:
    """Else what was committed would become durable a step late."""
    progress = Progress(0, 0)
    found = grows.following(progress, latency_ms=20_000)
    times = list[float]()

    def tend() -> None:
        times.append(grows.clock.now)
        if progress.position == grows.broker.end_offset and len(times) > 30:
            found.let_go()

    found.run(lambda step: grows.commit(progress, step), tend)
    waits = [after - before for before, after in pairwise(times)]
    assert max(waits) <= following.TEND_SECONDS + COMMIT_SECONDS
    assert max(waits) > COMMIT_SECONDS


def test_a_batch_is_held_until_the_next_one_has_something(
    grows: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or until the log is no longer followed: a backlog is planned at once."""
    monkeypatch.setattr(following, "CONFIRM_SECONDS", 0)
    end = grows.broker.end_offset
    progress = Progress(end, end)
    found = grows.following(progress)
    found._changed = noticed = _Noticed()
    at = list[int]()

    def hold() -> None:
        found.hold(end)
        at.append(progress.position)

    held = threading.Thread(target=hold)
    held.start()
    for _ in range(2):
        assert noticed.waits.acquire(timeout=LONGEST_SECONDS)
    with noticed:
        assert held.is_alive(), "nothing has come"
    grows.append(2)

    def tend() -> None:
        if progress.position > end:
            held.join(LONGEST_SECONDS)
            assert at == [progress.position]
            again = threading.Thread(target=found.hold, args=(end,))
            again.start()
            again.join(LONGEST_SECONDS)
            assert not again.is_alive(), "the next batch has all of this to confirm"
            found.let_go()

    found.run(lambda step: grows.commit(progress, step), tend)
    assert not found.runs
    found.hold(grows.broker.end_offset)
    assert not found.wait_for(grows.broker.end_offset + 1)


def test_a_batch_is_held_no_more_when_the_log_is_let_go(
    grows: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, also where the thread that follows has not come to it yet: its commit may take long,
    and Spark's batch would keep the run from its end."""
    monkeypatch.setattr(following, "CONFIRM_SECONDS", HOUR_MS / 1000)
    found = grows.following(Progress(0, 0))
    found._changed = noticed = _Noticed()
    held = threading.Thread(target=found.hold, args=(grows.broker.end_offset,), daemon=True)
    held.start()
    assert noticed.waits.acquire(timeout=LONGEST_SECONDS)
    found.let_go()
    held.join(LONGEST_SECONDS)
    assert not held.is_alive()
    assert found.runs


def test_a_wait_for_the_end_of_a_step_ends_with_that_step(grows: Log) -> None:
    """Spark's batch may end where the log does, and no later step comes."""
    end = grows.broker.end_offset
    progress = Progress(end, end)
    found = grows.following(progress)
    found._changed = noticed = _Noticed()
    grows.append(2)
    waits = threading.Thread(target=found.wait_for, args=(grows.broker.end_offset,))
    waits.start()
    assert noticed.waits.acquire(timeout=LONGEST_SECONDS)

    def tend() -> None:
        waits.join(LONGEST_SECONDS)
        assert not waits.is_alive()
        found.let_go()

    found.run(lambda step: grows.commit(progress, step), tend)
    assert progress.position == grows.broker.end_offset


def test_settings_are_read_after_the_end_that_needs_them(
    grows: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker declares a topic before its first message: at whatever look that comes."""
    poll = LogTail.poll
    end = grows.broker.end_offset
    progress = Progress(end, end)
    topics = grows.broker.root / "config" / "topics.json"

    def polled(tail: LogTail, *arguments: Any) -> int:
        if grows.broker.end_offset == end and tail.is_idle:
            topics.parent.mkdir()
            table = {"B": {"attributes": {"queue.type": "BatchCQ"}}}
            topics.write_text(json.dumps({"topicConfigTable": table}))
            grows.append()
        return poll(tail, *arguments)

    monkeypatch.setattr(LogTail, "poll", polled)
    found = grows.following(progress)

    def tend() -> None:
        if progress.position > end:
            found.let_go()

    found.run(lambda step: grows.commit(progress, step), tend)
    assert [step.batch_topics for step in grows.steps] == [frozenset({b"B"})]


def test_the_end_of_a_batch_is_read_where_spark_wrote_it(grows: Log) -> None:
    """Without the file, or of a damaged one, Spark's tasks have to find it."""
    found = grows.following(Progress(0, 0))
    offsets = grows.output / "reput" / "spark" / "offsets"
    assert found.planned_end(7) is None
    offsets.mkdir(parents=True)
    for number, end in ((6, 600), (7, 700)):
        planned = json.dumps(offset_json(STORE_ID, end))
        (offsets / str(number)).write_text(f'v1\n{{"batchTimestampMs": 1}}\n{planned}')
    assert (found.planned_end(6), found.planned_end(7)) == (600, 700)
    (offsets / "7").write_text("v1\n{}")
    assert found.planned_end(7) is None
    (offsets / "6").write_text(f"v1\n{{}}\n{json.dumps(offset_json('f' * 32, 600))}")
    assert found.planned_end(6) is None, "of another store"


@pytest.mark.parametrize(("seen", "shown"), [(600, 700), (800, 800), (None, 700)])
def test_the_end_of_the_log_does_not_go_back_to_what_spark_has_seen(
    seen: int | None, shown: int
) -> None:
    """Its last batch may be seconds old, and the steps have seen the end since."""
    progress = Progress(0, 0, log_end=700)
    offset = None if seen is None else json.dumps(offset_json(STORE_ID, seen))
    query: Any = SimpleNamespace(
        lastProgress=SimpleNamespace(sources=[SimpleNamespace(latestOffset=offset)])
    )
    dispatcher._sample(query, progress, STORE_ID)
    assert progress.log_end == shown
