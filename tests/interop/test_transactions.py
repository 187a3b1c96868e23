"""RocketMQ's own producers, asked by a server of ours about transactions that a broker left open.

What must have become of each follows from the overlay's log alone, read plainly.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pytest

from reput.store.log.record import Record
from tests.interop.clients import Consumer, serving
from tests.interop.producers import Producer
from tests.interop.rocketmq import OLD_CLIENT, Broker, require_maven
from tests.support.golden import log_records, tree
from tests.support.processes import became
from tests.support.remoting import free_ports

TOPIC, GROUP = "Tx", "producers"
COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
CHECKS = 3
"""transactionCheckMax."""
SETTINGS = (
    "transactionTimeOut=1000\ntransactionCheckInterval=1000\ntransactionCheckMax=3\nbrokerName=B\n"
)
HALVES, KILLS = 60, 2
PATIENCE_SECONDS = 60.0
CLIENTS = pytest.mark.parametrize("client", ["", pytest.param(OLD_CLIENT, marks=pytest.mark.slow)])

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The place of a base, whose files a broker makes small."""
    require_maven()
    root = tmp_path / "store"
    root.mkdir()
    return root


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The place of an output whose overlay has small files, since it is read again and again."""
    (tmp_path / "output" / "overlay").mkdir(parents=True)
    conf = tmp_path / "output" / "overlay" / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=65536\n")
    return tmp_path / "output"


def leave_open(store: Path, output: Path, outcomes: list[str], client: str = "") -> str:
    """Have a broker take a half for each outcome, and stop before it asks; a digest of the store
    then. The output gets the queues."""
    settings = {"transactionCheckInterval": 3_600_000, "timerWheelEnable": False}
    with (
        Broker(store, {TOPIC: 4}, settings) as broker,
        Producer(broker.namesrv, TOPIC, GROUP, outcomes, client=client) as producer,
    ):
        assert producer.stop() == []
    with (store / "broker.conf").open("a") as conf:
        conf.write(SETTINGS)
    shutil.copytree(store / "consumequeue", output / "consumequeue")
    return digest(store)


def digest(store: Path) -> str:
    return sha256(repr(tree(store)).encode()).hexdigest()


def stored(output: Path) -> list[Record]:
    return log_records(output / "overlay")


def of_topic(output: Path, topic: str) -> list[Record]:
    return [record for record in stored(output) if record.topic == topic.encode()]


@pytest.mark.extended
@CLIENTS
def test_each_end(store: Path, output: Path, client: str) -> None:
    """A producer that comes later is asked once about what it commits or rolls back, and as often
    as a broker would about what it does not know; a consumer gets the committed message."""
    before = leave_open(store, output, [COMMIT, ROLLBACK, UNKNOWN], client)
    with serving(store, "--output", output, "--overlay") as server:
        with Producer(server.namesrv, TOPIC, GROUP, [], client=client) as producer:
            said = Counter(producer.take(2 + CHECKS))
            assert became(lambda: len(stored(output)) == 3, PATIENCE_SECONDS)
            assert producer.stop() == []
        with Consumer(server.namesrv, "concurrent", TOPIC, "readers") as consumer:
            (found,) = consumer.take(1)
            assert (found.queue_id, found.queue_offset) == (0, 0)
    assert {(one.number, one.outcome): count for one, count in said.items()} == {
        (0, COMMIT): 1, (1, ROLLBACK): 1, (2, UNKNOWN): CHECKS,
    }  # fmt: skip
    assert {one.topic for one in said} == {TOPIC}
    assert digest(store) == before


@pytest.mark.extended
@CLIENTS
def test_a_topic_that_nobody_declares(store: Path, output: Path, client: str) -> None:
    """Producers find the server although the base has lost its own note of topics."""
    before = leave_open(store, output, [COMMIT], client)
    shutil.copytree(store, store.parent / "bare", ignore=shutil.ignore_patterns("topics.json*"))
    with (
        serving(store.parent / "bare", "--output", output, "--overlay") as server,
        Producer(server.namesrv, TOPIC, GROUP, client=client) as producer,
    ):
        assert producer.take(1)[0].outcome == COMMIT
    assert digest(store) == before


@pytest.mark.extended
def test_kills_of_the_server_lose_and_double_nothing(store: Path, output: Path, seed: int) -> None:
    """A producer answers while the server is killed again and again: each transaction ends once,
    as it was answered."""
    outcomes = [COMMIT, ROLLBACK] * (HALVES // 2)
    before = leave_open(store, output, outcomes)
    rng = random.Random(seed)
    address = f"127.0.0.1:{free_ports((-2, -1, 0, 1))}"
    options = (store, "--output", output, "--overlay")
    with ExitStack() as opened:
        for number in range(KILLS):
            wanted = rng.randrange(1, HALVES // KILLS)
            with serving(*options, listen=address, exit_code=-signal.SIGKILL) as server:
                if not number:
                    producer = opened.enter_context(Producer(server.namesrv, TOPIC, GROUP))
                producer.take(wanted)
                server.process.kill()
        with serving(*options, listen=address):
            assert became(lambda: len(stored(output)) >= HALVES, PATIENCE_SECONDS)
            producer.stop()
    committed = {record.body for record in of_topic(output, TOPIC)}
    assert committed == {b"half %d" % number for number in range(0, HALVES, 2)}
    sources = [record.prepared_transaction_offset for record in stored(output)]
    assert len(sources) == len(set(sources)) == HALVES
    assert digest(store) == before
