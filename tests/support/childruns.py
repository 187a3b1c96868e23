"""Whole runs as children of a test, which waits for them, and kills or stops them.

Whatever is done to a run, it ends with 0, or with 1 and one line of ours, or is killed; and after
the next undisturbed run its output is whole.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from reput.store.files import STATE_DIRECTORY
from reput.store.state.watermark import Watermark, read_watermark
from tests.support.cli import REPUT, ROOT, kill_tree
from tests.support.golden import difference
from tests.support.processes import became, name_of, not_ended, process_tree

LONGEST_SECONDS = 300.0
LOOK_SECONDS = 0.5
GONE_SECONDS = 60.0
ERROR = "reput: error: "
PARTS = ("tree", "driver", "jvm", "worker")
"""The processes of a run that may be killed."""


class ChildRun:
    """One run as a child process; it is killed with all below it where a ``with`` block ends."""

    def __init__(
        self,
        log: Path,
        command: Sequence[object],
        *outputs: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``log`` takes its stderr, and a file beside it its stdout; ``outputs`` are as this
        process sees them."""
        self._log, self._stdout, self.outputs = log, log.with_name(f"{log.name}.stdout"), outputs
        self.may_be_killed = False
        """Whether a signal that nothing in it handles may have ended it."""
        with log.open("wb") as stderr, self._stdout.open("wb") as stdout:
            self.process = subprocess.Popen(
                [*map(str, command)], stdout=stdout, stderr=stderr, cwd=ROOT,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip

    def __enter__(self) -> ChildRun:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()

    @property
    def stderr(self) -> str:
        """The text of its standard error so far."""
        return self._log.read_text("utf-8", "replace")

    @property
    def stdout(self) -> str:
        """The text of its standard output so far."""
        return self._stdout.read_text("utf-8", "replace")

    @property
    def errors(self) -> list[str]:
        """The lines of its stderr that say why it ended."""
        return [line for line in self.stderr.splitlines() if line.startswith(ERROR)]

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def tree(self) -> list[psutil.Process]:
        """The run, first, and all processes below it; none once it has ended."""
        return process_tree(self.process.pid)

    def children(self, part: str) -> list[psutil.Process]:
        """The processes below it that are a ``jvm``, or those that are a ``worker``."""
        names = [(process, name_of(process)) for process in self.tree()[1:]]
        return [process for process, name in names if name and (name == "java") == (part == "jvm")]

    def watermarks(self) -> list[Watermark]:
        """The watermarks of those outputs that have one."""
        watermarks = [read_watermark(output / STATE_DIRECTORY) for output in self.outputs]
        return [watermark for watermark in watermarks if watermark is not None]

    def moves(self) -> int:
        """How often the watermarks were written, by this run or earlier ones: taking an output over
        counts as well."""
        return sum(watermark.sequence for watermark in self.watermarks())

    def position(self) -> int:
        """The lowest physical offset of its outputs' watermarks."""
        return min((watermark.end_offset for watermark in self.watermarks()), default=0)

    def wait_until(self, is_true: Callable[[], object], seconds: float = LONGEST_SECONDS) -> None:
        """Wait for a condition, while the run must go on."""
        assert became(lambda: is_true() or not self.is_alive, seconds), (
            f"nothing came in {seconds:.0f} s: {self.stderr}"
        )
        assert self.is_alive or is_true(), f"the run ended by itself: {self.stderr}"

    def wait_for_moves(self, number: int, log_end: int | None = None) -> None:
        """Wait until so many more watermarks were written, or one is at the end of a log that does
        not grow."""
        goal = self.moves() + number
        self.wait_until(lambda: self.moves() >= goal or self.position() == log_end)

    def kill(self) -> None:
        """kill -9 of all its processes, unless it has ended."""
        self.may_be_killed = True
        if self.is_alive:
            kill_tree(self.process.pid)
            self.process.wait()

    def kill_part(self, part: str, rng: random.Random) -> bool:
        """kill -9 of one of PARTS; whether it was there."""
        if part == "tree":
            self.kill()
        elif part == "driver":
            self.may_be_killed = True
            self.process.kill()
        else:
            children = self.children(part)
            try:
                rng.choice(children).kill()
            except (IndexError, psutil.NoSuchProcess):
                return False
        return True

    def stop(self, seconds: float = LONGEST_SECONDS) -> int:
        """SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = LONGEST_SECONDS) -> int:
        """Wait for its end; its exit code. Looks are counted and not the clock's time: the machine
        may stand still for minutes."""
        for _ in range(int(seconds / LOOK_SECONDS)):
            with suppress(subprocess.TimeoutExpired):
                return self.check_end(self.process.wait(LOOK_SECONDS))
        raise AssertionError(f"the run hangs: {self.tree()}\n{self.stderr}")

    def check_end(self, code: int) -> int:
        """Unless it was killed, a run ends with 0, or with 1 and one line; returns the code."""
        if code >= 0 or not self.may_be_killed:
            stderr = self.stderr[-4000:]
            assert (code, len(self.errors)) in ((0, 0), (1, 1)), f"exit {code}: {stderr}"
            assert "Traceback" not in self.stderr, stderr
        return code

    def lose_jvm(self) -> None:
        """Kill its JVM, as the kernel does when memory runs out: one line says so."""
        (jvm,) = self.children("jvm")
        jvm.kill()
        assert self.wait() == 1, self.stderr
        assert "Spark's java was killed by signal 9" in self.errors[0], self.stderr


@contextmanager
def growing_log(store: Path, rate: int, *options: object) -> Iterator[None]:
    """A log to which a child appends so many messages a second, from when there are some."""
    command = [
        *REPUT, "produce", store, "--rate", rate, "--seconds", 100_000, "--commitlog-file-size",
        "8m", *options,
    ]  # fmt: skip
    with ChildRun(store.with_name("producer"), command) as producer:
        producer.wait_until(
            lambda: (store / "broker.conf").exists() and any((store / "commitlog").glob("*"))
        )
        yield
        assert producer.is_alive, producer.stderr
        assert producer.stop() == 0, producer.stderr


def kill_runs(
    start: Callable[[], ChildRun],
    rng: random.Random,
    rounds: int,
    wait: Callable[[ChildRun], object],
    longest_start: float,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Start and kill so many runs: most of them within half a second after ``wait``, the others at
    any moment of their first ``longest_start`` seconds; each kill is followed by ``after``."""
    for _ in range(rounds):
        with start() as run:
            if rng.random() < 0.75:
                wait(run)
                time.sleep(rng.random() * 0.5)  # the moment is random, not an event
            else:
                time.sleep(rng.random() * longest_start)  # as above, while it starts too
        after()


def check_whole(output: Path, queues: Path) -> None:
    """An output that a run has left when it ended by itself: its queues are those of ``queues``."""
    state = output / STATE_DIRECTORY
    names = difference(output / "consumequeue", queues / "consumequeue")
    left = [*state.glob("abort"), *state.glob("quarantine.jsonl"), *state.glob("spool/*")]
    assert not names and not left, f"{names} differ, and {left} are left"


def check_gone(processes: Sequence[psutil.Process], seconds: float = GONE_SECONDS) -> None:
    """Processes of a run that has ended outlive it by a moment alone."""
    alive = not_ended(processes, seconds)
    assert not alive, f"processes outlive their run: {alive}"
