"""One queue as Arrow batches, for callers that read many messages at once.

Columns of the unit come from the queue alone. The log is read only if a column of the record or
the filter needs it, and only at units that a tag or a bit map lets through. The rows that pass a
filter are the messages that a client hands to its listener. The plain twin is
``QueueReader.get_message``; unlike it, this module keeps inner batches whole: a row is a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reput.readers.messagefilter import MessageFilter
from reput.readers.messagestore import MessageStore
from reput.readers.readahead import map_ahead
from reput.store.errors import QueueFileError
from reput.store.log import properties
from reput.store.log.compression import MAX_INFLATED_BYTES
from reput.store.queue.consumequeueext import MAX_ADDR
from reput.store.queue.view import UnitColumns
from reput.store.rows.rowschema import ROWS_SCHEMA

UNITS_PER_READ = 1 << 16
ROWS_PER_BATCH = 1 << 13
LOG_BYTES_PER_BATCH = 8 << 20
_UNIT_COLUMNS = frozenset({"queueOffset", "physicalOffset", "storeSize", "tagsCode"})
_REASON = "corruptReason"
_PROPERTIES = "properties"
_PROPERTY_COLUMNS = {properties.TAGS.decode(): "tags", properties.KEYS.decode(): "keys"}
"""Properties that have a column of their own."""
_MAX_REMEMBERED = 1 << 12


def iterate(
    store: MessageStore,
    topic: str,
    queue_id: int,
    start: int = 0,
    end: int | None = None,
    *,
    schema: pa.Schema = ROWS_SCHEMA,
    message_filter: MessageFilter | None = None,
    max_inflated_bytes: int | None = MAX_INFLATED_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages at [start, end) of a queue, in queue order.

    An ``end`` of None, or beyond the queue's max offset, means the max offset. Messages that arrive
    later are read by the next call, after a ``refresh``.

    ``schema`` has columns of ROWS_SCHEMA. queueOffset is the position in this queue, and tagsCode
    is the queue's, null if its ext unit is gone. Bodies are inflated up to
    ``max_inflated_bytes``; None leaves them as stored. Blank units and expired messages are left
    out; a lost or damaged record is a row with its corruptReason, which no filter drops. Where the
    log is read, for other columns than the unit's, such records are also in the store's ``losses``
    and logged as a warning at the end, or they raise an error if the store was opened so. Raises
    StoreError if files are missing or unreadable.
    """
    rows = _Rows(store, schema, message_filter, max_inflated_bytes)
    try:
        yield from rows.of(_units(store, topic, queue_id, start, end))
    finally:
        store.losses.say()


def _units(
    store: MessageStore, topic: str, queue_id: int, start: int, end: int | None
) -> Iterator[UnitColumns]:
    queue = store.queue(topic, queue_id)
    last = queue.max_offset()
    end = last if end is None else min(end, last)
    while (start := max(start, queue.min_offset())) < end:
        part = queue.unit_columns(start, min(UNITS_PER_READ, end - start))
        if part is None and queue.min_offset() > start:
            # its first files have expired since it was opened
            continue
        if part is None:
            raise QueueFileError(
                f"queue {queue_id} of topic {topic} has no file with offset {start}; rebuild it "
                "with reput rebuild, or read from a later offset",
                path=queue.directory,
                queue_offset=start,
            )
        units, start = part
        if start > end:
            # an inner batch has more than one offset
            units = units.select(units.queue_offsets < end)
        yield units


class _Rows:
    """Makes batches from units, for one iteration."""

    def __init__(
        self,
        store: MessageStore,
        schema: pa.Schema,
        message_filter: MessageFilter | None,
        max_inflated_bytes: int | None,
    ) -> None:
        self._store = store
        self._schema = schema
        self._filter = message_filter
        self._max_inflated_bytes = max_inflated_bytes
        self._names = tuple(message_filter.names) if message_filter else ()
        names = set(schema.names) - _UNIT_COLUMNS
        if names or self._names:
            names |= {_REASON, *(_PROPERTY_COLUMNS.get(name, _PROPERTIES) for name in self._names)}
        self._log_schema = pa.schema([field for field in ROWS_SCHEMA if field.name in names])
        self._answers: dict[tuple[str | None, ...], bool] = {}

    def of(self, pieces: Iterator[UnitColumns]) -> Iterator[pa.RecordBatch]:
        """The rows of a queue's units, in as many batches as needed, none of them empty."""
        if self._filter is not None:
            message_filter = self._filter
            pieces = (units.select(_may_match(units, message_filter)) for units in pieces)
        if not self._log_schema.names:
            for units in pieces:
                yield from self._batch(units, {})
            return
        parts = (part for units in pieces for part in _parts(units))
        for part, batches in map_ahead(self._begun, parts):
            done = 0
            for rows in batches:
                columns = dict(zip(rows.schema.names, rows.columns, strict=True))
                self._note_losses(part, columns[_REASON], done)
                yield from self._batch(part.select(slice(done, done + len(rows))), columns)
                done += len(rows)

    def _begun(self, part: UnitColumns) -> tuple[UnitColumns, Iterator[pa.RecordBatch]]:
        """Read a part's records from the log.

        The first batch, usually the only one, is made at once. If inflated bodies are large, more
        batches follow on demand.
        """
        batches = self._store.log.rows_at(part, self._log_schema, self._max_inflated_bytes)
        return part, chain([next(batches)], batches)

    def _note_losses(self, part: UnitColumns, reasons: pa.Array, first: int) -> None:
        if reasons.null_count < len(reasons):
            bad = np.flatnonzero(reasons.is_valid()) + first
            noted = 0
            for offset in part.physical_offsets[bad].tolist():
                if offset >= noted:
                    noted = self._store.log.note_loss(offset)

    def _batch(self, units: UnitColumns, columns: dict[str, pa.Array]) -> Iterator[pa.RecordBatch]:
        """Join units with their rows from the log, and drop rows that the filter rejects."""
        columns |= {
            "queueOffset": pa.array(units.queue_offsets),
            "physicalOffset": pa.array(units.physical_offsets),
            "storeSize": pa.array(units.sizes, pa.int64()),
            "tagsCode": pa.array(units.tags_codes, mask=units.tags_codes <= MAX_ADDR),
        }
        batch = pa.RecordBatch.from_arrays(
            [columns[name] for name in self._schema.names], schema=self._schema
        )
        if self._filter is not None:
            batch = batch.filter(pa.array(self._matches(self._filter, len(units), columns)))
        if len(batch):
            yield batch

    def _matches(
        self, message_filter: MessageFilter, count: int, columns: dict[str, pa.Array]
    ) -> NDArray[np.bool_]:
        """bool[n]: damaged records, and rows that pass the filter's later tests."""
        values = [_property(columns, name).to_pylist() for name in self._names]
        rows: Iterable[tuple[str | None, ...]] = zip(*values, strict=True)
        if not values:
            rows = repeat((), count)
        matches = np.fromiter((self._answer(message_filter, row) for row in rows), np.bool_, count)
        if _REASON in columns:
            matches |= columns[_REASON].is_valid().to_numpy(zero_copy_only=False)
        return matches

    def _answer(self, message_filter: MessageFilter, values: tuple[str | None, ...]) -> bool:
        """The answer depends only on these values, which repeat, so it is cached."""
        answer = self._answers.get(values)
        if answer is None:
            named = zip(self._names, values, strict=True)
            row = {name: value for name, value in named if value is not None}
            answer = message_filter.is_matched_by_commit_log(row) and message_filter.is_delivered(
                row
            )
            if len(self._answers) >= _MAX_REMEMBERED:
                self._answers.clear()
            self._answers[values] = answer
        return answer


def _property(columns: dict[str, pa.Array], name: str) -> pa.Array:
    column = _PROPERTY_COLUMNS.get(name)
    return columns[column] if column else pc.map_lookup(columns[_PROPERTIES], name, "last")


def _may_match(units: UnitColumns, message_filter: MessageFilter) -> NDArray[np.bool_]:
    """bool[n]: the filter's first test, run once per distinct tags code if that suffices."""
    asked = message_filter.is_matched_by_consume_queue
    if units.ext is None:
        codes, places = np.unique(units.tags_codes, return_inverse=True)
        return np.array([asked(code, None) for code in codes.tolist()], np.bool_)[places]
    plain_codes = (None if code <= MAX_ADDR else code for code in units.tags_codes.tolist())
    return np.array([asked(*unit) for unit in zip(plain_codes, units.ext, strict=True)], np.bool_)


def _parts(units: UnitColumns) -> Iterator[UnitColumns]:
    """Split units into pieces for one batch each, by rows and by bytes of the log."""
    ends = np.cumsum(units.sizes)
    low = 0
    while low < len(units):
        most = (int(ends[low - 1]) if low else 0) + LOG_BYTES_PER_BATCH
        high = max(int(np.searchsorted(ends, most, "right")), low + 1)
        high = min(high, low + ROWS_PER_BATCH)
        yield units.select(slice(low, high))
        low = high
