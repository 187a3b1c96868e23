"""The formats of tables that followers fill, for tests of what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from reput.sinks.delta.table import DeltaTarget
from reput.sinks.iceberg.catalog import TableName, open_catalog
from reput.sinks.iceberg.table import IcebergTarget
from reput.store.bodies.declaration import BodyColumns
from reput.store.follower import FollowerTarget
from reput.store.rows.rowform import DEFAULT_FORM, RowForm
from tests.support.tables import table_rows

ICEBERG_TABLE = TableName("lake", ("db", "messages"))


def catalog_properties(root: Path) -> dict[str, str]:
    """A catalog of sqlite, whose directory is made."""
    root.mkdir(parents=True, exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}"}


def iceberg_target(
    root: Path,
    body_columns: BodyColumns | None = None,
    store_id: str | None = None,
    form: RowForm = DEFAULT_FORM,
) -> IcebergTarget:
    """A follower's target there."""
    properties = catalog_properties(root)
    return IcebergTarget(
        ICEBERG_TABLE, properties, body_columns=body_columns, store_id=store_id,
        interval_seconds=0.0, form=form,
    )  # fmt: skip


def iceberg_catalog(root: Path) -> Catalog:
    """The catalog itself."""
    return open_catalog(ICEBERG_TABLE.catalog, catalog_properties(root))


def iceberg_table(root: Path, name: str = ICEBERG_TABLE.identifier[-1]) -> Table:
    """The table as another program sees it."""
    return iceberg_catalog(root).load_table((*ICEBERG_TABLE.namespace, name))


def iceberg_rows(
    root: Path, *columns: str, table: str = ICEBERG_TABLE.identifier[-1]
) -> list[dict[str, Any]]:
    """Rows of the table there by physical offset; all columns if none are named."""
    found = iceberg_table(root, table).scan(selected_fields=columns or ("*",)).to_arrow()
    order = pc.sort_indices(found, [("physicalOffset", "ascending")])
    rows: list[dict[str, Any]] = found.take(order).to_pylist()
    return rows


def delta_target(
    root: Path,
    body_columns: BodyColumns | None = None,
    store_id: str | None = None,
    form: RowForm = DEFAULT_FORM,
) -> DeltaTarget:
    """A follower's target, whose table is the directory."""
    return DeltaTarget(
        str(root), body_columns=body_columns, store_id=store_id, interval_seconds=0.0, form=form
    )


@dataclass(frozen=True)
class TableFormat:
    """Makes followers of a table below a directory, and reads it without them."""

    target: Callable[..., FollowerTarget]
    """With the arguments of ``delta_target``; it commits whenever there is something."""
    rows: Callable[..., list[dict[str, Any]]]
    """With the arguments of ``iceberg_rows``."""


FORMATS = {
    "delta": TableFormat(delta_target, table_rows),
    "iceberg": TableFormat(iceberg_target, iceberg_rows),
}
