"""Dispatchers that race for one output, and one that stands still while another takes over.

Real processes and real locks, without Spark. Whoever is refused changes nothing; every take over
has an epoch of its own; the end is that of a single run. On one machine nobody takes over from a
process that stands still, wherever it stands, even if its lock files are gone. A host that does not
see its locks does; the woken process then writes nothing, if it stood before its check.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reput.checkpoints.watermark import WatermarkFile
from reput.store.errors import OwnershipError, ReputError
from reput.store.files import BROKER_LOCK_FILE, OWNER_LOCK_FILE, STATE_DIRECTORY
from reput.store.state.watermark import read_watermark
from tests.crash.work import Note, Work
from tests.crash.workloads import NAMES
from tests.support.crash_images import WATERMARK
from tests.support.faults import Faults
from tests.support.power_cuts import mount
from tests.support.processes import fork
from tests.support.recorder import Tree
from tests.torture.benches import Bench
from tests.torture.cases import BENCHES, Case, Kind

NOT_RACED = {"followers", "rewind", "crashed_rewind"}
"""The target of followers is in one process's memory; the second of two rewinds finds nothing to
take back; until its rewind, the last one is ``dispatch``."""
PAUSED = 0.1
"""The share of cases in which one stands still."""
LONGEST_START = 0.02
"""Seconds by which one starts later than the other; most runs take that long."""
HARMLESS = {"open", "mkdir", "fdatasync", "rmdir"}
"""The calls of one that is refused: it looks for the locks, whose directories it may make."""
SPARK = f"output/{STATE_DIRECTORY}/spark"
SPARK_MADE = {
    (call, place)
    for call in ("open", "fdatasync")
    for place in ("output", f"output/{STATE_DIRECTORY}")
}
"""The calls beside Spark's directory while it is moved aside or made: syncs of its parents."""


@dataclass
class Ended:
    """How one process ended by itself."""

    error: str
    calls: list[tuple[str, str]]
    woken_at: int
    """Calls before it stood still."""


class Runner:
    """A dispatcher in a child."""

    def __init__(
        self,
        report: Path,
        root: Path,
        run: Callable[[Note], object],
        *,
        wait: float = 0.0,
        pause_at: int = 0,
        after_check: bool = False,
        sees_locks: bool = True,
    ) -> None:
        """It begins after ``wait`` seconds, and stands still where it tells of the watermark for
        the ``pause_at``-th time; ``after_check``: where it has found so often that it is still the
        owner. One that sees no locks is on another host."""
        self._report = report
        report.unlink(missing_ok=True)

        def work() -> None:
            time.sleep(wait)  # the moment is random, not an event
            if not sees_locks:
                for name in ("flock", "lockf"):
                    setattr(fcntl, name, lambda *_: None)
            with report.open("wb") as file:
                pickle.dump(self._run(root, run, pause_at, after_check), file)

        self.pid = fork(work)

    def _run(
        self, root: Path, run: Callable[[Note], object], pause_at: int, after_check: bool
    ) -> Ended:
        reached = woken_at = 0
        check = WatermarkFile.check_owned

        def reach() -> None:
            nonlocal reached, woken_at
            reached += 1
            if reached == pause_at:
                woken_at = faults.count
                os.kill(os.getpid(), signal.SIGSTOP)

        def note(kind: str, _value: object) -> None:
            if kind == WATERMARK and not after_check:
                reach()

        def checked(file: WatermarkFile) -> None:
            check(file)
            if after_check:
                reach()

        WatermarkFile.check_owned = checked  # type: ignore[method-assign]
        with Faults(root, 0, "") as faults:
            try:
                run(note)
            except ReputError as raised:
                return Ended(type(raised).__name__, faults.made, woken_at)
        return Ended("", faults.made, woken_at)

    def stands_still(self) -> bool:
        """Wait until it does; False where it has ended before."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        return os.WIFSTOPPED(status)

    def wait(self) -> Ended | None:
        """Wait for its end; None where it was killed."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return None if code == -signal.SIGKILL else self.report(code)

    def report(self, code: int = 0) -> Ended:
        """The report of one that has ended."""
        assert code == 0, f"a run crashed: {code}"
        found: Ended = pickle.loads(self._report.read_bytes())
        return found


class RaceBench(Bench):
    """The runs of one seed that cut nothing."""

    def __init__(self, stack: ExitStack, case: Case) -> None:
        super().__init__(stack, case, [name for name in NAMES if name not in NOT_RACED])
        self.laid = [(work, tree) for work, tree in self.laid if not work.cuts]
        self._epochs = {work.name: self._epochs_of(work, tree) for work, tree in self.laid}
        """Epochs that one run takes; an expiry takes none, since it moves no watermark."""

    def _epochs_of(self, work: Work, tree: Tree) -> int:
        mount(tree, self.workloads.disk)
        before = self._epoch()
        work.run(lambda *_: None)
        return self._epoch() - before

    def _epoch(self) -> int:
        found = read_watermark(self.workloads.output / STATE_DIRECTORY)
        return found.epoch if found else 0

    def _start(self, number: int, run: Callable[[Note], object], **options: Any) -> Runner:
        report = self.directory / f"report-{number}"
        return Runner(report, self.workloads.disk, run, **options)

    def check_case(self, rng: random.Random) -> str:
        """One race, or one process that stands still; how it went."""
        work, tree = rng.choice(self.laid)
        mount(tree, self.workloads.disk)
        epoch = self._epoch()
        case = self._paused if rng.random() < PAUSED else self._race
        outcome, starts = case(work, rng)
        if starts is not None:
            taken = self._epoch() - epoch
            assert taken == starts * self._epochs[work.name], (work.name, outcome)
        self._resume(work)
        assert work.outcome() in work.accepted, (work.name, outcome)
        if rng.random() < 0.1:
            assert self.workloads.verify(work.log).differences == (), (work.name, outcome)
        return outcome

    def _resume(self, work: Work) -> None:
        found = read_watermark(self.workloads.output / STATE_DIRECTORY)
        work.resume({WATERMARK: found.end_offset} if found else {}, lambda *_: None)

    def _race(self, work: Work, rng: random.Random) -> tuple[str, int | None]:
        count = rng.choice((2, 2, 3))
        killed = rng.randrange(count) if rng.random() < 0.2 else -1
        runners = [
            self._start(number, work.run, wait=rng.choice((0, 0, rng.random() * LONGEST_START)))
            for number in range(count)
        ]
        if killed >= 0:
            time.sleep(rng.random() * LONGEST_START)  # the moment is random, not an event
            os.kill(runners[killed].pid, signal.SIGKILL)
        ended = [runner.wait() for runner in runners]
        refused = 0
        for one in ended:
            if one is not None and one.error:
                assert one.error == OwnershipError.__name__, (work.name, one.error)
                _check_harmless(one.calls)
                refused += 1
        starts = sum(one is not None and not one.error for one in ended)
        assert starts or killed >= 0, work.name
        name = "one killed" if killed >= 0 else f"{refused} of {count} refused"
        return name, None if killed >= 0 else starts

    def _paused(self, work: Work, rng: random.Random) -> tuple[str, int | None]:
        """One stands still; the other must not take over, or the first must see that it did."""
        is_elsewhere = rng.random() < 0.3
        pause_at = rng.randrange(1, 8 if is_elsewhere else 18)
        first = self._start(0, work.run, pause_at=pause_at, after_check=not is_elsewhere)
        if not first.stands_still():
            return "ended before it stood still", 1
        is_lock_removed = rng.random() < 0.7
        try:
            if is_lock_removed:
                (self.workloads.output / STATE_DIRECTORY / OWNER_LOCK_FILE).unlink()
                (self.workloads.output / BROKER_LOCK_FILE).unlink()
            resume = lambda _: self._resume(work)  # noqa: E731
            second = self._start(1, resume, sees_locks=not is_elsewhere).wait()
        finally:
            os.kill(first.pid, signal.SIGCONT)
            woken = first.wait()
        assert woken is not None
        assert second is not None
        if is_elsewhere:
            assert (second.error, woken.error) == ("", OwnershipError.__name__), work.name
            later = woken.calls[woken.woken_at :]
            # the end of a mapping is synced, nothing is stored in it; Spark's files are no truth
            written = [call for call in later if call[0] != "msync" and SPARK not in call[1]]
            assert {*written} <= SPARK_MADE, (work.name, later)
            return "woken after another host took over", 2
        assert (second.error, woken.error) == (OwnershipError.__name__, ""), work.name
        _check_harmless(second.calls)
        return f"woken, its lock files {'removed' if is_lock_removed else 'kept'}", 1


def _check_harmless(calls: list[tuple[str, str]]) -> None:
    harmful = [call for call in calls if call[0] not in HARMLESS]
    assert harmful == [], harmful


KIND = Kind(
    "races", lambda case: BENCHES.find(case, RaceBench).check_case(case.rng()), 5_000, sample=30
)
