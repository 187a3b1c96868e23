"""The writer of index files: RocketMQ's ``IndexService.buildIndex``, in batches.

Delivery: exactly once in the files, although calls may repeat. Unlike units, entries have no fixed
position, only an order. The offset of the files' last entry therefore shows which messages are
indexed. Unit of work: the whole index; its files are filled one after the other.

The content equals RocketMQ's (formats.md §8), except for two of its faults: a message that is
dispatched again is not indexed twice, and a partly filled file is completed after a crash, whereas
RocketMQ deletes it together with its keys.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from reput.store import fsops
from reput.store.files import INDEX_DIRECTORY
from reput.store.index.indexfile import (
    NEVER_WRITTEN,
    IndexFiles,
    IndexLayout,
    index_key_hash,
    index_keys,
    new_index_file_name,
    read_entry,
    read_header,
)
from reput.store.index.mappedindexfile import MappedIndexFile
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.record import Record
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts, IndexEntries
from reput.store.state.ends import EntryEnd, EntryName


class IndexFileWriter:
    """Appends entries to the newest index file; not thread-safe, one instance per output."""

    name = "index"

    def __init__(
        self,
        output: Path,
        layout: IndexLayout,
        log: CommitLog,
        *,
        durable_end: int | None,
    ) -> None:
        """Open the index, cut at ``durable_end``.

        ``durable_end`` is the watermark. Entries of messages beyond it are cut, because a crash may
        have left anything there; None trusts the files as they are, up to an entry that a header
        counts and a power cut has lost. Raises IndexFileError for files of another size,
        OutputError.
        """
        self.root = output / INDEX_DIRECTORY
        self.index_msg_timestamp = 0
        """For StoreCheckpoint: endTimestamp in ms of the newest file that is full, durable and
        followed by another; 0 without one."""
        self._output = output
        self._layout = layout
        self._log = log
        self._last: MappedIndexFile | None = None
        self._cut_at: int | None = None
        """Offset at which the files were cut, if nothing was added since; None otherwise."""
        self._next_offset = 0
        """All messages before this offset have their entries."""
        self._next_entries = 0
        """Entries that the message at ``_next_offset`` already has; more than 0 if no file could be
        created for the rest."""
        self._open(durable_end)

    def write(self, batch: DispatchBatch) -> DispatchCounts:
        """Add the entries of a batch (``IndexWriter.write``); counts nothing.

        Raises NoSpaceError and keeps what was added, so the same batch may be written again.
        """
        self._cut_at = None
        if batch.message_count and self._last is None:
            self._roll()
        for entries in batch.index_entries:
            self._put(entries)
        # every message, with or without keys, makes RocketMQ ask for a file that is not full
        last = self._last
        if last and last.is_full and batch.last_record_offset > last.header.end_phy_offset:
            self._roll()
        return DispatchCounts()

    def _put(self, entries: IndexEntries) -> None:
        """Add those entries of a chunk that the index does not have yet."""
        offsets = entries.offsets
        first = int(offsets.searchsorted(self._next_offset))
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
        """Create the next file; the previous one is then durable as a whole."""
        full = self._last
        previous = full.header if full else None
        if full:
            full.sync()
        fsops.make_directories(self.root, self._output)
        path = self.root / new_index_file_name(full.path if full else None)
        self._last = MappedIndexFile.create(path, self._layout, previous)
        if full and previous:
            full.close()
            # as in IndexService.flush: the clock may have stepped back since the previous file
            if previous.end_timestamp > 0:
                self.index_msg_timestamp = previous.end_timestamp

    def sync(self) -> None:
        """Make all added entries durable. Raises SyncError.

        Only the entries of the last file are synced: its slots are dirty everywhere, and they can
        be rebuilt from the entries.
        """
        if self._last:
            self._last.sync_entries()

    def truncate(self, end_offset: int) -> None:
        """Cut the entries of messages at and after ``end_offset``."""
        if end_offset != self._cut_at:
            self._let_go()
            self._open(end_offset)

    def ends(self) -> Iterator[tuple[EntryName, EntryEnd]]:
        """Yield where the newest file ends, if it has an entry (``IndexWriter.ends``)."""
        if self._last and self._last.header.index_count > 1:
            header = self._last.header
            name = EntryName(INDEX_DIRECTORY, self._last.path.name)
            yield name, EntryEnd(header.index_count, header.end_phy_offset)

    def close(self) -> None:
        """Make the whole last file durable and close it. Raises SyncError."""
        try:
            if self._last:
                self._last.sync()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._last:
            last, self._last = self._last, None
            last.close()

    def _open(self, end_offset: int | None) -> None:
        """Open the existing files, cut at ``end_offset`` unless it is None. After an error none
        stays open: a run that waits for space tries again and again."""
        try:
            self._open_files(end_offset)
        except BaseException:
            self._let_go()
            raise

    def _open_files(self, end_offset: int | None) -> None:
        files = IndexFiles(self.root, self._layout)
        for path in files.unfinished_paths():
            fsops.unlink(path)
        paths = files.paths()
        if end_offset is not None:
            paths = self._cut(paths, end_offset)
            self._cut_at = end_offset
        elif paths:
            self._last = MappedIndexFile(paths[-1], self._layout)
            lost = self._last.first_lost_entry()
            if lost is not None:
                self._let_go()
                paths = self._cut(paths, sys.maxsize, lost)
        before = read_header(paths[-2]) if len(paths) > 1 else None
        self.index_msg_timestamp = max(before.end_timestamp, 0) if before else 0
        self._next_offset, self._next_entries = 0, 0
        if self._last:
            header = self._last.header
            if before or header.index_count > 1:
                self._next_offset = header.end_phy_offset + 1

    def _cut(self, paths: list[Path], end_offset: int, max_count: int | None = None) -> list[Path]:
        """Keep the leading entries of messages before ``end_offset``, and in the newest file those
        with numbers less than ``max_count``; return the files that remain.

        Normally the newest file that keeps an entry becomes the last. An empty file stays only if
        it is the first or follows a full one, because a message without keys may have asked for it;
        it is reset to a new file. All other files are removed, the newest first.
        """
        begun = self._begun_count(paths, end_offset)
        paths, gone = paths[:begun], paths[begun:]
        while paths:
            self._last = last = MappedIndexFile(paths[-1], self._layout)
            kept = last.sound_entries(end_offset, max_count)
            count = self._confirmed_count(last, kept.index_count, paths[:-1])
            if count < kept.index_count:
                kept = last.sound_entries(end_offset, count)
            if count > 1 or len(paths) == 1:
                break
            self._let_go()
            gone = [paths[-1], *gone]
            paths, max_count = paths[:-1], None
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
            self._let_go()
            self._last = MappedIndexFile(empty[0], self._layout)
            nothing = self._last.sound_entries(0)
            self._last.restore(nothing, header, self._store_timestamp_at)
        return paths + empty

    def _begun_count(self, paths: Sequence[Path], end_offset: int) -> int:
        """Count the leading files that begin before ``end_offset`` and after the previous file's
        end.

        The first file always counts.
        """
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
        """Reduce ``index_count`` by trailing entries that are not real.

        An entry torn in a crash may look valid, but the log has no such message, or not with such
        keys. A message's entries may begin in the files ``before`` this one.
        """
        while index_count > 1:
            first = index_count - 1
            entry = file.entry(first)
            offset = entry.phy_offset
            if offset < self._log.min_offset:
                if entry != NEVER_WRITTEN:
                    return index_count  # the message was removed from the log
                index_count = first
                continue
            while first > 1 and file.entry(first - 1).phy_offset == offset:
                first -= 1
            in_files_before = self._count_at_end(before, offset) if first == 1 else 0
            # it is unknown whether tags were indexed when the message was dispatched
            for index_tags in (True, False):
                hashes = self._hashes_at(offset, index_tags)[in_files_before:]
                end = min(first + len(hashes), index_count)
                if hashes and hashes == [file.entry(index).key_hash for index in range(first, end)]:
                    return end
            index_count = first
        return index_count

    def _hashes_at(self, offset: int, index_tags: bool) -> list[int]:
        record = self._record_at(offset)
        keys = index_keys(record, index_tags=index_tags) if record else []
        return [index_key_hash(key) for key in keys]

    def _count_at_end(self, paths: Sequence[Path], offset: int) -> int:
        """Count the entries of the message at ``offset`` at the end of full files."""
        count = 0
        for path in reversed(paths):
            for index in reversed(range(1, self._layout.max_index_num)):
                if read_entry(path, self._layout, index).phy_offset != offset:
                    return count
                count += 1
        return count

    def _record_at(self, offset: int) -> Record | None:
        record = next(records(self._log, offset, offset + 1, fail_on_data_loss=False))
        return record if isinstance(record, Record) else None

    def _store_timestamp_at(self, offset: int) -> int | None:
        record = self._record_at(offset)
        return record.store_timestamp if record else None
