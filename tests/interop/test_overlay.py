"""RocketMQ's consumers whose listeners fail, at ``reput serve --overlay`` of golden store broker.

Each listener fails on a message that it gets for the first time. What must happen follows from the
log of the base and that of the overlay, read by the plain decoder.
"""

from __future__ import annotations

import random
import shutil
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from reput.store.log.record import Record
from tests.interop.clients import Consumed, Consumer, Server, serving
from tests.interop.rocketmq import OLD_CLIENT, require_maven
from tests.support.golden import log_records, unpack_golden
from tests.support.processes import became
from tests.support.remoting import free_ports

TOPIC, SCHEDULE, RETRIES = "Orders", b"SCHEDULE_TOPIC_XXXX", b"%RETRY%failing"
KILLS = 3
SECONDS = 60.0

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store, with levels of a second."""
    require_maven()
    root = unpack_golden("broker", tmp_path_factory.mktemp("golden"))
    conf = root / "broker.conf"
    conf.write_text(f"{conf.read_text()}\nmessageDelayLevel={' '.join(['1s'] * 18)}\n")
    return root


@pytest.fixture
def output(store: Path, tmp_path: Path) -> Path:
    """An output that has the store's queues."""
    shutil.copytree(store / "consumequeue", tmp_path / "output" / "consumequeue")
    return tmp_path / "output"


def bodies(store: Path) -> Counter[int]:
    """The CRC of each message's body."""
    return Counter(zlib.crc32(m.body) for m in log_records(store) if m.topic == TOPIC.encode())


def crcs(consumed: Sequence[Consumed]) -> Counter[int]:
    return Counter(message.body_crc for message in consumed)


def overlay_records(output: Path) -> list[Record]:
    """Every record of the overlay."""
    return list(log_records(output / "overlay"))


def check_each_delivered_once(found: Sequence[Record]) -> None:
    """Each record that waited was delivered once: a delivery names it."""
    waiting = [record.physical_offset + 1 for record in found if record.topic == SCHEDULE]
    made = [record.prepared_transaction_offset for record in found if record.topic == RETRIES]
    assert sorted(source for source in made if source > 0) == waiting


@pytest.mark.parametrize("client", ["", OLD_CLIENT], ids=["5.3.3", "4.9.7"])
def test_failed_messages_come_again_from_the_overlay(
    store: Path, output: Path, client: str
) -> None:
    """Each of them once, a second later, with one attempt more."""
    expected = bodies(store)
    count = expected.total()
    with (
        serving(store, "--output", output, "--overlay") as server,
        Consumer(server.namesrv, "failing", TOPIC, "failing", client=client) as consumer,
    ):
        found = consumer.take(2 * count)
        rest = consumer.stop()
    assert rest == []
    for attempts in (0, 1):
        tried = [message for message in found if message.reconsume_times == attempts]
        assert crcs(tried) == expected
    records = overlay_records(output)
    assert [sum(r.topic == topic for r in records) for topic in (SCHEDULE, RETRIES)] == [count] * 2
    check_each_delivered_once(records)


def test_a_killed_server_loses_nothing_and_delivers_once(
    store: Path, output: Path, seed: int
) -> None:
    """The server is killed while messages fail and are delivered, and another one goes on at its
    ports: a client whose answer was lost may send the message itself, so that it comes once more,
    but nothing that waits is lost, or delivered twice."""
    rng, expected = random.Random(seed), bodies(store)
    port = free_ports(rng, (0, 1, -2, -1))
    consumed: list[Consumed] = []
    with ExitStack() as clients:
        consumer: Consumer | None = None
        for number in range(KILLS + 1):
            is_last = number == KILLS
            server: Server
            with serving(
                store, "--output", output, "--overlay",
                listen=f"127.0.0.1:{port}", exit_code=0 if is_last else -9,
            ) as server:  # fmt: skip
                if consumer is None:
                    opened = Consumer(server.namesrv, "failing", TOPIC, "failing")
                    consumer = clients.enter_context(opened)
                if is_last:
                    while not crcs(succeeded(consumed)) >= expected:
                        consumed += consumer.take(1, timeout=120)
                    consumed += consumer.stop()
                    is_delivered = lambda: not undelivered(overlay_records(output))  # noqa: E731
                    assert became(is_delivered, SECONDS)
                    break
                consumed += consumer.take(rng.randrange(500, 3000), timeout=120)
                server.process.kill()
    check_each_delivered_once(overlay_records(output))


def succeeded(consumed: Sequence[Consumed]) -> list[Consumed]:
    """The messages on which the listener did not fail."""
    return [message for message in consumed if message.reconsume_times > 0]


def undelivered(found: Sequence[Record]) -> set[int]:
    """The places of records that nobody has delivered."""
    made = {record.prepared_transaction_offset - 1 for record in found}
    return {record.physical_offset for record in found if record.topic == SCHEDULE} - made
