"""Kills, full disks and failed syncs: the files end as those of a run that nothing interrupted.

Children are forked and killed with SIGKILL before their n-th write, rename, mkdir, open or sync,
for every n; the parent then restarts on what they left.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.config import OnQueueGap
from reput.store.errors import NoSpaceError, SyncError
from reput.store.runs.dispatch import DispatchCounts
from reput.store.state.watermark import read_watermark
from tests.support.outputs import Output, QueueLog, Setup, random_queue_offsets
from tests.support.processes import is_killed_at

SHORT_WRITES = ("", "pwrite:2=short,pwrite:5=short,")


@dataclass
class Workload:
    """A log and what an uninterrupted run makes of it."""

    setup: Setup
    ends: list[int]
    queues: dict[str, bytes]
    ledger: list[dict[str, object]]
    counts: DispatchCounts

    def at(self, root: Path) -> Setup:
        """The same log, another output."""
        return replace(self.setup, root=root)

    def check(self, setup: Setup, place: object) -> None:
        """An output that is finished must equal the uninterrupted one."""
        assert setup.queues() == self.queues, place
        assert setup.ledger_lines() == self.ledger, place
        found = read_watermark(setup.state)
        assert found is not None
        assert found.end_offset == self.ends[-1], place


def run_all(setup: Setup, ends: list[int]) -> DispatchCounts:
    """Every batch that the watermark has not passed."""
    output, counts = Output(setup), DispatchCounts()
    for end in ends:
        if end > output.position:
            counts.add(output.run(end))
    output.close()
    return counts


MakeWorkload = Callable[[int, int], Workload]


@pytest.fixture
def workload(ram_path: Path) -> Iterator[MakeWorkload]:
    """Makes a workload from (seed, number of messages)."""
    logs = []

    def make(seed: int, messages: int) -> Workload:
        rng = random.Random(seed)
        log = QueueLog(100)
        log.append(3)  # pre-blank
        for _ in range(2):
            log.append(0, 2, "a/b")  # no directory: to the ledger
            random_queue_offsets(rng, log, messages, forward=True)
        del log.model.queues["a/b", 2]
        setup = log.setup(ram_path, 100)
        logs.append(setup.log)
        borders = log.borders()[1:]
        ends = sorted({*rng.sample(borders, 4), borders[-1]})
        counts = run_all(replace(setup, root=ram_path / "whole"), ends)
        whole = replace(setup, root=ram_path / "whole")
        assert whole.queues() == log.model.tree()
        return Workload(setup, ends, whole.queues(), whole.ledger_lines(), counts)

    yield make
    for log in logs:
        log.close()


def kill_everywhere(work: Workload, directory: Path, failpoints: str, step: int) -> int:
    """Kill at every ``step``-th operation, restart, compare; the number of operations."""
    for ordinal in count(1, step):
        setup = work.at(directory / f"output-{ordinal}")
        killed = is_killed_at(ordinal, partial(run_all, setup, work.ends), failpoints)
        run_all(setup, work.ends)
        work.check(setup, f"killed at {ordinal}, {failpoints}")
        shutil.rmtree(setup.root)
        if not killed:
            return ordinal
    raise AssertionError("unreachable")


@pytest.mark.extended
@pytest.mark.parametrize("failpoints", SHORT_WRITES)
def test_killed_anywhere_it_ends_the_same(
    ram_path: Path, seed: int, workload: MakeWorkload, failpoints: str
) -> None:
    """kill -9 before every operation of a few batches, writes cut in half or not."""
    work = workload(seed, 8)
    assert kill_everywhere(work, ram_path, failpoints, 1) > 40


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("failpoints", SHORT_WRITES)
def test_killed_anywhere_in_many_runs_it_ends_the_same(
    ram_path: Path, seed: int, workload: MakeWorkload, failpoints: str
) -> None:
    """The same for twenty larger workloads."""
    for offset in range(20):
        work = workload(seed + offset, 40)
        kill_everywhere(work, ram_path, failpoints, 1)
        shutil.rmtree(ram_path / "whole")


@pytest.mark.extended
def test_killed_again_and_again_it_ends_the_same(
    ram_path: Path, seed: int, workload: MakeWorkload
) -> None:
    """Every start is killed at a random operation, until one gets through."""
    work, rng = workload(seed, 15), random.Random(seed)
    for case in range(12):
        setup = work.at(ram_path / f"output-{case}")
        while is_killed_at(rng.randrange(1, 90), partial(run_all, setup, work.ends)):
            pass
        work.check(setup, f"case={case}")


def fail_everywhere(
    work: Workload, directory: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> Iterator[tuple[Setup, DispatchCounts]]:
    """A full disk at every ordinal of one operation; the same step is tried again at once."""
    for ordinal in count(1):
        setup = work.at(directory / f"{operation}-{ordinal}")
        output, counts, failed = Output(setup), DispatchCounts(), 0
        failing = fsops._Failpoints(f"{operation}:{ordinal}=ENOSPC")
        monkeypatch.setattr(fsops, "_failpoints", failing)

        def retry(step: Callable[[], DispatchCounts | None]) -> DispatchCounts | None:
            nonlocal failed
            try:
                return step()
            except NoSpaceError:
                failed += 1
                return step()

        for end in work.ends:
            found = retry(partial(output.dispatch, end))
            assert found is not None
            counts.add(found)
            output.writer.sync()
            retry(output.ledger.sync)
            retry(partial(output.commit, end))
        output.close()
        if not failed:
            assert ordinal > 3
            return
        yield setup, counts


@pytest.mark.parametrize("operation", ["pwrite", "truncate", "mkdir", "open"])
def test_a_full_disk_anywhere_is_waited_out(
    ram_path: Path, seed: int, workload: MakeWorkload, monkeypatch: pytest.MonkeyPatch,
    operation: str,
) -> None:  # fmt: skip
    """ENOSPC at every write, new file or directory: tried again, the bytes are the same."""
    work = workload(seed, 8)
    for setup, _ in fail_everywhere(work, ram_path, monkeypatch, operation):
        work.check(setup, setup.root.name)


def test_a_batch_tried_again_counts_nothing_twice(
    ram_path: Path, seed: int, workload: MakeWorkload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages, duplicates, gaps and drops after a full disk are those of a run without."""
    work = workload(seed, 20)
    for setup, counts in fail_everywhere(work, ram_path, monkeypatch, "pwrite"):
        assert counts == work.counts, setup.root.name


def test_a_failed_sync_moves_no_watermark(
    ram_path: Path, seed: int, workload: MakeWorkload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EIO at every sync: SyncError, the watermark stays before the batch, a restart finishes."""
    work = workload(seed, 6)
    for ordinal in count(1):
        setup = work.at(ram_path / f"output-{ordinal}")
        output = Output(setup)
        monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(f"sync:{ordinal}=EIO"))
        reached = 0
        try:
            for end in work.ends:
                output.run(end)
                reached = end
        except SyncError:
            found = read_watermark(setup.state)
            assert (found.end_offset if found else 0) >= reached
            assert output.position == reached
        monkeypatch.undo()
        run_all(setup, work.ends)
        work.check(setup, f"sync {ordinal}")
        if reached == work.ends[-1]:
            break
    assert ordinal > 2 * len(work.ends)  # entries and the watermark, at least


def test_a_full_disk_is_waited_out_in_blanked_queues(
    ram_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap whose blanks could not be written is blanked at the next try."""
    log = QueueLog(100, blank_gaps=True)
    for queue_offset in (2, 3, 13, 14, 20):
        log.append(queue_offset)
    setup = log.setup(ram_path, 100, OnQueueGap.BLANK)
    for ordinal in range(1, 5):
        tried = replace(setup, root=ram_path / str(ordinal))
        output = Output(tried)
        points = fsops._Failpoints(f"pwrite:{ordinal}=ENOSPC")
        monkeypatch.setattr(fsops, "_failpoints", points)
        with pytest.raises(NoSpaceError):
            output.dispatch(log.plain.end)
        output.run(log.plain.end)
        assert tried.queues() == log.model.tree()
    setup.log.close()
