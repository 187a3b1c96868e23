"""Runs that a system call ends: it fails, or the process is killed there.

A case is one call of one run: it fails, or the process is killed there. The run is in a forked
child, whose recorder's notes outlive it. What the child told somebody must be on the disk; the next
start, which finds what the process left in the kernel's memory, ends as an undisturbed run does;
and then a power cut takes what nobody has synced, those bytes too whose sync had failed.
"""

from __future__ import annotations

import pickle
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from reput.store.errors import OutputError, ReputError, SyncError
from reput.store.files import WATERMARK_FILE
from reput.store.state.watermark import SLOT_SIZE, Watermark
from tests.crash.work import Note, Work
from tests.crash.workloads import NAMES
from tests.support.crash_images import DONE, WATERMARK, Outcome, Told
from tests.support.faults import KILL, SHORT, SYNCS, Faults
from tests.support.power_cuts import Disk, mount
from tests.support.processes import wait_status_of
from tests.support.recorder import Recorder, Tree
from tests.torture.benches import Bench
from tests.torture.cases import BENCHES, Case, Kind

VERIFIED = 4
"""One of so many cases is verified."""
UNSYNCED = {"built", "left over"}
"""The parts of an outcome that may be older on the disk."""


@dataclass
class Interrupted:
    """One run that a fault has ended, as it told and recorded it."""

    recorder: Recorder
    calls: int
    call: str
    """The system call that met the fault; empty where it was not reached."""
    path: str
    """Its file, below the disk."""
    in_main_thread: bool
    """Whether it was the thread of the run itself, and not a follower's."""
    error: str = ""
    """The class of ours that ended it; empty where it ended by itself or was killed."""

    @property
    def told(self) -> Told:
        """All that was told, the last of each kind."""
        return {kind: value for _, kind, value in self.recorder.notes}


class FaultBench(Bench):
    """The runs of one seed, all system calls of each counted."""

    def __init__(self, actions: Sequence[str], stack: ExitStack, case: Case) -> None:
        super().__init__(stack, case, NAMES)
        self._report = self.directory / "report"
        self.faults: list[tuple[int, int, str]] = []
        """(number of the workload, ordinal, action)."""
        for number, (work, tree) in enumerate(self.laid):
            mount(tree, self.workloads.disk)
            done = self._interrupt(work.run, 0, "")
            assert not done.error, work.name
            self.faults += [
                (number, ordinal, action)
                for ordinal in range(1, done.calls + 1)
                for action in actions
            ]
        random.Random(case.seed).shuffle(self.faults)

    def _interrupt(
        self,
        run: Callable[[Note], object],
        ordinal: int,
        action: str,
        recorder: Recorder | None = None,
    ) -> Interrupted:
        """One run in a child; it may go on with the recording of an earlier one."""
        recorder = recorder or Recorder(self.workloads.disk)
        self._report.unlink(missing_ok=True)

        def work() -> None:
            def report(error: str = "") -> None:
                with self._report.open("wb") as file:
                    place = faults.call, faults.path, faults.in_main_thread
                    pickle.dump(Interrupted(recorder, faults.count, *place, error), file)

            error = ""
            with Faults(self.workloads.disk, ordinal, action, report) as faults, recorder:
                try:
                    run(recorder.note)
                except ReputError as raised:
                    error = type(raised).__name__
                    assert isinstance(raised, OutputError), raised
            report(error)

        status = wait_status_of(work)
        assert status in (0, -signal.SIGKILL), f"the run crashed at {action} {ordinal}: {status}"
        found: Interrupted = pickle.loads(self._report.read_bytes())
        assert (status == 0) != bool(found.call and action == KILL)
        return found

    def check_case(self, number: int, rng: random.Random) -> str:
        """One fault; what it met and how the run ended."""
        number, ordinal, action = self.faults[number]
        work, tree = self.laid[number]
        place = f"{work.name}: {action} at call {ordinal}"
        mount(tree, self.workloads.disk)
        found = self._interrupt(work.run, ordinal, action)
        place += f", {found.call} {found.path} {found.error}"
        assert found.call, place
        sync_failed = found.call in SYNCS and action not in (KILL, SHORT)
        # a follower tries again: it writes all of its file anew, on which nothing depends
        if sync_failed and found.in_main_thread:
            assert found.error == SyncError.__name__, f"{place}: a failed sync must end the run"
        self._check_told(found, place)
        while action == KILL and rng.random() < 0.3 and DONE not in found.told:
            # so is the next start
            told = found.told
            found = self._interrupt(
                lambda note, told=told: work.resume(told, note),  # type: ignore[misc]
                rng.randrange(1, 80),
                action,
                found.recorder,
            )
            place += f", then at {found.call or 'the end'}"
        with found.recorder:
            work.resume(found.told, found.recorder.note)
        here = work.outcome()
        self._check_end(work, here, found, place, rng)
        if not (sync_failed and work.cuts):
            # docs/reliability.md says what is not promised
            self._check_durable(work, here, found, place)
        return f"{work.name}: {found.error or ('killed' if action == KILL else 'went on')}"

    def _disk(self, found: Interrupted) -> Tree:
        """The disk if the power fails now, without anything that is not synced."""
        return Disk.after(found.recorder).image([]).tree

    def _check_told(self, found: Interrupted, place: str) -> None:
        end = found.told.get(WATERMARK)
        data = self._disk(found).get(f"output/reput/{WATERMARK_FILE}") or b""
        slots = [Watermark.unpack(data[at:]) for at in (0, SLOT_SIZE)]
        valid = [slot for slot in slots if slot is not None]
        durable = max(valid, key=lambda slot: slot.sequence).end_offset if valid else None
        if isinstance(end, int):
            assert durable is not None, place
            assert durable >= end, place

    def _check_end(
        self, work: Work, here: Outcome, found: Interrupted, place: str, rng: random.Random
    ) -> None:
        accepted = work.accepted[-1:] if found.told.get(DONE) else work.accepted
        wrong = [[name for name in one if here[name] != one[name]] for one in accepted]
        assert here in accepted, f"{place}: {wrong} differ"
        if rng.randrange(VERIFIED) == 0:
            differences = self.workloads.verify(work.log).differences
            assert differences == (), f"{place}: {differences}"
        found.recorder.check()

    def _check_durable(self, work: Work, here: Outcome, found: Interrupted, place: str) -> None:
        mount(self._disk(found), self.workloads.disk)
        durable = work.outcome()
        names = [name for name in here if durable[name] != here[name] and name not in UNSYNCED]
        assert names == [], f"{place}: {names} are not durable at the end"


def _run(actions: Sequence[str], case: Case) -> str:
    """One case: all calls and actions come in random order, and then again; each seed has its own
    logs."""
    bench = BENCHES.find(case, partial(FaultBench, actions))
    return bench.check_case(case.number % len(bench.faults), case.rng())


FAILING_WRITES = Kind(
    "failing writes", partial(_run, ("ENOSPC", "EDQUOT", "EIO", SHORT)), 20_000, sample=100
)
"""Writes, syncs, names and files that fail, one in each run, at every system call of every run: it
ends in one line of ours or goes on; a failed sync ends it."""
KILLS = Kind("kills", partial(_run, (KILL,)), 20_000, sample=40)
"""kill -9 before every system call of every run, and of the starts that follow."""
