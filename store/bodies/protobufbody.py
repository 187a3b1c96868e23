"""Protobuf bodies: one message each, whose type is in a file of descriptors.

``protoc --include_imports --descriptor_set_out=FILE`` makes that file.

| Protobuf | column |
|---|---|
| numbers of 32 or 64 bits, float, double, bool, string, bytes, message, repeated, map | the same |
| uint32, fixed32 | 64 bits |
| uint64, fixed64 | decimal(20,0) |
| enum | string: the value's name, or its number if the descriptors have none |
| google.protobuf.Timestamp | timestamp of microseconds, UTC |
| wrappers such as google.protobuf.StringValue | their value |
| a field with presence that is not set | null; other fields have their default |
| a message within itself | refused |

Fields that the descriptors do not know are left out, as Protobuf has it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from reput.store.bodies.decoder import BadBodyError, check_names
from reput.store.errors import UsageError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_Converter = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in (
        "Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes"
    )
}  # fmt: skip


class ProtobufBody:
    """The fields of a message; a ``store.bodies.decoder.BodyDecoder``."""

    def __init__(self, place: str, descriptors: bytes, message: str) -> None:
        """``place`` is the name of the descriptors' file, for messages; ``message`` is the full
        name of the type. Raises UsageError for what is neither, and without protobuf."""
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: PLC0415
            from google.protobuf.message import DecodeError  # noqa: PLC0415
            from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415
        except ImportError as error:
            raise UsageError(
                "Protobuf bodies need the package protobuf: pip install 'reput[schemas]'"
            ) from error
        self._decode_error = DecodeError
        pool = descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
            for file in files.file:
                pool.Add(file)
            descriptor = pool.FindMessageTypeByName(message)
        except (DecodeError, TypeError) as error:
            raise UsageError(f"{place} has no whole descriptors: {error}") from error
        except KeyError as error:
            raise UsageError(f"{place} has no message {message!r}") from error
        self._class = GetMessageClass(descriptor)
        kind, self._convert = _message(f"{place}: {message}", descriptor, ())
        self.fields = {field.name: field.type for field in kind}

    def decode(self, body: bytes) -> dict[str, Any]:
        """Return the columns of one body. Raises BadBodyError."""
        message = self._class()
        try:
            message.ParseFromString(body)
            values: dict[str, Any] = self._convert(message)
        except (self._decode_error, ValueError, OverflowError) as error:
            raise BadBodyError("it is no Protobuf message of its type") from error
        if not message.IsInitialized():
            raise BadBodyError("it lacks a required field")
        return values


def _message(
    place: str, descriptor: Descriptor, above: tuple[str, ...]
) -> tuple[pa.DataType, _Converter]:
    name = descriptor.full_name
    if name == "google.protobuf.Timestamp":
        return pa.timestamp("us", tz="UTC"), _timestamp
    if name in _WRAPPERS:
        kind, convert = _single(place, descriptor.fields_by_name["value"], above)
        return kind, lambda message: convert(message.value)
    if name in above:
        raise UsageError(f"{place} is a message within itself, for which there is no column")
    parts = [
        (field, *_field(f"{place}.{field.name}", field, (*above, name)))
        for field in descriptor.fields
    ]
    check_names(field.name for field, _, _ in parts)
    if not parts:
        raise UsageError(f"{place} has no field, and so there is no column for it")

    def converted(message: Any) -> dict[str, Any]:
        return {
            field.name: None
            if field.has_presence and not message.HasField(field.name)
            else convert(getattr(message, field.name))
            for field, _, convert in parts
        }

    return pa.struct([pa.field(field.name, kind) for field, kind, _ in parts]), converted


def _field(
    place: str, field: FieldDescriptor, above: tuple[str, ...]
) -> tuple[pa.DataType, _Converter]:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, key_of = _single(place, message.fields_by_name["key"], above)
        value, value_of = _single(place, message.fields_by_name["value"], above)
        return pa.map_(key, value), lambda found: [
            (key_of(name), value_of(found[name])) for name in sorted(found)
        ]
    kind, convert = _single(place, field, above)
    if field.is_repeated:
        return pa.list_(kind), lambda found: [convert(one) for one in found]
    return kind, convert


def _single(
    place: str, field: FieldDescriptor, above: tuple[str, ...]
) -> tuple[pa.DataType, _Converter]:
    if field.message_type is not None:
        return _message(place, field.message_type, above)
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return pa.string(), lambda number: names.get(number, str(number))
    match field.cpp_type:
        case field.CPPTYPE_INT32:
            return pa.int32(), _same
        case field.CPPTYPE_INT64 | field.CPPTYPE_UINT32:
            return pa.int64(), _same
        case field.CPPTYPE_UINT64:
            return pa.decimal128(20, 0), Decimal
        case field.CPPTYPE_FLOAT:
            return pa.float32(), _same
        case field.CPPTYPE_DOUBLE:
            return pa.float64(), _same
        case field.CPPTYPE_BOOL:
            return pa.bool_(), _same
    return pa.binary() if field.type == field.TYPE_BYTES else pa.string(), _same


def _timestamp(message: Any) -> datetime:
    return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def _same(value: Any) -> Any:
    return value
