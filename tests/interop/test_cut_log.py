"""A real broker loses the end of its log and goes on: the next run of reput goes on, too.

A power loss is a kill, then zeros or nothing where the pages of the log had not reached the disk.
The broker then recovers by itself, cuts, and appends other messages. What it builds is the oracle.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from reput.sinks.delta.table import DeltaTarget
from reput.store.files import LEDGER_FILE, STATE_DIRECTORY
from reput.store.rows.rowform import AS_STORED
from reput.store.state.watermark import read_watermark
from tests.interop.rocketmq import ONE_RELEASE, Broker, boot, drain, send
from tests.streaming.test_golden import dispatch
from tests.support.derived_output import DerivedOutput
from tests.support.golden import difference, log_records, tree
from tests.support.seeds import seed
from tests.support.tables import log_end, plain_columns, plain_rows
from tests.support.wire import read_log

__all__ = ["seed"]

pytestmark = [pytest.mark.usefixtures("spark", "release"), ONE_RELEASE]
SETTINGS = {"messageIndexEnable": True, "flushDiskType": "ASYNC_FLUSH"}
TOPICS = {"Trade": 4, "Audit": 2}
MESSAGES = 600


def lose_end(store: Path, offset: int, *, only: int | None = None) -> None:
    """Zeros from a log offset on; ``only`` so many bytes of them, what follows stays."""
    for path in sorted((store / "commitlog").iterdir()):
        size = path.stat().st_size
        first = max(offset - int(path.name), 0)
        last = size if only is None else min(max(offset + only - int(path.name), 0), size)
        if first < last:
            with path.open("r+b") as out:
                out.seek(first)
                out.write(bytes(last - first))


def send_all(broker: Broker, topic: str, count: int, seed: int) -> None:
    """Send, and wait until delayed messages and commits have come as well."""
    counts = send(broker.namesrv, topic, count, seed)
    drain(broker.namesrv, topic, at_least=counts["visible"])


def _units_in(found: set[tuple[str, int, int]], name: str, data: bytes) -> bytes:
    """The units of a queue's file that point to messages of the queue in the log."""
    topic, queue_id, _ = name.split("/")
    units = (data[at : at + 20] for at in range(0, len(data), 20))
    return b"".join(
        unit
        for unit in units
        if any(unit[8:12]) and (topic, int(queue_id), int.from_bytes(unit[:8], "big")) in found
    )


def _jumps(store: Path) -> list[int]:
    """Physical offsets of messages whose queue offset does not follow the one before: after a
    second loss a broker counts units of lost messages (docs/formats.md, 13)."""
    jumps, following = [], defaultdict[tuple[bytes, int], int](int)
    for one in log_records(store):
        if one.dispatched_to_queue:
            queue = (one.topic, one.queue_id)
            if one.queue_offset != following[queue]:
                jumps.append(one.physical_offset)
            following[queue] = one.queue_offset + 1
    return jumps


def check(store: Path, output: Path, table: Path, tmp_path: Path) -> None:
    """Our queues are the broker's, all else is what a fresh dispatch makes."""
    fresh = tmp_path / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    DerivedOutput(store, fresh).start()
    assert difference(output / "consumequeue", fresh / "consumequeue") == []
    assert (output / "checkpoint").read_bytes() == (fresh / "checkpoint").read_bytes()
    # killed, the broker may not have dispatched its last messages: its next start does
    recovered = tmp_path / "recovered"
    shutil.rmtree(recovered, ignore_errors=True)
    shutil.copytree(store, recovered)
    boot(recovered)
    found = {(one.topic.decode(), one.queue_id, one.physical_offset) for one in log_records(store)}
    for name, data in tree(output / "consumequeue").items():
        # what a broker has cut it leaves as it was, and takes for units again after a second loss
        # (docs/formats.md, 13)
        theirs = (recovered / "consumequeue" / name).read_bytes()
        ours, theirs = (_units_in(found, name, one) for one in (data, theirs))
        assert ours == theirs, name
        assert data.startswith(ours) and not any(data[len(ours) :]), name
    assert plain_columns(table) == plain_rows(store)


@pytest.mark.extended
def test_a_broker_that_lost_the_end_of_its_log(tmp_path: Path, seed: int) -> None:
    """Twice: it writes less than it has lost, to other topics; then more, to the same ones."""
    rng = random.Random(seed)
    store, output, table = tmp_path / "store", tmp_path / "output", tmp_path / "table"
    store.mkdir()
    follow = (DeltaTarget(str(table), interval_seconds=0.0, form=AS_STORED),)
    broker = Broker(store, TOPICS, SETTINGS).start()
    for topic in TOPICS:
        send_all(broker, topic, MESSAGES, rng.randrange(1000))
    broker.kill()
    dispatch(store, output, followers=follow)
    rounds = ((("Later",), MESSAGES // 6, 600), (("Later", *TOPICS), MESSAGES, 100))
    for topics, messages, least in rounds:
        dispatched = read_watermark(output / "reput")
        assert dispatched is not None
        starts = [offset for offset, _ in read_log(store / "commitlog")]
        lost = starts[-rng.randrange(least, least + 200)]
        lose_end(store, lost + rng.randrange(40))
        broker = Broker(store, dict.fromkeys(topics, 2)).start()
        for topic in topics:
            send_all(broker, topic, messages, rng.randrange(1000))
        broker.kill()
        assert (log_end(store) > dispatched.end_offset) is (messages == MESSAGES)
        dispatch(store, output, followers=follow)
        found = read_watermark(output / "reput")
        assert found is not None and found.epoch == dispatched.epoch + 2
        check(store, output, table, tmp_path)
        path = output / STATE_DIRECTORY / LEDGER_FILE
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        listed = [(one["reason"], one["physical_offset"]) for one in map(json.loads, lines)]
        assert sorted(listed) == [("queue_offset_gap", offset) for offset in _jumps(store)]
