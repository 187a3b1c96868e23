"""How a read of queues is divided into partitions: each takes a slice of every queue.

The slices of a partition lie in about the same part of the log, so that a task reads that part once
and in order. One queue at a time would cost a read for each message, since a log holds all queues
mixed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.kinds import QueueKind

LEAST_UNITS = 1 << 15
"""A smaller partition is not worth a task, unless an option asks for it: a full Arrow batch."""
MOST_UNITS = 1 << 18
"""Bounds the memory of a task, which loads all of its units, 28 bytes each."""
MOST_QUEUES = 1 << 10
"""Bounds the files that a task opens."""


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Units [first, last) of a queue, counted from its byte 0."""

    key: QueueKey
    kind: QueueKind
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first


@dataclass
class QueuePartition(InputPartition):
    """Units of up to MOST_QUEUES queues."""

    ranges: tuple[UnitRange, ...]


def divide(
    ranges: Sequence[UnitRange], least: int | None, most: int | None
) -> list[QueuePartition]:
    """Return at least ``least`` partitions, or somewhat fewer if no queue has as many units, of up
    to ``most`` units each.

    Without ``least``, a multiple of this machine's cores, if they are not too small. The units of a
    queue keep their order from partition to partition.
    """
    total = sum(map(len, ranges))
    if least is None:
        cores = len(os.sched_getaffinity(0))
        rounds = -(-total // (MOST_UNITS * cores))
        least = min(rounds * cores, -(-total // LEAST_UNITS))
    most = min(most or MOST_UNITS, MOST_UNITS)
    # a slice may have one unit more than its share: with few queues that costs little of ``most``
    queues = min(MOST_QUEUES, (most + 1) // 2)
    partitions: list[QueuePartition] = []
    for first in range(0, len(ranges), queues):
        group = ranges[first : first + queues]
        units = sum(map(len, group))
        count = max(-(-units // (most - len(group) + 1)), -(-least * units // total))
        partitions += map(QueuePartition, filter(None, _slices(group, count)))
    return partitions


def _slices(ranges: Sequence[UnitRange], count: int) -> Iterator[tuple[UnitRange, ...]]:
    """Return ``count`` slices of all ranges."""

    def cut(at: int, number: int, units: UnitRange) -> int:
        # queues round in turn, so that those of one unit do not all fall into the last slice
        return units.first + (at * len(units) + number % count) // count

    for at in range(count):
        slices = (
            UnitRange(units.key, units.kind, cut(at, number, units), cut(at + 1, number, units))
            for number, units in enumerate(ranges)
        )
        yield tuple(each for each in slices if each)
