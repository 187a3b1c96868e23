"""One queue that is compared unit by unit: the common part of consume and batch queues.

Healing cuts a queue at its first wrong unit; a dispatcher that resumes from the first message
without a unit (``replay_from``) writes the rest again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store import fsops
from reput.store.queue.consumequeue import PRE_BLANK_SIZE, QueueFiles
from reput.store.queue.unsynced import UnsyncedFiles
from reput.upkeep.verify.comparedfiles import ComparedFiles
from reput.upkeep.verify.difference import Damage, Extent, LogRange, stretches

_NOWHERE = 1 << 63
_UNITS_AT_ONCE = 1 << 8


class FoundQueue(ComparedFiles, QueueFiles):
    """The units of one queue as they are, by the places of their messages."""

    def _entry_at(self, position: int) -> int:
        return position // self.unit_size

    def _find_first(self, first: NDArray[np.void]) -> int | None:
        """Return the byte position of the queue's first sound message in the log, by the existing
        units; None where the log before it is whole, or no unit shows it."""
        if self._log.start == 0:
            is_sure = not self.starts or not self._log.damaged
            return None if is_sure else self._damaged_end(self.starts[0], is_first=True) or None
        offsets = first["offset"]
        votes: Counter[int] = Counter()
        for start in self.starts:
            units = self._units(start)
            places = np.flatnonzero(np.isin(units["offset"], offsets) & (units["size"] > 0))
            indexes = places - np.searchsorted(offsets, units["offset"][places])
            votes.update((start // self.unit_size + indexes).tolist())
        if not votes:
            return None
        # the majority decides: a single unit may have been moved
        index = self._first_index(votes.most_common(1)[0][0])
        return index * self.unit_size if index >= 0 else None

    def _first_index(self, voted: int) -> int:
        return voted

    def _message_before(self, position: int) -> tuple[int, int]:
        """Physical offset and size that the unit before a position has."""
        unit = self.bytes_at(position - self.unit_size, self.unit_size).view(self.UNIT_DTYPE)[0]
        return int(unit["offset"]), int(unit["size"])

    def last_gone(self, position: int) -> tuple[int, int] | None:
        """Physical offset and size of the message of the unit before a position; None where that
        cannot be a message before the log's first byte."""
        offset, size = self._message_before(position)
        return (offset, size) if offset >= 0 and 0 < size <= self._log.start - offset else None

    def _damaged_end(self, position: int, *, is_first: bool) -> int:
        """Return the end of the units from a byte on that are of messages in damaged ranges; blanks
        may precede a queue's first ones."""
        count = _UNITS_AT_ONCE
        while count == _UNITS_AT_ONCE:
            units = self.bytes_at(position, count * self.unit_size).view(self.UNIT_DTYPE)
            passed = self._are_damaged(units)
            if is_first:
                passed |= self._are_blank(units, is_first=True)
            count = int(np.append(passed, False).argmin())
            position += count * self.unit_size
        return position

    def _expired_end(self) -> int:
        """Return the end of the last unit of a queue that has no message in the log."""
        for start in reversed(self.starts):
            units = self._units(start)
            used = np.flatnonzero((units != np.zeros(1, self.UNIT_DTYPE)) & ~self._is_live(units))
            if len(used):
                return start + (int(used[-1]) + 1) * self.unit_size
        return 0

    def _units(self, start: int, least: int = 0) -> NDArray[np.void]:
        """Return the units of a file, from at least ``least`` bytes; without the zeros at its end
        that the file system reports as a hole."""
        end = min(max(self.used_bytes(start), least), self.file_size)
        size = -(-end // self.unit_size) * self.unit_size
        return self.bytes_at(start, size).view(self.UNIT_DTYPE)

    def _are_gone(self, units: NDArray[np.void], newest: int) -> tuple[NDArray[np.bool_], int]:
        """Return which units may be of messages before the log's first byte, and the highest of
        their offsets; ``newest`` is that of the units before them. Offsets must not fall: a search
        for the queue's end would stop there."""
        offsets, sizes = units["offset"], units["size"].astype(np.int64)
        # a difference cannot overflow, whatever stands there
        is_gone = (sizes > 0) & (offsets >= 0) & (offsets <= self._log.start - sizes)
        is_real = is_gone & (sizes != PRE_BLANK_SIZE)
        before = np.maximum.accumulate(np.where(is_real, offsets, newest).clip(newest))
        is_gone &= ~is_real | (offsets == before)
        return is_gone, int(before[-1]) if len(before) else newest

    def _are_blank(self, units: NDArray[np.void], *, is_first: bool) -> NDArray[np.bool_]:  # noqa: ARG002
        return np.zeros(len(units), np.bool_)

    def _are_ahead(self, start: int, units: NDArray[np.void]) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return which units of the file at ``start`` may have been written for messages beyond the
        watermark, or follow from damaged ranges of the log."""
        return self._is_live(units) | self._are_damaged(units)

    def _are_damaged(self, units: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return which units are of messages in damaged ranges of the log."""
        return self._log.are_damaged(units["offset"], units["size"].astype(np.int64))

    def _is_live(self, units: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return which units belong to messages beyond the watermark, and will be written anew."""
        offsets, sizes = units["offset"], units["size"].astype(np.int64)
        is_beyond = np.asarray((offsets >= self._log.end) & (sizes > 0))
        if is_beyond.any():
            self._log.reaches(int(offsets[is_beyond].max()) + 1)
        return is_beyond & (offsets <= self._log.sealed_end - sizes)


class ComparedQueue(FoundQueue):
    """One queue that is compared; it writes only to heal."""

    writable: type[QueueFiles]
    """The class of files that can write, for healing."""

    def __init__(
        self, directory: Path, file_size: int, log: LogRange, first: NDArray[np.void] | None
    ) -> None:
        """``first`` holds the queue's first units in the log; None without one."""
        super().__init__(directory, file_size, log)
        self.compared = 0
        """Number of units compared."""
        self.unseen = 0
        """Number of units of messages in damaged ranges."""
        self.anchor = None if first is None else self._find_first(first)
        """Byte position of the first message in the log; None where it is the queue's first, or no
        unit shows it."""
        self._begin: int | None = None
        self._end = 0
        self._gone_end = 0
        """End of the units that are of messages before the log's start."""
        self._is_emptied = False
        """The queue has lost every file, and the log every message of it."""

    def pass_damaged(self) -> None:
        """Go on after the units of messages in damaged ranges of the log."""
        if self._begin is None:
            return
        end = self._damaged_end(self._end, is_first=False)
        if end > self._end:
            self.unseen += (end - self._end) // self.unit_size
            self._end = end
            self._go_on(end, *self._message_before(end))

    @abstractmethod
    def _go_on(self, position: int, physical_offset: int, size: int) -> None:
        """Let the next message belong at a position, after the unit of such a message."""

    def compare_at(self, position: int, data: bytes | memoryview) -> None:
        """Compare the bytes of units that belong at a position."""
        expected = np.frombuffer(data, np.uint8)
        actual = self.bytes_at(position, len(expected))
        units = expected.view(self.UNIT_DTYPE)
        self._note_units(position, units, actual.view(self.UNIT_DTYPE))
        self._begin = position if self._begin is None else self._begin
        self._end = position + len(expected)
        self.compared += len(expected) // self.unit_size

    def _are_wrong(
        self,
        position: int,  # noqa: ARG002
        expected: NDArray[np.void],
        actual: NDArray[np.void],
    ) -> NDArray[np.bool_]:
        """Return bool[n]: which units differ from those that follow from the log."""
        wrong: NDArray[np.bool_] = expected != actual
        return wrong

    def _note_units(
        self, position: int, expected: NDArray[np.void], actual: NDArray[np.void]
    ) -> None:
        wrong = np.flatnonzero(self._are_wrong(position, expected, actual))
        if not len(wrong):
            return
        real = np.flatnonzero(expected["size"] != PRE_BLANK_SIZE)
        # offsets of the message at or after each wrong unit
        offsets = expected["offset"][real[np.searchsorted(real, wrong)]]
        starts = (position + wrong * self.unit_size) // self.file_size * self.file_size
        is_missing = ~np.isin(starts, self.starts)
        for start in np.unique(starts[is_missing]).tolist():
            at = int(np.searchsorted(starts, start))
            self._note_missing(position + int(wrong[at]) * self.unit_size, int(offsets[at]))
        for first, last in stretches(wrong[~is_missing]):
            self._note(
                Damage.UNIT, position + first * self.unit_size,
                int(offsets[np.searchsorted(wrong, first)]), count=last - first,
                found=actual[first].item(), expected=expected[first].item(),
            )  # fmt: skip

    def finish(self) -> None:
        """Check the parts that were not compared: files, expired units, and bytes after the last
        unit."""
        first, begin, end = self._bounds()
        self._gone_end = begin if self._log.start else 0
        if not self.sizes and self._begin is None and self._log.start:
            self._is_emptied = self._has_traces() and self._log.is_whole()
        if self._is_emptied:
            self._note_missing(0)

        def belongs(start: int) -> bool:
            is_inside = start % self.file_size == 0 and first < start + self.file_size
            return is_inside and (start < end or self._goes_on(start, end))

        self._note_files(belongs)
        newest_gone = -1
        for start in self.starts:
            is_compared = begin <= start and start + self.file_size <= end
            if start not in self._strays and not is_compared:
                units = self._units(start, least=begin - start)
                at = start + self.unit_size * np.arange(len(units))
                is_damaged = self._are_damaged(units) & ((at < begin) | (at >= end))
                self.unseen += int(is_damaged.sum())
                is_gone, newest_gone = self._are_gone(units, newest_gone)
                is_gone |= is_damaged
                is_blank = self._are_blank(units, is_first=start == first)
                self._note_wrong(Damage.EXPIRED, start, units, (at < begin) & ~is_gone & ~is_blank)
                is_zero = units == np.zeros(1, self.UNIT_DTYPE)
                is_stray = (at >= end) & ~is_zero & ~self._are_ahead(start, units)
                self._note_wrong(Damage.STRAY, start, units, is_stray)

    def gone_extents(self) -> Iterator[Extent]:
        """Yield the bytes of units of messages before the log's start."""
        for start in self.starts:
            size = min(self._gone_end - start, self.file_size)
            if size > 0:
                yield self._file_path(start), 0, size

    def _has_traces(self) -> bool:
        """Return whether a queue without a file had one: a queue keeps its last file, or is removed
        as a whole."""
        return self.directory.is_dir()

    def _goes_on(self, start: int, end: int) -> bool:
        """Return whether a file after the last unit follows the previous one, and has units of
        messages beyond the watermark, or none at all, where RocketMQ created it for a message that
        it dropped."""
        before, units = start - self.file_size, self._units(start)
        is_whole = self.sizes[start] == self.file_size
        if start == end and is_whole and before in self.sizes and not units.view(np.uint8).any():
            return True
        follows = before < end or (before in self.sizes and before not in self._strays)
        begins = self._begin is None and start == self.starts[0]
        return (follows or begins) and bool(self._are_ahead(start, units).any())

    def _note_wrong(
        self, damage: Damage, start: int, units: NDArray[np.void], wrong: NDArray[np.bool_]
    ) -> None:
        for low, high in stretches(np.flatnonzero(wrong)):
            position = start + low * self.unit_size
            self._note(damage, position, count=high - low, found=units[low].item())

    def _bounds(self) -> tuple[int, int, int]:
        """Return byte positions: the first file that belongs, the first unit of a message in the
        log, and the end of the last unit. Without a message in the log the last two are the
        same."""
        begin, end = self._begin, self._end
        if begin is None:
            begin = end = self._expired_end() if self._log.start else 0
        elif self.anchor is None:
            return begin, begin, end
        first = begin - begin % -self.file_size
        while first - self.file_size in self.sizes:
            first -= self.file_size
        return first, begin, end

    def remove_strays(self, root: Path) -> None:
        """Heal damage that costs no message: restore file sizes, remove files that do not belong,
        write units of some gone message where the real ones are unknown, and drop a queue that has
        lost everything. Raises OutputError, SyncError."""
        self._heal_files()
        files = self.writable(self.directory, self.file_size)
        unsynced = UnsyncedFiles()
        for difference in self._own.items:
            if difference.damage is Damage.EXPIRED:
                gone = self._gone_unit(files, difference.entry).tobytes() * difference.count
                files.write(difference.entry * self.unit_size, gone, root, unsynced)
        unsynced.sync()
        strays = (item.entry for item in self._own.items if item.damage is Damage.STRAY)
        files.clear_from(min(strays, default=_NOWHERE) * self.unit_size)
        if self._is_emptied or (self._strays and set(self._strays) == set(self.sizes)):
            # an empty directory would be taken for a queue that has lost its files
            fsops.remove_directory(self.directory)
            fsops.remove_directory(self.directory.parent)

    def _gone_unit(self, files: QueueFiles, index: int) -> NDArray[np.void]:
        """Return a unit of the previous message: offsets must not fall, and blanks must not stand
        there, because a truncated queue would then be taken to end before them."""
        before = files.read(max(index - 1, 0), 1)
        last = int(before[0]["offset"]) if index and len(before) else 0
        gone = np.zeros(1, self.UNIT_DTYPE)
        gone["offset"], gone["size"] = min(max(last, 0), self._log.start - 1), 1
        return gone

    def cut(self) -> None:
        """Cut the queue at its first wrong unit that the log can provide again. Raises OutputError,
        SyncError."""
        lost = [difference.entry for difference in self.differences if difference.is_lost]
        if lost:
            position = min(lost) * self.unit_size
            files = self.writable(self.directory, self.file_size)
            # without a message left, the rest is blank and the queue begins anew
            files.clear_from(position if files.last_unit(position) else 0)
