"""One writer per output, against real processes that hold it, are killed or are refused."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
from pathlib import Path

import pytest

from reput.checkpoints.ownership import Ownership, is_owner
from reput.store import fsops
from reput.store.errors import NoSpaceError, OwnershipError, UsageError
from reput.store.files import OWNER_FILE, OWNER_LOCK_FILE
from tests.support.processes import holder, wait_status_of


def own(output: Path) -> None:
    with Ownership(output):
        pass


def plain_broker_lock(output: Path) -> int:
    """RocketMQ's lock, taken without the product."""
    output.mkdir(parents=True, exist_ok=True)
    fd = os.open(output / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
    return fd


def test_a_second_dispatcher_is_refused_with_the_firsts_process(tmp_path: Path) -> None:
    """The error names the output, the process, when it began and what to do."""
    output = tmp_path / "output"
    with holder(lambda: Ownership(output).__enter__()) as pid:
        for _ in range(2):
            with pytest.raises(OwnershipError) as caught:
                own(output)
            for part in (str(output), f"process {pid} on ", "started 20", "`output="):
                assert part in str(caught.value)
    own(output)


def test_an_owner_knows_itself_as_long_as_it_can_read_who_owns(tmp_path: Path) -> None:
    """Neither the loss of the file nor damage to it proves another owner."""
    assert is_owner(tmp_path) is None
    with Ownership(tmp_path):
        path = tmp_path / "reput" / OWNER_FILE
        said = json.loads(path.read_bytes())
        assert is_owner(tmp_path) is True
        path.write_text(json.dumps({**said, "pid": said["pid"] + 1}))
        assert is_owner(tmp_path) is False
        for text in ("", "{", "[]", "{}", "7", '{"pid":1}'):
            path.write_text(text)
            assert is_owner(tmp_path) is None, text


def test_a_second_one_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """Two queries of one Python process must not share an output either."""
    with Ownership(tmp_path), pytest.raises(OwnershipError, match=f"process {os.getpid()}"):
        own(tmp_path)
    own(tmp_path)


def test_a_killed_owner_leaves_the_output_free(tmp_path: Path) -> None:
    """After kill -9 the kernel drops the locks, and the files that remain mean nothing."""
    with holder(lambda: Ownership(tmp_path).__enter__()) as pid:
        os.kill(pid, 9)
    assert (tmp_path / "reput" / OWNER_LOCK_FILE).exists()
    assert json.loads((tmp_path / "reput" / OWNER_FILE).read_text())["pid"] == pid
    with Ownership(tmp_path):
        owner = json.loads((tmp_path / "reput" / OWNER_FILE).read_text())
        assert owner["pid"] == os.getpid()


def test_removed_lock_files_free_nothing(tmp_path: Path) -> None:
    """A process that stands still would go on with its writes once it is woken."""
    with holder(lambda: Ownership(tmp_path).__enter__()) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        (tmp_path / "reput" / OWNER_LOCK_FILE).unlink()
        (tmp_path / "lock").unlink()
        try:
            with pytest.raises(OwnershipError, match=f"process {pid} on "):
                own(tmp_path)
        finally:
            os.kill(pid, signal.SIGCONT)
    own(tmp_path)


def test_an_output_where_directories_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may refuse that: the lock file then decides alone."""
    flock = fcntl.flock

    def of_files(fd: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", of_files)
    with (
        holder(lambda: Ownership(tmp_path).__enter__()) as pid,
        pytest.raises(OwnershipError, match=f"process {pid} on "),
    ):
        own(tmp_path)
    own(tmp_path)


def test_a_store_whose_broker_runs_is_refused(tmp_path: Path) -> None:
    """The refusal leaves nothing locked: another process may own it once the broker stops."""
    with holder(lambda: plain_broker_lock(tmp_path)) as pid:
        with pytest.raises(OwnershipError) as caught:
            own(tmp_path)
        assert f"process {pid}" in str(caught.value)
        assert "broker" in str(caught.value)
    assert wait_status_of(lambda: own(tmp_path)) == 0


def test_a_broker_does_not_start_while_we_own_its_store(tmp_path: Path) -> None:
    """RocketMQ's lock is held inside the block and free after it."""

    def broker_is_refused() -> None:
        with pytest.raises(BlockingIOError):
            plain_broker_lock(tmp_path)

    with Ownership(tmp_path):
        assert wait_status_of(broker_is_refused) == 0
    assert wait_status_of(lambda: os.close(plain_broker_lock(tmp_path))) == 0


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"pid": 1}', "\ud800"])
def test_a_damaged_owner_file_is_an_unknown_process(tmp_path: Path, text: str) -> None:
    """The refusal stands; only the name is missing."""
    with holder(lambda: Ownership(tmp_path).__enter__()):
        path = tmp_path / "reput" / OWNER_FILE
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(OwnershipError, match="unknown process"):
            own(tmp_path)


def test_the_output_is_made(tmp_path: Path) -> None:
    """With its state directory, below directories that exist or not."""
    own(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "reput").is_dir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="file is not a directory"):
        own(tmp_path / "file")


def test_a_full_disk_leaves_nothing_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that fails lets go of both locks: another process gets them at once."""
    own(tmp_path)
    (tmp_path / "lock").unlink()
    for point in ("open:1=ENOSPC", "pwrite:1=ENOSPC", "pwrite:2=ENOSPC", "rename:1=ENOSPC"):
        monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(point))
        with pytest.raises(NoSpaceError):
            own(tmp_path)
        assert wait_status_of(lambda: own(tmp_path)) == 0, point
        (tmp_path / "lock").unlink()
