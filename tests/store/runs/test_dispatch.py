"""The values that cross from the source to the sinks."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from reput.store.queue.consumequeue import UNIT_DTYPE
from reput.store.runs.dispatch import DETAIL_DTYPE, DispatchBatch, DispatchCounts, Run, Wanted
from reput.store.runs.manifest import QueueManifest, WrittenFile
from reput.store.state.ledger import LedgerEntry

COUNT = 5


def run_of(*, is_whole: bool) -> Run:
    """Messages at 1000, 1100, ...; with all that a message may have besides its unit, or not."""
    units = np.zeros(COUNT, UNIT_DTYPE)
    units["offset"], units["size"] = 1000 + 100 * np.arange(COUNT), 90
    units["tags_code"] = np.arange(COUNT) + 7
    if not is_whole:
        return Run(b"T", 3, 1000, 40, None, units, 55)
    details = np.zeros(COUNT, DETAIL_DTYPE)
    details["store_timestamp"] = np.arange(COUNT) + 500
    maps = np.arange(2 * COUNT, dtype=np.uint8).reshape(COUNT, 2)
    return Run(b"T", 3, 1000, 40, np.array([40, 42, 43, 50, 9]), units, 55, details, maps)


def messages_of(run: Run) -> list[tuple[object, ...]]:
    """Queue offset, unit, details and bit map of each."""
    return [
        (
            run.first_queue_offset + at if run.queue_offsets is None else run.queue_offsets[at],
            run.units[at].item(),
            None if run.details is None else run.details[at].item(),
            None if run.bit_maps is None else run.bit_maps[at].tobytes(),
        )
        for at in range(len(run))
    ]


def test_a_run_since_an_offset_has_the_messages_from_there_on() -> None:
    """Each with all that it has; an offset within a message does not take it along."""
    for is_whole in (True, False):
        run = run_of(is_whole=is_whole)
        every = messages_of(run)
        for offset in (0, 1000, 1001, 1100, 1250, 1400, 1401, 5000):
            left = [each for each in every if each[1][0] >= offset]  # type: ignore[index]
            since = run.since(offset)
            assert (since is None) == (not left), offset
            if since is None:
                continue
            assert messages_of(since) == left, offset
            first = left[0]
            assert since.first_queue_offset == first[0]
            assert since.first_physical_offset == first[1][0]  # type: ignore[index]
            assert (since.topic, since.queue_id, since.last_store_timestamp) == (b"T", 3, 55)


def test_counts_add_up_in_every_field() -> None:
    """Each by itself, and beside the others."""
    names = [field.name for field in fields(DispatchCounts)]
    first = DispatchCounts(*range(1, len(names) + 1))
    second = DispatchCounts(*(10 * number for number in range(1, len(names) + 1)))
    first.add(second)
    assert [getattr(first, name) for name in names] == [11 * n for n in range(1, len(names) + 1)]
    assert [getattr(second, name) for name in names] == [10 * n for n in range(1, len(names) + 1)]


def manifest_of(topic: bytes, first: int, end: int, timestamp: int) -> QueueManifest:
    """The manifest of a queue with every kind of content."""
    entry = LedgerEntry(first, first + 90, "queue_offset_gap", "T", 3, 9, "detail")
    counts = DispatchCounts(1, 2, 3, 4, 5, 6)
    files = (WrittenFile("consumequeue/T/3/0", 100, 60, 5), WrittenFile("x", 1, 0, 0))
    return QueueManifest(topic, 3, "/attempt", 7, first, end, timestamp, counts, (entry,), files)


def test_a_manifest_is_read_back() -> None:
    """Its topic may have any bytes, and its queue no unit."""
    for topic in (b"T", "订单".encode(), bytes(range(256)), b""):
        manifest = manifest_of(topic, 100, 900, 1 << 41)
        for each in (manifest, replace(manifest, files=(), ledger=(), counts=DispatchCounts())):
            assert QueueManifest.from_text(each.to_text()) == each


def test_the_last_message_of_queues_of_executors_gives_the_time() -> None:
    """It need not be of the queue that begins last, nor be the one that was stored last."""
    queues = [
        manifest_of(b"A", 0, 500, 30),
        manifest_of(b"B", 100, 900, 20),
        manifest_of(b"C", 200, 800, 40),
    ]
    batch = DispatchBatch(0, 900, (), (), 9, 800, queues=queues)
    assert batch.last_store_timestamp == 20
    assert replace(batch, queues=()).last_store_timestamp == 0


def test_batch_topics_ask_for_details() -> None:
    """As long as there are some; what else asks for them stays."""
    topics = frozenset({b"B"})
    plain, detailed = Wanted(index=True), Wanted(details=True)
    assert plain.with_batch_topics(topics) == Wanted(index=True, details=True, batch_topics=topics)
    assert plain.with_batch_topics(frozenset()) == plain
    assert detailed.with_batch_topics(topics).with_batch_topics(frozenset()) == detailed
