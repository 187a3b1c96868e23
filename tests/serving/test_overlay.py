"""Messages that consumers send back: in the overlay's log, and at its port."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from reput.store.log import properties, record
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from reput.store.state.consumeroffset import TopicGroup, read_committed
from tests.readers.stores import SmallStore
from tests.support.cli import Call
from tests.support.operations import before_operations
from tests.support.processes import became
from tests.support.remoting import Client, heartbeat, served, served_stores
from tests.support.wire import read_log

SEND, PULL, QUERY, MAX, BEAT, SEND_BACK, LOCK, ROUTE = 10, 11, 14, 30, 34, 36, 41, 105
CLUSTERS = 106
SEND_V2, SEND_BATCH = 310, 320
SYSTEM_ERROR, NOT_SUPPORTED, ILLEGAL, NO_PERMISSION, NO_TOPIC, NO_GROUP = 1, 3, 13, 16, 17, 26
GROUP, RETRIES, DEAD = "group", "%RETRY%group", "%DLQ%group"
SECONDS = 30.0
Ports = tuple[int, ...]


@pytest.fixture
def small(tmp_path: Path) -> SmallStore:
    """Five messages; every delay level takes a second."""
    small = SmallStore(tmp_path / "store")
    for number in range(5):
        key = b"UNIQ_KEY\x01KEY%d\x02TAGS\x01a\x02" % number
        small.append(properties=key, body=b"body", reconsume_times=number)
    small.write()
    conf = small.root / "broker.conf"
    levels = " ".join(["1s"] * 18)
    conf.write_text(f"{conf.read_text()}brokerName=base\nmessageDelayLevel={levels}\n")
    return small


@pytest.fixture
def ports(small: SmallStore, tmp_path: Path) -> Iterator[Ports]:
    """The ports of the base and of its overlay, below the output."""
    with serving(small, tmp_path) as ports:
        yield ports


def serving(small: SmallStore, tmp_path: Path) -> AbstractContextManager[Ports]:
    """The same, once more on the same output."""
    output = tmp_path / "output"
    if not output.exists():
        output.mkdir()
        (output / "consumequeue").symlink_to(small.root / "consumequeue")
    return served_stores([(small.root, output)], overlay=True)


def written(tmp_path: Path) -> list[Record]:
    """Every record of the overlay's log."""
    found = []
    for offset, data in read_log(tmp_path / "output" / "overlay" / "commitlog"):
        decoded = record.decode(data, offset, offset + len(data) + 8, verify_crc=True)
        assert isinstance(decoded, Record)
        found.append(decoded)
    return found


def back(offset: int, number: int = 0, **more: object) -> dict[str, object]:
    """A message that a listener could not consume."""
    fields = {"originTopic": "Topic", "originMsgId": f"KEY{number}", "delayLevel": 0}
    return {"group": GROUP, "offset": offset, "maxReconsumeTimes": 16, **fields, **more}


def send(topic: str, properties: str = "", **more: object) -> dict[str, object]:
    """A message that a client sends."""
    fields = {"a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 7, "h": 3}
    return {**fields, "i": properties, "j": 1, "k": "false", "m": "false", "l": 16, **more}


def test_a_failed_message_waits_and_comes_again(
    small: SmallStore, ports: Ports, tmp_path: Path
) -> None:
    """It is durable before the answer; the group pulls it from the overlay, once."""
    start, base = small.log.spans[2][0], tree_digest(small.root)
    with Client(ports[0]) as client, Client(ports[1]) as twin:
        assert client.ask(SEND_BACK, back(start, 2)).code == 0
        (waiting,) = written(tmp_path)[:1]
        assert (waiting.topic, waiting.queue_id) == (b"SCHEDULE_TOPIC_XXXX", 4)
        assert (waiting.reconsume_times, waiting.body) == (3, b"body")
        assert waiting.prepared_transaction_offset == -(start + 1)
        values = properties.as_texts(waiting.property_map)
        assert values == {
            "ORIGIN_MESSAGE_ID": f"7F000001{10911:08X}{start:016X}", "UNIQ_KEY": "KEY2",
            "TAGS": "a", "RETRY_TOPIC": "Topic", "WAIT": "false", "DELAY": "5",
            "REAL_TOPIC": RETRIES, "REAL_QID": "0",
        }  # fmt: skip
        twin.ask(BEAT, None, heartbeat("me", GROUP, RETRIES))
        place_of = {"consumerGroup": GROUP, "topic": RETRIES, "queueId": 0}
        assert twin.ask(QUERY, place_of).ext == {"offset": "0"}
        # a broker that goes on in the overlay sends the group there as well
        begin = {TopicGroup(RETRIES, GROUP): {0: 0}}
        overlay = tmp_path / "output" / "overlay"
        assert became(lambda: read_committed(overlay) == begin, SECONDS)
        assert became(lambda: twin.ask(MAX, place_of).ext == {"offset": "1"}, SECONDS)
        delivered = written(tmp_path)[1]
        assert (delivered.topic, delivered.queue_id) == (RETRIES.encode(), 0)
        assert delivered.prepared_transaction_offset == waiting.physical_offset + 1
        assert delivered.properties == waiting.properties
        assert delivered.store_timestamp >= waiting.store_timestamp + 1000
        # the copy was consumed, and failed again
        assert twin.ask(SEND_BACK, back(delivered.physical_offset, 2)).code == 0
        assert written(tmp_path)[2].reconsume_times == 4
        # the first one was delivered: it failed once more, for whatever reason
        assert client.ask(SEND_BACK, back(start, 2)).code == 0
        assert written(tmp_path)[3].reconsume_times == 3
    assert tree_digest(small.root) == base


def test_a_copy_has_one_waiting_successor(small: SmallStore, ports: Ports, tmp_path: Path) -> None:
    """An answer that was lost makes clients ask again; another group's failure is its own."""
    start = small.log.spans[0][0]
    with Client(ports[0]) as client:
        for _ in range(3):
            assert client.ask(SEND_BACK, back(start)).code == 0
        assert client.ask(SEND_BACK, {**back(start), "group": "other"}).code == 0
    waiting = [one for one in written(tmp_path) if one.topic == b"SCHEDULE_TOPIC_XXXX"]
    assert [one.property_map[b"REAL_TOPIC"] for one in waiting] == [
        b"%RETRY%group", b"%RETRY%other",
    ]  # fmt: skip


@pytest.mark.parametrize("more", [{"delayLevel": -1}, {"maxReconsumeTimes": 0}])
def test_dead_letters_do_not_wait(
    small: SmallStore, ports: Ports, tmp_path: Path, more: dict[str, object]
) -> None:
    """They are in the topic of dead letters at once, and stay the only one of their copy."""
    start = small.log.spans[0][0]
    with Client(ports[0]) as client, Client(ports[1]) as twin:
        for _ in range(2):
            assert client.ask(SEND_BACK, back(start, **more)).code == 0
        (dead,) = written(tmp_path)
        assert (dead.topic, dead.queue_id, dead.reconsume_times) == (DEAD.encode(), 0, 1)
        assert dead.property_map[b"DELAY"] == b"0"
        assert became(lambda: twin.ask(ROUTE, {"topic": DEAD}).code == 0, SECONDS)
        (queue,) = twin.ask(ROUTE, {"topic": DEAD}).json["queueDatas"]
        assert (queue["brokerName"], queue["readQueueNums"]) == ("base-reput", 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": 1}, {"offset": 1 << 40}, {"originTopic": "Other"}, {"originMsgId": "KEY1"},
        {"group": ""}, {"group": "no group"},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_failed_copy_is_refused(
    small: SmallStore, ports: Ports, tmp_path: Path, wrong: dict[str, object]
) -> None:
    """A client may copy nothing but what it was given."""
    with Client(ports[0]) as client:
        fields = {**back(small.log.spans[0][0]), **wrong}
        assert client.ask(SEND_BACK, fields).code in (SYSTEM_ERROR, NO_GROUP)
        client.ask(BEAT, None, heartbeat("me", GROUP, "Others"))
        # a group that reads something else
        assert client.ask(SEND_BACK, back(small.log.spans[0][0])).code == SYSTEM_ERROR
    assert written(tmp_path) == []


def test_neither_damage_nor_a_batch_is_taken_back(small: SmallStore, tmp_path: Path) -> None:
    """A group would get a body that nobody sent, or all messages for one of them."""
    damaged, batch = small.log.spans[0][0], small.append(body=b"inner", sys_flag=0xC0)
    small.log.write(small.root / "commitlog")
    (path,) = (path for path in (small.root / "commitlog").iterdir() if not int(path.name))
    data = bytearray(path.read_bytes())
    data[data.index(b"body", damaged)] ^= 1
    path.write_bytes(data)
    with serving(small, tmp_path) as ports, Client(ports[0]) as client:
        for offset, line in ((damaged, "look message by offset failed"), (batch, "inner batch")):
            answer = client.ask(SEND_BACK, {"group": GROUP, "offset": offset, "delayLevel": 0})
            assert answer.code == SYSTEM_ERROR
            assert line in answer.header["remark"]
    assert written(tmp_path) == []


def test_a_group_without_retry_queues_gets_none(small: SmallStore, tmp_path: Path) -> None:
    """As at a broker: the answer is 0, and nothing is written."""
    config = small.root / "config"
    config.mkdir()
    table = '{"subscriptionGroupTable":{"group":{"groupName":"group","retryQueueNums":0}}}'
    (config / "subscriptionGroup.json").write_text(table)
    with serving(small, tmp_path) as ports, Client(ports[0]) as client:
        assert client.ask(SEND_BACK, back(small.log.spans[0][0])).code == 0
    assert written(tmp_path) == []


def test_clients_send_to_retry_topics(ports: Ports, tmp_path: Path) -> None:
    """With a level they wait; beyond their attempts, and of orderly groups, they are dead."""
    with Client(ports[1]) as twin:
        answer = twin.ask(SEND_V2, send(RETRIES, "DELAY\x013\x02UNIQ_KEY\x01K\x02"), b"one")
        assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "0", "0")
        assert (answer.ext["transactionId"], answer.ext["TRACE_ON"]) == ("K", "true")
        long = {"topic": RETRIES, "queueId": 0, "sysFlag": 0, "bornTimestamp": 7, "flag": 3}
        more = {"properties": "", "reconsumeTimes": 1, "maxReconsumeTimes": 16}
        assert twin.ask(SEND, {**long, **more}, b"two").code == 0
        assert twin.ask(SEND_V2, send(RETRIES, j=17), b"three").code == 0
        queue = {"topic": "Topic", "queueId": 0, "brokerName": "base"}
        with Client(ports[0]) as client:
            asked = {"consumerGroup": GROUP, "clientId": "me", "mqSet": [queue]}
            assert client.ask(LOCK, None, asked).code == 0
        assert twin.ask(SEND_V2, send(RETRIES), b"four").code == 0
        assert twin.ask(SEND_BATCH, send(RETRIES), b"five").code == ILLEGAL
        assert twin.ask(SEND_V2, send("Topic"), b"six").code == NO_PERMISSION
        assert twin.ask(SEND_V2, send("SCHEDULE_TOPIC_XXXX"), b"seven").code == NO_PERMISSION
    with Client(ports[0]) as client:
        assert client.ask(SEND_V2, send(RETRIES), b"eight").code == NOT_SUPPORTED
    found = {one.body: (one.topic, one.reconsume_times) for one in written(tmp_path)[:4]}
    assert found == {
        b"one": (b"SCHEDULE_TOPIC_XXXX", 1), b"two": (RETRIES.encode(), 1),
        b"three": (DEAD.encode(), 17), b"four": (DEAD.encode(), 1),
    }  # fmt: skip
    one = written(tmp_path)[0]
    assert (one.flag, one.born_timestamp, one.born_host[0]) == (3, 7, "127.0.0.1")


def test_routes_name_both_brokers_for_retries(ports: Ports) -> None:
    """From the first request on, for any group; messages of the base are at the base alone."""
    with Client(ports[0]) as client, Client(ports[1]) as twin:
        client.ask(BEAT, None, heartbeat("me", GROUP, "Topic"))
        route = twin.ask(ROUTE, {"topic": RETRIES}).json
        brokers = {one["brokerName"]: one["brokerAddrs"]["0"] for one in route["brokerDatas"]}
        expected = (("base", ports[0]), ("base-reput", ports[1]))
        assert brokers == {name: f"127.0.0.1:{port}" for name, port in expected}
        (queue,) = route["queueDatas"]
        assert (queue["brokerName"], queue["perm"], queue["writeQueueNums"]) == ("base-reput", 6, 1)
        route = twin.ask(ROUTE, {"topic": "Topic"}).json
        assert [one["brokerName"] for one in route["brokerDatas"]] == ["base"]
        assert [one["perm"] for one in route["queueDatas"]] == [4]
        assert twin.ask(ROUTE, {"topic": DEAD}).code == NO_TOPIC


def test_another_server_goes_on(small: SmallStore, tmp_path: Path) -> None:
    """It delivers what waits, once, and knows what is dead and what was sent back."""
    first, second = (start for start, _ in small.log.spans[:2])
    with serving(small, tmp_path) as ports, Client(ports[0]) as client:
        assert client.ask(SEND_BACK, back(first, 0)).code == 0
        assert client.ask(SEND_BACK, back(second, 1, delayLevel=-1)).code == 0
    for _ in range(2):
        with serving(small, tmp_path) as ports, Client(ports[0]) as client:
            assert client.ask(SEND_BACK, back(second, 1)).code == 0
            assert became(lambda: len(written(tmp_path)) == 3, SECONDS)
            # the file that is there for a broker does not change what clients may do
            queues = client.ask(ROUTE, {"topic": RETRIES}).json["queueDatas"]
            assert [(queue["brokerName"], queue["perm"]) for queue in queues] == [("base-reput", 6)]
    topics = [one.topic for one in written(tmp_path)]
    assert topics == [b"SCHEDULE_TOPIC_XXXX", DEAD.encode(), RETRIES.encode()]


def test_another_server_delivers_by_the_levels_of_then(
    small: SmallStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Records that wait are due by the base's levels of now: a snapshot of others is not read."""
    conf = small.root / "broker.conf"
    text = conf.read_text()
    conf.write_text(f"{text}messageDelayLevel=1h 1h 1h 1h 1h\n")
    with serving(small, tmp_path) as ports, Client(ports[0]) as client:
        assert client.ask(SEND_BACK, back(small.log.spans[0][0])).code == 0
    assert len(written(tmp_path)) == 1
    conf.write_text(text)
    with serving(small, tmp_path):
        assert became(lambda: len(written(tmp_path)) == 2, SECONDS)
    assert "delay levels have changed" in caplog.text


def test_a_copy_that_is_sent_because_its_answer_was_lost(small: SmallStore, tmp_path: Path) -> None:
    """Nobody knows whether a server that ended had answered: the same message is taken once. With
    an answer it is another failure."""
    with (small.root / "broker.conf").open("a") as conf:
        conf.write("messageDelayLevel=1h 1h 1h 1h 1h\n")
    again = send(RETRIES, "DELAY\x013\x02UNIQ_KEY\x01KEY0\x02RETRY_TOPIC\x01Topic\x02")
    with serving(small, tmp_path) as ports, Client(ports[0]) as client:
        assert client.ask(SEND_BACK, back(small.log.spans[0][0])).code == 0
        with Client(ports[1]) as twin:
            assert twin.ask(SEND_V2, again, b"body").code == 0
        assert [one.reconsume_times for one in written(tmp_path)] == [1, 1]
        assert client.ask(SEND_BACK, back(small.log.spans[1][0], 1)).code == 0
    of_second = {**again, "i": str(again["i"]).replace("KEY0", "KEY1"), "j": 2}
    with serving(small, tmp_path) as ports, Client(ports[1]) as twin:
        answer = twin.ask(SEND_V2, of_second, b"body")
        assert (answer.code, answer.ext["queueOffset"], answer.ext["transactionId"]) == (
            0, "0", "KEY1",
        )  # fmt: skip
        assert len(written(tmp_path)) == 3
        assert twin.ask(SEND_V2, of_second, b"body").code == 0
        assert len(written(tmp_path)) == 4
        second_try = {**of_second, "j": 0}
        assert twin.ask(SEND_V2, second_try, b"body").code == 0
        assert len(written(tmp_path)) == 5
    with serving(small, tmp_path) as ports, Client(ports[1]) as twin:
        assert twin.ask(SEND_V2, second_try, b"body").code == 0
        assert len(written(tmp_path)) == 5


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_client_that_has_gone_was_not_answered(
    ports: Ports, small: SmallStore, tmp_path: Path, *, is_sent: bool
) -> None:
    """It sends the message from another connection, and that is the same failure: nothing more is
    written, whether the message was sent back at first or sent."""
    is_reached, may_go = threading.Event(), threading.Event()

    def hold(operation: str, path: str) -> None:
        if operation == "sync" and "/commitlog/" in path:
            is_reached.set()
            assert may_go.wait(SECONDS)

    text = "DELAY\x014\x02UNIQ_KEY\x01KEY1\x02RETRY_TOPIC\x01Topic\x02"
    with Client(ports[0]) as other, Client(ports[1]) as twin:
        with before_operations(hold):
            with Client(ports[is_sent]) as client:
                if is_sent:
                    client.send(SEND_V2, send(RETRIES, text, j=2), b"body")
                else:
                    client.send(SEND_BACK, back(small.log.spans[1][0], 1, delayLevel=9))
                assert is_reached.wait(SECONDS)
            # the server has seen the end of that connection before it answers twice on another
            for _ in range(2):
                assert other.ask(MAX, {"topic": "Topic", "queueId": 0}).code == 0
            may_go.set()
            assert other.ask(SEND_BACK, back(small.log.spans[2][0], 2, delayLevel=-1)).code == 0
        assert twin.ask(SEND_V2, send(RETRIES, text, j=2), b"body").code == 0
    keys = [one.property_map[b"UNIQ_KEY"] for one in written(tmp_path)]
    assert keys[:2] == [b"KEY1", b"KEY2"]
    assert keys.count(b"KEY1") == 1


def test_a_one_way_request_is_not_answered(ports: Ports, small: SmallStore, tmp_path: Path) -> None:
    """The first answer is that to the next request."""
    with Client(ports[0]) as client:
        client.send(SEND_BACK, back(small.log.spans[0][0], 0, delayLevel=-1), flag=2)
        later = client.send(SEND_BACK, back(small.log.spans[1][0], 1, delayLevel=-1))
        assert client.receive().opaque == later
    assert len(written(tmp_path)) == 2


def test_a_send_goes_to_the_queue_that_it_names(small: SmallStore, tmp_path: Path) -> None:
    """The first one too; without one it goes to any."""
    config = small.root / "config"
    config.mkdir()
    table = '{"subscriptionGroupTable":{"group":{"groupName":"group","retryQueueNums":5}}}'
    (config / "subscriptionGroup.json").write_text(table)
    asked = [0, 4] * 10
    with serving(small, tmp_path) as ports, Client(ports[1]) as twin:
        for queue_id in asked:
            answer = twin.ask(SEND_V2, send(RETRIES, e=queue_id), b"body")
            assert (answer.code, answer.ext["queueId"]) == (0, str(queue_id))
        answer = twin.ask(SEND_V2, send(RETRIES, e=-1), b"body")
        assert (answer.code, answer.ext["queueId"]) == (0, "-1")
    found = [one.queue_id for one in written(tmp_path)]
    assert found[:-1] == asked
    assert found[-1] in range(5)


def test_what_a_killed_server_has_written_is_dispatched_by_the_next(
    small: SmallStore, tmp_path: Path
) -> None:
    """At its start: nothing is written meanwhile."""
    with serving(small, tmp_path):
        pass
    with LogAppender(tmp_path / "output" / "overlay") as appender:
        appender.append(Record(topic=RETRIES.encode(), body=b"body"))
    place = {"topic": RETRIES, "queueId": 0}
    with serving(small, tmp_path) as ports, Client(ports[1]) as twin:
        assert became(lambda: twin.ask(MAX, place).ext == {"offset": "1"}, SECONDS)
    assert len(written(tmp_path)) == 1


def test_commands_read_it_as_any_store(small: SmallStore, tmp_path: Path, call: Call) -> None:
    """While it is served, and afterwards; verify finds each entry as the log has it."""
    overlay = tmp_path / "output" / "overlay"
    with serving(small, tmp_path) as ports, Client(ports[0]) as client:
        for number, (start, _) in enumerate(small.log.spans):
            assert client.ask(SEND_BACK, back(start, number, delayLevel=-1)).code == 0
        assert became(
            lambda: call("tail", overlay, DEAD, "--json").stdout.count("\n") == 5, SECONDS
        )
    done = call("verify", overlay, "--json")
    assert (done.returncode, json.loads(done.stdout)["units"]) == (0, 5)
    done = call("sql", overlay, "select count(*) as n from messages")
    assert json.loads(done.stdout) == {"n": 5}


def test_without_an_overlay_nothing_is_taken_back(small: SmallStore) -> None:
    """As before: the client offers the message again by itself."""
    with served(small.root) as port, Client(port) as client:
        assert client.ask(SEND_BACK, back(small.log.spans[0][0])).code == SYSTEM_ERROR
        assert client.ask(SEND_V2, send(RETRIES), b"body").code == NOT_SUPPORTED
    assert not (small.root / "overlay").exists()


def tree_digest(root: Path) -> str:
    """SHA-256 of every file below a store."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        digest.update(str(path).encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def test_each_of_several_overlays_is_announced_where_it_is(
    small: SmallStore, tmp_path: Path
) -> None:
    """A client that was sent to another broker's port would send back to the wrong one."""
    names, places = ("one", "other", "third"), []
    for name in names:
        root = shutil.copytree(small.root, tmp_path / name)
        conf = root / "broker.conf"
        conf.write_text(conf.read_text().replace("brokerName=base", f"brokerName={name}"))
        output = tmp_path / f"{name}-output"
        output.mkdir()
        (output / "consumequeue").symlink_to(root / "consumequeue")
        places.append((root, output))
    with served_stores(places, overlay=True) as ports, Client(ports[0]) as client:
        table = client.ask(CLUSTERS).json["brokerAddrTable"]
        found = {name: broker["brokerAddrs"]["0"] for name, broker in table.items()}
        brokers = [*names, *(f"{name}-reput" for name in names)]
        assert found == {
            name: f"127.0.0.1:{port}" for name, port in zip(brokers, ports, strict=True)
        }
