"""Requests of administrators: resets, clones, a member's state, messages by key and id."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from reput.readers.queuereader import QueueReader
from reput.serving import connection
from reput.store import configjson
from reput.store.files import CONSUMER_OFFSET_FILE
from reput.store.log import properties
from reput.streaming.config import DispatcherConfig
from tests.readers.stores import SmallStore
from tests.support.faults import UNREADABLE
from tests.support.golden import log_records, unpack_golden
from tests.support.remoting import Answer, Client, heartbeat, served
from tests.support.sparkless import dispatch
from tests.support.wire import read_log

PULL, QUERY_MESSAGE, QUERY, UPDATE, VIEW, HEART_BEAT, UNREGISTER = 11, 12, 14, 15, 33, 34, 35
RESET, WHO, TIME_SPAN, RUNNING_INFO, CLONE, BROKER_STATS, CQ = 222, 300, 303, 307, 314, 317, 321
CORRECTION, DIRECTLY, TO_CLIENT = 308, 309, 220
FOUND, BUSY, MOVED, NOT_FOUND = 0, 2, 21, 22
TOPICS = 206
FOUND, MOVED, NOT_FOUND = 0, 21, 22
MESSAGES = 10
ROLLED_BACK = 3 << 2


def place(queue_id: int = 0, **more: object) -> dict[str, object]:
    return {"consumerGroup": "group", "topic": "Topic", "queueId": queue_id, **more}


def pull(offset: int, **more: object) -> dict[str, object]:
    """Ext fields of a push consumer's pull."""
    fields = {"maxMsgNums": 32, "sysFlag": 2, "suspendTimeoutMillis": 15000, "subVersion": 1}
    return place(queueOffset=offset, **{**fields, **more})


def reset(time_ms: int, **more: object) -> dict[str, object]:
    """Ext fields of a reset of the group by time."""
    return {"topic": "Topic", "group": "group", "timestamp": time_ms, "isForce": True, **more}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two queues of ten messages, one stored each millisecond."""
    small = SmallStore(tmp_path / "store")
    for number in range(MESSAGES):
        for queue_id in (0, 1):
            small.append(queue_id=queue_id, store_timestamp=1000 + number)
    return small.write()


@pytest.fixture
def port(store: Path) -> Iterator[int]:
    with served(store) as found:
        yield found


def committed(client: Client, queue_id: int = 0, group: str = "group") -> int | None:
    """The committed offset, as a client that is no member gets it."""
    answer = client.ask(QUERY, place(queue_id, consumerGroup=group))
    return int(answer.ext["offset"]) if answer.code == 0 else None


def offsets(answer: Answer) -> dict[int, int]:
    """The new offsets in a reset's answer, by queue."""
    assert answer.code == 0, answer.header
    found = re.findall(r'"queueId":(\d+),"topic":"Topic"}:(\d+)', answer.body.decode())
    return {int(queue_id): int(offset) for queue_id, offset in found}


def test_a_reset_holds_against_late_commits(port: int) -> None:
    """The waiting pull ends, and the member's commits are ignored until it begins at the new
    offset."""
    with Client(port) as member, Client(port) as admin:
        assert member.ask(HEART_BEAT, {}, heartbeat("c", "group", "Topic")).code == 0
        assert member.ask(UPDATE, place(commitOffset=8)).code == 0
        waiting = member.send(PULL, pull(MESSAGES))
        assert committed(admin) == 8
        assert admin.ask(RESET, reset(1003)).code == 0
        told = member.receive()
        while told.opaque != waiting:
            told = member.receive()
        assert (told.code, told.header["remark"]) == (MOVED, "OFFSET_RESET")
        assert told.ext["nextBeginOffset"] == "3"
        assert member.ask(UPDATE, place(commitOffset=MESSAGES)).code == 0
        assert committed(admin) == 3
        assert member.ask(PULL, pull(3)).code == FOUND
        assert member.ask(UPDATE, place(commitOffset=5)).code == 0
        assert committed(admin) == 5


def test_a_member_follows_a_reset_at_its_next_pull(port: int) -> None:
    """Each member is sent to the new offset once, for each queue; one that has asked for the
    committed offset knows it already."""
    with Client(port) as first, Client(port) as second, Client(port) as admin:
        for client, name in ((first, "a"), (second, "b")):
            assert client.ask(HEART_BEAT, {}, heartbeat(name, "group", "Topic")).code == 0
        assert offsets(admin.ask(RESET, reset(-1))) == {0: MESSAGES, 1: MESSAGES}
        answer = first.ask(PULL, pull(0, sysFlag=3, commitOffset=0))
        assert (answer.code, answer.ext["nextBeginOffset"]) == (MOVED, str(MESSAGES))
        assert committed(admin) == MESSAGES
        assert first.ask(PULL, pull(0)).code == FOUND
        # that the first one follows says nothing about the second
        assert second.ask(UPDATE, place(commitOffset=4)).code == 0
        assert committed(admin) == MESSAGES
        assert first.ask(UPDATE, place(1, commitOffset=2)).code == 0
        assert committed(admin, 1) == MESSAGES
        assert second.ask(QUERY, place()).ext == {"offset": str(MESSAGES)}
        assert second.ask(PULL, pull(0)).code == FOUND
        assert admin.ask(UPDATE, place(commitOffset=1)).code == 0
        assert committed(admin) == 1


def test_a_reset_leaves_the_pulls_of_other_groups(port: int) -> None:
    """Both wait at the end of the same queue; the second one's next answer is another request's."""
    with Client(port) as member, Client(port) as other, Client(port) as admin:
        for client, group in ((member, "group"), (other, "others")):
            assert client.ask(HEART_BEAT, {}, heartbeat("c", group, "Topic")).code == 0
            client.send(PULL, pull(MESSAGES, consumerGroup=group))
            # requests are answered in their order: the pull waits
            client.ask(QUERY, place(consumerGroup=group))
        assert admin.ask(UPDATE, place(commitOffset=8)).code == 0
        assert admin.ask(RESET, reset(1003)).code == 0
        asked = other.send(QUERY, place(consumerGroup="others"))
        found = other.receive()
        while not found.header["flag"] & 1:
            found = other.receive()
        assert found.opaque == asked


@pytest.mark.parametrize("error", UNREADABLE)
@pytest.mark.parametrize("waits", [True, False])
def test_a_member_follows_although_its_queue_cannot_be_read(
    port: int, monkeypatch: pytest.MonkeyPatch, waits: bool, error: Exception
) -> None:
    """It is told once: a pull that was answered with an error would be followed by commits from
    where it was."""

    def unreadable(_queue: QueueReader) -> NoReturn:
        raise error

    names = {"srcGroup": "source", "destGroup": "group", "topic": "", "offline": "false"}
    with Client(port) as member, Client(port) as admin:
        assert admin.ask(UPDATE, place(consumerGroup="source", commitOffset=3)).code == 0
        assert member.ask(HEART_BEAT, {}, heartbeat("c", "group", "Topic")).code == 0
        if waits:
            pulled = member.send(PULL, pull(MESSAGES))
            member.ask(QUERY, place())
        monkeypatch.setattr(QueueReader, "bounds", unreadable)
        assert admin.ask(CLONE, {**names}).code == 0
        if not waits:
            pulled = member.send(PULL, pull(MESSAGES))
        told = member.receive()
        while told.opaque != pulled or not told.header["flag"] & 1:
            told = member.receive()
        assert (told.code, told.ext["nextBeginOffset"]) == (MOVED, "3")


def test_a_later_reset_takes_the_place_of_one_that_nobody_followed(port: int) -> None:
    """The member left before it knew; when it comes back it goes on where the second one leads."""
    with Client(port) as admin:
        with Client(port) as member:
            assert member.ask(HEART_BEAT, {}, heartbeat("c", "group", "Topic")).code == 0
            assert offsets(admin.ask(RESET, reset(1003))) == {0: 3, 1: 3}
            left = {"clientID": "c", "consumerGroup": "group"}
            assert member.ask(UNREGISTER, left).code == 0
        assert offsets(admin.ask(RESET, reset(1007))) == {0: 7, 1: 7}
        with Client(port) as member:
            assert member.ask(HEART_BEAT, {}, heartbeat("c", "group", "Topic")).code == 0
            assert member.ask(PULL, pull(7)).code == FOUND
            assert member.ask(UPDATE, place(commitOffset=8)).code == 0
            assert committed(admin) == 8


def test_where_a_reset_leads(port: int) -> None:
    """By time, to the end, and to one queue's offset. An impossible reset moves nothing."""
    with Client(port) as client:
        assert client.ask(RESET, reset(1003)).code == 26
        assert client.ask(UPDATE, place(commitOffset=8)).code == 0
        assert offsets(client.ask(RESET, reset(1003))) == {0: 3, 1: 3}
        assert offsets(client.ask(RESET, reset(0, queueId=1, offset=-1))) == {1: 0}
        assert offsets(client.ask(RESET, reset(0, queueId=1, offset=7))) == {1: 7}
        assert offsets(client.ask(RESET, reset(9999))) == {0: MESSAGES, 1: MESSAGES}
        assert client.ask(RESET, reset(0, queueId=1, offset=MESSAGES + 1)).code == 1
        assert client.ask(RESET, reset(0, queueId=2, offset=0)).code == 1
        assert client.ask(RESET, {**reset(0), "topic": "Nowhere"}).code == 17
        assert [committed(client, queue_id) for queue_id in (0, 1)] == [MESSAGES, MESSAGES]


def table(store: Path) -> dict[str, dict[str, int]]:
    """The offsets in the file."""
    document = configjson.read(store / CONSUMER_OFFSET_FILE)
    assert isinstance(document, dict)
    return dict(document["offsetTable"])


def test_a_clone_replaces_offsets(store: Path) -> None:
    """The target also loses its offsets in queues where the source has none, and does not have them
    back after a restart."""
    names = {"srcGroup": "group", "destGroup": "copy", "topic": "", "offline": "true"}
    with served(store) as port, Client(port) as client:
        assert client.ask(CLONE, {**names}).code == 1
        assert client.ask(UPDATE, place(commitOffset=8)).code == 0
        assert client.ask(UPDATE, place(1, consumerGroup="copy", commitOffset=2)).code == 0
        assert client.ask(CLONE, {**names}).code == 0
        assert [committed(client, n, "copy") for n in (0, 1)] == [8, None]
        assert client.ask(WHO, {"topic": "Topic"}).json == {"groupList": ["copy", "group"]}
        # the file is replaced at once: a journal cannot say what is gone
        while table(store).get("Topic@copy") != {"0": 8}:
            pass
    with served(store) as port, Client(port) as client:
        assert [committed(client, n, "copy") for n in (0, 1)] == [8, None]


def test_a_members_state_is_asked_for(port: int) -> None:
    """The request goes to the client with all of its fields, and its answer comes back."""
    question = {"consumerGroup": "group", "clientId": "c", "jstackEnable": "false"}
    with Client(port) as admin:
        assert admin.ask(RUNNING_INFO, question).code == 1
        with Client(port) as member:
            assert member.ask(HEART_BEAT, {}, heartbeat("c", "group", "Topic")).code == 0
            opaque = admin.send(RUNNING_INFO, question)
            asked = member.receive()
            while asked.code != RUNNING_INFO:
                asked = member.receive()
            assert (asked.header["flag"], asked.ext) == (0, question)
            member.respond(asked, 0, {"jstack": None})
            answer = admin.receive()
            assert (answer.opaque, answer.code, answer.json) == (opaque, 0, {"jstack": None})
            # one answer is enough
            member.respond(asked, 0, {})
            admin.send(RUNNING_INFO, question)
            assert member.receive().code == RUNNING_INFO
        assert admin.receive().code == 207


def test_few_requests_wait_for_a_member_that_does_not_answer(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is refused, until the member answers one of them."""
    monkeypatch.setattr(connection, "MAX_CALLS", 3)
    question = {"consumerGroup": "group", "clientId": "c", "jstackEnable": "false"}
    with Client(port) as admin, Client(port) as member:
        assert member.ask(HEART_BEAT, {}, heartbeat("c", "group", "Topic")).code == 0
        sent = [admin.send(RUNNING_INFO, question) for _ in range(4)]
        refused = admin.receive()
        assert (refused.opaque, refused.code) == (sent[3], BUSY)
        assert "does not answer" in refused.header["remark"]
        asked = member.receive()
        while asked.code != RUNNING_INFO:
            asked = member.receive()
        member.respond(asked, 0)
        assert (admin.receive().opaque, admin.send(RUNNING_INFO, question)) == (sent[0], 5)
        for opaque in (*sent[1:3], 5):
            member.respond(member.receive(), 0)
            assert admin.receive().opaque == opaque


def test_a_member_consumes_one_message(store: Path, port: int) -> None:
    """The member gets the record; a message that does not exist is refused."""
    ((position, record), *_) = read_log(store / "commitlog")
    question: dict[str, object] = {"consumerGroup": "group", "clientId": "c", "brokerName": "x"}
    with Client(port) as admin, Client(port) as member:
        assert member.ask(HEART_BEAT, {}, heartbeat("c", "group", "Topic")).code == 0
        for number in (position + 1, 1 << 40):
            question["msgId"] = "7F00000100002A9F" + f"{number:016X}"
            assert admin.ask(DIRECTLY, question).code == 1
        question["msgId"] = "7F00000100002A9F" + f"{position:016X}"
        admin.send(DIRECTLY, question)
        asked = member.receive()
        while asked.code != DIRECTLY:
            asked = member.receive()
        assert asked.body == record
        assert asked.ext == {**question, "brokerName": "store"}
        member.respond(asked, 0, {"consumeResult": "CR_SUCCESS"})
        assert admin.receive().json == {"consumeResult": "CR_SUCCESS"}
        assert admin.ask(TO_CLIENT, {"topic": "Topic", "group": "group", "timestamp": 0}).code == 3


def test_the_least_offset_of_all_groups(port: int) -> None:
    """Groups in filterGroups are left out and keep their offsets, which RocketMQ would remove."""
    with Client(port) as client:
        for group, offsets in (("a", {0: 3, 1: 5}), ("b", {0: 2}), ("c", {1: 4})):
            for queue_id, offset in offsets.items():
                fields = place(queue_id, consumerGroup=group, commitOffset=offset)
                assert client.ask(UPDATE, fields).code == 0

        def least(**fields: object) -> object:
            body = client.ask(CORRECTION, {"topic": "Topic", **fields}).body.decode()
            return configjson.parse(body)

        assert least() == {"correctionOffsets": {"0": 2, "1": 4}}
        assert least(filterGroups="b,c") == {"correctionOffsets": {"0": 3, "1": 5}}
        assert least(filterGroups="b", compareGroup="c") == {"correctionOffsets": {"0": 3, "1": 4}}
        assert least(filterGroups="c", compareGroup="c") == {
            "correctionOffsets": {"0": 2, "1": (1 << 63) - 1}
        }
        assert committed(client, 0, "b") == 2


def test_messages_by_key_and_by_position(tmp_path: Path) -> None:
    """The answers are the log's bytes; the expected ones are found by the properties."""
    store = unpack_golden("mixed", tmp_path)
    stored = dict(read_log(store / "commitlog"))
    by_key = defaultdict[tuple[str, str], list[int]](list)
    for record in log_records(store):
        topic, found = record.topic.decode(), record.property_map
        if record.sys_flag & ROLLED_BACK == ROLLED_BACK:
            continue  # not indexed
        keys = found.get(properties.KEYS, b"").decode().split()
        unique = found.get(properties.UNIQ_KEY, b"").decode()
        for key in {*keys, unique} - {""}:
            by_key[topic, key].append(record.physical_offset)
    with served(store) as port, Client(port) as client:
        for (topic, key), positions in list(by_key.items())[:: len(by_key) // 200]:
            fields: dict[str, object] = {
                "topic": topic, "key": key, "maxNum": 64, "beginTimestamp": 0,
                "endTimestamp": (1 << 63) - 1, "_UNIQUE_KEY_QUERY": "false",
            }  # fmt: skip
            answer = client.ask(QUERY_MESSAGE, fields)
            assert answer.code == 0
            assert answer.body == b"".join(stored[at] for at in positions[-64:])
            assert set(answer.ext) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
            answer = client.ask(VIEW, {"offset": positions[0]})
            assert (answer.code, answer.body) == (0, stored[positions[0]])
            assert client.ask(VIEW, {"offset": positions[0] + 1}).code == 1
        assert client.ask(QUERY_MESSAGE, {**fields, "key": "no such key"}).code == NOT_FOUND


def test_a_message_beyond_the_limit_of_an_answer_comes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer has at least one of the messages with a key, and ends at the limit."""
    monkeypatch.setattr("reput.serving.queries.MAX_BODY_BYTES", 1000)
    small = SmallStore(tmp_path / "store")
    found = [small.append(body=bytes(size)) for size in (2000, 10, 10, 2000, 10)]
    stored = dict(read_log(small.write() / "commitlog"))
    small.write_index([("Topic#k", at) for at in found])
    fields: dict[str, object] = {
        "topic": "Topic", "key": "k", "maxNum": 64, "beginTimestamp": 0,
        "endTimestamp": (1 << 63) - 1,
    }  # fmt: skip
    with served(small.root) as port, Client(port) as client:
        answer = client.ask(QUERY_MESSAGE, fields)
        assert (answer.code, answer.body) == (0, stored[found[0]])
        answer = client.ask(QUERY_MESSAGE, {**fields, "maxNum": 3})
        assert (answer.code, answer.body) == (0, stored[found[2]])


def test_a_message_is_found_by_its_position_once_it_is_dispatched(tmp_path: Path) -> None:
    """No other question has to come first, also where the message is in a new file of the log."""
    store, output = tmp_path / "store", tmp_path / "output"
    small = SmallStore(store)
    small.append()
    small.write()
    dispatch(DispatcherConfig(store, output))
    with served(store, output=output) as port, Client(port) as client:
        for count in (1, 60):
            found = [small.append(body=bytes(100)) for _ in range(count)][-1]
            small.write()
            assert client.ask(VIEW, {"offset": found}).code == 1
            dispatch(DispatcherConfig(store, output))
            answer = client.ask(VIEW, {"offset": found})
            assert (answer.code, answer.body) == (0, dict(read_log(store / "commitlog"))[found])
    assert found > small.log.file_size


def test_units_and_statistics(port: int) -> None:
    """Offsets of one queue, and of every group."""
    question: dict[str, object] = {"topic": "Topic", "queueId": 1, "index": 3, "count": 2}
    with Client(port) as client:
        answer = client.ask(CQ, question).json
        assert (answer["minQueueIndex"], answer["maxQueueIndex"]) == (0, MESSAGES)
        assert [sorted(unit) for unit in answer["queueData"]] == [
            ["physicOffset", "physicSize", "tagsCode"]
        ] * 2
        assert client.ask(CQ, {**question, "index": MESSAGES}).json["queueData"] == []
        assert client.ask(CQ, {**question, "queueId": 2}).code == 1
        offline = client.ask(CQ, {**question, "consumerGroup": "group"}).json
        assert offline["filterData"] == "group@Topic is not online!"
        assert client.ask(UPDATE, place(commitOffset=8)).code == 0
        stats = client.ask(BROKER_STATS, {"isOrder": "false"}).body.decode()
        assert stats.endswith('"totalDiff":12,"totalInflightDiff":0}')
        # what was pulled and is not committed is on its way
        assert client.ask(PULL, pull(8, sysFlag=4, subscription="*")).code == FOUND
        stats = client.ask(BROKER_STATS, {"isOrder": "false"}).body.decode()
        assert stats.endswith('"totalDiff":12,"totalInflightDiff":2}')
        assert client.ask(BROKER_STATS, {"isOrder": "true"}).body.decode().count("offsetTable") == 0
        assert client.ask(UPDATE, place(commitOffset=MESSAGES)).code == 0
        spans = client.ask(TIME_SPAN, {"topic": "Topic", "group": "group"}).json
        found = {one["messageQueue"]["queueId"]: one for one in spans["consumeTimeSpanSet"]}
        times = ("minTimeStamp", "maxTimeStamp", "consumeTimeStamp")
        assert [[found[n][name] for name in times] for n in (0, 1)] == [
            [1000, 1009, 1009], [1000, 1009, 1000],
        ]  # fmt: skip
        assert (found[0]["delayTime"], found[1]["delayTime"] > 1_000_000_000_000) == (0, True)


def test_ordered_topics_alone(store: Path) -> None:
    """A topic that its broker declares to be ordered is told apart from others."""
    (store / "config").mkdir(exist_ok=True)
    table = '{"topicConfigTable":{"Topic":{"topicName":"Topic","order":true,"perm":6}}}'
    (store / "config" / "topics.json").write_text(table)
    with served(store) as port, Client(port) as client:
        assert client.ask(UPDATE, place(commitOffset=8)).code == 0
        for is_ordered in ("true", "false"):
            stats = client.ask(BROKER_STATS, {"isOrder": is_ordered}).body.decode()
            assert stats.endswith('"totalDiff":12,"totalInflightDiff":0}')


def test_offsets_before_a_queue_s_beginning_correct_nothing(tmp_path: Path) -> None:
    """The log has lost the messages of the group that lags most."""
    small = SmallStore(tmp_path / "store")
    for _ in range(60):
        small.append(body=bytes(20))
    store = small.write()
    (store / "commitlog" / f"{0:020}").unlink()
    with served(store) as port, Client(port) as client:
        for group, offset in (("lags", 0), ("a", 50), ("b", 55)):
            fields = place(consumerGroup=group, commitOffset=offset)
            assert client.ask(UPDATE, fields).code == 0
        found = client.ask(CORRECTION, {"topic": "Topic"}).body.decode()
        assert configjson.parse(found) == {"correctionOffsets": {"0": 50}}


def test_a_group_that_broadcasts_is_known_by_its_name(store: Path) -> None:
    """RocketMQ marks the offsets of such a group by a suffix, which is no part of the name."""
    (store / "config").mkdir(exist_ok=True)
    text = '{"offsetTable":{"Topic@all@broadcast":{0:1}}}'
    (store / CONSUMER_OFFSET_FILE).write_text(text)
    with served(store) as port, Client(port) as client:
        assert client.ask(WHO, {"topic": "Topic"}).json == {"groupList": ["all"]}
        assert client.ask(TOPICS).json["topicList"] == ["%RETRY%all", "Topic"]
