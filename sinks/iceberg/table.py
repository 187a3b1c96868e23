"""An Iceberg table of all messages: public rows (``store.rows.rowschema``) in a layout that a user
may declare (``sinks.tables.layout``).

Delivery: exactly once. Every position is committed with a snapshot (``marks``), as one request to
the catalog that compares the table's head. After an error nobody knows whether the request was
taken, so the position is asked for again before anything is written. Unit of work: a range of the
log, one after the other, in one thread.

Columns besides the public ones are those of every table (``sinks.tables.tablerows``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from reput.sinks.iceberg.catalog import TableName, is_unsynced, local_path, open_catalog
from reput.sinks.iceberg.marks import Found, Marks
from reput.sinks.tables.follower import Mark, TableStore, TableWriter, unfit_table
from reput.sinks.tables.layout import ICEBERG_LAYOUT, Layout
from reput.sinks.tables.tablerows import OWN_COLUMN
from reput.sinks.tables.target import TableTarget
from reput.sinks.tables.upkeep import TARGET_FILE_BYTES, TableUpkeep
from reput.store.errors import StoreError
from reput.store.rows.rowform import RowForm
from reput.store.rows.rowschema import ROWS_SCHEMA

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

DEFAULT_INTERVAL_SECONDS = 60.0
TARGET_FILE_SIZE = "write.target-file-size-bytes"
KEPT_SNAPSHOTS = 90
"""Number of snapshots that stay: with 100 a commit takes four times as long as with one."""
COMMITS = 100
"""Commits of one range that other writers may overtake."""
FORMAT_VERSION = 2
"""pyiceberg writes no later one, and an earlier one has no sequence numbers."""
NEW_TABLE = {
    "format-version": str(FORMAT_VERSION),
    "write.parquet.compression-codec": "snappy",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Properties of a table that is made here."""


@dataclass(frozen=True, slots=True)
class IcebergTarget(TableTarget):
    """One Iceberg table, a ``store.follower.FollowerTarget``."""

    FORMAT = "an Iceberg table", "pyiceberg", "iceberg"
    LOSING = "a change of the table's properties"

    table: TableName
    catalog: Mapping[str, Any] = field(repr=False)
    """Properties of its catalog (``sinks.iceberg.catalog.read_catalog``)."""
    _: KW_ONLY
    interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    """Each commit adds a snapshot, and makes the next one slower."""
    layout: Layout = ICEBERG_LAYOUT
    name: str = "iceberg"

    @property
    def description(self) -> str:
        """The table's name in its catalog."""
        return str(self.table)

    @property
    def local_path(self) -> Path | None:
        """The warehouse, if it is on this machine."""
        return local_path(self.catalog.get("warehouse"))

    def _writer(self, store: TableStore) -> tuple[TableWriter, Callable[[], TableUpkeep]]:
        return IcebergWriter(self, store), self.upkeep

    def of_bad_records(self) -> IcebergTarget:
        """Return the target of the table of bad records, beside this one."""
        table = self.table.suffixed("bad")
        return replace(self, table=table, name=f"{self.name}-bad", only_bad=True)

    def upkeep(self, kept_snapshots: int = KEPT_SNAPSHOTS) -> TableUpkeep:
        """Return the upkeep of this table, which keeps that many snapshots of the main branch."""
        from reput.sinks.iceberg.upkeep import IcebergUpkeep  # noqa: PLC0415

        return IcebergUpkeep(self.table, self.catalog, kept_snapshots)


class IcebergWriter:
    """Commits to one table; a ``sinks.tables.follower.TableWriter``."""

    def __init__(self, target: IcebergTarget, store: TableStore) -> None:
        self._target = target
        self._store_id = store.store_id
        self._is_shared = store.is_shared
        self._marks = Marks(store.store_id)
        self._catalog: Catalog | None = None
        self._table: Table | None = None
        self._found: Found | None = None
        self._complete_schema: tuple[pa.Schema, object, int] | None = None
        """The columns, and the table and its schema that has them all."""

    def load(self) -> Mark | None:
        """Read the table's metadata. Raises StoreError as ``Marks.find``, UsageError for a table
        that our files do not fit."""
        from pyiceberg.exceptions import (  # noqa: PLC0415
            NoSuchNamespaceError,
            NoSuchTableError,
        )

        if self._catalog is None:
            self._catalog = open_catalog(self._target.table.catalog, self._target.catalog)
        self._table = self._found = None
        try:
            table = self._catalog.load_table(self._target.table.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        self._check_fits(table)
        self._table, self._found = table, self._marks.find(table.metadata)
        position = None if self._found is None else self._found.position
        return Mark(position, self._marks.form(table.properties))

    def _check_fits(self, table: Table) -> None:
        """Raise UsageError for a table to which our files cannot be added."""
        from reput.sinks.iceberg.partitions import unfit_partition  # noqa: PLC0415

        fields = table.schema().fields
        ours = {*ROWS_SCHEMA.names, OWN_COLUMN}
        others = [one.name for one in fields if one.required and one.name not in ours]
        wrong = None
        if table.format_version != FORMAT_VERSION:
            wrong = f"has format version {table.format_version}, not {FORMAT_VERSION}"
        elif (partition := unfit_partition(table.metadata)) is not None:
            wrong = f"has the partition field {partition}, for which there is no value here"
        elif others:
            wrong = f"has the column {others[0]}, which must not be null and is not ours"
        elif is_unsynced(self._target.catalog, table.location()):
            wrong = f"is in {table.location()}, whose metadata the server writes without a sync"
        if wrong is not None:
            raise unfit_table(self._target.table, wrong)

    def schema(self) -> pa.Schema | None:
        """As Arrow's."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

        return None if self._table is None else schema_to_pyarrow(self._table.schema())

    def has_rows(self) -> bool:
        """Whether the main branch has files with rows."""
        snapshot = None if self._table is None else self._table.current_snapshot()
        return snapshot is not None and any(
            manifest.has_added_files() or manifest.has_existing_files()
            for manifest in snapshot.manifests(self._opened.io)
        )

    def has_rows_of_store(self) -> bool:
        """Whether rows have the store's identity."""
        table = self._table
        if table is None or "storeId" not in table.schema().column_names:
            return False
        ours = table.scan(f"storeId = '{self._store_id}'", selected_fields=("storeId",), limit=1)
        return bool(ours.to_arrow().num_rows)

    def append(
        self, end: int, form: RowForm, schema: pa.Schema, rows: Iterator[pa.RecordBatch]
    ) -> None:
        """Write files, then commit them; another writer's commit in between is followed by ours."""
        from reput.sinks.iceberg.datafiles import stage_append, write_data_files  # noqa: PLC0415

        begin = self._found
        if self._table is None:
            self._create(schema)
        self._add_columns(schema)
        is_first = self._marks.form(self._opened.properties) is None
        name = f"{self._store_id}-{'first' if begin is None else begin.position}-{end}"
        files = write_data_files(self._opened, rows, name)

        def stage(transaction: Transaction, marks: dict[str, str]) -> None:
            stage_append(transaction, files, marks)

        self._commit(begin, end, stage, form if is_first else None)

    def truncate(self, end: int) -> None:
        """Delete rows, which writes the files anew that keep others."""
        from reput.sinks.iceberg.datafiles import stage_delete  # noqa: PLC0415

        def stage(transaction: Transaction, marks: dict[str, str]) -> None:
            stage_delete(transaction, self._opened, self._store_id, end, marks)

        self._commit(self._found, end, stage, is_cut=True)

    def close(self) -> None:
        """Close the catalog's connections."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    @property
    def _opened(self) -> Table:
        if self._table is None:
            raise StoreError(f"the table {self._target.table} was removed: nothing was written")
        return self._table

    def _create(self, columns: pa.Schema) -> None:
        """Make the table, without rows and position; the first commit follows."""
        from pyiceberg.exceptions import TableAlreadyExistsError  # noqa: PLC0415

        from reput.sinks.iceberg.datafiles import (  # noqa: PLC0415
            NO_METRICS,
            iceberg_schema,
        )
        from reput.sinks.iceberg.partitions import partition_spec, sort_order  # noqa: PLC0415

        assert self._catalog is not None
        table, schema, layout = self._target.table, iceberg_schema(columns), self._target.layout
        size = {TARGET_FILE_SIZE: str(layout.target_file_bytes or TARGET_FILE_BYTES)}
        for parts in range(1, len(table.namespace) + 1):
            self._catalog.create_namespace_if_not_exists(table.namespace[:parts])
        try:
            self._catalog.create_table(
                table.identifier, schema, partition_spec=partition_spec(schema, layout),
                sort_order=sort_order(schema, layout), properties=NEW_TABLE | NO_METRICS | size,
            )  # fmt: skip
        except TableAlreadyExistsError as error:
            raise StoreError(
                f"another writer has made the table {table} meanwhile: nothing was written"
            ) from error
        self.load()

    def _add_columns(self, schema: pa.Schema) -> None:
        """Add columns that are declared since the table was made. Raises CommitFailedException
        where another writer is faster; the next attempt follows it."""
        from reput.sinks.iceberg.datafiles import commit  # noqa: PLC0415

        if self._schema_key(schema) == self._complete_schema:
            return
        transaction = self._opened.transaction()
        required = {column.name for column in self._opened.schema().fields if column.required}
        # rows of others have no value in a column that is new
        columns = [column.with_nullable(column.name not in required) for column in schema]
        with transaction.update_schema() as update:
            update.union_by_name(pa.schema(columns))
        if transaction.table_metadata.current_schema_id != self._opened.schema().schema_id:
            assert self._catalog is not None
            commit(self._catalog, self._opened, transaction)
            self.load()
        self._complete_schema = self._schema_key(schema)

    def _schema_key(self, schema: pa.Schema) -> tuple[pa.Schema, object, int]:
        return schema, self._opened.metadata.table_uuid, self._opened.schema().schema_id

    def _commit(
        self,
        begin: Found | None,
        end: int,
        stage: Callable[[Transaction, dict[str, str]], None],
        form: RowForm | None = None,
        *,
        is_cut: bool = False,
    ) -> None:
        """Stage on the table's head and commit, until no other writer overtakes it. Raises
        StoreError where the store is not at ``begin`` any more."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

        from reput.sinks.iceberg.datafiles import commit  # noqa: PLC0415

        ours = set[int]()
        for _ in range(COMMITS):
            transaction = self._opened.transaction()
            self._check_begin(begin, is_overtaken=bool(ours))
            stage(transaction, self._marks.summary(end))
            staged = transaction.table_metadata
            changed = self._marks.properties(end, staged, form, is_cut=is_cut)
            ours.add(Found.parse(changed[self._marks.position_key]).snapshot_id)
            transaction.set_properties(changed)
            # what is refused may have been taken before: a box between may send a request twice
            with suppress(CommitFailedException):
                assert self._catalog is not None
                commit(self._catalog, self._opened, transaction)
            self.load()
            if self._found is not None and self._found.snapshot_id in ours:
                return
        raise StoreError(
            f"other writers have overtaken {COMMITS} commits of the table {self._target.table}: "
            "nothing was written"
        )

    def _check_begin(self, begin: Found | None, *, is_overtaken: bool) -> None:
        """Raise StoreError where another writer with this identity has moved the position, or where
        one with another has begun to fill the table that was to be ours alone."""
        if self._found != begin:
            raise StoreError(
                f"the table is at {_position(self._found)}, not at {_position(begin)}: another "
                f"writer has the identity {self._store_id}"
            )
        if begin is None and is_overtaken and not self._is_shared and self.has_rows():
            raise StoreError("another writer has begun to fill the table: nothing was written")


def _position(found: Found | None) -> int | None:
    return None if found is None else found.position
