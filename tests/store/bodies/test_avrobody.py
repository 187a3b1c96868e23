"""Avro bodies, written by fastavro: the values come back, and nothing else passes."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from reput.store.bodies.avrobody import AvroBody
from reput.store.bodies.decoder import BadBodyError
from reput.store.errors import UsageError

MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}
SCHEMA = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "small", "type": "int"},
        {"name": "half", "type": "float"},
        {"name": "whole", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "raw", "type": "bytes"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "price", "type": MONEY},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "exact", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "own", "type": {"type": "string", "logicalType": "colour"}},
        {"name": "items", "type": {"type": "array", "items": {
            "type": "record", "name": "Item",
            "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]}}},
        {"name": "first", "type": ["null", "Item"]},
        {"name": "more", "type": {"type": "map", "values": ["null", "Kind"]}},
    ],
}  # fmt: skip
ORDER = {
    "id": 1 << 40, "small": -7, "half": 0.5, "whole": 1e300, "paid": True, "note": "a note",
    "raw": b"\0\1", "hash": b"abcd", "kind": "B", "price": Decimal("-12.345"),
    "day": date(2026, 1, 2), "at": datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC),
    "exact": datetime(1969, 1, 2, 3, 4, 5, 7, tzinfo=UTC),
    "uid": UUID("12345678-1234-5678-1234-567812345678"), "own": "red",
    "items": [{"sku": "x", "count": 1}, {"sku": "y", "count": 2}],
    "first": {"sku": "z", "count": 3}, "more": {"k": "A", "n": None},
}  # fmt: skip


def body_of(schema: object) -> AvroBody:
    """The body of a schema in a file."""
    return AvroBody("schema.avsc", json.dumps(schema).encode())


def encoded(schema: Any, value: object) -> bytes:
    """A datum as fastavro writes it."""
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def test_every_type_becomes_a_column() -> None:
    """Named types that are used again among them."""
    body = body_of(SCHEMA)
    types = pa.struct(list(body.fields.items()))
    found = pa.array([body.decode(encoded(SCHEMA, ORDER))], types).to_pylist()
    more = [("k", "A"), ("n", None)]
    assert found == [{**ORDER, "uid": str(ORDER["uid"]), "more": more}]
    nothing = {**ORDER, "note": None, "first": None, "items": [], "more": {}}
    found = pa.array([body.decode(encoded(SCHEMA, nothing))], types).to_pylist()
    assert found == [{**nothing, "uid": str(ORDER["uid"]), "more": []}]


def test_a_decimal_without_a_scale_is_whole() -> None:
    """The format's default is 0."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 5}
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]}
    body = body_of(schema)
    assert body.fields == {"n": pa.decimal128(5, 0)}
    assert body.decode(encoded(schema, {"n": Decimal(-123)})) == {"n": Decimal(-123)}


@pytest.mark.parametrize(
    "kind",
    [{"type": "bytes"}, {"type": "fixed", "name": "Wide", "size": 16}],
    ids=["bytes", "fixed"],
)
def test_the_longest_decimal(kind: dict[str, Any]) -> None:
    """It has 38 digits, whether its bytes are of one number or not."""
    kind = {**kind, "logicalType": "decimal", "precision": 38, "scale": 2}
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]}
    body, value = body_of(schema), Decimal("-" + "9" * 36 + ".99")
    assert body.fields == {"n": pa.decimal128(38, 2)}
    assert body.decode(encoded(schema, {"n": value})) == {"n": value}


@pytest.mark.parametrize(
    ("kind", "logical", "column", "value"),
    [
        ("int", "timestamp-millis", pa.int32(), 7),
        ("string", "date", pa.string(), "2026-01-02"),
        ("string", "decimal", pa.string(), "1"),
        ("long", ["date"], pa.int64(), 7),
    ],
)
def test_a_logical_type_of_another_type_is_none(
    kind: str, logical: object, column: pa.DataType, value: object
) -> None:
    """The library reads the number, and milliseconds would be taken for microseconds."""
    field = {"name": "n", "type": {"type": kind, "logicalType": logical, "precision": 5}}
    schema = {"type": "record", "name": "R", "fields": [field]}
    body = body_of(schema)
    assert body.fields == {"n": column}
    plain = {**schema, "fields": [{"name": "n", "type": kind}]}
    assert body.decode(encoded(plain, {"n": value})) == {"n": value}


def test_bytes_that_are_no_datum(seed: int) -> None:
    """Parts, more than one, and any bytes: each is bad or a datum, and nothing else happens."""
    body, data = body_of(SCHEMA), encoded(SCHEMA, ORDER)
    for size in range(len(data)):
        with pytest.raises(BadBodyError):
            body.decode(data[:size])
    with pytest.raises(BadBodyError, match="1 bytes follow"):
        body.decode(data + b"\0")
    chance = random.Random(seed)
    for _ in range(2000):
        changed = bytearray(data)
        changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            values = body.decode(bytes(changed))
        except BadBodyError:
            continue
        pa.array([values], pa.struct(list(body.fields.items())))


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (["null", "long", "string"], "more than null and one type"),
        (["long", "string"], "more than null and one type"),
        (["null"], "more than null and one type"),
        ("null", "of type null"),
        ({"type": "record", "name": "E", "fields": []}, "of type record"),
        ({"type": "int", "logicalType": "time-millis"}, "time-millis"),
        ({"type": "long", "logicalType": "time-micros"}, "time-micros"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "local-timestamp-millis"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "local-timestamp-micros"),
        ({"type": "long", "logicalType": "local-timestamp-nanos"}, "local-timestamp-nanos"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "timestamp-nanos"),
        ({"type": "bytes", "logicalType": "big-decimal"}, "big-decimal"),
        ({"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}, "duration"),
        ({**MONEY, "precision": 39}, "logical type decimal"),
        ({"type": "bytes", "logicalType": "decimal"}, "logical type decimal"),
        ({"type": "fixed", "name": "F", "size": "4"}, "of type fixed"),
        (["null", "R"], "of type R"),
        ({"type": "array", "items": "none"}, "no Avro schema"),
    ],
)
def test_types_without_a_column_are_named(kind: object, what: str) -> None:
    """With the file and the field."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "field", "type": kind}]}
    with pytest.raises(UsageError, match=what) as raised:
        body_of(schema)
    assert "schema.avsc" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "what"), [("{", "no Avro schema"), ('"long"', "no record"), ("[]", "no record")]
)
def test_files_without_a_record(text: str, what: str) -> None:
    """A body is a record, whose fields are columns."""
    with pytest.raises(UsageError, match=what):
        AvroBody("schema.avsc", text.encode())


@pytest.mark.parametrize("odd", [None, 5.5, [], {}, 10**30], ids=str)
@pytest.mark.parametrize(
    "field",
    [
        {"name": ...}, {"type": ...},
        {"type": {"type": "bytes", "logicalType": "decimal", "precision": ...}},
        {"type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": ...}},
        {"type": {"type": "fixed", "name": "F", "size": ...}},
    ],
    ids=["name", "type", "precision", "scale", "size"],
)  # fmt: skip
def test_values_that_no_schema_has_are_refused(field: dict[str, Any], odd: object) -> None:
    """In one line, wherever the library meets them."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int", **field}]}
    text = json.dumps(schema, default=lambda _: odd)
    with pytest.raises(UsageError, match=r"^schema\.avsc"):
        AvroBody("schema.avsc", text.encode())


def test_fields_that_differ_in_case_alone() -> None:
    """They would be one column for engines that read tables."""
    fields = [{"name": "a", "type": "long"}, {"name": "A", "type": "long"}]
    with pytest.raises(UsageError, match="case"):
        body_of({"type": "record", "name": "R", "fields": fields})
