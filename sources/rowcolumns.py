"""The columns of a source's rows: the public ones, and those that options add after them.

| column | type | option | content |
|---|---|---|---|
| json, avro, protobuf | struct | bodySchema | columns of a body; null where badBody is not false |
| badBody | boolean | bodySchema | whether the body does not fit the declaration; null without one |
| store | string | includeStore | root of the row's store |
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from reput.sources.options import SourceOptions
from reput.sources.schemas import ddl
from reput.store.rows import rowschema

if TYPE_CHECKING:
    from reput.store.bodies.declaration import BodyColumns


class RowColumns:
    """The columns that one store's rows have by its options; the driver makes it, and tasks get a
    copy, so that all of them have the declaration that was read first."""

    def __init__(self, options: SourceOptions) -> None:
        """Raises UsageError for a declaration of columns that is wrong."""
        self._public = rowschema.rows_schema(
            include_body=options["includeBody"], include_properties=options["includeProperties"]
        )
        self._store: str | None = options["path"] if options["includeStore"] else None
        self._bodies = _declared(options["bodySchema"])

    @property
    def ddl(self) -> str:
        """The schema as Spark takes it."""
        return ddl(self._whole())

    def read_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the fields that records of the log fill in a read of ``schema``: the public ones,
        and the body where columns come from it."""
        fields = [schema.field(name) for name in self._public.names]
        if self._bodies is not None and "body" not in self._public.names:
            fields.append(rowschema.ROWS_SCHEMA.field("body"))
        return pa.schema(fields)

    def complete(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows of ``read_schema`` as rows of ``schema``."""
        if self._store is None and self._bodies is None:
            return batch
        columns = [batch.column(name) for name in self._public.names]
        if self._bodies is not None:
            made, _ = self._bodies.decode(batch)
            columns += made
        if self._store is not None:
            columns.append(pa.repeat(pa.scalar(self._store, pa.string()), len(batch)))
        # Spark has other names for what is within a list or a map
        columns = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _whole(self) -> pa.Schema:
        schema = self._public
        if self._bodies is not None:
            for field in self._bodies.fields:
                schema = schema.append(field)
        if self._store is not None:
            schema = schema.append(pa.field("store", pa.string(), nullable=False))
        return schema


def _declared(path: str | None) -> BodyColumns | None:
    if path is None:
        return None
    from reput.store.bodies.declaration import BodyColumns  # noqa: PLC0415  few reads declare columns

    return BodyColumns.read(Path(path))
