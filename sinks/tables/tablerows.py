"""The rows of a table: public rows (``store.rows.rowschema``) with columns of our own.

| column | type | content |
|---|---|---|
| storeId | string | identity of the store; with physicalOffset it names one row |
| json, avro, protobuf | struct | columns of bodies, if declared for a topic (``store.bodies``) |
| badBody | boolean | whether the body did not fit the declaration; null without one |

A table of bad records has storeId and badReason.

A damaged or lost range is a row too, with corruptReason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa

from reput.store.bodies.declaration import FORMATS, BadRecord, BodyColumns, OnBadRecord
from reput.store.errors import StoreError, UsageError
from reput.store.follower import BAD_BODIES, MESSAGES_LEFT_OUT
from reput.store.rows.rowschema import ROWS_SCHEMA

OWN_COLUMN = "storeId"
UNIQUE_COLUMNS = {"body", "properties.key_value.key", "properties.key_value.value"}
"""Columns of Parquet files without statistics."""
VARIED_COLUMNS = {
    "keys", "physicalOffset", "queueOffset", "storeTimestamp", "bornTimestamp",
}  # fmt: skip
"""Columns of many values, as those without statistics are: a dictionary costs more than it
saves."""
_PLAIN = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
_BASE = [*ROWS_SCHEMA, pa.field(OWN_COLUMN, pa.string())]


class TableRows(Protocol):
    """Makes the rows of one table."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        ...

    def refresh(self) -> None:
        """Read a declaration again that has changed. Raises UsageError."""
        ...

    def of(self, rows: pa.RecordBatch, store_id: str) -> tuple[pa.RecordBatch, Mapping[str, int]]:
        """Return the table's rows of public rows, and what is to be counted once they are there.
        Raises StoreError for a body that must not be passed over."""
        ...


class AllRows:
    """A row for every message."""

    def __init__(self, bodies: BodyColumns | None) -> None:
        self._bodies = bodies

    @property
    def schema(self) -> pa.Schema:
        """With the columns that are declared."""
        return pa.schema([*_BASE, *(() if self._bodies is None else self._bodies.fields)])

    def refresh(self) -> None:
        """As ``TableRows``."""
        if self._bodies is not None:
            self._bodies = self._bodies.refreshed()

    def of(self, rows: pa.RecordBatch, store_id: str) -> tuple[pa.RecordBatch, Mapping[str, int]]:
        """As ``TableRows``."""
        if self._bodies is None:
            return _made(rows, store_id, [], self.schema), {}
        columns, bad = self._bodies.decode(rows)
        if stopped := [one for one in bad if one.policy is OnBadRecord.STOP]:
            raise _stop(rows, stopped[0])
        made = _made(rows, store_id, columns, self.schema)
        counts = {BAD_BODIES: len(bad)}
        if skipped := {one.row for one in bad if one.policy is OnBadRecord.SKIP}:
            kept = [row for row in range(rows.num_rows) if row not in skipped]
            made = made.take(pa.array(kept, pa.int64()))
            counts[MESSAGES_LEFT_OUT] = len(skipped)
        return made, counts


class BadRows:
    """A row for every message whose body does not fit, of topics that ask for it."""

    schema = pa.schema([*_BASE, pa.field("badReason", pa.string())])

    def __init__(self, bodies: BodyColumns) -> None:
        self._bodies = bodies

    def refresh(self) -> None:
        """As ``TableRows``."""
        self._bodies = self._bodies.refreshed()

    def of(self, rows: pa.RecordBatch, store_id: str) -> tuple[pa.RecordBatch, Mapping[str, int]]:
        """As ``TableRows``."""
        _, every = self._bodies.decode(rows)
        bad = [one for one in every if one.policy is OnBadRecord.TABLE]
        chosen = rows.take(pa.array([one.row for one in bad], pa.int64()))
        reasons = pa.array([one.reason for one in bad], pa.string())
        return _made(chosen, store_id, [reasons], self.schema), {BAD_BODIES: len(bad)}


def check_types(kept: pa.Schema, wanted: pa.Schema) -> None:
    """Raise UsageError where a column of bodies has another type in the table than it is declared
    with. One of the libraries would cast its values, and null what does not fit."""
    for name in {*FORMATS} & {*kept.names} & {*wanted.names}:
        _check_type(name, kept.field(name).type, wanted.field(name).type)


def _check_type(name: str, kept: pa.DataType, wanted: pa.DataType) -> None:
    if pa.types.is_struct(kept) and pa.types.is_struct(wanted):
        for field in wanted:
            if (at := kept.get_field_index(field.name)) >= 0:
                _check_type(f"{name}.{field.name}", kept.field(at).type, field.type)
    elif _is_list(kept) and _is_list(wanted):
        _check_type(f"{name}[]", kept.value_type, wanted.value_type)
    elif pa.types.is_map(kept) and pa.types.is_map(wanted):
        _check_type(f"{name}{{key}}", kept.key_type, wanted.key_type)
        _check_type(f"{name}{{}}", kept.item_type, wanted.item_type)
    elif _plain(kept) != _plain(wanted):
        raise UsageError(
            f"the column {name} is of type {_plain(kept)} in the table, and declared with "
            f"{wanted}: a type cannot change; declare it as before, or begin another table"
        )


def _is_list(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.ListType | pa.LargeListType)


def _plain(kind: pa.DataType) -> pa.DataType:
    # Delta tables have no binary values of one size
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else _PLAIN.get(kind, kind)


def _made(
    rows: pa.RecordBatch, store_id: str, columns: list[pa.Array], schema: pa.Schema
) -> pa.RecordBatch:
    ids = pa.repeat(pa.scalar(store_id), rows.num_rows)
    return pa.RecordBatch.from_arrays([*rows.columns, ids, *columns], schema=schema)


def _stop(rows: pa.RecordBatch, bad: BadRecord) -> StoreError:
    topic, offset = (rows.column(name)[bad.row].as_py() for name in ("topic", "physicalOffset"))
    return StoreError(
        f"a body of topic {topic!r} at physical offset {offset} does not fit its declaration: "
        f"{bad.reason}; mend the declaration, or choose another on-bad-record, and the table goes "
        "on",
        physical_offset=offset,
    )


def rows_of(bodies: BodyColumns | None, *, only_bad: bool) -> TableRows:
    """The rows of a table, or of its table of bad records, which needs a declaration."""
    if not only_bad:
        return AllRows(bodies)
    assert bodies is not None
    return BadRows(bodies)
