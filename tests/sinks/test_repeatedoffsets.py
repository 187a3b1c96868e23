"""The warning about messages that RocketMQ drops since their queue has their offsets."""

from __future__ import annotations

import pytest

from reput.sinks.index.repeatedoffsets import RepeatedOffsets
from reput.store.queue.consumequeue import QueueKey


def shown(repeats: RepeatedOffsets, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    repeats.warn()
    return [record.getMessage() for record in caplog.records]


def test_a_queue_is_told_of_from_where_its_offsets_begin(caplog: pytest.LogCaptureFixture) -> None:
    """It is the message at offset 0, which is appended, and not dropped; without one the first that
    is dropped. A message that is appended and followed by no drop is as it should be."""
    repeats = RepeatedOffsets()
    repeats.note_begin(QueueKey("fine", 0), 50)
    repeats.note_begin(QueueKey("again", 1), 100)
    repeats.note(QueueKey("again", 1), 200, 3)
    repeats.note(QueueKey("again", 1), 900, 4)
    repeats.note_begin(QueueKey("again", 1), 950)
    repeats.note(QueueKey("订\u202e", 2), 300, 1)
    first, second = shown(repeats, caplog)
    assert "topic=again queue=1 messages=7 from physical offset 100 on" in first
    assert first.endswith(
        "reput rebuild --topic again --from 100 gives its queues to the new messages"
    )
    assert "topic=订\\u202e queue=2 messages=1 from physical offset 300 on" in second


@pytest.mark.parametrize("count", [0, 8, 9, 20])
def test_the_first_queues_get_a_line_of_their_own(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Up to eight; then the number of the others."""
    repeats = RepeatedOffsets()
    for number in range(count):
        repeats.note(QueueKey("T", number), number, 1)
    lines = shown(repeats, caplog)
    for number, line in enumerate(lines[:8]):
        assert f"queue={number} " in line
    more = [f"queue offsets begin again in {count - 8} queues more"] if count > 8 else []
    assert lines[8:] == more
    assert len(lines[:8]) == min(count, 8)
