"""The schemas of both forms as Spark DDL; reading them loads no kernels."""

from __future__ import annotations

import re

import pyarrow as pa
from pyspark.sql.types import StructType

from reput.store.errors import UsageError
from reput.store.rows import rowschema
from reput.store.runs.packedschema import PACKED_SCHEMA

_SPARK_TYPES = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.timestamp("us", tz="UTC"): "timestamp_ltz",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.float32(): "float",
    pa.date32(): "date",
}
_NAMED_LTZ = re.compile(r"(^|:)timestamp(?=$|[,>])")
"""The type's name in a parsed schema, and not the one in DDL, where "timestamp" is whatever
spark.sql.timestampType says: as TIMESTAMP_NTZ an instant would become a wall time in UTC."""


def ddl(schema: pa.Schema) -> str:
    """Convert an Arrow schema to Spark DDL."""
    return ", ".join(
        f"{field.name} {_spark_type(field.type)}{'' if field.nullable else ' not null'}"
        for field in schema
    )


def _spark_type(kind: pa.DataType) -> str:
    """Return the type in DDL, without blanks. Names of fields may be words of SQL."""
    if isinstance(kind, pa.StructType):
        fields = (f"`{field.name}`:{_spark_type(field.type)}" for field in kind)
        return f"struct<{','.join(fields)}>"
    if isinstance(kind, pa.ListType):
        return f"array<{_spark_type(kind.value_type)}>"
    if isinstance(kind, pa.MapType):
        return f"map<{_spark_type(kind.key_type)},{_spark_type(kind.item_type)}>"
    if isinstance(kind, pa.Decimal128Type):
        return f"decimal({kind.precision},{kind.scale})"
    if isinstance(kind, pa.FixedSizeBinaryType):
        return "binary"
    return _SPARK_TYPES[kind]


RUNS_SCHEMA = ddl(PACKED_SCHEMA)


def check_schema(source: str, given: StructType, fixed: str) -> None:
    """Reject a schema other than the DDL ``fixed``. Raises UsageError."""
    fields = [
        (field.name, _NAMED_LTZ.sub(r"\1timestamp_ltz", field.dataType.simpleString()))
        for field in given
    ]
    if fields != [tuple(part.split()[:2]) for part in fixed.replace("`", "").split(", ")]:
        raise UsageError(f"the schema of {source} is fixed; do not give one")


def rows_schema(include_body: bool, include_properties: bool) -> str:
    """Return the schema of the public form (``store.rows.rowschema``)."""
    return ddl(
        rowschema.rows_schema(include_body=include_body, include_properties=include_properties)
    )
