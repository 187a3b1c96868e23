"""Advice of errors that readers raise is followed in the state that raises it."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from reput.readers.iteration import iterate
from reput.readers.messagestore import MessageStore
from reput.store.errors import QueueFileError
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.support.cli import Call
from tests.support.derived_output import DerivedOutput
from tests.support.grown_log import GrownLog

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
