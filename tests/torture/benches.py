"""The runs of ``tests.crash.workloads``, each laid once for a seed: what many cases begin with."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from tests.crash.work import Work
from tests.crash.workloads import Workloads, quick
from tests.support.recorder import Tree, read_tree
from tests.torture.cases import Case


class Bench:
    """Some runs, and the disk before each of them."""

    def __init__(self, stack: ExitStack, case: Case, names: Iterable[str]) -> None:
        """``names`` are those of workloads; ``stack`` lets go of what is patched."""
        self.directory = case.emptied()
        self.workloads: Workloads = stack.enter_context(quick(self.directory, case.seed))
        self.laid: list[tuple[Work, Tree]] = []
        for name in names:
            for work in getattr(self.workloads, name)():
                work.lay()
                self.laid.append((work, read_tree(self.workloads.disk)))
