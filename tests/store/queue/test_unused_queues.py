"""Queues that are not used any more, in the states that a broker or a power cut leaves.

The rule is RocketMQ's ``ConsumeQueueStore.cleanExpired``: a queue of which no last message can be
told stays, and so do all of RocketMQ's own topics.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reput.store import fsops
from reput.store.config import StoreSettings
from reput.store.errors import OutputError
from reput.store.queue.consumequeue import ConsumeQueueFiles, QueueKey
from reput.store.queue.consumequeueext import ConsumeQueueExtFiles, place
from reput.store.queue.retention import remove_queue, unused_queues
from reput.store.queue.unsynced import UnsyncedFiles
from tests.support.wire import UNIT, file_name

KEY = QueueKey("T", 0)


def settings_of(output: Path) -> StoreSettings:
    """Small files of both kinds."""
    return replace(
        StoreSettings(output, ()),
        mapped_file_size_consume_queue=100,
        mapped_file_size_consume_queue_ext=100,
    )


def test_a_queue_that_is_about_to_begin_is_used(tmp_path: Path) -> None:
    """Its first file is there without a byte, or without a unit; one without any file is left over
    from a removal, and so is an ext alone, but not that of a topic of RocketMQ's own."""
    for name, size in (("Empty", 0), ("Zeros", 100), ("None", None)):
        queue = tmp_path / "consumequeue" / name / "0"
        queue.mkdir(parents=True)
        if size is not None:
            (queue / file_name(0)).write_bytes(bytes(size))
    for topic in ("ExtAlone", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX", "Empty"):
        (tmp_path / "consumequeue_ext" / topic / "0").mkdir(parents=True)
    found = unused_queues(tmp_path, settings_of(tmp_path), 1 << 40, None)
    assert list(found) == [QueueKey("None", 0), QueueKey("ExtAlone", 0)]


def with_ext(output: Path) -> dict[int, int]:
    """A queue of twelve messages in three files, all with ext units; physical offset -> address."""
    codes = np.arange(12, dtype=np.int64)
    placed = place(0, 100, codes, codes, np.zeros((12, 7), np.uint8))
    written = UnsyncedFiles()
    ext = ConsumeQueueExtFiles(output / "consumequeue_ext" / KEY.relative_path, 100)
    ext.write(placed, output, written)
    addresses = placed.addresses.tolist()
    units = [UNIT.pack(100 * at, 100, address) for at, address in enumerate(addresses)]
    queue = ConsumeQueueFiles(output / "consumequeue" / KEY.relative_path, 100)
    queue.write(0, b"".join(units), output, written)
    written.sync()
    return {100 * at: address for at, address in enumerate(addresses)}


def test_a_removal_that_fails_anywhere_leaves_no_unit_without_its_ext(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the queue is found whole by whoever reads it, and goes the next time."""
    for ordinal in itertools.count(1):
        output = tmp_path / str(ordinal)
        addresses, settings = with_ext(output), settings_of(output)
        with monkeypatch.context() as patch:
            patch.setattr(fsops, "_failpoints", fsops._Failpoints(f"unlink:{ordinal}=EIO"))
            try:
                remove_queue(output, settings, KEY)
            except OutputError:
                is_removed = False
            else:
                is_removed = True
        queue = ConsumeQueueFiles(output / "consumequeue" / KEY.relative_path, 100)
        ext = ConsumeQueueExtFiles(output / "consumequeue_ext" / KEY.relative_path, 100)
        for start in queue.starts:
            for offset, size, address in UNIT.iter_unpack(queue.path(start).read_bytes()):
                assert not size or addresses[offset] == address
                assert not size or ext.read(address) is not None, ordinal
        assert list(unused_queues(output, settings, 1 << 40, None)) == [KEY] * (not is_removed)
        if is_removed:
            break
    assert ordinal > 6
