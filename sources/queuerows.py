"""Messages of queues as rows: reads their units first, then the records of the wanted ones.

A unit has offset, size and tags code, so that most unwanted messages are ruled out before the log
is read. A unit without a sound record gives a row with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reput.sources.queueoffsets import LossCheck
from reput.sources.queueranges import UnitRange
from reput.sources.queues import BuiltQueues
from reput.sources.selection import QueueSelection
from reput.store.errors import CorruptRecordError
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import SCHEDULE_TOPIC
from reput.store.log.status import Status
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.consumequeueext import MAX_ADDR
from reput.store.queue.view import QueueView, UnitColumns
from reput.store.rows.rows import rows_at


@dataclass(frozen=True, slots=True)
class _Units:
    """Units of several queues."""

    queues: NDArray[np.int32]
    """Indexes of their queues."""
    queue_offsets: NDArray[np.int64]
    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int32]


class QueueRows:
    """Reads slices of queues."""

    def __init__(self, queues: BuiltQueues, log: CommitLog) -> None:
        self._queues, self._log = queues, log

    def read(
        self,
        ranges: Sequence[UnitRange],
        selection: QueueSelection,
        schema: pa.Schema,
        *,
        loss: LossCheck,
        fail_on_corrupt: bool,
        delay_levels_ms: tuple[int, ...],
        max_inflated_bytes: int | None,
        verify_crc: bool,
    ) -> Iterator[pa.RecordBatch]:
        """Return rows of the selected units of ``ranges``: in the log's order, and those of each
        queue in the queue's.

        topic, queueId and queueOffset are the queue's, not the record's: the two differ in light
        queues, and where gaps in queue offsets were closed up. Raises CommitLogDataLossError or
        CorruptRecordError where the options ask for it.
        """
        keys = [each.key for each in ranges]
        units = self._units(ranges, selection, loss)
        at = 0
        for batch in rows_at(
            self._log,
            units.physical_offsets,
            units.sizes,
            schema,
            delay_levels_ms=delay_levels_ms,
            max_inflated_bytes=max_inflated_bytes,
            verify_crc=verify_crc,
            gap_bytes=0,
        ):
            self._check(batch, loss, fail_on_corrupt)
            which = slice(at, at + len(batch))
            queues, offsets = units.queues[which], units.queue_offsets[which]
            yield self._placed(batch, keys, queues, offsets, selection)
            at += len(batch)

    def _units(
        self, ranges: Sequence[UnitRange], selection: QueueSelection, loss: LossCheck
    ) -> _Units:
        """Return the wanted units of all ranges in the order in which they are read."""
        pieces = [self._columns(each, selection, loss) for each in ranges]
        # a queue keeps its order, also where the offsets in its units go back
        places = [np.maximum.accumulate(units.physical_offsets) for units in pieces]
        order = np.argsort(np.concatenate(places), kind="stable")
        queues = np.repeat(np.arange(len(pieces), dtype=np.int32), list(map(len, pieces)))
        return _Units(
            queues[order],
            np.concatenate([units.queue_offsets for units in pieces])[order],
            np.concatenate([units.physical_offsets for units in pieces])[order],
            np.concatenate([units.sizes for units in pieces])[order],
        )

    def _columns(self, units: UnitRange, selection: QueueSelection, loss: LossCheck) -> UnitColumns:
        """Return the units of a queue for which the log must be read."""
        queue = self._queues.open(units.key, units.kind)
        kept = queue.first_unit if queue.files.starts else units.last
        if kept > units.first:
            loss.report("START_BELOW_MIN", f"{queue.files.directory} begins at unit {kept}")
        first = max(units.first, kept)
        entries = queue.files.read(first, max(units.last - first, 0))
        if first + len(entries) < units.last:
            end = first + len(entries)
            loss.report("END_ABOVE_MAX", f"{queue.files.directory} ends at unit {end}")
        return self._selected(units.key, queue, queue.columns(first, entries), selection)

    def _selected(
        self, key: QueueKey, queue: QueueView, units: UnitColumns, selection: QueueSelection
    ) -> UnitColumns:
        offsets = units.queue_offsets
        units = units.select((offsets >= selection.first_offset) & (offsets < selection.end_offset))
        # the units of delayed messages hold their due times
        if not selection.tag_filters or key.topic.encode() == SCHEDULE_TOPIC:
            return units
        codes = queue.with_ext(units).tags_codes
        # an ext unit that is gone leaves its address, and the log decides
        return units.select(selection.matches_codes(codes) | (codes <= MAX_ADDR))

    def _check(self, batch: pa.RecordBatch, loss: LossCheck, fail_on_corrupt: bool) -> None:
        reasons, offsets = batch.column("corruptReason"), batch.column("physicalOffset")
        deleted = pc.equal(reasons, Status.SEGMENT_DELETED.name.lower()).fill_null(False)
        lost = offsets.filter(deleted)
        if len(lost):
            # many lost files are reported once: there may be millions
            loss.report(
                "SEGMENT_DELETED",
                f"the log no longer has the record at {lost[0]}, nor those of "
                f"{len(lost) - 1} more messages of the queues read",
            )
        broken = np.flatnonzero(pc.and_not(reasons.is_valid(), deleted))
        if fail_on_corrupt and len(broken):
            offset, reason = offsets[broken[0]].as_py(), reasons[broken[0]].as_py()
            segment = self._log.segments.at(offset)
            place = str(segment.path) if segment else "the commitlog"
            end = offset + batch.column("storeSize")[broken[0]].as_py()
            raise CorruptRecordError(place, offset, end, reason.upper())

    def _placed(
        self,
        batch: pa.RecordBatch,
        keys: Sequence[QueueKey],
        queues: NDArray[np.int32],
        queue_offsets: NDArray[np.int64],
        selection: QueueSelection,
    ) -> pa.RecordBatch:
        """Return ``batch`` with the queues' own columns and without hash collisions of tags."""
        topics = pa.array([key.topic for key in keys], pa.string())
        own = {
            "topic": topics.take(pa.array(queues)),
            "queueId": pa.array(np.array([key.queue_id for key in keys], np.int32)[queues]),
            "queueOffset": pa.array(queue_offsets),
        }
        columns = [
            own.get(field.name, column)
            for field, column in zip(batch.schema, batch.columns, strict=True)
        ]
        placed = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        kept = np.ones(len(batch), np.bool_)
        for tag_filter in selection.tag_filters:
            if tag_filter.tags:
                texts = pa.array(sorted(tag_filter.tags), pa.string())
                kept &= pc.is_in(batch.column("tags"), texts).to_numpy(zero_copy_only=False)
        kept |= batch.column("corruptReason").is_valid().to_numpy(zero_copy_only=False)
        return placed if kept.all() else placed.filter(pa.array(kept))
