"""A Delta table of all messages: public rows (``store.rows.rowschema``) in a layout that a user may
declare (``layout``), by default partitioned by topic and date.

Delivery: exactly once. The end of a commit's range is stored as an application transaction of
Delta's protocol, durably (on a local path ``localtable`` ensures that). The application id is the
store's identity. If two writers share an identity, the table refuses the second one's commit. Unit
of work: a range of the log, one after the other, in one thread.

Columns besides those of every table (``sinks.tables.tablerows``):

| column | type | content |
|---|---|---|
| date | date | of storeTimestamp, UTC; null if that is |
| fullTopic | string | the topic's name if it cannot name a partition, else null |

They are the same in every layout. A damaged or lost range is in the partition without topic and
date. If a topic's name is too long for a directory, its topic column has the beginning and a
digest. An empty name has null there, because Delta reads an empty partition value as null. In both
cases fullTopic has the name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from reput.sinks.delta.layout import DeltaLayout
from reput.sinks.delta.localtable import TRANSACTIONS_MARK, LocalTable, without_password
from reput.sinks.delta.restores import CUT_MARK, POSITION_MARK, STORE_MARK, position_of_rows
from reput.sinks.tables.follower import Mark, TableStore, TableWriter, unfit_table
from reput.sinks.tables.layout import DELTA_LAYOUT, Layout
from reput.sinks.tables.tablerows import OWN_COLUMN, VARIED_COLUMNS
from reput.sinks.tables.target import TableTarget
from reput.sinks.tables.upkeep import TableUpkeep
from reput.store.errors import UsageError
from reput.store.rows.rowform import RowForm
from reput.store.rows.rowschema import ROWS_SCHEMA

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, WriterProperties

DEFAULT_INTERVAL_SECONDS = 10.0
TARGET_FILE_SIZE = "delta.targetFileSize"
ROWS_PER_WRITE = 8192
"""Rows that the library's Parquet writer takes at a time; its own 1,024 cost a tenth more."""
LONGEST_DIRECTORY = 255 - len("topic=")
"""Bytes of a topic's name as a directory, the limit of local file systems."""
_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
_FORM = "includeInternal", "maxInflatedBytes"
"""Further application transactions of a store, whose versions say in which form its rows are: 0 or
1, and a number of bytes, 0 for bodies as stored."""
_OWN = [pa.field("date", pa.date32()), pa.field("fullTopic", pa.string())]


@dataclass(frozen=True, slots=True)
class DeltaTarget(TableTarget):
    """One Delta table, a ``store.follower.FollowerTarget``."""

    FORMAT = "a Delta table", "deltalake", "delta"
    LOSING = "delta.setTransactionRetentionDuration"

    url: str
    """A local path or another URL of deltalake: s3://, gs://, az://, ...; their settings come from
    the environment."""
    _: KW_ONLY
    interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    """Each commit writes a file per partition and one more, so a live log is committed at this
    interval and not ten times a second."""
    layout: Layout = DELTA_LAYOUT
    name: str = "delta"

    def __post_init__(self) -> None:
        TableTarget.__post_init__(self)
        path = self.local_path
        if path is not None and _ESCAPE.search(str(path.absolute())):
            raise UsageError(
                f"a Delta table cannot be at {path}: deltalake reads the % and the two digits "
                "after it as one character; give another path"
            )

    @property
    def description(self) -> str:
        """The URL without a password."""
        return without_password(self.url)

    @property
    def local_path(self) -> Path | None:
        """The table's directory, if it is on this machine."""
        table = LocalTable.of(self.url)
        return None if table is None else table.root

    def _writer(self, store: TableStore) -> tuple[TableWriter, Callable[[], TableUpkeep]]:
        local = LocalTable.of(self.url)
        writer = DeltaWriter(self.url, local, store.store_id, self.layout)
        return writer, lambda: self.upkeep(local)

    def of_bad_records(self) -> DeltaTarget:
        """Return the target of the table of bad records, beside this one."""
        url = f"{self.url.rstrip('/')}_bad"
        return replace(self, url=url, name=f"{self.name}-bad", only_bad=True)

    def upkeep(self, local: LocalTable | None = None) -> TableUpkeep:
        """Return the upkeep of this table; ``local`` is that of a writer in this process."""
        from reput.sinks.delta.upkeep import DeltaUpkeep  # noqa: PLC0415

        return DeltaUpkeep(self.url, local or LocalTable.of(self.url))


class DeltaWriter:
    """Commits to one table; a ``sinks.tables.follower.TableWriter``."""

    def __init__(
        self, url: str, local: LocalTable | None, store_id: str, new_layout: Layout
    ) -> None:
        """``new_layout`` is for a table that is missing; one that exists keeps its own."""
        self._url = url
        self._new_layout = new_layout
        self._layout = DeltaLayout.of_new_table(new_layout)
        self._local = local
        self._store_id = store_id
        self._app_id = f"reput:{store_id}"
        self._table: DeltaTable | None = None

    def load(self) -> Mark | None:
        """Read the newest version. Raises StoreError for a torn one, UsageError for partitions and
        columns of others that need a value, and as ``position_of_rows``."""
        from deltalake import DeltaTable  # noqa: PLC0415
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

        if self._local is not None:
            self._local.settle()
        try:
            self._table = DeltaTable(self._url)
        except TableNotFoundError:
            self._table, self._layout = None, DeltaLayout.of_new_table(self._new_layout)
            return None
        self._layout = DeltaLayout.of_table(self._table, without_password(self._url))
        self._check_columns(self._table)
        return Mark(position_of_rows(self._table, self._app_id), self._kept_form())

    def _check_columns(self, table: DeltaTable) -> None:
        own = (field.name for field in (*_OWN, *self._layout.fields))
        ours = {*ROWS_SCHEMA.names, OWN_COLUMN, *own}
        for field in table.schema().fields:
            if not field.nullable and field.name not in ours:
                wrong = f"has the column {field.name}, which must not be null and is not ours"
                raise unfit_table(without_password(self._url), wrong)

    def schema(self) -> pa.Schema | None:
        """As Arrow's."""
        return None if self._table is None else pa.schema(self._table.schema().to_arrow())

    def has_rows(self) -> bool:
        """Whether the table has files."""
        return self._table is not None and bool(self._table.file_uris())

    def has_rows_of_store(self) -> bool:
        """Whether rows have the store's identity."""
        columns, ours = ["storeId"], f"storeId = '{self._store_id}'"
        table = self._table
        return (
            table is not None
            and any(field.name in columns for field in table.schema().fields)
            and any(batch.num_rows for batch in table.scan(columns, ours))
        )

    def _kept_form(self) -> RowForm | None:
        """None if the table holds nothing of this store. A table of an earlier version has every
        record as stored."""
        table = self._table
        if table is None or table.transaction_version(self._app_id) is None:
            return None
        internal, limit = (table.transaction_version(f"{self._app_id}:{n}") for n in _FORM)
        return RowForm(internal != 0, limit or None)

    def append(
        self, end: int, form: RowForm, schema: pa.Schema, rows: Iterator[pa.RecordBatch]
    ) -> None:
        """Commit on top of the version that the last position was read from."""
        self._append(schema, rows, self._commit(end, form))

    def truncate(self, end: int) -> None:
        """Delete rows; without one to delete, commit the position alone."""
        assert self._table is not None
        version = self._table.version()
        with self._synced():
            self._table.delete(
                f"storeId = '{self._store_id}' and physicalOffset >= {end}",
                commit_properties=self._commit(end, cut=True),
            )
        if self._table.version() == version:
            # deleting no rows makes no commit
            self._append(ROWS_SCHEMA, iter(()), self._commit(end, cut=True))

    def close(self) -> None:
        """Do nothing: no file or connection is open between writes."""

    def _append(
        self, schema: pa.Schema, rows: Iterator[pa.RecordBatch], properties: CommitProperties
    ) -> None:
        """Fails if the same application has committed to the table meanwhile."""
        from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415

        table, layout = self._table, self._layout
        size = self._new_layout.target_file_bytes if table is None else None
        columns = pa.schema([*schema, *_OWN, *layout.fields])
        made = layout.laid_out(map(_with_columns, rows))
        with self._synced():
            write_deltalake(
                self._url if table is None else table,
                pa.RecordBatchReader.from_batches(
                    layout.marked(columns) if table is None else columns, made
                ),
                mode="error" if table is None else "append",
                schema_mode=None if table is None else "merge",
                partition_by=[*layout.partition_columns],
                configuration=None if size is None else {TARGET_FILE_SIZE: str(size)},
                commit_properties=properties,
                writer_properties=_parquet_form(),
            )
        if table is None:
            # another writer may have gone on from there meanwhile
            self._table = DeltaTable(self._url, version=0)

    def _synced(self) -> AbstractContextManager[None]:
        return nullcontext() if self._local is None else self._local.synced()

    def _commit(
        self, end: int, form: RowForm | None = None, *, cut: bool = False
    ) -> CommitProperties:
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415

        transactions = [Transaction(self._app_id, end)]
        if form is not None and self._kept_form() is None:
            numbers = int(form.include_internal), form.max_inflated_bytes or 0
            transactions += [
                Transaction(f"{self._app_id}:{name}", number)
                for name, number in zip(_FORM, numbers, strict=True)
            ]
        marks = {
            POSITION_MARK: str(end),
            STORE_MARK: self._app_id,
            TRANSACTIONS_MARK: str(len(transactions)),
        }
        if cut:
            marks[CUT_MARK] = "true"
        return CommitProperties(
            custom_metadata=marks,
            # a second try would add the rows to a table that another writer has made meanwhile
            max_commit_retries=0 if self._table is None else None,
            app_transactions=transactions,
        )


def _parquet_form() -> WriterProperties:
    """How files are written: statistics for each of them, and not for each page, which nobody
    asks of a file of this size."""
    from deltalake import ColumnProperties, WriterProperties  # noqa: PLC0415

    varied = ColumnProperties(dictionary_enabled=False, statistics_enabled="CHUNK")
    unique = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
    return WriterProperties(
        compression="SNAPPY",
        write_batch_size=ROWS_PER_WRITE,
        default_column_properties=ColumnProperties(statistics_enabled="CHUNK"),
        # the library finds no columns within a map
        column_properties=dict.fromkeys(VARIED_COLUMNS, varied) | {"body": unique},
    )


def _with_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    topics, full_topics = _partition_topics(rows.column("topic"))
    columns = dict(zip(rows.schema.names, rows.columns, strict=True)) | {"topic": topics}
    dates = pc.cast(rows.column("storeTimestamp"), pa.date32())
    arrays = [*columns.values(), dates, full_topics]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*rows.schema, *_OWN]))


def _partition_topics(topics: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(partition values, full names that differ from them)."""
    full_topics = pa.nulls(len(topics), pa.string())
    for name in pc.unique(topics).to_pylist():
        if name is None or 0 < _directory_length(name) <= LONGEST_DIRECTORY:
            continue
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        stands_for = f"{name[:16]}#{digest}" if name else None
        rows = pc.equal(topics, name)
        full_topics = pc.if_else(rows, name, full_topics)
        topics = pc.if_else(rows, pa.scalar(stands_for, pa.string()), topics)
    return topics, full_topics


def _directory_length(name: str) -> int:
    """Upper bound: every byte other than a letter or digit is written as %XX."""
    return sum(1 if chr(byte).isalnum() and byte < 128 else 3 for byte in name.encode())
