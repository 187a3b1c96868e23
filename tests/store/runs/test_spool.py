"""The spool, held to bytes of our own making: what a task writes is what the driver maps."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from store import fsops
from store.errors import StoreError
from store.log.commitlog import CommitLog
from store.runs.scan import scan
from store.runs.spool import (
    MIN_SPOOLED_BYTES,
    ScanMark,
    SpoolReader,
    SpoolWriter,
    empty_spool,
    remove_marks,
    scanned_bytes,
)


def test_what_is_written_is_what_is_taken(tmp_path: Path) -> None:
    """Several pieces of several tasks, taken in any order; no file stays."""
    rng = random.Random(1)
    pieces = {}
    for _ in range(3):
        writer = SpoolWriter(tmp_path)
        for _ in range(4):
            data = rng.randbytes(MIN_SPOOLED_BYTES + rng.randrange(10_000))
            position = writer.write(memoryview(data))
            assert position is not None
            pieces[writer.name, position] = data
        writer.close()
    assert len(list(tmp_path.iterdir())) == 3
    reader = SpoolReader(tmp_path)
    order = list(pieces)
    rng.shuffle(order)
    taken = {key: reader.take(*key, len(pieces[key])) for key in order}
    assert list(tmp_path.iterdir()) == []
    assert taken == pieces


def test_little_or_nowhere_goes_another_way(tmp_path: Path) -> None:
    """No file is made for it."""
    assert SpoolWriter(tmp_path).write(memoryview(bytes(MIN_SPOOLED_BYTES - 1))) is None
    assert SpoolWriter(None).write(memoryview(bytes(MIN_SPOOLED_BYTES))) is None
    assert SpoolWriter(tmp_path / "gone").write(memoryview(bytes(MIN_SPOOLED_BYTES))) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", ["open:1=EACCES", "pwrite:1=ENOSPC", "pwrite:2=ENOSPC"])
def test_a_spool_that_cannot_be_written(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task goes on without it, and with it once it can be written again."""
    monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(failing))
    writer = SpoolWriter(tmp_path)
    data = os.urandom(MIN_SPOOLED_BYTES)
    found = [writer.write(memoryview(data)) for _ in range(4)]
    writer.close()
    assert found.count(None) == 1
    reader = SpoolReader(tmp_path)
    for position in filter(lambda at: at is not None, found):
        assert position is not None
        assert reader.take(writer.name, position, len(data)) == data


def test_a_full_disk_keeps_no_file_that_nobody_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write fails half done: no row names the file, and its space is needed."""
    monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints("pwrite:1=ENOSPC"))
    writer = SpoolWriter(tmp_path)
    assert writer.write(memoryview(bytes(MIN_SPOOLED_BYTES))) is None
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_cut_or_gone_is_an_error(tmp_path: Path) -> None:
    """Nothing is made up."""
    writer = SpoolWriter(tmp_path)
    writer.write(memoryview(bytes(MIN_SPOOLED_BYTES)))
    writer.close()
    with pytest.raises(StoreError, match="too short"):
        SpoolReader(tmp_path).take(writer.name, 10, MIN_SPOOLED_BYTES)
    with pytest.raises(StoreError, match="cannot read spool file"):
        SpoolReader(tmp_path).take(writer.name, 0, 1)
    (tmp_path / "empty").touch()
    with pytest.raises(StoreError, match="cannot read spool file"):
        SpoolReader(tmp_path).take("empty", 0, 1)


def test_the_owner_empties_it(tmp_path: Path) -> None:
    """Made where missing; what killed tasks left is removed."""
    spool = tmp_path / "reput" / "spool"
    empty_spool(spool, tmp_path)
    (spool / "left").write_bytes(b"x")
    empty_spool(spool, tmp_path)
    assert list(spool.iterdir()) == []


def test_marks_add_up_to_what_is_scanned(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts of a log, one of them begun twice; at the end every byte counts once."""
    monkeypatch.setattr("store.runs.spool.MARK_SECONDS", -1.0)
    log = CommitLog([golden("plain") / "commitlog"])
    bounds = [log.segments[0].start, log.segments[1].start, log.segments[2].start]
    seen = []
    for start, end in ((0, 1), (0, 1), (1, 2)):
        mark = ScanMark(tmp_path, bounds[start])
        list(scan(log, bounds[start], bounds[end], reached=mark))
        mark.close()
        seen.append(scanned_bytes(tmp_path))
    assert seen == [bounds[1] - bounds[0]] * 2 + [bounds[2] - bounds[0]]
    remove_marks(tmp_path)
    assert scanned_bytes(tmp_path) == 0


def test_a_short_scan_leaves_no_mark(tmp_path: Path) -> None:
    """A batch of a live log costs no file."""
    mark = ScanMark(tmp_path, 0)
    mark(100)
    mark.close()
    assert list(tmp_path.iterdir()) == []
