"""Settings that change while reput follows a real broker: reput does what RocketMQ does.

Compared byte for byte with the broker's files. The bit maps of messages that the broker dispatched
within seconds of a consumer's registration are not: it writes registrations to disk every ten
seconds, so here it does so at once, while no message comes.
"""

from __future__ import annotations

import shlex
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reput.store.errors import StoreError
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.queue.batchconsumequeue import BATCH_UNIT_DTYPE
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.progress import Progress
from tests.interop.maven import HarnessError
from tests.interop.rocketmq import ONE_RELEASE, Broker, boot, drain, send
from tests.support.cli import Call
from tests.support.golden import difference, tree

SETTINGS = {
    "enableConsumeQueueExt": True,
    "enableCalcFilterBitMap": True,
    "enablePropertyFilter": True,
}
TOPICS = {"Trade": 2, "Again": 2}
LIMIT_SECONDS = 120.0
EXT_UNIT = struct.Struct(">hqqh")


def log_end(store: Path) -> int:
    """Where the log ends now."""
    log = CommitLog([store / "commitlog"])
    try:
        return LogTail(log).settled()
    finally:
        log.close()


class Follower:
    """A dispatcher in this thread, and what a script in another one wants to know of it."""

    def __init__(self, config: DispatcherConfig) -> None:
        self._config = config
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._end_offset = -1
        self._error: BaseException | None = None

    def run(self, script: Callable[[], None]) -> None:
        """Follow until the script has ended. Raises what either of them raises."""
        thread = threading.Thread(target=self._play, args=(script,))
        thread.start()
        try:
            run_dispatcher(self._config, self._stop, self._show)
        finally:
            self._stop.set()
            with self._changed:
                self._changed.notify_all()
            thread.join()
        if self._error is not None:
            raise self._error

    def wait_for(self, end: int) -> None:
        """Wait until everything up to ``end`` is dispatched, or the dispatcher has ended."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self._end_offset >= end or self._stop.is_set(), LIMIT_SECONDS
            )

    def _play(self, script: Callable[[], None]) -> None:
        try:
            script()
        except BaseException as error:
            self._error = error
        finally:
            self._stop.set()

    def _show(self, progress: Progress) -> None:
        with self._changed:
            self._end_offset = progress.end_offset
            self._changed.notify_all()


def ext_units(queue: Path) -> list[tuple[int, int]]:
    """Delay of the tagsCode to the store time, and bytes of the bit map, of each ext unit."""
    found = []
    for path in sorted(queue.iterdir()):
        data, at = path.read_bytes(), 0
        while (size := EXT_UNIT.unpack_from(data, at)[0]) > 0:
            _, code, stored, bits = EXT_UNIT.unpack_from(data, at)
            found.append((code - stored, bits))
            at += size
    return found


def send_all(broker: Broker, topic: str, seed: int) -> None:
    """Messages of every kind to an empty topic, until nothing of them is still to come."""
    sent = send(broker.namesrv, topic, 150, seed)
    drain(broker.namesrv, topic, at_least=sent["visible"], timeout=LIMIT_SECONDS)


@pytest.mark.extended
@ONE_RELEASE
@pytest.mark.usefixtures("spark", "release")
def test_settings_that_change_under_a_dispatcher(tmp_path: Path, call: Call) -> None:
    """A batch topic that is created, a consumer's filter, other delay levels with a restart of the
    broker; then a topic that comes back as a batch topic, on which the dispatcher stops and names
    the command that mends its output."""
    store, output = tmp_path / "store", tmp_path / "output"
    store.mkdir()
    follower = Follower(DispatcherConfig(store, output, latency_ms=1000))

    def script() -> None:
        for topic in TOPICS:
            send_all(first, topic, 1)
        first.order("topic", "Lots:2", "BatchCQ")
        send(first.namesrv, "Lots", 150, 2)
        with pytest.raises(HarnessError, match=r"REFUSED .*queue\.type"):
            first.order("topic", "Trade:2", "BatchCQ")
        follower.wait_for(log_end(store))
        first.order("filter", "Trade", "group", "amount > 50000")
        send(first.namesrv, "Trade", 150, 3)
        first.stop()
        follower.wait_for(log_end(store))
        with (store / "broker.conf").open("a") as conf:
            conf.write("messageDelayLevel=3s 1m\n")
        with Broker(store) as broker:
            send(broker.namesrv, "Trade", 150, 4)
            send(broker.namesrv, "Lots", 50, 5)
            follower.wait_for(log_end(store))
            broker.order("delete", "Again")
            broker.order("topic", "Again:2", "BatchCQ")
            send(broker.namesrv, "Again", 50, 6)
        follower.wait_for(log_end(store))

    with (
        Broker(store, TOPICS, SETTINGS) as first,
        pytest.raises(StoreError, match=r"topic Again has queue.type=BatchCQ") as told,
    ):
        follower.run(script)
    _, *arguments = shlex.split(str(told.value).partition("rebuild them: ")[2])
    healed = call(*arguments)
    assert healed.returncode == 0, healed.stderr
    replaced = output / "consumequeue.replaced-1"
    assert [path.name for path in replaced.iterdir()] == ["Again"]
    run_dispatcher(DispatcherConfig(store, output, once=True), threading.Event())

    for kind in ("consumequeue", "consumequeue_ext"):
        assert difference(output / kind, store / kind) == []
    ours, theirs = (root / "batchconsumequeue" for root in (output, store))
    assert difference(ours / "Lots", theirs / "Lots") == []
    sizes = {
        int(size)
        for path in (ours / "Lots").rglob("0*0")
        if path.is_file()
        for size in np.fromfile(path, BATCH_UNIT_DTYPE)["batch_size"]
    }
    assert {0, 1} < sizes
    # the broker removed the deleted topic's messages from its queues; its own rebuild has them all
    rebuilt = tmp_path / "rebuilt"
    for part in ("commitlog", "config"):
        shutil.copytree(store / part, rebuilt / part)
    shutil.copy(store / "broker.conf", rebuilt)
    boot(rebuilt)
    assert difference(ours, rebuilt / "batchconsumequeue") == []
    assert tree(ours / "Again") != tree(theirs / "Again") != {}

    delays = {delay for delay, _ in ext_units(output / "consumequeue_ext/SCHEDULE_TOPIC_XXXX/0")}
    assert delays == {1000, 3000}
    assert {bits for _, bits in ext_units(output / "consumequeue_ext/Trade/0")} == {0, 14}
