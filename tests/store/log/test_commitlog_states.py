"""A log whose files change all at once; file systems that fail for a moment or know no holes."""

from __future__ import annotations

import errno
import os
import struct
from contextlib import closing
from pathlib import Path

import pytest

from reput.store.errors import CommitLogError, NotReadyError
from reput.store.log import segments
from reput.store.log.commitlog import CommitLog
from reput.store.log.status import Outcome, Status
from tests.support.wire import PlainLog, file_name

BLANK_MAGIC = 0xCBD43194
"""The magic number of the record that ends a file (formats.md §2)."""


def put(directory: Path, start: int, size: int, byte: bytes = b"\1") -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / file_name(start)
    path.write_bytes(byte * size)
    return path


def test_files_that_all_change_their_size_are_not_taken_for_another_log(tmp_path: Path) -> None:
    """Positions that were read would mean other bytes: the size that was found first holds, as the
    size of one file alone does not while it grows."""
    for start in (0, 64):
        put(tmp_path, start, 64)
    with closing(CommitLog([tmp_path])) as log:
        assert log.file_size == 64
        for start in (0, 64):
            put(tmp_path, start, 32)
        put(tmp_path, 128, 32)
        with pytest.raises(CommitLogError, match=r"has 32 bytes but .* 64"):
            log.refresh()
        assert log.read(64, 8) == b"\1" * 8


def test_a_log_whose_directory_is_gone_is_named(tmp_path: Path) -> None:
    """It was unmounted while it was read: whoever waits for it goes on once it is back."""
    log_directory, away = tmp_path / "commitlog", tmp_path / "away"
    log_directory.mkdir()
    put(log_directory, 0, 64)
    with closing(CommitLog([log_directory])) as log:
        log_directory.rename(away)
        with pytest.raises(NotReadyError) as caught:
            log.refresh()
        line = f"there is no commitlog {log_directory}; mount it or start its broker"
        assert (str(caught.value), caught.value.path) == (line, str(log_directory))
        away.rename(log_directory)
        log.refresh()
        assert log.read(0, 8) == b"\1" * 8


@pytest.mark.parametrize(
    ("code", "failures", "is_read"),
    [
        ("ESTALE", 2, True), ("EIO", 2, True), ("EAGAIN", 2, True),
        ("ESTALE", 3, False), ("EIO", 3, False), ("EAGAIN", 3, False),
        ("EACCES", 1, False), ("EMFILE", 1, False),
    ],
)  # fmt: skip
def test_a_shared_file_system_may_fail_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, failures: int, is_read: bool
) -> None:
    """It succeeds a moment later; what stays, and what no time mends, is an error with its
    reason."""
    put(tmp_path, 0, 64)
    path = put(tmp_path, 64, 64)
    opened, slept, open_file = list[str](), list[float](), os.open

    def failing(name: str | Path, *how: int) -> int:
        if str(name) == str(path):
            opened.append(str(name))
            if len(opened) <= failures:
                raise OSError(number := getattr(errno, code), os.strerror(number), str(name))
        return open_file(name, *how)

    monkeypatch.setattr(segments.time, "sleep", slept.append)
    with closing(CommitLog([tmp_path])) as log:
        monkeypatch.setattr(os, "open", failing)
        if is_read:
            assert log.read(64, 64) == b"\1" * 64
        else:
            with pytest.raises(CommitLogError, match=os.strerror(getattr(errno, code))) as raised:
                log.read(72, 64)
            assert raised.value.fields["physical_offset"] == 72
        monkeypatch.setattr(os, "open", open_file)
    assert len(opened) == min(failures + is_read, 3)
    assert len(slept) == len(opened) - 1


def test_a_file_that_moved_is_not_read_where_it_is_copied_in_part(tmp_path: Path) -> None:
    """Its bytes beyond the copy would look like a torn end of the log."""
    places = [tmp_path / name for name in "ab"]
    gone = put(places[0], 0, 64)
    put(places[0], 64, 64)
    put(places[1], 128, 64)
    with closing(CommitLog(places)) as log:
        gone.unlink()
        copy = put(places[1], 0, 63, b"\2")
        with pytest.raises(CommitLogError, match="No such file"):
            log.read(0, 8)
        copy.write_bytes(b"\2" * 64)
        assert log.read(0, 64) == b"\2" * 64


def test_a_blank_reaches_to_its_files_end(tmp_path: Path) -> None:
    """Eight bytes that look like one elsewhere are damage, however long they say to be."""
    plain = PlainLog(1024)
    for _ in range(6):
        plain.append(body=b"x" * 200)
    plain.write(tmp_path)
    starts = [start for start, _ in plain.spans]
    blank = next(end for _, end in plain.spans if end not in starts)
    path = tmp_path / file_name(0)
    with closing(CommitLog([tmp_path])) as log:
        assert log.record_starting_at(blank) == Outcome(Status.BLANK, 1024 - blank)
        sound = path.read_bytes()
        for length in (100, blank - starts[1]):
            head = struct.pack(">iI", length, BLANK_MAGIC)
            path.write_bytes(sound[: starts[1]] + head + sound[starts[1] + 8 :])
            assert log.record_starting_at(starts[1]) == Outcome(Status.BAD_BLANK, length)


def test_nothing_is_stored_where_a_file_has_no_room_for_a_head(tmp_path: Path) -> None:
    """A damaged unit may lead anywhere, and a search by time asks for what is there."""
    plain = PlainLog(1024)
    start, end = plain.append(store_timestamp=7), plain.end
    plain.write(tmp_path)
    with closing(CommitLog([tmp_path])) as log:
        assert log.store_time(start) == 7
        assert {log.store_time(offset) for offset in range(1024 - 76 + 1, 1026)} == {-1}
        assert log.store_time(end) == 0


def test_a_file_system_that_knows_no_holes_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is skipped then; where it says that nothing follows, the file ends."""
    path = tmp_path / file_name(0)
    with path.open("wb") as file:
        file.truncate(1 << 20)
        os.pwrite(file.fileno(), b"x", 700_000)
    reasons, seek = list[int](), os.lseek

    def seeks(fd: int, offset: int, how: int) -> int:
        if how == os.SEEK_DATA:
            raise OSError(reasons[-1], os.strerror(reasons[-1]))
        return seek(fd, offset, how)

    with closing(CommitLog([tmp_path])) as log:
        monkeypatch.setattr(os, "lseek", seeks)
        for code, found in ((errno.EINVAL, 5), (errno.EIO, 5), (errno.ENXIO, 1 << 20)):
            reasons.append(code)
            assert log.next_data(5) == found
