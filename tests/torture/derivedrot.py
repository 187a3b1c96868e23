"""Damage to any derived file of a golden store's output: found at a start or by a verification,
healed from the log, and then RocketMQ's bytes again (of the index: its content).

Axes: kinds of files, kinds of damage, one file or one of each of many queues, whether a run or a
verification comes first. The output is built by the dispatcher's own writer, without Spark. What is
at its start refused says what to do.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

from reput.store.errors import ReputError, UsageError
from reput.store.state.storecheckpoint import StoreCheckpoint
from reput.store.state.watermark import read_watermark
from reput.upkeep.verify.repairplan import planned_changes
from reput.upkeep.verify.run import verify
from tests.crash.work import one_after_another
from tests.support.derived_output import QUEUE_TREES, DerivedOutput
from tests.support.file_damage import damage_file
from tests.support.golden import log_records, tree
from tests.torture.cases import BENCHES, Case, Kind

MANY = 12
"""Queues, of each of which one file is damaged, mostly."""
NAMES = ("plain", "mixed", "ext", "lmq", "batch")
"""The golden stores."""
ALWAYS_CHANGED = (
    "reput/abort", "reput/built.json", "reput/ends", "reput/lock", "reput/owner.json",
    "reput/visible",
)  # fmt: skip
"""Files of a repair's own."""
Chosen = list[tuple[str, Path]]
"""Files that are damaged, with their kinds."""


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

    def check_case(self, rng: random.Random) -> tuple[str, int]:
        """One damaged file, or one of each of many queues; how the damage was found, and in how
        many files it was."""
        self.output.restore(self.kept)
        chosen = self._one(rng) if rng.random() < 0.5 else self._many(rng)
        places = [f"{damage_file(rng, path)} of {path}" for _, path in chosen]
        place = ", ".join(places)
        how, is_started = "", rng.random() < 0.5
        if is_started:
            try:
                self.output.start()
                if self.is_equal() and not self.output.verify().differences:
                    return "healed by the start", len(chosen)
            except ReputError as error:
                assert "reput verify" in str(error) or "`adopt=`" in str(error), f"{place} {error}"
                how = "refused at start"
        if chosen[0][0] == "checkpoint" and self._is_as_a_slave_may_leave_it():
            return "possible", 1
        how = self._repair(chosen, place, how, is_started=is_started)
        assert self.is_equal(), f"{place}: {how}, {self.output.unequal()}"
        assert self.output.verify().differences == (), place
        return how, len(chosen)

    def _one(self, rng: random.Random) -> Chosen:
        kind, paths = rng.choice(sorted(self.output.files().items()))
        return [(kind, rng.choice(paths))]

    def _many(self, rng: random.Random) -> Chosen:
        """A file of the index, and files of different queues, which are compared apart. A queue of
        each kind is spared: where all sizes are wrong, the setting is taken to be."""
        queues: dict[tuple[str, ...], Chosen] = {}
        for kind, paths in self.output.files().items():
            spared = rng.choice(paths).parent if kind in QUEUE_TREES else None
            for path in paths:
                if kind not in ("checkpoint", "watermark") and path.parent != spared:
                    # no queue twice, neither with its ext nor with another file
                    name = () if kind == "index" else path.parts[-3:-1]
                    queues.setdefault(name, []).append((kind, path))
        names = rng.sample(sorted(queues), min(MANY, len(queues)))
        return [rng.choice(queues[name]) for name in names]

    def _is_as_a_slave_may_leave_it(self) -> bool:
        """Whether nothing but masterFlushedOffset differs, and it is a record's start: nothing says
        which."""
        found, kept = map(StoreCheckpoint.read, (self.output.root, self.kept))
        if found is None or kept is None or found.master_flushed_offset not in self.record_starts:
            return False
        return found == replace(kept, master_flushed_offset=found.master_flushed_offset) != kept

    def _foretold(self) -> set[str]:
        """The places that a dry run of a repair names; an ext is cut with its queue."""
        found = verify(self.output.settings(), self.output.root, repair=True, dry_run=True)
        told = {one.place for one in planned_changes(found.differences, found.replay_from)}
        queues = {place for place in told if place.startswith("consumequeue/")}
        return told | {place.replace("consumequeue/", "consumequeue_ext/") for place in queues}

    def _repair(self, chosen: Chosen, place: str, how: str, *, is_started: bool) -> str:
        before = tree(self.output.root)
        try:
            told = self._foretold()
            assert tree(self.output.root) == before, place
            found = self.output.verify(repair=True)
        except UsageError as error:
            # no watermark is left: nothing tells these queues from another writer's
            assert "reput rebuild" in str(error), place
            self.output.start(adopt=True)
            return how or "refused by verify"
        after = tree(self.output.root)
        names = before.keys() | after.keys()
        changed = {name for name in names if before.get(name) != after.get(name)}
        unforetold = {name for name in changed if not name.startswith((*told, *ALWAYS_CHANGED))}
        assert not unforetold, f"{place}: {unforetold}, not in {told}"
        seen = {(d.kind, (self.output.root / d.path).parent) for d in found.differences}
        missed = {(kind, path.parent) for kind, path in chosen} - seen
        # a start may have healed some of the files
        assert seen, place
        assert is_started or not missed, f"{place}: {missed} {found}"
        self.output.start()
        return how or "found by verify"


def _run(case: Case) -> Counter[str]:
    """One case; the golden store and how its damage was found."""
    rng = case.rng()
    name = rng.choice(NAMES)
    own = replace(case, directory=case.directory / name)
    with one_after_another():
        bench = BENCHES.find(own, lambda _, of: Bench(name, of.emptied()))
        how, faults = bench.check_case(rng)
    return Counter({f"{name}: {'one' if faults == 1 else 'many'} {how}": faults})


KIND = Kind("derived rot", _run, 10_000)
"""Six faults each, on average; its sample is tests/upkeep/verify/test_kinds.py."""
