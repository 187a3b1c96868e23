"""Members, notices, locks and routes, as clients see them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from reput.serving import groups, locks
from reput.serving.connection import Connection
from reput.serving.frame import Frame
from reput.serving.groups import Groups
from reput.serving.locks import LOCK_SECONDS, RELEASE_SECONDS, Locks
from tests.support.processes import became
from tests.support.remoting import Client, heartbeat, served

HEART_BEAT, UNREGISTER, MEMBERS, NOTICE, CONNECTIONS = 34, 35, 38, 40, 203
LOCK, UNLOCK = 41, 42
BUSY = 2
WAIT_SECONDS = 30.0


def members(client: Client, group: str) -> list[str]:
    answer = client.ask(MEMBERS, {"consumerGroup": group})
    return list(answer.json["consumerIdList"]) if answer.code == 0 else []


def test_members_come_and_go(port: int) -> None:
    """Members are notified of each change, at once. A lost connection counts as leaving, as an
    unregistration does."""
    with Client(port) as first, Client(port) as second:
        answer = first.ask(HEART_BEAT, {}, heartbeat("a", "g1", "Topic_1"))
        assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        with Client(port) as third:
            notice = first.receive()
            assert (notice.code, notice.header["flag"]) == (NOTICE, 2)
            assert notice.ext == {"consumerGroup": "g1"}
            for client, name in ((second, "b"), (third, "c")):
                client.send(HEART_BEAT, {}, heartbeat(name, "g1", "Topic_1"))
                assert {client.receive().code, client.receive().code} == {0, NOTICE}
                assert first.receive().code == NOTICE
            assert members(second, "g1") == ["a", "b", "c"]
        assert first.receive().code == NOTICE
        assert members(first, "g1") == ["a", "b"]
        good_bye = {"clientID": "b", "consumerGroup": "g1", "producerGroup": "x"}
        assert second.ask(UNREGISTER, good_bye).code == 0
        assert members(first, "g1") == ["a"]
    with Client(port) as client:
        answer = client.ask(MEMBERS, {"consumerGroup": "g1"})
        assert (answer.code, answer.body) == (1, b"")
        assert client.ask(CONNECTIONS, {"consumerGroup": "g1"}).code == 206


class MovedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is moved by the test."""

    now = 0.0

    def time(self) -> float:
        return self.now

    async def at(self, seconds: float) -> None:
        """Move the time on, and run what is due by then."""
        self.now = seconds
        for _ in range(3):
            await asyncio.sleep(0)


class Told:
    """A connection that keeps when it was notified."""

    is_open, peer = True, "127.0.0.1:1"

    def __init__(self) -> None:
        self.times: list[float] = []

    def notify(self, code: int, ext: dict[str, str]) -> None:
        assert (code, ext) == (NOTICE, {"consumerGroup": "g"})
        self.times.append(asyncio.get_running_loop().time())


def joined(registry: Groups, name: str) -> Told:
    """A member's connection after its first heartbeat."""
    connection = Told()
    body = json.dumps(heartbeat(name, "g", "Topic_1")).encode()
    registry.heart_beat(cast(Connection, connection), Frame(HEART_BEAT, 1, body=body))
    return connection


def test_a_notice_is_not_awaited_unless_one_has_just_gone_out() -> None:
    """The first member and the second are told at once, and changes that follow are gathered: each
    member but one that was told makes the next notice 5 ms later, up to a second."""

    async def run() -> None:
        await loop.at(100.0)
        registry = Groups(lambda *_: None)
        first = joined(registry, "a")
        await loop.at(100.0)
        assert first.times == [100.0]
        second = joined(registry, "b")
        await loop.at(100.001)
        assert (first.times, second.times) == ([100.0, 100.001], [100.001])
        third, fourth = joined(registry, "c"), joined(registry, "d")
        await loop.at(100.005)
        assert third.times == []
        await loop.at(100.007)
        assert (third.times, fourth.times) == ([100.007], [100.007])
        await loop.at(101.0)
        fifth = joined(registry, "e")
        await loop.at(101.0)
        assert first.times == [100.0, 100.001, 100.007, 101.0]
        registry.connection_closed(cast(Connection, fifth))
        await loop.at(101.019)
        assert len(first.times) == 4
        await loop.at(101.021)
        assert first.times[4:] == [101.021]

    with contextlib.closing(MovedLoop()) as loop:
        loop.run_until_complete(run())


def test_a_rolling_start_of_many_is_told_in_few_notices() -> None:
    """A thousand members join, one a millisecond: the first is told up to 15 times, and all are
    told of the last change within a second."""

    async def run() -> None:
        registry = Groups(lambda *_: None)
        connections = []
        for number in range(1000):
            connections.append(joined(registry, f"c{number}"))
            await loop.at((number + 1) / 1000)
        ended = loop.now
        await loop.at(ended + 1)
        assert len(connections[0].times) <= 15
        assert connections[-1].times[-1] <= ended + 1
        assert {connection.times[-1] for connection in connections} == {ended + 1}

    with contextlib.closing(MovedLoop()) as loop:
        loop.run_until_complete(run())


def test_a_topic_taken_up_for_another_is_told(port: int) -> None:
    """The other members then divide its queues anew; a heartbeat that changes nothing tells
    nobody. The answer that comes next shows that no notice stood before it."""
    with Client(port) as first, Client(port) as second:
        assert first.ask(HEART_BEAT, {}, heartbeat("a", "g1", "Topic_1")).code == 0
        second.send(HEART_BEAT, {}, heartbeat("b", "g1", "Topic_1"))
        assert {second.receive().code, second.receive().code} == {0, NOTICE}
        assert first.receive().code == NOTICE
        assert second.ask(HEART_BEAT, {}, heartbeat("b", "g1", "Topic_1", version=2)).code == 0
        assert members(first, "g1") == ["a", "b"]
        second.send(HEART_BEAT, {}, heartbeat("b", "g1", "Topic_2", version=3))
        assert {second.receive().code, second.receive().code} == {0, NOTICE}
        assert first.receive().code == NOTICE


def test_one_id_is_one_member(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """This holds for any number of connections; otherwise the shares of others would shift. The log
    says so; with a name for each of them nothing is said, and both are members."""
    caplog.set_level(logging.WARNING, "reput")
    with Client(port) as first, Client(port) as second:
        for client in (first, second):
            assert client.ask(HEART_BEAT, {}, heartbeat("same", "g2", "Topic_1")).code == 0
        assert members(first, "g2") == ["same"]
        first.socket.close()
        assert members(second, "g2") == ["same"]
    (line,) = caplog.messages
    assert line.startswith("client id same of group g2 is used by 127.0.0.1")
    assert line.endswith("; give each instance a name")
    caplog.clear()
    with Client(port) as first, Client(port) as second:
        for client, name in ((first, "one"), (second, "two")):
            assert client.ask(HEART_BEAT, {}, heartbeat(name, "g2", "Topic_1")).code == 0
        assert members(first, "g2") == ["one", "two"]
    assert caplog.messages == []


def test_members_that_want_different_messages(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """The log says what each of them wants, until all want the same."""
    caplog.set_level(logging.WARNING, "reput")
    with Client(port) as first, Client(port) as second:
        assert first.ask(HEART_BEAT, {}, heartbeat("a", "g9", "Topic_1:x")).code == 0
        second.send(HEART_BEAT, {}, heartbeat("b", "g9", "Topic_1:y"))
        assert {second.receive().code, second.receive().code} == {0, NOTICE}
        (line,) = caplog.messages
        assert "topic Topic_1: b wants 'y' and a 'x'; " in line
        assert line.endswith("give all members the same")
        caplog.clear()
        second.send(HEART_BEAT, {}, heartbeat("b", "g9", "Topic_1:x", version=2))
        while second.receive().code == NOTICE:
            continue
        assert members(first, "g9") == ["a", "b"]
    assert caplog.messages == []


def test_broadcasting_members_are_not_notified(port: int) -> None:
    """Each of them reads every queue, so they need no notice; who asks is told who is there."""
    with Client(port) as first, Client(port) as second:
        for client, name in ((first, "a"), (second, "b")):
            body = heartbeat(name, "g3", "Topic_1", model="BROADCASTING")
            assert client.ask(HEART_BEAT, {}, body).code == 0
            assert members(first, "g3") == ["a", "b"][: 1 + (client is second)]
        with pytest.raises(TimeoutError):
            first.receive(timeout=0.5)


def test_a_heartbeat_without_subscriptions_is_asked_for_them(port: int) -> None:
    """A heartbeat of the second version has none; after a restart of the server the client must
    send them again."""
    body = heartbeat("a", "g4", without_sub=True)
    with Client(port) as client:
        assert client.ask(HEART_BEAT, {}, body).ext["IS_SUB_CHANGE"] == "true"
        assert client.ask(HEART_BEAT, {}, heartbeat("a", "g4", "Topic_1")).code == 0
        assert client.ask(HEART_BEAT, {}, body).ext["IS_SUB_CHANGE"] == "false"
        unknown = heartbeat("a", "unknown", without_sub=True)["consumerDataSet"]
        both = {**body, "consumerDataSet": [*unknown, *body["consumerDataSet"]]}
        assert client.ask(HEART_BEAT, {}, both).ext["IS_SUB_CHANGE"] == "true"
        found = client.ask(CONNECTIONS, {"consumerGroup": "g4"}).json
        assert list(found["subscriptionTable"]) == ["Topic_1"]
        assert found["connectionSet"][0]["clientId"] == "a"
        assert found["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"


def test_a_subscription_without_a_version_has_the_time_of_its_heartbeat(port: int) -> None:
    """In ms, as RocketMQ's SubscriptionData is made with; a newer one replaces it by that."""
    with Client(port) as client:
        before = time.time_ns() // 1_000_000
        client.ask(HEART_BEAT, {}, heartbeat("a", "unversioned", "Topic_1", version=None))
        found = client.ask(CONNECTIONS, {"consumerGroup": "unversioned"}).json["subscriptionTable"]
        assert before <= found["Topic_1"]["subVersion"] <= time.time_ns() // 1_000_000


def test_bodies_that_are_no_heartbeat(port: int) -> None:
    """They are answered with an error, and nothing of them is kept."""
    with Client(port) as client:
        for body in (
            b"", b"\xff", b"[", b"[]", b"{}", b"[" * 100_000,
            b'{"clientID":"x","consumerDataSet":[7]}', b'{"clientID":"x","consumerDataSet":"x"}',
            b'{"clientID":"x","consumerDataSet":[{"groupName":"g5","messageModel":2}]}',
            b'{"clientID":"x","consumerDataSet":[{"groupName":"g5"},{"groupName":""}]}',
            b'{"clientID":"x","consumerDataSet":[{"groupName":"g5","consumeType":1.0}]}',
            b'{"clientID":"x","consumerDataSet":[{"groupName":"g5","subscriptionDataSet":[{}]}]}',
        ):  # fmt: skip
            assert client.ask(HEART_BEAT, {}, body).code == 1
        # of one quote that never ends each escaped one was tried as a beginning
        assert client.ask(HEART_BEAT, {}, b'"' + b'\\"' * 500_000).code == 1
        assert client.ask(HEART_BEAT, {}, b" " * (5 << 20) + b"{}").code == 1
        for client_id in ("\ud800", "a\nb", "", "x" * 256):
            assert client.ask(HEART_BEAT, {}, heartbeat(client_id, "g5", "Topic_1")).code == 1
        assert members(client, "g5") == []
        odd = heartbeat("x", "../g5", "Topic_1")
        assert client.ask(HEART_BEAT, {}, odd).code == 0
        assert members(client, "../g5") == []
        locks = '{"clientId":"x","consumerGroup":"g","mqSet":[%s]}'
        for queue, words in (
            ("7", "mqSet: 7 is no object"), ("{}", "which locks"),
            ('{"topic":"Topic_1","queueId":"x"}', "queueId: 'x' is no long"),
        ):  # fmt: skip
            answer = client.ask(LOCK, {}, (locks % queue).encode())
            assert (answer.code, words in answer.header["remark"]) == (1, True)
        assert client.ask(LOCK, {}, b"{}").code == 1


@pytest.mark.parametrize(("kind", "text"), [("TAG", "a"), ("SQL92", "a = 1 ")])
def test_an_expression_is_bounded(kind: str, text: str) -> None:
    """By 16,384 characters; a longer one is refused before it is parsed."""
    longest = text.ljust(16_384)
    assert groups.parse_filter(longest, kind) is not None
    with pytest.raises(ValueError, match="16385 characters is too long"):
        groups.parse_filter(longest + " ", kind)


def test_what_members_may_take_is_bounded(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further member is refused until one leaves; existing ones are served."""
    monkeypatch.setattr(groups, "MAX_BYTES", 100_000)
    large = [f"Topic_{n}:{'x' * 300}" for n in range(2)]
    with served(store) as port, Client(port) as first, Client(port) as second:
        assert first.ask(HEART_BEAT, {}, heartbeat("a", "g", *large)).code == 0
        assert second.ask(HEART_BEAT, {}, heartbeat("b", "g", *large)).code == BUSY
        assert first.ask(HEART_BEAT, {}, heartbeat("a", "g", *large)).code == 0
        # what it has counts once, also where it takes a little more
        larger = [f"{one}x" for one in large]
        assert first.ask(HEART_BEAT, {}, heartbeat("a", "g", *larger)).code == 0
        assert members(second, "g") == ["a"]
        assert first.ask(UNREGISTER, {"clientID": "a", "consumerGroup": "g"}).code == 0
        assert second.ask(HEART_BEAT, {}, heartbeat("b", "g", *large)).code == 0


def test_locks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit no lock is granted; locks that have ended do not count."""
    monkeypatch.setattr(locks, "MAX_LOCKS", 3)
    now = [0.0]
    held = Locks(lambda: now[0])
    assert held.lock("g", "a", [("T", 0), ("T", 1)]) == [("T", 0), ("T", 1)]
    assert held.lock("h", "b", [("T", 0), ("T", 1)]) == [("T", 0)]
    assert held.lock("g", "a", [("T", 0)]) == [("T", 0)]
    held.unlock("g", "a", [("T", 1)])
    assert held.lock("h", "b", [("T", 1)]) == [("T", 1)]
    now[0] = LOCK_SECONDS
    assert held.lock("i", "c", [("T", 0), ("T", 1), ("T", 2)]) == [("T", 0), ("T", 1), ("T", 2)]


def lock_body(client_id: str, *queue_ids: int) -> dict[str, object]:
    queues = [{"brokerName": "b", "queueId": n, "topic": "Topic_1"} for n in queue_ids]
    return {"consumerGroup": "g6", "clientId": client_id, "mqSet": queues}


def lock_ids(client: Client, client_id: str, *queue_ids: int) -> list[int]:
    """The queues that a client gets of those that it asks for."""
    found = client.ask(LOCK, {}, lock_body(client_id, *queue_ids)).json["lockOKMQSet"]
    return sorted(queue["queueId"] for queue in found)


def test_locks_over_the_wire(port: int) -> None:
    """A queue has one owner, and another client's unlock changes nothing."""
    with Client(port) as client:
        found = client.ask(LOCK, {}, lock_body("a", 0, 1)).json["lockOKMQSet"]
        assert sorted(queue["queueId"] for queue in found) == [0, 1]
        client.ask(UNLOCK, {}, lock_body("b", 0, 1))
        found = client.ask(LOCK, {}, lock_body("b", 1, 2)).json["lockOKMQSet"]
        assert found == [{"brokerName": "b", "queueId": 2, "topic": "Topic_1"}]
        client.ask(UNLOCK, {}, lock_body("a", 1))
        found = client.ask(LOCK, {}, lock_body("b", 0, 1)).json["lockOKMQSet"]
        assert [queue["queueId"] for queue in found] == [1]


def test_who_leaves_has_no_locks_whether_a_member_or_not(port: int) -> None:
    """As one that has sent no heartbeats for too long, and has renewed its locks all the time; the
    locks of others, and its own in another group, stay."""
    with Client(port) as client:
        assert lock_ids(client, "a", 10, 11) == [10, 11]
        assert lock_ids(client, "b", 12) == [12]
        for group in ("another", "g6"):
            assert lock_ids(client, "c", 10, 11, 12) == []
            client.ask(UNREGISTER, {"consumerGroup": group, "clientID": "a"})
        assert lock_ids(client, "c", 10, 11, 12) == [10, 11]


def test_locks_end() -> None:
    """A lock ends 60 s after its last renewal, soon after its owner's connection was lost unless
    the owner renews it, and at once when the owner unregisters."""
    now = [0.0]
    locks = Locks(lambda: now[0])
    queues = [("T", 0)]
    assert locks.lock("g", "a", queues) == queues
    now[0] = LOCK_SECONDS - 1
    assert locks.lock("g", "b", queues) == []
    assert locks.lock("g", "a", queues) == queues
    now[0] += LOCK_SECONDS
    assert locks.lock("g", "b", queues) == queues
    locks.owner_left("g", "b", said=False)
    assert locks.lock("g", "a", queues) == []
    assert locks.lock("g", "b", queues) == queues
    now[0] += RELEASE_SECONDS
    assert locks.lock("g", "a", queues) == []
    locks.owner_left("g", "b", said=False)
    now[0] += RELEASE_SECONDS
    assert locks.lock("g", "a", queues) == queues
    locks.owner_left("g", "a", said=True)
    assert locks.lock("g", "b", queues) == queues


def test_a_lock_that_has_ended_is_nobody_s() -> None:
    """No consumer holds it, and the file over a restart does not name its owner; until a client
    asks for a lock again nothing is swept."""
    now = [0.0]
    locks = Locks(lambda: now[0])
    assert locks.lock("g", "a", [("T", 0)]) == [("T", 0)]
    now[0] = LOCK_SECONDS / 2
    assert locks.lock("g", "b", [("T", 1)]) == [("T", 1)]
    assert locks.owners() == {"g": {"a": {"T": [0]}, "b": {"T": [1]}}}
    now[0] = LOCK_SECONDS
    assert (locks.owners(), locks.holds("g")) == ({"g": {"b": {"T": [1]}}}, True)
    now[0] += LOCK_SECONDS
    assert (locks.owners(), locks.holds("g")) == ({}, False)


def test_a_member_that_connects_anew_stays(port: int) -> None:
    """The end of its old connection is no end of its membership; it ends that of another group,
    in which the client has spoken over the old one alone."""
    with Client(port) as other, Client(port) as new:
        with Client(port) as old:
            for group in ("g7", "g8"):
                assert old.ask(HEART_BEAT, {}, heartbeat("a", group, "Topic_1")).code == 0
            assert new.ask(HEART_BEAT, {}, heartbeat("a", "g7", "Topic_1")).code == 0
        assert became(lambda: members(other, "g8") == [], WAIT_SECONDS)
        assert members(other, "g7") == ["a"]


@pytest.mark.parametrize("knows", ["the group", "the locks"])
def test_the_loss_of_a_connection_makes_no_lock_last_longer(knows: str) -> None:
    """Neither a lock that ends sooner by itself, nor one whose owner was lost a moment before."""
    now, lost = [0.0], SimpleNamespace(is_open=False)
    held, connection = Locks(lambda: now[0]), cast(Connection, lost)

    def lose() -> None:
        if knows == "the group":
            held.owner_left("g", "a", said=False)
        else:
            held.connection_closed(connection, lambda _group, _client_id: False)

    assert held.lock("g", "a", [("T", 0)], connection) == [("T", 0)]
    now[0] = LOCK_SECONDS - RELEASE_SECONDS / 2
    assert held.lock("g", "a", [("T", 1)], connection) == [("T", 1)]
    lose()
    now[0] = LOCK_SECONDS
    assert held.lock("g", "b", [("T", 0), ("T", 1)]) == [("T", 0)]
    lose()
    now[0] += RELEASE_SECONDS / 2
    assert held.lock("g", "b", [("T", 1)]) == [("T", 1)]


def test_locks_that_were_taken_over_an_open_connection_stay(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that connects anew takes its locks before the server knows that the old connection
    is lost: that loss does not end them, and that of the new connection does."""
    monkeypatch.setattr(locks, "RELEASE_SECONDS", 0.0)
    with Client(port) as other:
        assert other.ask(HEART_BEAT, {}, heartbeat("b", "g6", "Topic_1")).code == 0
        with Client(port) as new:
            with Client(port) as old:
                assert old.ask(HEART_BEAT, {}, heartbeat("a", "g6", "Topic_1")).code == 0
                assert old.ask(LOCK, {}, lock_body("a", 8, 9)).code == 0
                assert new.ask(LOCK, {}, lock_body("a", 9)).code == 0
            assert became(lambda: members(other, "g6") == ["b"], WAIT_SECONDS)
            assert lock_ids(other, "b", 8, 9) == [8]
        assert became(lambda: lock_ids(other, "b", 8, 9) == [8, 9], WAIT_SECONDS)


def test_routes(store: Path) -> None:
    """Routes name the address at which the client came, or the advertised one, and the store's
    queues, read-only."""
    for options in ({}, {"advertised_host": "broker.example"}):
        with served(store, **options) as port, Client(port) as client:
            host = options.get("advertised_host", "127.0.0.1")
            found = client.ask(105, {"topic": "Topic_1"}).json
            (broker,) = found["brokerDatas"]
            assert broker["brokerAddrs"] == {"0": f"{host}:{port}"}
            (queues,) = found["queueDatas"]
            assert (queues["readQueueNums"], queues["perm"]) == (4, 4)
            assert queues["brokerName"] == broker["brokerName"]
            assert client.ask(105, {"topic": "Nowhere"}).code == 17
            assert client.ask(105, {"topic": "../plain"}).code == 17
            cluster = client.ask(106).json
            assert cluster["brokerAddrTable"] == {broker["brokerName"]: broker}
            assert "Topic_1" in client.ask(206).json["topicList"]
            assert client.ask(101, {"namespace": "n", "key": "k"}).code == 22
            assert client.ask(219, {"namespace": "n"}).json == {"table": {}}
