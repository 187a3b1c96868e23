"""The plain decoder and encoder.

Held against: records and queues of golden stores (RocketMQ's own bytes), and ``tests.support.wire``
(formats.md §2 written once more). Not compared: the kernels, which ``test_kernels`` holds to this.
"""

from __future__ import annotations

import ipaddress
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.store.config import read_store_settings
from reput.store.log import properties, record
from reput.store.log.record import Record
from reput.store.log.status import Outcome, Status
from tests.support import wire
from tests.support.golden import GOLDEN_NAMES

FAR = 1 << 40
POSITION = 1 << 33


def decoded(data: bytes, position: int = POSITION, file_end: int | None = None) -> Record | Outcome:
    return record.decode(data, position, FAR if file_end is None else file_end)


def status_of(data: bytes, position: int = POSITION, file_end: int | None = None) -> Status:
    found = decoded(data, position, file_end)
    return found.status if isinstance(found, Outcome) else Status.OK


def patched(data: bytes, at: int, layout: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(layout, changed, at, value)
    return bytes(changed)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_records_encode_to_their_stored_bytes(
    name: str, golden: Callable[[str], Path]
) -> None:
    """Every record of every golden store, decoded and encoded again, is byte for byte itself."""
    stored = wire.read_log(golden(name) / "commitlog")
    assert len(stored) > 400
    for position, data in stored:
        found = record.decode(data, position, FAR, verify_crc=True)
        assert isinstance(found, Record), (position, found)
        assert found.total_size == len(data)
        assert record.encode(found) == data, position


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_decoded_fields_are_the_stored_ones(name: str, golden: Callable[[str], Path]) -> None:
    """Fields of golden records, read here with struct by formats.md's offsets."""
    for position, data in wire.read_log(golden(name) / "commitlog"):
        found = record.decode(data, position, FAR)
        assert isinstance(found, Record)
        sys_flag = struct.unpack_from(">i", data, 36)[0]
        born, store = 20 if sys_flag & 0x10 else 8, 20 if sys_flag & 0x20 else 8
        body_at = 72 + born + store
        body_length = struct.unpack_from(">i", data, body_at - 4)[0]
        assert found.magic == struct.unpack_from(">I", data, 4)[0]
        assert (found.body_crc, found.queue_id, found.flag) == struct.unpack_from(">iii", data, 8)
        assert (found.queue_offset, found.physical_offset) == struct.unpack_from(">qq", data, 20)
        assert (found.sys_flag, found.born_timestamp) == struct.unpack_from(">iq", data, 36)
        assert found.store_timestamp == struct.unpack_from(">q", data, 48 + born)[0]
        assert (found.reconsume_times, found.prepared_transaction_offset) == struct.unpack_from(
            ">iq", data, 56 + born + store
        )
        for host, at, length in (
            (found.born_host, 48, born),
            (found.store_host, 56 + born, store),
        ):
            assert ipaddress.ip_address(host[0]).packed == data[at : at + length - 4]
            assert host[1] == struct.unpack_from(">i", data, at + length - 4)[0]
        assert found.body == data[body_at : body_at + body_length]
        rest = data[body_at + body_length :]
        width = 2 if found.magic == wire.V2_MAGIC else 1
        topic_end = width + int.from_bytes(rest[:width], "big")
        assert found.topic == rest[width:topic_end]
        assert found.properties == rest[topic_end + 2 :]


def test_the_wide_store_has_what_it_is_for(golden: Callable[[str], Path]) -> None:
    """IPv6 hosts, v2 magic and property CRCs do occur above, so that they were checked."""
    found = [
        record.decode(data, position, FAR)
        for position, data in wire.read_log(golden("wide") / "commitlog")
    ]
    whole = [one for one in found if isinstance(one, Record)]
    assert any(":" in one.born_host[0] for one in whole)
    assert any(":" in one.store_host[0] for one in whole)
    assert any(one.magic == wire.V2_MAGIC and len(one.topic) > 127 for one in whole)
    assert all(b"__CRC32#\x01" in one.properties for one in whole)


def test_property_crc_tails_are_rocketmqs(golden: Callable[[str], Path]) -> None:
    """With its tail taken off, a golden record encodes to the stored bytes, tail included."""
    for position, data in wire.read_log(golden("wide") / "commitlog"):
        found = record.decode(data, position, FAR)
        assert isinstance(found, Record)
        bare = replace(found, properties=found.properties[:-20])
        assert record.encode(bare, property_crc=True) == data
        # a missing last separator is added before the tail (formats.md §2)
        unended = replace(bare, properties=bare.properties.removesuffix(b"\x02"))
        assert record.encode(unended, property_crc=True) == data
        # and nothing but the tail is added to an empty block
        tail = record.decode(
            record.encode(replace(bare, properties=b""), property_crc=True), position, FAR
        )
        assert isinstance(tail, Record)
        assert re.fullmatch(rb"__CRC32#\x01\d{10}\x02", tail.properties)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_tags_codes_are_those_of_the_golden_queues(
    name: str, golden: Callable[[str], Path]
) -> None:
    """Each golden unit's tagsCode follows from the record it points at: hashes and due times."""
    root = golden(name)
    levels = read_store_settings(root).message_delay_levels_ms
    stored = dict(wire.read_log(root / "commitlog"))
    seen = 0
    for path in (root / "consumequeue").glob("*/*/*"):
        for index, unit in enumerate(wire.UNIT.iter_unpack(path.read_bytes())):
            if unit[1] in (0, 2147483647):
                continue
            found = record.decode(stored[unit[0]], unit[0], FAR)
            assert isinstance(found, Record)
            assert unit == (
                found.physical_offset,
                found.total_size,
                record.tags_code(found, levels),
            )
            assert (path.parts[-3], path.parts[-2]) == (found.topic.decode(), str(found.queue_id))
            assert found.queue_offset == int(path.name) // 20 + index
            assert found.dispatched_to_queue
            seen += 1
    assert seen > 400


hosts = st.tuples(
    st.ip_addresses().map(str).filter(lambda text: "%" not in text),
    st.integers(-(1 << 31), (1 << 31) - 1),
)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
topics = st.binary(max_size=140) | st.sampled_from((b"", b"T" * 127, b"T" * 128, b"\xff" * 255))
plain_records = st.builds(
    Record,
    topic=topics,
    body=st.binary(max_size=300),
    properties=st.binary(max_size=60),
    queue_id=int32,
    queue_offset=int64,
    physical_offset=st.integers(0, (1 << 62)),
    flag=int32,
    sys_flag=int32.map(lambda value: value & ~0x30),
    born_timestamp=int64,
    born_host=hosts,
    store_timestamp=int64,
    store_host=hosts,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
).map(lambda one: replace(one, magic=record.magic_for(one.topic)))


@pytest.mark.parametrize("sys_flag", [0x01, 0x11, 0x21, 0x31])
def test_bits_of_hosts_are_those_of_the_record_itself(sys_flag: int) -> None:
    """A message that is delivered has the flags of its original, and another broker's host."""
    for hosts in product(("10.0.0.1", "::1"), repeat=2):
        born, stored = ((host, 7) for host in hosts)
        copy = Record(topic=b"T", sys_flag=sys_flag, born_host=born, store_host=stored)
        born_host, store_host = (
            ipaddress.ip_address(host).packed + struct.pack(">i", 7) for host in hosts
        )
        assert record.encode(copy) == wire.message(
            0, topic=b"T", body=b"", sys_flag=1, born_timestamp=0, born_host=born_host,
            store_timestamp=0, store_host=store_host,
        )  # fmt: skip


@given(plain_records)
@settings(max_examples=200, deadline=None)
def test_encoding_is_the_wire_format_and_decodes_to_the_same_record(original: Record) -> None:
    """encode gives formats.md's bytes; decode gives the record back, but for computed fields."""
    data = record.encode(original)
    packed = [
        ipaddress.ip_address(address).packed + struct.pack(">i", port)
        for address, port in (original.born_host, original.store_host)
    ]
    assert data == wire.message(
        original.physical_offset,
        topic=original.topic,
        body=original.body,
        properties=original.properties,
        queue_id=original.queue_id,
        queue_offset=original.queue_offset,
        flag=original.flag,
        sys_flag=original.sys_flag,
        born_timestamp=original.born_timestamp,
        born_host=packed[0],
        store_timestamp=original.store_timestamp,
        store_host=packed[1],
        reconsume_times=original.reconsume_times,
        prepared_transaction_offset=original.prepared_transaction_offset,
    )
    head = data[: record.STORE_TIMESTAMP_END_MAX]
    assert record.store_timestamp(head) == original.store_timestamp
    found = record.decode(data, original.physical_offset, 1 << 63, verify_crc=True)
    assert isinstance(found, Record)
    version_six = 0x10 * (len(packed[0]) == 20) | 0x20 * (len(packed[1]) == 20)
    assert found == replace(
        original,
        sys_flag=original.sys_flag | version_six,
        total_size=len(data),
        body_crc=zlib.crc32(original.body) & 0x7FFFFFFF,
    )


@given(st.binary(max_size=200), st.integers(0, 300), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_a_record_or_an_outcome(data: bytes, room: int, verify: bool) -> None:
    """The decoder is total: damage is an answer, never an exception; nothing random is a record."""
    for start in (b"", wire.message(POSITION)[:8], wire.message(POSITION)[:36]):
        found = record.decode(start + data, POSITION, POSITION + room, verify_crc=verify)
        if room < 8:
            assert found == Outcome(Status.BAD_FILE_END)
        elif isinstance(found, Record):
            assert found.total_size <= room - 8
            assert found.physical_offset == POSITION


def test_every_cut_of_a_record_needs_more() -> None:
    """A torn record is told from a damaged one at every length."""
    data = wire.message(POSITION, properties=b"TAGS\x01TagA\x02", body=b"b" * 20)
    for length in range(len(data)):
        assert status_of(data[:length]) is Status.NEED_MORE
    assert status_of(data) is Status.OK
    assert status_of(data + b"next record") is Status.OK


def test_a_blank_reaches_the_end_of_its_file() -> None:
    """BLANK counts only with the rest of the file as its size; golden files' first 8 bytes do."""
    blank = struct.pack(">iI", 4096, wire.BLANK_MAGIC)
    assert record.encode_blank(4096) == blank
    assert decoded(blank, 0, 4096) == Outcome(Status.BLANK, 4096)
    for room in (8, 4095, 4097):
        assert decoded(blank, 0, room) == Outcome(Status.BAD_BLANK, 4096)
    assert status_of(blank[:7], 0, 4096) is Status.NEED_MORE
    negative = struct.pack(">iI", -8, wire.BLANK_MAGIC)
    assert status_of(negative, 0, 4096) is Status.BAD_BLANK


def test_golden_files_end_in_blanks(golden: Callable[[str], Path]) -> None:
    """The end that RocketMQ wrote to each full file is a BLANK."""
    directory = golden("plain") / "commitlog"
    files = sorted(directory.iterdir())
    stored = wire.read_log(directory)
    for path in files[:-1]:
        start, data = int(path.name), path.read_bytes()
        end = max(at + len(one) for at, one in stored if at < start + len(data)) - start
        assert status_of(data[end:], start + end, start + len(data)) is Status.BLANK


def test_zeros_are_empty_and_other_starts_are_bad_magic() -> None:
    """Nothing written yet is not damage; a size without a magic, or a wrong magic, is."""
    assert decoded(bytes(100)) == Outcome(Status.EMPTY)
    assert status_of(bytes(7)) is Status.NEED_MORE
    assert status_of(struct.pack(">iI", 100, 0) + bytes(100)) is Status.BAD_MAGIC
    for magic in (0xDAA320A6, 0xDAA320A8, 0x000000A7, 0xFFFFFFFF):
        assert status_of(patched(wire.message(POSITION), 4, ">I", magic)) is Status.BAD_MAGIC


def test_a_size_outside_of_what_a_file_can_hold_is_bad() -> None:
    """At least 91 bytes, room for a BLANK after it, up to 64 MiB (formats.md §2)."""
    data = wire.message(POSITION, topic=b"", body=b"")
    assert len(data) == 91
    assert status_of(data) is Status.OK
    assert status_of(data, file_end=POSITION + 99) is Status.OK
    assert status_of(data, file_end=POSITION + 98) is Status.BAD_SIZE
    for size in (-1, 0, 1, 90, (64 << 20) + 1, 2147483647, -2147483648):
        assert status_of(patched(data, 0, ">i", size)) is Status.BAD_SIZE
    assert status_of(patched(data, 0, ">i", 64 << 20)) is Status.NEED_MORE


def test_a_record_counts_only_at_its_own_position() -> None:
    """A copy elsewhere (in a body, in an older log) is no record."""
    data = wire.message(POSITION)
    for position in (0, POSITION - 1, POSITION + 1, POSITION + 4096):
        assert status_of(data, position) is Status.BAD_PHYSICAL_OFFSET


def test_inner_lengths_must_add_up() -> None:
    """Every length field, moved by one or made negative, makes BAD_LENGTH (row 8 of §3)."""
    v1 = wire.message(POSITION, topic=b"Topic", body=b"0123456789", properties=b"a\x01b\x02")
    v2 = wire.message(POSITION, topic=b"t" * 130, body=b"0123456789", properties=b"a\x01b\x02")
    for data, layout, width, topic_length in ((v1, ">b", 1, 5), (v2, ">h", 2, 130)):
        assert status_of(data) is Status.OK
        topic_at, props_at = 88 + 10, 88 + 10 + width + topic_length
        for at, kind, value in (
            (84, ">i", 10), (topic_at, layout, topic_length), (props_at, ">h", 4)
        ):  # fmt: skip
            for wrong in (value + 1, value - 1, -1, 0, 100 if kind == ">b" else 32767):
                assert status_of(patched(data, at, kind, wrong)) is Status.BAD_LENGTH, (at, wrong)
        for size in (len(data) - 1, len(data) + 1, 91):
            assert status_of(patched(data, 0, ">i", size) + b"\0") is Status.BAD_LENGTH
    # the host bits move everything after them
    assert status_of(patched(v1, 36, ">i", 0x10)) is Status.BAD_LENGTH
    assert status_of(patched(v1, 36, ">i", 0x30)) is Status.BAD_LENGTH


def test_a_negative_topic_length_is_no_way_back() -> None:
    """-2 makes the property length overlap the body's end, and all lengths would add up."""
    data = wire.message(POSITION, body=b"0123\0", topic=b"", properties=bytes(252))
    topic_at = 88 + 5
    crafted = data[:topic_at] + b"\xfe" + bytes(254)
    assert len(crafted) == len(data)
    assert int.from_bytes(crafted[topic_at - 1 : topic_at + 1], "big") == 254
    assert status_of(crafted) is Status.BAD_LENGTH


def test_body_crc_is_checked_where_asked() -> None:
    """A flipped body bit is damage only with verify_crc; an empty body has nothing to check."""
    data = wire.message(POSITION, body=b"payload")
    assert isinstance(record.decode(data, POSITION, FAR, verify_crc=True), Record)
    changed = data[:90] + b"?" + data[91:]
    assert isinstance(record.decode(changed, POSITION, FAR), Record)
    assert record.decode(changed, POSITION, FAR, verify_crc=True) == Outcome(
        Status.BAD_BODY_CRC, len(data)
    )
    empty = patched(wire.message(POSITION, body=b""), 8, ">i", 12345)
    assert isinstance(record.decode(empty, POSITION, FAR, verify_crc=True), Record)


@given(st.binary(max_size=100))
def test_body_crc_is_zlibs_without_the_sign(body: bytes) -> None:
    """``UtilAll.crc32``."""
    assert record.body_crc(body) == zlib.crc32(body) & 0x7FFFFFFF


SCHEDULE = b"SCHEDULE_TOPIC_XXXX"
PROPERTY_CASES: tuple[tuple[bytes, bytes, Status], ...] = (
    (SCHEDULE, b"DELAY\x013\x02", Status.OK),
    (SCHEDULE, b"DELAY\x01+3\x02", Status.OK),
    (SCHEDULE, b"DELAY\x01-3\x02", Status.OK),
    (SCHEDULE, b"DELAY\x012147483647\x02", Status.OK),
    (SCHEDULE, b"DELAY\x012147483648\x02", Status.BAD_PROPERTY),
    (SCHEDULE, b"DELAY\x01 3\x02", Status.BAD_PROPERTY),
    (SCHEDULE, b"DELAY\x01x\x02", Status.BAD_PROPERTY),
    (SCHEDULE, b"DELAY\x01+\x02", Status.BAD_PROPERTY),
    (SCHEDULE, b"DELAY\x01x\x02DELAY\x013\x02", Status.OK),
    (SCHEDULE, b"DELAY\x01\x02", Status.OK),
    (b"Topic", b"DELAY\x01x\x02", Status.OK),
    (b"Topic", b"INNER_NUM\x01x\x02", Status.OK),
    (b"Topic", b"INNER_BASE\x01x\x02", Status.OK),
    (b"Topic", b"INNER_NUM\x015\x02INNER_BASE\x019\x02", Status.OK),
    (b"Topic", b"INNER_NUM\x0132768\x02INNER_BASE\x019\x02", Status.BAD_PROPERTY),
    (b"Topic", b"INNER_NUM\x01-32768\x02INNER_BASE\x01-9223372036854775808\x02", Status.OK),
    (b"Topic", b"INNER_NUM\x015\x02INNER_BASE\x019223372036854775808\x02", Status.BAD_PROPERTY),
    (b"Topic", b"INNER_NUM\x015\x02INNER_BASE\x01\xd9\xa3\x02", Status.BAD_PROPERTY),
)


@pytest.mark.parametrize(("topic", "block", "expected"), PROPERTY_CASES)
def test_numbers_that_rocketmq_would_throw_at_are_bad_properties(
    topic: bytes, block: bytes, expected: Status
) -> None:
    """DELAY on the schedule topic, INNER_NUM with INNER_BASE: rows 9 of §3."""
    assert status_of(wire.message(POSITION, topic=topic, properties=block)) is expected


DELAY_CASES = (
    (b"1", 1_000),
    (b"3", 10_000),
    (b"5", 60_000),
    (b"14", 600_000),
    (b"16", 1_800_000),
    (b"18", 7_200_000),
    (b"19", 7_200_000),
    (b"2147483647", 7_200_000),
)


@pytest.mark.parametrize(("level", "delay_ms"), DELAY_CASES)
def test_a_delayed_message_has_its_due_time_for_a_code(level: bytes, delay_ms: int) -> None:
    """messageDelayLevel's default list, levels above it clamped (§3, §11)."""
    block = b"TAGS\x01TagA\x02DELAY\x01" + level + b"\x02"
    found = decoded(wire.message(POSITION, topic=SCHEDULE, properties=block, store_timestamp=7000))
    assert isinstance(found, Record)
    assert record.tags_code(found) == 7000 + delay_ms
    elsewhere = decoded(wire.message(POSITION, properties=block))
    assert isinstance(elsewhere, Record)
    assert record.tags_code(elsewhere) == 2598919  # "TagA" (§3)


def test_tags_codes_follow_java_where_it_is_odd() -> None:
    """Level 0 and below keep the hash; the long wraps; no tags give 0; TAGS is hashed whole."""
    for block, stored, expected in (
        (b"TAGS\x01TagA\x02DELAY\x010\x02", 5, 2598919),
        (b"TAGS\x01TagA\x02DELAY\x01-1\x02", 5, 2598919),
        (b"DELAY\x011\x02", (1 << 63) - 1, -(1 << 63) + 999),
        (b"", 5, 0),
        (b"TAGS\x01\x02", 5, 0),
        (b"TAGS\x01polygenelubricants", 5, -(1 << 31)),
    ):
        message = wire.message(POSITION, topic=SCHEDULE, properties=block, store_timestamp=stored)
        found = decoded(message)
        assert isinstance(found, Record)
        assert record.tags_code(found) == expected, block


def test_a_length_that_its_field_cannot_say_is_refused() -> None:
    """The encoder never wraps a length around."""
    for topic, magic in ((b"t" * 128, wire.V1_MAGIC), (b"t" * 32768, wire.V2_MAGIC)):
        with pytest.raises(ValueError, match="exceed their length field"):
            record.encode(Record(topic, magic=magic))
    with pytest.raises(ValueError, match="exceed their length field"):
        record.encode(Record(b"t", properties=bytes(32768)))
    assert isinstance(decoded(record.encode(Record(b"t", properties=bytes(32767))), 0), Record)


def reference_properties(block: bytes) -> dict[bytes, bytes]:
    """``string2messageProperties`` by formats.md §2, byte by byte."""
    found: dict[bytes, bytes] = {}
    segment = b""
    for byte in [*block, 2]:
        if byte != 2:
            segment += bytes([byte])
            continue
        at = segment.find(b"\x01")
        if len(segment) >= 3 and 0 < at < len(segment) - 1:
            found[segment[:at]] = segment[at + 1 :]
        segment = b""
    return found


@given(st.lists(st.sampled_from((b"\x01", b"\x02", b"a", b"TAGS", b"\xff")), max_size=14))
def test_property_blocks_are_cut_as_rocketmq_cuts_them(parts: list[bytes]) -> None:
    """Odd separators, empty names and values, duplicates."""
    block = b"".join(parts)
    assert properties.parse(block) == reference_properties(block)


def test_golden_property_blocks_are_formatted_as_stored(golden: Callable[[str], Path]) -> None:
    """5.3.3's writer ends every property with the separator; parsing and formatting agree."""
    for position, data in wire.read_log(golden("mixed") / "commitlog"):
        found = record.decode(data, position, FAR)
        assert isinstance(found, Record)
        assert found.property_map == reference_properties(found.properties)
        assert properties.format_block(found.property_map) == found.properties
