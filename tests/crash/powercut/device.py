"""The guest's disk: a file system on a device-mapper target that can stop writing.

``ubdb`` is the disk, ``ubdc`` the log of dm-log-writes, ``ubdd`` the disk as it was after one of
these writes, and ``ubde`` takes the changes that a check of ``ubdd`` makes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.powercut.writelog import Write

DISK, WRITE_LOG, REPLAY, CHANGES = (Path(f"/dev/ubd{letter}") for letter in "bcde")
SOUND = f"linear {DISK} 0"
DROPPED_WRITES = f"flakey {DISK} 0 0 1000 1 drop_writes"
FAILING_WRITES = f"flakey {DISK} 0 0 1000 1 error_writes"
LOGGED = f"log-writes {DISK} {WRITE_LOG}"
SNAPSHOT = f"snapshot {REPLAY} {CHANGES} N 8"
_DEVICE = Path("/dev/dm-0")
_MAKE_FILE_SYSTEM = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}


class Device:
    """One device-mapper device and the file system on it."""

    def __init__(self, file_system: str, mount_point: Path) -> None:
        """Make an empty file system."""
        self._file_system = file_system
        self._mount_point = mount_point
        mount_point.mkdir(exist_ok=True)
        _run(*_MAKE_FILE_SYSTEM[file_system], str(DISK))

    @contextmanager
    def mounted(self, target: str = SOUND, writes: Iterable[Write] = ()) -> Iterator[Path]:
        """Apply ``writes`` to the device, mount it on ``target``, a device-mapper target with its
        arguments, and yield the mount point."""
        _dmsetup("create", "disk", "--table", _table(target))
        try:
            with open_disk(_DEVICE) as disk:
                for write in writes:
                    write.apply(disk)
            _run("mount", "-t", self._file_system, str(_DEVICE), str(self._mount_point))
            try:
                yield self._mount_point
            finally:
                _run("umount", str(self._mount_point))
        finally:
            _dmsetup("remove", "--retry", "disk")

    def switch(self, target: str) -> None:
        """Give the mounted device another target from the next write on."""
        _dmsetup("load", "disk", "--table", _table(target))
        _dmsetup("suspend", "--nolockfs", "--noflush", "disk")
        _dmsetup("resume", "disk")

    def mark(self, text: str) -> None:
        """Add the mark ``text`` to the log of writes."""
        _dmsetup("message", "disk", "0", "mark", text)


@contextmanager
def open_disk(path: Path) -> Iterator[int]:
    """Open a disk for writing; at the end of the block, all writes are durable."""
    disk = os.open(path, os.O_RDWR)
    try:
        yield disk
        os.fsync(disk)
    finally:
        os.close(disk)


def copy_disk() -> None:
    """Copy DISK to REPLAY."""
    _run("cp", str(DISK), str(REPLAY))


def _table(target: str) -> str:
    size = Path(f"/sys/class/block/{DISK.name}/size").read_text("ascii").strip()
    return f"0 {size} {target}"


def _dmsetup(*arguments: str) -> None:
    _run("dmsetup", "--noudevsync", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
