"""RocketMQ's store lock, against processes that hold it: ours, and a JVM's ``FileChannel``."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.brokerlock import BrokerLock, broker_pid
from reput.store.errors import NoSpaceError, OutputError, OwnershipError
from tests.support.jdk import java_command
from tests.support.processes import holder, open_files, wait_status_of

# what DefaultMessageStore.start does (formats.md §1)
BROKER = """
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;

public class Broker {
    public static void main(String[] args) throws Exception {
        RandomAccessFile file = new RandomAccessFile(args[0], "rw");
        FileLock lock = file.getChannel().tryLock(0, 1, false);
        if (lock != null) {
            file.getChannel().write(ByteBuffer.wrap("lock".getBytes(StandardCharsets.UTF_8)));
        }
        System.out.println((lock == null ? "refused " : "locked ") + ProcessHandle.current().pid());
        System.in.read();
    }
}
"""


@contextmanager
def jvm_broker(directory: Path, lock: Path) -> Iterator[str]:
    """A JVM that asks for the lock as a broker does, until the block ends; what it printed."""
    command = java_command(directory, "Broker", BROKER, str(lock))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
        process.communicate(b"\n")


def plain_lock(path: Path, kind: int = fcntl.LOCK_EX) -> int:
    """The POSIX lock on byte 0, taken without the product."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.lockf(fd, kind | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
    return fd


def enter(lock: BrokerLock) -> None:
    with lock:
        pass


def test_a_held_lock_is_refused_with_the_holders_process(tmp_path: Path) -> None:
    """The error names the file, the process and what to do; afterwards the lock is free."""
    with holder(lambda: plain_lock(tmp_path / "lock")) as pid:
        assert broker_pid(tmp_path) == pid
        with pytest.raises(OwnershipError) as caught:
            enter(BrokerLock(tmp_path))
        assert str(tmp_path / "lock") in str(caught.value)
        assert f"process {pid}" in str(caught.value)
        assert "`output=DIR`" in str(caught.value)
        # refused again: the first refusal took nothing away
        with pytest.raises(OwnershipError):
            enter(BrokerLock(tmp_path))
    assert broker_pid(tmp_path) is None
    enter(BrokerLock(tmp_path))


def test_our_lock_is_seen_by_others(tmp_path: Path) -> None:
    """Another process of ours is refused while the block runs, not after it."""

    def other_is_refused() -> None:
        assert broker_pid(tmp_path) == os.getppid()
        with pytest.raises(OwnershipError, match=f"process {os.getppid()}"):
            enter(BrokerLock(tmp_path))
        with pytest.raises(BlockingIOError):
            plain_lock(tmp_path / "lock")

    with BrokerLock(tmp_path):
        assert wait_status_of(other_is_refused) == 0
        assert wait_status_of(other_is_refused) == 0
    assert wait_status_of(lambda: enter(BrokerLock(tmp_path))) == 0


def test_a_killed_holder_leaves_the_lock_free(tmp_path: Path) -> None:
    """The kernel drops it with the process; the file stays and is no lock by itself."""
    with holder(lambda: plain_lock(tmp_path / "lock")) as pid:
        os.kill(pid, 9)
    assert (tmp_path / "lock").exists()
    assert broker_pid(tmp_path) is None
    enter(BrokerLock(tmp_path))


def test_the_lock_file_is_rocketmqs(tmp_path: Path) -> None:
    """ASCII ``lock``; what stands there already is kept; asking creates nothing."""
    assert broker_pid(tmp_path) is None
    assert not (tmp_path / "lock").exists()
    enter(BrokerLock(tmp_path))
    assert (tmp_path / "lock").read_bytes() == b"lock"
    (tmp_path / "lock").write_bytes(b"other content")
    enter(BrokerLock(tmp_path))
    assert (tmp_path / "lock").read_bytes() == b"other content"


def test_a_lock_on_other_bytes_is_nobodys(tmp_path: Path) -> None:
    """Only byte 0 counts, as Java's tryLock(0, 1)."""

    def other_bytes() -> int:
        fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 1, os.SEEK_SET)
        return fd

    with holder(other_bytes):
        assert broker_pid(tmp_path) is None
        enter(BrokerLock(tmp_path))


def test_a_running_jvm_broker_is_seen(tmp_path: Path) -> None:
    """Java's lock and ours are the same lock."""
    with jvm_broker(tmp_path, tmp_path / "lock") as said:
        word, pid = said.split()
        assert word == "locked"
        assert broker_pid(tmp_path) == int(pid)
        with pytest.raises(OwnershipError, match=f"process {pid}"):
            enter(BrokerLock(tmp_path))
        assert (tmp_path / "lock").read_bytes() == b"lock"
    assert broker_pid(tmp_path) is None


def test_a_jvm_broker_does_not_start_on_our_output(tmp_path: Path) -> None:
    """While we write, a broker's tryLock is refused, as it is by another broker."""
    with BrokerLock(tmp_path), jvm_broker(tmp_path, tmp_path / "lock") as said:
        assert said.split()[0] == "refused"


def test_a_lock_file_that_cannot_be_made_is_an_output_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No directory, no space: not taken for a running broker, and nothing stays open."""
    with pytest.raises(OutputError, match="lock"):
        enter(BrokerLock(tmp_path / "nowhere"))
    assert open_files(tmp_path) == 0
    monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints("pwrite:1=ENOSPC"))
    with pytest.raises(NoSpaceError, match="lock"):
        enter(BrokerLock(tmp_path))
    assert open_files(tmp_path) == 0
    enter(BrokerLock(tmp_path))


def test_a_file_system_without_locks_is_an_output_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as some mounts over a network: nobody can hold the lock, and nobody can take it."""

    def refuse(*_: object) -> bytes:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    (tmp_path / "lock").write_bytes(b"lock")
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(fcntl, "lockf", refuse)
    assert broker_pid(tmp_path) is None
    with pytest.raises(OutputError, match=f"lock {tmp_path}/lock: No locks available"):
        enter(BrokerLock(tmp_path))
    assert open_files(tmp_path) == 0


def test_one_process_shares_its_lock(tmp_path: Path) -> None:
    """An appender and the dispatcher of its store: the lock lasts as long as one of them, and the
    question who else holds it does not let it go. A fork has no part in it."""

    def is_ours() -> None:
        assert broker_pid(tmp_path) == os.getppid()
        assert open_files(tmp_path) == 0

    with BrokerLock(tmp_path):
        with BrokerLock(tmp_path):
            assert broker_pid(tmp_path) is None
            assert wait_status_of(is_ours) == 0
        assert broker_pid(tmp_path) is None
        assert wait_status_of(is_ours) == 0
        assert open_files(tmp_path) == 1
    assert open_files(tmp_path) == 0
    assert wait_status_of(lambda: enter(BrokerLock(tmp_path))) == 0
