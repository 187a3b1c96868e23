"""Log files that were created ahead in two directories, and files that come by a copy while the log
is open."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from reput.store.errors import CommitLogError
from reput.store.log.commitlog import CommitLog
from reput.store.log.segments import ARRIVAL_SECONDS
from tests.store.log.test_commitlog import make_file, starts


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_copy_of_zeros_alone_is_left_out(
    tmp_path: Path, order: tuple[str, str], is_sparse: bool
) -> None:
    """A broker creates the next file ahead, and writes to another directory when the disk is full;
    of a file that holds anything at all, nobody knows whether it is the log."""
    record = (64).to_bytes(4, "big") + bytes(60)
    directories = [tmp_path / name for name in order]
    used = make_file(tmp_path / "a", 0, 64, record)
    unused = make_file(tmp_path / "b", 0, 64, b"" if is_sparse else bytes(64))
    log = CommitLog(directories)
    assert log.read(0, 64) == record
    assert (log.segments.listed[0].path, log.segments.foreign) == (used, [unused])
    log.close()
    unused.write_bytes(bytes(63) + b"\1")
    for path in (used, unused):
        os.utime(path, (0, 0))  # as a copy leaves it that keeps the time
    log = CommitLog(directories)
    with pytest.raises(CommitLogError, match="have the same name and length"):
        log.read(0, 64)


@pytest.mark.parametrize("file_size", [None, 64])
def test_of_two_unused_files_the_one_that_is_written_to_is_read(
    tmp_path: Path, file_size: int | None
) -> None:
    """Both were created ahead; the directories do not change when a broker begins to write."""
    for directory in ("a", "b"):
        os.utime(make_file(tmp_path / directory, 0, 64, b"").parent, (0, 0))
    log = CommitLog([tmp_path / "a", tmp_path / "b"], file_size)
    assert log.read(0, 64) == bytes(64)
    record = (64).to_bytes(4, "big") + bytes(60)
    with (tmp_path / "b" / log.segments.listed[0].path.name).open("r+b") as file:
        file.write(record)
    log.refresh()
    assert log.read(0, 64) == record
    log.close()


def test_a_log_of_one_file_that_is_still_being_copied_is_followed(tmp_path: Path) -> None:
    """Its length is not known before the copy is complete, and the directory does not change."""
    path = make_file(tmp_path, 0, 64, b"a" * 64)
    os.utime(tmp_path, (0, 0))
    log = CommitLog([tmp_path])
    assert log.file_size == 64
    with path.open("ab") as file:
        file.write(b"b" * 64)
    log.refresh()
    assert (log.file_size, log.read(64, 64)) == (128, b"b" * 64)
    make_file(tmp_path, 128, 128)
    log.refresh()
    assert starts(log) == [0, 128]
    log.close()


def test_a_file_that_is_copied_into_a_log_that_is_followed_ends_it_until_it_is_whole(
    tmp_path: Path,
) -> None:
    """As long as it grows; one that nobody writes any more is an error."""
    make_file(tmp_path, 0, 64, b"a")
    log = CommitLog([tmp_path])
    make_file(tmp_path, 64, 64, b"b")
    log.refresh()
    path = make_file(tmp_path, 128, 30, b"c" * 30)
    os.utime(tmp_path, (0, 0))  # its growth does not change it
    log.refresh()
    assert starts(log) == [0, 64]
    old = time.time() - ARRIVAL_SECONDS - 1
    os.utime(path, (old, old))
    with pytest.raises(CommitLogError, match="30 bytes but"):
        log.refresh()
    with path.open("ab") as file:
        file.write(bytes(34))
    log.refresh()
    assert starts(log) == [0, 64, 128]
    log.close()


def test_a_file_that_becomes_shorter_is_no_copy_in_the_making(tmp_path: Path) -> None:
    """Bytes that were read may be gone: an error at once, and no shorter log."""
    make_file(tmp_path, 0, 64, b"a")
    path = make_file(tmp_path, 64, 64, b"b")
    log = CommitLog([tmp_path])
    os.truncate(path, 30)
    (tmp_path / "changes the directory").touch()
    with pytest.raises(CommitLogError, match="30 bytes but"):
        log.refresh()
    with pytest.raises(CommitLogError, match="30 bytes but"):
        CommitLog([tmp_path], 64)
    log.close()


def test_a_file_that_comes_at_the_time_of_a_listing_is_found(tmp_path: Path) -> None:
    """File systems tell no two changes of a directory apart that are near in time."""
    later = time.time_ns() + 10**12
    for name in "ab":
        make_file(tmp_path / name, 0 if name == "a" else 64, 64, b"a")
    os.utime(tmp_path / "a", (0, 0))
    os.utime(tmp_path / "b", ns=(later, later))
    log = CommitLog([tmp_path / "a", tmp_path / "b"])
    make_file(tmp_path / "b", 128, 64, b"b")
    os.utime(tmp_path / "b", ns=(later, later))
    log.refresh()
    assert starts(log) == [0, 64, 128]
    log.close()
