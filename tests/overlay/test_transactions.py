"""Halves and their ends, where they wait or do not say where they belong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reput.overlay.records import copies, sends, transactions
from reput.overlay.records.release import RELEASE_4_9_7, Refusal, Writer
from reput.overlay.records.sends import Send, Target
from reput.store.errors import RefusedMessageError
from reput.store.log import record
from reput.store.log.record import Record
from tests.overlay.conftest import HOST

NOW_MS = 1_800_000_000_000
HALF = b"RMQ_SYS_TRANS_HALF_TOPIC"
MESSAGE = Send(
    topic=b"Orders",
    queue_id=3,
    body=b"body",
    properties=b"UNIQ_KEY\x01u\x02TRAN_MSG\x01TRUE\x02PGROUP\x01p\x02",
    born_timestamp=5,
    born_host=("10.0.0.1", 77),
    flag=5,
    sys_flag=0x304,
)


def half(writer: Writer, more: bytes = b"") -> Record:
    message = replace(MESSAGE, properties=MESSAGE.properties + more)
    return sends.sent(message, Target(4), writer, unique_key=b"", now_ms=NOW_MS)


def test_a_message_of_a_transaction_becomes_a_half(writer: Writer) -> None:
    made = half(writer)
    assert (made.topic, made.queue_id, made.flag, made.sys_flag) == (HALF, 0, 5, 0x300)
    assert made.property_map[b"REAL_TOPIC"] == b"Orders"
    assert made.property_map[b"REAL_QID"] == b"3"
    has_id = made.property_map.get(b"__transactionId__") == b"u"
    assert has_id is writer.release.half_has_transaction_id


def test_a_retry_of_an_old_client_is_no_half(writer: Writer) -> None:
    """Clients below 4.6.1 left TRAN_MSG in what they sent back."""
    retry = replace(MESSAGE, sys_flag=0, reconsume_times=1)
    delayed = replace(retry, properties=retry.properties + b"DELAY\x013\x02")
    made = [
        sends.sent(message, Target(4), writer, unique_key=b"", now_ms=NOW_MS)
        for message in (retry, delayed)
    ]
    assert [one.topic for one in made] == [HALF, record.SCHEDULE_TOPIC]
    assert made[1].property_map[b"REAL_TOPIC"] == b"Orders"


def test_a_half_that_has_a_level_is_lost(writer: Writer) -> None:
    """As with a broker, where it waits first, for the topic of halves; clients drop the level."""
    made = half(writer, b"DELAY\x012\x02")
    assert made.topic == record.SCHEDULE_TOPIC
    assert made.property_map[b"REAL_TOPIC"] == HALF
    with pytest.raises(RefusedMessageError, match=r"is an open transaction's; it is left out$"):
        copies.level_delivered(made, writer, source=0)


def test_a_commit_goes_where_it_belongs(writer: Writer) -> None:
    made = transactions.committed(half(writer), writer, source=77, now_ms=NOW_MS)
    assert (made.topic, made.queue_id, made.flag, made.sys_flag) == (b"Orders", 3, 5, 0x308)
    assert made.prepared_transaction_offset == 77
    assert made.property_map[b"TRAN_MSG"] == b"TRUE"
    kept = {b"REAL_TOPIC", b"REAL_QID"} & made.property_map.keys()
    assert len(kept) == (2 if writer.release.commit_keeps_real_topic else 0)


def test_a_commit_may_have_to_wait(writer: Writer) -> None:
    """For a level; in 5.x for a time, too. Then it has REAL_TOPIC in every release."""
    first = half(writer)
    timed = b"rmq_sys_wheel_timer" if writer.release.has_timers else b"Orders"
    for more, topic in (
        (b"DELAY\x012\x02", record.SCHEDULE_TOPIC),
        (b"TIMER_DELAY_SEC\x019\x02", timed),
    ):
        separator = b"" if first.properties.endswith(b"\x02") else b"\x02"
        waiting = replace(first, properties=first.properties + separator + more)
        made = transactions.committed(waiting, writer, source=1, now_ms=NOW_MS)
        assert (made.topic, made.sys_flag) == (topic, 0x308)
        assert made.property_map[b"REAL_TOPIC"] == b"Orders"
        assert made.property_map[b"REAL_QID"] == b"3"


def test_a_half_that_belongs_nowhere_cannot_be_committed(writer: Writer) -> None:
    for text in (b"", b"REAL_TOPIC\x01T\x02", b"REAL_TOPIC\x01T\x02REAL_QID\x01x\x02"):
        lost = replace(half(writer), properties=text)
        with pytest.raises(RefusedMessageError, match="at 0 does not say to which queue") as e:
            transactions.committed(lost, writer, source=0, now_ms=NOW_MS)
        assert e.value.code == Refusal.SYSTEM_ERROR


def test_ops_name_one_end_or_several(writer: Writer) -> None:
    def op(*offsets: int) -> Record:
        return transactions.op(offsets, 2, writer, source=-9, now_ms=NOW_MS)

    if writer.release is RELEASE_4_9_7:
        with pytest.raises(ValueError, match="too many values"):
            op(5, 6)
        assert op(5).body == b"5"
        assert op(5).properties == b"WAIT\x01true\x02TAGS\x01d"
    else:
        assert (op(5).body, op(5, 6).body) == (b"5,", b"5,6,")
        assert op(5).properties == b"WAIT\x01true\x02TAGS\x01d\x02"
    made = op(5)
    assert (made.topic, made.queue_id) == (b"RMQ_SYS_TRANS_OP_HALF_TOPIC", 2)
    assert (made.born_host, made.store_host, made.born_timestamp) == (HOST, HOST, NOW_MS)
    assert made.prepared_transaction_offset == -9


def test_a_discarded_half_keeps_all_it_has(writer: Writer) -> None:
    source = replace(half(writer, b"WAIT\x01true\x02"), reconsume_times=2)
    made = transactions.discarded(source, writer, source=3, now_ms=NOW_MS)
    assert (made.topic, made.queue_id) == (b"TRANS_CHECK_MAX_TIME_TOPIC", 0)
    assert (made.flag, made.reconsume_times, made.sys_flag) == (5, 2, 0x300)
    assert made.properties == source.properties
    assert made.prepared_transaction_offset == 3
