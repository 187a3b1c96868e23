"""A stop at the worst moment: a batch begins when the running one was the last."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from reput.store.runs.dispatch import DispatchBatch, DispatchCounts
from reput.streaming import dispatcher
from reput.streaming.commit import Committer
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.foreachbatch import BatchFunction, CommitThread
from reput.streaming.progress import Progress
from reput.workload.appender import Appender
from reput.workload.messages import Workload
from tests.streaming.test_golden import dispatch
from tests.support.golden import difference

pytestmark = pytest.mark.usefixtures("spark")
LONGEST_SECONDS = 60.0


def test_a_batch_that_begins_during_a_stop_is_refused_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark cannot interrupt a batch that waits in our code, so that neither would ever end."""
    store, output = tmp_path / "store", tmp_path / "output"
    workload = Workload(2, 2, 100, seed=1)
    with Appender(store, file_size=1 << 20) as appender:

        def append() -> None:
            appender.append_batch(workload.batch(0, 200, time.time_ns() // 1_000_000))

        class StoppedTooLate(BatchFunction):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.refused = threading.Event()

            def __call__(self, frame: DataFrame, batch_id: int) -> None:
                try:
                    super().__call__(frame, batch_id)
                finally:
                    if self.has_refused:
                        self.refused.set()

            def stop(self) -> None:
                super().stop()
                if not self.refused.is_set():
                    append()
                    assert self.refused.wait(LONGEST_SECONDS)

        append()
        first_end, stop = appender.end_offset, threading.Event()

        def follow(progress: Progress) -> None:
            if progress.end_offset == first_end:
                stop.set()

        with monkeypatch.context() as patch:
            patch.setattr(dispatcher, "BatchFunction", StoppedTooLate)
            stopped = run_dispatcher(DispatcherConfig(store, output), stop, follow)
        assert stopped.end_offset == first_end < appender.end_offset
        again = dispatch(store, output)
        new = again.counts.messages - again.counts.duplicates
        assert (again.end_offset, new) == (appender.end_offset, 200)
    dispatch(store, tmp_path / "undisturbed")
    assert difference(output / "consumequeue", tmp_path / "undisturbed" / "consumequeue") == []


def test_a_run_ends_cleanly_when_its_last_batch_is_durable(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark has the query ended before: the batch is written in a thread of its own."""
    store, output = golden("plain"), tmp_path / "output"
    waited, steps = threading.Event(), list[str]()
    wait, commit, end = CommitThread.wait, Committer.commit, Committer.end

    def noted_wait(commits: CommitThread) -> None:
        if not commits.is_idle:
            waited.set()
        wait(commits)

    def late_commit(committer: Committer, batch: DispatchBatch) -> DispatchCounts:
        assert waited.wait(LONGEST_SECONDS)
        counts = commit(committer, batch)
        steps.append("durable")
        return counts

    def noted_end(committer: Committer) -> None:
        steps.append("clean end")
        waited.set()
        end(committer)

    monkeypatch.setattr(CommitThread, "wait", noted_wait)
    monkeypatch.setattr(Committer, "commit", late_commit)
    monkeypatch.setattr(Committer, "end", noted_end)
    dispatch(store, output)
    assert steps == ["durable", "clean end"]
    assert difference(output / "consumequeue", store / "consumequeue") == []


def test_what_is_loaded_is_left_out_of_collections_until_the_run_ends(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """They would walk over it again and again; a program that goes on after a run has its objects
    collected as before."""
    config = DispatcherConfig(golden("plain"), tmp_path / "output", once=True)
    left_out = list[int]()
    run_dispatcher(config, threading.Event(), lambda _: left_out.append(gc.get_freeze_count()))
    assert max(left_out) > len(gc.get_objects(0))
    assert gc.get_freeze_count() == 0
