"""A fuzz of Spark's calls on both sources' streams, over a store that grows between any two calls.

Axes: Trigger.AvailableNow with the end fixed before the first offset is asked for or after that, a
query that goes on, starts and limits, restarts, a batch that was planned and is repeated. Each
message comes once, none beyond the end that was fixed, and nothing fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sources import test_rewritten_log, test_rewritten_queues
from tests.support.micro_batches import Checkpoint, Run
from tests.support.rewritten_store import RewrittenStore

READERS = {"log": test_rewritten_log.reader, "queues": test_rewritten_queues.reader}
MOST = 250
"""Messages of a store: a query that waits for one asks many times."""
STARTS = ("earliest", "latest", "time")


class Growth:
    """A store that grows, and the number of its messages at the moments that count."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.store = RewrittenStore(root, rng.choice((1024, 4096, 1 << 16)))
        self._rng = rng
        self._grow(rng.choice((0, 1, 30)))

    def _grow(self, count: int) -> None:
        for _ in range(count):
            body = b"%06d" % len(self.store.bodies)
            self.store.put(
                body.ljust(self._rng.choice((6, 90)), b"."), queue=self._rng.randrange(3)
            )
        self.store.write()

    def __call__(self) -> None:
        if self.count < MOST:
            self._grow(self._rng.choice((0, 1, 1, 2, 5)))

    @property
    def count(self) -> int:
        """Number of messages now."""
        return len(self.store.bodies)


def options_of(rng: random.Random, kind: str, start: str, pin: Path) -> dict[str, Any]:
    """Options of a query; a start that moves is pinned, since Spark asks again for it."""
    options: dict[str, Any] = {"initialOffsetPath": pin}
    if start == "time":
        options |= {"startingTimestamp": 1, "startingOffsetsByTimestampStrategy": "latest"}
    else:
        options["startingOffsets"] = start
    limits = [{}, {"maxOffsetsPerTrigger": 3}, {"maxOffsetsPerTrigger": 40}]
    if kind == "log":
        limits += [{"maxBytesPerTrigger": 700}, {"minPartitions": 3}]
    return options | rng.choice(limits)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("kind", READERS)
def test_each_message_once_and_none_beyond_the_fixed_end(
    tmp_path: Path, seed: int, kind: str, start: str
) -> None:
    """The order of Spark's calls does not matter."""
    rng = random.Random(f"{seed}{kind}{start}")
    for case in range(8):
        growth = Growth(tmp_path / str(case), rng)
        options = options_of(rng, kind, start, tmp_path / f"pin{case}")
        checkpoint, first_count = Checkpoint(), growth.count
        for number in range(rng.randint(2, 5)):
            last = number and rng.random() < 0.3
            query = _query(READERS[kind], growth, checkpoint, options, rng, available_now=True)
            fixed, batches = growth.count, rng.choice((1, 2, 1000))
            if number == 0:
                first_fixed = fixed
            query._between = growth
            while batches and query.plan():
                if last and rng.random() < 0.5:
                    break
                query.batch()
                batches -= 1
            _check(checkpoint, fixed, is_all=bool(batches) and not last)
            if rng.random() < 0.3:
                # a query that goes on, for a while
                query = _query(READERS[kind], growth, checkpoint, options, rng)
                query.batch()
        query = _query(READERS[kind], growth, checkpoint, options, rng, available_now=True)
        fixed = growth.count
        query._between = growth
        query.all()
        numbers = _check(checkpoint, fixed, is_all=True)
        begin = min(numbers, default=fixed)
        assert begin == 0 if start in ("earliest", "time") else first_count <= begin <= first_fixed


@pytest.mark.parametrize("available_now", [True, False])
@pytest.mark.parametrize("kind", READERS)
def test_a_start_that_is_not_pinned_does_not_move_within_a_run(
    tmp_path: Path, seed: int, kind: str, *, available_now: bool
) -> None:
    """With default options. Spark asks for it before it plans batch 0 and for its partitions:
    messages that come in between are not passed over."""
    growth = Growth(tmp_path / "store", random.Random(seed))
    checkpoint, before = Checkpoint(), growth.count
    query = Run(
        READERS[kind](growth.store, startingOffsets="latest"), checkpoint,
        available_now=available_now, looks_first=True, between=growth,
    )  # fmt: skip
    fixed = growth.count
    while available_now is False and not checkpoint.rows:
        query.batch()
    query.batch()
    numbers = [int(row["body"][:6]) for row in checkpoint.rows]
    first = min(numbers, default=fixed)
    assert before <= first <= fixed
    assert sorted(numbers) == list(range(first, first + len(numbers)))
    assert not available_now or first + len(numbers) == fixed


def _query(
    reader: Callable[..., Any], growth: Growth, checkpoint: Checkpoint, options: dict[str, Any],
    rng: random.Random, *, available_now: bool = False,
) -> Run:  # fmt: skip
    """A run whose start is asked for before the end is fixed, or after that."""
    growth()
    return Run(
        reader(growth.store, **options), checkpoint, available_now=available_now,
        looks_first=rng.random() < 0.5, between=growth if rng.random() < 0.5 else lambda: None,
    )  # fmt: skip


def _check(checkpoint: Checkpoint, fixed: int, *, is_all: bool) -> list[int]:
    """Assert that the messages read are all from the first one on, once, up to the fixed end;
    return their numbers."""
    assert [row["corruptReason"] for row in checkpoint.rows] == [None] * len(checkpoint.rows)
    numbers = sorted(int(row["body"][:6]) for row in checkpoint.rows)
    assert len(numbers) == len(set(numbers))
    assert max(numbers, default=-1) < fixed
    if is_all and numbers:
        assert numbers == list(range(numbers[0], fixed))
    return numbers


def test_a_topic_that_is_taken_out_keeps_its_offset(tmp_path: Path) -> None:
    """A restart without it reads the other one and loses nothing; taken again, it is read on from
    where it was, with what came meanwhile, and not from its start."""
    store = RewrittenStore(tmp_path / "store")

    def grow(*topics: str) -> None:
        for topic in topics:
            store.put(f"{topic}{len(store.bodies)}".encode(), topic=topic)
        store.write()

    def bodies(topics: str) -> list[bytes]:
        before = len(checkpoint.rows)
        options = {"topics": topics, "initialOffsetPath": tmp_path / "pin"}
        query = Run(READERS["queues"](store, **options), checkpoint, available_now=True)
        query.all()
        return [row["body"] for row in checkpoint.rows[before:]]

    checkpoint = Checkpoint()
    grow("A", "B", "A", "B")
    assert bodies("A,B") == [b"A0", b"B1", b"A2", b"B3"]
    grow("B", "A")
    assert bodies("A") == [b"A5"]
    grow("A")
    assert bodies("A") == [b"A6"]
    grow("B")
    assert sorted(bodies("A,B")) == [b"B4", b"B7"]
    assert bodies("B") == []
    grow("A", "B")
    assert sorted(bodies("A,B")) == [b"A8", b"B9"]
