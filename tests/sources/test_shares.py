"""How the limit of a micro-batch is divided among queues and stores, a read into parts, and which
queue offsets an option may hold: the borders, by hand.

The rule for limits is that of Spark's Kafka source: a share in proportion to the lag, and at least
one message.
"""

from __future__ import annotations

import random

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from reput.sources.logparts import even_sizes, shrinking_sizes
from reput.sources.manystores import _shares
from reput.sources.queueoffsets import limited_ends
from reput.sources.queueoptions import ConsumeQueueOptions, parse_offsets
from reput.store.errors import UsageError
from reput.store.queue.consumequeue import QueueKey

MIB = 1 << 20


@pytest.mark.parametrize(
    ("most", "read"),
    [(44, (30, 10, 4, 0)), (43, (29, 9, 3, 0)), (22, (15, 5, 2, 0)), (4, (2, 1, 1, 0)),
     (1, (1, 1, 1, 0))],
)  # fmt: skip
def test_a_queue_gets_its_share_of_a_limit(most: int, read: tuple[int, ...]) -> None:
    """All that waits where that is just the limit, and nothing of a queue in which nothing does."""
    keys = [QueueKey("T", number) for number in range(4)]
    starts = dict.fromkeys(keys, 100)
    ends = dict(zip(keys, (130, 110, 104, 100), strict=True))
    found = limited_ends(starts, ends, most)
    assert tuple(found[key] - 100 for key in keys) == read


@pytest.mark.parametrize("kind", [ReadMaxRows, ReadMaxBytes])
def test_a_store_gets_its_share_of_a_limit(kind: type[ReadMaxRows] | type[ReadMaxBytes]) -> None:
    """In the unit of the limit; one without news gets none, and without a limit all is read."""
    lags = {"a": 600, "b": 200, "c": 0, "d": 1}

    def share(limit: ReadLimit) -> int:
        assert type(limit) is kind
        return limit.max_rows if isinstance(limit, ReadMaxRows) else limit.max_bytes

    found = {root: share(limit) for root, limit in _shares(kind(100), lags).items()}
    assert found == {"a": 74, "b": 24, "d": 1}
    assert _shares(ReadAllAvailable(), lags) == {}
    assert _shares(kind(100), dict.fromkeys(lags, 0)) == {}


def test_parts_of_a_read_are_whole_and_within_their_bounds(seed: int) -> None:
    """They cover the range, none is larger than a file, and none is small but for the only one or
    the last."""
    rng = random.Random(seed)
    for _ in range(2000):
        size, count = rng.randrange(1, 300 * MIB), rng.randrange(1, 20)
        largest = rng.choice((4, 16, 64)) * MIB
        even = even_sizes(size, count, largest)
        assert sum(even) == size
        assert max(even) - min(even) <= 1
        assert max(even) <= largest
        assert len(even) == 1 or min(even) >= MIB
        assert len(even) >= min(count, size // MIB)
        parts = shrinking_sizes(size, count, largest)
        least = max(MIB, size // 32)
        assert sum(parts) == size
        assert parts == sorted(parts[:-1], reverse=True) + parts[-1:]
        assert all(least <= part <= max(largest, least) for part in parts[:-1])
        assert parts[-1] <= 2 * least
        # a single task takes all at once
        assert parts[-1] > 0 or count == 1


@pytest.mark.parametrize(
    ("smallest", "offset", "is_right"),
    [(0, 0, True), (0, -1, False), (-1, -1, True), (-1, -2, False), (-2, -2, True),
     (-2, -3, False), (0, (1 << 63) - 1, True), (0, 1 << 63, False), (0, "true", False),
     (0, "1.0", False)],
)  # fmt: skip
def test_offsets_that_an_option_may_hold(smallest: int, offset: object, is_right: bool) -> None:
    """Whole numbers of 63 bits, and the words that Kafka's source has for the ends."""
    text = f'{{"T": {{"7": {offset}}}}}'
    if is_right:
        assert parse_offsets(text, smallest) == {QueueKey("T", 7): offset}
        return
    with pytest.raises(ValueError, match=f"whole numbers from {smallest} on"):
        parse_offsets(text, smallest)


@pytest.mark.parametrize("queue_id", ["01", "-1", " 1", "1e0", "12345678901", ""])
def test_ids_that_are_none(queue_id: str) -> None:
    """They would name a queue twice, or none."""
    with pytest.raises(ValueError, match="must be JSON like"):
        parse_offsets(f'{{"T": {{"{queue_id}": 1}}}}')


def test_the_earliest_offset_is_no_end() -> None:
    """A read may begin at -2 and end at -1, and not the other way round."""
    places = {"startingOffsets": '{"T": {"0": -2}}', "endingOffsets": '{"T": {"0": -1}}'}
    options = ConsumeQueueOptions({"path": "/store", **places})
    assert options["startingOffsets"] == {QueueKey("T", 0): -2}
    with pytest.raises(UsageError, match=r"option endingOffsets is .* from -1 on"):
        ConsumeQueueOptions({"path": "/store", "endingOffsets": places["startingOffsets"]})
