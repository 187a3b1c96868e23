"""Rows by the kernels equal rows made one by one with the plain decoder.

Axes: RocketMQ's own logs, odd and damaged ones; any range, projection, window and batch size; body
CRCs checked or not; bodies inflated or not; the records of queue units in any order. A failure
prints the seed and the case: ``REPUT_TEST_SEED`` repeats it.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from reput.store.errors import CommitLogDataLossError, CorruptRecordError
from reput.store.log import cursor
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window
from reput.store.log.logtail import LogTail
from reput.store.log.record import DEFAULT_DELAY_LEVELS_MS
from reput.store.log.sysflag import SysFlag
from reput.store.queue.consumequeue import UNIT_DTYPE
from reput.store.rows import rowcolumns, rows
from reput.store.rows.rowschema import ROWS_SCHEMA, rows_schema
from tests.support import wire
from tests.support.damage import damage
from tests.support.golden import GOLDEN_CASES, GOLDEN_NAMES
from tests.support.plain_rows import as_table, inflated, plain_rows, plain_rows_at
from tests.support.small_logs import Damage, SmallLogs, none, random_log, randomize


def read(
    log: CommitLog,
    start: int,
    end: int,
    schema: pa.Schema = ROWS_SCHEMA,
    *,
    max_inflated_bytes: int | None = None,
    fail_on_corrupt: bool = False,
    fail_on_data_loss: bool = False,
    verify_crc: bool = False,
) -> pa.Table:
    """``read_rows`` as one table, every value checked by Arrow."""
    batches = rows.read_rows(
        log, start, end, schema, delay_levels_ms=DEFAULT_DELAY_LEVELS_MS,
        fail_on_corrupt=fail_on_corrupt, max_inflated_bytes=max_inflated_bytes,
        verify_crc=verify_crc, fail_on_data_loss=fail_on_data_loss,
    )  # fmt: skip
    table = pa.Table.from_batches(batches, schema)
    table.validate(full=True)
    return table


def read_at(
    log: CommitLog, units: list[tuple[int, int]], schema: pa.Schema = ROWS_SCHEMA, **options: bool
) -> pa.Table:
    """``rows_at`` as one table."""
    offsets = np.array([offset for offset, _ in units], np.int64)
    sizes = np.array([size for _, size in units], np.int32)
    batches = rows.rows_at(
        log, offsets, sizes, schema, delay_levels_ms=DEFAULT_DELAY_LEVELS_MS, **options
    )
    table = pa.Table.from_batches(batches, schema)
    table.validate(full=True)
    return table


def assert_equal(found: pa.Table, expected: pa.Table, place: object) -> None:
    """Every column, type and null; the first row that differs is shown."""
    if found.equals(expected):
        return
    assert found.schema == expected.schema, place
    for left, right in zip(found.to_pylist(), expected.to_pylist(), strict=False):
        assert left == right, place
    assert found.num_rows == expected.num_rows, place
    raise AssertionError(f"equal but for what Python cannot tell: {place}")


def limit(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and batches of any size, down to those that hold less than a record."""
    size = rng.choice((36, 64, 100, 333, 1000, 1 << 20))
    monkeypatch.setattr(cursor, "Window", lambda log, _=0: Window(log, size))
    monkeypatch.setattr(rows, "BUFFER_SIZE", size)
    monkeypatch.setattr(rows, "GAP_BYTES", rng.choice((0, 1, 100, 1 << 14)))
    monkeypatch.setattr(rows, "ROWS_PER_BATCH", rng.choice((1, 2, 7, 1 << 15)))
    monkeypatch.setattr(rowcolumns, "BYTES_PER_BATCH", rng.choice((1, 100, 2000, 1 << 24)))


def projection(rng: random.Random) -> pa.Schema:
    """All columns, or some in any order."""
    if rng.random() < 0.3:
        return ROWS_SCHEMA
    return pa.schema(rng.sample(list(ROWS_SCHEMA), rng.randrange(1, len(ROWS_SCHEMA))))


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[SmallLogs]:
    with closing(SmallLogs(tmp_path)) as made:
        yield made


@pytest.mark.parametrize("harm", [none, damage, randomize])
def test_rows_are_the_plain_decoders(
    logs: SmallLogs, monkeypatch: pytest.MonkeyPatch, seed: int, harm: Damage
) -> None:
    """Small logs, whole and in part, some columns or all."""
    met: Counter[str | None] = Counter()
    for case in range(120):
        rng = random.Random(f"{seed}:{case}")
        plain = random_log(rng)
        harm(rng, plain)
        log = logs.log_of(plain.image, plain.start)
        limit(rng, monkeypatch)
        whole = (plain.start, plain.start + len(plain.image))
        part = sorted(rng.choices([span[0] for span in plain.spans], k=2))
        start, end = rng.choice((whole, whole, (part[0], max(part[1], part[0] + 1))))
        verify_crc, schema = rng.random() < 0.5, projection(rng)
        expected = list(plain_rows(log, start, end, verify_crc=verify_crc, fail_on_data_loss=False))
        found = read(log, start, end, schema, verify_crc=verify_crc)
        place = f"seed={seed} case={case} start={start} end={end} {schema.names}"
        assert_equal(found, as_table(expected, schema), place)
        met.update(row["corruptReason"] for row in expected)
    # sound bytes may still hold DELAY or INNER_NUM that is no number, and end in zeros
    assert (met.keys() <= {None, "bad_property", "zero_hole"}) is (harm is none)
    assert len(met) >= (3 if harm is none else 5), met


def odd_units(rng: random.Random, plain: wire.PlainLog) -> list[tuple[int, int]]:
    """Units of a log in any order, some twice, some that point anywhere."""
    units = [(start, end - start) for start, end in plain.spans]
    units += rng.choices(units, k=3)
    end = plain.start + len(plain.image)
    for _ in range(rng.choice((0, 0, 3))):
        offset, size = rng.choice(units)
        units.append(
            rng.choice(
                (
                    (offset, min(max(size, 1) + rng.choice((-1, 1, 50)), 2147483647)),
                    (offset + rng.choice((-1, 1)), size),
                    (rng.randrange(plain.start, end), rng.randrange(91, 400)),
                    (rng.choice((-1, -(1 << 62), plain.start - 1, end, 1 << 62)), size),
                    (offset, rng.choice((0, -1, 90, 2147483647, -2147483648, (64 << 20) + 1))),
                )
            )
        )
    shuffled = rng.choice((sorted, lambda given: rng.sample(given, len(given))))
    return list(shuffled(units))


@pytest.mark.parametrize("harm", [none, damage])
def test_rows_of_units_are_the_plain_decoders(
    logs: SmallLogs, monkeypatch: pytest.MonkeyPatch, seed: int, harm: Damage
) -> None:
    """As many rows as units, in their order, whatever they point to."""
    met: Counter[str | None] = Counter()
    for case in range(120):
        rng = random.Random(f"{seed}:{case}")
        plain = random_log(rng)
        harm(rng, plain)
        log = logs.log_of(plain.image, plain.start)
        limit(rng, monkeypatch)
        units, schema = odd_units(rng, plain), projection(rng)
        verify_crc = rng.random() < 0.5
        expected = list(plain_rows_at(log, units, verify_crc=verify_crc))
        found = read_at(log, units, schema, verify_crc=verify_crc)
        assert_equal(found, as_table(expected, schema), f"seed={seed} case={case} {schema.names}")
        met.update(row["corruptReason"] for row in expected)
    assert {None, "bad_size", "segment_deleted", "bad_magic", "zero_hole"} <= met.keys()


def test_units_after_a_cut_file_are_holes(tmp_path: Path) -> None:
    """Only the records that a copy still under way lacks are reported as missing."""
    plain = wire.PlainLog(4096)
    for index in range(20):
        plain.append(body=bytes([65 + index]) * 20, properties=b"TAGS\x01a\x02")
    log = CommitLog([plain.write(tmp_path)])
    units = [(start, end - start) for start, end in plain.spans]
    cut = plain.spans[12][1] - 3
    with log.segments.listed[0].path.open("r+b") as file:
        file.truncate(cut)
    reasons = read_at(log, units).column("corruptReason").to_pylist()
    assert reasons == [None] * 12 + ["zero_hole"] * 8


def settled(store: Path) -> tuple[CommitLog, int]:
    """The log of a golden store and its end."""
    log = CommitLog([store / "commitlog"])
    return log, LogTail(log).settled()


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_rows_of_rocketmqs_logs(name: str, golden: Callable[[str], Path]) -> None:
    """Every column of every record; bodies as stored and inflated."""
    log, end = settled(golden(name))
    expected = as_table(plain_rows(log, log.min_offset, end, verify_crc=True), ROWS_SCHEMA)
    assert expected.num_rows > 100
    assert_equal(read(log, log.min_offset, end, verify_crc=True), expected, name)
    expected = as_table(plain_rows(log, log.min_offset, end, inflated), ROWS_SCHEMA)
    found = read(log, log.min_offset, end, max_inflated_bytes=1 << 20)
    assert_equal(found, expected, name)
    compressed = SysFlag.COMPRESSED & max(found.column("sysFlag").to_pylist())
    assert found.column("bodyCompression").null_count == found.num_rows or not compressed
    log.close()


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_rows_of_rocketmqs_queues(name: str, golden: Callable[[str], Path]) -> None:
    """A unit's record has the queue, the position and the tagsCode under which RocketMQ put it."""
    store = golden(name)
    log, _ = settled(store)
    schema = pa.schema(
        [ROWS_SCHEMA.field(column) for column in ("topic", "queueId", "tagsCode", "corruptReason")]
    )
    checked = 0
    for queue in sorted((store / "consumequeue").glob("*/*")):
        data = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
        units = np.frombuffer(data, UNIT_DTYPE)
        units = units[(units["size"] > 0) & (units["size"] < 2147483647)]
        units = units[units["offset"] >= log.min_offset]
        found = read_at(
            log, list(zip(units["offset"].tolist(), units["size"].tolist(), strict=True)), schema
        )
        assert found.column("corruptReason").null_count == len(units)
        assert found.column("topic").to_pylist() == [queue.parent.name] * len(units)
        assert found.column("queueId").to_pylist() == [int(queue.name)] * len(units)
        assert found.column("tagsCode").to_pylist() == units["tags_code"].tolist()
        checked += len(units)
    assert checked > 400
    log.close()


def test_odd_texts_among_plain_ones(tmp_path: Path) -> None:
    """Repeated, many and malformed properties, hosts at their bounds: each row its own."""
    plain = wire.PlainLog(1 << 16)
    many = b"".join(b"%d\x01v%d\x02" % (index, index) for index in range(100))
    blocks = (
        b"", b"a\x01b\x02", b"a\x01b", b"\x01b\x02a\x01\x02", b"x\x02a\x01b\x01c\x02\x02", many,
        b"TAGS\x01one\x02KEYS\x01k\x02TAGS\x01two\x02", b"a\x01\xff\x02b\x01c\x02",
        b"\xfe\x01a\x02\xff\x01b\x02", "TAGS\x01标签😀\x02".encode(), "a\x01\ufffd\x02".encode(),
        b"TAGS\x01\xed\xa0\x80\x02", b"TAGS\x01\xf0\x9f", many + b"7\x01last\x02",
        b"a\x01b\x02" * 40,
    )  # fmt: skip
    hosts = (
        wire.LOCALHOST, bytes(8), b"\xff" * 8,
        bytes((10, 0, 200, 99)) + struct.pack(">i", -1 << 31),
        bytes(15) + b"\1" + struct.pack(">i", 65535), b"\x20\1" + bytes(18),
        bytes(10) + b"\xff\xff\1\2\3\4" + struct.pack(">i", -5),
    )  # fmt: skip
    times = (0, -1, 253402300799999, 253402300800000, -62135596800000, -62135596800001, 1 << 62)
    for index in range(len(blocks) * len(hosts)):
        plain.append(
            topic=(b"Topic", b"\xc3", b"\xa9", b"", b"t" * 200)[index % 5],
            properties=blocks[index % len(blocks)],
            born_host=hosts[index % len(hosts)],
            store_host=hosts[index // 2 % len(hosts)],
            born_timestamp=times[index % len(times)],
            store_timestamp=times[index // 3 % len(times)],
            reconsume_times=-index,
            prepared_transaction_offset=index << 40,
        )
    log = CommitLog([plain.write(tmp_path)])
    expected = as_table(plain_rows(log, 0, plain.end), ROWS_SCHEMA)
    assert expected.column("bornTimestamp").null_count > 0
    assert_equal(read(log, 0, plain.end), expected, "odd texts")


def test_large_inflated_bodies_come_in_several_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has no more than its bytes and one message; what does not inflate stays."""
    plain = wire.PlainLog(1 << 16)
    bodies: list[bytes] = []
    for index in range(60):
        body = bytes([index]) * (1000 + index)
        codec = index % 4
        stored = (
            zlib.compress(body), pa.compress(body, "zstd", asbytes=True), body,
            zlib.compress(body)[:-3],
        )[codec]  # fmt: skip
        bodies.append(stored if codec == 3 else body)
        plain.append(body=stored, sys_flag=(0x301, 0x201, 0, 0x1)[codec])
    log = CommitLog([plain.write(tmp_path)])
    monkeypatch.setattr(rowcolumns, "BYTES_PER_BATCH", 5000)
    batches = list(
        rows.read_rows(
            log, 0, plain.end, ROWS_SCHEMA, delay_levels_ms=DEFAULT_DELAY_LEVELS_MS,
            fail_on_corrupt=True, max_inflated_bytes=2000,
        )
    )  # fmt: skip
    table = pa.Table.from_batches(batches)
    assert table.column("body").to_pylist() == bodies
    left = [None, None, None, "zlib"] * 15
    assert table.column("bodyCompression").to_pylist() == left
    assert table.column("physicalOffset").to_pylist() == [start for start, _ in plain.spans]
    sizes = [sum(map(len, batch.column("body").to_pylist())) for batch in batches]
    assert len(sizes) > 5
    assert max(sizes) < 5000 + 4 * 1100
    only = read(
        log,
        0,
        plain.end,
        pa.schema([ROWS_SCHEMA.field("bodyCompression")]),
        max_inflated_bytes=2000,
    )
    assert only.column(0).to_pylist() == left
    capped = read(log, 0, plain.end, max_inflated_bytes=1020).column("bodyCompression")
    assert capped.to_pylist()[::4] == [None] * 6 + ["zlib"] * 9


def test_damage_and_loss_stop_a_read_that_asks_for_it(
    golden: Callable[[str], Path],
) -> None:
    """With the position; rows before it were given."""
    store = golden("plain")
    log, end = settled(store)
    units = read(log, log.min_offset, end, rows_schema(include_body=False))
    victim = units.column("physicalOffset")[700].as_py()
    segment = log.segments.at(victim)
    assert segment is not None
    with segment.path.open("r+b") as file:
        file.seek(victim - segment.start + 4)
        file.write(bytes(4))
    with pytest.raises(CorruptRecordError, match=f"physical offset {victim}"):
        read(log, log.min_offset, end, fail_on_corrupt=True)
    log.segments.listed[1].path.unlink()
    log = CommitLog([store / "commitlog"])
    with pytest.raises(CommitLogDataLossError, match="SEGMENT_DELETED"):
        read(log, 0, end, fail_on_data_loss=True)
    reasons = Counter(read(log, 0, end).column("corruptReason").to_pylist())
    assert reasons["segment_deleted"] == 1
