"""Exports in rare states: borders at zero, row groups, another export that has just finished."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from reput.readers import export as exporting
from reput.readers.export import RowSelection
from reput.store import fsops
from reput.store.errors import UsageError
from tests.readers.test_export import exported, odd_store
from tests.support.golden import tree
from tests.support.processes import open_paths
from tests.support.wire import PlainLog


@pytest.mark.parametrize(
    ("selection", "numbers"),
    [
        (RowSelection(), [0, 1, 2, 3]),
        (RowSelection(from_ms=0), [1, 2, 3]),
        (RowSelection(to_ms=0), [0]),
        (RowSelection(from_ms=0, to_ms=1), [1]),
        (RowSelection(from_ms=1, to_ms=1), []),
        (RowSelection(from_offset=0), [0, 1, 2, 3]),
        (RowSelection(to_offset=0), []),
        (RowSelection(from_offset=0, to_offset=1), [0]),
    ],
)
def test_zero_is_a_border_too(tmp_path: Path, selection: RowSelection, numbers: list[int]) -> None:
    """A time may be before the epoch, at it or after it; ends are exclusive."""
    log = PlainLog(1 << 12)
    for number, time in enumerate((-1, 0, 1, 2)):
        log.append(queue_id=number, store_timestamp=time)
    log.write(tmp_path / "store" / "commitlog")
    out = tmp_path / "out"
    assert exported(tmp_path / "store", out, selection).rows == len(numbers)
    assert pq.read_table(out).column("queueId").to_pylist() == numbers


@pytest.mark.parametrize("share", [1, 2, 4])
def test_a_row_group_has_as_many_bytes_as_were_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    """Each of them anew, so that a large export has few large ones."""
    monkeypatch.setattr("reput.store.rows.rows.ROWS_PER_BATCH", 2)
    log = PlainLog(1 << 16)
    for number in range(96):
        log.append(queue_id=number, body=bytes(200))
    log.write(tmp_path / "store" / "commitlog")
    exported(tmp_path / "store", tmp_path / "whole")
    size = pq.read_table(tmp_path / "whole").nbytes
    monkeypatch.setattr(exporting, "ROW_GROUP_BYTES", size // share)
    exported(tmp_path / "store", tmp_path / "out")
    (path,) = (tmp_path / "out").iterdir()
    file = pq.ParquetFile(path)
    counts = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
    assert sum(counts) == 96
    assert share <= len(counts) <= share + 1
    assert min([*counts[:-1], 96]) >= 96 // share - 20 // share
    assert file.read(["queueId"]).column(0).to_pylist() == list(range(96))


def test_an_export_that_has_just_finished_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one of the same place, between a first look and the lock: the second is refused as if
    it had come later."""
    store, out = odd_store(tmp_path / "store"), tmp_path / "out"
    make_directories: Callable[..., Any] = fsops.make_directories

    def finish_other(*given: Any, **named: Any) -> None:
        make_directories(*given, **named)
        out.mkdir()
        (out / "part-0.parquet").write_bytes(b"of the other one")

    monkeypatch.setattr(fsops, "make_directories", finish_other)
    with pytest.raises(UsageError, match="out is not empty"):
        exported(store, out)
    assert tree(out) == {"part-0.parquet": b"of the other one"}
    assert not [path for path in open_paths(tmp_path) if path.name.startswith("out")]
