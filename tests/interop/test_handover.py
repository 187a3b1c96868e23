"""A real broker that runs again on a store for which an overlay has stood in."""

from __future__ import annotations

import shutil
import struct
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from reput.store.log.record import Record
from tests.interop.clients import serving
from tests.interop.producers import Producer
from tests.interop.rocketmq import Broker, require_maven
from tests.support.cli import reput_json
from tests.support.golden import log_records
from tests.support.processes import became
from tests.support.remoting import Client

TOPIC, GROUP = "Later", "producers"
COMMIT, ROLLBACK = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE"
SEND, ROUTE = 310, 105
DELAY_SECONDS = 12
"""Long enough for a broker to stop before anything is due."""
COUNT = 3
"""Messages of each kind."""
SETTINGS = {
    "messageDelayLevel": f"{DELAY_SECONDS}s 2s", "timerWheelEnable": True,
    "transactionCheckInterval": 2000, "transactionTimeOut": 1000,
}  # fmt: skip
CONF = (
    f"brokerName=B\nmessageDelayLevel={DELAY_SECONDS}s 2s\nmappedFileSizeCommitLog=1048576\n"
    "mappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=5000\nmaxIndexNum=20000\n"
    "transactionTimeOut=1000\ntransactionCheckInterval=1000\n"
)
PATIENCE_SECONDS = 90.0

pytestmark = pytest.mark.timeout(600)


def send(namesrv: str, bodies: Mapping[bytes, str]) -> None:
    """Send a message for each body, with a property."""
    with Client(int(namesrv.rpartition(":")[2])) as client:
        route = client.ask(ROUTE, {"topic": TOPIC}).json
        address = route["brokerDatas"][0]["brokerAddrs"]["0"]
    with Client(int(address.rpartition(":")[2])) as client:
        for number, (body, property_) in enumerate(bodies.items()):
            now = time.time_ns() // 1_000_000
            text = f"UNIQ_KEY\1{now:x}{number:04}\2{property_}\2"
            fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": now,
                      "h": 0, "i": text, "j": 0, "k": "false", "m": "false"}  # fmt: skip
            assert client.ask(SEND, fields, body).code == 0


def visible(root: Path, start: int = 0) -> list[bytes]:
    """The bodies of a log's messages that consumers get, from a place on."""
    return sorted(
        record.body
        for record in log_records(root)
        if record.topic == TOPIC.encode() and record.physical_offset >= start
    )


def log_end(root: Path) -> int:
    last: Record = log_records(root)[-1]
    return last.physical_offset + last.total_size


def read_enqueued(root: Path) -> int:
    """How many messages the timer wheel has noted as taken up."""
    data = (root / "config/timercheck").read_bytes()
    return int(struct.unpack_from(">qqq", data)[2]) if len(data) >= 24 else 0


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A store whose broker has stopped while messages waited and transactions were open."""
    require_maven()
    root = tmp_path / "base"
    root.mkdir()
    (root / "broker.conf").write_text(CONF)
    settings = {**SETTINGS, "transactionCheckInterval": 3_600_000}
    delayed = {b"level %d" % number: "DELAY\0011" for number in range(COUNT)}
    due = DELAY_SECONDS * 1000
    timed = {b"timer %d" % number: f"TIMER_DELAY_MS\1{due}" for number in range(COUNT)}
    with (
        Broker(root, {TOPIC: 2}, settings) as broker,
        Producer(broker.namesrv, TOPIC, GROUP, [COMMIT, ROLLBACK, COMMIT]) as producer,
    ):
        send(broker.namesrv, delayed | timed)
        producer.stop()
        # what the wheel has not taken up is delivered at once by every start
        assert became(lambda: read_enqueued(root) == COUNT, PATIENCE_SECONDS)
    assert visible(root) == []
    return root


@pytest.mark.extended
@pytest.mark.parametrize("is_handed_over", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_nothing_is_delivered_again(base: Path, tmp_path: Path, is_handed_over: bool) -> None:
    """Only what is new comes: without what is handed over, all comes again."""
    output, directory, copy = (tmp_path / name for name in ("output", "handover", "copy"))
    shutil.copytree(base / "consumequeue", output / "consumequeue")
    # small files, since the log is read again and again
    (output / "overlay").mkdir()
    (output / "overlay" / "broker.conf").write_text("mappedFileSizeCommitLog=65536\n")
    expected = [
        b"half 0", b"half 2", *(b"level %d" % n for n in range(COUNT)),
        *(b"timer %d" % n for n in range(COUNT)),
    ]  # fmt: skip
    with (
        serving(base, "--output", output, "--overlay") as server,
        Producer(server.namesrv, TOPIC, GROUP) as producer,
    ):
        producer.take(3)
        assert became(lambda: len(log_records(output / "overlay")) == 9, PATIENCE_SECONDS)
    assert visible(output / "overlay") == expected
    called = reput_json("overlay", "handover", output, directory, "--store", base)
    assert called["done"] == {
        "level delivered": COUNT, "timer delivered": COUNT, "transaction committed": 2,
        "transaction rolled back": 1,
    }  # fmt: skip
    assert called["repeated"] == []
    shutil.copytree(base, copy)
    if is_handed_over:
        for name in called["files"]:
            shutil.copy(directory / name, copy / name)
    start = log_end(copy)
    with (
        Broker(copy, settings=SETTINGS) as broker,
        Producer(broker.namesrv, TOPIC, GROUP, [COMMIT]) as producer,
    ):
        send(broker.namesrv, {b"level new": "DELAY\0012", b"timer new": "TIMER_DELAY_MS\1002000"})
        new = Counter({b"half 0": 1, b"level new": 1, b"timer new": 1})
        again = Counter() if is_handed_over else Counter(expected)
        assert became(lambda: Counter(visible(copy, start)) >= new + again, PATIENCE_SECONDS)
        checks = producer.stop()
    if is_handed_over:
        assert Counter(visible(copy, start)) == new
        # a broker may ask twice before it has noted an end
        assert {(one.number, one.outcome) for one in checks} == {(0, COMMIT)}
    else:
        assert {one.number for one in checks} == {0, 1, 2}
