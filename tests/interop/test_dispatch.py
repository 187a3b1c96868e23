"""reput beside a real RocketMQ broker: the same queues, and queues that the broker can use."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from store.errors import OwnershipError
from store.log.commitlog import CommitLog
from store.log.cursor import LogTail
from streaming.config import DispatcherConfig
from streaming.dispatcher import run_dispatcher
from streaming.progress import Progress
from tests.interop.rocketmq import (
    Broker,
    boot,
    drain,
    finish_send,
    require_maven,
    send,
    start_send,
)
from tests.support.golden import difference, tree

pytestmark = pytest.mark.usefixtures("spark")
TOPICS = {"Trade": 4, "Audit": 2}
MESSAGES = 3000
SEND_TIMEOUT = 120.0


@pytest.fixture(autouse=True)
def _maven() -> None:
    require_maven()


def log_end(store: Path) -> int:
    """Where the log of a stopped broker ends."""
    return LogTail(CommitLog([store / "commitlog"])).settled()


def test_tailing_a_live_broker_gives_its_queues(tmp_path: Path) -> None:
    """A real client sends while reput follows into its own output; then the trees are equal."""
    store, output = tmp_path / "store", tmp_path / "output"
    store.mkdir()
    stop = threading.Event()
    state: dict[str, Any] = {}
    with Broker(store, TOPICS) as broker:
        with pytest.raises(OwnershipError, match="is held by process"):
            run_dispatcher(DispatcherConfig(store, store, adopt=True), threading.Event())
        senders = [start_send(broker.namesrv, topic, MESSAGES, 11, None) for topic in TOPICS]

        def follow(progress: Progress) -> None:
            if "end" not in state and all(sender.poll() is not None for sender in senders):
                sent = [finish_send(sender, SEND_TIMEOUT) for sender in senders]
                for topic, counts in zip(TOPICS, sent, strict=True):
                    # delayed messages and commits arrive a little later
                    drain(broker.namesrv, topic, at_least=counts["visible"], timeout=SEND_TIMEOUT)
                broker.stop()
                state["end"] = log_end(store)
            if progress.end_offset == state.get("end"):
                stop.set()

        progress = run_dispatcher(DispatcherConfig(store, output, trigger_ms=100), stop, follow)
    assert progress.end_offset == state["end"]
    assert progress.counts.messages > len(TOPICS) * MESSAGES
    assert progress.counts.quarantined_bytes == 0
    assert difference(output / "consumequeue", store / "consumequeue") == []


def test_broker_runs_on_our_queues(tmp_path: Path) -> None:
    """A commitlog and our consume queues: the broker boots, cuts nothing, a consumer drains all."""
    store, rebuilt = tmp_path / "store", tmp_path / "rebuilt"
    store.mkdir()
    with Broker(store, TOPICS) as broker:
        wanted = {}
        for topic in TOPICS:
            counts = send(broker.namesrv, topic, MESSAGES, 12)
            wanted[topic] = drain(
                broker.namesrv, topic, at_least=counts["visible"], timeout=SEND_TIMEOUT
            )
    rebuilt.mkdir()
    for part in ("commitlog", "config"):
        shutil.copytree(store / part, rebuilt / part)
    shutil.copy(store / "broker.conf", rebuilt)
    run_dispatcher(DispatcherConfig(rebuilt, rebuilt, once=True), threading.Event())
    ours = tree(rebuilt / "consumequeue")
    assert difference(rebuilt / "consumequeue", store / "consumequeue") == []
    found = boot(rebuilt)
    assert found["clean"]
    assert found["max_physical_offset"] == log_end(rebuilt)
    assert tree(rebuilt / "consumequeue") == ours
    with Broker(rebuilt, TOPICS) as broker:
        drained = {topic: drain(broker.namesrv, topic) for topic in TOPICS}
    for topic, digest in wanted.items():
        assert drained[topic]["messages"] == digest["messages"] > 0
        assert drained[topic]["sha256"] == digest["sha256"]
    after = tree(rebuilt / "consumequeue")
    for name, data in ours.items():
        assert after[name].startswith(data.rstrip(b"\0")), f"{name} was cut"
