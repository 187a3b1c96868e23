"""How many partitions a read of queues has; their bounds are in ``test_queue_contract``."""

from __future__ import annotations

import os

import pytest

from reput.sources.queueranges import LEAST_UNITS, MOST_UNITS, UnitRange, divide
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.kinds import QueueKind


@pytest.mark.parametrize("queues", [1000, 1500, 3000, 5000])
@pytest.mark.parametrize("least", [1, 2, 50, 199])
def test_more_queues_than_a_task_opens_get_the_partitions_that_are_wanted(
    queues: int, least: int
) -> None:
    """Each group of queues has its share of them, rounded up."""
    ranges = [
        UnitRange(QueueKey("T", number), QueueKind.CONSUME, 0, 200) for number in range(queues)
    ]
    parts = divide(ranges, least, None)
    assert len(parts) >= least
    assert sum(map(len, (each for part in parts for each in part.ranges))) == 200 * queues


@pytest.mark.parametrize(
    ("total", "count"),
    [(1, 1), (LEAST_UNITS, 1), (LEAST_UNITS + 1, 2), (3 * LEAST_UNITS, 3), (4 * LEAST_UNITS, 4),
     (9 * LEAST_UNITS, 4), (4 * MOST_UNITS, 4), (4 * MOST_UNITS + 1, 8), (10 * MOST_UNITS, 12)],
)  # fmt: skip
def test_without_an_option_every_core_has_as_much_to_do(
    monkeypatch: pytest.MonkeyPatch, total: int, count: int
) -> None:
    """Unless a core's share were too small to be worth a task, or too large for its memory."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6})
    queue = UnitRange(QueueKey("T", 0), QueueKind.CONSUME, 5, 5 + total)
    parts = divide([queue], None, None)
    sizes = [sum(map(len, part.ranges)) for part in parts]
    assert (len(sizes), sum(sizes)) == (count, total)
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= MOST_UNITS
    ends = [(each.first, each.last) for part in parts for each in part.ranges]
    assert [first for first, _ in ends] == [5, *(last for _, last in ends[:-1])]


@pytest.mark.parametrize("most", [MOST_UNITS - 1, MOST_UNITS, MOST_UNITS + 1, 1 << 40])
def test_no_option_makes_a_partition_larger_than_a_task_may_load(most: int) -> None:
    """A smaller limit counts."""
    queue = UnitRange(QueueKey("T", 0), QueueKind.CONSUME, 0, 3 * MOST_UNITS)
    sizes = [len(part.ranges[0]) for part in divide([queue], 1, most)]
    assert max(sizes) <= min(most, MOST_UNITS)
    assert len(sizes) == (4 if most < MOST_UNITS else 3)
