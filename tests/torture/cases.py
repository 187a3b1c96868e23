"""The frame of all kinds of faults: a case is a function of its kind, a seed and a number.

A kind says what a case does, how many were promised and how many ``make test`` takes. Cases are
tried one after another; one that fails is printed with its seed and number, and the next follows.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from reput.store.errors import UsageError

SHOWN_FAILURES = 20
SAYING_SECONDS = 60.0
Outcome = str | Counter[str]
"""How the case's fault went, or how many of its faults went in each way."""
_Bench = TypeVar("_Bench")


@dataclass(frozen=True)
class Case:
    """One case."""

    directory: Path
    """The kind's own; it has what earlier cases left there."""
    seed: int
    number: int

    def rng(self) -> random.Random:
        """Its choices, from the first one on."""
        return random.Random(f"{self.seed}:{self.number}")

    def emptied(self) -> Path:
        """The directory, without what earlier cases left."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        return self.directory


@dataclass(frozen=True)
class Kind:
    """One kind of faults."""

    name: str
    run: Callable[[Case], Outcome]
    cases: int
    """The number that was promised."""
    sample: int = 0
    """The number that ``make test`` takes."""
    sample_seed: int | None = None
    """The seed of that sample, while others may still find faults; else the seed of the run."""
    on_request: bool = False
    """Whether it is run only where it is asked for by name."""

    @property
    def option(self) -> str:
        """The name on a command line."""
        return self.name.replace(" ", "-").lower()


class Benches:
    """Benches hold what many cases begin with. One is made for the last seed that was asked for in
    a directory, and is kept until another one takes its place, or all are let go."""

    def __init__(self) -> None:
        self._benches: dict[Path, tuple[int, object, ExitStack]] = {}

    def find(self, case: Case, make: Callable[[ExitStack, Case], _Bench]) -> _Bench:
        """Return the bench of a case; ``make`` is given a stack, which is closed at its end."""
        seed, bench, _ = self._benches.get(case.directory, (None, None, None))
        if seed != case.seed:
            self.let_go(case.directory)
            with ExitStack() as stack:
                bench = make(stack, case)
                self._benches[case.directory] = case.seed, bench, stack.pop_all()
        return bench  # type: ignore[return-value]

    def close(self) -> None:
        """Let go of all benches."""
        for directory in [*self._benches]:
            self.let_go(directory)

    def let_go(self, directory: Path) -> None:
        """Let go of a directory's bench: the next case there gets another one."""
        if directory in self._benches:
            self._benches.pop(directory)[2].close()


BENCHES = Benches()


class Tally:
    """The cases of one kind so far."""

    def __init__(
        self, kind: Kind, seed: int, first: int = 0, count: int | None = None, faults: int = 0
    ) -> None:
        """``count`` cases from ``first`` on; where there is no count, those promised, or as many as
        it takes to try so many ``faults``, unless SHOWN_FAILURES of them fail."""
        self.kind, self.seed, self.first = kind, seed, first
        self._count = kind.cases if count is None else count
        self._faults = faults if count is None else 0
        self.done = 0
        self.failed: list[int] = []
        self.outcomes: Counter[str] = Counter()
        self.seconds = 0.0

    @property
    def following(self) -> int:
        """The number of the case that comes next."""
        return self.first + self.done

    def run(self, directory: Path) -> None:
        """Try all cases; a failure is printed, and the next case follows. Raises UsageError where
        the kind needs a program that is not there."""
        began = said = time.monotonic()
        while not self._is_done():
            try:
                outcome = self.kind.run(Case(directory, self.seed, self.following))
                self.outcomes.update([outcome] if isinstance(outcome, str) else outcome)
            except UsageError:
                raise
            except Exception:
                self.failed.append(self.following)
                if len(self.failed) <= SHOWN_FAILURES:
                    print(f"{self.kind.option}: seed={self.seed} case={self.following}")
                    traceback.print_exc(file=sys.stdout)
            self.done += 1
            now = time.monotonic()
            self.seconds = now - began
            if now - said > SAYING_SECONDS:
                said = now
                print(self.line(), flush=True)

    def line(self) -> str:
        """One row of the table."""
        return (
            f"{self.kind.option:24} seed={self.seed} cases {self.first}..{self.following - 1}, "
            f"{self.outcomes.total():,} faults: {len(self.failed)} failed, {self.seconds:.0f} s"
        )

    def _is_done(self) -> bool:
        if self._faults:
            return self.outcomes.total() >= self._faults or len(self.failed) >= SHOWN_FAILURES
        return self.done >= self._count
