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
    assert read_held(path) is None
    assert not path.exists()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of a file is an error; that of a directory, which is one more, holds nothing."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OutputError, match=f"lock {tmp_path}/lock: No locks available"):
        lock(tmp_path / "lock")
    with lock_directory(tmp_path) or pytest.fail("not taken"):
        assert open_files(tmp_path) == 1
