"""The schemas of both forms as Spark DDL. Asking for one loads no kernels."""

from __future__ import annotations

import pyarrow as pa

from store import rowschema
from store.dispatch import PACKED_COLUMNS

RUNS_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in PACKED_COLUMNS)
"""The packed form."""
_SPARK_TYPES = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.map_(pa.string(), pa.string()): "map<string,string>",
}


def ddl(schema: pa.Schema) -> str:
    """An Arrow schema as Spark DDL."""
    return ", ".join(
        f"{field.name} {_SPARK_TYPES[field.type]}{'' if field.nullable else ' not null'}"
        for field in schema
    )


def rows_schema(include_body: bool, include_properties: bool) -> str:
    """The public form (``store.rowschema``)."""
    return ddl(
        rowschema.rows_schema(include_body=include_body, include_properties=include_properties)
    )
