"""Locks between processes; whatever they open is closed, where they are refused as well."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from reput.store.errors import OutputError
from reput.store.filelocks import lock, lock_directory, read_held
from tests.support.processes import holder, open_files


def test_what_another_process_has_is_refused(tmp_path: Path) -> None:
    """Nobody has it once that process has ended."""
    path = tmp_path / "lock"
    with holder(lambda: (lock(path), lock_directory(tmp_path))):
        assert lock(path) is lock(path, shared=True) is lock_directory(tmp_path) is None
    for take in (lambda: lock(path), lambda: lock_directory(tmp_path)):
        with take() or pytest.fail("not taken"):
            assert open_files(tmp_path) == 1


def test_a_held_file_is_read_and_a_left_one_removed(tmp_path: Path) -> None:
    """Its holder alone keeps it."""
    path = tmp_path / "member"
    assert read_held(path) is None
    path.write_bytes(b"one")
    with holder(lambda: lock(path)):
        assert read_held(path) == b"one"
        assert open_files(tmp_path) == 0
    assert read_held(path) is None
    assert open_files(tmp_path) == 0
    assert not path.exists()


def test_a_link_is_no_held_file(tmp_path: Path) -> None:
    """Whoever may write to the directory cannot show a file of another one."""
    (tmp_path / "secret").write_bytes(b"secret")
    path = tmp_path / "member"
    path.symlink_to(tmp_path / "secret")
    with holder(lambda: lock(tmp_path / "secret")), pytest.raises(OSError, match="symbolic links"):
        read_held(path)
    assert path.is_symlink()
    assert open_files(tmp_path) == 0


def test_who_is_patient_gets_a_lock_that_is_released_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second descriptor is refused by flock within one process as well."""
    path, slept = tmp_path / "lock", list[float]()
    held = lock(path) or pytest.fail("not taken")

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            held.release()

    monkeypatch.setattr("reput.store.filelocks.time.sleep", sleep)
    assert lock(path) is None
    assert slept == []
    with lock(path, patience=3600.0) or pytest.fail("not taken"):
        assert len(slept) == 3
        assert open_files(tmp_path) == 1


def test_a_child_lets_go_of_what_it_inherits_once(tmp_path: Path) -> None:
    """A file that it opens then may get the same number, and is not closed by a release that comes
    too late; the parent's lock stays."""
    path = tmp_path / "lock"
    held = lock(path) or pytest.fail("not taken")
    child = os.fork()
    if not child:
        code = 1
        try:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(held.fd)
            os.dup2(os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT), held.fd)
            held.release()
            held.release()
            code = 0 if os.write(held.fd, b"x") == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock(path) is None
    held.release()
    held.release()
    with lock(path) or pytest.fail("not taken"):
        pass


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of a file is an error; that of a directory, which is one more, holds nothing."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OutputError, match=f"lock {tmp_path}/lock: No locks available"):
        lock(tmp_path / "lock")
    with lock_directory(tmp_path) or pytest.fail("not taken"):
        assert open_files(tmp_path) == 1
