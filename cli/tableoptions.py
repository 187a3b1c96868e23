"""Options of the followers that fill tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from reput.cli import options
from reput.cli.options import DELTA, ICEBERG, TABLES
from reput.store.errors import UsageError
from reput.store.follower import FollowerTarget
from reput.store.rows.rowform import RowForm

if TYPE_CHECKING:
    from reput.sinks.delta.table import DeltaTarget
    from reput.sinks.iceberg.table import IcebergTarget
    from reput.sinks.tables.layout import Layout

Targets = Callable[[str | None, RowForm], tuple[FollowerTarget, ...]]
"""The followers of the only store (None), or of one of several, by its name."""

_SCHEMA = "TOML or JSON file that says which columns to take from bodies, by topic."
_STORE_ID = "The store's name in a table that several stores share or that outlives OUTPUT."
_INTERVAL = "Commit to the table at most this often, or earlier once 256 MiB of log are waiting."
_PARTITION_BY = (
    "Partitions of a new table: `topic`, `day`, `hour` and `queue(N)`; by {} if not given."
)
_SORT_BY = "Columns that sort the files of a new table; {} if not given."
_FILE_SIZE = "Size to which compaction brings files of a new table; {} if not given."

Delta = Annotated[
    str | None,
    options.value(
        "URL", "Also write a row per message to this Delta table, a path or an `s3://` URL.",
        panel=DELTA,
    ),
]  # fmt: skip
DeltaSchema = Annotated[Path | None, options.value("FILE", _SCHEMA, panel=DELTA)]
DeltaStoreId = Annotated[str | None, options.value("ID", _STORE_ID, panel=DELTA)]
DeltaInterval = Annotated[str, options.value("TIME", _INTERVAL, panel=DELTA)]
DeltaPartitionBy = Annotated[
    str | None,
    options.value("LIST", _PARTITION_BY.format("`topic,day`"), panel=DELTA),
]
DeltaSortBy = Annotated[
    str | None,
    options.value("LIST", _SORT_BY.format("the log's order"), panel=DELTA),
]
DeltaFileSize = Annotated[
    str | None,
    options.value("SIZE", _FILE_SIZE.format("100m"), panel=DELTA),
]
Iceberg = Annotated[
    str | None,
    options.value(
        "CATALOG.NAMESPACE.TABLE", "Also write a row per message to this Iceberg table.",
        panel=ICEBERG,
    ),
]  # fmt: skip
IcebergConfig = Annotated[
    Path | None,
    options.value(
        "FILE", "TOML file with a table of pyiceberg's properties for each catalog: `rest` or "
        "`sql`.", panel=ICEBERG,
    ),
]  # fmt: skip
IcebergSchema = Annotated[Path | None, options.value("FILE", _SCHEMA, panel=ICEBERG)]
IcebergStoreId = Annotated[str | None, options.value("ID", _STORE_ID, panel=ICEBERG)]
IcebergInterval = Annotated[str, options.value("TIME", _INTERVAL, panel=ICEBERG)]
IcebergPartitionBy = Annotated[
    str | None, options.value("LIST", _PARTITION_BY.format("`day`"), panel=ICEBERG)
]
IcebergSortBy = Annotated[
    str | None, options.value("LIST", _SORT_BY.format("`topic,physicalOffset`"), panel=ICEBERG)
]
IcebergFileSize = Annotated[
    str | None, options.value("SIZE", _FILE_SIZE.format("128m"), panel=ICEBERG)
]
CompactEvery = Annotated[
    str | None,
    options.value(
        "TIME", "Compact the tables of this run and expire them at this interval, as `reput table` "
        "does; rows wait meanwhile.", panel=TABLES,
    ),
]  # fmt: skip


def delta_followers(
    delta: Delta = None,
    delta_schema: DeltaSchema = None,
    delta_store_id: DeltaStoreId = None,
    delta_interval: DeltaInterval = "10s",
    delta_partition_by: DeltaPartitionBy = None,
    delta_sort_by: DeltaSortBy = None,
    delta_file_size: DeltaFileSize = None,
    compact_every: CompactEvery = None,
) -> Targets:
    """Return a function for the Delta followers that the options ask for. Both raise
    UsageError."""
    seconds = options.duration_option_ms("--delta-interval", delta_interval) / 1000
    size = options.size_option("--delta-file-size", delta_file_size)
    declared = delta_partition_by, delta_sort_by, size
    if delta is None:
        if any(other is not None for other in (delta_schema, delta_store_id, *declared)):
            raise UsageError("the options that begin with --delta- need --delta URL")
        return lambda _name, _form: ()
    if not delta:
        raise UsageError("--delta is empty; give the table's URL")
    from reput.sinks.delta.table import DeltaTarget  # noqa: PLC0415
    from reput.sinks.tables.layout import DELTA_LAYOUT  # noqa: PLC0415

    def target_of(name: str | None, **fields: Any) -> DeltaTarget:
        _check_store_id("--delta-store-id", name, delta_store_id)
        url = delta if name is None else f"{delta.rstrip('/')}/{name}"
        return DeltaTarget(url, store_id=delta_store_id, interval_seconds=seconds, **fields)

    return _targets(target_of, delta_schema, DELTA_LAYOUT.declared(*declared), compact_every)


def iceberg_followers(
    iceberg: Iceberg = None,
    iceberg_config: IcebergConfig = None,
    iceberg_schema: IcebergSchema = None,
    iceberg_store_id: IcebergStoreId = None,
    iceberg_interval: IcebergInterval = "1m",
    iceberg_partition_by: IcebergPartitionBy = None,
    iceberg_sort_by: IcebergSortBy = None,
    iceberg_file_size: IcebergFileSize = None,
    compact_every: CompactEvery = None,
) -> Targets:
    """Return a function for the Iceberg followers that the options ask for. Both raise
    UsageError."""
    seconds = options.duration_option_ms("--iceberg-interval", iceberg_interval) / 1000
    size = options.size_option("--iceberg-file-size", iceberg_file_size)
    declared = iceberg_partition_by, iceberg_sort_by, size
    if iceberg is None:
        others = iceberg_config, iceberg_schema, iceberg_store_id, *declared
        if any(other is not None for other in others):
            raise UsageError(
                "the options that begin with --iceberg- need --iceberg CATALOG.NAMESPACE.TABLE"
            )
        return lambda _name, _form: ()
    if iceberg_config is None:
        raise UsageError("--iceberg needs --iceberg-config FILE, which says where its catalog is")
    from reput.sinks.iceberg.catalog import TableName, read_catalog  # noqa: PLC0415
    from reput.sinks.iceberg.table import IcebergTarget  # noqa: PLC0415
    from reput.sinks.tables.layout import ICEBERG_LAYOUT  # noqa: PLC0415

    layout, table = ICEBERG_LAYOUT.declared(*declared), TableName.parse(iceberg)
    catalog = read_catalog(iceberg_config, table.catalog)

    def target_of(name: str | None, **fields: Any) -> IcebergTarget:
        _check_store_id("--iceberg-store-id", name, iceberg_store_id)
        own, store_id = table if name is None else table.suffixed(name), iceberg_store_id
        return IcebergTarget(own, catalog, store_id=store_id, interval_seconds=seconds, **fields)

    return _targets(target_of, iceberg_schema, layout, compact_every)


def _targets(
    target_of: Callable[..., DeltaTarget | IcebergTarget],
    schema: Path | None,
    layout: Layout,
    compact_every: str | None,
) -> Targets:
    """Return a function for a table's target, and that of its bad records if a topic asks for it.
    ``target_of`` takes a store's name and fields of a target."""
    from reput.store.bodies.declaration import BodyColumns  # noqa: PLC0415

    columns = BodyColumns.read(schema) if schema is not None else None
    every = None
    if compact_every is not None:
        every = options.duration_option_ms("--compact-every", compact_every) / 1000

    def targets(name: str | None, form: RowForm) -> tuple[FollowerTarget, ...]:
        target = target_of(
            name, body_columns=columns, form=form, compact_every_seconds=every, layout=layout
        )
        has_bad = columns is not None and columns.has_table_of_bad
        return (target, target.of_bad_records()) if has_bad else (target,)

    return targets


def _check_store_id(option: str, name: str | None, store_id: str | None) -> None:
    if name is not None and store_id is not None:
        raise UsageError(f"{option} is for one store; leave it out with --stores")
