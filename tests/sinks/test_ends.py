"""Where each writer says that its entries end, against a plain reading of the files that it wrote.

The record of ends is made of these (``store.state.ends``): a wrong one would pass for a loss.
"""

from __future__ import annotations

import random
import struct
from contextlib import closing
from pathlib import Path

from reput.store.index.indexfile import IndexLayout
from tests.sinks.test_batchconsumequeue import TOPICS, Work
from tests.support.batch_queue import BATCH_UNIT, BatchMessage
from tests.support.index_outputs import IndexOutput, batch_of, random_log
from tests.support.outputs import Output, QueueLog
from tests.support.wire import UNIT

Found = dict[tuple[str, str, int], tuple[int, int]]


def last_units(root: Path, layout: struct.Struct) -> Found:
    """(kind, topic, queue id) -> the byte after the last unit, and the end of its message."""
    found: Found = {}
    for path in sorted(root.glob("*/*/*")):
        topic, queue_id = path.parts[-3:-1]
        data = path.read_bytes()
        for at in range(0, len(data) // layout.size * layout.size, layout.size):
            offset, size, *_ = layout.unpack_from(data, at)
            if 0 < size < (1 << 31) - 1:
                end = int(path.name) + at + layout.size
                found[root.name, topic, int(queue_id)] = end, offset + size
    return found


def test_queues_end_after_their_last_units(tmp_path: Path) -> None:
    """They have several files, blanks and gaps; one without a unit is not told of."""
    log = QueueLog(100)
    for topic, queue_id, offsets in (
        ("T", 0, (0, 1, 2, 3, 4, 5, 6)), ("T", 1, (8, 9, 20)), ("订单", 0, (0,)),
        ("T", 2, (-1,)), ("a/b", 0, (0, 1)), ("Full", 0, (0, 1, 2, 3, 4)),
    ):  # fmt: skip
        for offset in offsets:
            log.append(offset, queue_id, topic)
    setup = log.setup(tmp_path, 100)
    with closing(Output(setup)) as output:
        assert dict(output.writer.ends()) == {}
        output.run(log.plain.end)
        expected = last_units(setup.root / "consumequeue", UNIT)
        assert len(expected) == 4
        assert dict(output.writer.ends()) == expected
    with closing(Output(setup)) as output:
        output.run(log.plain.end, 0)
        assert dict(output.writer.ends()) == expected


def test_batch_queues_end_after_their_last_units(tmp_path: Path) -> None:
    """The size of a message in bytes counts; a queue without a unit is not told of."""
    messages = [
        BatchMessage(
            100 * number, 60 + number, 0, number, 7 * (number // 4), 7, b"T", number % 4, False
        )
        for number in range(30)
    ]
    # one that has no place, alone in its queue
    messages.append(BatchMessage(4000, 60, 0, 30, -1, 7, b"T", 9, False))
    work = Work(messages, TOPICS, 46 * 3, tmp_path / "output")
    work.start()
    assert dict(work.writer.ends()) == {}
    work.run(0, work.end)
    expected = last_units(work.root / "batchconsumequeue", BATCH_UNIT)
    assert len(expected) == 4
    assert dict(work.writer.ends()) == expected


def test_the_index_ends_with_its_newest_files_entries(tmp_path: Path, seed: int) -> None:
    """After each message: the number of the next entry, and the place of the last one's message;
    a file that has none is not told of."""
    layout = IndexLayout(5, 6)
    log = random_log(tmp_path / "log", random.Random(seed), 40)
    output = IndexOutput(tmp_path / "output", layout, log)
    writer = output.writer(0)
    with closing(writer):
        for message in log.messages:
            writer.write(batch_of([message]))
            ends = dict(writer.ends())
            paths = sorted((output.root / "index").glob("*"))
            if not paths:
                assert not ends
                continue
            data = paths[-1].read_bytes()
            offset, count = struct.unpack_from(">q4xi", data, 24)
            name = "index", paths[-1].name, 0
            assert ends == ({name: (count, offset)} if count > 1 else {})
