"""Protobuf bodies, written by Google's library: the values come back, and nothing else passes."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    timestamp_pb2,
    wrappers_pb2,
)

from reput.store.bodies.decoder import BadBodyError
from reput.store.bodies.protobufbody import ProtobufBody
from reput.store.errors import UsageError

SCALARS = {
    "a_int32": "INT32", "a_int64": "INT64", "a_uint32": "UINT32", "a_uint64": "UINT64",
    "a_sint64": "SINT64", "a_fixed32": "FIXED32", "a_fixed64": "FIXED64", "a_float": "FLOAT",
    "a_double": "DOUBLE", "a_bool": "BOOL", "a_string": "STRING", "a_bytes": "BYTES",
}  # fmt: skip
VALUES = {
    "a_int32": -(1 << 31), "a_int64": -(1 << 63), "a_uint32": (1 << 32) - 1,
    "a_uint64": (1 << 64) - 1, "a_sint64": -7, "a_fixed32": 1 << 31, "a_fixed64": 1 << 63,
    "a_float": 0.5, "a_double": 1e300, "a_bool": True, "a_string": "订", "a_bytes": b"\0\xff",
}  # fmt: skip
PROTO = (
    """
name: "shop.proto" package: "shop" syntax: "proto3"
dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/wrappers.proto"
enum_type { name: "Kind" value { name: "NONE" number: 0 } value { name: "BIG" number: 2 } }
message_type { name: "Item"
  field { name: "sku" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "kind" number: 2 type: TYPE_ENUM type_name: ".shop.Kind" label: LABEL_OPTIONAL } }
message_type { name: "Node"
  field { name: "next" number: 1 type: TYPE_MESSAGE type_name: ".shop.Node"
          label: LABEL_OPTIONAL } }
message_type { name: "Empty" }
message_type { name: "Twice"
  field { name: "a" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "A" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL } }
message_type { name: "Order"
"""
    + "".join(
        f'field {{ name: "{name}" number: {number} type: TYPE_{kind} label: LABEL_OPTIONAL }}\n'
        for number, (name, kind) in enumerate(SCALARS.items(), 1)
    )
    + """
  field { name: "maybe" number: 20 type: TYPE_INT32 label: LABEL_OPTIONAL
          proto3_optional: true oneof_index: 0 }
  field { name: "item" number: 21 type: TYPE_MESSAGE type_name: ".shop.Item" label: LABEL_OPTIONAL }
  field { name: "items" number: 22 type: TYPE_MESSAGE type_name: ".shop.Item"
          label: LABEL_REPEATED }
  field { name: "kinds" number: 23 type: TYPE_ENUM type_name: ".shop.Kind" label: LABEL_REPEATED }
  field { name: "at" number: 24 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp"
          label: LABEL_OPTIONAL }
  field { name: "note" number: 25 type: TYPE_MESSAGE type_name: ".google.protobuf.StringValue"
          label: LABEL_OPTIONAL }
  field { name: "more" number: 26 type: TYPE_MESSAGE type_name: ".shop.Order.MoreEntry"
          label: LABEL_REPEATED }
  nested_type { name: "MoreEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".shop.Item"
            label: LABEL_OPTIONAL } }
  oneof_decl { name: "_maybe" } }
"""
)
OLD = """
name: "old.proto" package: "old" syntax: "proto2"
message_type { name: "Must"
  field { name: "a" number: 1 type: TYPE_INT32 label: LABEL_REQUIRED }
  field { name: "b" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL default_value: "x" } }
"""


def descriptor_set() -> descriptor_pb2.FileDescriptorSet:
    """A set of descriptors as protoc writes it with --include_imports."""
    files = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    for text in (PROTO, OLD):
        text_format.Parse(text, files.file.add())
    return files


def body_of(message: str, data: bytes | None = None) -> ProtobufBody:
    """The body of a type in a file of descriptors."""
    return ProtobufBody("shop.desc", data or descriptor_set().SerializeToString(), message)


def message_class(name: str) -> Any:
    """The library's own class of a type."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_set().file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def full_order() -> Any:
    """A message with all fields set."""
    order = message_class("shop.Order")(**VALUES, maybe=0, kinds=[0, 2, 9])
    order.item.sku = "x"
    order.items.add(sku="y", kind=2)
    order.at.FromDatetime(datetime(1969, 1, 2, 3, 4, 5, 7, tzinfo=UTC))
    order.note.value = ""
    order.more[2].sku = "b"
    order.more[1].sku = "a"
    return order


def rows(body: ProtobufBody, data: bytes) -> Any:
    """The columns of a body, through Arrow."""
    return pa.array([body.decode(data)], pa.struct(list(body.fields.items()))).to_pylist()[0]


def test_every_type_becomes_a_column() -> None:
    """At the borders of its range."""
    body = body_of("shop.Order")
    found = rows(body, full_order().SerializeToString())
    assert found == {
        **VALUES,
        "a_uint64": Decimal((1 << 64) - 1), "a_fixed64": Decimal(1 << 63),
        "maybe": 0, "kinds": ["NONE", "BIG", "9"], "item": {"sku": "x", "kind": "NONE"},
        "items": [{"sku": "y", "kind": "BIG"}], "note": "",
        "at": datetime(1969, 1, 2, 3, 4, 5, 7, tzinfo=UTC),
        "more": [(1, {"sku": "a", "kind": "NONE"}), (2, {"sku": "b", "kind": "NONE"})],
    }  # fmt: skip


WRAPPED = {
    "Double": (pa.float64(), 0.5), "Float": (pa.float32(), 0.25), "Bool": (pa.bool_(), True),
    "Int64": (pa.int64(), -(1 << 63)), "UInt64": (pa.decimal128(20, 0), (1 << 64) - 1),
    "Int32": (pa.int32(), -(1 << 31)), "UInt32": (pa.int64(), (1 << 32) - 1),
    "String": (pa.string(), "x"), "Bytes": (pa.binary(), b"x"),
}  # fmt: skip
"""The wrappers of Google's wrappers.proto, without the ends of their names."""


@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers_are_their_values(name: str) -> None:
    """Null without one, and a value that is the default stays a value."""
    files, (kind, value) = descriptor_set(), WRAPPED[name]
    text = f"""name: "w.proto" package: "w" syntax: "proto3"
        dependency: "google/protobuf/wrappers.proto"
        message_type {{ name: "W" field {{ name: "v" number: 1 type: TYPE_MESSAGE
            label: LABEL_OPTIONAL type_name: ".google.protobuf.{name}Value" }} }}"""
    text_format.Parse(text, files.file.add())
    body = body_of("w.W", files.SerializeToString())
    wrapper = getattr(wrappers_pb2, f"{name}Value")
    assert body.fields == {"v": kind}
    assert rows(body, b"") == {"v": None}
    for given in (value, type(value)()):
        data = wrapper(value=given).SerializeToString()
        assert rows(body, b"\x0a" + bytes([len(data)]) + data) == {"v": given}


def test_the_first_name_of_a_number_counts() -> None:
    """An enum may give a number several names; Google's own text and JSON have the first."""
    files = descriptor_set()
    text = """name: "e.proto" package: "e" syntax: "proto3"
        enum_type { name: "K" options { allow_alias: true } value { name: "FIRST" number: 0 }
            value { name: "ALIAS" number: 0 } }
        message_type { name: "E" field { name: "k" number: 1 type: TYPE_ENUM type_name: ".e.K"
            label: LABEL_OPTIONAL } }"""
    text_format.Parse(text, files.file.add())
    assert rows(body_of("e.E", files.SerializeToString()), b"") == {"k": "FIRST"}


def test_fields_that_are_not_set() -> None:
    """They are null if the message tells, and else have their default."""
    found = rows(body_of("shop.Order"), b"")
    absent = "maybe", "item", "at", "note"
    assert [found[name] for name in absent] == [None] * len(absent)
    assert (found["a_int32"], found["a_string"], found["items"], found["more"]) == (0, "", [], [])


def test_fields_that_the_descriptors_do_not_know() -> None:
    """A newer producer has added them."""
    item = message_class("shop.Item")(sku="x").SerializeToString()
    data = item + message_class("shop.Order")(a_string="new").SerializeToString()
    assert rows(body_of("shop.Item"), data) == {"sku": "x", "kind": "NONE"}


def test_required_fields() -> None:
    """A message without one is bad."""
    body = body_of("old.Must")
    assert rows(body, message_class("old.Must")(a=7).SerializeToString()) == {"a": 7, "b": None}
    with pytest.raises(BadBodyError, match="lacks a required field"):
        body.decode(b"")


def test_bytes_that_are_no_message(seed: int) -> None:
    """Each body is bad or a message, and nothing else happens."""
    body, data = body_of("shop.Order"), full_order().SerializeToString()
    with pytest.raises(BadBodyError, match="no Protobuf message"):
        body.decode(data[:-1])
    late = message_class("shop.Order")()
    late.at.seconds = 1 << 60
    with pytest.raises(BadBodyError, match="no Protobuf message"):
        body.decode(late.SerializeToString())
    chance = random.Random(seed)
    for _ in range(2000):
        changed = bytearray(data)
        changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            rows(body, bytes(changed))
        except BadBodyError:
            continue


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("shop.None", "no message 'shop.None'"),
        ("shop.Node", "within itself"),
        ("shop.Empty", "no field"),
        ("shop.Twice", "case"),
    ],
)
def test_messages_without_columns_are_named(message: str, what: str) -> None:
    """With their file."""
    with pytest.raises(UsageError, match=what):
        body_of(message)


def test_files_without_descriptors() -> None:
    """One that is torn, and one from which imports are missing."""
    torn = descriptor_set().SerializeToString()[:-1]
    lonely = descriptor_pb2.FileDescriptorSet(file=descriptor_set().file[2:3])
    for data in (torn, lonely.SerializeToString()):
        with pytest.raises(UsageError, match=r"shop\.desc"):
            body_of("shop.Order", data)
