"""Writes, renames and syncs: what they leave when the system fails them.

Failures come from failpoints, and from the kernel itself where it can be made to fail: /dev/full,
a file size limit, a file in the way.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.errors import NoSpaceError, OutputError, SyncError
from tests.support.operations import killed_before
from tests.support.power_cuts import Disk
from tests.support.processes import is_killed_at, open_files, wait_status_of
from tests.support.recorder import Recorder, read_tree

FULL = Path("/dev/full")


def write_and_sync(root: Path, sync: Callable[[int, Path], None]) -> None:
    path = root / "file"
    fd = fsops.open_for_writing(path)
    fsops.pwrite(fd, b"data", 0, path)
    sync(fd, path)
    os.close(fd)


def store_and_sync(root: Path) -> None:
    path = root / "file"
    fd = fsops.open_for_writing(path)
    mapping = fsops.map_for_writing(fd, 10_000, path)
    # over the border of two pages, of which the first is synced from its beginning
    start, end = mmap.PAGESIZE - 2, mmap.PAGESIZE + 2
    mapping[start:end] = b"abcd"
    fsops.sync_mapping(mapping, start, end, path)
    mapping.close()
    os.close(fd)


DURABLE: dict[str, Callable[[Path], object]] = {
    "sync": lambda root: write_and_sync(root, fsops.sync),
    "sync_mapping": store_and_sync,
    "sync_file_system": lambda root: write_and_sync(root, fsops.sync_file_system),
    "make_directories": lambda root: fsops.make_directories(root / "a" / "new" / "er", root),
    "rename": lambda root: fsops.rename(root / "file", root / "b" / "renamed"),
    "exchange": lambda root: fsops.exchange(root / "a" / "one", root / "b" / "other"),
    "remove_directory": lambda root: fsops.remove_directory(root / "a" / "empty"),
    "replace_file": lambda root: fsops.replace_file(root / "a" / "one", b"new"),
}
"""Operations that promise it, below a directory with a few files."""


def fail_at(monkeypatch: pytest.MonkeyPatch, points: str) -> None:
    monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(points))


def test_a_write_puts_all_bytes_at_its_offset(tmp_path: Path) -> None:
    """Bytes and views of any item size; what is around stays."""
    path = tmp_path / "file"
    fd = fsops.open_for_writing(path, 100)
    fsops.pwrite(fd, b"abc", 10, path)
    fsops.pwrite(fd, memoryview(bytes(range(16))).cast("Q"), 50, path)
    fsops.pwrite(fd, b"", 99, path)
    os.close(fd)
    assert path.read_bytes() == (bytes(10) + b"abc" + bytes(37) + bytes(range(16))).ljust(
        100, b"\0"
    )


@pytest.mark.parametrize("data", [b"", b"a", b"ab", bytes(range(100))])
def test_a_short_write_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """The kernel may write a part; the rest follows."""
    fail_at(monkeypatch, "pwrite:1=short")
    path = tmp_path / "file"
    fd = fsops.open_for_writing(path, 200)
    fsops.pwrite(fd, data, 7, path)
    os.close(fd)
    assert path.read_bytes()[7:] == data.ljust(193, b"\0")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
def test_a_full_device_is_no_space() -> None:
    """The kernel's own ENOSPC: told apart, with the path and what to do."""
    fd = os.open(FULL, os.O_WRONLY)
    with pytest.raises(NoSpaceError, match=r"cannot write /dev/full: No space.*free some space"):
        fsops.pwrite(fd, b"data", 0, FULL)
    os.close(fd)


def test_a_file_size_limit_is_no_space(tmp_path: Path) -> None:
    """A real short write (up to the limit), then EFBIG."""
    path = tmp_path / "file"

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        fd = fsops.open_for_writing(path)
        with pytest.raises(NoSpaceError, match="file"):
            fsops.pwrite(fd, b"x" * 1500, 0, path)

    assert wait_status_of(child) == 0
    assert path.read_bytes() == b"x" * 1000


def test_space_that_cannot_be_had_is_no_space(tmp_path: Path) -> None:
    """The kernel's own refusal, before anything is mapped; what was there stays."""
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        fd = fsops.open_for_writing(path)
        fsops.allocate(fd, 0, 8192, path)
        with pytest.raises(NoSpaceError, match=r"cannot reserve space for .*file"):
            fsops.allocate(fd, 0, 8193, path)

    assert wait_status_of(child) == 0
    assert path.read_bytes() == b"old".ljust(8192, b"\0")


def test_space_is_looked_for_by_taking_some(tmp_path: Path) -> None:
    """It is given back; only a full disk counts as one, as the kernel tells it."""
    assert fsops.has_space(tmp_path)
    assert not list(tmp_path.iterdir())

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        assert not fsops.has_space(tmp_path)

    assert wait_status_of(child) == 0
    assert not list(tmp_path.iterdir())
    assert fsops.has_space(tmp_path / "missing"), "that is for the one who writes there"


def test_a_mapping_is_the_file(tmp_path: Path) -> None:
    """Stores are seen by readers at once, and any range can be synced."""
    path = tmp_path / "file"
    fd = fsops.open_for_writing(path)
    fsops.allocate(fd, 0, 10_000, path)
    mapping = fsops.map_for_writing(fd, 10_000, path)
    mapping[5000:5003] = b"abc"
    assert path.read_bytes() == b"abc".rjust(5003, b"\0").ljust(10_000, b"\0")
    for start, end in ((0, 10_000), (5000, 5003), (9999, 10_000)):
        fsops.sync_mapping(mapping, start, end, path)
    mapping.close()
    os.close(fd)


@pytest.mark.parametrize("operation", DURABLE)
def test_what_has_returned_survives_a_power_cut(tmp_path: Path, operation: str) -> None:
    """A disk keeps what was synced, data and names alike, and nothing else for sure."""
    for name in ("a/empty", "b"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("file", "a/one", "b/other"):
        (tmp_path / name).write_bytes(name.encode().ljust(10_000, b"\0"))
    before = read_tree(tmp_path)
    with Recorder(tmp_path) as recorder:
        DURABLE[operation](tmp_path)
    recorder.check()
    assert open_files(tmp_path) == 0
    after = read_tree(tmp_path)
    assert after != before
    assert Disk.after(recorder).durable() == after


def test_directories_of_a_failed_try_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try finds the first one's directory, and does not know that its name is new."""
    path = tmp_path / "a" / "b"
    with Recorder(tmp_path) as recorder:
        fail_at(monkeypatch, "mkdir:3=ENOSPC")
        with pytest.raises(NoSpaceError):
            fsops.create_directories(path, tmp_path)
        fail_at(monkeypatch, "")
        for parent in fsops.create_directories(path, tmp_path):
            fsops.sync_directory(parent)
    assert Disk.after(recorder).durable() == read_tree(tmp_path) == {"a": None, "a/b": None}


@pytest.mark.parametrize("operation", ["make_directories", "replace_file"])
def test_a_second_process_makes_durable_what_a_killed_one_has_left(
    tmp_path: Path, operation: str
) -> None:
    """It finds directories and files that only the kernel knows, and says that they are durable."""
    for number in count(1):
        root = tmp_path / str(number)
        (root / "a").mkdir(parents=True)
        with Recorder(root) as recorder:
            left = []
            with killed_before(number):
                DURABLE[operation](root)
                left.append("nothing")
            DURABLE[operation](root)
        assert Disk.after(recorder).durable() == read_tree(root)
        if left:
            break
    assert number > 4


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_operations_that_find_no_space_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Every kind of operation: NoSpaceError with the path, and success at the next try."""

    def write() -> None:
        fsops.make_directories(tmp_path / "a" / "b", tmp_path)
        fsops.replace_file(tmp_path / "a" / "b" / "c", b"data")
        os.close(fsops.open_for_writing(tmp_path / "a" / "d", 10))

    # the second one gives a new file its length
    for point in ("mkdir:1", "open:1", "pwrite:1", "rename:1", "truncate:1", "truncate:2"):
        fail_at(monkeypatch, f"{point}={name}")
        with pytest.raises(NoSpaceError, match=str(tmp_path)):
            write()
        write()
        assert (tmp_path / "a" / "b" / "c").read_bytes() == b"data"
        assert (tmp_path / "a" / "d").read_bytes() == bytes(10)
        for path in ("a/b/c", "a/d"):
            (tmp_path / path).unlink()
        (tmp_path / "a" / "b").rmdir()


def test_other_failures_are_output_errors_and_a_failed_sync_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EIO is no matter of space; after a failed fsync only a restart knows the truth."""
    for operation in ("mkdir", "open", "pwrite", "rename", "sync"):
        fail_at(monkeypatch, f"{operation}:1=EIO")
        with pytest.raises(OutputError, match="Input/output error") as caught:
            fsops.make_directories(tmp_path / operation, tmp_path)
            fsops.replace_file(tmp_path / operation / "file", b"data")
        assert isinstance(caught.value, SyncError) is (operation == "sync")
        assert not isinstance(caught.value, NoSpaceError)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.EIO


def test_a_directory_that_cannot_be_opened_is_not_synced(tmp_path: Path) -> None:
    """Its names may be lost, as after a failed fsync."""
    with pytest.raises(SyncError, match=r"cannot sync .*gone: No such file"):
        fsops.sync_directory(tmp_path / "gone")


def test_a_new_file_gets_its_length_and_a_longer_one_keeps_it(tmp_path: Path) -> None:
    """Opening never cuts; a shorter file (a crash after its creation) is made whole."""
    path = tmp_path / "file"
    for before, expected in ((None, 100), (0, 100), (50, 100), (150, 150)):
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_bytes(b"x" * before)
        os.close(fsops.open_for_writing(path, 100))
        assert path.read_bytes() == (b"x" * (before or 0)).ljust(expected, b"\0")


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """Whoever can put a link into the output must not make us write elsewhere."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(OutputError, match="link"):
        fsops.open_for_writing(tmp_path / "link", 100)
    (tmp_path / "new.tmp").symlink_to(victim)
    with pytest.raises(OutputError):
        fsops.replace_file(tmp_path / "new", b"data")
    assert victim.read_bytes() == b"precious"


def test_directories_are_made_below_their_root(tmp_path: Path) -> None:
    """Missing ones in between too, the root included; those that exist are fine."""
    root = tmp_path / "not" / "yet"
    for _ in range(2):
        fsops.make_directories(root / "a" / "b", root)
        assert (root / "a" / "b").is_dir()
    (root / "file").write_bytes(b"")
    for path in (root / "file", root / "file" / "x"):
        with pytest.raises(OutputError, match="file"):
            fsops.make_directories(path, root)
    with pytest.raises(OutputError, match="too long"):
        fsops.make_directories(root / ("x" * 300), root)


def test_an_unlinked_file_may_be_gone_already(tmp_path: Path) -> None:
    """A second try after a kill; a directory in its place is an error."""
    path = tmp_path / "file"
    path.write_bytes(b"")
    fsops.unlink(path)
    fsops.unlink(path)
    assert not path.exists()
    path.mkdir()
    with pytest.raises(OutputError, match="file"):
        fsops.unlink(path)


@pytest.mark.parametrize("failpoints", ["", "pwrite:1=short,"])
def test_a_replaced_file_is_the_old_or_the_new_one(tmp_path: Path, failpoints: str) -> None:
    """kill -9 before every operation: a reader never sees half, and the next try succeeds."""
    path = tmp_path / "file"
    seen = set()
    for ordinal in count(1):
        path.write_bytes(b"old")
        killed = is_killed_at(ordinal, partial(fsops.replace_file, path, b"newer"), failpoints)
        seen.add(path.read_bytes())
        fsops.replace_file(path, b"newest")
        assert path.read_bytes() == b"newest"
        if not killed:
            break
    assert seen == {b"old", b"newer"}
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_failpoints_come_from_the_environment(tmp_path: Path) -> None:
    """A whole process is killed at the operation that ``REPUT_FAILPOINTS`` names."""
    code = (
        "import sys; from pathlib import Path; from reput.store import fsops;"
        "[fsops.replace_file(Path(sys.argv[1]), bytes([n])) for n in (65, 66, 67)]"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "file")],
        env={**os.environ, fsops.FAILPOINTS_VARIABLE: "rename:3=kill"},
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert finished.returncode == -9
    assert (tmp_path / "file").read_bytes() == b"B"
