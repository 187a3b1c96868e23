"""Sends: what is refused, what waits, what is dead, and batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reput.overlay.records import sends
from reput.overlay.records.release import (
    RELEASE_4_9_7,
    RELEASE_5_3_3,
    RELEASE_5_5_1,
    Refusal,
    Writer,
)
from reput.overlay.records.sends import Recall, RetryGroup, Send, Target
from reput.store.errors import RefusedMessageError
from reput.store.log import record
from reput.store.log.record import Record
from tests.overlay.conftest import HOST
from tests.support.wire import TWO_MESSAGES

NOW_MS = 1_800_000_000_000
DAYS_MS = 24 * 3600 * 1000
MESSAGE = Send(
    topic=b"Orders",
    queue_id=3,
    body=b"body",
    properties=b"KEYS\x01k\x02",
    born_timestamp=5,
    born_host=("::1", 77),
)
TARGET = Target(4)
RETRY = Target(1, RetryGroup(2))


def send(message: Send, target: Target, writer: Writer) -> Record:
    return sends.sent(message, target, writer, unique_key=b"made", now_ms=NOW_MS)


def refusal(message: Send, target: Target, writer: Writer) -> tuple[int, str]:
    with pytest.raises(RefusedMessageError) as refused:
        send(message, target, writer)
    assert refused.value.fields["code"] == refused.value.code
    return refused.value.code, str(refused.value)


def test_a_broker_s_own_properties_are_added(writer: Writer) -> None:
    made = send(replace(MESSAGE, properties=b"WAIT\x01true\x02POP_CK\x01x\x02"), TARGET, writer)
    marks = {b"MSG_REGION": b"DefaultRegion", b"TRACE_ON": b"true", b"UNIQ_KEY": b"made",
             b"CLUSTER": b"DefaultCluster", b"WAIT": b"true"}  # fmt: skip
    old = {b"CLUSTER": b"DefaultCluster", b"POP_CK": b"x"}
    assert made.property_map == (marks if writer.release.marks_sends else old)
    assert (made.topic, made.queue_id, made.sys_flag, made.store_host) == (b"Orders", 3, 0, HOST)
    assert made.prepared_transaction_offset == 0
    known = replace(MESSAGE, properties=b"UNIQ_KEY\x01mine\x02")
    assert send(known, TARGET, writer).property_map[b"UNIQ_KEY"] == b"mine"
    assert send(MESSAGE, Target(4, has_multi_tags=True), writer).sys_flag == 2


@pytest.mark.parametrize(
    "topic", (b"", b"a b", "ü".encode(), b"a" * 128, b"%DLQ%" + b"g" * 123, b"%RETRY%" + b"g" * 256)
)
def test_names_that_no_topic_has(writer: Writer, topic: bytes) -> None:
    code, _ = refusal(replace(MESSAGE, topic=topic), TARGET, writer)
    assert code == (1 if writer.release is RELEASE_4_9_7 else 29)


def test_the_longest_names(writer: Writer) -> None:
    """A group's may have 255 bytes, so that its retry topic has more than a broker takes."""
    assert send(replace(MESSAGE, topic=b"a" * 127), TARGET, writer).topic == b"a" * 127
    retry = replace(MESSAGE, topic=b"%RETRY%" + b"g" * 255, queue_id=0)
    made = send(retry, RETRY, writer)
    assert (made.topic, made.magic) == (retry.topic, record.MESSAGE_MAGIC_V2)


@pytest.mark.parametrize("topic", sorted(sends.RESERVED_TOPICS))
def test_rocketmq_s_own_topics_are_refused(writer: Writer, topic: bytes) -> None:
    code, line = refusal(replace(MESSAGE, topic=topic), TARGET, writer)
    assert code == 16
    assert line == f"Sending message to topic[{topic.decode()}] is forbidden."


def test_queues_that_the_topic_does_not_have(writer: Writer) -> None:
    for queue_id in (4, -1):
        code, _ = refusal(replace(MESSAGE, queue_id=queue_id), TARGET, writer)
        assert code == writer.release.wrong_target


def test_bodies_are_limited(writer: Writer) -> None:
    small = replace(writer, max_message_size=10)
    assert send(replace(MESSAGE, body=b"x" * 10), TARGET, small).body == b"x" * 10
    for body in (b"x" * 11, b""):
        assert refusal(replace(MESSAGE, body=body), TARGET, small)[0] == Refusal.MESSAGE_ILLEGAL


def test_properties_are_limited(writer: Writer) -> None:
    def filled(count: int) -> Send:
        return replace(MESSAGE, properties=b"UNIQ_KEY\x01u\x02a\x01" + b"x" * count)

    most = 32767 - len(send(filled(1), TARGET, writer).properties) + 1
    assert len(send(filled(most), TARGET, writer).properties) == 32767
    assert refusal(filled(most + 1), TARGET, writer)[0] == 13


@pytest.mark.parametrize(
    ("attempts", "limit", "lock", "dead"),
    (
        (0, 2, False, ()), (1, 2, False, ()), (2, 2, False, ("4.9.7",)),
        (3, 2, False, ("4.9.7", "5.3.3", "5.5.1")), (2, 2, True, ("4.9.7", "5.3.3", "5.5.1")),
        (0, 2, True, ("5.3.3", "5.5.1")), (2, None, False, ("4.9.7",)),
        (3, None, False, ("4.9.7", "5.3.3", "5.5.1")), (2, 3, False, ()),
        (0, 0, False, ("4.9.7",)), (1, 0, False, ("4.9.7", "5.3.3", "5.5.1")),
    ),
)  # fmt: skip
def test_a_retry_is_dead_after_its_attempts(
    writer: Writer, attempts: int, limit: int | None, lock: bool, dead: tuple[str, ...]
) -> None:
    """Or while its group holds a lock; in 4.9 it waits for its level first."""
    retry = replace(
        MESSAGE, topic=b"%RETRY%G", queue_id=0, properties=b"DELAY\x015\x02",
        reconsume_times=attempts, max_reconsume_times=limit,
    )  # fmt: skip
    made = send(retry, Target(1, RetryGroup(2, lock)), writer)
    assert made.reconsume_times == attempts
    is_dead = writer.release.name in dead
    if is_dead and writer.release is not RELEASE_4_9_7:
        assert (made.topic, made.queue_id) == (b"%DLQ%G", 0)
        assert made.property_map[b"DELAY"] == b"-1"
        assert b"REAL_TOPIC" not in made.property_map
    else:
        assert (made.topic, made.queue_id) == (record.SCHEDULE_TOPIC, 4)
        assert made.property_map[b"DELAY"] == b"5"
        assert made.property_map[b"REAL_TOPIC"] == (b"%DLQ%G" if is_dead else b"%RETRY%G")


def test_a_retry_of_no_group_is_refused(writer: Writer) -> None:
    retry = replace(MESSAGE, topic=b"%RETRY%G", queue_id=0)
    assert refusal(retry, Target(1), writer) == (26, "subscription group not exist, G")


@pytest.mark.parametrize(("delay", "level"), (("1", 1), ("+2", 2), ("18", 18), ("19", 18)))
def test_delay_levels(writer: Writer, delay: str, level: int) -> None:
    made = send(replace(MESSAGE, properties=f"DELAY\x01{delay}\x02".encode()), TARGET, writer)
    assert (made.topic, made.queue_id) == (record.SCHEDULE_TOPIC, level - 1)
    assert made.property_map[b"REAL_TOPIC"] == b"Orders"
    assert made.property_map[b"REAL_QID"] == b"3"
    two = replace(writer, max_delay_level=2)
    assert send(replace(MESSAGE, properties=b"DELAY\x013"), TARGET, two).queue_id == 1


@pytest.mark.parametrize("delay", ("0", "-1", "x", "1.5", "99999999999"))
def test_what_is_no_delay_level(writer: Writer, delay: str) -> None:
    """A broker answers text with an error; here it counts as none."""
    made = send(replace(MESSAGE, properties=f"DELAY\x01{delay}\x02".encode()), TARGET, writer)
    assert made.topic == b"Orders"
    assert made.property_map[b"DELAY"] == delay.encode()


TIMES = (
    (f"TIMER_DELIVER_MS\x01{NOW_MS + 1}", NOW_MS),
    (f"TIMER_DELIVER_MS\x01{NOW_MS + 1000}", NOW_MS),
    (f"TIMER_DELIVER_MS\x01{NOW_MS + 1001}", NOW_MS + 1000),
    ("TIMER_DELAY_MS\x012500", NOW_MS + 2000),
    ("TIMER_DELAY_SEC\x013", NOW_MS + 2000),
    (f"TIMER_DELAY_MS\x019000\x02TIMER_DELIVER_MS\x01{NOW_MS + 1}", NOW_MS + 8000),
    (f"TIMER_DELAY_MS\x019000\x02TIMER_DELAY_SEC\x012\x02TIMER_DELIVER_MS\x01{NOW_MS}",
     NOW_MS + 1000),
    (f"TIMER_DELAY_MS\x01{3 * DAYS_MS}", NOW_MS + 3 * DAYS_MS - 1000),
)  # fmt: skip


@pytest.mark.parametrize(("text", "out_ms"), TIMES)
def test_times_to_wait_for(writer: Writer, text: str, out_ms: int) -> None:
    made = send(replace(MESSAGE, properties=text.encode()), TARGET, writer)
    if not writer.release.has_timers:
        assert made.topic == b"Orders"
        return
    assert (made.topic, made.queue_id) == (b"rmq_sys_wheel_timer", 0)
    assert made.property_map[b"TIMER_OUT_MS"] == str(out_ms).encode()
    assert made.property_map[b"REAL_TOPIC"] == b"Orders"
    assert made.property_map[b"REAL_QID"] == b"3"


@pytest.mark.parametrize("text", (f"TIMER_DELIVER_MS\x01{NOW_MS}", "TIMER_DELAY_SEC\x01-1",
                                  f"TIMER_DELAY_MS\x019\x02TIMER_OUT_MS\x01{NOW_MS}"))  # fmt: skip
def test_times_that_have_come_or_were_waited_for(writer: Writer, text: str) -> None:
    made = send(replace(MESSAGE, properties=text.encode()), TARGET, writer)
    assert made.topic == b"Orders"
    assert text.encode().split(b"\x01")[0] in made.property_map


@pytest.mark.parametrize("text", ("TIMER_DELIVER_MS\x01soon", "TIMER_DELAY_SEC\x011e3",
                                  f"TIMER_DELAY_MS\x01{3 * DAYS_MS + 1}"))  # fmt: skip
def test_times_that_cannot_be(text: str) -> None:
    asked = replace(MESSAGE, properties=text.encode())
    for release in (RELEASE_5_3_3, RELEASE_5_5_1):
        assert refusal(asked, TARGET, Writer(release, HOST))[0] == Refusal.MESSAGE_ILLEGAL
    assert send(asked, TARGET, Writer(RELEASE_4_9_7, HOST)).topic == b"Orders"


def test_a_batch_is_a_record_for_each_message(writer: Writer) -> None:
    """The batch is one that RocketMQ's own encoder made."""
    batch = replace(MESSAGE, body=TWO_MESSAGES, properties=b"WAIT\x01true\x02", sys_flag=0x100)
    first, second = sends.sent_batch(batch, TARGET, writer)
    assert [(first.body, first.flag), (second.body, second.flag)] == [(b"first", 7), (b"", -1)]
    assert {first.queue_id, second.queue_id, first.sys_flag, second.sys_flag} == {3, 0x100}
    own = b"KEYS\x01k1 k2\x02TAGS\x01Aa\x02", b"TAGS\x01BB\x02"
    common = {
        "4.9.7": b"CLUSTER\x01DefaultCluster\x02WAIT\x01true",
        "5.3.3": b"MSG_REGION\x01DefaultRegion\x02CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02"
        b"TRACE_ON\x01true\x02",
        "5.5.1": b"",
    }[writer.release.name]
    assert [first.properties, second.properties] == [text + common for text in own]


@pytest.mark.parametrize(
    "changes",
    (
        {"topic": b"%RETRY%G"}, {"properties": b"DELAY\x011"}, {"sys_flag": 4},
        {"body": TWO_MESSAGES[:-1]}, {"body": TWO_MESSAGES + b"\0"}, {"body": b""},
    ),
)  # fmt: skip
def test_batches_that_are_refused(writer: Writer, changes: dict[str, object]) -> None:
    batch = replace(MESSAGE, **({"body": TWO_MESSAGES} | changes))  # type: ignore[arg-type]
    with pytest.raises(RefusedMessageError) as refused:
        sends.sent_batch(batch, TARGET, writer)
    assert refused.value.code == Refusal.MESSAGE_ILLEGAL


def test_recalls(writer: Writer) -> None:
    def recall(due_ms: int) -> Record:
        asked = Recall(b"pg", b"Orders", b"key", due_ms)
        return sends.recalled(asked, writer, born_host=("10.0.0.1", 1), now_ms=NOW_MS)

    if not writer.release.has_timers:
        with pytest.raises(RefusedMessageError, match=r"RocketMQ 4\.9\.7 recalls no") as refused:
            recall(NOW_MS + 1)
        assert refused.value.code == Refusal.REQUEST_CODE_NOT_SUPPORTED
        return
    made = recall(NOW_MS + 3 * DAYS_MS - 1)
    assert made.property_map[b"TIMER_OUT_MS"] == str(NOW_MS + 3 * DAYS_MS - 1000).encode()
    assert made.born_timestamp == NOW_MS
    for due_ms in (NOW_MS, NOW_MS - 1, NOW_MS + 3 * DAYS_MS):
        with pytest.raises(RefusedMessageError, match="timestamp invalid") as refused:
            recall(due_ms)
        assert refused.value.code == 604


def test_a_message_that_recalls_after_the_fact_is_refused() -> None:
    late = f"TIMER_DEL_UNIQKEY\x01k\x02TIMER_DELIVER_MS\x01{NOW_MS}".encode()
    code, line = refusal(replace(MESSAGE, properties=late), TARGET, Writer(RELEASE_5_3_3, HOST))
    assert code == Refusal.MESSAGE_ILLEGAL
    assert line.endswith("has been delivered: recall it earlier")
