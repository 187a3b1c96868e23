"""The harness itself: a real broker takes, keeps and gives back messages.

Aim: every later interop test leans on these roles, so each is checked here against something known
beforehand: the sender's counts, the published digest of a golden store, Java's string rules.
Not compared: any file that this project writes.
"""

from __future__ import annotations

import tarfile
import time
from pathlib import Path

import pytest

from tests.interop import rocketmq

GOLDEN_BROKER = Path(__file__).parent.parent / "golden" / "broker.tar.gz"
SENT = 800
ORDERS = 6_000
ORDERS_SHA256 = "810099c39d292309b7dc4e743490099d943cbefb9624cdbf5b845a8681258e75"
DELIVERY_LIMIT_SECONDS = 120.0


needs_rocketmq = pytest.mark.parametrize("release", [rocketmq.PARITY], indirect=True)


@pytest.mark.extended
@pytest.mark.usefixtures("release")
def test_a_consumer_gets_what_a_producer_sent(tmp_path: Path) -> None:
    """Batches, compressed, delayed and committed messages arrive; rolled back ones do not."""
    store = tmp_path / "store"
    settings: dict[str, rocketmq.Setting] = {"mappedFileSizeCommitLog": 131072}
    with rocketmq.Broker(store, {"Mixed": 4, "Empty": 2}, settings) as broker:
        sent = rocketmq.send(broker.namesrv, "Mixed", SENT, seed=11)
        drained = rocketmq.drain(
            broker.namesrv, "Mixed", sent["visible"], timeout=DELIVERY_LIMIT_SECONDS
        )
        empty = rocketmq.drain(broker.namesrv, "Empty")
    by_kind = [
        sent["plain"],
        sent["batched"],
        sent["compressed"],
        sent["delayed"],
        sent["committed"],
        sent["rolled_back"],
    ]
    assert min(by_kind) > 0
    assert sum(by_kind) == sent["sent"] == SENT
    assert drained["messages"] == sent["visible"] == sent["sent"] - sent["rolled_back"]
    assert drained["bodies_sha256"] == sent["bodies_sha256"]
    assert sorted(drained["queues"]) == ["0", "1", "2", "3"]
    assert empty["messages"] == 0
    assert not (store / "abort").exists()
    assert len(list((store / "commitlog").iterdir())) > 1

    booted = rocketmq.boot(store)
    assert booted["clean"]
    assert booted["max_physical_offset"] == booted["confirm_offset"]
    queues = booted["topics"]["Mixed"]
    assert {name: (q["min"], q["max"]) for name, q in queues.items()} == {
        name: (q["min"], q["max"]) for name, q in drained["queues"].items()
    }


@pytest.mark.extended
@pytest.mark.usefixtures("release")
@needs_rocketmq
def test_a_broker_serves_the_golden_store(tmp_path: Path) -> None:
    """The drained digest is the one that the golden stores' README states; a command that failed
    before it says why and is forgotten."""
    with tarfile.open(GOLDEN_BROKER) as archive:
        archive.extractall(tmp_path, filter="data")
    with rocketmq.Broker(tmp_path / "broker") as broker:
        with pytest.raises(rocketmq.HarnessError, match="Can not find Message Queue"):
            rocketmq.drain(broker.namesrv, "Nothing")
        drained = rocketmq.drain(broker.namesrv, "Orders")
    assert drained["messages"] == ORDERS
    assert drained["sha256"] == ORDERS_SHA256


@pytest.mark.extended
@pytest.mark.usefixtures("release")
@needs_rocketmq
def test_a_killed_broker_leaves_its_abort_file_and_recovers(tmp_path: Path) -> None:
    """Messages sent before the kill are there after the restart; a running send fails by itself."""
    store = tmp_path / "store"
    broker = rocketmq.Broker(store, {"Mixed": 2}).start()
    sender = None
    try:
        sent = rocketmq.send(broker.namesrv, "Mixed", 100, seed=3)
        before = rocketmq.drain(broker.namesrv, "Mixed", sent["visible"], timeout=60.0)
        sender = rocketmq.start_send(broker.namesrv, "Mixed", 100_000, seed=4, rate=50.0)
        time.sleep(2.0)
        assert sender.poll() is None
        broker.kill()
        with pytest.raises(rocketmq.HarnessError):
            rocketmq.finish_send(sender, timeout=60.0)
    finally:
        broker.kill()
        if sender is not None:
            sender.kill()
            sender.wait()
    assert (store / "abort").exists()
    with rocketmq.Broker(store) as again:
        after = rocketmq.drain(again.namesrv, "Mixed")
    assert after["messages"] >= before["messages"]
    assert not (store / "abort").exists()


@pytest.mark.usefixtures("release")
@needs_rocketmq
def test_the_end_of_stdin_stops_a_broker(tmp_path: Path) -> None:
    """So no broker outlives the process that started it."""
    broker = rocketmq.Broker(tmp_path / "store").start()
    try:
        assert broker.process.stdin is not None
        broker.process.stdin.close()
        assert broker.process.wait(rocketmq.STOP_TIMEOUT_SECONDS) == 0
    finally:
        broker.kill()
    assert not (tmp_path / "store" / "abort").exists()


@pytest.mark.usefixtures("release")
@needs_rocketmq
def test_java_reads_malformed_utf8_by_its_own_rules() -> None:
    """Length counts UTF-16 units, and each malformed part becomes U+FFFD."""
    values = ["中".encode(), b"", b"\xff", "😀".encode(), b"\xc0\x80", b"\xed\xa0\x80", b"ab"]
    assert rocketmq.java_strings(values) == [
        (1, 20013),
        (0, 0),
        (1, 65533),
        (2, 1772899),
        (2, 65533 * 31 + 65533),
        (1, 65533),
        (2, 97 * 31 + 98),
    ]


@pytest.mark.usefixtures("release")
@needs_rocketmq
def test_a_failure_carries_the_reason(tmp_path: Path) -> None:
    """A misspelt setting and an unreachable name server are told, not guessed."""
    with pytest.raises(rocketmq.HarnessError, match="no setting mapedFileSize"):
        rocketmq.boot(tmp_path / "store", mapedFileSize=1)
    with (
        pytest.raises(rocketmq.HarnessError, match="no setting nonsense"),
        rocketmq.Broker(tmp_path / "store", settings={"nonsense": True}),
    ):
        pass
    process = rocketmq.start_send("127.0.0.1:1", "Mixed", 1, seed=1)
    with pytest.raises(rocketmq.HarnessError, match="MQClientException"):
        rocketmq.finish_send(process, timeout=120.0)


def test_without_java_the_tests_skip_but_fail_on_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer without Java is not held up; CI must not pass by skipping."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="java and mvn"):
        rocketmq.require_maven()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="java and mvn"):
        rocketmq.require_maven()
