"""Messages of one queue as rows: reads its units first, then the records of the wanted ones.

A unit has offset, size and tags code, so that most unwanted messages are ruled out before the log
is read. Rows come in the queue's order; a unit without a sound record gives a row with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sources.queueoffsets import LossCheck
from sources.selection import QueueSelection
from store.errors import CorruptRecordError
from store.log.commitlog import CommitLog
from store.log.record import SCHEDULE_TOPIC, Status
from store.queue.consumequeue import QueueKey
from store.queue.consumequeueext import MAX_ADDR
from store.queue.view import QueueView, UnitColumns
from store.rows.rows import ROWS_PER_BATCH, rows_at


class QueueRows:
    """Reads one queue."""

    def __init__(self, key: QueueKey, queue: QueueView, log: CommitLog) -> None:
        self._key, self._queue, self._log = key, queue, log
        self._files = queue.files

    def read(
        self,
        units: range,
        selection: QueueSelection,
        schema: pa.Schema,
        *,
        loss: LossCheck,
        fail_on_corrupt: bool,
        delay_levels_ms: tuple[int, ...],
        max_inflated_bytes: int | None,
        verify_crc: bool,
    ) -> Iterator[pa.RecordBatch]:
        """Return rows of the selected ``units`` (indexes), in the queue's order.

        topic, queueId and queueOffset are the queue's, not the record's: the two differ in light
        queues, and where gaps in queue offsets were closed up. Raises CommitLogDataLossError or
        CorruptRecordError where the options ask for it.
        """
        kept = self._queue.first_unit if self._files.starts else units.stop
        if kept > units.start:
            loss.report("START_BELOW_MIN", f"{self._files.directory} begins at unit {kept}")
        for first in range(max(units.start, kept), units.stop, ROWS_PER_BATCH):
            count = min(ROWS_PER_BATCH, units.stop - first)
            found = self._files.read(first, count)
            if len(found) < count:
                end = first + len(found)
                loss.report("END_ABOVE_MAX", f"{self._files.directory} ends at unit {end}")
            wanted = self._wanted(self._queue.columns(first, found), selection)
            at = 0
            for batch in rows_at(
                self._log,
                wanted.physical_offsets,
                wanted.sizes,
                schema,
                delay_levels_ms=delay_levels_ms,
                max_inflated_bytes=max_inflated_bytes,
                verify_crc=verify_crc,
                gap_bytes=0,
            ):
                self._check(batch, loss, fail_on_corrupt)
                yield self._placed(batch, wanted.queue_offsets[at : at + len(batch)], selection)
                at += len(batch)

    def _wanted(self, units: UnitColumns, selection: QueueSelection) -> UnitColumns:
        """Return the units for which the log must be read."""
        offsets = units.queue_offsets
        units = units.taken((offsets >= selection.first_offset) & (offsets < selection.end_offset))
        # the units of delayed messages hold their due times
        if not selection.tag_filters or self._key.topic.encode() == SCHEDULE_TOPIC:
            return units
        codes = self._queue.with_ext(units).tags_codes
        # an ext unit that is gone leaves its address, and the log decides
        return units.taken(selection.matches_codes(codes) | (codes <= MAX_ADDR))

    def _check(self, batch: pa.RecordBatch, loss: LossCheck, fail_on_corrupt: bool) -> None:
        reasons, offsets = batch.column("corruptReason"), batch.column("physicalOffset")
        deleted = pc.equal(reasons, Status.SEGMENT_DELETED.name.lower()).fill_null(False)
        lost = offsets.filter(deleted)
        if len(lost):
            # many lost files are reported once: there may be millions
            loss.report(
                "SEGMENT_DELETED",
                f"the log no longer has the record at {lost[0]}, nor those of "
                f"{len(lost) - 1} more messages in {self._files.directory}",
            )
        broken = np.flatnonzero(pc.and_not(reasons.is_valid(), deleted))
        if fail_on_corrupt and len(broken):
            offset, reason = offsets[broken[0]].as_py(), reasons[broken[0]].as_py()
            segment = self._log.segment_at(offset)
            place = str(segment.path) if segment else "the commitlog"
            end = offset + batch.column("storeSize")[broken[0]].as_py()
            raise CorruptRecordError(place, offset, end, reason.upper())

    def _placed(
        self, batch: pa.RecordBatch, positions: NDArray[np.int64], selection: QueueSelection
    ) -> pa.RecordBatch:
        """Return ``batch`` with the queue's own columns and without hash collisions of tags."""
        own = {
            "topic": pa.array([self._key.topic] * len(batch), pa.string()),
            "queueId": pa.array(np.full(len(batch), self._key.queue_id, np.int32)),
            "queueOffset": pa.array(positions),
        }
        columns = [
            own.get(field.name, column)
            for field, column in zip(batch.schema, batch.columns, strict=True)
        ]
        placed = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        kept = np.ones(len(batch), np.bool_)
        for wanted in selection.tag_filters:
            if wanted.tags:
                texts = pa.array(sorted(wanted.tags), pa.string())
                kept &= pc.is_in(batch.column("tags"), texts).to_numpy(zero_copy_only=False)
        kept |= batch.column("corruptReason").is_valid().to_numpy(zero_copy_only=False)
        return placed if kept.all() else placed.filter(pa.array(kept))
