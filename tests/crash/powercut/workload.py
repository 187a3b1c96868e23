"""The work that a power cut interrupts, and the check of its result.

It is the product's own code from the scan to the watermark, without Spark, on a store that a real
broker wrote.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reput.checkpoints.ownership import Ownership
from reput.checkpoints.swap import build_root, finish_swap, swap_in
from reput.store.files import (
    ASIDE_DIRECTORY,
    LEDGER_FILE,
    STATE_DIRECTORY,
    STORE_CHECKPOINT_FILE,
    SWAP_JOURNAL_FILE,
)
from reput.store.state.watermark import read_watermark
from tests.support.derived_output import QUEUE_TREES, DerivedOutput
from tests.support.file_damage import DAMAGES
from tests.support.golden import log_records, tree

Acknowledge = Callable[[int], None]
_DAMAGES = ("flip", "zero", "noise", "delete")
"""They keep a file's size: a repair refuses where every queue of a kind has another."""


@dataclass(frozen=True)
class Prepared:
    """A store, and the output that an undisturbed run makes of it."""

    whole: DerivedOutput
    borders: tuple[int, ...]
    """Physical offsets at which a batch may end."""

    @classmethod
    def of(cls, name: str, directory: Path) -> Prepared:
        """Unpack the golden store ``name`` and dispatch it."""
        directory.mkdir()
        whole = DerivedOutput.build(name, directory)
        assert whole.unequal() == []
        starts = [found.physical_offset for found in log_records(whole.store)]
        return cls(whole, tuple(starts[1:]))

    def output(self, root: Path) -> DerivedOutput:
        """Return another output of the same store, at ``root``."""
        return DerivedOutput(self.whole.store, root)


class Dispatch:
    """Several starts, each of which commits one batch and acknowledges its watermark."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    def lay(self, root: Path, rng: random.Random) -> None:
        """Prepare an empty output, or one with a part dispatched."""
        if rng.random() < 0.5:
            self._prepared.output(root).start(part=self._border(rng))

    def run(self, root: Path, rng: random.Random, acknowledge: Acknowledge) -> None:
        """Dispatch everything. Raises ReputError."""
        output = self._prepared.output(root)

        def shown(*_: object) -> None:
            found = read_watermark(output.state)
            acknowledge(found.end_offset if found else 0)

        for _ in range(rng.choice((0, 1, 3))):
            output.start(part=self._border(rng), on_visible=shown)
        output.start(on_visible=shown)

    def check(self, root: Path, acknowledged: int) -> list[str]:
        """Dispatch the rest, and return the faults."""
        output = self._prepared.output(root)
        found = read_watermark(output.state)
        end = found.end_offset if found else 0
        faults = [f"{acknowledged} was durable, {end} is"] if end < acknowledged else []
        output.start()
        faults += [f"differs: {name}" for name in output.unequal()]
        faults += [f"verify: {difference}" for difference in output.verify().differences]
        entries = _ledger(output).symmetric_difference(_ledger(self._prepared.whole))
        faults += [f"ledger: {entry}" for entry in sorted(entries)]
        return faults

    def _border(self, rng: random.Random) -> Callable[[object], int]:
        border = rng.choice(self._prepared.borders)
        return lambda _: border


class Repair:
    """``reput verify --repair`` of a damaged output, which acknowledges its end."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    def lay(self, root: Path, rng: random.Random) -> None:
        """Prepare a complete output with some damaged files."""
        shutil.copytree(self._prepared.whole.root, root)
        kinds = self._prepared.output(root).files()
        for _ in range(rng.choice((1, 3, 8))):
            paths = [path for path in kinds[rng.choice([*kinds])] if path.exists()]
            if paths and paths[0].name != "watermark":
                path = rng.choice(paths)
                if path.stat().st_size:
                    DAMAGES[rng.choice(_DAMAGES)](rng, path)

    def run(self, root: Path, _rng: random.Random, acknowledge: Acknowledge) -> None:
        """Repair the output. Raises ReputError."""
        self._prepared.output(root).verify(repair=True)
        acknowledge(1)

    def check(self, root: Path, acknowledged: int) -> list[str]:
        """Repair again unless the end was acknowledged; dispatch the rest, and return the
        faults."""
        output = self._prepared.output(root)
        if not acknowledged:
            output.verify(repair=True)
        output.start()
        faults = [f"differs: {name}" for name in output.unequal()]
        return faults + [f"verify: {difference}" for difference in output.verify().differences]


class Swap:
    """The swap of a rebuilt output, which acknowledges its end."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    def lay(self, root: Path, rng: random.Random) -> None:
        """Prepare an output with a part dispatched, and a complete one aside."""
        border = rng.choice(self._prepared.borders)
        self._prepared.output(root).start(part=lambda _: border)
        shutil.copytree(self._prepared.whole.root, build_root(root))

    def run(self, root: Path, _rng: random.Random, acknowledge: Acknowledge) -> None:
        """Swap the complete output in. Raises ReputError."""
        if (root / ASIDE_DIRECTORY / SWAP_JOURNAL_FILE).exists():
            finish_swap(root)
        elif self._position(root) < self._end:
            with Ownership(root):
                swap_in(root, [*QUEUE_TREES, "index", STORE_CHECKPOINT_FILE, STATE_DIRECTORY])
        else:
            return
        acknowledge(1)

    def check(self, root: Path, acknowledged: int) -> list[str]:
        """Start, and return the faults: the output must be the old one or the new one as a
        whole."""
        before = read_watermark(root / STATE_DIRECTORY)
        finish_swap(root)
        output, whole = self._prepared.output(root), self._prepared.whole
        after = read_watermark(output.state)
        faults = []
        if before is None or after is None:
            faults.append("no watermark")
        elif after.end_offset == self._end:
            faults += [
                f"not swapped: {part}"
                for part in (*QUEUE_TREES, "index")
                if tree(root / part) != tree(whole.root / part)
            ]
        elif acknowledged:
            faults.append("the swap had ended, and is undone")
        output.start()
        faults += [f"differs: {name}" for name in output.unequal()]
        return faults + [f"verify: {difference}" for difference in output.verify().differences]

    @property
    def _end(self) -> int:
        return self._position(self._prepared.whole.root)

    def _position(self, root: Path) -> int:
        found = read_watermark(root / STATE_DIRECTORY)
        return found.end_offset if found else -1


Workload = Dispatch | Repair | Swap
WORKLOADS: dict[str, type[Dispatch] | type[Repair] | type[Swap]] = {
    "dispatch": Dispatch,
    "repair": Repair,
    "swap": Swap,
}


def _ledger(output: DerivedOutput) -> set[str]:
    path = output.state / LEDGER_FILE
    return {*path.read_text("utf-8").splitlines()} if path.exists() else set()
