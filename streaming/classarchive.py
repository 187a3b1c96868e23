"""The JVM's class archive: Spark's classes, read, checked and laid out once for an installation.

Without it a start of Spark spends half of its time on loading classes. Writer: a JVM that ends
(``-XX:ArchiveClassesAtExit``), into a file of its own that is renamed when it is whole and durable,
so that several may make one at the same time. Its size stands in its name, since a JVM dies of one
that was cut short. Reader: every JVM after it, checksums included; one that is damaged, or does not
fit (another JDK, another class path), the JVM puts aside and starts as without.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from store import fsops
from store.privatecache import private_directory

# without what the JVM would say of an archive that it refuses or of classes that it leaves out
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one JVM and one class path, whether it has been made or not."""

    directory: Path
    key: str

    def found(self) -> Path | None:
        """The whole archive; None where there is none."""
        for path in self.directory.glob(f"{self.key}-*.jsa"):
            if path.name == self._name(path.stat().st_size):
                return path
        return None

    def options(self) -> tuple[str, ...]:
        """JVM options that use it; none where there is none."""
        path = self.found()
        if path is None:
            return ()
        return (*_QUIET, "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={path}")

    def making_options(self) -> tuple[str, ...]:
        """JVM options that make it anew; call ``keep`` when that JVM has ended."""
        return (*_QUIET, f"-XX:ArchiveClassesAtExit={self._partial}")

    def keep(self) -> Path | None:
        """Put the one that was made in place of any other; None if the JVM made none."""
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
    """The archive of a JVM; None where no private directory can be had."""
    try:
        directory = private_directory("jvm")
        home = java.resolve().parent.parent
        library = (home / "lib" / "server" / "libjvm.so").stat()
    except OSError:
        return None
    key = (str(home), int(library.st_mtime), library.st_size, class_path)
    return ClassArchive(directory, hashlib.sha256(repr(key).encode()).hexdigest()[:16])
