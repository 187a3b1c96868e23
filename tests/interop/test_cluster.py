"""RocketMQ's clients and mqadmin see several stores that one server serves as one cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import pytest

from reput.store.log.record import Record
from tests.interop.clients import Consumed, Consumer, Server, serving
from tests.interop.rocketmq import OLD_CLIENT, mqadmin, require_maven
from tests.interop.test_serving import as_consumed
from tests.support.golden import log_records, unpack_golden

STORES = ("plain", "lmq")
SHARED = "Topic_2"
TRANSACTION, COMMITTED = 12, 8
"""Bits of a record's sysFlag."""
KINDS = ("concurrent", "orderly", "subscribe", "assign")
Messages = Mapping[str, Sequence[Record]]
"""The shared topic's, in their queues' order, by store."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    """Return the messages that consumers see; of a transaction that is its commit, not its half
    message."""
    place = tmp_path_factory.mktemp("messages")
    found = {name: log_records(unpack_golden(name, place)) for name in STORES}
    return {
        name: [
            m
            for m in records
            if m.topic == SHARED.encode() and m.sys_flag & TRANSACTION in (0, COMMITTED)
        ]
        for name, records in found.items()
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of both stores, which share a topic."""
    require_maven()
    place = tmp_path_factory.mktemp("cluster")
    with serving(*(unpack_golden(name, place) for name in STORES)) as found:
        yield found


@pytest.mark.extended
@pytest.mark.parametrize("client", ["", pytest.param(OLD_CLIENT, marks=pytest.mark.slow)])
def test_clients_see_two_stores_as_one_cluster(
    server: Server, messages: Messages, client: str
) -> None:
    """Consumers of every kind get each message of both stores once, an orderly one in each queue's
    order. Then mqadmin names both brokers, and the groups' offsets at each."""
    by_store = {name: as_consumed(found) for name, found in messages.items()}
    expected = sorted(m for found in by_store.values() for m in found)
    # the stores have none in common, so that a message tells its store
    assert len({*expected}) == len(expected) > 1000
    groups = {kind: f"{kind}_{client.replace('.', '_')}" for kind in KINDS}
    with ExitStack() as running:
        consumers = {
            kind: running.enter_context(
                Consumer(server.namesrv, kind, SHARED, group, client=client)
            )
            for kind, group in groups.items()
        }
        for kind, consumer in consumers.items():
            found = consumer.take(len(expected))
            found += consumer.stop()
            assert sorted(found) == expected, kind
            if kind == "orderly":
                check_order(found, by_store)
    cluster = mqadmin(server.namesrv, "clusterList", client=client)
    rows = [line.split() for line in cluster.splitlines()]
    assert {row[1] for row in rows if row[:1] == ["DefaultCluster"]} == {*STORES}
    route = mqadmin(server.namesrv, "topicRoute", "-t", SHARED, client=client)
    assert all(f'"brokerName":"{name}"' in route.replace(" ", "") for name in STORES), route
    for group in groups.values():
        shown = mqadmin(server.namesrv, "consumerProgress", "-g", group, client=client)
        assert progress(shown) == committed(messages), shown


def check_order(found: Sequence[Consumed], by_store: Mapping[str, Sequence[Consumed]]) -> None:
    """Check that each queue of each store was consumed in its order."""
    for theirs in by_store.values():
        for queue_id in {m.queue_id for m in theirs}:
            wanted = [m for m in theirs if m.queue_id == queue_id]
            assert [m for m in found if m in set(wanted)] == wanted


def committed(messages: Messages) -> dict[tuple[str, int], tuple[int, int]]:
    """Max offset and committed offset by broker and queue."""
    ends: dict[tuple[str, int], int] = {}
    for name, found in messages.items():
        for m in found:
            ends[name, m.queue_id] = max(ends.get((name, m.queue_id), 0), m.queue_offset + 1)
    return {key: (end, end) for key, end in ends.items()}


def progress(shown: str) -> dict[tuple[str, int], tuple[int, int]]:
    """The same as printed by mqadmin: topic, broker, queue, broker's offset, consumer's offset."""
    rows = [line.split() for line in shown.splitlines() if line.startswith(f"{SHARED} ")]
    return {(row[1], int(row[2])): (int(row[3]), int(row[4])) for row in rows}
