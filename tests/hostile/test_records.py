"""Records that are none, or lie: cases 1 to 9 of the threat model, and 14 to 16, 18."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.config import OnQueueGap
from reput.store.errors import QueueGapError
from reput.store.index.indexfile import index_key_hash
from reput.store.state.watermark import read_watermark
from tests.hostile.stores import (
    SOUND,
    dispatched,
    hostile_span,
    log_with,
    put,
    sound_log,
    sound_units,
)
from tests.support import wire
from tests.support.golden import tree
from tests.support.small_store import FILE_SIZE, SmallStore
from tests.support.wire import PlainLog

Harm = Callable[[PlainLog, int, int], None]
MIN_INT, MAX_INT = -(1 << 31), (1 << 31) - 1
VICTIM = 2
"""The record of ``sound_log`` that is harmed."""


def field(at: int, layout: str, value: int) -> Harm:
    """Overwrite the victim's field."""
    return lambda plain, start, _: put(plain, start + at, layout, value)


def zeros(first: int, last: int) -> Harm:
    """Zero records [first, last) counted from the victim."""

    def harm(plain: PlainLog, _start: int, _end: int) -> None:
        low, high = plain.spans[VICTIM + first][0], plain.spans[VICTIM + last - 1][1]
        plain.put(low, bytes(high - low))

    return harm


BODY_LENGTH, TOPIC_LENGTH, PROPERTIES_LENGTH = 84, 98, 104
HARMS: dict[str, tuple[Harm, str]] = {
    "01_size_0": (field(0, ">i", 0), "bad_size"),
    "01_size_90": (field(0, ">i", 90), "bad_size"),
    "01_size_negative": (field(0, ">i", -1), "bad_size"),
    "01_size_min_int": (field(0, ">i", MIN_INT), "bad_size"),
    "02_size_beyond_its_file": (field(0, ">i", FILE_SIZE), "bad_size"),
    "02_size_max_int": (field(0, ">i", MAX_INT), "bad_size"),
    "02_size_up_to_the_file": (field(0, ">i", 3 * FILE_SIZE // 4), "bad_length"),
    "03_body_length_negative": (field(BODY_LENGTH, ">i", -1), "bad_length"),
    "03_body_length_min_int": (field(BODY_LENGTH, ">i", MIN_INT), "bad_length"),
    "03_body_length_beyond": (field(BODY_LENGTH, ">i", 11), "bad_length"),
    "03_topic_length_negative": (field(TOPIC_LENGTH, ">b", -1), "bad_length"),
    "03_topic_length_beyond": (field(TOPIC_LENGTH, ">b", 127), "bad_length"),
    "03_properties_length_negative": (field(PROPERTIES_LENGTH, ">h", -1), "bad_length"),
    "03_properties_length_short": (field(PROPERTIES_LENGTH, ">h", 3), "bad_length"),
    "04_magic_unknown": (field(4, ">I", 0xDEADBEEF), "bad_magic"),
    "04_magic_v2_with_a_topic_of_v1": (field(4, ">I", wire.V2_MAGIC), "bad_length"),
    "04_blank_short_of_its_file": (field(4, ">I", wire.BLANK_MAGIC), "bad_blank"),
    "05_zeros_in_mid_file": (zeros(0, 2), "zero_hole"),
    "05_zeros_up_to_the_last_record": (zeros(0, 3), "zero_hole"),
    "06_physical_offset_of_another": (field(28, ">q", 0), "bad_physical_offset"),
    "06_physical_offset_negative": (field(28, ">q", -1), "bad_physical_offset"),
}


@pytest.mark.parametrize("case", HARMS)
def test_case(tmp_path: Path, case: str) -> None:
    """The bytes of the victim are listed with the reason, all others are dispatched."""
    harm, reason = HARMS[case]
    sound = sound_log()
    plain = sound_log()
    harm(plain, *plain.spans[VICTIM])
    store = SmallStore(tmp_path, plain)
    store.output.start()
    assert store.lost(sound, store.check()) == []
    (listed,) = [one for one in store.listed() if one[2] == reason]
    assert listed[0] == plain.spans[VICTIM][0]
    zeroed = {"05_zeros_in_mid_file": 2, "05_zeros_up_to_the_last_record": 3}.get(case, 1)
    assert listed[1] == plain.spans[VICTIM + zeroed - 1][1]
    assert sound_units(sound, store) == len(sound.spans) - zeroed


def test_case_04_v2_has_a_topic_length_of_two_bytes(tmp_path: Path) -> None:
    """A topic of 200 bytes, between records of v1."""
    store = dispatched(tmp_path, log_with({"topic": b"w" * 200, "properties": b"TAGS\x01x\x02"}))
    assert store.topics() == ["Sound", "w" * 200]
    assert store.ledger() == []


def test_case_05_zeros_at_the_end_are_no_hole(tmp_path: Path) -> None:
    """Nothing follows: the log ends there, and nothing is listed."""
    plain = sound_log()
    start, end = plain.spans[-1]
    plain.put(start, bytes(end - start))
    store = dispatched(tmp_path, plain)
    assert (store.end, store.ledger()) == (start, [])


@pytest.mark.parametrize("harmed", ["the magic", "nothing"])
def test_case_07_a_record_forged_in_a_body(tmp_path: Path, harmed: str) -> None:
    """It is right for its position, and no message, although the record around it is damaged."""
    plain = sound_log(2)
    inside = plain.end + 100
    body = bytes(12) + wire.message(inside, topic=b"Forged") + bytes(9)
    start = plain.append(topic=b"Outer", body=body)
    plain.append(**SOUND, queue_offset=2)
    if harmed == "the magic":
        put(plain, start + 4, ">I", 7)
    store = dispatched(tmp_path, plain)
    assert store.topics() == (["Sound"] if harmed == "the magic" else ["Outer", "Sound"])


QUEUE_OFFSETS = (-1, -(1 << 63), 1 << 62, (1 << 63) - 1, (1 << 63) // 20, (1 << 63) // 20 - 1)


@pytest.mark.parametrize("queue_offset", QUEUE_OFFSETS)
@pytest.mark.parametrize("topic", [b"Sound", b"New"])
def test_case_08_queue_offsets_beyond_every_file(
    tmp_path: Path, queue_offset: int, topic: bytes
) -> None:
    """Listed, whether the queue exists or not: no position is beyond 2^63 bytes."""
    plain = log_with({"topic": topic, "queue_offset": queue_offset})
    store = dispatched(tmp_path, plain)
    assert store.listed() == {(*hostile_span(plain), "queue_offset_out_of_range")}


def test_case_08_a_jump_costs_no_disk(tmp_path: Path) -> None:
    """A queue that begins at 2^40, and one that jumps there: RocketMQ's places, a file each."""
    far = 1 << 40
    plain = log_with({"topic": b"New", "queue_offset": far}, {**SOUND, "queue_offset": far})
    store = dispatched(tmp_path, plain)
    files = list((store.output.root / "consumequeue").glob("*/*/*"))
    assert len(files) == 2
    assert sum(path.stat().st_blocks for path in store.output.root.rglob("*")) * 512 < 1 << 20
    assert {reason for _, _, reason in store.listed()} >= {"queue_offset_gap"}


def test_case_08_a_jump_too_large_to_fill_is_refused(tmp_path: Path) -> None:
    """Blank units up to 2^40 would be 20 TiB: one line that says what to do, nothing written."""
    plain = log_with({**SOUND, "queue_offset": 1 << 40})
    store = SmallStore(tmp_path, plain)
    with pytest.raises(QueueGapError, match=r"too large to blank out .*`on_queue_gap=`") as error:
        store.output.start(on_queue_gap=OnQueueGap.BLANK)
    assert "\n" not in str(error.value)
    found = read_watermark(store.output.state)
    assert found is not None
    assert found.end_offset == 0


@pytest.mark.parametrize("queue_id", [-1, MIN_INT, MAX_INT])
def test_case_09_queue_ids(tmp_path: Path, queue_id: int) -> None:
    """Negative ones are listed; the greatest is a directory like any other."""
    plain = log_with({"topic": b"T", "queue_id": queue_id})
    store = dispatched(tmp_path, plain)
    assert store.listed() == ({(*hostile_span(plain), "queue_id")} if queue_id < 0 else set())
    assert store.topics() == (["Sound"] if queue_id < 0 else ["Sound", "T"])


TAGS = {
    "a duplicate: the last counts": (b"TAGS\x01a\x02TAGS\x01b\x02", 98),
    "an empty value is none": (b"TAGS\x01a\x02TAGS\x01\x02", 97),
    "a separator in the value": (b"TAGS\x01a\x01b\x02", 93346),
    "no end": (b"TAGS\x01ab", 3105),
    "no name": (b"\x01ab\x02", 0),
    "15 a lone surrogate and FF are two characters": (b"TAGS\x01\xed\xa0\x80\xff\x02", 2097056),
    "15 an emoji is two units": ("TAGS\x01😀\x02".encode(), 1772899),
    "15 an overlong slash": (b"TAGS\x01\xc0\xaf\x02", 2097056),
}
"""Properties, and ``String.hashCode`` of the tag that Java finds in them."""


@pytest.mark.parametrize("case", TAGS)
def test_case_14_and_15_tags_by_javas_rules(tmp_path: Path, case: str) -> None:
    """The unit's tagsCode."""
    block, code = TAGS[case]
    store = dispatched(tmp_path, log_with({"topic": b"T", "properties": block}))
    (data,) = tree(store.output.root / "consumequeue" / "T" / "0").values()
    assert struct.unpack_from(">qiq", data)[2] == code


def test_case_15_names_of_bad_utf_8_hash_as_javas(tmp_path: Path) -> None:
    """The index has the hash of the key that Java makes of the bytes."""
    store = dispatched(tmp_path, log_with({"properties": b"KEYS\x01\xed\xa0\x80\xff\x02"}))
    (content,) = store.output.index()
    hashes = {entry[0] for entry in content.entries}
    assert index_key_hash("Topic#\ufffd\ufffd".encode()) in hashes


NUMBERS = {
    "5,000 nines": (b"9" * 5000, False),
    "an underscore": (b"1_0", False),
    "blanks": (b" 7 ", False),
    "Arabic digits": ("٣".encode(), False),
    "a plus": (b"+3", True),
    "zeros first": (b"0" * 3000 + b"3", True),
    "beyond an int": (b"2147483648", False),
    "nothing but a sign": (b"-", False),
}


@pytest.mark.parametrize("where", ["in mid log", "as the last record"])
@pytest.mark.parametrize("case", NUMBERS)
def test_case_16_numbers_by_javas_rules(tmp_path: Path, case: str, where: str) -> None:
    """A delay level that is no number: RocketMQ throws; that record alone is listed, also where it
    is the log's last one, so that nothing waits for the next."""
    text, is_number = NUMBERS[case]
    delayed = {"topic": b"SCHEDULE_TOPIC_XXXX", "properties": b"DELAY\x01" + text + b"\x02"}
    plain = log_with(delayed, file_size=1 << 16)
    if where == "as the last record":
        plain.append(**delayed, queue_offset=1)
    store = dispatched(tmp_path, plain)
    assert store.end == plain.end
    spans = [plain.spans[1], *plain.spans[3:]]
    assert store.listed() == (set() if is_number else {(*span, "bad_property") for span in spans})


@pytest.mark.parametrize("time", [-1, -(1 << 63), (1 << 63) - 1, 1 << 53])
def test_case_18_store_times_decide_no_position(tmp_path: Path, time: int) -> None:
    """A message from long ago or the far future is dispatched and indexed like any other."""
    plain = log_with({"topic": b"T", "properties": b"KEYS\x01k\x02", "store_timestamp": time})
    plain.append(topic=b"T", queue_offset=1, properties=b"KEYS\x01k\x02")
    store = dispatched(tmp_path, plain)
    assert (store.topics(), store.ledger()) == (["Sound", "T"], [])
    assert store.output.start() is not None
    store.check()
