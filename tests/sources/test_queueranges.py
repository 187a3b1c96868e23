"""How many partitions a read of queues has; their bounds are in ``test_queue_contract``."""

from __future__ import annotations

import pytest

from reput.sources.queueranges import UnitRange, divide
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
