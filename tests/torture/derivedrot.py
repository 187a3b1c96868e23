"""Damage to any derived file of a golden store's output: found at a start or by a verification,
healed from the log, and then RocketMQ's bytes again (of the index: its content).

Axes: kinds of files, kinds of damage, whether a run or a verification comes first. The output is
built by the dispatcher's own writer, without Spark. What is at its start refused says what to do.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from store.errors import ReputError, UsageError
from store.state.storecheckpoint import StoreCheckpoint
from store.state.watermark import read_watermark
from tests.support.derived_output import DerivedOutput
from tests.support.file_damage import damage_file
from tests.support.golden import log_records

NAME = "derived rot"
CASES = 50_000
NAMES = ("plain", "mixed", "ext", "lmq", "batch")
"""The golden stores."""


class Bench:
    """An output that is damaged again and again."""

    def __init__(self, name: str, directory: Path) -> None:
        self.output = DerivedOutput.build(name, directory)
        self.kept = directory / "kept"
        self.output.keep(self.kept)
        assert self.output.unequal() == []
        assert self.output.verify().differences == ()
        found = read_watermark(self.output.state)
        assert found is not None
        self.end = found.end_offset
        self.checkpoint = (self.kept / "checkpoint").read_bytes()
        self.record_starts = {record.physical_offset for record in log_records(self.output.store)}

    def is_equal(self) -> bool:
        """Whether everything is as it was."""
        path, found = self.output.root / "checkpoint", read_watermark(self.output.state)
        is_marked = found is not None and found.end_offset == self.end
        checkpoint = path.read_bytes() if path.exists() else b""
        return is_marked and checkpoint == self.checkpoint and self.output.unequal() == []

    def check_case(self, rng: random.Random) -> str:
        """One damaged file; how it was found."""
        self.output.restore(self.kept)
        kind, paths = rng.choice(sorted(self.output.files().items()))
        path = rng.choice(paths)
        damage = damage_file(rng, path)
        place = f"{damage} of {path.relative_to(self.output.root)}"
        how = ""
        if rng.random() < 0.5:
            try:
                self.output.start()
                if self.is_equal() and not self.output.verify().differences:
                    return "healed by the start"
            except ReputError as error:
                assert "reput verify" in str(error) or "--adopt" in str(error), f"{place} {error}"
                how = "refused at start"
        if kind == "checkpoint" and self._is_as_a_slave_may_leave_it():
            return "possible"
        how = self._repair(kind, place, how)
        assert self.is_equal(), f"{place}: {how}, {self.output.unequal()}"
        assert self.output.verify().differences == (), place
        return how

    def _is_as_a_slave_may_leave_it(self) -> bool:
        """Whether nothing but masterFlushedOffset differs, and it is a record's start: nothing says
        which."""
        found, kept = map(StoreCheckpoint.read, (self.output.root, self.kept))
        if found is None or kept is None or found.master_flushed_offset not in self.record_starts:
            return False
        return found == replace(kept, master_flushed_offset=found.master_flushed_offset) != kept

    def _repair(self, kind: str, place: str, how: str) -> str:
        try:
            found = self.output.verify(repair=True)
        except UsageError as error:
            # no watermark is left: nothing tells these queues from another writer's
            assert "--adopt" in str(error), place
            self.output.start(adopt=True)
            return how or "refused by verify"
        assert kind in {d.kind for d in found.differences}, f"{place} {found}"
        self.output.start()
        return how or "found by verify"


_benches: dict[tuple[Path, str], Bench] = {}


def run(directory: Path, seed: int, case: int) -> str:
    """One case; the golden store and how its damage was found."""
    rng = random.Random(f"{seed}:{case}")
    name = rng.choice(NAMES)
    if (directory, name) not in _benches:
        (directory / name).mkdir(parents=True)
        _benches[directory, name] = Bench(name, directory / name)
    return f"{name}: {_benches[directory, name].check_case(rng)}"
