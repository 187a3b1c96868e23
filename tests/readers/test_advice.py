"""Advice of errors that readers raise is followed in the state that raises it."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reput.readers.iteration import iterate
from reput.readers.messagestore import MessageStore
from reput.store.errors import QueueFileError
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.support.cli import Call
from tests.support.derived_output import DerivedOutput
from tests.support.golden import log_records
from tests.support.grown_log import GrownLog
from tests.support.operations import once_before

QUEUE_OFFSET = pa.schema([ROWS_SCHEMA.field("queueOffset")])


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("consumequeue", r"rebuild it with reput rebuild, or read from a later offset"),
        ("batchconsumequeue", r"rebuild the queue with reput rebuild"),
    ],
)
def test_a_queue_that_lacks_a_file(
    tmp_path: Path, seed: int, call: Call, kind: str, advice: str
) -> None:
    log = GrownLog(tmp_path / "store", random.Random(seed), ext=False)
    log.grow(300)
    output = DerivedOutput(log.root, tmp_path / "output")
    output.start()
    queues = (output.root / kind).glob("*/*")
    queue = max(queues, key=lambda queue: len(list(queue.iterdir())))
    topic, queue_id = queue.parts[-2], int(queue.name)

    def offsets(start: int = 0) -> list[int]:
        with MessageStore(log.root, output=output.root) as store:
            batches = iterate(store, topic, queue_id, start, schema=QUEUE_OFFSET)
            return [offset for batch in batches for offset in batch["queueOffset"].to_pylist()]

    expected = offsets()
    names = sorted(queue.iterdir())
    removed = names[len(names) // 2]
    removed.unlink()
    with pytest.raises(QueueFileError, match=advice):
        offsets()
    if kind == "consumequeue":
        later = (int(removed.name) + removed.parent.joinpath(names[0]).stat().st_size) // 20
        assert offsets(later) == expected[-len(offsets(later)) :]
    done = call("rebuild", log.root, "--output", output.root, "--topic", topic)
    assert done.returncode == 0, done.stderr
    assert offsets() == expected


def test_an_export_that_is_stopped(tmp_path: Path, seed: int, call: Call) -> None:
    """Ctrl-C right before it makes its directory: nothing is left, and the same command writes
    all of it."""
    log = GrownLog(tmp_path / "store", random.Random(seed), ext=False)
    log.grow(30)
    out = tmp_path / "out"
    words = ("export", log.root, out, "--include-internal")
    with once_before(lambda *at: at[0] == "mkdir", lambda: signal.raise_signal(signal.SIGINT)):
        done = call(*words)
    assert done.returncode == 1, done.stderr
    assert done.stderr == (
        f"reput: error: the export was stopped and {out} not written; run it again\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert call(*words).returncode == 0
    assert pq.read_table(out)["physicalOffset"].to_pylist() == [
        record.physical_offset for record in log_records(log.root)
    ]
