"""Several stores served as brokers of one cluster, as plain clients see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.serving import holds
from reput.store import configjson
from reput.store.files import CONSUMER_OFFSET_FILE
from tests.support.golden import log_records, unpack_golden
from tests.support.processes import became
from tests.support.remoting import Client, heartbeat, served_stores

PULL, COMMIT, HEART_BEAT, MEMBERS, LOCK, ROUTE, CLUSTERS, TOPICS = 11, 15, 34, 38, 41, 105, 106, 206
SHARED, OF_ONE = "Topic_0", "Orders"
SECONDS = 30.0


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three golden stores: two share a topic, one has its own."""
    place = tmp_path_factory.mktemp("stores")
    return [unpack_golden(name, place) for name in ("plain", "lmq", "broker")]


@pytest.fixture(scope="module")
def ports(stores: list[Path]) -> Iterator[tuple[int, ...]]:
    with served_stores([(store, store) for store in stores]) as found:
        yield found


def addresses(client: Client, topic: str) -> dict[str, str]:
    """The address of each broker in the route of a topic."""
    route = client.ask(ROUTE, {"topic": topic}).json
    assert {data["cluster"] for data in route["brokerDatas"]} == {"DefaultCluster"}
    assert {data["brokerName"] for data in route["queueDatas"]} == {
        data["brokerName"] for data in route["brokerDatas"]
    }
    return {data["brokerName"]: data["brokerAddrs"]["0"] for data in route["brokerDatas"]}


def test_routes_name_the_brokers_that_have_a_topic(ports: tuple[int, ...]) -> None:
    """A broker has its folder's name and a port of its own, and every port is a name server."""
    plain, lmq, broker = (f"127.0.0.1:{port}" for port in ports)
    for port in ports:
        with Client(port) as client:
            assert addresses(client, SHARED) == {"plain": plain, "lmq": lmq}
            assert addresses(client, OF_ONE) == {"broker": broker}
            found = client.ask(CLUSTERS).json
            assert found["clusterAddrTable"] == {"DefaultCluster": ["plain", "lmq", "broker"]}
            known = {
                key: data["brokerAddrs"]["0"] for key, data in found["brokerAddrTable"].items()
            }
            assert known == {"plain": plain, "lmq": lmq, "broker": broker}
            assert {SHARED, OF_ONE} <= {*client.ask(TOPICS).json["topicList"]}


def test_each_broker_has_its_own_messages_members_locks_and_offsets(
    stores: list[Path], ports: tuple[int, ...]
) -> None:
    """A client is a member at each broker, and its commits at one do not reach another."""
    place: dict[str, object] = {"consumerGroup": "group", "topic": SHARED, "queueId": 0}
    pull = {**place, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 0, "subVersion": 1}
    for number, (store, port) in enumerate(zip(stores[:2], ports[:2], strict=True)):
        first = next(
            m for m in log_records(store)
            # not the half message of a transaction, which has no place in a queue
            if (m.topic, m.queue_id) == (SHARED.encode(), 0) and m.sys_flag & 12 in (0, 8)
        )  # fmt: skip
        with Client(port) as client:
            assert client.ask(MEMBERS, {"consumerGroup": "group"}).code == 1
            assert client.ask(HEART_BEAT, {}, heartbeat("c", "group", SHARED)).code == 0
            assert client.ask(MEMBERS, {"consumerGroup": "group"}).json["consumerIdList"] == ["c"]
            answer = client.ask(PULL, pull)
            assert first.body in answer.body[: first.total_size]
            queue = {"brokerName": store.name, "queueId": 0, "topic": SHARED}
            lock = {"consumerGroup": "group", "clientId": f"c{number}", "mqSet": [queue]}
            assert client.ask(LOCK, {}, lock).json["lockOKMQSet"] == [queue]
            assert client.ask(COMMIT, {**place, "commitOffset": 7 + number}).code == 0
            assert client.ask(14, place).ext == {"offset": str(7 + number)}
    with Client(ports[2]) as client:
        assert client.ask(14, place).code == 22


def test_a_member_leaves_where_its_connection_ends(ports: tuple[int, ...]) -> None:
    """Whichever broker that is, and that one alone."""
    members = {"consumerGroup": "leaving"}
    for port in ports:
        with Client(port) as watching:
            with Client(port) as client:
                assert client.ask(HEART_BEAT, {}, heartbeat("c", "leaving", SHARED)).code == 0
                assert watching.ask(MEMBERS, members).code == 0
            assert became(lambda asked=watching: asked.ask(MEMBERS, members).code == 1, SECONDS)


def test_offsets_are_kept_per_store(tmp_path: Path) -> None:
    """Each store's offsets are in the file of its own output."""
    stores = [unpack_golden(name, tmp_path) for name in ("plain", "lmq")]
    with served_stores([(store, store) for store in stores]) as ports:
        for number, port in enumerate(ports):
            place = {"consumerGroup": "group", "topic": SHARED, "queueId": 0}
            with Client(port) as client:
                assert client.ask(COMMIT, {**place, "commitOffset": number + 1}).code == 0
    for number, store in enumerate(stores):
        document = configjson.read(store / CONSUMER_OFFSET_FILE)
        assert isinstance(document, dict)
        assert document["offsetTable"] == {f"{SHARED}@group": {"0": number + 1}}


def test_waiting_pulls_are_bounded_for_all_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull that waits at one broker takes a place of the other's."""
    monkeypatch.setattr(holds, "MAX_HOLDS", 1)
    stores = [unpack_golden(name, tmp_path) for name in ("plain", "lmq")]
    pull: dict[str, object] = {
        "consumerGroup": "group", "topic": SHARED, "queueId": 0, "queueOffset": 0,
        "maxMsgNums": 32, "sysFlag": 4, "suspendTimeoutMillis": 60000,
    }  # fmt: skip
    with (
        served_stores([(store, store) for store in stores]) as (one, other),
        Client(one) as first,
        Client(other) as second,
    ):
        ends = [int(client.ask(PULL, pull).ext["maxOffset"]) for client in (first, second)]
        first.send(PULL, {**pull, "queueOffset": ends[0], "sysFlag": 6})
        # requests are answered in their order: it waits
        assert first.ask(ROUTE, {"topic": SHARED}).code == 0
        assert second.ask(PULL, {**pull, "queueOffset": ends[1], "sysFlag": 6}).code == 2
