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

from reput.store.config import StoreSettings
from reput.store.errors import ReputError
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.log.losses import Losses, warn_of_unmounted, warn_of_unread_end
from reput.store.log.record import Record
from reput.store.rows.rowform import DEFAULT_FORM, RowForm
from reput.store.rows.rows import marked_schema, read_rows, rows_at, without_internal
from reput.store.rows.rowschema import ROWS_SCHEMA, TIMESTAMPS_MS

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

    Rows and columns follow ``store.rows.rowschema``. Each lost or damaged range is a row, which a
    filter on a topic drops. What a scan has passed of them is in ``losses``, and logged as a
    warning where the scan ends.
    """

    def __init__(
        self,
        settings: StoreSettings,
        form: RowForm = DEFAULT_FORM,
        *,
        fail_on_data_loss: bool = False,
    ) -> None:
        """With ``fail_on_data_loss`` a scan raises CommitLogDataLossError at a lost range and
        CorruptRecordError at a damaged one.

        Raises UsageError if there is no log, CommitLogError if a file has a wrong size, and with
        ``fail_on_data_loss`` if one of several directories has no file.
        """
        self._settings = settings
        self._form = form
        self._fail = fail_on_data_loss
        self.internal_left_out = 0
        """Number of internal records that met the filter of a scan and were none of its rows; the
        most of any scan so far."""
        self.losses = Losses()
        """Ranges without a message that scans have passed."""
        self.failure: ReputError | OSError | None = None
        """The error of a scan that failed, which programs that scan may hide in their own."""
        self._log = CommitLog(settings.commit_log_directories, settings.mapped_file_size_commit_log)
        self._end = LogTail(self._log).settled()
        if fail_on_data_loss:
            self._log.segments.check_mounted("the log may have begun earlier")
        warn_of_unmounted(self._log)
        warn_of_unread_end(self._log, self._end)

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
        names = ROWS_SCHEMA.names if columns is None else list(columns)
        schema = _project([*names, *_PLACE])
        batches = self._batches(schema, filter, _tell_nobody)
        return dataset.Scanner.from_batches(batches, schema=schema, columns=names, **options)

    def batches(
        self,
        columns: Sequence[str] | None = None,
        filter: dataset.Expression | None = None,
        passed: Passed = _tell_nobody,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``scanner`` lazily; a Scanner reads ahead as fast as it can.

        ``passed`` receives the progress, also while no row is found.
        """
        names = ROWS_SCHEMA.names if columns is None else list(columns)
        for batch in self._batches(_project([*names, *_PLACE]), filter, passed):
            if batch.num_rows:
                yield batch.select(names)

    def _batches(
        self, schema: pa.Schema, condition: dataset.Expression | None, passed: Passed
    ) -> Iterator[pa.RecordBatch]:
        """The wanted rows in the columns of ``schema``, in batches that may be empty."""
        try:
            yield from self._scanned(schema, condition, passed)
        except (ReputError, OSError) as error:
            self.failure = error
            raise
        finally:
            self.losses.say()

    def _scanned(
        self, schema: pa.Schema, condition: dataset.Expression | None, passed: Passed
    ) -> Iterator[pa.RecordBatch]:
        named = _named_columns(condition) + (["topic"] if self._form.named_topics else [])
        late = bool(named) and bool(_LARGE & (set(schema.names) - set(named)))
        whole = marked_schema(_project([*schema.names, *named, *_PLACE]), self._form)
        place = marked_schema(_project([*named, *_PLACE, "corruptReason"]), self._form)
        ranges = list(self._ranges(condition))
        done, total, left_out = 0, sum(end - start for start, end in ranges), 0
        for start, end in ranges:
            for batch in self._read(start, end, place if late else whole):
                first, last = _range_of(batch)
                matches = batch if condition is None else batch.filter(condition)
                rows = without_internal(matches, self._form)
                left_out += matches.num_rows - rows.num_rows
                self.internal_left_out = max(self.internal_left_out, left_out)
                if not late:
                    yield rows.select(schema.names)
                elif rows.column("corruptReason").null_count < rows.num_rows:
                    # damaged ranges are not records, so the whole batch is read again
                    for again in self._read(first, last, whole):
                        matches = without_internal(again.filter(condition), self._form)
                        yield matches.select(schema.names)
                elif rows.num_rows:
                    yield from self._rows_at(rows, schema)
                passed(done + last - start, total)
            done += end - start
            passed(done, total)

    def _read(self, start: int, end: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return read_rows(
            self._log, start, end, schema,
            delay_levels_ms=self._settings.message_delay_levels_ms,
            fail_on_corrupt=self._fail, fail_on_data_loss=self._fail,
            max_inflated_bytes=self._form.max_inflated_bytes, losses=self.losses,
        )  # fmt: skip

    def _rows_at(self, rows: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        offsets, sizes = (rows.column(name).to_numpy() for name in _PLACE)
        return rows_at(
            self._log, offsets, sizes, schema,
            delay_levels_ms=self._settings.message_delay_levels_ms,
            max_inflated_bytes=self._form.max_inflated_bytes,
        )  # fmt: skip

    def _ranges(self, condition: dataset.Expression | None) -> Iterator[tuple[int, int]]:
        """[start, end) ranges of the log that may hold matching rows; adjacent ones are joined."""
        size = self._log.file_size
        files = [(segment.start, segment.start + size) for segment in self._log.segments.listed]
        parts = sorted([*files, *self._log.segments.gaps()])
        bounds = [(start, min(end, self._end)) for start, end in parts if start < self._end]
        if condition is not None:
            bounds = self._candidates(bounds, condition)
        while bounds:
            start, end = bounds.pop(0)
            while bounds and bounds[0][0] == end:
                end = bounds.pop(0)[1]
            yield start, end

    def _candidates(
        self, bounds: Sequence[tuple[int, int]], condition: dataset.Expression
    ) -> list[tuple[int, int]]:
        """Files and gaps that a filter does not rule out; Arrow checks it against the bounds of
        each."""
        field = dataset.field
        format_ = dataset.ParquetFileFormat()  # never opened: it only carries the bounds
        fragments = []
        times = [self._first_store_time(start) for start, _ in bounds]
        firsts = list(itertools.accumulate(times, _later))
        lasts = list(itertools.accumulate(reversed(times[1:]), _later))[::-1]
        for (start, end), first, last in itertools.zip_longest(bounds, firsts, lasts):
            guarantee = (field("physicalOffset") >= start) & (field("physicalOffset") < end)
            time = field("storeTimestamp")
            # a lost or damaged range has no time
            if first is not None:
                guarantee = guarantee & (
                    (time >= timestamp(first - CLOCK_STEP_US)) | time.is_null()
                )
            if last is not None:
                guarantee = guarantee & ((time <= timestamp(last + CLOCK_STEP_US)) | time.is_null())
            fragments.append(
                format_.make_fragment(
                    str(start), fs.LocalFileSystem(), partition_expression=guarantee
                )
            )
        all_files = dataset.FileSystemDataset(fragments, ROWS_SCHEMA, format_)
        kept = {fragment.path for fragment in all_files.get_fragments(filter=condition)}
        return [(start, end) for start, end in bounds if str(start) in kept]

    def _first_store_time(self, start: int) -> int | None:
        """storeTimestamp of a file's first record in us; None if that record is damaged or lost, or
        if no timestamp can hold it."""
        record = self._log.record_starting_at(start)
        if not isinstance(record, Record) or record.store_timestamp not in TIMESTAMPS_MS:
            return None
        return record.store_timestamp * 1000


def _later(former: int | None, time: int | None) -> int | None:
    return former if time is None else time


def _project(names: Sequence[str]) -> pa.Schema:
    return pa.schema([field for field in ROWS_SCHEMA if field.name in names])


def _range_of(batch: pa.RecordBatch) -> tuple[int, int]:
    """[start, end) of the log that a batch was read from."""
    offsets, sizes = (batch.column(name) for name in _PLACE)
    return offsets[0].as_py(), offsets[-1].as_py() + sizes[-1].as_py()


def _named_columns(condition: dataset.Expression | None) -> list[str]:
    """Columns that a filter names, found in its text, which is all that Arrow exposes.

    A word that merely looks like a column costs time but changes no result.
    """
    text = "" if condition is None else str(condition)
    return [name for name in ROWS_SCHEMA.names if name in text]


def timestamp(microseconds: int) -> pa.Scalar:
    """Scalar that a filter compares storeTimestamp with."""
    return pa.scalar(microseconds, ROWS_SCHEMA.field("storeTimestamp").type)
