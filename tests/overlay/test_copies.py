"""Copies that are sent back and delivered: levels, attempts, ids, and what cannot be done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reput.overlay.records import copies
from reput.overlay.records.copies import SendBack
from reput.overlay.records.release import Refusal, Writer
from reput.overlay.records.sources import Source, source_of
from reput.store.errors import RefusedMessageError
from reput.store.log import record
from reput.store.log.record import Record
from tests.overlay.conftest import HOST

NOW_MS = 1_800_000_000_000
COPY = Record(
    b"Orders",
    b"body",
    b"KEYS\x01k\x02UNIQ_KEY\x01u\x02",
    queue_id=2,
    physical_offset=255,
    flag=7,
    sys_flag=0x301,
    born_timestamp=5,
    born_host=("10.0.0.1", 1),
    store_host=("10.0.0.2", 10911),
)


def back(copy: Record, writer: Writer, level: int = 0, limit: int = 16) -> Record:
    asked = SendBack(b"G", level, limit, retry_queue_id=3)
    made = copies.sent_back(copy, asked, writer, source=9, now_ms=NOW_MS)
    assert record.decode(record.encode(made), 0, 1 << 20) == replace(
        made, total_size=len(record.encode(made)), body_crc=record.body_crc(made.body)
    )
    return made


@pytest.mark.parametrize(
    ("attempts", "level", "stored"),
    ((0, 0, 3), (1, 0, 4), (15, 0, 18), (0, 7, 7), (9, 1, 1), (0, 18, 18), (0, 19, 18),
     (0, (1 << 31) - 1, 18)),
)  # fmt: skip
def test_a_copy_waits_for_its_level(writer: Writer, attempts: int, level: int, stored: int) -> None:
    made = back(replace(COPY, reconsume_times=attempts), writer, level)
    assert (made.topic, made.queue_id) == (b"SCHEDULE_TOPIC_XXXX", stored - 1)
    assert made.reconsume_times == attempts + 1
    assert made.property_map == {
        b"KEYS": b"k",
        b"UNIQ_KEY": b"u",
        b"RETRY_TOPIC": b"Orders",
        b"WAIT": b"false",
        b"DELAY": b"%d" % stored,
        b"ORIGIN_MESSAGE_ID": b"0A00000200002A9F00000000000000FF",
        b"REAL_TOPIC": b"%RETRY%G",
        b"REAL_QID": b"3",
    }
    kept = ("body", "flag", "sys_flag", "born_timestamp", "born_host")
    assert [getattr(made, name) for name in kept] == [getattr(COPY, name) for name in kept]
    assert (made.store_host, made.prepared_transaction_offset) == (HOST, 9)
    again = copies.level_delivered(made, writer, source=10)
    assert (again.topic, again.queue_id, again.properties) == (b"%RETRY%G", 3, made.properties)
    assert (again.reconsume_times, again.prepared_transaction_offset) == (attempts + 1, 10)


@pytest.mark.parametrize(("attempts", "limit"), ((3, 3), (4, 3), (0, 0), (16, 16), (0, -1)))
def test_a_copy_without_attempts_left_is_dead(writer: Writer, attempts: int, limit: int) -> None:
    made = back(replace(COPY, reconsume_times=attempts), writer, 5, limit)
    assert (made.topic, made.queue_id) == (b"%DLQ%G", 0)
    assert made.property_map[b"DELAY"] == b"0"
    assert b"REAL_TOPIC" not in made.property_map
    assert made.reconsume_times == attempts + 1


def test_one_attempt_less_than_the_limit_is_none_too_many(writer: Writer) -> None:
    assert back(replace(COPY, reconsume_times=2), writer, 0, 3).topic == record.SCHEDULE_TOPIC
    assert back(COPY, writer, -1).topic == b"%DLQ%G"


def test_counts_do_not_overflow(writer: Writer) -> None:
    most = (1 << 31) - 1
    made = back(replace(COPY, reconsume_times=most), writer, 0, most)
    assert made.reconsume_times == most
    assert made.topic == b"%DLQ%G"
    made = back(replace(COPY, reconsume_times=most - 1), writer, 0, most)
    assert (made.reconsume_times, made.queue_id) == (most, 17)


def test_a_first_retry_s_topic_and_id_are_kept(writer: Writer) -> None:
    """A blank id counts as none."""
    known = b"RETRY_TOPIC\x01First\x02ORIGIN_MESSAGE_ID\x01%s\x02"
    for stored, expected in ((b"abc", b"abc"), (b" \t", copies.message_id(COPY))):
        made = back(replace(COPY, topic=b"%RETRY%G", properties=known % stored), writer)
        assert made.property_map[b"RETRY_TOPIC"] == b"First"
        assert made.property_map[b"ORIGIN_MESSAGE_ID"] == expected


def test_ids_of_ipv6_hosts_are_longer() -> None:
    copy = replace(COPY, store_host=("::1", 10911))
    assert copies.message_id(copy) == b"0000000000000000000000000000000100002A9F" + b"%016X" % 255


def test_a_level_takes_the_place_of_a_time(writer: Writer) -> None:
    """In 5.x; 4.9 knows no times, and leaves them."""
    asked = b"TIMER_DELIVER_MS\x011\x02TIMER_DELAY_SEC\x011\x02TIMER_DELAY_MS\x011\x02"
    made = back(replace(COPY, properties=COPY.properties + asked), writer)
    left = {name for name in made.property_map if name.startswith(b"TIMER")}
    assert len(left) == (0 if writer.release.has_timers else 3)
    assert made.topic == record.SCHEDULE_TOPIC


def test_a_dead_letter_does_not_wait_for_a_time_that_was_waited_for(writer: Writer) -> None:
    asked = b"TIMER_DELIVER_MS\x01%d\x02TIMER_OUT_MS\x01%d\x02" % (NOW_MS + 5, NOW_MS)
    assert back(replace(COPY, properties=asked), writer, -1).topic == b"%DLQ%G"


def test_long_names_of_groups_need_longer_records(writer: Writer) -> None:
    asked = SendBack(b"g" * 255, -1)
    made = copies.sent_back(COPY, asked, writer, source=0, now_ms=NOW_MS)
    assert len(made.topic) == 260
    assert made.magic == record.MESSAGE_MAGIC_V2


def test_an_empty_body_is_accepted(writer: Writer) -> None:
    assert back(replace(COPY, body=b""), writer).body == b""


def test_properties_that_grow_beyond_a_record_are_refused(writer: Writer) -> None:
    """All bytes that a record has room for, and one more."""

    def filled(count: int) -> Record:
        return replace(COPY, properties=COPY.properties + b"a\x01" + b"x" * count + b"\x02")

    most = 32767 - len(back(filled(1), writer, -1).properties) + 1
    assert len(back(filled(most), writer, -1).properties) == 32767
    with pytest.raises(
        RefusedMessageError, match=r"^the properties have 32768 bytes, 32767 fit "
    ) as e:
        back(filled(most + 1), writer, -1)
    assert e.value.code == Refusal.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("text", "line"),
    (
        (b"REAL_QID\x010\x02", "does not say to which queue it belongs; it is left out$"),
        (b"REAL_TOPIC\x01T\x02", "does not say to which queue"),
        (b"REAL_TOPIC\x01T\x02REAL_QID\x01x\x02", "does not say to which queue"),
        (b"REAL_TOPIC\x01T\x02REAL_QID\x01-1\x02", "does not say to which queue"),
        (b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02", "an open transaction's"),
    ),
)
def test_what_belongs_nowhere_is_not_delivered(writer: Writer, text: bytes, line: str) -> None:
    waiting = replace(COPY, topic=b"SCHEDULE_TOPIC_XXXX", properties=text)
    with pytest.raises(RefusedMessageError, match=f"at 255 of SCHEDULE_TOPIC_XXXX .*{line}"):
        copies.level_delivered(waiting, writer, source=0)
    with pytest.raises(RefusedMessageError, match=line):
        copies.timer_delivered(waiting, writer, enqueued_ms=1, now_ms=2, source=0)


@pytest.mark.parametrize("place", [0, 7])
def test_sources_of_both_logs_differ(place: int) -> None:
    """0 is no source, so that the log's first record can be one."""
    fields = [Source(is_base, place).field for is_base in (False, True)]
    assert fields == [place + 1, -place - 1]
    for is_base, field in zip((False, True), fields, strict=True):
        found = source_of(replace(COPY, prepared_transaction_offset=field))
        assert found == Source(is_base, place)
