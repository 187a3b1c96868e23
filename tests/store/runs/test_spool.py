"""The spool, held to rows of our own making: what a task hands over is what the driver takes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from reput.store import fsops
from reput.store.errors import StoreError
from reput.store.log.commitlog import CommitLog
from reput.store.runs.packedschema import PACKED_SCHEMA, RowKind
from reput.store.runs.scan import scan
from reput.store.runs.spool import (
    claim,
    close_spool,
    empty_spool,
    is_open,
    open_spool,
    remove_claims,
    scanned_bytes,
    take_part,
    write_part,
)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """The spool of one query."""
    (tmp_path / "reput").mkdir()
    return open_spool(tmp_path / "reput" / "spool", tmp_path)


def rows_of(*units: bytes) -> pa.RecordBatch:
    """A batch with these values."""
    known = {"kind": RowKind.RUN, "messageCount": 1, "firstPhysicalOffset": 0}
    rows = [{**known, "endPhysicalOffset": 1, "units": value} for value in units]
    return pa.RecordBatch.from_pylist(rows, schema=PACKED_SCHEMA)


def test_what_is_handed_over_is_what_is_taken(spool: Path) -> None:
    """Several parts of several batches of rows, taken once, in any order; no file stays."""
    rng = random.Random(1)
    parts = {}
    for start in (0, 17, 1 << 40):
        units = [rng.randbytes(rng.randrange(100_000)) for _ in range(4)]
        write_part(spool, start, iter([rows_of(*units[:3]), rows_of(units[3])]))
        parts[start] = units
    for start in sorted(parts, key=lambda _: rng.random()):
        batches = take_part(spool, start)
        assert batches is not None
        taken = [value for batch in batches for value in batch.column("units").to_pylist()]
        assert taken == parts[start]
        assert take_part(spool, start) is None
    assert [path.name for path in spool.iterdir()] == ["open"]


def test_a_part_is_there_as_a_whole_or_not_at_all(spool: Path) -> None:
    """The driver looks while rows come."""

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            assert take_part(spool, 5) is None
            yield rows_of(b"%d" % number)

    write_part(spool, 5, rows())
    assert take_part(spool, 5) is not None


@pytest.mark.parametrize("operation", ["open", "pwrite", "rename"])
def test_a_part_without_room_is_dropped(
    operation: str, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its writes fails; its space is needed."""
    batches = [rows_of(os.urandom(1000)), rows_of(b"more")]
    for number in (1, 2, 9) if operation == "pwrite" else (1,):
        failing = fsops._Failpoints(f"{operation}:{number}=ENOSPC")
        with monkeypatch.context() as patch:
            patch.setattr(fsops, "_failpoints", failing)
            write_part(spool, 0, batches)
        assert failing._counts[operation] >= number
        assert [path.name for path in spool.iterdir()] == ["open"]


def test_a_file_that_is_cut_or_no_file_is_an_error(spool: Path) -> None:
    """Nothing is made up."""
    write_part(spool, 0, [rows_of(bytes(5000))])
    path = spool / "0.part"
    for size in (3000, 10, 0):
        os.truncate(path, size)
        with pytest.raises(StoreError, match="cannot read spool file"):
            take_part(spool, 0)
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(StoreError, match="cannot read spool file"):
        take_part(spool, 0)


def test_a_part_is_claimed_once(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays claimed after it was taken, while its batch runs: a repeated task scans the rest."""
    claimed = claim(spool, 7)
    assert claimed is not None
    with claimed:
        assert claim(spool, 7) is None
        write_part(spool, 7, [rows_of(b"x")])
    take_part(spool, 7)
    assert claim(spool, 7) is None
    with monkeypatch.context() as patch:
        patch.setattr(fsops, "_failpoints", fsops._Failpoints("open:1=ENOSPC"))
        assert claim(spool, 8) is None
    remove_claims(spool)
    assert [path.name for path in spool.iterdir()] == ["open"]


def test_a_spool_is_closed_and_goes(spool: Path) -> None:
    """A claimed part may still come; a task of an earlier query finds its directory gone."""
    assert is_open(spool)
    with claim(spool, 0) or pytest.fail("not claimed"):
        close_spool(spool)
        assert not is_open(spool)
        write_part(spool, 0, [rows_of(b"x")])
    assert take_part(spool, 0) is not None
    fsops.remove_tree(spool)
    close_spool(spool)
    assert claim(spool, 1) is None
    write_part(spool, 1, [rows_of(b"x")])
    assert not spool.exists()


def test_the_owner_empties_it(tmp_path: Path) -> None:
    """Made where missing; what killed runs left is removed, of versions with other files too."""
    directory = tmp_path / "reput" / "spool"
    empty_spool(directory, tmp_path)
    write_part(open_spool(directory, tmp_path), 0, [rows_of(b"x")])
    (directory / "left").write_bytes(b"x")
    empty_spool(directory, tmp_path)
    assert list(directory.iterdir()) == []


def test_claims_add_up_to_what_is_scanned(
    golden: Callable[[str], Path], spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts of a log; at the end every byte counts once."""
    monkeypatch.setattr("reput.store.runs.spool.MARK_SECONDS", -1.0)
    log = CommitLog([golden("plain") / "commitlog"])
    bounds = [segment.start for segment in log.segments.listed[:3]]
    seen = []
    for start, end in ((0, 1), (1, 2)):
        claimed = claim(spool, bounds[start])
        assert claimed is not None
        with claimed:
            list(scan(log, bounds[start], bounds[end], reached=claimed.reached))
        seen.append(scanned_bytes(spool))
    assert seen == [bounds[1] - bounds[0], bounds[2] - bounds[0]]
    remove_claims(spool)
    assert scanned_bytes(spool) == 0
