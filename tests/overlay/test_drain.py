"""The sends by which an overlay's records come into a broker, and what is asked after a kill."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reput.overlay.drain import drain
from reput.overlay.drain.contents import Contents, Entry, Kind, opened_contents
from reput.overlay.drain.drain import (
    NAMED_AT_ONCE,
    TOO_MANY,
    Drain,
    Drained,
    delay_level,
    drained,
    is_same,
    stored_topics,
)
from reput.overlay.drain.drainjournal import DrainJournal, DrainNotes
from reput.overlay.records.copies import message_id
from reput.overlay.records.release import RELEASE_5_3_3, Writer
from reput.overlay.records.sends import RetryGroup, Send, Target, sent
from reput.store import fsops
from reput.store.errors import RefusedMessageError, StoreError, UsageError
from reput.store.log import properties
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record

NOW = 1_000_000_000_000
LEVELS = (1000, 5000, 10_000)
TARGET = "127.0.0.1:10911"


def text_of(values: Mapping[str, str]) -> bytes:
    """The text of properties."""
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items()).encode()


def record_of(topic: bytes = b"%RETRY%g", attempts: int = 2, **values: str) -> Record:
    text = text_of(values)
    return Record(
        topic=topic, body=b"body", properties=text, property_map=properties.parse(text), flag=7,
        reconsume_times=attempts, born_timestamp=5, sys_flag=0x38, store_timestamp=NOW,
    )  # fmt: skip


def entry_of(record: Record, kind: Kind, topic: bytes | None = None, **more: int) -> Entry:
    return Entry(
        kind, record.physical_offset, topic or record.topic, record.queue_id, record.queue_offset,
        record.store_timestamp, record.reconsume_times, **more,
    )  # fmt: skip


def values_of(message: Send) -> dict[str, str]:
    return properties.as_texts(properties.parse(message.properties))


@pytest.mark.parametrize(
    ("left", "level"), [(-1, 0), (0, 0), (1, 1), (1000, 1), (1001, 2), (10_000, 3), (10_001, 3)]
)
def test_the_level_of_what_is_left_to_wait(left: int, level: int) -> None:
    assert delay_level(left, LEVELS) == level


def test_levels_may_have_any_order() -> None:
    assert delay_level(900, (5000, 1000, 9000)) == 2
    assert delay_level(9001, (5000, 1000, 9000)) == 3


def test_a_retry_keeps_what_its_consumer_sees() -> None:
    """It has attempts left in every release, and is no transaction."""
    names = {"UNIQ_KEY": "K", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "O", "PGROUP": "p"}
    dropped = {"REAL_TOPIC": "%RETRY%g", "REAL_QID": "3", "TRAN_MSG": "true", "MIN_OFFSET": "1",
               "MAX_OFFSET": "2", "RECONSUME_TIME": "1", "MAX_RECONSUME_TIMES": "2",
               "CONSUME_START_TIME": "9"}  # fmt: skip
    record = record_of(attempts=16, DELAY="4", **names, **dropped)
    message = drained(record, entry_of(record, Kind.DELIVERED), 0)
    assert values_of(message) == {**names, "DELAY": "0"}
    assert (message.topic, message.queue_id, message.body) == (b"%RETRY%g", 0, b"body")
    assert (message.reconsume_times, message.max_reconsume_times) == (16, 17)
    assert (message.flag, message.born_timestamp, message.sys_flag) == (7, 5, 0x8)
    assert stored_topics(message, Kind.DELIVERED) == (b"%RETRY%g",)
    message = drained(record, entry_of(record, Kind.WAITING), 3)
    assert values_of(message)["DELAY"] == "3"
    assert stored_topics(message, Kind.WAITING) == (b"SCHEDULE_TOPIC_XXXX",)


@pytest.mark.parametrize("attempts", [0, 1, 17])
def test_a_broker_takes_a_dead_letter_for_one(attempts: int) -> None:
    """It has more attempts than it may, and goes to the retry topic."""
    record = record_of(b"%DLQ%g", attempts, UNIQ_KEY="K", DELAY="-1", REAL_TOPIC="%RETRY%g")
    message = drained(record, entry_of(record, Kind.DEAD), 0)
    assert message.topic == b"%RETRY%g"
    writer = Writer(RELEASE_5_3_3, ("127.0.0.1", 1))
    stored = sent(message, Target(1, RetryGroup()), writer, unique_key=b"", now_ms=NOW)
    assert (stored.topic, stored.reconsume_times) == (b"%DLQ%g", attempts)
    assert stored_topics(message, Kind.DEAD) == (stored.topic,)
    assert is_same(stored, message, Kind.DEAD)


def test_a_message_of_a_topic_goes_there() -> None:
    """Delivered, it neither waits nor asks for a time; waiting for a time, it still does."""
    times = {"TIMER_OUT_MS": "5000", "TIMER_DELAY_SEC": "3", "TIMER_DELAY_MS": "4",
             "TIMER_DELIVER_MS": "5", "TIMER_ENQUEUE_MS": "1", "TIMER_DEQUEUE_MS": "1"}  # fmt: skip
    record = record_of(b"Topic", UNIQ_KEY="K", REAL_QID="3", DELAY="2", **times)
    message = drained(record, entry_of(record, Kind.DELIVERED), 0)
    assert values_of(message) == {"UNIQ_KEY": "K"}
    assert (message.topic, message.queue_id) == (b"Topic", 3)
    assert message.max_reconsume_times is None
    record = record_of(b"rmq_sys_wheel_timer", UNIQ_KEY="K", REAL_TOPIC="Topic", **times)
    message = drained(record, entry_of(record, Kind.WAITING, b"Topic", due_ms=6000), 0)
    assert values_of(message) == {"UNIQ_KEY": "K", "TIMER_DELIVER_MS": "6000"}
    assert stored_topics(message, Kind.WAITING) == (b"rmq_sys_wheel_timer", b"Topic")


@pytest.mark.parametrize("queue_id", [0, 3])
def test_a_message_that_waits_for_a_level_goes_to_its_own_queue(queue_id: int) -> None:
    """Its record is in the queue of the level."""
    record = record_of(b"SCHEDULE_TOPIC_XXXX", REAL_TOPIC="Topic", REAL_QID=str(queue_id))
    record = replace(record, queue_id=8)
    message = drained(record, entry_of(record, Kind.WAITING, b"Topic", level=9), 2)
    assert (message.topic, message.queue_id) == (b"Topic", queue_id)


def test_a_message_without_a_key_gets_one_of_its_place() -> None:
    """The same after a kill, and another one at another place."""
    record = record_of()
    keys = [
        values_of(drained(one, entry_of(one, Kind.DELIVERED), 0))["UNIQ_KEY"]
        for one in (record, record, replace(record, physical_offset=8))
    ]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    "other",
    [
        {"reconsume_times": 3}, {"body": b"other"}, {"born_timestamp": 6},
        {"properties": "ORIGIN_MESSAGE_ID"}, {"properties": "DELAY"}, {"properties": "UNIQ_KEY"},
        {"properties": "REAL_TOPIC"},
    ],
    ids=str,
)  # fmt: skip
def test_one_key_may_belong_to_several_messages(other: dict[str, object]) -> None:
    names = {"UNIQ_KEY": "K", "ORIGIN_MESSAGE_ID": "O"}
    record = record_of(**names)
    message = drained(record, entry_of(record, Kind.DELIVERED), 0)
    stored = replace(record, property_map={**record.property_map, b"DELAY": b"0"})
    assert is_same(stored, message, Kind.DELIVERED)
    changed = other.pop("properties", None)
    if changed is not None:
        values = {**stored.property_map, str(changed).encode(): b"9"}
        stored = replace(stored, property_map=values)
    assert not is_same(replace(stored, **other), message, Kind.DELIVERED)  # type: ignore[arg-type]


class PlainBroker:
    """A broker in memory; after ``answers`` of them it loses an answer, and everything after."""

    def __init__(self) -> None:
        self.stored: list[Record] = []
        self.answers = 1 << 30
        self.refused: set[bytes] = set()
        self.listed = 32
        self.stores_unanswered = True

    def send(self, message: Send) -> str:
        if message.body in self.refused:
            raise RefusedMessageError(13, "code 13")
        writer = Writer(RELEASE_5_3_3, ("127.0.0.1", 1))
        target = Target(1, RetryGroup())
        stored = sent(message, target, writer, unique_key=b"", now_ms=NOW)
        stored = replace(stored, physical_offset=100 * len(self.stored))
        self.answers -= 1
        if self.answers >= 0 or self.stores_unanswered:
            self.stored.append(stored)
        if self.answers < 0:
            raise StoreError("no answer")
        return message_id(stored).decode()

    def find(self, topic: bytes, unique_key: bytes) -> Sequence[Record]:
        found = [
            one
            for one in self.stored
            if one.topic == topic and one.property_map[b"UNIQ_KEY"] == unique_key
        ]
        return found[: self.listed]

    def wait_until_found(self) -> None:
        pass

    def delay_levels_ms(self) -> Sequence[int]:
        return LEVELS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An overlay of a hundred retries; they have three keys, and many are alike."""
    root = tmp_path / "overlay"
    root.mkdir()
    (root / "broker.conf").write_text("mappedFileSizeCommitLog=65536\n")
    with LogAppender(root) as appender:
        for number in range(100):
            names = {"UNIQ_KEY": f"K{number % 3}", "ORIGIN_MESSAGE_ID": f"O{number % 2}"}
            one = replace(record_of(**names), body=b"body %d" % (number % 20), sys_flag=0)
            appender.append(replace(one, store_timestamp=NOW + number))
    return root


def run(
    contents: Contents, broker: PlainBroker, target: str = TARGET, now_ms: int = NOW
) -> Drained:
    notes = DrainNotes(contents.root)
    notes.check_target(target)
    with DrainJournal(notes, contents.root, target) as journal:
        return Drain(contents, notes, journal, broker, lambda: now_ms).run(lambda _: None)


def kinds(records: Sequence[Record]) -> Counter[object]:
    return Counter(
        (one.body, one.property_map[b"UNIQ_KEY"], one.property_map[b"ORIGIN_MESSAGE_ID"])
        for one in records
    )


def test_lost_answers_double_nothing(
    root: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker gets as many as there are, even of messages that are alike in everything. It lists
    all of a key."""
    rng, broker = random.Random(seed), PlainBroker()
    broker.listed = 1 << 30
    monkeypatch.setattr(drain, "MAX_FOUND", broker.listed)
    with opened_contents(root.parent) as contents:
        expected = kinds([contents.record(entry) for entry in contents.entries])
        while True:
            broker.answers = rng.randrange(1, NAMED_AT_ONCE)
            try:
                done = run(contents, broker)
            except StoreError:
                continue
            break
    assert done.before + done.found + done.sent.total() == 100
    assert kinds(broker.stored) == expected


@pytest.mark.parametrize("stores_unanswered", [True, False])
def test_a_message_in_the_broker_stands_for_one_of_ours(
    tmp_path: Path, stores_unanswered: bool
) -> None:
    """One of three that are alike and named together was sent, and its answer is lost."""
    root, broker = tmp_path / "overlay", PlainBroker()
    alike = replace(record_of(UNIQ_KEY="K"), sys_flag=0)
    with LogAppender(root) as appender:
        appender.append_all([alike] * 3)
    broker.answers, broker.stores_unanswered = 0, stores_unanswered
    with opened_contents(tmp_path) as contents:
        with pytest.raises(StoreError, match="no answer"):
            run(contents, broker)
        broker.answers = 1 << 30
        done = run(contents, broker)
    assert (done.found, done.sent.total()) == ((1, 2) if stores_unanswered else (0, 3))
    assert len(broker.stored) == 3


WAITING = (
    (b"SCHEDULE_TOPIC_XXXX", "%RETRY%g"), (b"SCHEDULE_TOPIC_XXXX", "Topic"),
    (b"rmq_sys_wheel_timer", "%RETRY%g"), (b"rmq_sys_wheel_timer", "Topic"),
)  # fmt: skip


@pytest.fixture
def waits(tmp_path: Path) -> Path:
    """An overlay in which a retry and a message of a topic wait for a level of 5 s, and a retry and
    a message of a topic for a time in 5 s."""
    (tmp_path / "overlay").mkdir()
    with LogAppender(tmp_path / "overlay") as appender:
        for number, (topic, real) in enumerate(WAITING):
            names = {"UNIQ_KEY": f"K{number}", "REAL_TOPIC": real, "REAL_QID": "0"}
            if topic == WAITING[-1][0]:
                names["TIMER_OUT_MS"] = str(NOW + 4000)
            one = replace(record_of(topic, **names), sys_flag=0, queue_id=1)
            appender.append(one)
    return tmp_path


@pytest.mark.parametrize("passed_ms", [0, 3999, 4000, 5000])
def test_what_waits_has_a_level_for_the_rest(waits: Path, passed_ms: int) -> None:
    """A retry has one in any case, since a broker gives it attempts of its own; what asks for a
    time of its own still does. What is due waits no more."""
    broker = PlainBroker()
    with opened_contents(waits) as contents:
        assert run(contents, broker, now_ms=NOW + passed_ms).sent == {Kind.WAITING: 4}
    level = {0: b"2", 3999: b"2", 4000: b"1", 5000: b"0"}[passed_ms]
    values = [one.property_map for one in broker.stored]
    assert [each.get(b"DELAY") for each in values[:3]] == [
        level, None if passed_ms == 5000 else level, level,
    ]  # fmt: skip
    assert (b"DELAY" in values[3], values[3][b"TIMER_DELIVER_MS"]) == (False, b"%d" % (NOW + 5000))


def test_a_message_is_looked_for_with_the_level_that_it_was_sent_with(waits: Path) -> None:
    """Less is left to wait when the next run looks for it."""
    broker = PlainBroker()
    broker.answers = 0
    with opened_contents(waits) as contents:
        with pytest.raises(StoreError, match="no answer"):
            run(contents, broker)
        broker.answers = 1 << 30
        done = run(contents, broker, now_ms=NOW + 4500)
    assert (done.found, done.sent, len(broker.stored)) == (1, {Kind.WAITING: 3}, 4)


def test_a_key_of_too_many_messages_is_left_to_a_person(root: Path) -> None:
    """A broker lists 32 of a key, and one that it does not list may be there."""
    broker = PlainBroker()
    broker.answers, broker.stores_unanswered = 99, False
    with opened_contents(root.parent) as contents:
        with pytest.raises(StoreError, match="no answer"):
            run(contents, broker)
        broker.answers = 1
        for _ in range(2):
            done = run(contents, broker)
            assert (done.remaining, done.sent) == (1, {})
            assert done.left_out == {TOO_MANY: 1}
    assert len(broker.stored) == 99


def test_a_message_is_named_durably_before_it_is_sent(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, too, the broker is asked for it; answers are durable before the next
    messages are named, and at the end."""
    broker, path = PlainBroker(), DrainNotes(root).path
    steps: list[str] = []
    write, sync, send = fsops.pwrite, fsops.sync, broker.send
    sync_directory = fsops.sync_directory

    def written(fd: int, data: bytes, offset: int, place: str | Path) -> None:
        if place == path:
            steps.append("name" if b"sending" in data else "note")
        write(fd, data, offset, place)

    def synced(fd: int, place: str | Path) -> None:
        if place == path:
            steps.append("sync")
        sync(fd, place)

    def synced_directory(place: Path) -> None:
        if place == path.parent:
            assert path.exists()
            steps.append("directory")
        sync_directory(place)

    def asked(message: Send) -> str:
        steps.append("send")
        return send(message)

    monkeypatch.setattr(fsops, "pwrite", written)
    monkeypatch.setattr(fsops, "sync", synced)
    monkeypatch.setattr(fsops, "sync_directory", synced_directory)
    monkeypatch.setattr(broker, "send", asked)
    with opened_contents(root.parent) as contents:
        run(contents, broker)
    words = " ".join(steps)
    portions = " ".join(
        " ".join(("name sync", *["send note"] * count)) for count in (32, 32, 32, 4)
    )
    assert words == f"directory note {portions} sync"


def test_what_a_broker_refuses_is_tried_again_by_the_next_run(root: Path) -> None:
    broker = PlainBroker()
    broker.refused = {b"body 3"}
    with opened_contents(root.parent) as contents:
        done = run(contents, broker)
        assert done.left_out == {"refused: code 13": 5}
        assert (done.remaining, done.sent) == (5, {Kind.DELIVERED: 95})
        broker.refused = set()
        done = run(contents, broker)
    assert (done.before, done.sent, done.remaining) == (95, {Kind.DELIVERED: 5}, 0)


def test_a_message_of_unclear_fate_is_looked_for_however_many_follow_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has stored it and reports an error; the messages after it are named meanwhile."""
    broker = PlainBroker()
    broker.listed = 1 << 30
    monkeypatch.setattr(drain, "MAX_FOUND", broker.listed)
    send = broker.send

    def unclear(message: Send) -> str:
        answer = send(message)
        if len(broker.stored) == 1:
            raise RefusedMessageError(1, "code 1")
        return answer

    monkeypatch.setattr(broker, "send", unclear)
    with opened_contents(root.parent) as contents:
        assert len(contents.entries) > NAMED_AT_ONCE
        assert run(contents, broker).remaining == 1
        done = run(contents, broker)
    assert (done.found, done.sent, done.remaining) == (1, {}, 0)
    assert len(broker.stored) == 100


def test_the_rest_goes_to_the_same_broker(root: Path) -> None:
    with opened_contents(root.parent) as contents:
        run(contents, PlainBroker())
        with pytest.raises(
            UsageError, match=f"went to {TARGET} already: send the rest there, with"
        ):
            run(contents, PlainBroker(), "127.0.0.1:1")


@pytest.mark.parametrize("line", [b"[]", b"{}", b'{"sending":[1],"to":"x"}', b'{"sent":"a"}'])
def test_a_journal_of_something_else(root: Path, line: bytes) -> None:
    """Nothing is sent that a broker may have."""
    path = DrainNotes(root).path
    path.parent.mkdir()
    lines = (b"%08x %s\n" % (zlib.crc32(each), each) for each in (b'{"drain":1}', line))
    path.write_bytes(b"".join(lines))
    with pytest.raises(StoreError, match=f"cannot use {path}: .*; restore it from a copy"):
        DrainNotes(root)


def test_a_journal_that_is_damaged_before_its_end(root: Path) -> None:
    """Nothing is sent again that was sent after the damage; at the end it is a torn line."""
    broker = PlainBroker()
    with opened_contents(root.parent) as contents:
        run(contents, broker)
        path = DrainNotes(root).path
        lines = path.read_bytes().splitlines(keepends=True)
        last = max(number for number, line in enumerate(lines) if b"sending" in line)
        for number, line in enumerate(lines[: last + 1]):
            damaged = [*lines[:number], line.replace(b":", b";", 1), *lines[number + 1 :]]
            path.write_bytes(b"".join(damaged))
            with pytest.raises(StoreError, match=r"damaged at byte \d+, .*; restore it from"):
                run(contents, broker)
    assert len(broker.stored) == 100


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_journal_names_what_was_sent(root: Path, cut: int) -> None:
    """Its last line was not durable: the messages after the line before it are asked for."""
    broker = PlainBroker()
    broker.listed = 1 << 30
    with opened_contents(root.parent) as contents:
        run(contents, broker)
        before = kinds(broker.stored)
        journal = DrainNotes(root).path
        journal.write_bytes(journal.read_bytes()[:-cut])
        done = run(contents, broker)
    assert done.found >= 1
    assert (done.sent.total(), kinds(broker.stored)) == (0, before)
