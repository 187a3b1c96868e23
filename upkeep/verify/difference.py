"""What a verification of derived files says, whichever kind of file it looks at.

A verifier is shown the log, batch by batch, and compares what follows from it with the files as
they are. It only reads; healing comes in two steps, with the watermark lowered in between, so that
what is cut is always behind the watermark and the next run writes it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from store.runs.dispatch import DispatchBatch


class Damage(StrEnum):
    """What is wrong at a place."""

    UNIT = "unit"
    """Not the unit that the log says."""
    ENTRY = "entry"
    """Not the index entry that the log says."""
    SLOT = "slot"
    """A hash slot that does not begin the chain of its entries, or a slot of the watermark that is
    neither whole nor unused."""
    HEADER = "header"
    """Not the header that the entries give."""
    FIELDS = "fields"
    """Positions that the log cannot have."""
    LINE = "line"
    """A line of the ledger that cannot be read, says something else, or is missing."""
    STRAY = "stray"
    """Bytes behind the last unit or entry."""
    EXPIRED = "expired"
    """No unit, where that of a message was that the log no longer holds."""
    FILE = "file"
    """A file that does not belong."""
    FILE_SIZE = "file_size"
    """A file that is too short or too long."""
    MISSING = "missing"
    """No file, where one belongs; the units or entries that it lacks are not listed besides."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One stretch of wrong units or entries, or one wrong file; what is shown is its first one."""

    kind: str
    """The directory or file below the output: consumequeue, index, checkpoint, ..."""
    damage: Damage
    path: str
    """Of the file, below the output."""
    position: int
    """Byte in the file."""
    topic: str | None
    """None where it is no queue's."""
    queue_id: int | None
    entry: int
    """As RocketMQ counts: queue offset of the first unit, number of the first entry or slot."""
    count: int
    """Units, entries or slots; 0 for a file."""
    physical_offset: int | None
    """Of the first message whose unit or entry is wrong; None where none belongs or it is not
    known."""
    expected: tuple[int | str, ...] | None
    """The fields, or a file's bytes; None where nothing belongs."""
    found: tuple[int | str, ...] | None
    """None where nothing is."""

    @property
    def is_lost(self) -> bool:
        """Whether units are wrong or missing that the log can give again."""
        is_known = self.physical_offset is not None
        return is_known and self.damage in (Damage.UNIT, Damage.MISSING)


class Differences:
    """A list of them in which a stretch that goes on is one difference."""

    def __init__(self) -> None:
        self.found: list[Difference] = []

    def add(self, difference: Difference) -> None:
        """Add one, or make the last one longer."""
        last = self.found[-1] if self.found else None
        if difference.count and last and _goes_on(last, difference):
            self.found[-1] = replace(last, count=last.count + difference.count)
        else:
            self.found.append(difference)

    def entries(self, damage: Damage) -> list[int]:
        """Where there is such damage."""
        return [found.entry for found in self.found if found.damage is damage]


def _goes_on(last: Difference, following: Difference) -> bool:
    # an index file counts its entries anew, a queue's files do not
    same = (last.kind, last.damage) == (following.kind, following.damage)
    in_file = following.topic is not None or last.path == following.path
    return same and in_file and last.entry + last.count == following.entry


@dataclass(frozen=True, slots=True)
class LogRange:
    """What of the log counts."""

    start: int
    """Its first byte: messages before it are gone."""
    end: int
    """The watermark: messages from here on need no unit yet."""
    sealed_end: int
    """No message lies behind it."""


class Verifier(Protocol):
    """One kind of derived file, for one pass over the log."""

    def compare(self, batch: DispatchBatch) -> None:
        """Compare what the next batch of the log says."""

    def finish(self, last_record_offset: int) -> Sequence[Difference]:
        """Look at what no batch says anything about; every difference. ``last_record_offset``: the
        last sound record's start, -1 without one."""

    @property
    def replay_from(self) -> int | None:
        """Where to dispatch again from; None where nothing is lacking."""

    def remove_strays(self) -> None:
        """Heal what costs no message. Raises OutputError, SyncError."""

    def cut(self) -> None:
        """Cut what is wrong and what is behind it. The watermark must be at or before
        ``replay_from`` by then. Raises OutputError, SyncError."""


def first_offset(differences: Iterable[Difference]) -> int | None:
    """Start of the first message that lacks a unit; None where none does."""
    offsets = [found.physical_offset for found in differences]
    return min((offset for offset in offsets if offset is not None), default=None)


def stretches(indexes: NDArray[np.intp]) -> Iterator[tuple[int, int]]:
    """[first, last) of every stretch of consecutive indexes."""
    if not len(indexes):
        return
    breaks = np.flatnonzero(np.diff(indexes) != 1) + 1
    bounds = [0, *(int(at) for at in breaks), len(indexes)]
    for low, high in pairwise(bounds):
        yield int(indexes[low]), int(indexes[high - 1]) + 1
