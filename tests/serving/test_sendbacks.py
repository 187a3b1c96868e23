"""An overlay as clients see it: what listeners send back, what they send, routes and restarts.

The clock of the overlays is ahead of the log's as far as a test says, so that an hour's delay is
over at once. The base is the same before and after every test.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from reput.overlay import overlay
from reput.overlay.delivery import deliveries
from reput.overlay.records.copies import SendBack, level_delivered, message_id, sent_back
from reput.overlay.records.release import RELEASE_5_3_3, Writer
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from reput.store.state.consumeroffset import TopicGroup, read_committed
from tests.readers.stores import SmallStore
from tests.support.golden import log_records, tree
from tests.support.processes import became
from tests.support.remoting import Answer, Client, heartbeat, served, served_stores

SEND, QUERY, UPDATE, MAX, VIEW, SEND_BACK, LOCK, ROUTE, SEND_V2, SEND_BATCH = (
    10, 14, 15, 30, 33, 36, 41, 105, 310, 320,
)  # fmt: skip
WAITS = "SCHEDULE_TOPIC_XXXX"
HOUR_MS = 3_600_000
QUEUES = {"group": {}, "many": {"retryQueueNums": 3}, "none": {"retryQueueNums": 0},
          "few": {"retryMaxTimes": 1}}  # fmt: skip
SETTINGS = "brokerName=B\nmessageDelayLevel=1h 1h 1h 1h\n"
BODIES = (b"first", b"second", b"third")


@dataclass
class Clock:
    """The overlays' clock."""

    ahead_ms: int = 0

    def time_ns(self) -> int:
        return time.time_ns() + self.ahead_ms * 1_000_000


@dataclass
class Served:
    """A server of a base with its overlay, and a client of each."""

    output: Path
    base_port: int
    port: int
    base: Client
    twin: Client
    copies: list[Record]
    """The base's records."""

    @property
    def writer(self) -> Writer:
        """The broker whose name stands in the overlay's records."""
        host = ("127.0.0.1", self.port)
        return Writer(RELEASE_5_3_3, host, max_delay_level=4)

    def stored(self, topic: str = "") -> list[Record]:
        """The overlay's records, of all topics or of one."""
        return overlay_records(self.output, topic)

    def send_back(self, copy: Record, client: Client | None = None, **more: object) -> int:
        """Send a copy back, at the base's port if no other is given; the answer's code."""
        return (client or self.base).ask(SEND_BACK, of(copy, **more)).code

    def delivered(self, count: int) -> list[Record]:
        """Wait until so many records of the retry topic can be pulled, and no more."""
        place = {"topic": "%RETRY%group", "queueId": 0}
        assert became(lambda: int(self.twin.ask(MAX, place).ext.get("offset", 0)) >= count, 30)
        found = self.stored("%RETRY%group")
        assert len(found) == count
        return found


def overlay_records(output: Path, topic: str = "") -> list[Record]:
    found = log_records(output / "overlay")
    return [one for one in found if not topic or one.topic == topic.encode()]


def of(copy: Record, **more: object) -> dict[str, object]:
    """The request that sends a copy back."""
    return {
        "group": "group", "offset": copy.physical_offset, "delayLevel": 0,
        "originTopic": copy.property_map.get(b"RETRY_TOPIC", copy.topic).decode(),
        "originMsgId": copy.property_map[b"UNIQ_KEY"].decode(), "maxReconsumeTimes": 16,
        "unitMode": "false", **more,
    }  # fmt: skip


def message(**more: object) -> dict[str, object]:
    """The fields of a message that a client of ``group`` sends to its retry topic."""
    text = "UNIQ_KEY\x01K\x02RETRY_TOPIC\x01Topic\x02DELAY\x013\x02"
    return {
        "a": "CLIENT_INNER_PRODUCER", "b": "%RETRY%group", "c": "TBW102", "d": 4, "e": 0, "f": 0,
        "g": 1_700_000_000_000, "h": 7, "i": text, "j": 1, "k": "false", "l": 16, "m": "false",
        **more,
    }  # fmt: skip


LONG = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip


def as_stored(record: Record, stored: Record) -> Record:
    """A record with what only the log sets."""
    return replace(
        record, queue_offset=stored.queue_offset, physical_offset=stored.physical_offset,
        store_timestamp=stored.store_timestamp, body_crc=stored.body_crc,
        total_size=stored.total_size,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Small files, and deliveries that look at this clock all the time."""
    found = Clock()
    monkeypatch.setattr(overlay, "time", SimpleNamespace(time_ns=found.time_ns))
    monkeypatch.setattr(overlay, "FILE_SIZE", 1 << 16)
    monkeypatch.setattr(deliveries, "MAX_PAUSE_SECONDS", 0.02)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A base of three messages; the test must leave every byte as it was."""
    small = SmallStore(tmp_path / "store")
    for number, body in enumerate(BODIES):
        properties = b"KEYS\x01k\x02TAGS\x01A\x02UNIQ_KEY\x01U%d\x02" % number
        small.append(body=body, properties=properties, flag=number)
    root = small.write()
    with (root / "broker.conf").open("a") as conf:
        conf.write(SETTINGS)
    (root / "config").mkdir()
    table = str({"subscriptionGroupTable": QUEUES}).replace("'", '"')
    (root / "config" / "subscriptionGroup.json").write_text(table)
    before = tree(root)
    yield root
    assert tree(root) == before


@pytest.fixture
def output(store: Path, tmp_path: Path) -> Path:
    """An output that has the store's queues."""
    shutil.copytree(store / "consumequeue", tmp_path / "output" / "consumequeue")
    return tmp_path / "output"


@contextmanager
def serving(store: Path, output: Path) -> Iterator[Served]:
    """Serve a base with its overlay during the block."""
    with (
        served_stores([(store, output)], overlay=True) as (base_port, port),
        Client(base_port) as base,
        Client(port) as twin,
    ):
        yield Served(output, base_port, port, base, twin, log_records(store))


@pytest.fixture
def server(store: Path, output: Path) -> Iterator[Served]:
    """A server of the base with its overlay."""
    with serving(store, output) as found:
        yield found


def test_a_message_that_is_sent_back_waits_and_is_delivered(server: Served, clock: Clock) -> None:
    """Both records have every field that a broker's have, and name the record they are made of."""
    copy = server.copies[1]
    assert server.send_back(copy) == 0
    (waiting,) = server.stored()
    source = -(copy.physical_offset + 1)
    asked = SendBack(b"group", 0)
    made = sent_back(copy, asked, server.writer, source=source, now_ms=0)
    assert waiting == as_stored(made, waiting)
    assert (waiting.topic, waiting.queue_id) == (WAITS.encode(), 2)
    assert (waiting.reconsume_times, waiting.prepared_transaction_offset) == (1, source)
    assert (waiting.body, waiting.flag) == (b"second", 1)
    assert waiting.store_host == ("127.0.0.1", server.port)
    assert waiting.property_map == {
        b"KEYS": b"k", b"TAGS": b"A", b"UNIQ_KEY": b"U1", b"RETRY_TOPIC": b"Topic",
        b"WAIT": b"false", b"DELAY": b"3", b"ORIGIN_MESSAGE_ID": message_id(copy),
        b"REAL_TOPIC": b"%RETRY%group", b"REAL_QID": b"0",
    }  # fmt: skip
    clock.ahead_ms = HOUR_MS
    (delivered,) = server.delivered(1)
    made = level_delivered(waiting, server.writer, source=waiting.physical_offset + 1)
    assert delivered == as_stored(made, delivered)
    assert delivered.reconsume_times == 1


def test_the_answer_comes_when_the_record_is_durable(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later request of the same client is answered before. A copy that is sent back again
    meanwhile is written once, and both requests are answered."""
    is_slow, may_end = threading.Event(), threading.Event()
    sync = LogAppender.sync

    def slow(appender: LogAppender) -> None:
        is_slow.set()
        assert may_end.wait(60)
        sync(appender)

    monkeypatch.setattr(LogAppender, "sync", slow)
    first = server.base.send(SEND_BACK, of(server.copies[0]))
    assert is_slow.wait(60)
    second = server.base.send(SEND_BACK, of(server.copies[0]))
    later = server.base.send(MAX, {"topic": "Topic", "queueId": 0})
    try:
        assert server.base.receive().opaque == later
    finally:
        may_end.set()
    answers = {found.opaque: found.code for found in (server.base.receive(), server.base.receive())}
    assert answers == {first: 0, second: 0}
    assert len(server.stored()) == 1


def test_a_failed_write_is_never_answered_with_success(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the one that failed nor any later one, and a send has a code of its own."""

    def failing(_appender: LogAppender) -> None:
        raise OSError(5, "a bad disk")

    monkeypatch.setattr(LogAppender, "sync", failing)
    assert [server.send_back(server.copies[0]) for _ in range(2)] == [1, 1]
    assert server.twin.ask(SEND_V2, message(), b"body").code == 14


def test_a_copy_is_sent_back_once_until_it_was_delivered(server: Served, clock: Clock) -> None:
    """Each group has its own, at either port; once delivered, the copy may fail again."""
    copy = server.copies[0]
    for _ in range(2):
        assert server.send_back(copy) == 0
    assert server.send_back(copy, group="many") == 0
    assert [r.property_map[b"REAL_TOPIC"] for r in server.stored()] == [
        b"%RETRY%group", b"%RETRY%many",
    ]  # fmt: skip
    clock.ahead_ms = HOUR_MS
    (retry,) = server.delivered(1)
    clock.ahead_ms = 0
    for _ in range(2):
        assert server.send_back(copy) == 0
        assert server.send_back(retry, server.twin) == 0
    waiting = server.stored(WAITS)[2:]
    assert [(r.reconsume_times, r.prepared_transaction_offset) for r in waiting] == [
        (1, -(copy.physical_offset + 1)), (2, retry.physical_offset + 1),
    ]  # fmt: skip
    assert waiting[1].property_map[b"DELAY"] == b"4"
    assert waiting[1].property_map[b"ORIGIN_MESSAGE_ID"] == message_id(copy)


@pytest.mark.parametrize("more", [{"delayLevel": -1}, {"maxReconsumeTimes": 0}])
def test_a_dead_letter_is_one_at_once(server: Served, more: dict[str, object]) -> None:
    """It is written once, however often it is sent back."""
    for _ in range(2):
        assert server.send_back(server.copies[2], **more) == 0
    (dead,) = server.stored()
    assert (dead.topic, dead.queue_id, dead.reconsume_times) == (b"%DLQ%group", 0, 1)
    assert dead.prepared_transaction_offset == -(server.copies[2].physical_offset + 1)
    assert dead.property_map[b"DELAY"] == b"0"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"originTopic": "Other"}, 1),
        ({"originMsgId": "Other"}, 1),
        ({"offset": 1}, 1),
        ({"offset": -1}, 1),
        ({"offset": 1 << 40}, 1),
        ({"offset": "x"}, 1),
        ({"group": ""}, 26),
        ({"group": "%"}, 0),
        ({"group": "a b"}, 26),
        ({"group": "none"}, 0),
    ],
)
def test_what_is_not_sent_back(server: Served, more: dict[str, object], code: int) -> None:
    """A request that means no message of the log, or no group, leaves nothing; nor does one of a
    group without retry queues, which is told that all is well, as by a broker."""
    assert server.send_back(server.copies[0], **more) == code
    if more != {"group": "%"}:
        assert server.stored() == []


def test_ids_and_topics_by_which_a_copy_is_meant(server: Served) -> None:
    """The offset's id will do as well. A record that waits, and a topic that the group's members
    do not read, will not."""
    copy = server.copies[0]
    assert server.send_back(copy, originMsgId=message_id(copy).decode(), delayLevel=99) == 0
    (waiting,) = server.stored()
    assert (waiting.queue_id, waiting.property_map[b"DELAY"]) == (3, b"4")
    place = {"offset": waiting.physical_offset}
    assert became(lambda: server.twin.ask(VIEW, place).code == 0, 30)
    refused = server.twin.ask(SEND_BACK, of(waiting))
    assert (refused.code, "is none of topic" in refused.header["remark"]) == (1, True)
    assert server.base.ask(34, {}, heartbeat("c", "group", "Other")).code == 0
    assert server.send_back(server.copies[1]) == 1
    assert server.base.ask(34, {}, heartbeat("c", "group", "Topic", version=2)).code == 0
    assert server.send_back(server.copies[1]) == 0


@pytest.mark.parametrize("code", [SEND, SEND_V2])
def test_a_message_sent_to_a_retry_topic(server: Served, clock: Clock, code: int) -> None:
    """It waits for its level, or is a dead letter beyond its attempts; the answer names the queue
    that the client asked for."""

    def send(**more: object) -> Answer:
        fields = message(**more)
        named = {LONG[name]: value for name, value in fields.items()}
        return server.twin.ask(code, named if code == SEND else fields, b"body")

    answer = send()
    assert answer.code == 0
    (waiting,) = server.stored()
    assert answer.ext == {
        "msgId": message_id(waiting).decode(), "queueId": "0", "queueOffset": "0",
        "transactionId": "K", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    assert (waiting.topic, waiting.queue_id, waiting.flag) == (WAITS.encode(), 2, 7)
    assert (waiting.reconsume_times, waiting.prepared_transaction_offset) == (1, 0)
    clock.ahead_ms = HOUR_MS
    (delivered,) = server.delivered(1)
    assert delivered.prepared_transaction_offset == waiting.physical_offset + 1
    assert delivered.body == b"body"
    assert send(j=2, l=2).code == 0
    assert server.stored("%DLQ%group") == []
    assert send(j=3, l=2).code == 0
    (dead,) = server.stored("%DLQ%group")
    assert (dead.reconsume_times, dead.property_map[b"DELAY"]) == (3, b"-1")


def test_what_a_client_does_not_say(server: Served) -> None:
    """The group's largest number of attempts counts, none were made, and one that is sent back has
    sixteen; of a group without retry queues a message goes to the only one."""
    fields = message(b="%RETRY%few", j=2)
    del fields["l"]
    assert server.twin.ask(SEND_V2, fields, b"body").code == 0
    fields = message(b="%RETRY%none")
    del fields["j"], fields["l"]
    assert server.twin.ask(SEND_V2, fields, b"body").code == 0
    dead, waiting = server.stored()
    assert (dead.topic, dead.reconsume_times) == (b"%DLQ%few", 2)
    assert (waiting.topic, waiting.reconsume_times) == (WAITS.encode(), 0)
    assert waiting.property_map[b"REAL_QID"] == b"0"
    asked = of(server.copies[0])
    del asked["maxReconsumeTimes"], asked["delayLevel"]
    assert server.base.ask(SEND_BACK, asked).code == 0
    (*_, sent) = server.stored()
    assert (sent.topic, sent.property_map[b"DELAY"]) == (WAITS.encode(), b"3")


def test_a_question_of_a_tool_is_no_begin(server: Served) -> None:
    """It is told where the group would begin; nothing of it is kept, as by a member's question."""
    place = {"topic": "%RETRY%group", "queueId": 0, "consumerGroup": "group"}
    assert server.twin.ask(QUERY, place).ext == {"offset": "0"}
    # whatever was to be written is there with this commit
    place["consumerGroup"] = "many"
    assert server.twin.ask(UPDATE, {**place, "commitOffset": 0}).code == 0
    overlay = server.output / "overlay"
    assert became(lambda: bool(read_committed(overlay)), 30)
    assert read_committed(overlay) == {TopicGroup("%RETRY%group", "many"): {0: 0}}


@pytest.mark.parametrize("is_base", [True, False])
def test_what_is_sent_while_a_lock_is_held_is_a_dead_letter(server: Served, is_base: bool) -> None:
    """An orderly listener has given up; the lock is the base's or the overlay's."""
    queue = {"topic": "Topic", "brokerName": "B", "queueId": 0}
    asked = {"consumerGroup": "group", "clientId": "c", "mqSet": [queue]}
    holder = server.base if is_base else server.twin
    assert holder.ask(LOCK, {}, asked).json["lockOKMQSet"] == [queue]
    assert server.twin.ask(SEND_V2, message(), b"body").code == 0
    assert server.twin.ask(SEND_V2, message(b="%RETRY%many", j=1), b"body").code == 0
    assert [one.topic.decode() for one in server.stored()] == ["%DLQ%group", WAITS]


def test_sends_that_are_refused(server: Served) -> None:
    """Batches, other topics, and everything at the base's port."""
    for code, more, refusal in (
        (SEND_BATCH, {}, 13),
        (SEND_V2, {"m": "true"}, 13),
        (SEND_V2, {"b": "Topic"}, 16),
        (SEND_V2, {"b": "%DLQ%group"}, 16),
        (SEND_V2, {"b": WAITS}, 16),
        (SEND_V2, {"b": "%RETRY%"}, 16),
        (SEND_V2, {"e": 1}, 29),
        (SEND_V2, {"j": "x"}, 1),
    ):
        answer = server.twin.ask(code, message(**more), b"body")
        assert (more, answer.code) == (more, refusal)
    assert server.twin.ask(SEND_V2, message(), b"").code == 13
    for code in (SEND, SEND_V2, SEND_BATCH):
        assert server.base.ask(code, message(), b"body").code in (3, 16)
    assert server.stored() == []


def test_routes_and_first_positions(server: Served) -> None:
    """Both brokers are named for a retry topic, which has queues in the overlay alone."""

    def route(topic: str) -> tuple[dict[str, str], list[tuple[str, int, int]]]:
        found = server.base.ask(ROUTE, {"topic": topic}).json
        addresses = {b["brokerName"]: b["brokerAddrs"]["0"] for b in found["brokerDatas"]}
        queues = [(q["brokerName"], q["readQueueNums"], q["perm"]) for q in found["queueDatas"]]
        return addresses, queues

    base = {"B": f"127.0.0.1:{server.base_port}"}
    both = {**base, "B-reput": f"127.0.0.1:{server.port}"}
    assert route("%RETRY%group") == (both, [("B-reput", 1, 6)])
    assert route("%RETRY%unheard") == (both, [("B-reput", 1, 6)])
    assert route("Topic") == (base, [("B", 1, 4)])
    assert server.base.ask(ROUTE, {"topic": "%DLQ%group"}).code == 17
    assert server.send_back(server.copies[0], delayLevel=-1) == 0
    assert became(lambda: server.base.ask(ROUTE, {"topic": "%DLQ%group"}).code == 0, 30)
    assert route("%DLQ%group") == (both, [("B-reput", 1, 4)])
    for topic in ("%RETRY%group", "%DLQ%group"):
        place = {"consumerGroup": "group", "topic": topic, "queueId": 0}
        answer = server.twin.ask(QUERY, place)
        assert (answer.code, answer.ext) == (0, {"offset": "0"})
    place = {"consumerGroup": "group", "topic": "Topic", "queueId": 0}
    assert server.base.ask(QUERY, place).code == 22


def test_retry_topics_have_as_many_queues_as_their_group_wants(
    server: Served, clock: Clock
) -> None:
    """A message goes to any of them, and clients are told of all."""
    for copy in server.copies:
        assert server.send_back(copy, group="many") == 0
    queues = {one.property_map[b"REAL_QID"] for one in server.stored()}
    assert queues <= {b"0", b"1", b"2"}
    (data,) = server.base.ask(ROUTE, {"topic": "%RETRY%many"}).json["queueDatas"]
    assert (data["readQueueNums"], data["writeQueueNums"]) == (3, 3)
    clock.ahead_ms = HOUR_MS
    assert became(lambda: len(server.stored("%RETRY%many")) == len(BODIES), 30)


def test_a_restart_goes_on(clock: Clock, store: Path, output: Path) -> None:
    """A waiting message is delivered once by one of the servers, and a dead letter stays one."""
    with serving(store, output) as server:
        assert server.send_back(server.copies[0]) == 0
        assert server.send_back(server.copies[1], delayLevel=-1) == 0
    for _ in range(2):
        with serving(store, output) as server:
            assert server.send_back(server.copies[0]) == 0
            assert server.send_back(server.copies[1]) == 0
            assert len(server.stored()) == 2
    clock.ahead_ms = HOUR_MS
    for _ in range(2):
        with serving(store, output) as server:
            (retry,) = server.delivered(1)
            # a commit later, nothing else was due
            assert server.twin.ask(SEND_V2, message(b="%RETRY%many"), b"body").code == 0
    clock.ahead_ms = 0
    with serving(store, output) as server:
        server.delivered(1)
        assert server.send_back(server.copies[0]) == 0
        assert server.send_back(retry, server.twin) == 0
        assert server.send_back(server.copies[1]) == 0
        waiting = server.stored(WAITS)
        assert [r.reconsume_times for r in waiting if r.body != b"body"] == [1, 1, 2]
        assert len(server.stored("%DLQ%group")) == 1


def test_without_an_overlay_nothing_is_written(store: Path, output: Path) -> None:
    """Messages are refused as before, and the route has no second broker."""
    (copy, *_) = log_records(store)
    with served(store, output) as port, Client(port) as client:
        assert client.ask(SEND_BACK, of(copy)).code == 1
        for code in (SEND, SEND_V2, SEND_BATCH):
            assert client.ask(code, message(), b"body").code == 3
        assert client.ask(ROUTE, {"topic": "%RETRY%group"}).code == 17
    assert not (output / "overlay").exists()
