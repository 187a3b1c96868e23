"""RocketMQ's own consumers drain a real broker's store that ``reput serve`` serves.

The store is golden store broker: 6,000 orders in four queues. What a consumer must get follows from
the log alone, read by the plain decoder.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count, product
from pathlib import Path

import pytest

from reput.checkpoints.watermark import WatermarkFile
from reput.store import configjson
from reput.store.files import CONSUMER_OFFSET_FILE
from reput.store.log.record import Record
from reput.store.state.watermark import Watermark
from reput.workload.appender import Appender
from reput.workload.messages import Workload
from tests.interop.clients import Consumed, Consumer, Server, served_by, serving
from tests.interop.rocketmq import OLD_CLIENT, HarnessError, mqadmin, require_maven
from tests.support.certificates import make_certificate
from tests.support.golden import log_records, unpack_golden
from tests.support.remoting import Client, free_ports

TOPIC = "Orders"
ROUTE = 105
KINDS = ("concurrent", "orderly", "broadcasting", "subscribe", "assign", "pull")
GROUPS = count()
"""Each consumer that drains is of a group of its own."""
LAST = "CONSUME_FROM_LAST_OFFSET"
QUEUES = 4
QUERY_OFFSET, RESET_OFFSET = 14, 222

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store, which nothing here changes."""
    require_maven()
    return unpack_golden("broker", tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def orders(store: Path) -> list[Record]:
    """The topic's messages, in the log's order."""
    return [message for message in log_records(store) if message.topic == TOPIC.encode()]


@pytest.fixture(scope="module")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the store, whose offsets go to another output."""
    output = tmp_path_factory.mktemp("served") / "store"
    shutil.copytree(store, output)
    with serving(output) as found:
        yield found


def as_consumed(messages: Sequence[Record]) -> list[Consumed]:
    """Return these messages as a listener gets them, sorted."""
    return sorted(Consumed(m.queue_id, m.queue_offset, zlib.crc32(m.body), 0) for m in messages)


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_drains_the_store(server: Server, orders: list[Record], kind: str) -> None:
    """It gets every message once, an orderly one in each queue's order."""
    check_drain(server, orders, kind, "")


@pytest.mark.extended
def test_an_old_consumer_drains_the_store(server: Server, orders: list[Record], seed: int) -> None:
    """Consumers of 4.9 of two kinds, which the seed chooses."""
    for kind in random.Random(seed).sample(KINDS, 2):
        check_drain(server, orders, kind, OLD_CLIENT)


@pytest.mark.slow
def test_an_old_consumer_of_every_kind_drains_the_store(
    server: Server, orders: list[Record]
) -> None:
    """The same, of each kind."""
    for kind in KINDS:
        check_drain(server, orders, kind, OLD_CLIENT)


def check_drain(server: Server, orders: list[Record], kind: str, client: str) -> None:
    print(f"{kind=} {client=}")
    group = f"drain_{next(GROUPS)}"
    with Consumer(server.namesrv, kind, TOPIC, group, client=client) as consumer:
        found = consumer.take(len(orders))
        found += consumer.stop()
    assert sorted(found) == as_consumed(orders)
    if kind == "orderly":
        for queue_id in range(QUEUES):
            offsets = [m.queue_offset for m in found if m.queue_id == queue_id]
            assert offsets == sorted(offsets)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "value"),
    [("rocketmq.serialize.type", "ROCKETMQ"), ("com.rocketmq.heartbeat.v2", "true")],
)
def test_what_a_client_may_be_set_to(
    server: Server, orders: list[Record], name: str, value: str
) -> None:
    """The header in binary form, and the second version of heartbeats."""
    group = name.replace(".", "_")
    properties = {name: value}
    with Consumer(server.namesrv, "concurrent", TOPIC, group, properties=properties) as consumer:
        found = consumer.take(len(orders))
        found += consumer.stop()
    assert sorted(found) == as_consumed(orders)


@pytest.mark.extended
@pytest.mark.parametrize("client", ["", pytest.param(OLD_CLIENT, marks=pytest.mark.slow)])
def test_the_vip_channel(store: Path, orders: list[Record], client: str, tmp_path: Path) -> None:
    """An orderly consumer with vipChannelEnabled=true locks queues and commits two ports before
    the broker's, and the offsets are there afterwards."""
    output = tmp_path / "store"
    shutil.copytree(store, output)
    port = free_ports((-2, 0))
    properties = {"com.rocketmq.sendMessageWithVIPChannel": "true"}
    with serving(output, listen=f"127.0.0.1:{port}") as server:
        with Consumer(
            server.namesrv, "orderly", TOPIC, "vip", client=client, properties=properties
        ) as consumer:
            found = consumer.take(len(orders))
            found += consumer.stop()
        assert sorted(found) == as_consumed(orders)
        with Client(port) as asking:
            place: dict[str, object] = {"consumerGroup": "vip", "topic": TOPIC, "queueId": 0}
            end = max(m.queue_offset for m in orders if m.queue_id == 0) + 1
            assert asking.ask(QUERY_OFFSET, place).ext == {"offset": str(end)}


@pytest.mark.extended
@pytest.mark.parametrize("is_required", [False, True])
def test_tls(store: Path, orders: list[Record], is_required: bool, tmp_path: Path) -> None:
    """Clients of both releases use TLS; one without it is served too, unless TLS is required."""
    wanted = as_consumed([m for m in orders if m.property_map[b"KEYS"] == b"key1"])
    assert wanted
    cert, key = make_certificate(tmp_path)
    options = ["--tls-cert", cert, "--tls-key", key, *["--tls-required"] * is_required]
    shutil.copytree(store, tmp_path / "store")
    with serving(tmp_path / "store", *options) as server:
        for client, tls in (("", "true"), (OLD_CLIENT, "true"), ("", "false")):
            if is_required and tls == "false":
                continue
            with Consumer(
                server.namesrv, "concurrent", TOPIC, f"tls_{tls}_{client.replace('.', '_')}",
                filter="sql:KEYS='key1'", client=client, properties={"tls.enable": tls},
            ) as consumer:  # fmt: skip
                assert sorted(consumer.take(len(wanted))) == wanted


FILTERS = ("tags:T1||T3", "sql:a BETWEEN 2 AND 4")
ASKING = tuple(product(("concurrent", "subscribe"), ("", OLD_CLIENT)))
"""Kinds of consumers and their releases."""


@pytest.mark.extended
@pytest.mark.parametrize("filter", FILTERS)
def test_filters(server: Server, orders: list[Record], filter: str, seed: int) -> None:
    """Filters by tags and SQL92 select the messages that a plain look at the properties selects.
    Each kind of consumer and each release comes once, paired by the seed."""
    pairs = (ASKING[0], ASKING[3]) if seed % 2 else (ASKING[1], ASKING[2])
    for kind, client in pairs:
        check_filter(server, orders, filter, kind, client)


@pytest.mark.slow
@pytest.mark.parametrize("filter", FILTERS)
def test_filters_of_every_consumer(server: Server, orders: list[Record], filter: str) -> None:
    """The same, with each kind of consumer of each release."""
    for kind, client in ASKING:
        check_filter(server, orders, filter, kind, client)


def check_filter(server: Server, orders: list[Record], filter: str, kind: str, client: str) -> None:
    print(f"{kind=} {client=}")
    wanted = [
        m for m in orders
        if (m.property_map[b"TAGS"] in (b"T1", b"T3") if filter.startswith("tags")
            else 2 <= int(m.property_map[b"a"]) <= 4)
    ]  # fmt: skip
    assert 0 < len(wanted) < len(orders)
    group = f"filter_{next(GROUPS)}"
    with Consumer(server.namesrv, kind, TOPIC, group, filter=filter, client=client) as consumer:
        found = consumer.take(len(wanted))
        found += consumer.stop()
    assert sorted(found) == as_consumed(wanted)


@pytest.mark.extended
def test_failed_messages_are_offered_again_by_the_client(
    server: Server, orders: list[Record]
) -> None:
    """The server refuses request 36, so that the client keeps a failed message and offers it
    again."""
    count = sum(message.property_map[b"KEYS"] == b"key1" for message in orders)
    assert count
    wanted = "sql:KEYS='key1'"
    with Consumer(server.namesrv, "failing", TOPIC, "failing", filter=wanted) as consumer:
        first = consumer.take(count)
        again = consumer.take(count)
    assert {m.reconsume_times for m in first} == {0}
    assert {m.reconsume_times for m in again} == {1}
    assert sorted(m[:3] for m in first) == sorted(m[:3] for m in again)


class Growing:
    """A copy of the store whose watermark the test moves, as a dispatcher does."""

    def __init__(self, store: Path, root: Path, orders: Sequence[Record]) -> None:
        self.root = root
        shutil.copytree(store, root)
        (root / "reput").mkdir()
        self._file = WatermarkFile(root / "reput")
        self._orders = orders
        self.show(0)

    def show(self, count: int) -> None:
        """Let the first ``count`` orders be seen."""
        last = self._orders[count - 1] if count else None
        end = last.physical_offset + last.total_size if last else 0
        self._file.advance(Watermark("0" * 32, end))

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def growing(store: Path, orders: list[Record], tmp_path: Path) -> Iterator[Growing]:
    found = Growing(store, tmp_path / "growing", orders)
    yield found
    found.close()


@pytest.mark.extended
def test_members_share_and_inherit(growing: Growing, orders: list[Record]) -> None:
    """A second member takes over half of the queues; when it is killed, the first gets them back.

    Nothing is lost, and only the messages that the killed member had not committed come twice.
    """
    shown = 1000
    growing.show(shown)
    with (
        serving(growing.root) as server,
        Consumer(server.namesrv, "concurrent", TOPIC, "shared") as first,
    ):
        before = first.take(shown)
        with Consumer(server.namesrv, "concurrent", TOPIC, "shared") as second:
            late: list[Consumed] = []
            while not late:
                # a message at a time, until one is the new member's
                shown += 1
                growing.show(shown)
                with_second = _next_of(first, second)
                (late if with_second[0] is second else before).append(with_second[1])
            growing.show(3000)
            late += second.take(900)
            late += second.kill()
        growing.show(6000)
        while left := 6000 - len({*before, *late}):
            before += first.take(left)
        before += first.stop()
    assert len(before) == len(set(before)) or set(before) & set(late)
    assert sorted({*before, *late}) == as_consumed(orders)
    assert len({m.queue_id for m in late}) <= 2


def _next_of(first: Consumer, second: Consumer) -> tuple[Consumer, Consumed]:
    """Return the consumer that gets the next message, and that message."""
    while True:
        for consumer in (first, second):
            try:
                return consumer, *consumer.take(1, timeout=0.05)
            except HarnessError:
                continue


@pytest.mark.extended
def test_a_server_killed_while_it_is_read(growing: Growing, orders: list[Record]) -> None:
    """A new server at the same address serves the consumer, which loses nothing."""
    growing.show(2000)
    with serving(growing.root, exit_code=-signal.SIGKILL) as server:
        consumer = Consumer(server.namesrv, "concurrent", TOPIC, "survivor")
        with consumer:
            found = consumer.take(2000)
            server.process.kill()
            server.process.wait()
            growing.show(6000)
            with serving(growing.root, listen=server.namesrv):
                while left := len(orders) - len(set(found)):
                    found += consumer.take(left)
                found += consumer.stop()
    assert sorted(set(found)) == as_consumed(orders)


@pytest.mark.extended
def test_a_group_begins_at_the_end_if_it_asks_so(growing: Growing, orders: list[Record]) -> None:
    """On a young topic RocketMQ would begin at 0. An orderly client asks twice."""
    growing.show(3000)
    with (
        serving(growing.root) as server,
        Consumer(server.namesrv, "orderly", TOPIC, "late", start_from=LAST) as consumer,
    ):
        _wait_for_log(server, "begins at the end of queue", QUEUES)
        growing.show(6000)
        found = consumer.take(3000)
        found += consumer.stop()
    assert sorted(found) == as_consumed(orders[3000:])


@pytest.mark.extended
def test_the_advice_to_a_group_that_gets_nothing(
    store: Path, orders: list[Record], tmp_path: Path
) -> None:
    """A default consumer asks for the end of a store at rest. Each way that the log names gives it
    every message."""
    root = tmp_path / "store"
    shutil.copytree(store, root)
    with (
        serving(root) as server,
        Consumer(server.namesrv, "concurrent", TOPIC, "idle", start_from=LAST) as consumer,
    ):
        _wait_for_log(server, "it gets nothing of what is there already", 1)
        (line,) = [line for line in server.stderr.splitlines() if "it gets nothing" in line]
        found = re.search(r"mqadmin (.*) moves it to the first message", line)
        assert found
        mqadmin(server.namesrv, *found[1].split())
        assert sorted(consumer.take(len(orders))) == as_consumed(orders)
        option = re.search(r"with (--positions \S+)", line)
        assert option
    with (
        serving(root, *option[1].split()) as server,
        Consumer(server.namesrv, "concurrent", TOPIC, "further", start_from=LAST) as consumer,
    ):
        assert sorted(consumer.take(len(orders))) == as_consumed(orders)


def _next(consumer: Consumer) -> list[Consumed]:
    """Return the next message, if it comes soon."""
    try:
        return consumer.take(1, timeout=0.05)
    except HarnessError:
        return []


@pytest.mark.extended
def test_late_commits_do_not_undo_a_reset(growing: Growing, orders: list[Record]) -> None:
    """A client of 4.9 goes on committing old offsets for ten seconds, and then begins at the new
    one."""
    growing.show(1000)
    with (
        serving(growing.root) as server,
        Consumer(server.namesrv, "concurrent", TOPIC, "moved", client=OLD_CLIENT) as consumer,
        Client(int(server.namesrv.rpartition(":")[2])) as admin,
    ):

        def committed() -> list[str | None]:
            place = {"consumerGroup": "moved", "topic": TOPIC}
            answers = [admin.ask(QUERY_OFFSET, {**place, "queueId": n}) for n in range(QUEUES)]
            return [answer.ext.get("offset") for answer in answers]

        consumer.take(1000)
        while sum(int(offset or 0) for offset in committed()) < 1000:
            assert not _next(consumer)
        question = {"topic": TOPIC, "group": "moved", "timestamp": 0, "isForce": True}
        assert admin.ask(RESET_OFFSET, question).code == 0
        again: list[Consumed] = []
        seen = []
        while not again:
            before = committed()
            again = _next(consumer)
            if not again:
                seen.append(before)
        again += consumer.take(999)
        again += consumer.stop()
    assert seen
    assert all(offsets == ["0"] * QUEUES for offsets in seen)
    assert sorted(again) == as_consumed(orders[:1000])


class Live:
    """A log that grows while it is dispatched."""

    def __init__(self, appender: Appender, seed: int) -> None:
        self._appender = appender
        self._workload = Workload(1, QUEUES, 200, seed)
        self.topic = self._workload.topics[0].decode()
        self.count = 0
        """Messages so far."""

    def append(self, count: int) -> None:
        now = time.time_ns() // 1_000_000
        self._appender.append_batch(self._workload.batch(self.count, count, now))
        self.count += count


@pytest.mark.extended
def test_a_run_serves_what_it_dispatches(tmp_path: Path, seed: int) -> None:
    """A log is written, dispatched, served and consumed at the same time by push consumers of every
    kind; a second orderly member joins, and one of both is killed. A stop ends it all."""
    require_maven()
    store, output = tmp_path / "store", tmp_path / "output"
    kinds = ("concurrent", "broadcasting")
    with Appender(store, file_size=1 << 20) as appender:
        live = Live(appender, seed)
        live.append(500)
        with (
            served_by("run", store, "--output", output, "--serve", "127.0.0.1:0") as server,
            ExitStack() as running,
        ):
            await_route(server.namesrv, live.topic)
            others = [
                running.enter_context(Consumer(server.namesrv, kind, live.topic, kind))
                for kind in kinds
            ]
            killed, kept = consume_in_order(server.namesrv, live)
            for kind, consumer in zip(kinds, others, strict=True):
                found = consumer.take(live.count)
                found += consumer.stop()
                assert sorted(found) == as_consumed(log_records(store)), kind
    assert sorted({*killed, *kept}) == as_consumed(log_records(store))
    document = configjson.read(output / CONSUMER_OFFSET_FILE)
    assert isinstance(document, dict)
    for group in ("concurrent", "orderly"):
        assert sum(document["offsetTable"][f"{live.topic}@{group}"].values()) == live.count


def await_route(namesrv: str, topic: str) -> None:
    """Wait until a topic is served, since a client that asks before asks again only after 20 s."""
    with Client(int(namesrv.rpartition(":")[2])) as client:
        while client.ask(ROUTE, {"topic": topic}).code != 0:
            time.sleep(0.05)


def consume_in_order(namesrv: str, live: Live) -> tuple[list[Consumed], list[Consumed]]:
    """Run two orderly members, of which the first is killed while messages arrive. Return the
    messages of each, after a check that each queue is in order and has no gap where it changed
    hands."""
    killed: list[Consumed] = []
    kept: list[Consumed] = []
    with (
        Consumer(namesrv, "orderly", live.topic, "orderly") as first,
        Consumer(namesrv, "orderly", live.topic, "orderly") as second,
    ):
        while not (killed and kept):
            live.append(50)
            while len({*killed, *kept}) < live.count:
                consumer, message = _next_of(first, second)
                (killed if consumer is first else kept).append(message)
        live.append(500)
        killed += first.take(10)
        killed += first.kill()
        live.append(500)
        while left := live.count - len({*killed, *kept}):
            kept += second.take(left)
        kept += second.stop()
    for found in (killed, kept):
        for queue_id in range(QUEUES):
            offsets = [m.queue_offset for m in found if m.queue_id == queue_id]
            assert offsets == [*range(offsets[0], offsets[-1] + 1)] if offsets else True
    return killed, kept


def _wait_for_log(server: Server, text: str, count: int) -> None:
    """Wait until the server has logged this line as often."""
    server.wait_until(lambda: server.stderr.count(text) >= count)
