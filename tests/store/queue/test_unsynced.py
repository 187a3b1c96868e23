"""Files that wait for one sync: durable after it, however many they are, and closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.errors import NoSpaceError, SyncError
from reput.store.queue import unsynced
from reput.store.queue.unsynced import UnsyncedFiles
from tests.support.operations import before_operations
from tests.support.power_cuts import Disk
from tests.support.processes import open_files, open_paths
from tests.support.recorder import Recorder, read_tree


@pytest.fixture(autouse=True)
def four_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsynced, "MAX_OPEN_FILES", 4)


def write(files: UnsyncedFiles, root: Path, *names: str) -> None:
    """Make directories of one file each."""
    for name in names:
        directory = root / name
        files.add_names(fsops.create_directories(directory, root))
        files.add_names([directory])
        files.write(str(directory / "file"), 50, name.encode(), 10)


@pytest.mark.parametrize("names", ["a", "abc", "abcd", "abcdefg"])
def test_all_is_durable_after_the_sync(tmp_path: Path, names: str) -> None:
    """Bytes, lengths and names, of few files and of many; again for those that come after it."""
    with Recorder(tmp_path) as recorder:
        files = UnsyncedFiles()
        for each in (names, names.upper(), "x", "y" + names):
            write(files, tmp_path, *each)
            files.sync()
            assert open_files(tmp_path) == 0
    recorder.check()
    assert Disk.after(recorder).durable() == read_tree(tmp_path)


def test_few_files_are_synced_alone_and_many_with_their_file_system(tmp_path: Path) -> None:
    """Below the limit of open files, and from it on; few again after many."""
    synced: list[str] = []

    def tell(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith("file"):
            synced.append(Path(path).parent.name)

    files = UnsyncedFiles()
    with before_operations(tell):
        for names, expected in (("abc", "abc"), ("defg", "d"), ("hij", "hij"), ("klmnop", "k")):
            write(files, tmp_path, *names)
            files.sync()
            assert "".join(sorted(synced)) == expected
            synced.clear()


def test_of_many_files_the_first_stays_open(tmp_path: Path) -> None:
    """The sync of a file system tells what failed since that file was opened."""
    files = UnsyncedFiles()
    write(files, tmp_path, *"abcdef")
    assert open_paths(tmp_path) == [tmp_path / "a" / "file"]
    write(files, tmp_path, *"ab")
    assert open_paths(tmp_path) == [tmp_path / "a" / "file"]
    files.close()
    assert open_files(tmp_path) == 0


@pytest.mark.parametrize("point", ["open:1=ENOSPC", "truncate:1=ENOSPC", "pwrite:1=ENOSPC"])
@pytest.mark.parametrize("names", ["a", "abc", "abcdef"])
def test_what_was_written_before_a_full_disk_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, point: str
) -> None:
    """Without another try of the write that failed."""
    with Recorder(tmp_path) as recorder:
        files = UnsyncedFiles()
        write(files, tmp_path, *names)
        monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(point))
        with pytest.raises(NoSpaceError):
            files.write(str(tmp_path / names[0] / "other"), 50, b"data", 0)
        files.sync()
    disk, tree = Disk.after(recorder).durable(), read_tree(tmp_path)
    for name in names:
        assert disk[f"{name}/file"] == tree[f"{name}/file"]
    assert open_files(tmp_path) == 0


@pytest.mark.parametrize("names", ["abc", "abcdef"])
def test_a_sync_that_failed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    """Any of the files may be the one."""
    files = UnsyncedFiles()
    write(files, tmp_path, *names)
    monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints("sync:1=EIO"))
    with pytest.raises(SyncError, match="cannot sync"):
        files.sync()
    files.close()
    assert open_files(tmp_path) == 0
