"""Runs that start on the trees that a power cut may leave, and must end as if there had been none.

A case is one recorded run, and the power may fail after any of its operations. Each image of the
disk is mounted, and compared with the promises that the process had made until then. The product's
own start and commits then go on to the end of the log, and the outcome must be that of an
undisturbed run. Since images also keep unsynced writes, such as a watermark, they include every
state that a reader could have seen.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from reput.store.files import ASIDE_DIRECTORY, STATE_DIRECTORY, SWAP_JOURNAL_FILE
from reput.store.state.built import BuildRecord
from reput.store.state.watermark import read_watermark
from tests.support.index_model import read_content
from tests.support.power_cuts import Disk, Image, mount
from tests.support.recorder import Recorder, read_tree

ENOUGH = 5
"""No more images are tried after this many problems."""
WATERMARK = "watermark"
"""Kind of a note: the watermark that readers and followers have learned of."""
DELIVERED = "delivered"
"""Kind of a note: the end of the log up to which a follower's target has rows."""
DONE = "done"
"""Kind of a note: the run has ended, so that everything that it built is durable."""
DERIVED = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "checkpoint")
Told = Mapping[str, object]
"""Kind of a note -> its last value."""
Outcome = Mapping[str, object]
"""Part of an output -> its content, as it is compared."""


def outcome(output: Path, sizes: tuple[int, int]) -> Outcome:
    """Return everything in an output that must be equal; ``sizes`` are maxHashSlotNum and
    maxIndexNum."""
    found: dict[str, object] = {}
    for name in DERIVED[:3]:
        root = output / name
        files = read_tree(root) if root.is_dir() else {}
        found[name] = {path: data for path, data in files.items() if data is not None}
    index = output / "index"
    paths = sorted(index.iterdir()) if index.is_dir() else []
    contents = [read_content(path, *sizes) for path in paths]
    if len(contents) > 1 and not contents[-1].entries:
        # a message without keys may have opened the file after a full one already
        contents.pop()
    found["index"] = contents
    checkpoint = output / "checkpoint"
    found["checkpoint"] = checkpoint.read_bytes() if checkpoint.exists() else None
    state = output / STATE_DIRECTORY
    ledger = state / "quarantine.jsonl"
    found["ledger"] = sorted(ledger.read_text("utf-8").splitlines()) if ledger.exists() else []
    mark = read_watermark(state)
    found["watermark"] = mark and (
        mark.end_offset, mark.last_record_offset, mark.last_record_crc, mark.last_store_timestamp,
        mark.index_begin,
    )  # fmt: skip
    built = state / "built.json"
    found["built"] = BuildRecord.from_json(built.read_bytes()) if built.exists() else None
    found["left over"] = [
        str(path.relative_to(output))
        for path in (state / "abort", *(state / "spool").glob("*"), output / ASIDE_DIRECTORY)
        if path.exists()
    ]
    return found


@dataclass
class Case:
    """One recorded run below ``root``, and how the next process goes on there."""

    name: str
    recorder: Recorder
    resume: Callable[[Told], None]
    """Starts on the content of the directory, and goes on to the end of the log."""
    outcome: Callable[[], Outcome]
    ended: Outcome
    """The outcome of the recorded run."""
    accepted: Sequence[Outcome]
    """The outcomes of undisturbed runs; once the run is done, only the last one is."""
    told_before: Told = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The directory that was recorded."""
        return self.recorder.root

    def disks(self) -> Iterator[tuple[int, Disk]]:
        """Yield the disk before the first operation, and after each one, with their count."""
        disk = Disk(self.recorder.begin, self.recorder.directories())
        yield 0, disk
        for count, operation in enumerate(self.recorder.operations, 1):
            disk.apply(operation)
            yield count, disk

    def told(self, count: int) -> Told:
        """Return the notes that were made up to the power cut after ``count`` operations."""
        notes = {kind: value for at, kind, value in self.recorder.notes if at <= count}
        return {**self.told_before, **notes}

    def mount(self, image: Image) -> None:
        """Replace everything in the directory by the image."""
        mount(image.tree, self.root)
        self._renumber(image)

    def _renumber(self, image: Image) -> None:
        """Put the new inodes into a swap's journal; a real disk would have kept the old ones."""
        journal = next(
            (path for path in image.tree if path.endswith(f"/{SWAP_JOURNAL_FILE}")), None
        )
        if journal is None:
            return
        now = {
            self.recorder.inodes[number]: (self.root / path).lstat().st_ino
            for path, number in image.numbers.items()
        }
        with suppress(ValueError):
            steps = json.loads(image.tree[journal] or b"")
            for step in steps:
                step["inode"] = now.get(step["inode"], step["inode"])
            (self.root / journal).write_text(json.dumps(steps))

    def problem(self, image: Image, told: Told) -> str | None:
        """Return what is wrong with this image, or with the outcome of a start on it, else None."""
        self.mount(image)
        output = self.root / "output"
        found = read_watermark(output / STATE_DIRECTORY)
        for kind in (WATERMARK, DELIVERED):
            end = told.get(kind)
            if isinstance(end, int) and (found is None or found.end_offset < end):
                return f"{kind}: {end} was told, the disk has {found and found.end_offset}"
        accepted = self.accepted
        try:
            if DONE in told:
                accepted = accepted[-1:]
                here = self.outcome()
                if wrong := [name for name in DERIVED if here[name] != self.ended[name]]:
                    return f"the run had ended, but {', '.join(wrong)} is not durable"
            self.resume(told)
            here = self.outcome()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if here in accepted:
            return None
        return "; ".join(_unlike(here, one) for one in accepted)


def _unlike(here: Outcome, wanted: Outcome) -> str:
    texts = []
    for name, value in wanted.items():
        if here[name] == value:
            continue
        if isinstance(value, dict):
            other = here[name]
            assert isinstance(other, dict)
            paths = {path for path in {*value, *other} if value.get(path) != other.get(path)}
            texts.append(f"{name}: {sorted(paths)}")
        else:
            texts.append(f"{name}: {here[name]} instead of {value}")
    return "differs in " + ", ".join(texts)


@dataclass
class Tally:
    """The number of tried images, and their problems."""

    images: int = 0
    distinct: int = 0
    problems: list[str] = field(default_factory=list)
    _seen: set[tuple[str, int, str]] = field(default_factory=set)

    def try_image(self, case: Case, count: int, image: Image) -> None:
        """Try an image of the power cut after ``count`` operations, unless an equal one was."""
        told = case.told(count)
        self.images += 1
        key = (case.name, image.key(), str(told))
        if key in self._seen or len(self.problems) >= ENOUGH:
            return
        self._seen.add(key)
        self.distinct += 1
        problem = case.problem(image, told)
        if problem is not None:
            last = case.recorder.operations[count - 1] if count else None
            self.problems.append(
                f"{case.name}, image {self.images}, power cut after operation {count} "
                f"({str(last)[:100]}): {problem}"
            )


def try_chosen(case: Case, tally: Tally, *, share: float = 1.0, seed: int = 0) -> None:
    """Try the chosen images after every operation: none and all of the pending operations always,
    and a random ``share`` of those with one alone and with all but one."""
    rng = random.Random(f"{seed}:{case.name}")
    for count, disk in case.disks():
        for number, image in enumerate(disk.chosen_images()):
            if len(tally.problems) >= ENOUGH:
                return
            if number < 2 or rng.random() < share:
                tally.try_image(case, count, image)


def try_random(case: Case, tally: Tally, seed: int, images: int) -> None:
    """Try this many random images, spread over the recorded operations."""
    rng = random.Random(f"{seed}:{case.name}")
    counts = sorted(rng.choices(range(len(case.recorder.operations) + 1), k=images))
    wanted = {count: counts.count(count) for count in {*counts}}
    for count, disk in case.disks():
        for _ in range(wanted.get(count, 0)):
            tally.try_image(case, count, disk.random_image(rng))
