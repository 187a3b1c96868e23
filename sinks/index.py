"""The index dispatcher: RocketMQ's ``IndexService.buildIndex``, in batches.

Delivery: exactly once in the files, under at-least-once calls. Entries have no place of their own
as units have, only an order: so what is in is read from the files, by the offset of their last
entry. Unit of work: the whole index; its files are filled one after the other.

RocketMQ's rules are kept in content (formats.md §8), two of its faults are not: a message that is
dispatched again is not indexed again, and a partly filled file is completed after a crash where
RocketMQ deletes it with the keys in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from store import fsops
from store.index.indexfile import (
    INDEX_DIRECTORY,
    NEVER_WRITTEN,
    IndexFiles,
    IndexLayout,
    index_key_hash,
    index_keys,
    new_index_file_name,
    read_entry,
    read_header,
)
from store.index.mappedindexfile import MappedIndexFile
from store.log.commitlog import CommitLog
from store.log.cursor import records
from store.log.record import Record
from store.runs.dispatch import DispatchBatch, DispatchCounts, IndexEntries


class IndexDispatcher:
    """Appends entries to the newest index file; not thread-safe, one per output."""

    name = "index"

    def __init__(
        self,
        output: Path,
        layout: IndexLayout,
        log: CommitLog,
        *,
        durable_end: int | None,
    ) -> None:
        """``durable_end``: the watermark; entries of messages behind it are cut, since a crash may
        have left anything there. None trusts the files as they are.

        Raises IndexFileError for files of another size, OutputError.
        """
        self.root = output / INDEX_DIRECTORY
        self.index_msg_timestamp = 0
        """For StoreCheckpoint: endTimestamp in ms of the newest file that is full, followed by
        another, and durable; 0 without one."""
        self._output = output
        self._layout = layout
        self._log = log
        self._last: MappedIndexFile | None = None
        self._cut_at: int | None = None
        """Nothing was put since the files were cut there; None where something may have been."""
        self._next_offset = 0
        """All messages before it have their entries."""
        self._next_entries = 0
        """Entries that the message at ``_next_offset`` has: more than 0 where no file could be
        made for the others."""
        self._open(durable_end)

    def dispatch(self, batch: DispatchBatch) -> DispatchCounts:
        """Put the entries of a batch (``CommitLogDispatcher.dispatch``); counts nothing.

        Raises NoSpaceError with what was put kept: the same batch may be given again.
        """
        self._cut_at = None
        if batch.message_count and self._last is None:
            self._roll()
        for entries in batch.index_entries:
            self._put(entries)
        # any message asks for a file that is not full, with or without keys
        last = self._last
        if last and last.is_full and batch.last_record_offset > last.header.end_phy_offset:
            self._roll()
        return DispatchCounts()

    def _put(self, entries: IndexEntries) -> None:
        """Put those entries of a chunk that are not in."""
        offsets = entries.offsets
        first = int(np.searchsorted(offsets, self._next_offset))
        if first < len(offsets) and offsets[first] == self._next_offset:
            first += self._next_entries
        while first < len(offsets):
            if self._last is not None:
                rest = slice(first, None)
                first += self._last.put(
                    offsets[rest], entries.hashes[rest], entries.store_timestamps[rest]
                )
            if first == len(offsets):
                self._next_offset, self._next_entries = int(offsets[-1]) + 1, 0
            else:
                self._next_offset = int(offsets[first])
                self._next_entries = first - int(np.searchsorted(offsets, self._next_offset))
                self._roll()

    def _roll(self) -> None:
        """Make the next file; the one before it is then durable as a whole."""
        full = self._last
        previous = full.header if full else None
        if full:
            full.sync()
        fsops.make_directories(self.root, self._output)
        path = self.root / new_index_file_name(full.path if full else None)
        self._last = MappedIndexFile.create(path, self._layout, previous)
        if full and previous:
            full.close()
            # as IndexService.flush: the clock may have stepped back since the file before
            if previous.end_timestamp > 0:
                self.index_msg_timestamp = previous.end_timestamp

    def sync(self) -> None:
        """Make all that was put durable. Raises SyncError.

        Of the last file only the entries: slots are dirty all over, and follow from them.
        """
        if self._last:
            self._last.sync_entries()

    def truncate(self, end_offset: int) -> None:
        """Cut the entries of messages at and behind ``end_offset``."""
        if end_offset != self._cut_at:
            self._let_go()
            self._open(end_offset)

    def close(self) -> None:
        """Make all of the last file durable and let go of it. Raises SyncError."""
        if self._last:
            self._last.sync()
        self._let_go()

    def _let_go(self) -> None:
        if self._last:
            self._last.close()
            self._last = None

    def _open(self, end_offset: int | None) -> None:
        """Take up what is there, cut at ``end_offset``; None: as it is."""
        files = IndexFiles(self.root, self._layout)
        for path in files.unfinished_paths():
            fsops.unlink(path)
        paths = files.paths()
        if end_offset is not None:
            paths = self._cut(paths, end_offset)
            self._cut_at = end_offset
        elif paths:
            self._last = MappedIndexFile(paths[-1], self._layout)
        before = read_header(paths[-2]) if len(paths) > 1 else None
        self.index_msg_timestamp = max(before.end_timestamp, 0) if before else 0
        self._next_offset, self._next_entries = 0, 0
        if self._last:
            header = self._last.header
            if before or header.index_count > 1:
                self._next_offset = header.end_phy_offset + 1

    def _cut(self, paths: list[Path], end_offset: int) -> list[Path]:
        """Keep the leading entries of messages before ``end_offset``; the files that are left.

        The newest file that keeps an entry is the last, as a rule. An empty one stays where it is
        the first, or behind a full one: a message without keys may have asked for it. It is as new
        then. All others go, the newest first.
        """
        begun = self._begun_count(paths, end_offset)
        paths, gone = paths[:begun], paths[begun:]
        while paths:
            last = MappedIndexFile(paths[-1], self._layout)
            kept = last.sound_entries(end_offset)
            count = self._confirmed_count(last, kept.index_count, paths[:-1])
            if count < kept.index_count:
                kept = last.sound_entries(end_offset, count)
            if count > 1 or len(paths) == 1:
                self._last = last
                break
            last.close()
            gone = [paths[-1], *gone]
            paths = paths[:-1]
        else:
            return []
        is_full = count == self._layout.max_index_num
        empty = gone[:is_full]
        for path in reversed(gone[is_full:]):
            fsops.unlink(path)
        fsops.sync_directory(self.root)
        last.restore(kept, None, self._store_timestamp_at)
        if empty:
            header = last.header
            last.close()
            self._last = MappedIndexFile(empty[0], self._layout)
            nothing = self._last.sound_entries(0)
            self._last.restore(nothing, header, self._store_timestamp_at)
        return paths + empty

    def _begun_count(self, paths: Sequence[Path], end_offset: int) -> int:
        """How many leading files begin before ``end_offset``, each behind the end of the one
        before; the first always does."""
        last_offset = 0
        for number, path in enumerate(paths):
            first_offset = read_entry(path, self._layout, 1).phy_offset
            if number and not last_offset <= first_offset < end_offset:
                return number
            last_offset = read_entry(path, self._layout, self._layout.max_index_num - 1).phy_offset
            if last_offset < first_offset:
                return number + 1
        return len(paths)

    def _confirmed_count(
        self, file: MappedIndexFile, index_count: int, before: Sequence[Path]
    ) -> int:
        """``index_count`` without entries at the end that are none: torn in a crash, they may look
        right, but the log has no such message, or not with such keys.

        ``before``: the files before this one, in which a message's entries may begin.
        """
        while index_count > 1:
            first = index_count - 1
            entry = file.entry(first)
            offset = entry.phy_offset
            if offset < self._log.min_offset and entry != NEVER_WRITTEN:
                return index_count  # the log has forgotten it
            while first > 1 and file.entry(first - 1).phy_offset == offset:
                first -= 1
            in_files_before = self._count_at_end(before, offset) if first == 1 else 0
            # tags may have been indexed or not when the message was dispatched
            for index_tags in (True, False):
                hashes = self._hashes_at(offset, index_tags)[in_files_before:]
                end = min(first + len(hashes), index_count)
                if hashes and hashes == [file.entry(index).key_hash for index in range(first, end)]:
                    return end
            index_count = first
        return index_count

    def _hashes_at(self, offset: int, index_tags: bool) -> list[int]:
        found = self._record_at(offset)
        keys = index_keys(found, index_tags=index_tags) if found else []
        return [index_key_hash(key) for key in keys]

    def _count_at_end(self, paths: Sequence[Path], offset: int) -> int:
        """How many entries at the end of full files are of the message at ``offset``."""
        count = 0
        for path in reversed(paths):
            for index in reversed(range(1, self._layout.max_index_num)):
                if read_entry(path, self._layout, index).phy_offset != offset:
                    return count
                count += 1
        return count

    def _record_at(self, offset: int) -> Record | None:
        found = next(records(self._log, offset, offset + 1, fail_on_data_loss=False))
        return found if isinstance(found, Record) else None

    def _store_timestamp_at(self, offset: int) -> int | None:
        found = self._record_at(offset)
        return found.store_timestamp if found else None
