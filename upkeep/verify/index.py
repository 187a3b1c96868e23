"""Compares index files with the log; names are times and carry no order that could be compared.

Healing removes the files from the first damaged one on; the next run fills them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store.config import StoreSettings
from reput.store.index.indexfile import INDEX_HEADER_SIZE, IndexHeader
from reput.store.runs.dispatch import DispatchBatch, IndexEntries
from reput.upkeep.verify.comparedindex import ComparedIndex
from reput.upkeep.verify.difference import Counts, Difference, Extent, LogRange
from reput.upkeep.verify.indexbytes import BLOCK_ENTRIES, FoundIndex, read_gone, taken_extents

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
        self._layout = settings.index_layout
        self._log = log
        self._files = FoundIndex(output, self._layout, is_built=settings.builds_index)
        self._current = ComparedIndex(self._files, log)
        self._known_begin = begin if settings.builds_index else None
        self.begin = self._files.first_phy_offset() if begin is None else self._known_begin
        """Offset from which keys are compared; None where there is no index."""
        self._entry_count = 0
        """Number of entries compared with the log."""
        self._unseen_count = 0
        """Number of entries of messages in damaged ranges of the log."""
        self.full_end_timestamps: list[int] = []
        """endTimestamps, in ms, of the files that another one follows, by the log."""
        self.headers: dict[str, IndexHeader] = {}
        """Headers by the log, by path below the output."""
        self._last_message = _part(_END, 0, 0)
        self._firsts: list[int | None] = []
        """For each file, the first message in the log with an entry in it."""
        self._gone_count = 1
        """Number of entries of the current file that are of messages that are gone, with number 0
        among them."""
        self._gone_extents: list[Extent] = []
        self._is_past_gone = log.start == 0
        """No file from here on has entries of messages that are gone."""

    def compare(self, batch: DispatchBatch) -> None:
        """Compare the keys of the next batch."""
        if self.begin is None:
            return
        for entries in batch.index_entries:
            first = int(np.searchsorted(entries.offsets, self.begin))
            self._put(_part(entries, first, len(entries.offsets)))

    def pass_damaged(self) -> None:
        """Take the next entries as they are, those of messages in damaged ranges of the log."""
        if self.begin is None or not self._files.paths:
            return
        if not self._current.is_begun:
            self._begin_file(IndexHeader())
        while True:
            rest = self._layout.max_index_num - self._current.header.index_count
            is_next = rest <= 0
            # never of two files, which have different times
            count = min(rest if not is_next else self._layout.max_index_num - 1, BLOCK_ENTRIES)
            rows = self._next_entries(count)
            was_written = (rows["key_hash"] != 0) | (rows["offset"] > 0)
            is_damaged = self._log.are_damaged(rows["offset"], 1) & was_written
            passed = int(np.append(is_damaged, False).argmin())
            if not passed:
                return
            entries = self._files.messages(self._current.number + is_next, rows[:passed])
            self._unseen_count += passed
            self._put_entries(entries)
            self._last_message = _last_message(entries)

    def _put(self, entries: IndexEntries) -> None:
        if len(entries.offsets) and not self._current.is_begun:
            self._begin_file(IndexHeader())
        while len(entries.offsets):
            count = self._count_before_repetition(entries)
            if count:
                own, entries = _part(entries, 0, count), _part(entries, count, len(entries.offsets))
                self._put_entries(own)
                self._last_message = _last_message(own)
            if len(entries.offsets):
                self._put_entries(self._last_message)

    def _put_entries(self, entries: IndexEntries) -> None:
        first = 0
        while first < len(entries.offsets):
            count = self._current.put(entries, first)
            if count and self._firsts[-1] is None:
                offset = self._firsts[-1] = int(entries.offsets[first])
                if self._begins_later(offset):
                    self._files.paths.insert(self._current.number, None)
            first += count
            self._current.compare_entries()
            if first < len(entries.offsets):
                self._begin_file(self._end_file(is_last=False))

    def _begins_later(self, first_offset: int) -> bool:
        """Return whether the existing file is a later one: it begins after the message at
        ``first_offset``, with which the current file begins."""
        number = self._current.number
        if self._files.size(number) != self._layout.file_size or self._current.compared_count > 1:
            return False
        begin = self._files.begins_at(number)
        return begin is not None and first_offset < begin

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
        current = self._current
        return self._files.next_entries(current.number, current.header.index_count, count)

    def _begin_file(self, header: IndexHeader) -> None:
        """Begin a file, with those entries of messages that are gone which are sound; ``header`` is
        that of an empty one."""
        self._firsts.append(None)
        self._gone_count, slots = 1, None
        path, layout = self._files.path(self._current.number), self._layout
        if path is not None and not self._is_past_gone:
            slots = np.zeros(layout.max_hash_slot_num, np.int32)
            self._gone_count, used, last = read_gone(path, layout, self._log.start, slots)
            if self._gone_count == 1:
                header, slots = self._after_gone_file(header), None
            else:
                # only the file knows the times
                own = self._files.header(self._current.number)
                first = int(self._files.entries(self._current.number, 1, 2)["offset"][0])
                times = own.begin_timestamp, own.end_timestamp
                header = IndexHeader(*times, first, last, used, self._gone_count)
        self._is_past_gone |= self._gone_count < layout.max_index_num
        self._current.begin(header, slots)

    def _after_gone_file(self, empty: IndexHeader) -> IndexHeader:
        """Return the header of an empty file whose predecessor may be gone: the time difference of
        its first entry is to that one's last message, and only the entry tells it."""
        number = self._current.number
        if number or self.begin is None or self.begin >= self._log.start:
            return empty
        entry = self._layout.entry_position(1), self._layout.entry_position(2)
        self._gone_extents.append((self._files.name(number), *entry))
        begin = self._files.header(number).begin_timestamp
        seconds = int(self._files.entries(number, 1, 2)["time_diff"][0])
        return replace(empty, begin_timestamp=begin - max(seconds, 0) * 1000)

    def _end_file(self, *, is_last: bool) -> IndexHeader:
        """Compare the rest of the current file; return the header of an empty one that follows
        it."""
        header, number = self._current.header, self._current.number
        self._entry_count += header.index_count - self._gone_count
        # a cut may have left the file that followed, empty: its full predecessor's time counts
        is_full = header.index_count == self._layout.max_index_num
        if not is_last or (is_full and number + 1 < len(self._files.paths)):
            self.full_end_timestamps.append(header.end_timestamp)
        if self._files.path(number) is not None:
            self._note_gone(self._files.name(number), header, is_last=is_last)
        self._current.end(self._firsts[-1], is_last=is_last)
        return IndexHeader.of_follow_up(header)

    def _note_gone(self, name: str, header: IndexHeader, *, is_last: bool) -> None:
        self.headers[name] = header
        count, is_all = self._gone_count, self._gone_count == header.index_count
        if is_last and is_all and count > 1:
            # nothing tells the rest of the header
            self._gone_extents.append((name, 0, INDEX_HEADER_SIZE))
        elif count > 1:
            self._gone_extents += taken_extents(name, self._layout, count, is_full=is_all)

    def finish(self, last_record_offset: int) -> Sequence[Difference]:
        """Compare the last file, and look for others."""
        if self.begin is None:
            return []
        current = self._current
        if not current.is_begun and (self._files.paths or last_record_offset >= self.begin):
            self._begin_file(IndexHeader())
        while current.is_begun:
            if self._count_before_repetition(_END) == 0:
                self._put_entries(self._last_message)
                continue
            is_full = current.header.index_count >= self._layout.max_index_num
            # any message needs a file that is not full, with or without keys
            follows = is_full and last_record_offset > current.header.end_phy_offset
            following = self._end_file(is_last=not follows)
            if follows:
                self._begin_file(following)
        current.end_rest()
        return current.differences.items

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
        first = min(self._current.damaged, default=len(self._firsts))
        if first == 0 and self._known_begin is not None:
            return max(self._known_begin, self._log.start)
        offsets = [offset for offset in self._firsts[first:] if offset is not None]
        return min(offsets, default=None)

    def remove_strays(self) -> None:
        """Remove the files after the last one that belongs."""
        if self._current.damaged:
            self._files.remove_from(len(self._firsts))

    def cut(self) -> None:
        """Remove the files from the first damaged one on."""
        if self._current.damaged:
            self._files.remove_from(min(self._current.damaged))


def _last_message(entries: IndexEntries) -> IndexEntries:
    first = int(np.searchsorted(entries.offsets, entries.offsets[-1]))
    return _part(entries, first, len(entries.offsets))


def _part(entries: IndexEntries, first: int, last: int) -> IndexEntries:
    offsets, hashes, times = entries.offsets, entries.hashes, entries.store_timestamps
    return IndexEntries(-1, offsets[first:last], hashes[first:last], times[first:last])
