"""RocketMQ's checkpoint file, against the ones that RocketMQ wrote."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.config import StoreSettings
from reput.store.errors import NoSpaceError, SyncError
from reput.store.log.commitlog import CommitLog
from reput.store.state.storecheckpoint import (
    StoreCheckpoint,
    keeps_logics_physical_offset,
    lower_logics_physical_offset,
    may_start_record,
)
from tests.support.golden import GOLDEN_NAMES
from tests.support.power_cuts import Disk
from tests.support.recorder import Recorder, read_tree
from tests.support.wire import PlainLog


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_checkpoints_are_read_and_written_back(
    name: str, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Six longs at 0, 8, to 40 (formats.md §9); writing what was read gives the same page."""
    root = golden(name)
    stored = (root / "checkpoint").read_bytes()
    found = StoreCheckpoint.read(root)
    assert found is not None
    assert (
        struct.pack(
            ">qqqqqq",
            found.physic_msg_timestamp,
            found.logics_msg_timestamp,
            found.index_msg_timestamp,
            found.master_flushed_offset,
            found.confirm_phy_offset,
            found.logics_physical_offset,
        )
        == stored[:48]
    )
    (tmp_path / "copy").mkdir()
    found.write(tmp_path / "copy")
    assert (tmp_path / "copy" / "checkpoint").read_bytes() == stored


def test_a_checkpoint_is_one_page(tmp_path: Path) -> None:
    """4096 bytes from creation; rewritten in place, negative longs included."""
    first = StoreCheckpoint(1, 2, 3, 4, 5, 6)
    first.write(tmp_path)
    path = tmp_path / "checkpoint"
    assert path.read_bytes() == struct.pack(">qqqqqq", 1, 2, 3, 4, 5, 6).ljust(4096, b"\0")
    inode = path.stat().st_ino
    second = StoreCheckpoint(-1, 0, (1 << 63) - 1, -(1 << 63), 7, -8)
    second.write(tmp_path)
    assert StoreCheckpoint.read(tmp_path) == second
    assert (path.stat().st_ino, path.stat().st_size) == (inode, 4096)


def test_a_new_checkpoint_survives_a_power_cut_with_its_name(tmp_path: Path) -> None:
    """So does what an old one is given; its name is durable already."""
    for fields in ((1, 2, 3), (4, 5, 6)):
        with Recorder(tmp_path) as recorder:
            StoreCheckpoint(*fields).write(tmp_path)
        recorder.check()
        assert Disk.after(recorder).durable() == read_tree(tmp_path)


@pytest.mark.parametrize("length", [4096, 0], ids=["page", "cut"])
@pytest.mark.parametrize(
    "fields", [(), (7, 8, 9), (7, 8, 9, 10), (7, 8, 9, 10, 11), (7, 8, 9, 10, 11, 12)]
)
def test_checkpoints_of_older_versions_have_zeros_for_the_later_fields(
    tmp_path: Path, fields: tuple[int, ...], length: int
) -> None:
    """Three longs through 4.9.8, four in 5.0.0 and 5.1.0, five up to 5.4.0 (§12); in a page, or in
    a copy without its zeros, which RocketMQ maps as a page again."""
    assert StoreCheckpoint.read(tmp_path) is None
    stored = struct.pack(f">{len(fields)}q", *fields)
    (tmp_path / "checkpoint").write_bytes(stored.ljust(length, b"\0"))
    found = StoreCheckpoint.read(tmp_path)
    assert found == StoreCheckpoint(*fields)
    found.write(tmp_path)
    assert (tmp_path / "checkpoint").read_bytes() == stored.ljust(4096, b"\0")


def test_what_asks_for_a_logics_physical_offset(tmp_path: Path) -> None:
    """Each of three signs of RocketMQ 5.5 alone, a checkpoint of any of the roots among them."""
    roots = [tmp_path / name for name in ("none", "older", "newer")]
    for root in roots:
        root.mkdir()
    StoreCheckpoint(1, 2, 3, 4, 5, 0).write(roots[1])
    plain = StoreSettings(tmp_path, (tmp_path,))
    assert not keeps_logics_physical_offset(plain, roots)
    assert keeps_logics_physical_offset(replace(plain, index_tags=True), roots)
    assert keeps_logics_physical_offset(replace(plain, enable_accelerated_recovery=True), ())
    StoreCheckpoint(1, 2, 3, 4, 5, 1).write(roots[2])
    assert keeps_logics_physical_offset(plain, roots)
    assert not keeps_logics_physical_offset(plain, roots[:2])


def test_a_claim_of_messages_is_lowered_and_never_raised(tmp_path: Path) -> None:
    """The other fields stay; a store without a checkpoint gets none."""
    lower_logics_physical_offset(tmp_path, 5)
    assert StoreCheckpoint.read(tmp_path) is None
    StoreCheckpoint(1, 2, 3, 4, 5, 700).write(tmp_path)
    for end, claimed in ((701, 700), (700, 700), (699, 699), (800, 699), (0, 0)):
        lower_logics_physical_offset(tmp_path, end)
        assert StoreCheckpoint.read(tmp_path) == StoreCheckpoint(1, 2, 3, 4, 5, claimed)


def test_a_record_may_start_where_one_is_or_the_log_is_gone(tmp_path: Path) -> None:
    """Nowhere else: neither within a record, nor where nothing is written yet."""
    plain = PlainLog(1 << 12, 1 << 12)
    for _ in range(3):
        plain.append()
    with closing(CommitLog([plain.write(tmp_path / "commitlog")])) as log:
        starts = {start for start, _ in plain.spans}
        for offset in range(plain.start, plain.end + 100):
            assert may_start_record(log, offset) == (offset in starts), offset
        assert may_start_record(log, plain.start - 1)
        assert may_start_record(log, 0)


def test_failures_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space may be tried again; a failed sync may not."""
    for point, expected in (
        ("pwrite:1=ENOSPC", NoSpaceError),
        ("truncate:1=ENOSPC", NoSpaceError),
        ("sync:1=EIO", SyncError),
    ):
        monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(point))
        (tmp_path / "checkpoint").unlink(missing_ok=True)
        with pytest.raises(expected, match="checkpoint"):
            StoreCheckpoint(1, 2, 3).write(tmp_path)
        StoreCheckpoint(1, 2, 3).write(tmp_path)
        assert StoreCheckpoint.read(tmp_path) == StoreCheckpoint(1, 2, 3)
