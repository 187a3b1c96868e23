"""Dispatchers that race for one output, and one that stands still while another takes over.

Real processes and real locks, without Spark. Whoever is refused changes nothing, and so does one
that is woken after its locks had gone; every take over has an epoch of its own; the end is that of
a single run.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checkpoints.ownership import LOCK_NAME
from store.errors import OwnershipError, ReputError
from store.state.brokerlock import FILE_NAME as BROKER_LOCK
from store.state.watermark import STATE_DIRECTORY, read_watermark
from tests.crash.workloads import Note, Work
from tests.support.crash_images import WATERMARK
from tests.support.faults import Faults
from tests.support.power_cuts import mount
from tests.support.processes import fork
from tests.torture.benches import Bench, Benches

NAME = "races"
CASES = 5_000
NAMES = ("dispatch", "long_batch", "second_run", "many_queues", "retention")
PAUSED = 0.1
"""The share of cases in which one stands still."""
LONGEST_START = 0.02
"""Seconds by which one starts later than the other; most runs take that long."""
HARMLESS = {"open", "mkdir", "fdatasync", "rmdir"}
"""The calls of one that is refused: it looks for the locks, whose directories it may make."""
SPARK = f"output/{STATE_DIRECTORY}/spark"
SPARK_MOVED = [
    ("open", f"output/{STATE_DIRECTORY}"),
    ("fdatasync", f"output/{STATE_DIRECTORY}"),
] * 2
"""The calls beside Spark's directory while it is made."""


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
    ) -> None:
        """It begins after ``wait`` seconds, and stands still where it tells of the watermark for
        the ``pause_at``-th time."""
        self._report = report
        report.unlink(missing_ok=True)

        def work() -> None:
            time.sleep(wait)  # the moment is random, not an event
            with report.open("wb") as file:
                pickle.dump(self._run(root, run, pause_at), file)

        self.pid = fork(work)

    def _run(self, root: Path, run: Callable[[Note], object], pause_at: int) -> Ended:
        told = woken_at = 0

        def note(kind: str, _value: object) -> None:
            nonlocal told, woken_at
            told += kind == WATERMARK
            if kind == WATERMARK and told == pause_at:
                woken_at = faults.count
                os.kill(os.getpid(), signal.SIGSTOP)

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

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed, NAMES)
        self.laid = [(work, tree) for work, tree in self.laid if not work.cuts]

    def _start(self, number: int, run: Callable[[Note], object], **options: float) -> Runner:
        report = self.directory / f"report-{number}"
        return Runner(report, self.workloads.disk, run, **options)  # type: ignore[arg-type]

    def check_case(self, rng: random.Random) -> str:
        """One race, or one process that stands still; how it went."""
        work, tree = rng.choice(self.laid)
        mount(tree, self.workloads.disk)
        found = read_watermark(self.workloads.output / STATE_DIRECTORY)
        epoch = found.epoch if found else 0
        case = self._paused if rng.random() < PAUSED else self._race
        outcome, starts = case(work, rng)
        self._resume(work)
        assert work.outcome() in work.accepted, (work.name, outcome)
        found = read_watermark(self.workloads.output / STATE_DIRECTORY)
        assert found is not None
        if starts is not None:
            assert found.epoch == epoch + starts + 1, (work.name, outcome)
        if rng.random() < 0.1:
            assert self.workloads.verify(work.log).differences == (), (work.name, outcome)
        return outcome

    def _resume(self, work: Work) -> None:
        found = read_watermark(self.workloads.output / STATE_DIRECTORY)
        work.resume({WATERMARK: found.end_offset} if found else {})

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
        """With its locks gone, one that is woken must see that it is no owner any more."""
        first = self._start(0, work.run, pause_at=rng.randrange(1, 8))
        if not first.stands_still():
            return "ended before it stood still", 1
        is_lock_lost = rng.random() < 0.7
        try:
            if is_lock_lost:
                (self.workloads.output / STATE_DIRECTORY / LOCK_NAME).unlink()
                (self.workloads.output / BROKER_LOCK).unlink()
            second = self._start(1, lambda _: self._resume(work)).wait()
        finally:
            os.kill(first.pid, signal.SIGCONT)
            woken = first.wait()
        assert woken is not None
        assert second is not None
        if is_lock_lost:
            assert (second.error, woken.error) == ("", OwnershipError.__name__), work.name
            later = woken.calls[woken.woken_at :]
            # the end of a mapping is synced, nothing is stored in it; Spark's files are no truth
            written = [call for call in later if call[0] != "msync" and SPARK not in call[1]]
            assert written in ([], SPARK_MOVED), (work.name, later)
            return "woken without its locks", 2
        assert (second.error, woken.error) == (OwnershipError.__name__, ""), work.name
        _check_harmless(second.calls)
        return "woken with its locks", 1


def _check_harmless(calls: list[tuple[str, str]]) -> None:
    harmful = [call for call in calls if call[0] not in HARMLESS]
    assert harmful == [], harmful


_benches: Benches[RaceBench] = Benches()


def run(directory: Path, seed: int, case: int) -> str:
    """One case."""
    bench = _benches.find(directory, seed, lambda: RaceBench(directory, seed))
    return bench.check_case(random.Random(f"{seed}:{case}"))


def close() -> None:
    """Let go of what is patched."""
    _benches.close()
