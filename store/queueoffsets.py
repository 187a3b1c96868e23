"""The next queue offsets of a store, as far as its queues tell them, so that nobody reads its whole
log.

The record of ends (``store.state.ends``) names every queue and its last unit as of a watermark. A
queue is believed if that unit is there and the log has its message; if any is not, or there is a
kind of queue whose units do not tell, the whole log is read instead. The messages after the record
are scanned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import ReputError
from reput.store.files import STATE_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from reput.store.queue.consumequeue import QueueFiles, QueueKey, list_queues
from reput.store.queue.kinds import QueueKind
from reput.store.state.built import settings_of
from reput.store.state.ends import EntryEnd, EntryName, read_ends
from reput.store.state.output import is_same_log
from reput.store.state.watermark import Watermark, read_watermark

Queue = tuple[bytes, int]
"""Topic and queue id."""


@dataclass(frozen=True, slots=True)
class BuiltOffsets:
    """Positions in a log that the queues of its store tell."""

    watermark: int | None
    """Physical offset up to which the log was dispatched, and is as it was; None if unknown."""
    end_offset: int
    """Physical offset from which on the log must be scanned."""
    next_offsets: Mapping[Queue, int] = field(default_factory=dict)
    """Queue -> queue offset after its last message before that."""

    @classmethod
    def read(cls, root: Path, log: CommitLog) -> BuiltOffsets:
        """Look at the queues of the store at ``root``, whose log this is. Raises OSError."""
        watermark = read_watermark(root / STATE_DIRECTORY)
        if watermark is None or not _holds(log, watermark):
            return cls(None, log.min_offset)
        unknown = cls(watermark.end_offset, log.min_offset)
        ends = read_ends(root / STATE_DIRECTORY)
        if ends is None or ends.store_id != watermark.store_id:
            return unknown
        if not log.min_offset <= ends.end_offset <= watermark.end_offset:
            return unknown
        try:
            settings = settings_of(root, read_store_settings(root))
            found = _next_offsets(root, settings, log, ends.end_offset, ends.entries)
        except ReputError:
            return unknown  # the dispatcher says what is wrong with the queues
        if found is None:
            return unknown
        return cls(watermark.end_offset, ends.end_offset, found)


def scanned_offsets(log: CommitLog, start: int, end: int) -> Mapping[Queue, int]:
    """Queue -> queue offset after its last message in [start, end) of the log."""
    found: dict[Queue, int] = {}
    if start >= end:
        return found
    # imports numba and pyarrow
    from reput.store.runs.scan import PackedChunk, runs_of, scan  # noqa: PLC0415

    for item in scan(log, start, end, fail_on_data_loss=False):
        for run in runs_of(item) if isinstance(item, PackedChunk) else ():
            offsets = run.queue_offsets
            last = run.first_queue_offset + len(run) - 1 if offsets is None else int(offsets[-1])
            found[run.topic, run.queue_id] = last + 1
    return found


def _holds(log: CommitLog, watermark: Watermark) -> bool:
    """Whether the log has the last record before the watermark, and ends at or beyond it."""
    last, end = watermark.last_record_offset, watermark.end_offset
    has_last = log.segments.at(last) is not None and last < end and is_same_log(log, watermark)
    return has_last and (log.segments.at(end) or log.segments.at(end - 1)) is not None


def _next_offsets(
    root: Path,
    settings: StoreSettings,
    log: CommitLog,
    end_offset: int,
    entries: Mapping[EntryName, EntryEnd],
) -> Mapping[Queue, int] | None:
    """Queue -> next queue offset as of ``end_offset``; None where the queues do not tell."""
    if any(True for _ in list_queues(root / QueueKind.BATCH)):
        return None
    queues = dict(QueueKind.CONSUME.each(root, settings))
    found: dict[Queue, int] = {}
    for name, entry in entries.items():
        key = QueueKey(name.name, name.queue_id)
        is_gone = entry.physical_offset <= log.min_offset
        if name.kind == QueueKind.CONSUME and key not in queues:
            if not is_gone:
                return None
            unit_size = QueueKind.CONSUME.files.UNIT_DTYPE.itemsize
            found[key.topic.encode(), key.queue_id] = entry.end // unit_size
    for key, files in queues.items():
        recorded = entries.get(EntryName(QueueKind.CONSUME, key.topic, key.queue_id))
        position = files.find_end(end_offset) if recorded is None else recorded.end
        next_offset = _next_offset(log, key, files, position, recorded)
        if next_offset is None:
            return None
        found[key.topic.encode(), key.queue_id] = next_offset
    return found


def _next_offset(
    log: CommitLog, key: QueueKey, files: QueueFiles, position: int, recorded: EntryEnd | None
) -> int | None:
    """The queue offset after the message of the last unit before byte ``position``; None where they
    do not agree."""
    last = files.last_unit(position)
    if recorded is not None and (last is None or sum(last) != recorded.physical_offset):
        return None
    if last is None or last[0] < log.min_offset:
        return position // files.unit_size
    message = log.record_starting_at(last[0])
    if not isinstance(message, Record):
        return None
    is_its_own = (message.topic, message.queue_id) == (key.topic.encode(), key.queue_id)
    return message.queue_offset + 1 if is_its_own else None
