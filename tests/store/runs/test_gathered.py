"""A scan gathers index keys, details and light queues as the plain rules do.

Logs are made of messages whose properties are drawn to hit the rules: missing, empty, repeated,
unequal and unusable lists, keys with spaces, inner batches, system topics. ``REPUT_TEST_SEED``
repeats a case; chunks are made small, so that every limit is met.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reput.store.index.indexfile import index_key_hash, index_keys
from reput.store.log import cursor, properties, record
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange
from reput.store.log.lightqueues import light_queues
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from reput.store.log.status import Status
from reput.store.log.sysflag import SysFlag
from reput.store.runs import scan
from reput.store.runs.dispatch import DispatchBatch, Wanted
from reput.workload.appender import Appender

BATCH_TOPICS = frozenset((b"Batch", b"Batch-of-8-bytes-and-more", b"b", b"Orders2"))
WANTED = Wanted(index=True, details=True, multi_dispatch=True, lmq=True, batch_topics=BATCH_TOPICS)
TOPICS = (
    b"Orders", b"%RETRY%group", b"rmq_sys_x", b"SCHEDULE_TOPIC_XXXX", "价格".encode(), b"a", b"b",
    b"Batch-of-8-bytes-and-more", b"Batch-of-8-bytes-or-more", b"Batc", b"Batch",
)  # fmt: skip
TAGS = (b"", b"TagA", b"a || b", "标签🙂".encode(), b"x" * 300)
NAMES = (b"%LMQ%one", b"%LMQ%two", b"plain", b"Orders", b"with/slash", b"", b"a")
NUMBERS = (b"0", b"7", b"12345678901", b"x", b"", b"+5")
KEYS = (b"", b"k", b"one two", b"  a  b ", "钥匙 two".encode(), b"polygenelubricants")


def drawn_properties(rng: random.Random) -> bytes:
    found: list[tuple[bytes, bytes]] = []
    if rng.random() < 0.8:
        found.append((properties.TAGS, rng.choice(TAGS)))
    if rng.random() < 0.7:
        found.append((properties.KEYS, rng.choice(KEYS)))
    if rng.random() < 0.7:
        found.append((properties.UNIQ_KEY, b"%032X" % rng.getrandbits(128)))
    if rng.random() < 0.2:
        found.append((properties.INNER_NUM, b"%d" % rng.randrange(100)))
        found.append((properties.INNER_BASE, b"%d" % rng.randrange(10**12)))
    if rng.random() < 0.6:
        count = rng.randrange(1, 5)
        usable = rng.random() < 0.8
        numbers = NUMBERS[:3] if usable else NUMBERS
        names = [rng.choice(NAMES) for _ in range(count)]
        offsets = [rng.choice(numbers) for _ in range(count if usable else rng.randrange(5))]
        found.append((properties.INNER_MULTI_DISPATCH, b",".join(names)))
        found.append((properties.INNER_MULTI_QUEUE_OFFSET, b",".join(offsets)))
    rng.shuffle(found)
    return b"".join(name + b"\x01" + value + b"\x02" for name, value in found)


def drawn_log(root: Path, rng: random.Random, count: int) -> CommitLog:
    kinds = (0, 0, 0, SysFlag.PREPARED, SysFlag.COMMIT, SysFlag.ROLLBACK)
    with Appender(root, file_size=64 << 10) as appender:
        for index in range(count):
            appender.append(
                Record(
                    topic=rng.choice(TOPICS),
                    queue_id=rng.randrange(3),
                    sys_flag=int(rng.choice(kinds)),
                    body=b"x" * rng.randrange(40),
                    properties=drawn_properties(rng),
                    store_timestamp=1_700_000_000_000 + index,
                )
            )
    return CommitLog([root / "commitlog"])


Unit = tuple[bytes, int, int, int, int, int, bool]
"""Topic, queue id, queue offset, physical offset, base offset, batch size, light."""


def plain_units(log: CommitLog, end: int) -> tuple[dict[tuple[bytes, int], list[Unit]], list[int]]:
    """By queue, in log order, as RocketMQ would offer them; and the unusable records."""
    queues: dict[tuple[bytes, int], list[Unit]] = {}
    unusable = []
    for found in cursor.records(log, 0, end):
        assert isinstance(found, Record)
        if not found.dispatched_to_queue:
            continue
        values, start = found.property_map, found.physical_offset
        base, size = found.queue_offset, 1
        if properties.INNER_NUM in values and properties.INNER_BASE in values:
            base, size = int(values[properties.INNER_BASE]), int(values[properties.INNER_NUM])
        own = (found.topic, found.queue_id)
        unit = (*own, found.queue_offset, start, base, size, False)
        queues.setdefault(own, []).append(unit)
        light = light_queues(found, True, BATCH_TOPICS)
        if light is None:
            unusable.append(start)
        for topic, queue_id, queue_offset in light or []:
            units = queues.setdefault((topic, queue_id), [])
            # offset + size <= maxPhysicOffset: the queue has this message already
            if not units or units[-1][3] != start:
                units.append((topic, queue_id, queue_offset, start, queue_offset, 1, True))
    return queues, unusable


def scanned_units(batch: DispatchBatch) -> dict[tuple[bytes, int], list[Unit]]:
    queues: dict[tuple[bytes, int], list[Unit]] = {}
    for run in batch.runs:
        assert run.details is not None
        offsets = run.queue_offsets
        if offsets is None:
            offsets = run.first_queue_offset + np.arange(len(run))
        for queue_offset, unit, detail in zip(offsets, run.units, run.details, strict=True):
            queues.setdefault((run.topic, run.queue_id), []).append(
                (
                    run.topic, run.queue_id, int(queue_offset), int(unit["offset"]),
                    int(detail["base_offset"]), int(detail["batch_size"]),
                    bool(detail["is_light"]),
                )
            )  # fmt: skip
    return queues


@pytest.mark.parametrize("index_tags", [False, True])
@pytest.mark.parametrize("chunk_records", [1 << 18, 50])
def test_a_scan_gathers_what_the_plain_rules_give(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    chunk_records: int,
    index_tags: bool,
) -> None:
    """In one chunk and in many; nothing is taken twice where a chunk is full."""
    monkeypatch.setattr(scan, "CHUNK_RECORDS", chunk_records)
    monkeypatch.setattr(scan, "MIN_LIST_ROOM", chunk_records)
    log = drawn_log(tmp_path, random.Random(seed), 600)
    end = LogTail(log).settled()
    batch = scan.scan_in_one_piece(
        log, 0, end,
        delay_levels_ms=record.DEFAULT_DELAY_LEVELS_MS, verify_crc=True,
        extras=replace(WANTED, index_tags=index_tags),
    )  # fmt: skip
    assert batch is not None
    queues, unusable = plain_units(log, end)
    assert scanned_units(batch) == queues
    assert unusable
    assert [bad.start for bad in batch.bad] == unusable
    assert {bad.status for bad in batch.bad} == {Status.BAD_MULTI_DISPATCH}
    found = [item for item in cursor.records(log, 0, end) if not isinstance(item, BadRange)]
    assert batch.message_count == len(found)
    timestamps = {item.physical_offset: item.store_timestamp for item in found}
    for run in batch.runs:
        assert run.details is not None
        for unit, detail in zip(run.units, run.details, strict=True):
            assert detail["store_timestamp"] == timestamps[int(unit["offset"])]
    assert list(index_entries(batch)) == [
        (item.physical_offset, index_key_hash(key), item.store_timestamp)
        for item in found
        if isinstance(item, Record)
        for key in index_keys(item, index_tags=index_tags)
    ]


def test_no_key_is_taken_twice_where_a_chunk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The record that no longer fits comes again in the next chunk; here units are what is full,
    which light queues would notice before."""
    monkeypatch.setattr(scan, "CHUNK_RECORDS", 50)
    monkeypatch.setattr(scan, "RECORDS_PER_RUN", 0)
    log = drawn_log(tmp_path, random.Random(seed), 400)
    end = LogTail(log).settled()
    batch = scan.scan_in_one_piece(
        log, 0, end,
        delay_levels_ms=record.DEFAULT_DELAY_LEVELS_MS, verify_crc=False, extras=Wanted(index=True),
    )  # fmt: skip
    assert batch is not None
    assert len(batch.index_entries) > 4
    assert list(index_entries(batch)) == [
        (item.physical_offset, index_key_hash(key), item.store_timestamp)
        for item in cursor.records(log, 0, end)
        if isinstance(item, Record)
        for key in index_keys(item)
    ]


def index_entries(batch: DispatchBatch) -> Iterator[tuple[int, int, int]]:
    for part in batch.index_entries:
        yield from zip(
            part.offsets.tolist(), part.hashes.tolist(), part.store_timestamps.tolist(), strict=True
        )


def test_what_is_wanted_as_a_text() -> None:
    """As the source's option, names of topics included."""
    for wanted in (Wanted(), WANTED, Wanted(lmq=True, batch_topics=frozenset(["价格".encode()]))):
        assert Wanted.from_text(wanted.to_text()) == wanted
    assert Wanted.from_text("{}") == Wanted()
    for text in ("", "index", "[]", '{"indexes": true}', '{"batch_topics": [1]}'):
        with pytest.raises(ValueError, match="must be the JSON"):
            Wanted.from_text(text)
