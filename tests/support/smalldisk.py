"""A small file system of a test's own, which it can fill: a tmpfs in a mount namespace.

Needs no privileges where user namespaces are allowed: a child holds the namespaces, the test sees
the files through /proc, and commands are run inside.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import ROOT

FILLER = "filler"
PIECE = bytes(1 << 16)


class SmallDisk:
    """Mounted at ``mount_point`` for the commands that ``command`` gives."""

    def __init__(self, mount_point: Path, size: int) -> None:
        """``size`` in bytes. Skips the test where no file system can be mounted."""
        if not (shutil.which("unshare") and shutil.which("nsenter")):
            pytest.skip("needs unshare and nsenter from util-linux")
        mount_point.mkdir()
        self.mount_point = mount_point
        script = 'mount -t tmpfs -o size="$1" none "$2" && echo mounted && exec cat'
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh",
             str(size), str(mount_point)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "mounted\n":
            self._holder.wait()
            pytest.skip("the system lets nobody mount a tmpfs in a user namespace")

    def close(self) -> None:
        """Unmount it; what is in it goes."""
        self._holder.communicate()

    @property
    def path(self) -> Path:
        """The path of ``mount_point`` as seen from outside; to be read and filled, not resolved."""
        return Path(f"/proc/{self._holder.pid}/root{self.mount_point}")

    def command(self, *arguments: object) -> list[str]:
        """A command that runs where the disk is mounted."""
        inside = ["nsenter", "--target", str(self._holder.pid), "--user", "--mount", f"--wd={ROOT}"]
        return [*inside, "--preserve-credentials", *map(str, arguments)]

    def fill(self, leave: int = 0) -> None:
        """Take all its space but so many bytes."""
        fd = os.open(self.path / FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while True:
                os.write(fd, PIECE)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            os.ftruncate(fd, max(os.fstat(fd).st_size - leave, 0))
        finally:
            os.close(fd)

    def free(self) -> None:
        """Give the space back."""
        (self.path / FILLER).unlink()
