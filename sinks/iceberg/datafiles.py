"""Data files of an Iceberg table, and what is committed: all that uses functions of pyiceberg 0.12
which are not public.

A range becomes files of up to a chunk of rows (``sinks.tables.ordering``), each of one partition
and in the table's order, written by WRITERS threads. Files are written once; a commit that another
one overtook takes them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    ArrowScan,
    _pyarrow_to_schema_without_ids,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    TableUpdate,
)
from pyiceberg.typedef import Record

from reput.sinks.iceberg.partitions import Part, order_of, split
from reput.sinks.tables.ordering import chunks
from reput.sinks.tables.tablerows import UNIQUE_COLUMNS, VARIED_COLUMNS

WRITERS = 2
NO_METRICS = {
    f"write.metadata.metrics.column.{name}": "none"
    for name in ("body", "properties.key", "properties.value")
}
"""Columns without statistics, as in properties of a table."""
_UNIQUE_END = re.compile(
    r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-[0-9]{5}\.parquet\Z", re.ASCII
)


def iceberg_schema(schema: pa.Schema) -> Schema:
    """The schema of a new table."""
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))


def write_data_files(table: Table, rows: Iterator[pa.RecordBatch], stem: str) -> list[DataFile]:
    """Write rows as files in whose names ``stem`` stands; return their entries. Raises what taking
    or writing a row raises, and leaves no file then."""
    unique = uuid4()
    pending: list[Future[DataFile]] = []
    found: list[DataFile] = []
    with ThreadPoolExecutor(WRITERS, "reput-iceberg") as pool:
        try:
            for chunk in chunks(rows):
                for partition, part in split(table, chunk):
                    if len(pending) >= WRITERS:
                        found.append(pending.pop(0).result())
                    number = len(found) + len(pending)
                    name = _file_name(table, stem, unique, number)
                    pending.append(pool.submit(_write, table, name, partition, part))
            return found + [one.result() for one in pending]
        except BaseException:
            wait(pending)
            written = [one.result() for one in pending if one.exception() is None]
            delete_files(table.io, (file.file_path for file in (*found, *written)))
            raise


def rewrite_data_files(table: Table, tasks: list[FileScanTask]) -> list[DataFile]:
    """Write the rows of files of one partition as one file, as many at a time as an append does;
    return its entry, or none where no row is left."""
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    form = schema_to_pyarrow(table.schema())
    rows = (
        batch
        for task in tasks
        # one by one, since the library would hold the rows of all at once
        for found in scan.to_record_batches([task])
        for batch in pa.Table.from_batches([found]).select(form.names).cast(form).to_batches()
    )
    # each in the table's order
    parts = (part for chunk in chunks(rows) for _, part in split(table, chunk))
    if (first := next(parts, None)) is None:
        return []
    name = _file_name(table, "compacted", uuid4(), 0)
    return [_write(table, name, tasks[0].file.partition, first, parts)]


def delete_files(io: FileIO, locations: Iterable[str]) -> int:
    """Remove files, and return their number; one that is gone already counts, too."""
    gone = list(locations)
    for location in gone:
        with suppress(FileNotFoundError):
            io.delete(location)
    return len(gone)


def _prefix(table: Table) -> str:
    # two tables may have one directory, as after a table was renamed and made anew
    return f"reput-{table.metadata.table_uuid.hex[:16]}-"


def _file_name(table: Table, stem: str, unique: UUID, number: int) -> str:
    return f"{_prefix(table)}{stem}-{unique}-{number:05}.parquet"


def is_own_file(table: Table, name: str) -> bool:
    """Whether a data file was written here for this table, which may put a prefix before its
    name."""
    return _prefix(table) in name and _UNIQUE_END.search(name) is not None


def _write(
    table: Table, name: str, partition: Record, first: Part, others: Iterable[Part] = ()
) -> DataFile:
    location = table.location_provider().new_data_location(name)
    try:
        return _write_to(table, location, partition, first, others)
    except BaseException:
        # on a full disk each attempt would leave another part of a file
        with suppress(OSError):
            table.io.delete(location)
        raise


def _write_to(
    table: Table, location: str, partition: Record, first: Part, others: Iterable[Part]
) -> DataFile:
    schema, metadata = table.schema(), table.metadata
    form = schema_to_pyarrow(schema.select(*first.rows.schema.names))
    output = table.io.new_output(location)
    paths = set(parquet_path_to_id_mapping(schema.select(*form.names)))
    with (
        output.create() as stream,
        pq.ParquetWriter(
            stream, form, compression="snappy", store_schema=False,
            use_dictionary=sorted(paths - VARIED_COLUMNS - UNIQUE_COLUMNS),
            write_statistics=sorted(paths - UNIQUE_COLUMNS),
        ) as writer,
    ):  # fmt: skip
        order_id = order_of(table).order_id
        # other columns of the table have no part in the file, and are null
        writer.write_table(first.in_order(form.names).cast(form))
        for part in others:
            writer.write_table(part.in_order(form.names).cast(form))
            order_id = None  # each part is in order, and not all of them together
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=writer.writer.metadata,
        stats_columns=compute_statistics_plan(schema, {**metadata.properties, **NO_METRICS}),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(output),
        sort_order_id=order_id,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def stage_append(transaction: Transaction, files: list[DataFile], marks: dict[str, str]) -> None:
    """Stage one snapshot with the files, or without any."""
    with transaction._append_snapshot_producer(marks) as snapshot:
        for file in files:
            snapshot.append_data_file(file)


def stage_delete(
    transaction: Transaction, table: Table, store_id: str, end: int, marks: dict[str, str]
) -> None:
    """Stage one snapshot without the store's rows at and after ``end``. Files with other rows are
    written anew, one after the other."""
    ours = f"storeId = '{store_id}' and physicalOffset >= {end}"
    tasks = [task for task in table.scan(ours).plan_files() if isinstance(task, FileScanTask)]
    if not tasks:
        stage_append(transaction, [], marks)
        return
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    with transaction.update_snapshot(snapshot_properties=marks).overwrite() as snapshot:
        for task in tasks:
            rows = scan.to_table([task])
            is_ours = pc.equal(rows.column("storeId"), store_id)
            is_gone = pc.and_kleene(is_ours, pc.greater_equal(rows.column("physicalOffset"), end))
            kept = rows.filter(pc.invert(pc.fill_null(is_gone, False)))
            snapshot.delete_data_file(task.file)
            for file in write_data_files(table, iter(kept.to_batches()), f"{store_id}-cut-{end}"):
                snapshot.append_data_file(file)


def stage_replacement(
    transaction: Transaction, old: Iterable[DataFile], new: Iterable[DataFile]
) -> int:
    """Stage one snapshot with the same rows in other files; return its id.

    It is said to be a replacement, which pyiceberg cannot make: those who read a table snapshot by
    snapshot skip one, and stop at an overwrite.
    """
    with transaction.update_snapshot().overwrite() as snapshot:
        for file in old:
            snapshot.delete_data_file(file)
        for file in new:
            snapshot.append_data_file(file)
    transaction._updates = tuple(map(_as_replacement, transaction._updates))
    (added,) = (one for one in transaction._updates if isinstance(one, AddSnapshotUpdate))
    return added.snapshot.snapshot_id


def _as_replacement(update: TableUpdate) -> TableUpdate:
    if not isinstance(update, AddSnapshotUpdate):
        return update
    assert update.snapshot.summary is not None
    summary = Summary(Operation.REPLACE, **update.snapshot.summary.additional_properties)
    return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"summary": summary}))


def stage_expiry(transaction: Transaction, table: Table, snapshot_ids: Sequence[int]) -> None:
    """Stage the removal of snapshots. A branch or tag that has moved since refuses it."""
    heads = tuple(
        AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
        for name, ref in table.metadata.refs.items()
    )
    update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [*snapshot_ids]})
    transaction._apply((update,), heads)


def commit(catalog: Catalog, table: Table, transaction: Transaction) -> None:
    """Send what is staged, once. Raises CommitFailedException where the table has another head now;
    after any other error it is not known whether it was taken.

    ``commit_transaction`` would stage anew on a head that another writer has made, whoever that is,
    and delete files of a snapshot that was taken where its request had been sent twice.
    """
    requirement = AssertTableUUID(uuid=table.metadata.table_uuid)
    requirements = (*transaction._requirements, requirement)
    response = catalog.commit_table(table, requirements, transaction._updates)
    catalog._delete_old_metadata(table.io, table.metadata, response.metadata)
