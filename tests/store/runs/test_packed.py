"""The packed form as tasks give it."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.log.commitlog import CommitLog
from store.runs.dispatch import Wanted
from store.runs.packed import read_runs
from tests.support.wire import PlainLog

PREPARED = 4


@pytest.mark.parametrize("in_spool", [False, True])
def test_a_range_without_any_unit_is_read(tmp_path: Path, in_spool: bool) -> None:
    """Half messages go to no queue; the index is shown them, and ext units ask for details."""
    plain = PlainLog(1 << 16)
    for number in range(3):
        plain.append(sys_flag=PREPARED, properties=b"UNIQ_KEY\x01k%d\x02" % number)
    log = CommitLog([plain.write(tmp_path / "commitlog")])
    spool = tmp_path / "spool" if in_spool else None
    if spool is not None:
        spool.mkdir()
    rows = [
        row
        for batch in read_runs(log, 0, plain.end, spool, wanted=Wanted(index=True, details=True))
        for row in batch.to_pylist()
    ]
    assert [(row["kind"], row["messageCount"]) for row in rows] == [(3, 3), (1, 3)]
    log.close()
