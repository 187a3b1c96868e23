"""Avro bodies: one datum each, in binary form and without a header, written with the schema of a
file.

| Avro | column |
|---|---|
| int, long, float, double, boolean, string, bytes, fixed, array, map, record | the same |
| enum, uuid | string |
| decimal, date | the same |
| timestamp-millis, timestamp-micros | timestamp of microseconds, UTC |
| a logical type of another type than its own | the type without it, as Avro has it |
| a union of null and one type | that type; other unions are refused |
| time-millis, time-micros, local timestamps, duration, a type within itself | refused |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import pyarrow as pa

from reput.store import jsontext
from reput.store.bodies.decoder import BadBodyError, check_names
from reput.store.errors import UsageError

_PRIMITIVES = {
    "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "boolean": pa.bool_(), "string": pa.string(), "bytes": pa.binary(),
}  # fmt: skip
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_LOGICAL = {
    ("int", "date"): pa.date32(), ("long", "timestamp-millis"): _TIMESTAMP,
    ("long", "timestamp-micros"): _TIMESTAMP, ("string", "uuid"): pa.string(),
}  # fmt: skip
_REFUSED = {
    "time-millis", "time-micros", "local-timestamp-millis", "local-timestamp-micros", "duration",
    "big-decimal", "timestamp-nanos", "local-timestamp-nanos",
}  # fmt: skip
_MAX_PRECISION = 38
_MALFORMED = ValueError, KeyError, TypeError, AttributeError, OverflowError
"""Errors of fastavro and Arrow for what should be a text or a number and is something else."""
_Converter = Callable[[Any], Any]


class AvroBody:
    """The fields of a record; a ``store.bodies.decoder.BodyDecoder``."""

    def __init__(self, place: str, schema: bytes) -> None:
        """``place`` is the name of the schema's file, for messages. Raises UsageError for one that
        is none or that has a type without a column, and without fastavro."""
        try:
            import fastavro  # noqa: PLC0415
            from fastavro.schema import SchemaParseException, expand_schema  # noqa: PLC0415
        except ImportError as error:
            raise UsageError(
                "Avro bodies need the package fastavro: pip install 'reput[schemas]'"
            ) from error
        self._reader = fastavro.schemaless_reader
        try:
            document = jsontext.parse(schema)
            self._schema = fastavro.parse_schema(document)
            expanded = expand_schema(document)
            if not isinstance(expanded, dict) or expanded.get("type") != "record":
                raise UsageError(f"{place} has an Avro schema that is no record")
            kind, self._convert = _plain_type(place, "record", expanded)
        except (SchemaParseException, *_MALFORMED) as error:
            raise UsageError(f"{place} has no Avro schema: {error}") from error
        self.fields = {field.name: field.type for field in kind}

    def decode(self, body: bytes) -> dict[str, Any]:
        """Return the columns of one body. Raises BadBodyError."""
        stream = BytesIO(body)
        try:
            values: dict[str, Any] = self._convert(self._reader(stream, self._schema, None))
        # damaged bytes make fastavro raise whatever the step raises that they lead to
        except Exception as error:
            raise BadBodyError("it is no Avro datum of its schema") from error
        if stream.tell() != len(body):
            raise BadBodyError(f"{len(body) - stream.tell()} bytes follow its Avro datum")
        return values


def _type_of(place: str, schema: Any) -> tuple[pa.DataType, _Converter]:
    if isinstance(schema, list):
        (*kinds,) = (kind for kind in schema if kind != "null")
        if len(kinds) != 1 or len(schema) > 2:
            raise UsageError(f"{place} is a union of more than null and one type")
        kind, convert = _type_of(place, kinds[0])
        return kind, lambda value: None if value is None else convert(value)
    if not isinstance(schema, Mapping):
        schema = {"type": schema}
    kind, logical = schema["type"], schema.get("logicalType")
    if isinstance(kind, (list, Mapping)):
        return _type_of(place, kind)
    is_decimal = logical == "decimal" and kind in ("bytes", "fixed")
    if is_decimal and 0 < schema.get("precision", 0) <= _MAX_PRECISION:
        return pa.decimal128(schema["precision"], schema.get("scale", 0)), _same
    if not isinstance(logical, str):
        return _plain_type(place, kind, schema)
    if (found := _LOGICAL.get((kind, logical))) is not None:
        return found, str if logical == "uuid" else _same
    if logical in _REFUSED or is_decimal:
        raise UsageError(f"{place} has the logical type {logical}, for which there is no column")
    return _plain_type(place, kind, schema)


def _plain_type(place: str, kind: str, schema: Mapping[str, Any]) -> tuple[pa.DataType, _Converter]:
    match kind:
        case "array":
            item, convert = _type_of(place, schema["items"])
            return pa.list_(item), lambda value: [convert(one) for one in value]
        case "map":
            item, convert = _type_of(place, schema["values"])
            return pa.map_(pa.string(), item), lambda value: [
                (key, convert(one)) for key, one in value.items()
            ]
        # without a field it takes no byte, and damage may make an array of billions of them
        case "record" if schema["fields"]:
            parts = {
                field["name"]: _type_of(f"{place}.{field['name']}", field["type"])
                for field in schema["fields"]
            }
            check_names(parts)
            fields = [pa.field(name, part) for name, (part, _) in parts.items()]
            converters = {name: convert for name, (_, convert) in parts.items()}
            return pa.struct(fields), lambda value: {
                name: convert(value[name]) for name, convert in converters.items()
            }
        case "enum":
            return pa.string(), _same
        case "fixed" if isinstance(schema["size"], int) and schema["size"] > 0:
            return pa.binary(schema["size"]), _same
        case _ if kind in _PRIMITIVES:
            return _PRIMITIVES[kind], _same
    raise UsageError(f"{place} is of type {kind}, for which there is no column")


def _same(value: Any) -> Any:
    return value
