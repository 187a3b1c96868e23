"""The commitlog directory: which files are the log, and what a read of it gives.

Held against formats.md §1 (names, equal sizes, the pre-allocated and the empty last file) and the
file system itself. Not compared: what the bytes mean.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from reput.store.errors import CommitLogError, NotReadyError
from reput.store.files import is_mapped_file_name, offset_to_file_name
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from tests.support.processes import open_files
from tests.support.wire import PlainLog, file_name


def make_file(directory: Path, start: int, size: int, content: bytes | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / file_name(start)
    path.write_bytes((content if content is not None else b"\x7f" * size).ljust(size, b"\0"))
    return path


def starts(log: CommitLog) -> list[int]:
    return [segment.start for segment in log.segments.listed]


@pytest.mark.parametrize("size", [1, 100, 4096, 262_144])
@pytest.mark.parametrize("first", [0, 1, 7])
def test_a_log_is_its_files_in_order(tmp_path: Path, size: int, first: int, seed: int) -> None:
    """Any file size, any first file: every byte is found by its log offset."""
    rng = random.Random(seed)
    content = {(first + index) * size: rng.randbytes(size) for index in range(3)}
    for start, data in content.items():
        make_file(tmp_path, start, size, data)
    log = CommitLog([tmp_path])
    assert (log.file_size, log.min_offset, starts(log)) == (size, first * size, sorted(content))
    whole = b"".join(content[start] for start in sorted(content))
    for _ in range(20):
        at, count = rng.randrange(len(whole)), rng.randrange(1, size + 10)
        end = min(at + count, at - at % size + size)  # a read stays within one file
        assert log.read(first * size + at, count) == whole[at:end]
    assert log.read(first * size + len(whole), 10) == b""
    assert log.read(first * size - 1, 10) == b""
    log.close()
    assert log.read(first * size, 1) == whole[:1]
    log.close()


def test_a_golden_log_is_read_as_it_stands(golden: Callable[[str], Path]) -> None:
    """RocketMQ's file names and sizes; all bytes of all files."""
    directory = golden("plain") / "commitlog"
    log = CommitLog([directory])
    assert log.segments.foreign == []
    assert [segment.path.name for segment in log.segments.listed] == sorted(
        path.name for path in directory.iterdir()
    )
    for segment in log.segments.listed:
        assert log.read(segment.start, log.file_size) == segment.path.read_bytes()
    log.close()


def test_a_record_is_read_by_its_place_and_size(tmp_path: Path) -> None:
    """As a unit states both: one with another size points to no record."""
    plain = PlainLog(4096)
    for number in range(5):
        plain.append(body=b"x" * number, queue_offset=number)
    log = CommitLog([plain.write(tmp_path / "commitlog")])
    for number, (start, end) in enumerate(plain.spans):
        found = log.record_at(start, end - start)
        assert isinstance(found, Record)
        assert (found.queue_offset, found.body) == (number, b"x" * number)
        for size in (0, 1, 90, end - start - 1, end - start + 1, 2000, 1 << 30):
            assert not isinstance(log.record_at(start, size), Record), size
        assert not isinstance(log.record_at(start + 1, end - start), Record)
    log.close()


def test_what_is_no_20_digit_regular_file_is_foreign(tmp_path: Path) -> None:
    """Other names, directories, links and pipes are listed as foreign and otherwise ignored."""
    size = 64
    real = make_file(tmp_path, size, size)
    (tmp_path / file_name(2 * size)).mkdir()
    (tmp_path / file_name(3 * size)).symlink_to(real)
    os.mkfifo(tmp_path / file_name(4 * size))
    arabic = "٠" * 19 + "٥"
    odd = [
        "1" * 19, "0" * 21, "0" * 19 + "x", "-" + "0" * 19, "+" + "0" * 19, arabic,
        file_name(0) + ".tmp", ".DS_Store", "0x" + "0" * 18, " " + "0" * 19, "0" * 20 + "\n",
    ]  # fmt: skip
    for name in odd:
        (tmp_path / name).write_bytes(b"foreign")
    log = CommitLog([tmp_path])
    assert starts(log) == [size]
    expected = {*odd, *(file_name(index * size) for index in (2, 3, 4))}
    assert {path.name for path in log.segments.foreign} == expected
    assert log.read(2 * size, 1) == b""
    log.close()


@pytest.mark.parametrize("start", [10**20 - 1, 1 << 63, (1 << 63) - 1, (1 << 63) - 64])
def test_a_file_that_ends_beyond_a_long_is_not_of_the_log(tmp_path: Path, start: int) -> None:
    """20 digits can say more than 2^63 - 1; Java cannot, and no end of a record can."""
    make_file(tmp_path, 0, 64)
    name = str(start).zfill(20)
    (tmp_path / name).write_bytes(b"\x7f" * 64)
    try:
        log = CommitLog([tmp_path])
    except CommitLogError as error:
        assert name in str(error)
    else:
        assert [path.name for path in log.segments.foreign] == [name]
        assert starts(log) == [0]


@pytest.mark.parametrize("offset", [0, 1, 1073741824, (1 << 63) - 1])
def test_file_names_are_20_digits(offset: int) -> None:
    """``UtilAll.offset2FileName``."""
    name = offset_to_file_name(offset)
    assert (len(name), int(name)) == (20, offset)
    assert is_mapped_file_name(name)


def test_a_file_of_another_size_is_named_in_the_error(tmp_path: Path) -> None:
    """Against the first file, and against the configured size."""
    make_file(tmp_path, 0, 100)
    wrong = make_file(tmp_path, 100, 90)
    with pytest.raises(CommitLogError) as caught:
        CommitLog([tmp_path])
    message = str(caught.value)
    assert str(wrong) in message
    assert "90 bytes" in message
    assert f"{file_name(0)} has 100" in message
    wrong.unlink()
    with pytest.raises(CommitLogError) as caught:
        CommitLog([tmp_path], 64)
    message = str(caught.value)
    assert str(tmp_path / file_name(0)) in message
    assert "100 bytes but mappedFileSizeCommitLog is 64" in message
    assert CommitLog([tmp_path], 100).file_size == 100


def test_a_file_that_is_grown_or_cut_while_we_read_is_named(tmp_path: Path) -> None:
    """The size of the first listing stays the log's size."""
    make_file(tmp_path, 0, 100)
    log = CommitLog([tmp_path])
    odd = make_file(tmp_path, 100, 200)
    with pytest.raises(CommitLogError, match=odd.name):
        log.refresh()
    log.close()


def test_a_gap_between_files_belongs_to_none(tmp_path: Path) -> None:
    """Offsets that no file covers: nothing is read, the next file is known."""
    for start in (100, 200, 500):
        make_file(tmp_path, start, 100)
    log = CommitLog([tmp_path])
    covered = {}
    for offset in range(0, 700):
        segment = log.segments.at(offset)
        covered[offset] = segment.start if segment else None
    assert covered == {
        offset: offset // 100 * 100 if offset // 100 in (1, 2, 5) else None
        for offset in range(0, 700)
    }
    following = {offset: log.segments.after(offset) for offset in (0, 100, 101, 201, 500, 501)}
    assert {offset: segment and segment.start for offset, segment in following.items()} == {
        0: 100, 100: 100, 101: 200, 201: 500, 500: 500, 501: None,
    }  # fmt: skip
    gaps = {
        offset: log.segments.gap_at(offset) for offset in (99, 199, 200, 299, 300, 499, 500, 600)
    }
    assert gaps == {**dict.fromkeys(gaps), 300: (300, 500), 499: (300, 500)}
    assert log.read(300, 10) == b""
    log.close()


def test_files_that_overlap_are_refused(tmp_path: Path) -> None:
    """Two logs in one directory: both files are named."""
    for start in (0, 100, 150):
        make_file(tmp_path, start, 100)
    with pytest.raises(CommitLogError) as caught:
        CommitLog([tmp_path])
    assert file_name(100) in str(caught.value)
    assert file_name(150) in str(caught.value)


def test_the_broker_appends_to_the_last_file_with_a_start(tmp_path: Path) -> None:
    """The pre-allocated all-zero file is part of the log, but not the one appended to."""
    log = CommitLog([tmp_path])
    assert log.active_segment() is None
    make_file(tmp_path, 0, 64, b"")
    log = CommitLog([tmp_path])
    active = log.active_segment()
    assert active is not None
    assert active.start == 0
    for start, content in ((0, b"\x01"), (64, b"\0\0\0\0\0\0\0\x01"), (128, b"")):
        make_file(tmp_path, start, 64, content)
    log = CommitLog([tmp_path])
    active = log.active_segment()
    assert active is not None
    assert (active.start, starts(log)) == (64, [0, 64, 128])
    log.close()


def test_an_empty_last_file_is_not_there_yet(tmp_path: Path) -> None:
    """RocketMQ deletes it at load; being created, it is found when it has its size."""
    make_file(tmp_path, 0, 64)
    empty = tmp_path / file_name(64)
    empty.touch()
    log = CommitLog([tmp_path])
    assert starts(log) == [0]
    modified = tmp_path.stat().st_mtime_ns
    os.truncate(empty, 64)
    assert tmp_path.stat().st_mtime_ns == modified  # growing a file does not touch its directory
    log.refresh()
    assert starts(log) == [0, 64]
    log.close()


def test_an_empty_file_in_the_middle_is_refused(tmp_path: Path) -> None:
    """Only the last one may be empty (``MappedFileQueue.doLoad``)."""
    make_file(tmp_path, 0, 64)
    (tmp_path / file_name(64)).touch()
    make_file(tmp_path, 128, 64)
    with pytest.raises(CommitLogError, match=file_name(64)):
        CommitLog([tmp_path])


def test_an_empty_directory_is_a_log_that_begins_later(tmp_path: Path) -> None:
    """No file yet is no error; the first file sets the size and the start."""
    log = CommitLog([tmp_path])
    assert (starts(log), log.min_offset, log.segments.at(0)) == ([], 0, None)
    assert log.read(0, 10) == b""
    make_file(tmp_path, 300, 100)
    log.refresh()
    assert (starts(log), log.min_offset, log.file_size) == ([300], 300, 100)
    log.close()


def test_a_missing_directory_may_come(tmp_path: Path) -> None:
    """The path is named, and what to give instead."""
    with pytest.raises(NotReadyError, match=r"no commitlog .*nowhere"):
        CommitLog([tmp_path / "nowhere"])
    make_file(tmp_path / "here", 0, 64)
    with pytest.raises(NotReadyError, match=r"no commitlog .*nowhere"):
        CommitLog([tmp_path / "here", tmp_path / "nowhere"])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CommitLogError, match="file"):
        CommitLog([tmp_path / "file"])


def test_several_directories_are_one_log(tmp_path: Path) -> None:
    """Files of ``storePathCommitLog=a,b`` interleave by offset; a change in either is seen."""
    a, b = tmp_path / "a", tmp_path / "b"
    for directory, index in ((a, 0), (b, 1), (a, 2)):
        make_file(directory, index * 64, 64, bytes([index + 1]) * 64)
    log = CommitLog([b, a])
    assert starts(log) == [0, 64, 128]
    assert [log.read(start, 1) for start in starts(log)] == [b"\1", b"\2", b"\3"]
    make_file(b, 192, 64)
    log.refresh()
    assert starts(log) == [0, 64, 128, 192]
    log.close()


def test_of_two_copies_the_whole_one_is_read(tmp_path: Path) -> None:
    """A copy in the making, or one given up, is shorter, whichever directory comes first."""
    content = bytes(range(64))
    for order in (("a", "b"), ("b", "a")):
        root = tmp_path / order[0]
        whole = make_file(root / "a", 0, 64, content)
        (root / "b").mkdir()
        copy = root / "b" / whole.name
        log = CommitLog([root / name for name in order])
        for count in (0, 1, 63):
            copy.write_bytes(content[:count])
            log.refresh()
            assert (starts(log), log.read(0, 64), log.segments.foreign) == ([0], content, [copy])
            fresh = CommitLog([root / name for name in order])
            assert (starts(fresh), fresh.read(0, 64), fresh.segments.foreign) == (
                [0],
                content,
                [copy],
            )
            fresh.close()
        log.close()


def test_of_two_whole_copies_either_is_read_if_they_are_equal(tmp_path: Path) -> None:
    """As at the end of a copy; else which of them would be the log is not ours to guess."""
    content = bytes(range(64))
    for name in ("a", "b"):
        make_file(tmp_path / name, 0, 64, content)
    make_file(tmp_path / "a", 64, 64)
    both = [tmp_path / "a", tmp_path / "b"]
    log = CommitLog(both)
    assert (starts(log), log.read(0, 64)) == ([0, 64], content)
    log.close()
    make_file(tmp_path / "b", 0, 64, content[:63])
    log = CommitLog(both)
    with pytest.raises(
        CommitLogError, match=r"a/0{20} and .*b/0{20} have the same name and length"
    ):
        log.read(0, 1)
    assert log.read(64, 1) == b"\x7f"
    log.close()
    make_file(tmp_path / "b", 32, 64)
    with pytest.raises(CommitLogError, match="overlap"):
        CommitLog(both)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_file_that_moved_is_read_where_it_is(tmp_path: Path, order: tuple[str, str]) -> None:
    """Between two refreshes and before any: with its new bytes, for the last file goes on being
    written where it came to. The descriptor of the old one is closed."""
    old = make_file(tmp_path / "a", 0, 64, b"old")
    (tmp_path / "b").mkdir()
    new = tmp_path / "b" / old.name
    directories = [tmp_path / name for name in order]
    log, unread = CommitLog(directories), CommitLog(directories)
    before = open_files(tmp_path)
    assert log.read(0, 3) == b"old"
    new.write_bytes(old.read_bytes())
    old.unlink()
    assert unread.read(0, 3) == b"old"
    with new.open("r+b") as out:
        out.write(b"new")
    log.refresh()
    assert (starts(log), log.read(0, 3)) == ([0], b"new")
    unread.close()
    assert open_files(tmp_path) == before + 1
    log.close()


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_no_listing_misses_a_file_that_moves(tmp_path: Path, order: tuple[str, str]) -> None:
    """A thread moves files to and fro, as fast as it may; every look finds all of them, once."""
    content = {start: bytes([start]) * 64 for start in (0, 64, 128)}
    (tmp_path / "b").mkdir()
    for start, data in content.items():
        make_file(tmp_path / "a", start, 64, data)
    looked, ended = threading.Event(), threading.Event()

    def move() -> None:
        for turn in itertools.count():
            looked.wait()
            looked.clear()
            if ended.is_set():
                return
            name = file_name(64 * (turn % 3))
            here, there = sorted(("a", "b"), key=lambda at: not (tmp_path / at / name).exists())
            (tmp_path / here / name).rename(tmp_path / there / name)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for _ in range(1000):
            looked.set()
            log = CommitLog([tmp_path / name for name in order])
            assert starts(log) == list(content)
            assert [log.read(start, 64) for start in content] == list(content.values())
            log.close()
    finally:
        ended.set()
        looked.set()
        mover.join()


def test_files_come_and_go(tmp_path: Path) -> None:
    """A refresh finds new files and lets go of removed ones, whose descriptors are closed."""
    for start in (0, 64):
        make_file(tmp_path, start, 64, bytes([start + 1]) * 64)
    log = CommitLog([tmp_path])
    assert log.read(0, 1) == b"\x01"
    before = open_files(tmp_path)
    (tmp_path / file_name(0)).unlink()
    make_file(tmp_path, 128, 64)
    log.refresh()
    assert (starts(log), log.min_offset) == ([64, 128], 64)
    assert open_files(tmp_path) == before - 1
    assert log.read(0, 1) == b""
    log.close()


def test_a_file_that_was_removed_and_made_again_is_read_anew(tmp_path: Path) -> None:
    """A broker that cuts its log does so with the files beyond the cut."""
    make_file(tmp_path, 0, 64, b"a")
    path = make_file(tmp_path, 64, 64, b"old")
    log = CommitLog([tmp_path])
    assert log.read(64, 3) == b"old"
    path.unlink()
    make_file(tmp_path, 64, 64, b"new")
    log.refresh()
    assert log.read(64, 3) == b"new"
    log.close()


def test_a_file_stays_open_for_who_holds_it(tmp_path: Path) -> None:
    """Whether a refresh lets go of it or the log is closed; then it is closed."""
    before = open_files(tmp_path)
    paths = [make_file(tmp_path, start, 100, b"%d" % start) for start in (0, 100)]
    log = CommitLog([tmp_path])
    held = log.segments.open(log.segments.listed[0])
    assert log.segments.open(log.segments.listed[0]) is held
    assert log.read(100, 3) == b"100"
    paths[0].unlink()
    log.refresh()
    assert starts(log) == [100]
    log.close()
    assert os.pread(held.fd, 1, 0) == b"0"
    assert open_files(tmp_path) == before + 1
    del held
    assert open_files(tmp_path) == before


def test_a_file_made_within_the_directorys_clock_tick_is_found(tmp_path: Path) -> None:
    """Before Linux 6.13 a directory's time has a few ms: two files may come with the same one."""
    make_file(tmp_path, 0, 64)
    modified = tmp_path.stat().st_mtime_ns
    log = CommitLog([tmp_path])
    make_file(tmp_path, 64, 64)
    os.utime(tmp_path, ns=(modified, modified))
    log.refresh()
    assert starts(log) == [0, 64]
    log.close()


def test_a_file_cut_under_us_gives_fewer_bytes(tmp_path: Path) -> None:
    """A mapping would end the process with SIGBUS here; one grown gives no byte of the next."""
    path = make_file(tmp_path, 0, 8192)
    log = CommitLog([tmp_path])
    assert len(log.read(0, 8192)) == 8192
    os.truncate(path, 9000)
    assert len(log.read(0, 9000)) == 8192
    os.truncate(path, 5000)
    assert len(log.read(0, 8192)) == 5000
    assert log.read(6000, 10) == b""
    log.close()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """Gone between listing and reading, or turned into a link."""
    path = make_file(tmp_path, 0, 64)
    log = CommitLog([tmp_path])
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(CommitLogError, match=f"cannot read commitlog file .*{path.name}"):
        log.read(0, 8)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CommitLogError, match=f"cannot read commitlog file .*{path.name}"):
        log.read(0, 8)


def test_holes_of_sparse_files_are_known(tmp_path: Path) -> None:
    """next_data never passes a byte that is not zero, and ends with the file."""
    size = 1 << 20
    path = tmp_path / file_name(0)
    with path.open("wb") as file:
        file.truncate(size)
        os.pwrite(file.fileno(), b"x", 300_000)
        os.pwrite(file.fileno(), b"y", 700_000)
    log = CommitLog([tmp_path])
    for offset in (0, 1, 299_999, 300_000):
        assert offset <= log.next_data(offset) <= 300_000
    assert log.next_data(0) > 200_000  # the hole was skipped
    assert 400_000 < log.next_data(400_000) <= 700_000
    assert log.next_data(900_000) == size
    assert log.next_data(size + 5) == size + 5
    log.close()


def test_a_file_system_that_answers_in_parts_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of the network give fewer bytes than are asked for, long before the file's end."""
    data = bytes(range(256)) * 4
    (tmp_path / file_name(0)).write_bytes(data)
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 100), at))
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: preadv(fd, [parts[0][:100]], at))
    with closing(CommitLog([tmp_path])) as log:
        buffer = bytearray(900)
        assert log.read(50, 900) == data[50:950]
        assert log.read_into(50, memoryview(buffer)) == 900
        assert buffer == data[50:950]
        assert log.read(1_000, 900) == data[1_000:]
