"""The result of verifying derived files, whichever kind of file a verifier compares.

A verifier receives the log batch by batch and compares the entries that follow from it with the
files as they are. It only reads; healing comes in two steps, with the watermark lowered in between,
so that every unit that is cut lies beyond the watermark and the next run writes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reput.store.log.cursor import BadRange
from reput.store.runs.dispatch import DispatchBatch

Extent = tuple[str, int, int]
"""Bytes of a derived file: its path below the output, the first byte, and their end."""


class Damage(StrEnum):
    """The kind of damage at a place."""

    UNIT = "unit"
    """A unit that differs from the one that follows from the log."""
    ENTRY = "entry"
    """An index entry that differs from the one that follows from the log."""
    SLOT = "slot"
    """A hash slot that does not begin the chain of its entries, or a slot of the watermark that is
    neither whole nor unused."""
    HEADER = "header"
    """A header that does not follow from the entries."""
    FIELDS = "fields"
    """Positions that the log cannot have."""
    LINE = "line"
    """A line of the ledger that cannot be read, contradicts the log, or is missing."""
    STRAY = "stray"
    """Bytes after the last unit or entry."""
    EXPIRED = "expired"
    """No unit, where there was one of a message that the log no longer holds."""
    FILE = "file"
    """A file that does not belong."""
    FILE_SIZE = "file_size"
    """A file that is too short or too long."""
    MISSING = "missing"
    """No file, where one belongs; the units or entries that it lacks are not listed separately."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One stretch of wrong units or entries, or one wrong file; its fields describe the first
    one."""

    kind: str
    """The directory or file below the output: consumequeue, index, checkpoint, ..."""
    damage: Damage
    path: str
    """Path of the file, below the output."""
    position: int
    """Position in the file, in bytes."""
    topic: str | None
    """The queue's topic; None where it is not a queue's."""
    queue_id: int | None
    entry: int
    """The number in RocketMQ's counting: queue offset of the first unit, number of the first entry
    or slot."""
    count: int
    """Number of units, entries or slots; 0 for a file."""
    physical_offset: int | None
    """Offset of the first message whose unit or entry is wrong; None where none belongs or it is
    not known."""
    expected: tuple[int | str, ...] | None
    """The expected fields, or a file's bytes; None where nothing belongs."""
    found: tuple[int | str, ...] | None
    """The fields that are there; None where there are none."""

    @property
    def is_lost(self) -> bool:
        """Whether units are wrong or missing that the log can provide again."""
        is_known = self.physical_offset is not None
        return is_known and self.damage in (Damage.UNIT, Damage.MISSING)


class Differences:
    """A list in which consecutive damage of one kind is one difference."""

    def __init__(self) -> None:
        self.items: list[Difference] = []

    def add(self, difference: Difference) -> None:
        """Add a difference, or extend the last one."""
        last = self.items[-1] if self.items else None
        if difference.count and last and _goes_on(last, difference):
            self.items[-1] = replace(last, count=last.count + difference.count)
        else:
            self.items.append(difference)


def _goes_on(last: Difference, following: Difference) -> bool:
    # an index file restarts its count of entries, while a queue counts across its files
    same = (last.kind, last.damage) == (following.kind, following.damage)
    in_file = following.topic is not None or last.path == following.path
    return same and in_file and last.entry + last.count == following.entry


@dataclass(slots=True)
class LogRange:
    """The bounds of the log that count. Broker and dispatcher may go on while files are compared:
    whoever asks how far the log reaches has read them before."""

    start: int
    """Its first byte: messages before it are gone."""
    end: int
    """The watermark: messages from here on need no unit yet."""
    sealed_end: int
    """The sealed end when it was looked up last: no message lay beyond it."""
    look_up: Callable[[int], int]
    """Looks the sealed end up again, from an earlier one on."""
    damaged: list[BadRange] = field(default_factory=list)
    """Ranges that nobody has listed, in order, as far as the log was read: what follows from their
    messages is not known."""

    def reaches(self, offset: int) -> bool:
        """Return whether the log is sealed up to ``offset`` by now."""
        if offset > self.sealed_end:
            self.sealed_end = self.look_up(self.sealed_end)
        return offset <= self.sealed_end

    def are_damaged(
        self, offsets: NDArray[np.int64], sizes: NDArray[np.int64] | int
    ) -> NDArray[np.bool_]:
        """Return bool[n]: which records at these offsets, of these sizes, lie in damaged ranges."""
        if not self.damaged:
            return np.zeros(len(offsets), np.bool_)
        starts, ends = np.array([(part.start, part.end) for part in self.damaged]).T
        at = np.searchsorted(starts, offsets, "right") - 1
        # a difference cannot overflow, whatever stands there
        inside: NDArray[np.bool_] = (at >= 0) & (sizes > 0) & (offsets <= ends[at] - sizes)
        return inside

    def is_whole(self) -> bool:
        """Return whether no message lies beyond the watermark by now."""
        return not self.reaches(self.end + 1)


class Counts(NamedTuple):
    """The numbers of what was compared and of what could not be, named as in ``Verification``."""

    queues: int = 0
    units: int = 0
    index_entries: int = 0
    unseen_units: int = 0
    unseen_index_entries: int = 0


class Verifier(Protocol):
    """One kind of derived file, for one pass over the log."""

    def compare(self, batch: DispatchBatch) -> None:
        """Compare the next batch of the log."""

    def pass_damaged(self) -> None:
        """Go on after the entries of messages in the range that was damaged last, unseen."""

    def finish(self, last_record_offset: int) -> Sequence[Difference]:
        """Check everything that no batch covers, and return every difference.
        ``last_record_offset`` is the last sound record's start, -1 without one."""

    def gone_extents(self) -> Iterable[Extent]:
        """Return, after ``finish``, the bytes that were taken as they are, because they are of
        messages before the log's start."""

    @property
    def counts(self) -> Counts:
        """Return, after ``finish``, what was compared of this kind."""

    @property
    def replay_from(self) -> int | None:
        """Return where to dispatch again from; None where no entry is missing."""

    def remove_strays(self) -> None:
        """Heal damage that costs no message. Raises OutputError, SyncError."""

    def cut(self) -> None:
        """Cut the wrong entries and everything after them. The watermark must be at or before
        ``replay_from`` by then. Raises OutputError, SyncError."""


def first_offset(differences: Iterable[Difference]) -> int | None:
    """Return the start of the first message that lacks a unit; None where none does."""
    offsets = [difference.physical_offset for difference in differences]
    return min((offset for offset in offsets if offset is not None), default=None)


def stretches(indexes: NDArray[np.intp]) -> Iterator[tuple[int, int]]:
    """Yield [first, last) of every stretch of consecutive indexes."""
    if not len(indexes):
        return
    breaks = np.flatnonzero(np.diff(indexes) != 1) + 1
    bounds = [0, *(int(at) for at in breaks), len(indexes)]
    for low, high in pairwise(bounds):
        yield int(indexes[low]), int(indexes[high - 1]) + 1
