"""Compares the entries of two stores and finds the first difference in each queue and index.

Files are compared block by block as bytes; only where two differ are the entry's bounds found and
its fields decoded, in RocketMQ's terms. Holes of both files are skipped: a store of 100,000 queues
is 600 GB of mostly empty files. Space that was never written (zeros) equals space that does not
exist; a file or queue that one side lacks is a difference, except an empty file that RocketMQ
leaves at a queue's end.

Consume queues, ext and batch queues are matched by topic, queue and file name, index files by
order, since their names are times. The comparison only reads, with ``preadv``: a file that is
truncated meanwhile merely looks shorter.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store.errors import StoreError, UsageError
from reput.store.files import (
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    INDEX_DIRECTORY,
    QUEUE_DIRECTORIES,
    STORE_CHECKPOINT_FILE,
    is_mapped_file_name,
)
from reput.store.index.indexfile import (
    DEFAULT_MAX_HASH_SLOT_NUM,
    HASH_SLOT_DTYPE,
    INDEX_ENTRY_DTYPE,
    INDEX_HEADER_DTYPE,
)
from reput.store.queue.consumequeue import UNIT_DTYPE, list_queues
from reput.store.queue.consumequeueext import EXT_SIZE, MIN_EXT_UNIT_SIZE, decode_unit
from reput.store.state.storecheckpoint import StoreCheckpoint
from reput.upkeep.entryfields import ENTRY_DTYPES, Fields, entry_fields, ext_unit_fields

DIRECTORY_KINDS = (*QUEUE_DIRECTORIES, INDEX_DIRECTORY)
"""Directories of a store that are derived from its log."""
KINDS = (*DIRECTORY_KINDS, STORE_CHECKPOINT_FILE)

_BLOCK_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreDifference:
    """The first place where a queue, an index file or the checkpoint differs between two stores."""

    kind: str
    """One of KINDS."""
    place: str
    """``TOPIC/QUEUE_ID``; ``file NUMBER``, and where both sides have it their names, for an index
    file; empty for the checkpoint."""
    entry: str
    """The entry that differs, numbered as RocketMQ counts it: ``unit 17``, ``slot 3``, ``file
    0000..``; ``file size`` where the files of a queue have different lengths; empty where a side
    lacks an index file."""
    left: Fields | None
    """The entry's fields in the first store; None where that store lacks it."""
    right: Fields | None


@dataclass(slots=True)
class Comparison:
    """The number of compared files and the differences."""

    compared: dict[str, int] = field(default_factory=dict)
    """Kind -> number of queues or files; kinds that neither side has are left out."""
    differences: list[StoreDifference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether there is no difference."""
        return not self.differences


def compare_stores(
    left: Path,
    right: Path,
    kinds: Collection[str] = KINDS,
    topics: Collection[str] | None = None,
    hash_slot_count: int = DEFAULT_MAX_HASH_SLOT_NUM,
) -> Comparison:
    """Compare the entries below the roots of two stores or other outputs.

    ``topics`` limits the comparison to their queues, without index and checkpoint; None compares
    everything. ``hash_slot_count`` is maxHashSlotNum of both. Raises StoreError for a file that
    cannot be read, UsageError for an index that is too short for its slots.
    """
    comparison, reader = Comparison(), PairReader()
    try:
        with reader:
            for kind in kinds:
                pairs = _compare_kind(reader, kind, left, right, topics, hash_slot_count)
                for count, difference in enumerate(pairs, 1):
                    comparison.compared[kind] = count
                    if difference is not None:
                        comparison.differences.append(difference)
    except OSError as error:
        # a failed read names no file, only one of two descriptors
        place = error.filename or " or ".join(reader.paths)
        line = f"cannot read {place}: {error.strerror}"
        raise StoreError(line, path=error.filename) from error
    return comparison


def _compare_kind(
    reader: PairReader,
    kind: str,
    left: Path,
    right: Path,
    topics: Collection[str] | None,
    hash_slot_count: int,
) -> Iterator[StoreDifference | None]:
    """Yield one item for each pair that is compared."""
    if kind in QUEUE_DIRECTORIES:
        yield from _compare_queues(reader, kind, left / kind, right / kind, topics)
    elif topics is not None:
        return
    elif kind == INDEX_DIRECTORY:
        yield from _compare_indexes(reader, left / kind, right / kind, hash_slot_count)
    else:
        yield from _compare_checkpoints(left, right)


class PairReader:
    """Reads two files at a time, into two buffers that are reused."""

    def __init__(self) -> None:
        self._buffers = [np.empty(_BLOCK_SIZE, np.uint8) for _ in range(2)]
        self._open: tuple[int, ...] = ()
        self.paths: tuple[str, ...] = ()

    def __enter__(self) -> PairReader:
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def _close(self) -> None:
        for fd in self._open:
            os.close(fd)
        self._open = ()

    def take(self, left: str, right: str) -> int:
        """Open both files and return the length of the longer one."""
        self._close()
        self.paths = (left, right)
        for path in self.paths:
            self._open += (os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW),)
        return max(os.fstat(fd).st_size for fd in self._open)

    def data(self, side: int, position: int, count: int) -> bytes:
        """Return bytes of the left (0) or right (1) file, with zeros after its end."""
        data = os.pread(self._open[side], count, position)
        return data + bytes(count - len(data))

    def first_difference(self, start: int, end: int) -> int | None:
        """Return the position of the first byte in [start, end) that differs; None without one."""
        position = start
        while position < end:
            position = min(_seek(fd, position, os.SEEK_DATA, end) for fd in self._open)
            hole = max(_seek(fd, position, os.SEEK_HOLE, end) for fd in self._open)
            # a hole may have been filled meanwhile
            while position < hole:
                count = min(_BLOCK_SIZE, hole - position)
                left, right = (self._block(side, position, count) for side in range(2))
                differs = left != right
                at = int(differs.argmax())
                if differs[at]:
                    return position + at
                position += count
        return None

    def _block(self, side: int, position: int, count: int) -> NDArray[np.uint8]:
        block = self._buffers[side][:count]
        done = 0
        while done < count:
            got = os.preadv(self._open[side], [block[done:].data], position + done)
            if got == 0:
                block[done:] = 0
                break
            done += got
        return block


def _seek(fd: int, position: int, what: int, end: int) -> int:
    """Return the next data or hole of a file at or after ``position``, up to ``end``."""
    try:
        return min(os.lseek(fd, position, what), end)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        # no data is left, or the position is beyond the file's end: a hole
        return end if what == os.SEEK_DATA else position


Entry = tuple[str, Fields | None, Fields | None]
"""The last fields of a StoreDifference: entry, left, right."""


def _compare_queues(
    reader: PairReader, kind: str, left: Path, right: Path, topics: Collection[str] | None
) -> Iterator[StoreDifference | None]:
    on_left, on_right = (
        {key: None for key in list_queues(root) if topics is None or key.topic in topics}
        for root in (left, right)
    )
    for key in sorted(on_left | on_right, key=lambda key: (key.topic, key.queue_id)):
        place = f"{key.topic}/{key.queue_id}"
        there = (f"{left}/{place}", f"{right}/{place}")
        entry: Entry | None
        if key in on_left and key in on_right:
            entry = _compare_files(reader, kind, *there)
        elif key in on_left:
            entry = "queue", {"files": len(_file_names(there[0], is_mapped_file_name))}, None
        else:
            entry = "queue", None, {"files": len(_file_names(there[1], is_mapped_file_name))}
        yield StoreDifference(kind, place, *entry) if entry else None


def _compare_files(reader: PairReader, kind: str, left: str, right: str) -> Entry | None:
    on_left, on_right = (_file_names(directory, is_mapped_file_name) for directory in (left, right))
    if on_left != on_right and kind == CONSUME_QUEUE_DIRECTORY:
        on_left, on_right = _without_spare(left, on_left), _without_spare(right, on_right)
    if on_left and on_right and on_left != on_right:
        sizes = [Path(left, on_left[0]).stat().st_size, Path(right, on_right[0]).stat().st_size]
        if sizes[0] != sizes[1]:
            # no file of one side has its counterpart, whatever the units are
            return "file size", {"bytes": sizes[0]}, {"bytes": sizes[1]}
    for name in on_left if on_left == on_right else sorted({*on_left, *on_right}):
        if name not in on_right:
            return f"file {name}", {"bytes": Path(left, name).stat().st_size}, None
        if name not in on_left:
            return f"file {name}", None, {"bytes": Path(right, name).stat().st_size}
        end = reader.take(f"{left}/{name}", f"{right}/{name}")
        at = reader.first_difference(0, end)
        if at is not None:
            return _describe_unit(reader, kind, int(name), at)
    return None


def _without_spare(directory: str, names: list[str]) -> list[str]:
    """Return ``names`` without a last file that RocketMQ created after a full one for a message
    that it then dropped, and that was never written to (formats.md §5, step b)."""
    if len(names) < 2:
        return names
    before, last = (Path(directory, name).read_bytes() for name in names[-2:])
    is_spare = any(before[-UNIT_DTYPE.itemsize :]) and not last.strip(b"\0")
    return names[:-1] if is_spare else names


def _file_names(directory: str, is_ours: Callable[[str], bool]) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(
            entry.name
            for entry in entries
            if is_ours(entry.name) and entry.is_file(follow_symlinks=False)
        )


def _both(
    reader: PairReader, position: int, dtype: np.dtype[np.void]
) -> tuple[Fields | None, Fields | None]:
    """Return the fields at a position in both files; None where nothing was ever written."""
    left, right = (
        entry_fields(reader.data(side, position, dtype.itemsize), dtype) for side in range(2)
    )
    return left, right


def _describe_unit(reader: PairReader, kind: str, start: int, at: int) -> Entry:
    """Describe the unit at a byte that differs, of the file that starts at byte ``start``."""
    if kind == CONSUME_QUEUE_EXT_DIRECTORY:
        return _describe_ext_unit(reader, start, at)
    dtype = ENTRY_DTYPES[kind]
    position = at - at % dtype.itemsize
    return f"unit {(start + position) // dtype.itemsize}", *_both(reader, position, dtype)


def _describe_ext_unit(reader: PairReader, start: int, at: int) -> Entry:
    """Describe an ext unit; they are found by walking from the file's start, and both files have
    the same ones up to ``at``."""
    data = reader.data(0, 0, at + MIN_EXT_UNIT_SIZE)
    position = 0
    while (size := EXT_SIZE.unpack_from(data, position)[0]) > 0 and position + size <= at:
        position += size
    left, right = (_ext_fields(reader, side, position) for side in range(2))
    return f"ext offset {start + position}", left, right


def _ext_fields(reader: PairReader, side: int, position: int) -> Fields | None:
    size = EXT_SIZE.unpack(reader.data(side, position, EXT_SIZE.size))[0]
    if size == 0:
        return None
    unit = decode_unit(reader.data(side, position, max(size, MIN_EXT_UNIT_SIZE)), 0)
    return {"size": size} if unit is None else ext_unit_fields(unit)


def _compare_indexes(
    reader: PairReader, left: Path, right: Path, slot_count: int
) -> Iterator[StoreDifference | None]:
    names = [
        _file_names(str(directory), str.isdecimal) if directory.is_dir() else []
        for directory in (left, right)
    ]
    for number, pair in enumerate(zip_longest(*names)):
        place = f"file {number}"
        if None in pair:
            sides: Sequence[Fields | None] = [{"file": name} if name else None for name in pair]
            yield StoreDifference(INDEX_DIRECTORY, place, "", *sides)
        else:
            place += f" ({pair[0]} | {pair[1]})"
            entry = _compare_index_files(
                reader, f"{left}/{pair[0]}", f"{right}/{pair[1]}", slot_count
            )
            yield StoreDifference(INDEX_DIRECTORY, place, *entry) if entry else None


def _compare_index_files(
    reader: PairReader, left: str, right: str, slot_count: int
) -> Entry | None:
    """Return the first entry that differs (entries stand in log order), or else the first slot, or
    else the header. An indexCount of 0 on disk means 1 (formats.md §8)."""
    size = reader.take(left, right)
    slots = INDEX_HEADER_DTYPE.itemsize
    entries = slots + slot_count * HASH_SLOT_DTYPE.itemsize
    if 0 < size < entries:
        raise UsageError(
            f"{left} and {right} are too short for {slot_count} slots; set maxHashSlotNum in a "
            "property file and pass it with `broker_conf=`"
        )
    for start, end, dtype, name in (
        (entries, size, INDEX_ENTRY_DTYPE, "entry"),
        (slots, entries, HASH_SLOT_DTYPE, "slot"),
    ):
        at = reader.first_difference(start, end)
        if at is not None:
            number = (at - start) // dtype.itemsize
            return f"{name} {number}", *_both(reader, start + number * dtype.itemsize, dtype)
    headers = _both(reader, 0, INDEX_HEADER_DTYPE)
    empty: Fields = dict.fromkeys(INDEX_HEADER_DTYPE.names or (), 0)
    left_header, right_header = (
        {**fields, "index_count": max(1, int(fields["index_count"]))}
        for fields in (headers[0] or empty, headers[1] or empty)
    )
    return None if left_header == right_header else ("header", left_header, right_header)


def _compare_checkpoints(left: Path, right: Path) -> Iterator[StoreDifference | None]:
    """Yield a difference with only the fields that differ."""
    read = [StoreCheckpoint.read(root) for root in (left, right)]
    if read == [None, None]:
        return
    sides: list[Fields | None] = [
        None if checkpoint is None else asdict(checkpoint) for checkpoint in read
    ]
    if sides[0] is not None and sides[1] is not None:
        names = [name for name in sides[0] if sides[0][name] != sides[1][name]]
        sides = [{name: side[name] for name in names} for side in sides if side is not None]
    differs = sides[0] != sides[1]
    yield StoreDifference(STORE_CHECKPOINT_FILE, "", "fields", *sides) if differs else None
