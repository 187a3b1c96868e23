"""The columns of a source's rows: the public ones, and those that options add after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.sources.options import SourceOptions
from reput.sources.schemas import rows_schema

if TYPE_CHECKING:
    import pyarrow as pa

STORE_COLUMN = "store"


class RowColumns:
    """The columns that one store's rows have by its options."""

    def __init__(self, options: SourceOptions) -> None:
        self._store: str | None = options["path"] if options["includeStore"] else None
        self.ddl = rows_schema(options["includeBody"], options["includeProperties"])
        """The schema as Spark takes it."""
        if self._store is not None:
            self.ddl += f", {STORE_COLUMN} string not null"

    def read_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the part of a read's schema that the log's records fill."""
        return schema if self._store is None else schema.remove(len(schema) - 1)

    def complete(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows of ``read_schema`` as rows of ``schema``."""
        if self._store is None:
            return batch
        import pyarrow as pa  # noqa: PLC0415  the planner needs none

        columns = [*batch.columns, pa.repeat(pa.scalar(self._store, pa.string()), len(batch))]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
