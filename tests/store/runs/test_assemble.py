"""Partitions become one batch: whole, in the order of the log, whatever the order they came in.

Logs are random and sound, with several queues in turns; what each queue must get is decoded the
plain way.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from reput.store.log import record
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange
from reput.store.runs import scan
from reput.store.runs.dispatch import DispatchBatch, IndexEntries, Run, ScannedRange, Wanted
from reput.store.runs.scan import PackedChunk, assemble, runs_of
from tests.support.wire import PlainLog

Item = Run | BadRange | ScannedRange | IndexEntries
QUEUES = ((b"A", 0), (b"A", 1), (b"Another", 0), (b"B", 7))


@pytest.fixture
def plain(tmp_path: Path, seed: int) -> PlainLog:
    """120 messages in four queues; each has a key and a store time of its own."""
    log, rng = PlainLog(4096), random.Random(seed)
    following = dict.fromkeys(QUEUES, 0)
    for number in range(120):
        topic, queue_id = queue = rng.choice(QUEUES)
        log.append(
            topic=topic, queue_id=queue_id, queue_offset=following[queue],
            store_timestamp=1_700_000_000_000 + 37 * number, properties=b"KEYS\1k%d\2" % number,
        )  # fmt: skip
        following[queue] += 1
    log.write(tmp_path / "commitlog")
    return log


def items_of(log: CommitLog, start: int, end: int) -> list[Item]:
    """The items of one partition, as its rows bring them to the driver."""
    found: list[Item] = []
    for item in scan.scan(log, start, end, extras=Wanted(index=True)):
        if isinstance(item, PackedChunk):
            found += runs_of(item)
            found += [item.index_entries] if item.index_entries is not None else []
        else:
            found.append(item)
    return found


def parts_of(log: CommitLog, bounds: Sequence[int]) -> list[list[Item]]:
    """The items of the partitions between these offsets."""
    return [items_of(log, start, end) for start, end in pairwise(bounds)]


def units_by_queue(batch: DispatchBatch) -> dict[tuple[bytes, int], list[tuple[int, int]]]:
    """(queue offset, physical offset) of each unit, in the order in which it would be written."""
    return {
        queue: [
            (run.first_queue_offset + index, int(unit["offset"]))
            for run in runs
            for index, unit in enumerate(run.units)
        ]
        for queue, runs in batch.runs_by_queue().items()
    }


def check_whole(batch: DispatchBatch | None, plain: PlainLog) -> None:
    """Every queue and the index have what a plain decoder finds, in its order."""
    assert batch is not None
    expected: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
    times = []
    for start, end in plain.spans:
        found = record.decode(plain.bytes_at((start, end)), start, 1 << 40)
        assert isinstance(found, record.Record)
        units = expected.setdefault((found.topic, found.queue_id), [])
        units.append((found.queue_offset, start))
        times.append(found.store_timestamp)
    assert units_by_queue(batch) == expected
    entries = [offset for part in batch.index_entries for offset in part.offsets.tolist()]
    assert entries == [start for start, _ in plain.spans]
    assert (batch.start, batch.end) == (plain.start, plain.end)
    assert (batch.message_count, batch.last_record_offset) == (len(times), plain.spans[-1][0])
    assert batch.last_store_timestamp == times[-1]


def test_partitions_join_in_any_order(tmp_path: Path, plain: PlainLog, seed: int) -> None:
    """With many cuts, and rows that come as the tasks end."""
    rng, log = random.Random(seed), CommitLog([tmp_path / "commitlog"])
    for _ in range(40):
        starts = [start for start, _ in plain.spans[1:]]
        cuts = sorted(rng.sample(starts, rng.randrange(1, 12)))
        items = [item for part in parts_of(log, [0, *cuts, plain.end]) for item in part]
        rng.shuffle(items)
        check_whole(assemble(items), plain)


def test_a_part_without_a_record_leaves_the_last_one(tmp_path: Path, plain: PlainLog) -> None:
    """The last partition may hold a BLANK alone."""
    log = CommitLog([tmp_path / "commitlog"])
    last, end = max(span for span in plain.spans if span[1] < 4096)
    items = [item for part in parts_of(log, [0, end, 4096]) for item in part]
    batch = assemble(items)
    assert batch is not None
    assert (batch.end, batch.last_record_offset) == (4096, last)


def test_a_part_that_is_missing_or_came_twice_is_noticed(
    tmp_path: Path, plain: PlainLog, seed: int
) -> None:
    """Each partition of several, but for those at the ends, which the range itself decides."""
    rng, log = random.Random(seed), CommitLog([tmp_path / "commitlog"])
    cuts = sorted(rng.sample([start for start, _ in plain.spans[1:]], 4))
    parts = parts_of(log, [0, *cuts, plain.end])
    for index, part in enumerate(parts):
        others = [item for other in (*parts[:index], *parts[index + 1 :]) for item in other]
        if 0 < index < len(parts) - 1:
            assert assemble(others) is None
        assert assemble([*others, *part, *part]) is None
    assert assemble([]) is None


def test_a_cut_within_a_record_is_noticed(tmp_path: Path, plain: PlainLog, seed: int) -> None:
    """The partition before it ends beyond it; the last one, too."""
    rng, log = random.Random(seed), CommitLog([tmp_path / "commitlog"])
    start, end = rng.choice(plain.spans[5:-5])
    inside = rng.randrange(start + 1, end)
    assert assemble(items_of(log, 0, inside)) is None
    whole = [*items_of(log, 0, inside), *items_of(log, end, plain.end)]
    assert assemble(whole) is None
