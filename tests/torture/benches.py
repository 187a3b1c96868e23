"""The runs of ``tests.crash.workloads``, each laid once for a seed: what many cases begin with."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Generic, TypeVar

from tests.crash.work import Work
from tests.crash.workloads import Workloads, quick
from tests.support.recorder import Tree, read_tree


class Bench:
    """Some runs, and the disk before each of them."""

    def __init__(self, directory: Path, seed: int, names: Iterable[str]) -> None:
        """``names`` are those of workloads; ``directory`` is emptied."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self._held = ExitStack()
        self.directory = directory
        self.workloads: Workloads = self._held.enter_context(quick(directory, seed))
        self.laid: list[tuple[Work, Tree]] = []
        for name in names:
            for work in getattr(self.workloads, name)():
                work.lay()
                self.laid.append((work, read_tree(self.workloads.disk)))

    def close(self) -> None:
        """Let go of what is patched."""
        self._held.close()


_Bench = TypeVar("_Bench", bound=Bench)


class Benches(Generic[_Bench]):
    """The bench of each directory, for the last seed that was asked for there."""

    def __init__(self) -> None:
        self._benches: dict[Path, tuple[int, _Bench]] = {}

    def find(self, directory: Path, seed: int, make: Callable[[], _Bench]) -> _Bench:
        """Return the bench, made if there is none for this seed."""
        found = self._benches.get(directory)
        if found is not None and found[0] == seed:
            return found[1]
        if found is not None:
            found[1].close()
        bench = make()
        self._benches[directory] = seed, bench
        return bench

    def close(self) -> None:
        """Let go of all."""
        while self._benches:
            self._benches.popitem()[1][1].close()
