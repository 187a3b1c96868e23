"""Export of a range of the log to Parquet files, for use without a broker or Spark.

Rows and columns follow ``store.rows.rowschema``; within a file they keep the log's order. Files
are named OUT/part-N.parquet or, partitioned as in Hive, OUT/topic=T/date=D/part-N.parquet. A
partition column is not repeated in the files, and ``__HIVE_DEFAULT_PARTITION__`` stands for null
or empty.

The files are written to OUT.incomplete, which is renamed once it is complete and durable. A killed
export leaves no OUT, and the next export to it starts afresh.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, parquet

from reput.readers.dataset import MessageDataset, timestamp
from reput.store import fsops
from reput.store.config import StoreSettings
from reput.store.datadirectories import check_target
from reput.store.errors import OutputError, OwnershipError, StoreError, UsageError
from reput.store.files import INCOMPLETE_SUFFIX
from reput.store.queue.topics import known_topics, near_topics
from reput.store.rows.rowform import DEFAULT_FORM, RowForm
from reput.store.rows.rowschema import ROWS_SCHEMA

PARTITIONS = {"topic": "topic", "date": "storeTimestamp"}
"""Each partition column and the column that it is derived from; dates are in UTC."""
ROW_GROUP_BYTES = 64 << 20
"""Arrow data that is buffered before each partition in it gets a row group."""
ROW_GROUPS_PER_FILE = 256
MAX_OPEN_FILES = 256
"""With more partitions, open files are closed and new ones begun in the same directory."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_ESCAPES = {code: f"%{code:02X}" for code in (*range(32), *map(ord, "\"#%'*/:=?\\{[]^"), 127)}
"""The characters that Spark and Hive escape in a partition's directory (Spark 4.3
``ExternalCatalogUtils.escapePathName``). Characters beyond ASCII stay as they are: Spark takes each
escaped byte for a character, whereas pyarrow and DuckDB take them for UTF-8."""
_WILDCARDS = {"*": ".*", "?": "."}

Show = Callable[[int, int, int], None]
"""Receives (rows so far, bytes of the log scanned so far, bytes to scan in all)."""


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Rows that meet every condition; a lost or damaged range has neither topic nor time."""

    topics: Sequence[str] = ()
    """Names, or patterns with ``*`` and ``?``; empty selects all. A system topic needs its name."""
    from_ms: int | None = None
    """Store time, inclusive."""
    to_ms: int | None = None
    """Store time, exclusive."""
    from_offset: int | None = None
    """Physical offset, inclusive."""
    to_offset: int | None = None
    """Physical offset, exclusive."""

    @property
    def named_topics(self) -> frozenset[str]:
        """The topics without a wildcard."""
        return frozenset(topic for topic in self.topics if not _WILDCARDS.keys() & set(topic))

    def condition(self) -> dataset.Expression | None:
        """The filter for a dataset of ROWS_SCHEMA; None selects all rows."""
        offset, time = dataset.field("physicalOffset"), dataset.field("storeTimestamp")
        conditions = []
        if self.topics:
            patterns = "|".join(_pattern(topic) for topic in self.topics)
            topics = dataset.field("topic")
            conditions.append(pc.match_substring_regex(topics, rf"(?s)\A(?:{patterns})\z"))
        if self.from_ms is not None:
            conditions.append(time >= timestamp(self.from_ms * 1000))
        if self.to_ms is not None:
            conditions.append(time < timestamp(self.to_ms * 1000))
        if self.from_offset is not None:
            conditions.append(offset >= self.from_offset)
        if self.to_offset is not None:
            conditions.append(offset < self.to_offset)
        whole = None
        for condition in conditions:
            whole = condition if whole is None else whole & condition
        return whole

    def check_topics(self, row_topics: Collection[str], store: Path) -> None:
        """Raise UsageError for a topic or pattern that matches neither one of ``row_topics`` nor
        one that the store knows: it cannot be told before the log was read, which may hold messages
        of a deleted topic."""
        names = {*row_topics, *(known_topics([store]) if self.topics else ())}
        for topic in self.topics:
            if not any(re.fullmatch(_pattern(topic), name, re.DOTALL) for name in names):
                raise UsageError(
                    f"no message of topic {topic!r} in the chosen range of the log, and {store} "
                    f"knows no such topic{near_topics(topic, names)}; nothing was written"
                )


@dataclass(frozen=True, slots=True)
class Exported:
    """Counts of an export's output."""

    rows: int
    files: int
    bytes: int
    internal_left_out: int
    """Internal records of the selection, which are no rows (``store.rows.rowform``)."""
    lost_bytes: int = 0
    """Bytes of the chosen range of the log that no file covers."""
    damaged_bytes: int = 0
    """Bytes of it that are neither records nor BLANKs."""


def export(
    settings: StoreSettings,
    out: Path,
    selection: RowSelection,
    columns: Sequence[str],
    partition_by: Sequence[str],
    stop: threading.Event,
    show: Show,
    form: RowForm = DEFAULT_FORM,
    *,
    fail_on_data_loss: bool = False,
) -> Exported:
    """Write the rows of a selection to ``out``, which must be absent or an empty directory.

    ``columns`` are names of ROWS_SCHEMA, ``partition_by`` names of PARTITIONS. Raises UsageError
    for other names, for a topic that is neither in the range nor known to the store, for an ``out``
    that is not empty and for one inside a store's data; OwnershipError while another export writes
    there; StoreError if ``stop`` was set, and with ``fail_on_data_loss`` where ``MessageDataset``
    raises one; OutputError.
    """
    _check_names("`columns=`", columns, ROWS_SCHEMA.names)
    _check_names("`partition_by=`", partition_by, PARTITIONS)
    kept = [name for name in columns if name not in partition_by]
    if not kept:
        raise UsageError("no column is left for the files; name another one in `columns=`")
    form = replace(form, named_topics=selection.named_topics)
    messages = MessageDataset(settings, form, fail_on_data_loss=fail_on_data_loss)
    rows = 0
    row_topics: set[str] = set()

    def passed(done: int, total: int) -> None:
        if stop.is_set():
            line = f"the export was stopped and {out} not written; run it again"
            raise StoreError(line, path=out)
        show(rows, done, total)

    check_target(out, settings)
    with _written_aside(out) as aside:
        files = _Files(aside, kept, partition_by)
        try:
            read = dict.fromkeys([*kept, *(PARTITIONS[name] for name in partition_by)])
            if selection.topics:
                read["topic"] = None
            for batch in messages.batches(list(read), selection.condition(), passed):
                files.add(batch)
                rows += batch.num_rows
                if selection.topics:
                    row_topics.update(pc.unique(batch.column("topic")).to_pylist())
            selection.check_topics(row_topics, settings.root)
            files.finish()
        except BaseException:
            files.abandon()
            raise
    losses, left_out = messages.losses, messages.internal_left_out
    return Exported(
        rows, files.count, files.bytes, left_out, losses.lost_bytes, losses.damaged_bytes
    )


def _check_names(
    setting: str, names: Sequence[str], choices: Sequence[str] | dict[str, str]
) -> None:
    for name in names:
        if name not in choices:
            raise UsageError(f"{setting} names {name!r}; choose from {', '.join(choices)}")


def _pattern(topic: str) -> str:
    return "".join(_WILDCARDS.get(char) or re.escape(char) for char in topic)


@contextmanager
def _written_aside(out: Path) -> Iterator[Path]:
    """Yield a directory that is renamed to ``out``, durably, on success and removed on failure."""
    out = out.resolve()
    aside = out.with_name(out.name + INCOMPLETE_SUFFIX)
    _check_is_free(out)
    fsops.make_directories(aside, aside)
    fd = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OwnershipError(
                f"another export is writing {aside}; wait for it, or choose another directory",
                path=aside,
            ) from None
        _check_is_free(out)  # another export may have just finished
        for left in aside.iterdir():
            fsops.remove_tree(left)
        try:
            yield aside
            fsops.sync_file_system(fd, aside)
            fsops.rename(aside, out)
        except BaseException:
            with suppress(OutputError):
                fsops.remove_tree(aside)
            raise
    finally:
        os.close(fd)


def _check_is_free(out: Path) -> None:
    try:
        is_used = out.exists() and next(out.iterdir(), None) is not None
    except OSError as error:
        raise UsageError(f"cannot export to {out}: {error.strerror}") from error
    if is_used:
        raise UsageError(f"{out} is not empty; give a directory that does not exist yet")


class _Output(io.RawIOBase):
    """A new file for Parquet's writer; its write failures are reported like all others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = fsops.open_for_writing(path)
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        fsops.pwrite(self._fd, data, self.size, self._path)
        self.size += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


class _ParquetFile:
    """One file that is being written."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.output = _Output(path)
        self._writer = parquet.ParquetWriter(self.output, schema)
        self.row_groups = 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self.row_groups += 1

    def close(self) -> None:
        self._writer.close()
        self.output.close()


class _Files:
    """The files of one export: a directory per partition, or one if unpartitioned."""

    def __init__(self, root: Path, columns: Sequence[str], partition_by: Sequence[str]) -> None:
        self._root = root
        self._schema = pa.schema([ROWS_SCHEMA.field(name) for name in columns])
        self._partition_by = partition_by
        self._gathered: dict[str, list[pa.RecordBatch]] = {}
        self._gathered_bytes = 0
        self._begun: dict[str, int] = {}
        """Number of files of each directory."""
        self._open: dict[str, _ParquetFile] = {}
        """Open files by directory, the most recently written one last."""
        self.bytes = 0

    @property
    def count(self) -> int:
        """Number of files so far."""
        return sum(self._begun.values())

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows, including the columns that partitions are derived from."""
        for directory, part in self._partitioned(rows):
            self._gathered.setdefault(directory, []).append(part.select(self._schema.names))
        self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= ROW_GROUP_BYTES:
            self._write_gathered()

    def finish(self) -> None:
        """Finish all files; an unpartitioned export has one even without rows, for its schema."""
        self._write_gathered()
        if not self._partition_by and not self._begun:
            self._write("", [])
        for directory in list(self._open):
            self._close(directory)

    def abandon(self) -> None:
        """Close open files, which are then discarded."""
        for file in self._open.values():
            file.output.close()

    def _partitioned(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of each directory, in their order."""
        directories, codes = [""], np.zeros(rows.num_rows, np.int64)
        for name in self._partition_by:
            column = rows.column(PARTITIONS[name])
            if name == "date":
                column = column.cast(pa.date32())
            encoded = column.dictionary_encode("encode")
            folders = [_directory(name, value) for value in encoded.dictionary.to_pylist()]
            directories = [f"{outer}{inner}/" for outer in directories for inner in folders]
            codes = codes * len(folders) + encoded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        rows = rows.take(pa.array(order)) if len(directories) > 1 else rows
        used, starts = np.unique(codes[order], return_index=True)
        ends = [*starts[1:], rows.num_rows]
        for code, start, end in zip(used, starts, ends, strict=True):
            yield directories[code], rows.slice(start, end - start)

    def _write_gathered(self) -> None:
        for directory, parts in self._gathered.items():
            self._write(directory, parts)
        self._gathered.clear()
        self._gathered_bytes = 0

    def _write(self, directory: str, parts: Sequence[pa.RecordBatch]) -> None:
        file = self._open.pop(directory, None)
        if file is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._close(next(iter(self._open)))
            file = self._begin(directory)
        self._open[directory] = file
        file.write(pa.Table.from_batches(parts, self._schema))
        if file.row_groups >= ROW_GROUPS_PER_FILE:
            self._close(directory)

    def _begin(self, directory: str) -> _ParquetFile:
        number = self._begun.get(directory, 0)
        path = self._root / directory
        fsops.create_directories(path, self._root)
        self._begun[directory] = number + 1
        return _ParquetFile(path / f"part-{number}.parquet", self._schema)

    def _close(self, directory: str) -> None:
        file = self._open.pop(directory)
        file.close()
        self.bytes += file.output.size


def _directory(name: str, value: object) -> str:
    text = "" if value is None else str(value)
    return f"{name}={text.translate(_ESCAPES) or NO_VALUE}"
