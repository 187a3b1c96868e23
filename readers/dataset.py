"""The raw log as an Arrow dataset with a row per message, read only on demand.

DuckDB, Polars and others scan a ``pyarrow.dataset`` and push columns and filters down to it. The
log is pruned twice. Files that cannot hold a wanted physical offset or store time are not opened.
When bodies or properties are selected, the columns that the filter reads are decoded first, and
the others only for rows that passed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import dataset, fs

from readers.messages import DEFAULT_MAX_BODY_BYTES
from store.config import StoreSettings
from store.log.commitlog import CommitLog, Segment
from store.log.cursor import LogTail
from store.log.record import Record
from store.rows.rows import read_rows, rows_at
from store.rows.rowschema import ROWS_SCHEMA

CLOCK_STEP_US = 60_000_000
"""If a broker's clock was set back by more than this, a time filter may miss rows."""
_LARGE = {"body", "properties"}
"""Columns that cost more to decode than reading the rest of a record twice."""
_PLACE = ("physicalOffset", "storeSize")
"""Always read: they cost nothing, and they show the progress of a scan."""

Passed = Callable[[int, int], None]
"""Receives (bytes of the log scanned so far, bytes to scan in all)."""


def _tell_nobody(_done: int, _total: int) -> None:
    pass


class MessageDataset(dataset.Dataset):  # type: ignore[misc]
    """The log of one store, up to its sealed end when the dataset is made.

    Rows and columns follow ``store.rows.rowschema``. Compressed bodies are inflated up to 64 MiB.
    """

    def __init__(self, settings: StoreSettings) -> None:
        """Raises UsageError if there is no log, CommitLogError if a file has a wrong size."""
        self._settings = settings
        self._log = CommitLog(settings.commit_log_directories, settings.mapped_file_size_commit_log)
        self._end = LogTail(self._log).settled()

    @property
    def schema(self) -> pa.Schema:
        """ROWS_SCHEMA."""
        return ROWS_SCHEMA

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: dataset.Expression | None = None,
        **options: Any,
    ) -> dataset.Scanner:
        """Return the rows for which ``filter`` is true, as Arrow's own datasets do.

        ``options`` (batch_size, ...) are passed to Arrow's Scanner.
        """
        wanted = ROWS_SCHEMA.names if columns is None else list(columns)
        schema = _project([*wanted, *_named_columns(filter), *_PLACE])
        batches = self._batches(schema, filter, _tell_nobody)
        return dataset.Scanner.from_batches(
            batches, schema=schema, columns=wanted, filter=filter, **options
        )

    def batches(
        self,
        columns: Sequence[str] | None = None,
        filter: dataset.Expression | None = None,
        passed: Passed = _tell_nobody,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``scanner`` lazily; a Scanner reads ahead as fast as it can.

        ``passed`` receives the progress, also while no row is found.
        """
        wanted = ROWS_SCHEMA.names if columns is None else list(columns)
        schema = _project([*wanted, *_named_columns(filter), *_PLACE])
        for batch in self._batches(schema, filter, passed):
            found = batch if filter is None else batch.filter(filter)
            if found.num_rows:
                yield found.select(wanted)

    def _batches(
        self, schema: pa.Schema, wanted: dataset.Expression | None, passed: Passed
    ) -> Iterator[pa.RecordBatch]:
        """A superset of the wanted rows; ``schema`` includes _PLACE."""
        named = _named_columns(wanted)
        late = bool(named) and bool(_LARGE & (set(schema.names) - set(named)))
        looked_at = _project([*named, *_PLACE, "corruptReason"]) if late else schema
        ranges = list(self._ranges(wanted))
        done, total = 0, sum(end - start for start, end in ranges)
        for start, end in ranges:
            for batch in self._read(start, end, looked_at):
                first, last = _range_of(batch)
                if not late:
                    yield batch
                else:
                    found = batch.filter(wanted)
                    if found.column("corruptReason").null_count < found.num_rows:
                        # damaged ranges are not records, so the whole batch is read again
                        yield from self._read(first, last, schema)
                    elif found.num_rows:
                        yield from self._rows_at(found, schema)
                passed(done + last - start, total)
            done += end - start
            passed(done, total)

    def _read(self, start: int, end: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return read_rows(
            self._log, start, end, schema,
            delay_levels_ms=self._settings.message_delay_levels_ms,
            fail_on_corrupt=False, fail_on_data_loss=False,
            max_inflated_bytes=DEFAULT_MAX_BODY_BYTES,
        )  # fmt: skip

    def _rows_at(self, found: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        offsets, sizes = (found.column(name).to_numpy() for name in _PLACE)
        return rows_at(
            self._log, offsets, sizes, schema,
            delay_levels_ms=self._settings.message_delay_levels_ms,
            max_inflated_bytes=DEFAULT_MAX_BODY_BYTES,
        )  # fmt: skip

    def _ranges(self, wanted: dataset.Expression | None) -> Iterator[tuple[int, int]]:
        """[start, end) ranges of the log that may hold matching rows; adjacent ones are joined."""
        segments = [segment for segment in self._log.segments if segment.start < self._end]
        if wanted is not None:
            segments = self._candidates(segments, wanted)
        size = self._log.file_size
        bounds = [(one.start, min(one.start + size, self._end)) for one in segments]
        while bounds:
            start, end = bounds.pop(0)
            while bounds and bounds[0][0] == end:
                end = bounds.pop(0)[1]
            yield start, end

    def _candidates(self, segments: Sequence[Segment], wanted: dataset.Expression) -> list[Segment]:
        """Files that a filter does not rule out; Arrow checks it against each file's bounds."""
        field = dataset.field
        format_ = dataset.ParquetFileFormat()  # never opened: it only carries the bounds
        fragments = []
        times = [self._first_store_time(segment) for segment in segments]
        for segment, first, last in itertools.zip_longest(segments, times, times[1:]):
            known = (field("physicalOffset") >= segment.start) & (
                field("physicalOffset") < segment.start + self._log.file_size
            )
            time = field("storeTimestamp")
            # a damaged range has no time
            if first is not None:
                known = known & ((time >= timestamp(first - CLOCK_STEP_US)) | time.is_null())
            if last is not None:
                known = known & ((time <= timestamp(last + CLOCK_STEP_US)) | time.is_null())
            fragments.append(
                format_.make_fragment(
                    str(segment.path), fs.LocalFileSystem(), partition_expression=known
                )
            )
        all_files = dataset.FileSystemDataset(fragments, ROWS_SCHEMA, format_)
        kept = {fragment.path for fragment in all_files.get_fragments(filter=wanted)}
        return [segment for segment in segments if str(segment.path) in kept]

    def _first_store_time(self, segment: Segment) -> int | None:
        """storeTimestamp of a file's first record in us; None if that record is damaged."""
        found = self._log.record_starting_at(segment.start)
        return found.store_timestamp * 1000 if isinstance(found, Record) else None


def _project(names: Sequence[str]) -> pa.Schema:
    return pa.schema([field for field in ROWS_SCHEMA if field.name in names])


def _range_of(batch: pa.RecordBatch) -> tuple[int, int]:
    """[start, end) of the log that a batch was read from."""
    offsets, sizes = (batch.column(name) for name in _PLACE)
    return offsets[0].as_py(), offsets[-1].as_py() + sizes[-1].as_py()


def _named_columns(wanted: dataset.Expression | None) -> list[str]:
    """Columns that a filter names, found in its text, which is all that Arrow exposes.

    A word that merely looks like a column costs time but changes no result.
    """
    text = "" if wanted is None else str(wanted)
    return [name for name in ROWS_SCHEMA.names if name in text]


def timestamp(microseconds: int) -> pa.Scalar:
    """Scalar that a filter compares storeTimestamp with."""
    return pa.scalar(microseconds, ROWS_SCHEMA.field("storeTimestamp").type)
