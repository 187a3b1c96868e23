"""The kernels equal the plain decoder: a fast path skips work, it has no answers of its own.

Axes: sound, damaged and random logs; body CRCs checked or not; any window and chunk size; any
range. Compared: every message (topic, queue, queue offset, unit bytes), run columns, every bad
range, counts. Not compared: how records are split into chunks. A failure prints the seed and the
case: ``REPUT_TEST_SEED`` repeats it.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.store.log import cursor, java, kernels, record
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange, Window
from reput.store.log.kernelbase import CRC_TABLES, crc32
from reput.store.log.record import Record
from reput.store.log.status import Status
from reput.store.runs import scan
from reput.store.runs.dispatch import Run, ScannedRange
from tests.store.log.test_record import PROPERTY_CASES
from tests.support import wire
from tests.support.damage import damage
from tests.support.golden import GOLDEN_NAMES
from tests.support.small_logs import (
    FILE_SIZE,
    FILES,
    Damage,
    SmallLogs,
    none,
    random_log,
    randomize,
)

LEVELS = record.DEFAULT_DELAY_LEVELS_MS

Message = tuple[bytes, int, int, bytes]
"""Topic, queue id, queue offset, the 20 bytes of its unit."""


def plain_message(found: Record) -> Message:
    code = record.tags_code(found, LEVELS)
    unit = wire.UNIT.pack(found.physical_offset, found.total_size, code)
    return found.topic, found.queue_id, found.queue_offset, unit


def plainly(
    log: CommitLog, start: int, end: int, verify_crc: bool
) -> tuple[list[Message], list[BadRange], int, int]:
    """Messages, bad ranges, record count and last record's offset, from the plain decoder."""
    messages, bad, count, last = [], [], 0, -1
    for found in cursor.records(log, start, end, verify_crc=verify_crc, fail_on_data_loss=False):
        if isinstance(found, BadRange):
            bad.append(found)
            continue
        count, last = count + 1, found.physical_offset
        if found.dispatched_to_queue:
            messages.append(plain_message(found))
    return messages, bad, count, last


def run_messages(run: Run) -> Iterator[Message]:
    queue_offsets = run.queue_offsets
    if queue_offsets is None:
        queue_offsets = run.first_queue_offset + np.arange(len(run))
    else:
        # worth sending only where they do not count up by one
        assert (np.diff(queue_offsets) != 1).any()
    assert len(queue_offsets) == len(run)
    for queue_offset, unit in zip(queue_offsets, run.units, strict=True):
        yield run.topic, run.queue_id, int(queue_offset), unit.tobytes()


def by_kernels(
    log: CommitLog, start: int, end: int, verify_crc: bool
) -> tuple[list[Message], list[BadRange], int, int]:
    """The same, from the kernels; what a run says of itself is checked on the way."""
    messages: list[Message] = []
    bad, ranges = [], []
    for item in scan.scan(log, start, end, verify_crc=verify_crc, fail_on_data_loss=False):
        if isinstance(item, BadRange):
            bad.append(item)
        elif isinstance(item, ScannedRange):
            ranges.append(item)
        else:
            chunk = [list(run_messages(run)) for run in scan.runs_of(item)]
            identities = [(run.topic, run.queue_id) for run in scan.runs_of(item)]
            assert len(set(identities)) == len(identities)
            for run, found in zip(scan.runs_of(item), chunk, strict=True):
                offsets = [wire.UNIT.unpack(unit)[0] for _, _, _, unit in found]
                assert offsets == sorted(offsets)
                assert run.first_physical_offset == offsets[0]
                assert run.first_queue_offset == found[0][2]
                stored = log.read(offsets[-1], 91)
                born = 20 if stored[39] & 0x10 else 8
                assert run.last_store_timestamp == int.from_bytes(
                    stored[48 + born : 56 + born], "big", signed=True
                )
            messages.extend(message for found in chunk for message in found)
    assert len(ranges) == 1
    assert (ranges[0].start, ranges[0].planned_end) == (start, end)
    assert ranges[0].end >= end
    messages.sort(key=lambda message: wire.UNIT.unpack(message[3])[0])
    return messages, bad, ranges[0].message_count, ranges[0].last_record_offset


class Arena(SmallLogs):
    """Logs, and the sizes with which they are scanned."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(directory)
        self._monkeypatch = monkeypatch

    def limit(self, rng: random.Random) -> None:
        """Windows and chunks of any size, down to those that hold less than a record."""
        size = rng.choice((36, 64, 100, 333, 1000, 1 << 20))
        self._monkeypatch.setattr(cursor, "Window", lambda log, _=0: Window(log, size))
        self._monkeypatch.setattr(scan, "CHUNK_RECORDS", rng.choice((1, 2, 3, 7, 1 << 18)))
        self._monkeypatch.setattr(scan, "CHUNK_RUNS", rng.choice((1, 2, 3, 1 << 10)))
        self._monkeypatch.setattr(scan, "_ARENA_BYTES", rng.choice((260, 300, 1000)))
        self._monkeypatch.setattr(scan, "MAX_CHUNK_RECORDS", rng.choice((1, 5, 50, 1 << 21)))
        self._monkeypatch.setattr(scan, "RECORDS_PER_RUN", rng.choice((1, 4, 64)))


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    with closing(Arena(tmp_path, monkeypatch)) as made:
        yield made


def check_case(arena: Arena, seed: int, case: int, harm: Damage) -> list[Status]:
    """Compare both answers for one log; what was wrong with it."""
    rng = random.Random(f"{seed}:{case}")
    plain = random_log(rng)
    harm(rng, plain)
    log = arena.log_of(plain.image, plain.start)
    arena.limit(rng)
    whole = (plain.start, plain.start + len(plain.image))
    part = sorted(rng.choices([span[0] for span in plain.spans], k=2))
    start, end = rng.choice((whole, whole, (part[0], max(part[1], part[0] + 1))))
    verify_crc = rng.random() < 0.5
    place = f"seed={seed} case={case} start={start} end={end} verify_crc={verify_crc}"
    expected = plainly(log, start, end, verify_crc)
    found = by_kernels(log, start, end, verify_crc)
    assert found[1:] == expected[1:], place
    assert found[0] == expected[0], place
    return [bad.status for bad in expected[1]]


@pytest.mark.parametrize("harm", [none, damage, randomize])
def test_a_scan_gives_what_the_plain_decoder_gives(arena: Arena, seed: int, harm: Damage) -> None:
    """Messages, units and bad ranges of small logs, whole and in part."""
    met = Counter(status for case in range(250) for status in check_case(arena, seed, case, harm))
    # sound bytes may still hold DELAY or INNER_NUM that is no number, and end in zeros
    undamaged = {Status.BAD_PROPERTY, Status.ZERO_HOLE}
    assert (met.keys() <= undamaged) is (harm is none)
    assert len(met) >= (2 if harm is none else 5), met


def test_numbers_in_properties_are_read_as_the_plain_decoder_reads_them(arena: Arena) -> None:
    """RocketMQ refuses some of them."""
    plain = wire.PlainLog(FILE_SIZE)
    for topic, block, _ in PROPERTY_CASES:
        plain.append(topic=topic, properties=block)
    log = arena.log_of(plain.image, 0)
    expected = plainly(log, 0, plain.end, True)
    assert {bad.status for bad in expected[1]} == {Status.BAD_PROPERTY}
    assert by_kernels(log, 0, plain.end, True) == expected


def test_an_empty_body_has_no_crc(arena: Arena) -> None:
    """RocketMQ dispatches such a record whatever CRC it states."""
    plain = wire.PlainLog(FILE_SIZE)
    offset = plain.append(topic=b"T", body=b"")
    plain.image[offset + 8 : offset + 12] = b"crc!"
    log = arena.log_of(plain.image, 0)
    messages, bad, *_ = by_kernels(log, 0, plain.end, verify_crc=True)
    assert [wire.UNIT.unpack(unit)[0] for *_, unit in messages] == [offset]
    assert bad == []


@pytest.mark.parametrize("harm", [none, damage, randomize])
def test_a_walk_is_the_same_with_and_without_kernels(seed: int, harm: Damage) -> None:
    """From a record's start or any byte, up to each kind of bound."""
    met: Counter[Status] = Counter()
    for case in range(300):
        rng = random.Random(f"{seed}:{case}")
        plain = random_log(rng)
        harm(rng, plain)
        buf, spans = np.frombuffer(plain.image, np.uint8), plain.spans
        position = rng.choice((rng.choice(spans)[0] - plain.start, rng.randrange(len(buf))))
        base = plain.start + (position // FILE_SIZE) * FILE_SIZE
        data = buf[base - plain.start :][: rng.choice((FILE_SIZE, rng.randrange(FILE_SIZE + 1)))]
        arguments = (
            data, len(data), base, base + FILE_SIZE, plain.start + position - base,
            base + rng.choice((FILE_SIZE, rng.randrange(FILE_SIZE))), rng.choice((0, 1, 5, 1000)),
            rng.choice((1 << 62, rng.randrange(1 << 41))),
        )  # fmt: skip
        found = record.hop_records(*arguments)
        assert found == kernels.hop_records(*arguments), f"{seed=} {case=}"
        met[Status(found[0])] += 1
    assert len(met) >= (3 if harm is none else 5), met


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_scan_gives_what_the_plain_decoder_gives_at_length(arena: Arena, seed: int) -> None:
    """The same for 40,000 damaged and 10,000 random logs."""
    met: set[Status] = set()
    for case in range(40_000):
        met.update(check_case(arena, seed, case, damage))
    for case in range(10_000):
        met.update(check_case(arena, seed, case, randomize))
    # no scan of these starts in the last bytes of a file, so that none meets BAD_FILE_END
    assert met >= {*Status} - {
        Status.OK, Status.NEED_MORE, Status.BLANK, Status.EMPTY, Status.FULL,
        Status.SEGMENT_DELETED, Status.BAD_FILE_END,
    }  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_scan_of_golden_logs_gives_what_the_plain_decoder_gives(
    name: str, golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's own logs, in chunks of 100 records."""
    monkeypatch.setattr(scan, "CHUNK_RECORDS", 100)
    log = CommitLog([golden(name) / "commitlog"])
    end = log.segments.end
    expected = plainly(log, 0, end, True)
    assert len(expected[0]) > 400
    assert by_kernels(log, 0, end, True) == expected
    log.close()


NO_BOUNDS = (cursor.NO_LIMIT,) * 3


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def plain_hop(
    data: bytes, base: int, file_end: int, pos: int, stop: int, most: int, max_timestamp: int
) -> tuple[int, int, int, int]:
    """``kernels.hop_records`` by the plain decoder."""
    count, last = 0, -1
    while True:
        if count >= most or base + pos >= stop:
            return Status.OK, pos, count, last
        found = record.decode(data[pos:], base + pos, file_end)
        if not isinstance(found, Record) and found.status is not Status.BAD_PROPERTY:
            return found.status, pos, count, last
        size = int.from_bytes(data[pos : pos + 4], "big")
        born = 20 if data[pos + 39] & 0x10 else 8
        stored = int.from_bytes(data[pos + 48 + born : pos + 56 + born], "big", signed=True)
        if base + pos + size > stop or stored > max_timestamp:
            return Status.OK, pos, count, last
        last, pos, count = pos, pos + size, count + 1


def plain_find(data: bytes, base: int, file_end: int, pos: int) -> tuple[int, int]:
    """``kernels.find_record`` by the plain decoder: all positions are tried."""
    while pos + 8 <= len(data):
        found = record.decode(data[pos:], base + pos, file_end)
        if isinstance(found, Record) or found.status is Status.BAD_PROPERTY:
            return Status.OK, pos
        if found.status in (Status.BLANK, Status.NEED_MORE):
            return found.status, pos
        pos += 1
    return Status.NEED_MORE, pos


def edge_records() -> Iterator[bytes]:
    """Records at offset 0 with one length field at every value near its own, sizes included."""
    six = bytes(16) + b"\0\0\0\1"
    for topic, born in ((b"Topic", wire.LOCALHOST), (b"t" * 128, wire.LOCALHOST), (b"T", six)):
        data = wire.message(
            0, topic=topic, born_host=born, body=b"0123456789", properties=b"a\1b\2"
        )
        body_at = 68 + len(born) + 8
        topic_at = body_at + 4 + 10
        for at, width in ((0, 4), (body_at, 4), (topic_at, 1), (topic_at, 2), (len(data) - 6, 2)):
            old = int.from_bytes(data[at : at + width], "big")
            for value in (*range(old - 140, old + 140), -1, 0, (1 << 8 * width) - 1):
                changed = (value % (1 << 8 * width)).to_bytes(width, "big")
                yield data[:at] + changed + data[at + width :]
    # a topic length of -2 with which everything would add up (``test_record``)
    data = wire.message(0, body=b"0123\0", topic=b"", properties=bytes(252))
    yield data[:93] + b"\xfe" + bytes(254)


def test_frames_are_the_plain_decoders_at_every_edge() -> None:
    """Each length field near its own value, the file ending near the record's end."""
    statuses = set()
    for data in edge_records():
        for room in (0, 7, 8, 9, 100):
            file_end = len(data) + room
            padded = data + bytes(room)
            found = kernels.hop_records(as_array(padded), len(padded), 0, file_end, 0, *NO_BOUNDS)
            assert found == plain_hop(padded, 0, file_end, 0, *NO_BOUNDS), (data, room)
            statuses.add(found[0])
    assert {Status.BAD_SIZE, Status.BAD_LENGTH} < statuses


def test_walks_and_searches_are_the_plain_decoders(seed: int) -> None:
    """hop_records and find_record on damaged files, cut anywhere, with all bounds."""
    reached = set()
    for case in range(300):
        rng = random.Random(f"{seed}:{case}")
        plain = random_log(rng)
        damage(rng, plain)
        base = plain.start + FILE_SIZE * rng.randrange(FILES)
        data = bytes(plain.image[base - plain.start :][: rng.choice((FILE_SIZE, 700, 1500))])
        spans = [span[0] for span in plain.spans if base <= span[0] < base + len(data)]
        pos = rng.choice(spans or [base]) - base
        bounds = (
            rng.choice((cursor.NO_LIMIT, base + rng.randrange(FILE_SIZE))),
            rng.choice((cursor.NO_LIMIT, rng.randrange(6))),
            rng.choice((cursor.NO_LIMIT, rng.randrange(1 << 42))),
        )
        file_end = base + FILE_SIZE
        expected = plain_hop(data, base, file_end, pos, *bounds)
        reached.add(expected[0])
        hop = kernels.hop_records(as_array(data), len(data), base, file_end, pos, *bounds)
        assert hop == expected, f"seed={seed} case={case}"
        at = rng.randrange(len(data))
        assert kernels.find_record(as_array(data), len(data), base, file_end, at) == plain_find(
            data, base, file_end, at
        ), f"seed={seed} case={case}"
    assert {Status.OK, Status.NEED_MORE, Status.BLANK, Status.EMPTY} < reached


text_bytes = st.lists(
    st.sampled_from(
        [
            bytes([value])
            for value in bytes.fromhex("41 7f 80 8f 90 9f a0 bf c0 c2 df e0 e1 ed ef f0")
        ]
        + [b"\xf4", b"\xf5", b"\xff", "é订🙂".encode()]
    ),
    max_size=12,
).map(b"".join)
number_bytes = st.from_regex(rb"\A[+-]?[0-9 x]{0,42}\Z") | st.integers(-(1 << 65), 1 << 65).map(
    lambda value: str(value).encode()
)


@given(text_bytes | st.binary(max_size=20), st.binary(max_size=5))
@settings(max_examples=400, deadline=None)
def test_the_hash_kernel_is_javas_hash(text: bytes, around: bytes) -> None:
    """On any bytes, wherever they stand in a buffer (``test_java`` holds Java to the JDK)."""
    buffer, start = as_array(around + text + around), len(around)
    assert kernels.hash_code(buffer, start, start + len(text)) == java.hash_code(text)


@given(number_bytes, st.sampled_from((16, 32, 64)))
@settings(max_examples=400, deadline=None)
def test_the_number_kernel_is_javas_parser(text: bytes, bits: int) -> None:
    """Both agree which texts are numbers, and on the number."""
    sound, value = kernels.parse_integer(as_array(b"9" + text + b"9"), 1, 1 + len(text), bits)
    assert (value if sound else None) == java.parse_integer(text, bits)


@given(st.binary(max_size=70), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_the_crc_kernel_is_zlibs(data: bytes, before: int, after: int) -> None:
    """All alignments and lengths around its steps of eight bytes."""
    start, end = min(before, len(data)), max(min(before, len(data)), len(data) - after)
    expected = zlib.crc32(data[start:end]) & 0x7FFFFFFF
    assert crc32(CRC_TABLES, as_array(data), start, end) == expected


def test_a_log_of_more_runs_than_a_chunk_holds_loses_none(arena: Arena, seed: int) -> None:
    """FULL by topics: every message its own queue, arena and run table for two at a time."""
    rng = random.Random(seed)
    plain = wire.PlainLog(FILE_SIZE)
    while plain.end < FILE_SIZE * 2:
        plain.append(topic=rng.randbytes(100).hex().encode(), queue_id=len(plain.spans))
    log = arena.log_of(plain.image, 0)
    arena.limit(rng)
    messages, _, count, last = by_kernels(log, 0, plain.end, True)
    assert [message[1] for message in messages] == list(range(len(plain.spans)))
    assert (count, last) == (len(plain.spans), plain.spans[-1][0])
