"""The packed form as tasks give it."""

from __future__ import annotations

from pathlib import Path

from reput.store.log.commitlog import CommitLog
from reput.store.runs.dispatch import Wanted
from reput.store.runs.packed import read_runs
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
