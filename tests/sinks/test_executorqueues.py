"""Queues of executors as the driver takes them in: what it counts, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reput.sinks.index.executorqueues import ExecutorQueues
from reput.store.errors import StoreError
from reput.store.queue.consumequeue import QueueKey
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts
from reput.store.runs.manifest import QueueManifest, written_files
from reput.store.state.ledger import Ledger, LedgerEntry
from tests.support.wire import UNIT, file_name

SIZE = 100


def written(attempt: Path, topic: str, queue_id: int) -> QueueManifest:
    """A queue of two files and an ext file that a task has written, with a message in the
    ledger."""
    for kind, count in (("consumequeue", 2), ("consumequeue_ext", 1)):
        directory = attempt / kind / topic / str(queue_id)
        directory.mkdir(parents=True)
        for number in range(count):
            data = UNIT.pack(number + 1, 90, queue_id + 1).ljust(SIZE, b"\0")
            (directory / file_name(number * SIZE)).write_bytes(data)
    entry = LedgerEntry(queue_id, queue_id + 9, "queue_offset_gap", topic, queue_id, 5)
    counts = DispatchCounts(10, 1, 2, 3, 40, 1)
    files = tuple(written_files(attempt, QueueKey(topic, queue_id)))
    assert [(file.size, file.used) for file in files] == [(SIZE, 20)] * 3
    return QueueManifest(
        topic.encode(), queue_id, str(attempt), 2, 0, 900, 7, counts, (entry,), files
    )


def test_queues_are_moved_in_listed_and_counted(tmp_path: Path) -> None:
    """An unusual topic counts once, though each task that met it has counted it."""
    output = tmp_path / "output"
    output.mkdir()
    queues = [
        written(tmp_path / str(number), topic, number)
        for number, topic in enumerate(("a b", "a b", "Usual", "订单"))
    ]
    ledger = Ledger(output / "reput")
    counts = ExecutorQueues(output, ledger).write(
        DispatchBatch(0, 900, (), (), 8, 800, queues=queues)
    )
    assert counts == DispatchCounts(40, 4, 8, 12, 160, unusual_topics=2)
    assert list(ledger.added) == [queue.ledger[0] for queue in queues]
    for queue in queues:
        assert not [path for path in Path(queue.attempt).rglob("*") if path.is_file()]
        key = QueueKey(queue.topic.decode(), queue.queue_id)
        assert tuple(written_files(output, key)) == queue.files


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "is not as an executor has"),
        (lambda file: file.write_bytes(b"\1" + file.read_bytes()[1:]), "is not as an executor has"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\1"), "is not as an executor"),
        (lambda file: file.unlink(), "on a file system that all nodes share"),
    ],
    ids=["cut", "changed", "longer", "gone"],
)
def test_what_was_not_written_so_moves_nothing(
    tmp_path: Path, change: Callable[[Path], object], error: str
) -> None:
    """Neither files nor ledger of any queue, though others come before the wrong one."""
    output = tmp_path / "output"
    output.mkdir()
    queues = [written(tmp_path / str(number), "T", number) for number in range(3)]
    change(tmp_path / "2" / "consumequeue" / "T" / "2" / file_name(SIZE))
    ledger = Ledger(output / "reput")
    writer = ExecutorQueues(output, ledger)
    with pytest.raises(StoreError, match=error):
        writer.write(DispatchBatch(0, 900, (), (), 6, 800, queues=queues))
    assert not [*output.iterdir()]
    assert not ledger.added
    twice = [queues[0], replace(queues[0], attempt=str(tmp_path / "1"))]
    with pytest.raises(StoreError, match="topic T queue 0 was written twice"):
        writer.write(DispatchBatch(0, 900, (), (), 6, 800, queues=twice))
    assert not [*output.iterdir()]
