"""The files of a log: what its directories list, and which of several copies of a file counts.

Files are named by the log offset of their first byte, 20 digits (``UtilAll.offset2FileName``), so
the list sorted by name is the log. All have their full length from creation; every file but the
last ends in a BLANK record, so every file start is a record start. A broker keeps one more,
all-zero file ready. Any entry that is not a 20-digit regular file is foreign: reported, otherwise
ignored.

Several directories (``storePathCommitLog`` with commas, ``readOnlyCommitLogStorePaths``) are one
log. A file may move from one to another at any time, by ``mv`` or a copy. While it exists in both,
the complete one counts; if both are complete, either counts, provided that they are equal byte for
byte. One of zeros alone is no copy: a broker created it ahead and then wrote to another directory.

A file may also come while the log is followed, by a copy that takes time: the log ends before it as
long as it grows. Of a log of one file whose size is not configured, that file's size is the file
size, and it too may grow.
"""

from __future__ import annotations

import errno
import filecmp
import mmap
import os
import stat
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store.errors import CommitLogError, NotReadyError
from reput.store.files import is_mapped_file_name
from reput.store.filetimes import is_settled
from reput.store.log.record import SIZE_MAGIC_LENGTH

_OPEN_TRIES = 3
_OPEN_RETRY_SECONDS = 0.01
_LIST_TRIES = 100
ARRIVAL_SECONDS = 60.0
"""A file that is too short and was not written for this long is no copy in the making."""

_ZEROS_PER_READ = 1 << 20
_START = attrgetter("start")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One commitlog file."""

    start: int
    """Log offset of its first byte."""
    path: Path


class OpenFile:
    """A file open for reading; it is closed when its last user drops it, so never during a read."""

    __slots__ = ("_mapping", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._mapping: NDArray[np.uint8] | None = None

    def address(self, size: int) -> int:
        """The address of the file's first ``size`` bytes in memory, as long as the file is open; 0
        if it cannot be mapped. See ``store.queue.pullkernel`` for how it must be read."""
        if self._mapping is None:
            try:
                mapping = mmap.mmap(self.fd, size, prot=mmap.PROT_READ)
            except (OSError, ValueError):
                return 0
            self._mapping = np.frombuffer(mapping, np.uint8)
        return int(self._mapping.ctypes.data)

    def __del__(self) -> None:
        os.close(self.fd)


class Segments:
    """The files of one log, ascending; directories are listed again only after a change.

    Several threads may look files up and open them while another refreshes or closes. The object
    closes the files that it opened, because Spark's Python workers go from task to task.
    """

    def __init__(self, directories: Sequence[Path], file_size: int | None = None) -> None:
        """``file_size`` is mappedFileSizeCommitLog in bytes; None takes the files' own.

        Raises NotReadyError if there is no commitlog, CommitLogError if it cannot be listed or a
        file has a wrong size.
        """
        self.directories = tuple(directories)
        self._configured_size = file_size
        self.file_size = file_size or 0
        self.listed: list[Segment] = []
        """The files of the log; a change puts another list in its place."""
        self.foreign: list[Path] = []
        self._copies: dict[int, list[Path]] = {}
        """Further files of a segment's name and length, by its start, not yet compared."""
        self._signature: tuple[int, ...] = ()
        self._used_directories: set[Path] = set()
        self._open_files: dict[int, OpenFile] = {}
        self.refresh()

    def refresh(self) -> None:
        """List the files again if a directory changed; an unchanged one costs a stat."""
        try:
            signature = tuple(path.stat().st_mtime_ns for path in self.directories)
            if len(self.listed) == 1 and not self._configured_size:
                with suppress(FileNotFoundError):  # it was moved
                    signature += (self.listed[0].path.stat().st_size,)
        except FileNotFoundError as error:
            line = f"there is no commitlog {error.filename}; mount it or start its broker"
            raise NotReadyError(line, path=error.filename) from error
        except OSError as error:
            line = f"cannot read {error.filename}: {error.strerror}"
            raise CommitLogError(line, path=error.filename) from error
        if signature == self._signature:
            return
        listed_at = time.time_ns()
        listed, self.foreign = _list(self.directories)
        segments = self._without_copies(listed)
        if segments and self._is_arriving(segments[-1], listed[segments[-1].path]):
            signature = ()
            segments.pop()
        if any(_is_unused(segment.path) for segment in segments if segment.start in self._copies):
            # a broker will write to one of the copies, which changes no directory
            signature = ()
        if not is_settled(max(signature, default=0), listed_at):
            # a file that arrives now may leave the directory's time unchanged
            signature = ()
        self._check(segments, {path: status.st_size for path, status in listed.items()})
        self._close_removed({segment.start: listed[segment.path] for segment in segments})
        self.listed = segments
        self._used_directories = {path.parent for path in listed}
        self._signature = signature

    @property
    def unmounted(self) -> list[Path]:
        """The directories, of several, that have no file of the log."""
        several = self.directories if len(self.directories) > 1 else ()
        return [directory for directory in several if directory not in self._used_directories]

    def check_mounted(self, consequence: str) -> None:
        """Raise CommitLogError where one of several directories has no file of the log.

        An unmounted disk leaves an empty directory, and nothing may be removed, cut or
        skipped because its files look gone. ``consequence`` says what is refused.
        """
        for directory in self.unmounted:
            raise CommitLogError(
                f"{directory} has no file of the log, and its disk may not be mounted: "
                f"{consequence}; mount it, or leave it out of storePathCommitLog and "
                "readOnlyCommitLogStorePaths",
                path=directory,
            )

    def at(self, offset: int) -> Segment | None:
        """The file that covers ``offset``; None for a gap or beyond the last file."""
        segments = self.listed
        index = bisect_right(segments, offset, key=_START) - 1
        if index >= 0 and offset < segments[index].start + self.file_size:
            return segments[index]
        return None

    def after(self, offset: int) -> Segment | None:
        """The first file that starts at or after ``offset``."""
        return next((segment for segment in self.listed if segment.start >= offset), None)

    @property
    def end(self) -> int:
        """Log offset after the last file's last byte; 0 for a log without files."""
        return self.listed[-1].start + self.file_size if self.listed else 0

    def gaps(self) -> list[tuple[int, int]]:
        """Each [start, end) between two files that no file covers: it is lost, whereas what came
        before the first file has expired."""
        bounds = pairwise(segment.start for segment in self.listed)
        ends = ((start + self.file_size, following) for start, following in bounds)
        return [(end, following) for end, following in ends if end < following]

    def gap_at(self, offset: int) -> tuple[int, int] | None:
        """The gap that ``offset`` lies in; None without one."""
        return next((gap for gap in self.gaps() if gap[0] <= offset < gap[1]), None)

    def open(self, segment: Segment) -> OpenFile:
        """Open a segment for reads by position, as long as it is held. Raises OSError."""
        file = self._open_files.get(segment.start)
        if file is None:
            file = self._open_files[segment.start] = OpenFile(self._open(segment))
        return file

    def _open(self, segment: Segment) -> int:
        self._compare_copies(segment)
        try:
            return _open_with_retries(segment.path)
        except FileNotFoundError:
            # the file was moved since the directories were listed
            for path, status in _list(self.directories)[0].items():
                if path.name == segment.path.name and status.st_size == self.file_size:
                    return _open_with_retries(path)
            raise

    def _compare_copies(self, segment: Segment) -> None:
        """Compare copies of a file only when it is read, because a gigabyte takes a second."""
        for path in self._copies.get(segment.start, ()):
            with suppress(FileNotFoundError):  # the move is complete
                if _is_unused(path) and _is_zero(path):
                    self.foreign.append(path)
                elif not filecmp.cmp(segment.path, path, shallow=False):
                    raise CommitLogError(
                        f"commitlog files {segment.path} and {path} have the same name and length "
                        "but different bytes; remove the one that does not belong to this log, or "
                        "wait until a running copy is complete",
                        path=path,
                    )
        self._copies.pop(segment.start, None)

    def close(self) -> None:
        """Close the files; the object may be used again."""
        self._close_removed({})

    def _is_arriving(self, last: Segment, status: os.stat_result) -> bool:
        """Whether the last file is still being created, or copied while the log is followed."""
        if status.st_size == 0:
            return True  # RocketMQ drops an empty last file as well
        is_new = bool(self.listed) and last.start > self.listed[-1].start
        is_short = status.st_size < self.file_size
        return is_new and is_short and time.time() - status.st_mtime < ARRIVAL_SECONDS

    def _without_copies(self, listed: dict[Path, os.stat_result]) -> list[Segment]:
        """Choose one file of each name: the longest and, among those, one with records, or the one
        that was read before.

        A shorter one is an unfinished or abandoned copy, because RocketMQ's files have their full
        length from creation, and a move removes the original last.
        """
        former_paths = {segment.path for segment in self.listed}
        by_start: dict[int, list[Path]] = {}
        for path in listed:
            by_start.setdefault(int(path.name), []).append(path)
        segments = []
        copies: dict[int, list[Path]] = {}
        for start, paths in by_start.items():
            if len(paths) > 1:
                paths.sort(
                    key=lambda path: (
                        -listed[path].st_size, _is_unused(path), path not in former_paths,
                    )
                )  # fmt: skip
            first, *others = paths
            segments.append(Segment(start, first))
            for path in others:
                if listed[path].st_size < listed[first].st_size:
                    self.foreign.append(path)
                else:
                    copies.setdefault(start, []).append(path)
        self._copies = copies
        return sorted(segments)

    def _check(self, segments: list[Segment], sizes: dict[Path, int]) -> None:
        if not segments:
            return
        first = segments[0]
        pinned = self.file_size if len(segments) > 1 else 0
        expected = self._configured_size or pinned or sizes[first.path]
        stated = "mappedFileSizeCommitLog is" if self._configured_size else f"{first.path.name} has"
        for segment in segments:
            if sizes[segment.path] != expected:
                raise CommitLogError(
                    f"commitlog file {segment.path} has {sizes[segment.path]} bytes but {stated} "
                    f"{expected}; restore the file, or set mappedFileSizeCommitLog (broker.conf "
                    "or `mapped_file_size_commit_log=`) to the size that the broker used",
                    path=segment.path,
                )
        for before, after in pairwise(segments):
            if after.start < before.start + expected:
                raise CommitLogError(
                    f"commitlog files {before.path} and {after.path} overlap at {expected} bytes "
                    "per file; remove the one that does not belong to this log",
                    path=after.path,
                )
        self.file_size = expected

    def _close_removed(self, kept: dict[int, os.stat_result]) -> None:
        """Close replaced files: one may have moved to another disk, or a broker that cut its log
        may have removed it and created another of the same name."""
        for start, file in list(self._open_files.items()):
            if start not in kept or not os.path.samestat(os.fstat(file.fd), kept[start]):
                self._open_files.pop(start, None)


def _list(directories: Sequence[Path]) -> tuple[dict[Path, os.stat_result], list[Path]]:
    """The log's files, and all other entries of the directories."""
    listed = _list_once(directories)
    if len(directories) == 1:
        return listed
    for _ in range(_LIST_TRIES):
        again = _list_once(directories)
        # a file that moved between two listings was missed, or listed twice
        if again[0].keys() == listed[0].keys():
            return again
        listed = again
    raise CommitLogError(
        "files come and go in the commitlog directories faster than they can be listed: "
        f"{', '.join(map(str, directories))}; try again when they have been moved",
        path=directories[0],
    )


def _list_once(directories: Sequence[Path]) -> tuple[dict[Path, os.stat_result], list[Path]]:
    statuses: dict[Path, os.stat_result] = {}
    foreign = []
    for directory in directories:
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError as error:
            line = f"cannot list {directory}: {error.strerror}"
            raise CommitLogError(line, path=directory) from error
        for entry in entries:
            path = Path(entry.path)
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            named = is_mapped_file_name(entry.name)
            # an offset is a Java long
            named = named and int(entry.name) + status.st_size < 1 << 63
            if named and stat.S_ISREG(status.st_mode):
                statuses[path] = status
            else:
                foreign.append(path)
    return statuses, foreign


def _is_unused(path: Path) -> bool:
    """Whether a file begins with zeros, and so has no record."""
    try:
        with path.open("rb", buffering=0) as file:
            return not any(file.read(SIZE_MAGIC_LENGTH))
    except OSError:
        return False


def _is_zero(path: Path) -> bool:
    """Whether a file has no byte but zeros; holes are not read."""
    with path.open("rb", buffering=0) as file:
        position = 0
        while True:
            try:
                position = os.lseek(file.fileno(), position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return True
                raise
            data = os.pread(file.fileno(), _ZEROS_PER_READ, position)
            if not data or any(data.rstrip(b"\0")):
                return not data
            position += len(data)


def _open_with_retries(path: Path) -> int:
    """Open a file; shared file systems sometimes fail and succeed a moment later."""
    for attempt in range(1, _OPEN_TRIES + 1):
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in (errno.ESTALE, errno.EIO, errno.EAGAIN) or attempt == _OPEN_TRIES:
                raise
            time.sleep(_OPEN_RETRY_SECONDS)
    raise AssertionError("unreachable")
