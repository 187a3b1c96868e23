"""How many units of a queue a message has, where only the log can tell a torn unit from a sound
one. Expected numbers are written by hand, by the rules of light queues (formats.md, section 5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from reput.store.log.commitlog import CommitLog
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.placement import count_units
from tests.support.wire import PlainLog

NAMES = b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b,%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x013,4,5\x02"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    """A message of queue 1 that names two light queues, one of them twice, and others: offset 0 may
    be a torn one of theirs."""
    plain = PlainLog(1 << 16)
    plain.append(topic=b"T", queue_id=1, queue_offset=0, properties=NAMES)
    for number in range(1, 9):
        plain.append(topic=b"T", queue_id=1, queue_offset=number)
    plain.write(tmp_path)
    with closing(CommitLog([tmp_path])) as log:
        yield log


@pytest.mark.parametrize(
    ("topic", "queue_id", "count"),
    [
        ("T", 1, 1), ("T", 0, 0), ("%LMQ%b", 0, 1), ("%LMQ%b", 1, 1), ("%LMQ%b", 2, 0),
        ("%LMQ%a", 0, 2), ("%LMQ%a", 1, 2), ("%LMQ%c", 0, 0),
    ],
)  # fmt: skip
def test_units_count_of_either_setting(
    log: CommitLog, topic: str, queue_id: int, count: int
) -> None:
    """The queue id of a light queue is 0 with enableLmq, and the message's without it; a queue may
    be from a time of either."""
    size = int.from_bytes(log.read(0, 4), "big")
    key = QueueKey(topic, queue_id)
    assert count_units(log, key, 0, size) == count
    assert count_units(log, key, 0, size + 1) == 0
