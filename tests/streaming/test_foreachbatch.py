"""Batches between Spark and the thread that commits them; without Spark."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from reput.store.errors import NoSpaceError, StoreError
from reput.store.runs.dispatch import BatchSettings, DispatchBatch, DispatchCounts, ScannedRange
from reput.store.runs.packed import scanned_row
from reput.store.runs.spool import claim, is_open, open_spool, remove_claims, write_part
from reput.streaming import foreachbatch
from reput.streaming.foreachbatch import BatchFunction, CommitThread
from reput.streaming.progress import Progress

LONGEST_SECONDS = 60.0


class Commits:
    """Stands for a committer: the first batch fails once it is let, in a step of it."""

    def __init__(self) -> None:
        self.failing_step = "commit"
        self.begun: list[int] = []
        self.has_begun = threading.Event()
        self.go_on = threading.Event()

    def commit(self, batch: DispatchBatch) -> DispatchCounts:
        """Take a batch."""
        self.begun.append(batch.end)
        self.has_begun.set()
        assert self.go_on.wait(LONGEST_SECONDS)
        self._fail_in("commit", batch)
        return DispatchCounts(messages=1)

    def publish(self, batch: DispatchBatch) -> None:
        """Nobody is told of it."""
        self._fail_in("publish", batch)

    def _fail_in(self, step: str, batch: DispatchBatch) -> None:
        if batch.end == 1 and step == self.failing_step:
            raise NoSpaceError("the disk is full")


@pytest.fixture
def commits() -> Commits:
    """Nothing is committed yet."""
    return Commits()


SETTINGS = BatchSettings(frozenset(), ())


@pytest.fixture(params=["spool", "no spool"])
def batches(
    commits: Commits,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> BatchFunction:
    """Its frames are ends of batches, each of which is one byte and one part."""

    def collected(batches: BatchFunction, end: Any) -> list[Any]:
        if end > 1:
            commits.go_on.set()
        return hand_over(batches, end - 1, end)

    monkeypatch.setattr(BatchFunction, "_collect", collected)
    anything: Any = commits
    spool = open_spool(tmp_path / "spool", tmp_path) if request.param == "spool" else None
    return BatchFunction(spool, 0, anything, anything, anything, Progress(0, 0))


def hand_over(batches: BatchFunction, start: int, end: int) -> list[Any]:
    """A task with one part and no message; what Spark brings of it."""
    scanned = ScannedRange(start, end, end, 0, -1, SETTINGS, 0)
    if batches.spool is not None:
        write_part(batches.spool, start, [scanned_row(scanned)])
    return [scanned]


def test_a_batch_waits_for_the_one_before_and_has_its_error(
    batches: BatchFunction, commits: Commits
) -> None:
    """Spark has the first one for done; nothing of the second is written."""
    frames: list[Any] = [1, 2]
    batches(frames[0], 0)
    with pytest.raises(NoSpaceError, match="the disk is full"):
        batches(frames[1], 1)
    assert isinstance(batches.failure, NoSpaceError)
    assert batches.spool is None or not is_open(batches.spool), "tasks would scan on in vain"
    batches.close()
    assert commits.begun == [1]


def test_the_end_of_a_run_waits_for_the_last_batch(
    batches: BatchFunction, commits: Commits
) -> None:
    """Its error is the run's."""
    frames: list[Any] = [1]
    batches(frames[0], 0)
    batches.commits.check()
    commits.go_on.set()
    with pytest.raises(NoSpaceError, match="the disk is full"):
        batches.commits.wait()
    with pytest.raises(NoSpaceError):
        batches.commits.check()
    batches.close()


def test_a_durable_batch_counts_though_nobody_could_be_told(
    batches: BatchFunction, commits: Commits
) -> None:
    """It is not written again."""
    frames: list[Any] = [1]
    commits.failing_step = "publish"
    commits.go_on.set()
    batches(frames[0], 0)
    with pytest.raises(NoSpaceError, match="the disk is full"):
        batches.commits.wait()
    assert (batches.progress.position, batches.progress.counts.messages) == (1, 1)
    batches.close()


def test_no_batch_begins_once_a_stop_has(batches: BatchFunction, commits: Commits) -> None:
    """Spark could not interrupt it."""
    frames: list[Any] = [2]
    batches.stop()
    with pytest.raises(StoreError, match="the dispatcher is stopping"):
        batches(frames[0], 0)
    assert batches.has_refused
    batches.close()
    assert commits.begun == []


def test_a_failed_batch_is_logged_once_with_its_cause_first(
    batches: BatchFunction, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch that finds its error is none that failed; one whose scan fails is."""
    caplog.set_level(logging.INFO, "reput")
    frames: list[Any] = [1, 2, None]
    batches(frames[0], 7)
    for frame, batch_id, error in ((frames[1], 8, NoSpaceError), (frames[2], 9, TypeError)):
        with pytest.raises(error):
            batches(frame, batch_id)
    batches.close()
    failed = [vars(record)["fields"] for record in caplog.records if record.levelname == "ERROR"]
    assert [next(iter(fields)) for fields in failed] == ["cause", "cause"]
    assert failed[0]["cause"] == "the disk is full"
    assert [(one["batch_id"], one["start"]) for one in failed] == [(7, 0), (9, 2)]
    assert failed[0]["commit_ms"] >= 0
    assert "commit_ms" not in failed[1]


@pytest.mark.parametrize("batches", ["spool"], indirect=True)
def test_a_large_batch_ends_at_a_part_when_the_run_is_stopped(
    batches: BatchFunction, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop comes while its job runs: what tasks have claimed is committed, and Spark, which
    hears of a failure, repeats the batch."""
    stop = threading.Thread(target=batches.stop)

    def stopped_job(batches: BatchFunction, _frame: Any) -> list[Any]:
        commits.go_on.set()
        hand_over(batches, 0, 2)
        stop.start()
        spool = batches.spool
        while spool is not None and is_open(spool):
            pass
        return [ScannedRange(0, 9, 9, 0, -1, SETTINGS, 0)]

    monkeypatch.setattr(BatchFunction, "_collect", stopped_job)
    frame: Any = None
    with pytest.raises(StoreError, match="the dispatcher is stopping"):
        batches(frame, 0)
    stop.join(LONGEST_SECONDS)
    assert batches.failure is None, "nothing has failed, and nothing is said"
    batches.close()
    assert batches.has_refused
    assert commits.begun == [2]
    assert batches.progress.position == 2


@pytest.mark.parametrize("batches", ["spool"], indirect=True)
def test_a_display_counts_no_durable_part_as_ahead(
    batches: BatchFunction, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Position and bytes ahead together are what is scanned: while a job runs, after its first part
    is durable, and at both sides of the moment at which its claims are removed."""
    looks: list[tuple[str, int, int]] = []
    durable = threading.Event()

    def look(moment: str) -> None:
        position = batches.progress.position
        batches.note_progress()
        looks.append((moment, position, batches.progress.ahead_bytes))

    def job(batches: BatchFunction, _frame: Any) -> list[Any]:
        scan(batches, 0, 2)
        look("nothing is durable")
        commits.go_on.set()
        assert durable.wait(LONGEST_SECONDS)
        commits.go_on.clear()
        look("the first part is durable")
        scan(batches, 2, 5)
        look("all is scanned")
        return [ScannedRange(0, 5, 5, 0, -1, SETTINGS, 0)]

    def scan(batches: BatchFunction, start: int, end: int) -> None:
        assert batches.spool is not None
        with claim(batches.spool, start) or pytest.fail("claimed") as claimed:
            claimed.reached(end, at_once=True)
        hand_over(batches, start, end)

    def removed(spool: Path) -> None:
        look("the job has ended")
        remove_claims(spool)
        look("the claims are removed")

    def advanced(progress: Progress, end: int, counts: DispatchCounts) -> None:
        advance(progress, end, counts)
        durable.set()

    advance = Progress.advance
    monkeypatch.setattr(BatchFunction, "_collect", job)
    monkeypatch.setattr(Progress, "advance", advanced)
    monkeypatch.setattr(foreachbatch, "remove_claims", removed)
    frame: Any = None
    batches(frame, 0)
    look("Spark has the batch for done")
    commits.go_on.set()
    batches.commits.wait()
    look("all is durable")
    batches.close()
    assert looks == [
        ("nothing is durable", 0, 2),
        ("the first part is durable", 2, 0),
        ("all is scanned", 2, 3),
        ("the job has ended", 2, 3),
        ("the claims are removed", 2, 0),
        ("Spark has the batch for done", 2, 3),
        ("all is durable", 5, 0),
    ]


def test_parts_that_do_not_join_are_scanned_here_after_the_commit_before_them(
    commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two share the log, and only one of them at a time may read it. The commit ends as soon
    as the batch waits for it, and not before."""
    wait = CommitThread.wait

    def noticed(thread: CommitThread) -> None:
        if not thread.is_idle:
            commits.go_on.set()
        wait(thread)

    def collected(batches: BatchFunction, _frame: Any) -> list[Any]:
        if not commits.begun:
            return hand_over(batches, 0, 2)
        return [ScannedRange(2, 2, 3, 0, -1, SETTINGS, 0)]

    def scanned(_commits: Commits, _log: object, start: int, end: int, _: object) -> DispatchBatch:
        assert commits.go_on.is_set(), "the log is read while a batch is being committed"
        return DispatchBatch(start, end, [], [], 1, -1)

    monkeypatch.setattr(CommitThread, "wait", noticed)
    monkeypatch.setattr(BatchFunction, "_collect", collected)
    monkeypatch.setattr(Commits, "scan_unchanged", scanned, raising=False)
    anything: Any = commits
    batches = BatchFunction(None, 0, anything, anything, anything, Progress(0, 0))
    try:
        batches(anything, 0)
        assert commits.has_begun.wait(LONGEST_SECONDS)
        batches(anything, 1)
    finally:
        commits.go_on.set()
        batches.close()
    assert commits.begun == [2, 3]


def test_nothing_is_tended_while_a_batch_is_read(
    commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committer looks at the log then, too."""
    tended = list[Commits]()

    def collected(batches: BatchFunction, _frame: Any) -> list[Any]:
        batches.tend()
        batches.commits.wait()
        assert tended == []
        return hand_over(batches, 0, 2)

    monkeypatch.setattr(BatchFunction, "_collect", collected)

    def tend(each: Commits) -> None:
        tended.append(each)

    monkeypatch.setattr(Commits, "tend", tend, raising=False)
    anything: Any = commits
    batches = BatchFunction(None, 0, anything, anything, anything, Progress(0, 0))
    commits.go_on.set()
    batches(anything, 0)
    batches.commits.wait()
    batches.tend()
    batches.close()
    assert tended == [commits]


class Steps:
    """Stands for what follows the log: it dispatches nothing by itself."""

    def __init__(self) -> None:
        self.runs = False
        self.small_end: int | None = None
        """Where a batch ends that steps have dispatched."""
        self.held = list[int]()
        self.scanned = list[tuple[int, int]]()
        self.is_let_go = threading.Event()
        self.has_begun = threading.Event()
        self.begins: Any = lambda: None
        self.error: Exception | None = None

    def planned_end(self, _batch_id: int) -> int | None:
        """All is planned for steps."""
        return self.small_end

    def is_backlog(self, start: int, end: int) -> bool:
        """A range of more than 100 bytes."""
        return end - start > 100

    def wait_for(self, planned_end: int) -> bool:
        """Steps have dispatched the batch, unless it ends at 13."""
        return planned_end != 13

    def hold(self, planned_end: int) -> None:
        """The next batch is due once the work before has ended."""
        assert self.has_begun.wait(LONGEST_SECONDS)
        self.held.append(planned_end)

    def begin(self) -> None:
        """As the real one."""
        self.begins()
        self.is_let_go.clear()
        self.has_begun.clear()
        self.runs = True

    def run(self, *_: object) -> None:
        """Wait until it ends."""
        if self.error is not None:
            raise self.error
        self.has_begun.set()
        assert self.is_let_go.wait(LONGEST_SECONDS)
        self.runs = False

    def let_go(self) -> None:
        """End."""
        self.is_let_go.set()

    def scan(self, start: int, end: int) -> DispatchBatch:
        """Read the log."""
        self.scanned.append((start, end))
        return DispatchBatch(start, end, [], [], 1, -1)


def stepwise(batches: BatchFunction, position: int = 0) -> Steps:
    """Have a query follow its log, of which steps have dispatched the part before ``position``."""
    steps = Steps()
    anything: Any = steps
    batches._following = anything
    batches.progress.position = position
    return steps


@pytest.mark.parametrize(("position", "committed"), [(0, [5]), (3, [5]), (5, []), (6, [])])
def test_what_steps_have_dispatched_is_left_out_of_a_batch(
    batches: BatchFunction,
    commits: Commits,
    monkeypatch: pytest.MonkeyPatch,
    position: int,
    committed: list[int],
) -> None:
    """Spark plans from its own position. Of a part that is dispatched to its middle the rest is
    scanned again."""
    monkeypatch.setattr(BatchFunction, "_collect", lambda self, _frame: hand_over(self, 0, 5))
    steps = stepwise(batches, position)
    batches.progress.log_end = 1_000
    commits.go_on.set()
    anything: Any = None
    batches(anything, 0)
    batches.commits.wait()
    assert commits.begun == committed
    assert steps.scanned == ([(3, 5)] if position == 3 else [])
    assert steps.held == [], "the rest is a backlog, which Spark plans at once"
    assert batches.progress.position == max(5, position)
    batches.close()


def test_a_small_batch_is_left_to_steps(
    batches: BatchFunction, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they run, and unless they end before they have dispatched it."""
    collected = list[int]()

    def collect(self: BatchFunction, _frame: Any) -> list[Any]:
        collected.append(steps.small_end or 0)
        return hand_over(self, self._collected_end, steps.small_end or 0)

    monkeypatch.setattr(BatchFunction, "_collect", collect)
    steps = stepwise(batches)
    commits.go_on.set()
    anything: Any = None
    for number, end in enumerate((5, 7, 200, 205)):
        steps.small_end = end
        batches(anything, number)
    assert collected == [5, 200], "nothing runs before the first batch; the third is a backlog"
    assert steps.held == [5, 7, 200, 205]
    steps.small_end = 13
    batches(anything, 4)
    assert collected == [5, 200, 13]
    batches.stop()
    batches.commits.wait()
    assert not steps.runs
    batches.close()


def test_a_stop_ends_what_a_batch_begins_at_that_moment(batches: BatchFunction) -> None:
    """The log would be followed forever."""
    steps = stepwise(batches)
    stop = threading.Thread(target=batches.stop)

    def begins() -> None:
        stop.start()
        assert steps.is_let_go.wait(LONGEST_SECONDS)

    steps.begins = begins
    batches.follow()
    batches.commits.wait()
    stop.join(LONGEST_SECONDS)
    batches.follow()
    assert not steps.runs, "it does not begin after a stop"
    batches.close()


def test_a_look_that_fails_is_logged_as_a_failed_batch(
    batches: BatchFunction, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no number of Spark's."""
    steps = stepwise(batches, 3)
    steps.error = StoreError("the log is gone")
    batches.follow()
    with pytest.raises(StoreError, match="the log is gone"):
        batches.commits.wait()
    failed = [vars(record)["fields"] for record in caplog.records if record.levelname == "ERROR"]
    assert failed == [{"cause": "the log is gone", "batch_id": None, "start": 3, "end": None}]
    assert batches.failure is steps.error
    batches.close()


def test_what_follows_the_log_ends_with_its_query(batches: BatchFunction) -> None:
    """Spark may be lost before the query has started; then nobody else stops it."""
    steps = stepwise(batches)
    batches.follow()
    batches.close()
    assert not steps.runs


def test_entries_that_are_due_become_durable_between_two_checks(
    batches: BatchFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a short --durable-latency the last messages before a pause do not wait for a second."""
    tended = list[bool]()
    is_due = False

    def tend(_: Commits) -> None:
        tended.append(is_due)

    monkeypatch.setattr(Commits, "tend", tend, raising=False)
    monkeypatch.setattr(Commits, "is_durable_due", property(lambda _: is_due), raising=False)
    batches._tend_due = time.monotonic() + 3_600
    batches.tend()
    batches.commits.wait()
    is_due = True
    batches.tend()
    batches.commits.wait()
    batches.close()
    assert tended == [True]
