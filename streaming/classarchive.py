"""The JVM's class archive: Spark's classes, read, checked and laid out once per installation.

Without it, Spark spends half of its start time on loading classes. A JVM writes the archive when it
ends (``-XX:ArchiveClassesAtExit``), into a file of its own that is renamed once it is whole and
durable, so that several JVMs may make one at the same time. The file's name contains its size,
since a truncated archive crashes a JVM. Every later JVM reads it and verifies its checksums; an
archive that is damaged, or does not fit (another JDK, another class path), is ignored and the JVM
starts without it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from store import fsops
from store.privatecache import private_directory

# these options silence the JVM about an archive that it refuses and about classes that it leaves
# out
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one JVM and one class path, whether it exists yet or not."""

    directory: Path
    key: str

    def found(self) -> Path | None:
        """Return the whole archive; None where there is none."""
        for path in self.directory.glob(f"{self.key}-*.jsa"):
            if path.name == self._name(path.stat().st_size):
                return path
        return None

    def options(self) -> tuple[str, ...]:
        """Return the JVM options that use it; none where there is no archive."""
        path = self.found()
        if path is None:
            return ()
        return (*_QUIET, "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={path}")

    def making_options(self) -> tuple[str, ...]:
        """Return the JVM options that make it anew; call ``keep`` when that JVM has ended."""
        return (*_QUIET, f"-XX:ArchiveClassesAtExit={self._partial}")

    def keep(self) -> Path | None:
        """Replace any older archive with the new one; return None if the JVM made none."""
        if not self._partial.exists():
            return None
        for path in self.directory.glob(f"{self.key}-*.jsa"):
            fsops.unlink(path)
        fd = os.open(self._partial, os.O_RDONLY)
        try:
            fsops.sync(fd, self._partial)
        finally:
            os.close(fd)
        path = self.directory / self._name(self._partial.stat().st_size)
        fsops.rename(self._partial, path)
        return path

    @property
    def _partial(self) -> Path:
        return self.directory / f"{self.key}.{os.getpid()}"

    def _name(self, size: int) -> str:
        return f"{self.key}-{size}.jsa"


def class_archive(java: Path, class_path: str) -> ClassArchive | None:
    """Return the archive of a JVM; None where no private directory can be had."""
    try:
        directory = private_directory("jvm")
        home = java.resolve().parent.parent
        library = (home / "lib" / "server" / "libjvm.so").stat()
    except OSError:
        return None
    key = (str(home), int(library.st_mtime), library.st_size, class_path)
    return ClassArchive(directory, hashlib.sha256(repr(key).encode()).hexdigest()[:16])
