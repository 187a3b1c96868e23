"""reput beside a real RocketMQ broker: the same queues, and queues that the broker can use."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from reput.store.errors import OwnershipError
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.progress import Progress
from tests.interop.rocketmq import (
    Broker,
    DrainResult,
    boot,
    drain,
    finish_send,
    start_send,
)
from tests.support.golden import difference, tree

pytestmark = pytest.mark.usefixtures("spark")
TOPICS = {"Trade": 4, "Audit": 2}
MESSAGES = 1000
SEND_TIMEOUT = 120.0


def log_end(store: Path) -> int:
    """Where the log of a stopped broker ends."""
    return LogTail(CommitLog([store / "commitlog"])).settled()


@dataclass(frozen=True)
class Followed:
    """A stopped broker's store, and the output of a dispatcher that followed it meanwhile."""

    store: Path
    output: Path
    drained: dict[str, DrainResult]
    """By topic, what a client read from the broker."""
    progress: Progress


@pytest.fixture(scope="module")
def followed(release: str, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """A real client sends while reput follows into its own output, until all is dispatched."""
    root = tmp_path_factory.mktemp(release)
    store, output = root / "store", root / "output"
    store.mkdir()
    stop = threading.Event()
    end = None
    drained = {}
    with Broker(store, TOPICS) as broker:
        with pytest.raises(OwnershipError, match="is held by process"):
            run_dispatcher(DispatcherConfig(store, store, adopt=True), threading.Event())
        senders = [start_send(broker.namesrv, topic, MESSAGES, 11) for topic in TOPICS]

        def follow(progress: Progress) -> None:
            nonlocal end
            if end is None and all(sender.poll() is not None for sender in senders):
                sent = [finish_send(sender, SEND_TIMEOUT) for sender in senders]
                for topic, counts in zip(TOPICS, sent, strict=True):
                    # delayed messages and commits arrive a little later
                    drained[topic] = drain(
                        broker.namesrv, topic, at_least=counts["visible"], timeout=SEND_TIMEOUT
                    )
                broker.stop()
                end = log_end(store)
            if progress.end_offset == end:
                stop.set()

        progress = run_dispatcher(DispatcherConfig(store, output, latency_ms=1000), stop, follow)
    assert progress.end_offset == end
    return Followed(store, output, drained, progress)


def test_tailing_a_live_broker_gives_its_queues(followed: Followed) -> None:
    """The trees are equal once both have stopped."""
    assert followed.progress.counts.messages > len(TOPICS) * MESSAGES
    assert followed.progress.counts.quarantined_bytes == 0
    assert difference(followed.output / "consumequeue", followed.store / "consumequeue") == []


def test_broker_runs_on_our_queues(followed: Followed, tmp_path: Path) -> None:
    """A commitlog and our consume queues: the broker boots, cuts nothing, a consumer drains all."""
    store, rebuilt = followed.store, tmp_path / "rebuilt"
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
    for topic, digest in followed.drained.items():
        assert drained[topic]["messages"] == digest["messages"] > 0
        assert drained[topic]["sha256"] == digest["sha256"]
    after = tree(rebuilt / "consumequeue")
    for name, data in ours.items():
        assert after[name].startswith(data.rstrip(b"\0")), f"{name} was cut"
