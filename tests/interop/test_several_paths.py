"""A log over several paths beside the broker that writes it: the same files, the same queues."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from reput.store.config import read_store_settings
from reput.store.errors import ReputError
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.progress import Progress
from tests.interop.rocketmq import (
    ONE_RELEASE,
    Broker,
    ask_paths,
    drain,
    finish_send,
    start_send,
)
from tests.support.golden import difference
from tests.support.several_paths import state_paths
from tests.support.wire import file_name

pytestmark = pytest.mark.usefixtures("release")
TOPICS = {"Trade": 4, "Audit": 2}
MESSAGES = 1000
LOG_FILE_SIZE = 262144
SEND_TIMEOUT = 120.0
FILE_SIZE = 4096


def test_the_same_files_are_the_log_as_to_rocketmq(tmp_path: Path) -> None:
    """Splitting, spaces, order, read-only paths, directories named twice. Where a name is none that
    a broker would find a log under, it reads less, and we refuse.

    Not compared: a directory under two names, whose files RocketMQ takes twice.
    """
    store, (a, b, c) = tmp_path / "store", (tmp_path / name for name in "abc")
    (store / "commitlog").mkdir(parents=True)
    for index, directory in enumerate((b, a, c, b, a, c)):
        directory.mkdir(exist_ok=True)
        (directory / file_name(index * FILE_SIZE)).write_bytes(bytes(FILE_SIZE))
    stated = [
        (f"{a}", ""), (f"{a},", ""), (f"{b},{a}", ""), (f"{a},{b},{c}", ""), (f"{a},{a}", ""),
        (f"{a},{b},,", ""), (f"  {a},{b}  ", ""), (f"{a},", f"{c}"), (f"{a},{b}", f" {c},{b} "),
        (f"{a},{b}", f"{c},"), (f"{a}/,{b}", ""),
    ]  # fmt: skip
    refused = [
        (f"{a}", f"{c}"), (f"{a}, {b}", ""), (f"{a},,{b}", ""), (f"{a};{b}", ""), ("", ""),
        (",", ""), (f"{a},~", ""), (f"{a},${{user.home}}", ""), (f"{a},{tmp_path / 'gone'}", ""),
        (f"{a},", f"{tmp_path / 'gone'}"), (f"{a},", f" {c}, {b}"),
    ]  # fmt: skip
    theirs = ask_paths(FILE_SIZE, stated + refused)
    for (paths, read_only), files in zip(stated, theirs, strict=False):
        conf = f"storePathCommitLog={paths}\nreadOnlyCommitLogStorePaths={read_only}\n"
        (store / "broker.conf").write_text(conf)
        log = CommitLog(read_store_settings(store).commit_log_directories, FILE_SIZE)
        assert [segment.path for segment in log.segments.listed] == files != [], conf
        log.close()
    for (paths, read_only), files in zip(refused, theirs[len(stated) :], strict=True):
        conf = f"storePathCommitLog={paths}\nreadOnlyCommitLogStorePaths={read_only}\n"
        (store / "broker.conf").write_text(conf)
        assert len(files) <= 4, conf
        with pytest.raises(ReputError):
            read_store_settings(store)


def follow_broker(store: Path, output: Path, seed: int, settings: dict[str, Any]) -> Progress:
    """Clients send to a broker and reput follows, until all that came is dispatched."""
    stop = threading.Event()
    state: dict[str, Any] = {}
    with Broker(store, TOPICS, settings) as broker:
        before = {topic: drain(broker.namesrv, topic)["messages"] for topic in TOPICS}
        senders = [start_send(broker.namesrv, topic, MESSAGES, seed) for topic in TOPICS]

        def follow(progress: Progress) -> None:
            if "end" not in state and all(sender.poll() is not None for sender in senders):
                sent = [finish_send(sender, SEND_TIMEOUT) for sender in senders]
                for topic, counts in zip(TOPICS, sent, strict=True):
                    least = before[topic] + counts["visible"]
                    drain(broker.namesrv, topic, at_least=least, timeout=SEND_TIMEOUT)
                broker.stop()
                log = CommitLog(read_store_settings(store).commit_log_directories)
                state["end"] = LogTail(log).settled()
            if progress.end_offset == state.get("end"):
                stop.set()

        progress = run_dispatcher(DispatcherConfig(store, output, latency_ms=1000), stop, follow)
    assert progress.end_offset == state["end"]
    assert progress.counts.quarantined_bytes == 0
    return progress


@pytest.mark.extended
@ONE_RELEASE
@pytest.mark.usefixtures("spark")
def test_a_broker_that_writes_over_two_paths(tmp_path: Path) -> None:
    """One of them STORE/commitlog, while it rolls files over both. Then files change places, the
    oldest go to a read-only path, the others' order is turned, and broker and reput go on."""
    store, output = tmp_path / "store", tmp_path / "output"
    paths, old = [store / "commitlog", tmp_path / "disk2" / "commitlog"], tmp_path / "disk0"
    settings = {
        "storePathCommitLog": ",".join(map(str, paths)),
        "mappedFileSizeCommitLog": LOG_FILE_SIZE,
    }
    follow_broker(store, output, 21, settings)
    logs = [sorted(path.iterdir()) for path in paths]
    assert min(map(len, logs)) >= 3
    assert difference(output / "consumequeue", store / "consumequeue") == []
    old.mkdir()
    for path in sorted([*logs[0], *logs[1]], key=lambda path: path.name)[:2]:
        shutil.move(path, old)
    # as between two disks: copied, then removed
    for path in (logs[0][1], logs[1][1]):
        shutil.copy(path, paths[path.parent == paths[0]])
        path.unlink()
    state_paths(store, paths[::-1], [old])
    again = follow_broker(store, output, 22, {})
    assert again.start_offset > 0
    assert difference(output / "consumequeue", store / "consumequeue") == []
    fresh = tmp_path / "fresh"
    run_dispatcher(DispatcherConfig(store, fresh, once=True), threading.Event())
    assert difference(fresh / "consumequeue", store / "consumequeue") == []
    assert len(list(old.iterdir())) == 2
