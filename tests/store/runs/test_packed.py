"""The packed form as tasks give it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from reput.store.log.commitlog import CommitLog
from reput.store.runs.dispatch import Run, Wanted
from reput.store.runs.packed import read_runs, unpack
from tests.support.wire import PlainLog

PREPARED = 4


def test_a_range_without_any_unit_is_read(tmp_path: Path) -> None:
    """Half messages go to no queue; the index is shown them, and ext units ask for details."""
    plain = PlainLog(1 << 16)
    for number in range(3):
        plain.append(sys_flag=PREPARED, properties=b"UNIQ_KEY\x01k%d\x02" % number)
    log = CommitLog([plain.write(tmp_path / "commitlog")])
    rows = [
        row
        for batch in read_runs(log, 0, plain.end, extras=Wanted(index=True, details=True))
        for row in batch.to_pylist()
    ]
    assert [(row["kind"], row["messageCount"]) for row in rows] == [(3, 3), (1, 3)]
    log.close()


@pytest.mark.parametrize("jumping", [{}, {1}, {0, 2}, {0, 1, 2}])
@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_each_unit_comes_back_at_its_offset(
    tmp_path: Path, jumping: set[int], at_once: int
) -> None:
    """Queues whose offsets follow each other beside others, however Spark cuts the rows."""
    plain = PlainLog(1 << 16)
    stored: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
    for number in range(12):
        queue, turn = number % 3, number // 3
        at = 5 + turn * (queue + 2 if queue in jumping else 1)
        place = plain.append(topic=b"T", queue_id=queue, queue_offset=at)
        stored.setdefault((b"T", queue), []).append((at, place))
    log = CommitLog([plain.write(tmp_path / "commitlog")])
    rows = pa.Table.from_batches(read_runs(log, 0, plain.end)).combine_chunks()
    found: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
    for run in unpack(rows.to_batches(max_chunksize=at_once)):
        if isinstance(run, Run):
            first = run.first_queue_offset
            counted = range(first, first + len(run.units))
            offsets = counted if run.queue_offsets is None else run.queue_offsets.tolist()
            places = run.units["offset"].tolist()
            units = zip(offsets, places, strict=True)
            found.setdefault((run.topic, run.queue_id), []).extend(units)
    log.close()
    assert found == stored
