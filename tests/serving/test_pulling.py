"""Pulls over a socket: checks, codes, the bytes of answers, and long polling."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reput.checkpoints.watermark import WatermarkFile
from reput.readers.getranges import RangeReader
from reput.readers.messagefilter import MessageFilter
from reput.readers.queuereader import QueueReader
from reput.serving import admission, arrivals, holds
from reput.serving.admission import Admission
from reput.serving.connection import Refused
from reput.store.errors import StoreError
from reput.store.queue.view import QueueView
from reput.store.state.watermark import Watermark
from tests.readers.stores import SmallStore
from tests.support.faults import UNREADABLE
from tests.support.golden import log_records, unpack_golden
from tests.support.remoting import Answer, Client, heartbeat, served
from tests.support.wire import read_log

PULL, HEART_BEAT, UNREGISTER = 11, 34, 35
FOUND, NOT_FOUND, RETRY, MOVED = 0, 19, 20, 21
NEVER_SECONDS = 1e6


def pull(offset: int = 0, **more: object) -> dict[str, object]:
    """Ext fields of a pull as a push consumer's, of the small store's topic."""
    return {
        "consumerGroup": "group", "topic": "Topic", "queueId": 0, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 15000,
        "subscription": "*", "subVersion": 0, **more,
    }  # fmt: skip


class Live:
    """A store that a dispatcher follows: readers see messages up to its watermark."""

    def __init__(self, root: Path) -> None:
        self.small = SmallStore(root)
        (root / "reput").mkdir(parents=True)
        self._file = WatermarkFile(root / "reput")

    def append(self, **fields: object) -> None:
        """Append a message, and dispatch it at once."""
        self.small.append(**fields)  # type: ignore[arg-type]
        self.small.write()
        self._file.advance(Watermark("0" * 32, self.small.log.spans[-1][1]))

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    store = Live(tmp_path / "store")
    store.append(tags_code=65, properties=b"TAGS\x01A\x02")
    yield store
    store.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """Golden store plain, and the port at which it is served."""
    store = unpack_golden("plain", tmp_path_factory.mktemp("plain"))
    with served(store) as port:
        yield store, port


def bodies(answer: Answer) -> list[bytes]:
    """Split an answer into its records."""
    found, data = [], answer.body
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(data[:size])
        data = data[size:]
    return found


def test_a_drained_queue_holds_the_logs_bytes(plain: tuple[Path, int]) -> None:
    """Every record of every queue, in its order, as it is in the log."""
    store, port = plain
    data = dict(read_log(store / "commitlog"))
    expected: dict[tuple[str, int], list[bytes]] = {}
    for message in log_records(store):
        key = message.topic.decode(), message.queue_id
        expected.setdefault(key, []).append(data[message.physical_offset])
    assert len(expected) == 24
    with Client(port) as client:
        for (topic, queue_id), records in expected.items():
            found: list[bytes] = []
            while True:
                place = {"topic": topic, "queueId": queue_id, "sysFlag": 4}
                answer = client.ask(PULL, pull(len(found), **place))
                if answer.code != FOUND:
                    break
                assert answer.header["remark"] == "FOUND"
                found += bodies(answer)
                assert answer.ext["nextBeginOffset"] == str(len(found))
                assert answer.ext["suggestWhichBrokerId"] == "0"
                assert answer.ext["maxOffset"] == str(len(records))
            assert answer.code == NOT_FOUND
            assert found == records


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "Nowhere"}, 17, ""),
        ({"topic": "../plain"}, 17, ""),
        ({"queueId": 4}, 29, ""),
        ({"queueId": -1}, 29, ""),
        ({"queueId": "x"}, 1, ""),
        ({"queueOffset": "9" * 30}, 1, ""),
        ({"consumerGroup": "a group"}, 26, ""),
        ({"subscription": "||"}, 23, ""),
        ({"subscription": "a >", "expressionType": "SQL92"}, 23, ""),
        ({"expressionType": "REGEX"}, 23, ""),
        ({"sysFlag": 0}, 24, ""),
        ({"queueOffset": 1 << 40}, MOVED, "OFFSET_OVERFLOW_BADLY"),
        ({"queueOffset": -5}, MOVED, "OFFSET_TOO_SMALL"),
        ({"subscription": "nobody", "sysFlag": 4}, RETRY, "NO_MATCHED_MESSAGE"),
    ],
)
def test_codes_of_pulls(
    plain: tuple[Path, int], fields: dict[str, object], code: int, remark: str
) -> None:
    """Codes are those of PullMessageProcessor, and so are remarks, a GetMessageStatus; where a pull
    is refused the words are ours."""
    _, port = plain
    with Client(port) as client:
        answer = client.ask(PULL, pull(**{"topic": "Topic_1", **fields}))
    assert answer.code == code
    assert remark in ("", answer.header["remark"])


def test_a_client_is_served_its_own_subscription(live: Live) -> None:
    """Another member has a different one; a newer one is not known yet; only a member may leave it
    out."""
    live.append(tags_code=66, properties=b"TAGS\x01B\x02")
    with served(live.small.root) as port, Client(port) as first, Client(port) as second:
        assert first.ask(HEART_BEAT, {}, heartbeat("c1", "group", "Topic:A", version=5)).code == 0
        assert second.ask(HEART_BEAT, {}, heartbeat("c2", "group", "Topic:B", version=5)).code == 0
        for client, offset in ((first, 0), (second, 1)):
            answer = client.ask(PULL, pull(sysFlag=0, subVersion=5))
            (found,) = bodies(answer)
            assert int.from_bytes(found[20:28], "big") == offset
            assert answer.ext["nextBeginOffset"] == "2"
        assert first.ask(PULL, pull(sysFlag=0, subVersion=6)).code == 25
        assert first.ask(PULL, pull(sysFlag=0, topic="%RETRY%group")).code == 24


def test_a_repeated_pull_is_checked_anew(live: Live) -> None:
    """The same request gives what the member subscribes to at that time, and nothing to others."""
    live.append(tags_code=66, properties=b"TAGS\x01B\x02")
    with served(live.small.root) as port, Client(port) as client, Client(port) as other:
        for version, tag in enumerate("ABAB"):
            sent = heartbeat("c", "group", f"Topic:{tag}", version=version)
            assert client.ask(HEART_BEAT, {}, sent).code == 0
            for _ in range(3):
                (found,) = bodies(client.ask(PULL, pull(sysFlag=0)))
                assert int.from_bytes(found[20:28], "big") == "AB".index(tag)
            assert other.ask(PULL, pull(sysFlag=0)).code == 24
        left = {"clientID": "c", "consumerGroup": "group"}
        assert client.ask(UNREGISTER, left).code == 0
        assert client.ask(PULL, pull(sysFlag=0)).code == 24


def test_pulls_that_come_together_are_answered_like_single_ones(plain: tuple[Path, int]) -> None:
    """In their order, of several queues, with small and with large answers, with errors between."""
    _, port = plain
    wanted = [
        pull(offset, topic=f"Topic_{number % 3}", queueId=number % 5, maxMsgNums=1 << number % 11)
        for number, offset in enumerate([0, 1, 0, 7, 0, 2, 0] * 20)
    ]
    with Client(port) as client, Client(port) as single:
        opaques = [client.send(PULL, ext) for ext in wanted]
        for opaque, ext in zip(opaques, wanted, strict=True):
            found, expected = client.receive(), single.ask(PULL, ext)
            assert found.opaque == opaque
            assert (found.code, found.ext, found.body) == (
                expected.code, expected.ext, expected.body,
            )  # fmt: skip


def test_a_pull_waits_for_what_its_filter_takes(live: Live) -> None:
    """A message of another tag arrives first and does not end the pull."""
    with served(live.small.root) as port, Client(port) as client, Client(port) as other:
        opaque = client.send(PULL, pull(1, sysFlag=6, subscription="B"))
        assert other.ask(PULL, pull(0)).code == FOUND
        live.append(tags_code=65, properties=b"TAGS\x01A\x02")
        # what the other client sees has been seen by whoever waits
        waiting = other.send(PULL, pull(1, sysFlag=6))
        assert other.receive().opaque == waiting
        live.append(tags_code=66, properties=b"TAGS\x01B\x02")
        answer = client.receive()
        assert (answer.code, answer.opaque) == (FOUND, opaque)
        (found,) = bodies(answer)
        assert int.from_bytes(found[20:28], "big") == 2
        assert answer.ext["nextBeginOffset"] == "3"


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "polled"])
def test_a_waiting_pull_learns_of_messages(
    live: Live, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports the watermark's writes, so that nothing is polled; where it cannot, the
    server polls."""
    if is_told:
        monkeypatch.setattr(arrivals, "POLL_SECONDS", NEVER_SECONDS)
        monkeypatch.setattr(arrivals, "WATCHED_POLL_SECONDS", NEVER_SECONDS)
    else:
        monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    with served(live.small.root) as port, Client(port) as client:
        for end in range(1, 4):
            opaque = client.send(PULL, pull(end, sysFlag=6))
            live.append()
            answer = client.receive(timeout=60)
            assert (answer.code, answer.opaque) == (FOUND, opaque)


@pytest.mark.parametrize("error", UNREADABLE)
@pytest.mark.parametrize("is_woken", [True, False])
@pytest.mark.parametrize("method", ["max_offset", "get_ranges"])
def test_a_queue_that_cannot_be_read_is_answered_with_the_error(
    live: Live, monkeypatch: pytest.MonkeyPatch, method: str, is_woken: bool, error: Exception
) -> None:
    """The waiting pull learns of it, whether it is woken or its time is over, and the server goes
    on: a later moment may do."""
    looked = getattr(QueueReader, method)
    is_damaged = False

    def look(*arguments: Any, **more: Any) -> Any:
        if is_damaged:
            raise error
        return looked(*arguments, **more)

    monkeypatch.setattr(QueueReader, method, look)
    with served(live.small.root) as port, Client(port) as client:
        time_ms = 60_000 if is_woken else 1000
        opaque = client.send(PULL, pull(1, sysFlag=6, suspendTimeoutMillis=time_ms))
        # requests are answered in their order: the pull waits
        assert client.ask(14, {"consumerGroup": "g", "topic": "Topic", "queueId": 0}).code == 22
        is_damaged = True
        if is_woken:
            live.append()
        answer = client.receive(timeout=60)
        is_damaged = False
        assert answer.opaque == opaque
        if is_woken and method == "max_offset":
            # where the queue ends is unknown, and so the pull itself finds out
            assert answer.code == FOUND
        elif method == "get_ranges":
            assert answer.code == 1
            assert error.args[-1] in answer.header["remark"]
        assert client.ask(PULL, pull(0)).code == FOUND


def test_only_a_queue_that_has_grown_is_looked_at(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting pull of another queue is not looked at, although the watermark has moved."""
    live.append(queue_id=1)
    looked: list[int] = []
    get_ranges = RangeReader.get_ranges

    def counted(reader: RangeReader, queue: QueueView, *rest: Any, **more: Any) -> Any:
        looked.append(int(queue.files.directory.name))
        return get_ranges(reader, queue, *rest, **more)

    with served(live.small.root) as port, Client(port) as client:
        client.send(PULL, pull(1, sysFlag=6))
        opaque = client.send(PULL, pull(1, queueId=1, sysFlag=6))
        # requests are answered in their order: both wait
        assert client.ask(14, {"consumerGroup": "g", "topic": "Topic", "queueId": 0}).code == 22
        monkeypatch.setattr(RangeReader, "get_ranges", counted)
        for end in range(2, 5):
            live.append(queue_id=1)
            answer = client.receive()
            assert (answer.code, answer.opaque) == (FOUND, opaque)
            opaque = client.send(PULL, pull(end, queueId=1, sysFlag=6))
        assert set(looked) == {1}


def test_a_pull_ends_at_its_deadline(live: Live) -> None:
    """It gets RocketMQ's answer for that moment: nothing new, or nothing that matches."""
    with served(live.small.root) as port, Client(port) as client:
        began = time.monotonic()
        answer = client.ask(PULL, pull(1, sysFlag=6, suspendTimeoutMillis=200))
        assert time.monotonic() - began >= 0.2
        assert (answer.code, answer.ext["nextBeginOffset"]) == (NOT_FOUND, "1")
        opaque = client.send(PULL, pull(1, sysFlag=6, subscription="B", suspendTimeoutMillis=400))
        live.append(tags_code=65, properties=b"TAGS\x01A\x02")
        answer = client.receive()
        assert (answer.opaque, answer.code) == (opaque, RETRY)
        assert answer.ext["nextBeginOffset"] == "2"


def test_an_offset_is_not_corrected_while_the_log_is_not_dispatched(live: Live) -> None:
    """The queue ends at the watermark, and a group that was further must not be set back."""
    for _ in range(3):
        live.small.append()
    live.small.write()
    with served(live.small.root) as port, Client(port) as client:
        answer = client.ask(PULL, pull(3))
        assert (answer.code, answer.ext["nextBeginOffset"]) == (NOT_FOUND, "3")
        waiting = client.send(PULL, pull(8, sysFlag=6))
        live.append()
        answer = client.receive()
        assert (answer.opaque, answer.code) == (waiting, MOVED)
        answer = client.ask(PULL, pull(7))
        assert (answer.code, answer.ext["nextBeginOffset"]) == (MOVED, "5")


def test_a_damaged_record_is_skipped_and_listed(tmp_path: Path) -> None:
    """The records around it are sent; with it, a client would lose the rest of the answer."""
    small = SmallStore(tmp_path / "store")
    offsets = [small.append() for _ in range(10)]
    small.log.put(offsets[4] + 84, b"\x7f")  # the body's length
    with served(small.write(), tmp_path / "store") as port, Client(port) as client:
        answer = client.ask(PULL, pull(0))
        found = [int.from_bytes(data[20:28], "big") for data in bodies(answer)]
        assert found == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert answer.ext["nextBeginOffset"] == "10"
    listed = (tmp_path / "store" / "reput" / "serve" / "quarantine.jsonl").read_text()
    assert f'"physical_offset": {offsets[4]}' in listed


def test_a_pull_commits(live: Live) -> None:
    """A pull with flag 1 commits its offset, which request 14 then answers."""
    for _ in range(5):
        live.append()
    with served(live.small.root) as port, Client(port) as client:
        place = {"consumerGroup": "group", "topic": "Topic", "queueId": 0}
        assert client.ask(14, place).code == 22
        assert client.ask(PULL, pull(3, sysFlag=7, commitOffset=2)).code == FOUND
        assert client.ask(14, place).ext == {"offset": "2"}
        assert client.ask(PULL, pull(3, sysFlag=5, commitOffset=3)).code == FOUND
        assert client.ask(14, place).ext == {"offset": "3"}


# as RocketMQ 5.3.3 writes it, without the fields that nothing here reads
GROUPS_FILE = """{
	"dataVersion":{"counter":4,"stateVersion":0,"timestamp":1795331300000},
	"forbiddenTable":{"half":{"Topic":4,"Other":2}},
	"subscriptionGroupTable":{
		"closed":{"consumeBroadcastEnable":true,"consumeEnable":false,"groupName":"closed"},
		"half":{"consumeBroadcastEnable":true,"consumeEnable":true,"groupSysFlag":1},
		"single":{"consumeBroadcastEnable":false,"consumeEnable":true}
	}
}"""


def test_what_the_broker_forbids_a_group(live: Live) -> None:
    """A group may be forbidden to consume, to broadcast, or to read one topic, by the rules of
    PullMessageProcessor."""
    config = live.small.root / "config"
    config.mkdir()
    (config / "subscriptionGroup.json").write_text(GROUPS_FILE)
    with served(live.small.root) as port, Client(port) as client:

        def answer(group: str, model: str, **more: object) -> tuple[int, str | None]:
            assert client.ask(HEART_BEAT, {}, heartbeat("c", group, "Topic", model=model)).code == 0
            found = client.ask(PULL, pull(consumerGroup=group, sysFlag=0, **more))
            return found.code, found.ext.get("forbiddenType")

        assert answer("closed", "CLUSTERING") == (16, "2")
        assert answer("closed", "CLUSTERING", topic="Nowhere") == (16, "2")
        assert answer("single", "BROADCASTING") == (16, "4")
        assert answer("single", "CLUSTERING") == (FOUND, None)
        assert answer("half", "CLUSTERING") == (16, "5")
        assert answer("unknown", "BROADCASTING") == (FOUND, None)
        given = client.ask(PULL, pull(consumerGroup="half"))
        assert (given.code, given.ext["groupSysFlag"]) == (FOUND, "1")
    (config / "subscriptionGroup.json").write_text("[]")
    with pytest.raises(StoreError, match=r"subscriptionGroup\.json"), served(live.small.root):
        pass


BUSY = 2


def held(client: Client, *pulls: dict[str, object]) -> list[bool]:
    """Send pulls that find nothing; whether each of them waits."""
    sent = [client.send(PULL, each) for each in pulls]
    # requests are answered in their order, and those that wait are not answered
    last = client.send(14, {"consumerGroup": "g", "topic": "Topic", "queueId": 0})
    refused = set[int]()
    while (answer := client.receive()).opaque != last:
        assert (answer.code, "the limit; ask again later" in answer.header["remark"]) == (
            BUSY,
            True,
        )
        refused.add(answer.opaque)
    return [opaque not in refused for opaque in sent]


def test_as_many_pulls_wait_as_may(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for all connections, the next one is told to come later, and whoever waits
    still gets its message. A connection that ends gives its places free."""
    monkeypatch.setattr(holds, "MAX_HOLDS", 3)
    waiting = pull(1, sysFlag=6)
    with served(live.small.root) as port, Client(port) as first:
        with Client(port) as second:
            assert held(second, waiting, waiting) == [True, True]
            assert held(first, waiting, waiting) == [True, False]
            answer = first.ask(PULL, waiting)
            assert (answer.code, answer.header["remark"]) == (
                BUSY, "3 pulls wait, which is the limit; ask again later",
            )  # fmt: skip
            # a pull that finds messages need not wait
            assert first.ask(PULL, pull(0, sysFlag=6)).code == FOUND
        while held(first, waiting) == [False]:
            pass  # the server has not learnt of the end yet
        assert held(first, waiting, waiting) == [True, False]
        live.append()
        assert [first.receive().code for _ in range(3)] == [FOUND] * 3
        assert held(first, *[pull(2, sysFlag=6)] * 4) == [True, True, True, False]


def test_as_many_pulls_of_one_connection_wait_as_may(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "MAX_HOLDS_PER_CONNECTION", 2)
    waiting = [pull(1, sysFlag=6)] * 3
    with served(live.small.root) as port, Client(port) as first, Client(port) as second:
        assert held(first, *waiting) == [True, True, False]
        assert held(second, *waiting) == [True, True, False]


@pytest.mark.parametrize("missing", [0, 1])
def test_filters_of_waiting_pulls_count(
    live: Live, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter counts with 128 bytes a character, once for all pulls that have it."""
    monkeypatch.setattr(holds, "MAX_BYTES", 4 * 1024 + 2 * 128 * 300 - missing)
    one, other = (pull(1, sysFlag=6, subscription=tag * 300) for tag in "XY")
    with served(live.small.root) as port, Client(port) as client:
        assert held(client, one, one, one, other, one) == [
            True, True, True, not missing, bool(missing),
        ]  # fmt: skip


def test_a_full_server_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line says how many were refused since the last one."""
    monkeypatch.setattr(holds, "MAX_HOLDS", 0)
    now = [5.0]
    found = holds.Holds(lambda: now[0])
    for now[0] in (5.0, 6.0, 64.9, 65.0):
        with pytest.raises(Refused, match="0 pulls wait"):
            found.add(None, 0, 0)
    texts = [record.getMessage() for record in caplog.records]
    assert ["such line: 1;" in texts[0], "such line: 3;" in texts[1], len(texts)] == [True, True, 2]
    assert (found.count, found.bytes) == (0, 0)


def test_what_is_remembered_of_filters_is_bounded(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pull brings another filter, so that checked pulls are forgotten in between."""
    monkeypatch.setattr(admission, "MAX_KNOWN_BYTES", 3 * 128 * 100)
    sizes, admit = [], Admission.admit

    def watched(self: Admission, *given: Any) -> Any:
        found = admit(self, *given)
        sizes.append(sum(each.filter_bytes for each in self._admissions.values()))
        return found

    monkeypatch.setattr(Admission, "admit", watched)
    with served(live.small.root) as port, Client(port) as client:
        for number in range(8):
            client.ask(PULL, pull(0, subscription=str(number) * 100))
    assert max(sizes) == 3 * 128 * 100


def test_what_waiting_pulls_take_is_given_back() -> None:
    """A filter counts once for all pulls that have it, until the last of them is gone."""
    taken, one, other = holds.Holds(), MessageFilter.by_tags("a"), MessageFilter.by_tags("b")
    for message_filter, size, expected in (
        (one, 1000, holds.HOLD_BYTES + 1000), (one, 1000, 2 * holds.HOLD_BYTES + 1000),
        (other, 300, 3 * holds.HOLD_BYTES + 1300), (None, 0, 4 * holds.HOLD_BYTES + 1300),
    ):  # fmt: skip
        taken.add(message_filter, size, 0)
        assert taken.bytes == expected
    for message_filter, size, expected in (
        (one, 1000, 3 * holds.HOLD_BYTES + 1300), (other, 300, 2 * holds.HOLD_BYTES + 1000),
        (one, 1000, holds.HOLD_BYTES), (None, 0, 0),
    ):  # fmt: skip
        taken.remove(message_filter, size)
        assert taken.bytes == expected
    assert taken.count == 0
