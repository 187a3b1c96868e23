"""Compares the ext units of one queue: each address in the queue must lead to its message's unit.

Between two of them there may be units that no address points to, as RocketMQ leaves them when it
dispatches again (formats.md §13 no. 4); those only have to be well formed, so that a walk over them
arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store.config import StoreSettings
from reput.store.files import CONSUME_QUEUE_EXT_DIRECTORY
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.consumequeueext import (
    END_BLANK_DATA_LENGTH,
    END_MARK,
    EXT_UNIT_DTYPE,
    MAX_ADDR,
    MAX_EXT_UNIT_SIZE,
    MIN_EXT_UNIT_SIZE,
    NO_ADDRESS,
    ConsumeQueueExtFiles,
    ExtUnit,
    decode_unit,
    is_ext_addr,
    place,
)
from reput.store.queue.unsynced import UnsyncedFiles
from reput.store.runs.dispatch import Run
from reput.upkeep.entryfields import ext_unit_fields
from reput.upkeep.verify.comparedfiles import ComparedFiles
from reput.upkeep.verify.difference import Damage, LogRange

_UNITS_AT_ONCE = 1 << 15
_REAL_OFFSET = (1 << 63) - 1
"""Mask of an address without its sign bit."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """Messages that have units."""

    units: NDArray[np.void]
    details: NDArray[np.void]
    bit_maps: NDArray[np.uint8] | None
    """The bit maps; None where no message has one."""

    def take(self, at: NDArray[np.intp]) -> _Expected:
        """Return the messages at these indexes."""
        maps = None if self.bit_maps is None else self.bit_maps[at]
        return _Expected(self.units[at], self.details[at], maps)

    def unit(self, index: int) -> ExtUnit:
        """Return the ext unit that one message must have."""
        return ExtUnit(
            int(self.units["tags_code"][index]),
            int(self.details["store_timestamp"][index]),
            None if self.bit_maps is None else self.bit_maps[index].tobytes(),
        )


class ComparedExt(ComparedFiles):
    """The ext files of one queue as they are; it writes only to heal."""

    directory_name = CONSUME_QUEUE_EXT_DIRECTORY

    def __init__(self, output: Path, key: QueueKey, settings: StoreSettings, log: LogRange) -> None:
        directory = output / self.directory_name / key.relative_path
        super().__init__(directory, settings.mapped_file_size_consume_queue_ext, log)
        self._is_on = settings.enable_consume_queue_ext
        """Every message after the first with a unit has one."""
        self._has_bit_maps = settings.builds_bit_maps
        """Runs have those that ext units must have; otherwise any bit map is accepted."""
        self._expected: _Expected | None = None
        self._place: int | None = 0 if log.start == 0 else None
        """Address after the last unit; None where it is not known."""
        self._sound_end = 0
        """Address after the last sound unit."""
        self._lost_end = 0
        """Lower bound for the end of the ext units of messages that have lost their queue units."""
        self._has_units = False
        """An address has been seen; from there on every message has one."""
        self._first_plain: tuple[int, int] | None = None
        """(physical offset, queue offset) of the first message without one."""
        self._before: int | None = None
        """Address of the last unit of a message that is gone; None where it is not known."""
        self._is_start_checked = False
        self._broken: list[tuple[int, int]] = []
        """Ranges [from, to) of damaged units of messages that are gone."""

    def expect(self, run: Run, first: int, last: int) -> None:
        """Take the content that the next units must have: that of messages [first, last)."""
        if run.details is None:
            raise AssertionError("ext units need the details of their messages")
        maps = None if run.bit_maps is None else run.bit_maps[first:last]
        self._expected = _Expected(run.units[first:last], run.details[first:last], maps)

    def begin_after(self, tags_code: int) -> None:
        """Record the tagsCode of the last unit before the first that can be compared."""
        self._has_units = is_ext_addr(tags_code)
        self._before = tags_code & _REAL_OFFSET if self._has_units else None

    def begin_empty(self) -> None:
        """Record that the queue does not exist, so that no ext file belongs to it."""
        self._place = 0

    def check_gone(self, tags_code: int) -> None:
        """Record the tagsCode of the last unit of a queue without a message in the log; where it is
        an address, its ext unit must be well formed."""
        self.begin_after(tags_code)
        self._check_start(-1, is_sound=False)

    def resolve(self, codes: NDArray[np.int64], queue_offset: int) -> NDArray[np.bool_]:
        """Return bool[n]: which queue units of the expected messages have the right tagsCode: their
        own, or the address at which their ext unit belongs, sound or not. The first of them is unit
        ``queue_offset``."""
        expected = self._expected
        if expected is None or len(expected.units) != len(codes):
            raise AssertionError("units are compared that were not expected")
        is_right: NDArray[np.bool_] = codes == expected.units["tags_code"]
        has_own = expected.details["is_light"] == 0
        at = np.flatnonzero((codes <= MAX_ADDR) & has_own)
        if self._is_on and self._fits(expected):
            self._check_plain(expected, codes, has_own, is_right, queue_offset)
        for first in range(0, len(at), _UNITS_AT_ONCE):
            some = at[first : first + _UNITS_AT_ONCE]
            offsets = codes[some] & _REAL_OFFSET
            is_right[some] = self._compare(offsets, expected.take(some), queue_offset + some)
        return is_right

    def check_lost(self, lost: NDArray[np.bool_], queue_offset: int) -> None:
        """Check the ext units of the expected messages (bool[n]) whose queue units are lost. They
        still have one, in an existing file: where it belongs, or later."""
        expected, begin = self._expected, self._place
        if expected is None or begin is None or not self._is_on or not lost.any():
            return
        at = np.flatnonzero(lost & (expected.details["is_light"] == 0))
        messages = expected.take(at)
        maps = np.empty((len(at), 0), np.uint8) if messages.bit_maps is None else messages.bit_maps
        placement = place(
            max(begin, self._lost_end), self.file_size, messages.units["tags_code"],
            messages.details["store_timestamp"], maps,
        )  # fmt: skip
        self._lost_end = placement.end
        for index in np.flatnonzero(placement.addresses != NO_ADDRESS):
            offset = int(placement.addresses[index]) & _REAL_OFFSET
            if offset - offset % self.file_size not in self.sizes:
                physical_offset = int(messages.units["offset"][index])
                self._note_missing(offset, physical_offset, queue_offset + int(at[index]))

    def _fits(self, expected: _Expected) -> bool:
        """Return whether a file can hold their ext units; otherwise units keep their tagsCodes."""
        width = 0 if expected.bit_maps is None else expected.bit_maps.shape[1]
        size = MIN_EXT_UNIT_SIZE + width
        return size <= min(MAX_EXT_UNIT_SIZE, self.file_size - END_BLANK_DATA_LENGTH)

    def _check_plain(
        self,
        expected: _Expected,
        codes: NDArray[np.int64],
        has_own: NDArray[np.bool_],
        is_right: NDArray[np.bool_],
        queue_offset: int,
    ) -> None:
        """Check units without an address: they may only precede the first one with an address, from
        a time without an ext, which then begins with that one."""
        plain = has_own & (codes > MAX_ADDR)
        addresses = np.flatnonzero(has_own & (codes <= MAX_ADDR))
        if self._has_units:
            is_right[plain] = False
            return
        if not len(addresses) and not plain.any():
            return
        before = np.flatnonzero(plain[: addresses[0]] if len(addresses) else plain)
        if len(before) and self._first_plain is None:
            offset = int(expected.units["offset"][before[0]])
            self._first_plain = offset, queue_offset + int(before[0])
        if len(addresses):
            is_right[np.flatnonzero(plain[addresses[0] :]) + addresses[0]] = False
            begins = int(codes[addresses[0]]) & _REAL_OFFSET == 0
            if self._first_plain is not None and not begins and self._log.start == 0:
                offset, entry = self._first_plain
                self._note(Damage.UNIT, 0, offset, entry=entry, count=1)

    def _compare(
        self, offsets: NDArray[np.int64], expected: _Expected, entries: NDArray[np.intp]
    ) -> NDArray[np.bool_]:
        """Return bool[n]: which offsets are where the ext units belong; wrong units there are
        noted."""
        self._has_units = True
        sound, sizes = self._read(offsets, expected)
        damaged = np.zeros(len(offsets), np.bool_)
        ends = offsets + sizes
        follows = np.zeros(len(offsets), np.bool_)
        follows[0] = offsets[0] == self._place
        follows[1:] = sound[:-1] & (offsets[1:] == ends[:-1])
        place = self._place
        for index in np.flatnonzero(~(sound & follows)):
            if index:
                place = int(ends[index - 1]) if sound[index - 1] else None
            self._sound_end = self._sound_end if place is None else place
            offset = int(offsets[index])
            if not sound[index]:
                # at any other place the queue's unit is the wrong one
                next_file = None if place is None else place - place % -self.file_size
                damaged[index] = (
                    self._may_exist(offset) if place is None else offset in (place, next_file)
                )
                self._check_start(offset, is_sound=False)
            elif place is None:
                self._check_start(offset, is_sound=True)
            elif offset < place:
                sound[index] = False
            elif self._walk(place, offset) != offset:
                sound[index], damaged[index] = False, True
            if damaged[index]:
                self._note_unit(offset, expected, int(index), int(entries[index]))
        self._place = int(ends[-1]) if sound[-1] else None
        return sound | damaged

    def _may_exist(self, offset: int) -> bool:
        """Whether a unit whose place does not follow from the one before it may have been at this
        offset: beyond the last sound one, and up to the file after the last one that is there or
        known to be gone. If there is none, and the log has lost its front, nothing tells."""
        starts = self.sizes.keys() | self._missing
        if not starts and self._log.start:
            return True
        return self._sound_end <= offset < max(starts, default=0) + 2 * self.file_size

    def _read(
        self, offsets: NDArray[np.int64], expected: _Expected
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return whether the units at these offsets are as expected, and their sizes."""
        sound, sizes = np.zeros(len(offsets), np.bool_), np.zeros(len(offsets), np.int64)
        starts = offsets - offsets % self.file_size
        for start in np.unique(starts):
            if int(start) not in self.sizes:
                continue
            at = np.flatnonzero(starts == start)
            low, high = int(offsets[at].min()), int(offsets[at].max())
            data = self.bytes_at(low, high - low + MIN_EXT_UNIT_SIZE + MAX_EXT_UNIT_SIZE)
            positions = offsets[at] - low
            units = data[positions[:, None] + np.arange(MIN_EXT_UNIT_SIZE)].view(EXT_UNIT_DTYPE)
            size = units["size"][:, 0].astype(np.int64)
            width = units["bit_map_size"][:, 0].astype(np.int64)
            messages = expected.take(at)
            good = (width >= 0) & (size == MIN_EXT_UNIT_SIZE + width)
            good &= positions + low - start + size <= self.file_size - END_BLANK_DATA_LENGTH
            good &= units["tags_code"][:, 0] == messages.units["tags_code"]
            good &= units["time"][:, 0] == messages.details["store_timestamp"]
            if self._has_bit_maps:
                maps = messages.bit_maps
                maps = np.empty((len(at), 0), np.uint8) if maps is None else maps
                actual_maps = data[
                    positions[:, None] + MIN_EXT_UNIT_SIZE + np.arange(maps.shape[1])
                ]
                good &= (width == maps.shape[1]) & (actual_maps == maps).all(axis=1)
            sound[at], sizes[at] = good, size
        return sound, sizes

    def _walk(self, begin: int, target: int) -> int:
        """Walk from unit to unit up to ``target``, over marked ends of files; return where the walk
        ends."""
        while begin < target:
            start = begin - begin % self.file_size
            file_end = start + self.file_size
            if start not in self.sizes:
                return begin
            data = self.bytes_at(begin, min(target, file_end) - begin).tobytes()
            position = 0
            while (unit := decode_unit(data, position)) is not None:
                position += unit.size
            begin += position
            if target < file_end or data[position:].rstrip(b"\0") != END_MARK:
                return begin
            begin = file_end
        return begin

    def _check_start(self, offset: int, *, is_sound: bool) -> None:
        """Check the part before the first unit that can be compared, which belongs at ``offset`` if
        it is sound: it must consist of well-formed units, so that a walk arrives, and include the
        unit that the queue points to last."""
        if self._log.start == 0 or self._is_start_checked:
            return
        self._is_start_checked = True
        before = self._before
        if before is not None and not (self._may_exist(before) and (offset < 0 or before < offset)):
            # a damaged address: up to it there may be units of messages in the log, or terabytes
            before = None
        last = offset if is_sound else before
        if last is None:
            return
        at = last - last % self.file_size
        for stop in sorted({last, last if before is None else max(before, at)}):
            reached = self._walk(at, stop)
            if reached != stop:
                self._break(reached if stop - reached >= MIN_EXT_UNIT_SIZE else at, stop)
            at = stop
        if not is_sound and not self._is_unit(last):
            self._break(last, last + MIN_EXT_UNIT_SIZE)

    def _is_unit(self, offset: int) -> bool:
        size = min(MAX_EXT_UNIT_SIZE, -offset % self.file_size or self.file_size)
        return decode_unit(self.bytes_at(offset, size).tobytes(), 0) is not None

    def _break(self, begin: int, end: int) -> None:
        self._broken.append((begin, end))
        self._note(Damage.EXPIRED, begin, found=(end - begin,))

    def _note_unit(self, offset: int, expected: _Expected, index: int, entry: int) -> None:
        start = offset - offset % self.file_size
        physical_offset = int(expected.units["offset"][index])
        if start not in self.sizes:
            self._note_missing(offset, physical_offset, entry)
            return
        size = min(MAX_EXT_UNIT_SIZE, start + self.file_size - offset)
        unit = decode_unit(self.bytes_at(offset, size).tobytes(), 0)
        self._note(
            Damage.UNIT, offset, physical_offset, entry=entry, count=1,
            found=None if unit is None else tuple(ext_unit_fields(unit).values()),
            expected=tuple(ext_unit_fields(expected.unit(index)).values()),
        )  # fmt: skip

    def finish(self) -> None:
        """Check what no address leads to: files, and units after the last one."""
        last = self._last_start() if self._place is not None else None
        at, rest = self._rest(last)
        beyond = {start for start in self.sizes if last is not None and start > last}
        if (beyond or rest) and not self._log.is_whole():
            beyond, rest = set(), 0
        self._note_files(lambda start: start % self.file_size == 0 and start not in beyond)
        if rest:
            self._note(Damage.STRAY, at, found=(rest,))

    def _rest(self, last: int | None) -> tuple[int, int]:
        """Return where the units end in the file at ``last``, the last one, and how many bytes that
        are no units follow them."""
        if last is None or last not in self.sizes or self._place is None:
            return 0, 0
        begin = max(self._place, last)
        data = self.bytes_at(begin, max(last + self.used_bytes(last) - begin, 0)).tobytes()
        position = 0
        while (unit := decode_unit(data, position)) is not None:
            position += unit.size
        return begin + position, len(data[position:].rstrip(b"\0"))

    def _last_start(self) -> int:
        """Return the start of the file in which the ext ends: that of the last unit, or of a later
        one that no address points to; -1 where there are no units at all."""
        if not self._has_units or self._place is None:
            return -1
        following = self._place - self._place % -self.file_size
        while following in self.sizes and self._walk(self._place, following) == following:
            following += self.file_size
        return following - self.file_size

    def remove_strays(self, root: Path) -> None:
        """Heal damage that costs no message. Raises OutputError, SyncError."""
        self._heal_files()
        files = ConsumeQueueExtFiles(self.directory, self.file_size)
        unsynced = UnsyncedFiles()
        for begin, end in self._broken:
            at = begin
            while at < end:
                size = min(end - at, MAX_EXT_UNIT_SIZE)
                if 0 < end - at - size < MIN_EXT_UNIT_SIZE:
                    size -= MIN_EXT_UNIT_SIZE
                files.write_pieces([(at, _gone_unit(size))], root, unsynced)
                at += size
        unsynced.sync()
        for difference in self.differences:
            if difference.damage is Damage.STRAY:
                files.clear_from(int(Path(difference.path).name) + difference.position)


def _gone_unit(size: int) -> bytes:
    """Return a unit for some message that is gone: only its size counts."""
    unit = np.zeros(1, EXT_UNIT_DTYPE)
    unit["size"], unit["bit_map_size"] = size, size - MIN_EXT_UNIT_SIZE
    return unit.tobytes().ljust(size, b"\0")
