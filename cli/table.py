"""``reput table``: the upkeep of Delta and Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import options, texts
from reput.cli.commands import Command, Group
from reput.cli.printer import Result, printed
from reput.store.errors import ReputError, StoreError, UsageError, library_text

if TYPE_CHECKING:
    from reput.sinks.tables.upkeep import TableUpkeep

app = typer.Typer(
    cls=Group, help="Compact Delta and Iceberg tables, and expire them.", no_args_is_help=True
)

TableArgument = Annotated[
    str,
    typer.Argument(
        help="A Delta table's path or `s3://` URL, or, with `--iceberg-config`, "
        "CATALOG.NAMESPACE.TABLE.",
        metavar="URL",
    ),
]
IcebergConfig = Annotated[
    Path | None,
    options.value("FILE", "TOML file with the catalogs of Iceberg tables, as that of `run`."),
]
TargetFileSize = Annotated[
    str | None,
    options.value(
        "SIZE", "Size up to which small files are joined; that of the table's properties if not "
        "given.",
    ),
]  # fmt: skip
KeepSnapshots = Annotated[
    int | None,
    options.value("N", "Snapshots of an Iceberg table's main branch that stay; 90.", min=1),
]


@app.command("compact", cls=Command)
@printed
def compact(
    table: TableArgument,
    iceberg_config: IcebergConfig = None,
    target_file_size: TargetFileSize = None,
) -> Result:
    """Join the small files of a table's partitions into large ones.

    Writers, `reput run` among them, may go on meanwhile. Readers see the same rows, before and
    after. The small files stay for readers of older versions until the table expires.
    """
    size = options.size_option("--target-file-size", target_file_size)
    upkeep = _upkeep(table, iceberg_config)
    with _failures(table):
        done = upkeep.compact(size)
    line = (
        f"{texts.counted(done.replaced_files, 'file')} of "
        f"{texts.human_bytes(done.replaced_bytes)} compacted to "
        f"{texts.counted(done.new_files, 'file')} of {texts.human_bytes(done.new_bytes)}"
    )
    return Result(asdict(done), [line])


@app.command("expire", cls=Command)
@printed
def expire(
    table: TableArgument,
    iceberg_config: IcebergConfig = None,
    keep_snapshots: KeepSnapshots = None,
) -> Result:
    """Remove old snapshots of an Iceberg table, and files that no version of a table needs.

    Writers, `reput run` among them, may go on meanwhile. Of a Delta table, files go that have not
    been part of it for its retention, a week by default; of an Iceberg table, those that belong to
    no snapshot any more, and those that broken-off writes of `reput` have left a day ago.
    """
    upkeep = _upkeep(table, iceberg_config, keep_snapshots)
    with _failures(table):
        done = upkeep.expire()
    line = (
        f"{texts.counted(done.versions, 'snapshot')} and {texts.counted(done.files, 'file')} "
        "removed"
    )
    return Result(asdict(done), [line])


def _upkeep(
    table: str, iceberg_config: Path | None, keep_snapshots: int | None = None
) -> TableUpkeep:
    """Return the upkeep of a table. Raises UsageError."""
    if iceberg_config is None:
        if keep_snapshots is not None:
            raise UsageError(
                "--keep-snapshots is for an Iceberg table, which --iceberg-config FILE finds"
            )
        from reput.sinks.delta.table import DeltaTarget  # noqa: PLC0415

        return DeltaTarget(table).upkeep()
    from reput.sinks.iceberg.catalog import TableName, read_catalog  # noqa: PLC0415
    from reput.sinks.iceberg.table import IcebergTarget  # noqa: PLC0415

    name = TableName.parse(table)
    target = IcebergTarget(name, read_catalog(iceberg_config, name.catalog))
    return target.upkeep() if keep_snapshots is None else target.upkeep(keep_snapshots)


@contextmanager
def _failures(table: str) -> Iterator[None]:
    """Raise StoreError for what the libraries of tables raise."""
    try:
        yield
    except ReputError:
        raise
    except Exception as error:
        from reput.sinks.delta.localtable import without_password  # noqa: PLC0415

        failed = f"the upkeep of the table {table} failed: {library_text(error)}"
        line = without_password(failed)
        raise StoreError(line) from error
