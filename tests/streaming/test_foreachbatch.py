"""Batches between Spark and the thread that commits them; without Spark."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from store.errors import NoSpaceError, StoreError
from store.runs.dispatch import DispatchBatch, DispatchCounts
from streaming.foreachbatch import BatchFunction
from streaming.progress import Progress

LONGEST_SECONDS = 60.0


class Commits:
    """Stands for a committer: the first batch fails once it is let."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.go_on = threading.Event()

    def commit(self, batch: DispatchBatch) -> DispatchCounts:
        """Take a batch."""
        self.begun.append(batch.end)
        assert self.go_on.wait(LONGEST_SECONDS)
        if batch.end == 1:
            raise NoSpaceError("the disk is full")
        return DispatchCounts(messages=1)


@pytest.fixture
def commits() -> Commits:
    """Nothing is committed yet."""
    return Commits()


@pytest.fixture
def batches(commits: Commits, monkeypatch: pytest.MonkeyPatch) -> BatchFunction:
    """Its frames are ends of batches."""

    def collected(_batches: BatchFunction, end: Any) -> DispatchBatch:
        if end > 1:
            commits.go_on.set()
        return DispatchBatch(end - 1, end, (), (), 0, -1)

    monkeypatch.setattr(BatchFunction, "_without_spool", collected)
    anything: Any = commits
    return BatchFunction(None, 0, anything, anything, anything, Progress(0, 0))


def test_a_batch_waits_for_the_one_before_and_has_its_error(
    batches: BatchFunction, commits: Commits
) -> None:
    """Spark has the first one for done; nothing of the second is written."""
    frames: list[Any] = [1, 2]
    batches(frames[0], 0)
    with pytest.raises(NoSpaceError, match="the disk is full"):
        batches(frames[1], 1)
    assert isinstance(batches.failure, NoSpaceError)
    batches.close()
    assert commits.begun == [1]


def test_the_end_of_a_run_waits_for_the_last_batch(
    batches: BatchFunction, commits: Commits
) -> None:
    """Its error is the run's."""
    frames: list[Any] = [1]
    batches(frames[0], 0)
    batches.check()
    commits.go_on.set()
    with pytest.raises(NoSpaceError, match="the disk is full"):
        batches.finish()
    with pytest.raises(NoSpaceError):
        batches.check()
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
