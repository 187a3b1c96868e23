"""Compares index files: each is filled in memory by the writer's own kernel and compared as a whole
with the existing one; names are times and carry no order that could be compared.

Healing removes the files from the first damaged one on; the next run fills them again. Memory holds
one file's slots and those of its entries that were not compared yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store import fsops
from reput.store.config import StoreSettings
from reput.store.files import INDEX_DIRECTORY
from reput.store.index import indexkernel
from reput.store.index.indexfile import (
    HASH_SLOT_DTYPE,
    INDEX_ENTRY_DTYPE,
    INDEX_HEADER_SIZE,
    INDEX_SIZE,
    IndexFiles,
    IndexHeader,
    IndexLayout,
    header_fields,
)
from reput.store.runs.dispatch import DispatchBatch, IndexEntries
from reput.upkeep.verify.difference import (
    Counts,
    Damage,
    Difference,
    Differences,
    Extent,
    LogRange,
    stretches,
)
from reput.upkeep.verify.indexbytes import (
    BLOCK_ENTRIES,
    Image,
    data_ranges,
    read_bytes,
    read_entries,
    read_gone,
    read_header,
    taken_extents,
)

_BLOCK_SIZE = INDEX_SIZE * BLOCK_ENTRIES

_END = IndexEntries(-1, np.array([-1]), np.array([0], np.int32), np.array([0]))
"""An entry that no file has."""


class IndexVerifier:
    """Compares the index of an output (``upkeep.verify.difference.Verifier``)."""

    def __init__(
        self, output: Path, settings: StoreSettings, log: LogRange, begin: int | None
    ) -> None:
        """``begin``: the index holds the keys of messages from this physical offset on; None where
        it is not known, which means from the first entry on. Where no index is built, nothing is
        compared. Raises IndexFileError where no file has the layout's size, which is not damage.
        """
        self._entry_count = 0
        """Number of entries compared with the log."""
        self._unseen_count = 0
        """Number of entries of messages in damaged ranges of the log."""
        self.full_end_timestamps: list[int] = []
        """endTimestamps, in ms, of the files that another one follows, by the log."""
        self._root = output / INDEX_DIRECTORY
        self._layout = IndexLayout(settings.max_hash_slot_num, settings.max_index_num)
        self._log = log
        files = IndexFiles(self._root, self._layout)
        is_built = settings.builds_index
        self._paths: list[Path | None] = [*files.named_paths()] if is_built else []
        """Paths of the files; None for a file that is missing and must exist."""
        self._check_file_size()
        self._known_begin = begin if is_built else None
        self.begin = files.first_phy_offset() if begin is None and is_built else self._known_begin
        """Offset from which keys are compared; None where there is no index."""
        self._differences = Differences()
        self._image = Image(0)
        """The current file in memory; empty before the first one."""
        self._compared_count = 0
        """Number of its entries that were compared, with number 0 among them."""
        self._gone_count = 1
        """Number of its entries that are of messages that are gone, with number 0 among them."""
        self._number = 0
        """Number of the current file."""
        self._last_message = _part(_END, 0, 0)
        self._firsts: list[int | None] = []
        """For each file, the first message in the log with an entry in it."""
        self._damaged: set[int] = set()
        """Numbers of damaged files."""
        self.headers: dict[str, IndexHeader] = {}
        """Headers by the log, by path below the output."""
        self._gone_extents: list[Extent] = []
        self._is_past_gone = log.start == 0
        """No file from here on has entries of messages that are gone."""

    def _check_file_size(self) -> None:
        if self._paths and not any(path and self._has_layout(path) for path in self._paths):
            IndexFiles(self._root, self._layout).paths()

    def _has_layout(self, path: Path) -> bool:
        """Return whether the settings may fit this file, which may have been cut or extended
        since."""
        size = path.stat().st_size
        header = read_header(path)
        first = read_bytes(path, self._layout.entry_position(1), INDEX_SIZE)
        begins = int(first.view(INDEX_ENTRY_DTYPE)[0]["offset"]) == header.begin_phy_offset
        is_too_short = size < self._layout.entry_position(2)
        return size == self._layout.file_size or is_too_short or begins

    def compare(self, batch: DispatchBatch) -> None:
        """Compare the keys of the next batch."""
        for entries in batch.index_entries:
            self._put(entries)

    def pass_damaged(self) -> None:
        """Take the next entries as they are, those of messages in damaged ranges of the log."""
        if self.begin is None or not self._paths:
            return
        if not len(self._image.data):
            self._begin_file(IndexHeader())
        while True:
            rest = self._layout.max_index_num - self._header().index_count
            is_next = rest <= 0
            # never of two files, which have different times
            count = min(rest if not is_next else self._layout.max_index_num - 1, BLOCK_ENTRIES)
            rows = self._next_entries(count)
            was_written = (rows["key_hash"] != 0) | (rows["offset"] > 0)
            is_damaged = self._log.are_damaged(rows["offset"], 1) & was_written
            passed = int(np.append(is_damaged, False).argmin())
            if not passed:
                return
            entries = self._entries_of(rows[:passed], self._number + is_next)
            self._unseen_count += passed
            self._put_entries(entries)
            self._last_message = _last_message(entries)

    def _entries_of(self, rows: NDArray[np.void], number: int) -> IndexEntries:
        """Return entries of the existing file of a number; it tells times in seconds, but for those
        of its first and last message."""
        header = read_header(self._paths[number])
        offsets = rows["offset"].astype(np.int64)
        times = header.begin_timestamp + rows["time_diff"].astype(np.int64) * 1000
        times[offsets == header.end_phy_offset] = header.end_timestamp
        times[offsets == header.begin_phy_offset] = header.begin_timestamp
        return IndexEntries(-1, offsets, rows["key_hash"].astype(np.int32), times)

    def _put(self, entries: IndexEntries) -> None:
        if self.begin is None:
            return
        first = int(np.searchsorted(entries.offsets, self.begin))
        if first < len(entries.offsets) and not len(self._image.data):
            self._begin_file(IndexHeader())
        while first < len(entries.offsets):
            rest = _part(entries, first, len(entries.offsets))
            last = first + self._count_before_repetition(rest)
            self._put_entries(_part(entries, first, last))
            if last > first:
                self._last_message = _last_message(_part(entries, first, last))
            if last < len(entries.offsets):
                self._put_entries(self._last_message)
            first = last

    def _put_entries(self, entries: IndexEntries) -> None:
        first = 0
        while first < len(entries.offsets):
            rest = slice(first, None)
            count = indexkernel.put_keys(
                self._image.data, self._layout.max_hash_slot_num, self._layout.max_index_num,
                entries.offsets[rest], entries.hashes[rest], entries.store_timestamps[rest],
            )  # fmt: skip
            if count and self._firsts[-1] is None:
                offset = self._firsts[-1] = int(entries.offsets[first])
                if self._begins_later(offset):
                    self._paths.insert(self._number, None)
            first += int(count)
            self._compare_entries()
            if first < len(entries.offsets):
                self._begin_file(self._end_file(is_last=False))

    def _begins_later(self, first_offset: int) -> bool:
        """Return whether the existing file is a later one: by its header and its first entry it
        begins after the message at ``first_offset``, with which the current file begins."""
        path = self._path
        if path is None or path.stat().st_size != self._layout.file_size:
            return False
        header = read_header(path)
        first = int(self._read_entries(1, 2)["offset"][0])
        return self._compared_count <= 1 and first_offset < first == header.begin_phy_offset

    @property
    def _path(self) -> Path | None:
        """Return the existing file for the current one."""
        return self._paths[self._number] if self._number < len(self._paths) else None

    def _count_before_repetition(self, entries: IndexEntries) -> int:
        """Return how many of the next entries precede a repetition of the previous message in the
        files: RocketMQ's restarts index the newest message twice (formats.md §13 no. 5), ours do
        not."""
        rows = self._next_entries(len(entries.offsets))
        wrong = np.flatnonzero(rows["offset"] != entries.offsets)
        if len(wrong):
            at = int(wrong[0])
            message = _last_message(_part(entries, 0, at)) if at else self._last_message
            repeated = rows[at : at + len(message.offsets)]
            count = len(repeated)
            # an entry that was never written is at offset 0
            is_repeated = (repeated["offset"] == message.offsets[:count]) & (repeated["offset"] > 0)
            if count and (is_repeated & (repeated["key_hash"] == message.hashes[:count])).all():
                return at
        return len(entries.offsets)

    def _next_entries(self, count: int) -> NDArray[np.void]:
        """Return INDEX_ENTRY_DTYPE[count], the next entries of the files; zeros after their end."""
        number, first, parts = self._number, self._header().index_count, []
        while count and number < len(self._paths):
            some = min(count, self._layout.max_index_num - first)
            start = self._layout.entry_position(first)
            parts.append(read_bytes(self._paths[number], start, some * INDEX_SIZE))
            number, first, count = number + 1, 1, count - some
        parts.append(np.zeros(count * INDEX_SIZE, np.uint8))
        # the concatenation is of bytes: numpy's concatenate would swap the values' byte order
        return np.concatenate(parts).view(INDEX_ENTRY_DTYPE)

    def _begin_file(self, header: IndexHeader) -> None:
        self._image = Image(self._layout.file_size)
        self._firsts.append(None)
        self._compared_count, self._gone_count = 0, 1
        self._compare_entries()
        if not self._is_past_gone:
            header = self._take_gone_entries(header)
        self._image.data[:INDEX_HEADER_SIZE] = np.frombuffer(header.encode(), np.uint8)

    def _take_gone_entries(self, empty: IndexHeader) -> IndexHeader:
        """Accept the entries of messages that are gone, as far as they are sound; return the
        header. Only the file knows their times."""
        layout = self._layout
        slots = np.zeros(layout.max_hash_slot_num, np.int32)
        count, used, last = 1, 0, 0
        if self._path:
            count, used, last = read_gone(self._path, layout, self._log.start, slots)
        self._compared_count = self._gone_count = count
        self._is_past_gone = count < layout.max_index_num
        if count == 1:
            return self._after_gone_file(empty)
        data = self._image.data
        data[INDEX_HEADER_SIZE : layout.entry_position(0)].view(HASH_SLOT_DTYPE)["entry"][:] = slots
        header = read_header(self._path)
        first = int(self._read_entries(1, 2)["offset"][0])
        return IndexHeader(header.begin_timestamp, header.end_timestamp, first, last, used, count)

    def _after_gone_file(self, empty: IndexHeader) -> IndexHeader:
        """Return the header of an empty file whose predecessor may be gone: the time difference of
        its first entry is to that one's last message, and only the entry tells it."""
        begins_later = self.begin is None or self.begin >= self._log.start
        if self._path is None or self._number or begins_later:
            return empty
        entry = self._layout.entry_position(1), self._layout.entry_position(2)
        self._gone_extents.append((f"{INDEX_DIRECTORY}/{self._path.name}", *entry))
        header = read_header(self._path)
        seconds = int(self._read_entries(1, 2)["time_diff"][0])
        return replace(empty, begin_timestamp=header.begin_timestamp - max(seconds, 0) * 1000)

    def _read_entries(self, first: int, last: int) -> NDArray[np.void]:
        """Return INDEX_ENTRY_DTYPE[last - first] of the existing file."""
        return read_entries(self._path, self._layout, first, last)

    def _header(self) -> IndexHeader:
        return IndexHeader.decode(self._image.data[:INDEX_HEADER_SIZE].tobytes())

    def _end_file(self, *, is_last: bool) -> IndexHeader:
        """Compare the rest of the current file; return the header of an empty one that follows
        it."""
        header = self._header()
        self._entry_count += header.index_count - self._gone_count
        # a cut may have left the file that followed, empty: its full predecessor's time counts
        is_full = header.index_count == self._layout.max_index_num
        if not is_last or (is_full and self._number + 1 < len(self._paths)):
            self.full_end_timestamps.append(header.end_timestamp)
        path = self._path
        if path is not None:
            self._note_gone(f"{INDEX_DIRECTORY}/{path.name}", header, is_last=is_last)
        if path is None:
            # an empty file comes with the next message
            if header.index_count > 1 or self._log.is_whole():
                expected = (self._layout.file_size,)
                self._note(Damage.MISSING, 0, 0, None, expected, self._firsts[-1])
        elif (size := path.stat().st_size) != self._layout.file_size:
            self._note(Damage.FILE_SIZE, 0, 0, (size,), (self._layout.file_size,), self._firsts[-1])
        elif is_last:
            self._compare_last_file(header, path)
        else:
            self._compare_file(header, path)
        self._number += 1
        return IndexHeader.of_follow_up(header)

    def _note_gone(self, name: str, header: IndexHeader, *, is_last: bool) -> None:
        self.headers[name] = header
        count, layout = self._gone_count, self._layout
        if count == header.index_count > 1 and is_last:
            # nothing tells the rest of the header
            self._gone_extents.append((name, 0, INDEX_HEADER_SIZE))
        elif count > 1:
            self._gone_extents += taken_extents(
                name, layout, count, is_full=count == header.index_count
            )

    def _compare_entries(self) -> None:
        """Compare the entries that were put since the last time, and forget them."""
        first, end = self._compared_count, self._header().index_count
        start, stop = map(self._layout.entry_position, (first, end))
        path = self._path
        if path and path.stat().st_size == self._layout.file_size:
            self._compare_records(path, start, stop, Damage.ENTRY)
        self._image.forget(self._layout.entry_position(0), stop)
        self._compared_count = end

    def _compare_file(self, header: IndexHeader, path: Path) -> None:
        """Compare slots and header, which follow from the entries, where the entries are right."""
        layout = self._layout
        self._check_tail(path, layout.entry_position(header.index_count))
        if self._number in self._damaged:
            return
        actual = read_header(path)
        if actual != header:
            begin = header.begin_phy_offset if header.index_count > 1 else None
            self._note(Damage.HEADER, 0, 0, header_fields(actual), header_fields(header), begin)
        self._compare_records(path, INDEX_HEADER_SIZE, layout.entry_position(0), Damage.SLOT)

    def _compare_last_file(self, header: IndexHeader, path: Path) -> None:
        """Compare a file as ``_compare_file`` does, unless there are messages beyond the watermark:
        then only its entries are durable, and a start rebuilds the rest."""
        if not self._log.is_whole():
            return
        was_damaged, before = self._number in self._damaged, len(self._differences.items)
        self._compare_file(header, path)
        if not self._log.is_whole():
            # a dispatcher has gone on meanwhile
            del self._differences.items[before:]
            if not was_damaged:
                self._damaged.discard(self._number)

    def _compare_records(self, path: Path, start: int, end: int, damage: Damage) -> None:
        """Compare entries, or slots, in the bytes [start, end)."""
        is_slot = damage is Damage.SLOT
        dtype = HASH_SLOT_DTYPE["entry"] if is_slot else INDEX_ENTRY_DTYPE
        origin = INDEX_HEADER_SIZE if is_slot else self._layout.entry_position(0)
        for at in range(start, end, _BLOCK_SIZE):
            actual = read_bytes(path, at, min(_BLOCK_SIZE, end - at))
            expected = self._image.data[at : at + len(actual)]
            if np.array_equal(expected, actual):
                continue
            actual_rows, expected_rows = actual.view(dtype), expected.view(dtype)
            wrong = (actual != expected).reshape(-1, dtype.itemsize).any(axis=1)
            for first, last in stretches(np.flatnonzero(wrong)):
                position = at + first * dtype.itemsize
                number = (position - origin) // dtype.itemsize
                entry = int(expected_rows[first]) if is_slot else number
                # slots are compared only where their entries are right
                message = (
                    self._read_entries(entry, entry + 1)[0] if is_slot else expected_rows[first]
                )
                self._note(
                    damage, position, number,
                    _values(actual_rows[first]), _values(expected_rows[first]),
                    int(message["offset"]) if entry else None, last - first,
                )  # fmt: skip

    def _check_tail(self, path: Path, start: int) -> None:
        """Check that only zeros follow the last entry; holes are not read."""
        for low, high in data_ranges(path, start, self._layout.file_size):
            for at in range(low, high, _BLOCK_SIZE):
                used = np.flatnonzero(read_bytes(path, at, min(_BLOCK_SIZE, high - at)))
                if len(used):
                    number = (at + int(used[0]) - self._layout.entry_position(0)) // INDEX_SIZE
                    position = self._layout.entry_position(number)
                    self._note(Damage.STRAY, position, number, None, None, None)
                    return

    def _note(
        self,
        damage: Damage,
        position: int,
        entry: int,
        actual: tuple[int, ...] | None,
        expected: tuple[int, ...] | None,
        physical_offset: int | None,
        count: int = 0,
    ) -> None:
        self._damaged.add(self._number)
        self._differences.add(
            Difference(
                INDEX_DIRECTORY, damage, f"{INDEX_DIRECTORY}/{self._name()}", position, None, None,
                entry, count, physical_offset, expected, actual,
            )
        )  # fmt: skip

    def _name(self) -> str:
        """Return the name of the current file; a missing one's is a time, which is lost."""
        before, after = self._paths[: self._number], self._paths[self._number :]
        if after and after[0]:
            return after[0].name
        for relation, paths in (("before", after), ("after", before[::-1])):
            for path in filter(None, paths):
                return f"(a file {relation} {path.name})"
        return "(its only file)"

    def finish(self, last_record_offset: int) -> list[Difference]:
        """Compare the last file, and look for others."""
        if self.begin is None:
            return []
        if not len(self._image.data) and (self._paths or last_record_offset >= self.begin):
            self._begin_file(IndexHeader())
        while len(self._image.data):
            if self._count_before_repetition(_END) == 0:
                self._put_entries(self._last_message)
                continue
            header = self._header()
            is_full = header.index_count >= self._layout.max_index_num
            # any message needs a file that is not full, with or without keys
            follows = is_full and last_record_offset > header.end_phy_offset
            following = self._end_file(is_last=not follows)
            self._image = Image(0)
            if follows:
                self._begin_file(following)
        while path := self._path:
            size = path.stat().st_size
            if self._log.is_whole():
                self._note(Damage.FILE, 0, 0, (size,), None, None)
            elif size != self._layout.file_size:
                self._note(Damage.FILE_SIZE, 0, 0, (size,), (self._layout.file_size,), None)
            self._number += 1
        return self._differences.items

    def gone_extents(self) -> Sequence[Extent]:
        """Return the bytes about messages before the log's start (``taken_extents``)."""
        return self._gone_extents

    @property
    def counts(self) -> Counts:
        """The entries that were compared."""
        compared = self._entry_count - self._unseen_count
        return Counts(index_entries=compared, unseen_index_entries=self._unseen_count)

    @property
    def replay_from(self) -> int | None:
        """Return the first message in the log with an entry in the first damaged file, or after it;
        if every file is removed, the offset at which the index began."""
        first = min(self._damaged, default=len(self._firsts))
        if first == 0 and self._known_begin is not None:
            return max(self._known_begin, self._log.start)
        offsets = [offset for offset in self._firsts[first:] if offset is not None]
        return min(offsets, default=None)

    def remove_strays(self) -> None:
        """Remove the files after the last one that belongs."""
        self._remove(len(self._firsts))

    def cut(self) -> None:
        """Remove the files from the first damaged one on."""
        self._remove(min(self._damaged, default=len(self._paths)))

    def _remove(self, first: int) -> None:
        if self._damaged and first < len(self._paths):
            for path in filter(None, reversed(self._paths[first:])):
                fsops.unlink(path)
            fsops.sync_directory(self._root)


def _last_message(entries: IndexEntries) -> IndexEntries:
    first = int(np.searchsorted(entries.offsets, entries.offsets[-1]))
    return _part(entries, first, len(entries.offsets))


def _part(entries: IndexEntries, first: int, last: int) -> IndexEntries:
    offsets, hashes, times = entries.offsets, entries.hashes, entries.store_timestamps
    return IndexEntries(-1, offsets[first:last], hashes[first:last], times[first:last])


def _values(row: np.void | np.int32) -> tuple[int, ...]:
    """Return the fields of an entry, or the value of a slot."""
    fields = row.item()
    return fields if isinstance(fields, tuple) else (fields,)
