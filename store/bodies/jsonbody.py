"""JSON bodies, whose columns are declared one by one.

A column reads the body's key of the same name. A missing or null key gives null. A body that is not
a JSON object, or that holds a value of another type, is bad.

| type | JSON |
|---|---|
| ``"string"``, ``"boolean"`` | the same |
| ``"integer"``, ``"long"`` | a number of 32 or 64 bits without a fraction |
| ``"double"`` | a number |
| ``"decimal(P,S)"`` | a number, or a string with one: up to P digits, S of them after the point |
| ``"date"``, ``"timestamp"`` | ISO 8601; UTC if it has no zone |
| ``[TYPE]`` | an array |
| ``{name = TYPE, ...}`` | an object with columns of its own |
| ``{"*" = TYPE}`` | an object with any keys, as a map |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import pyarrow as pa

from reput.store import jsontext
from reput.store.bodies.decoder import BadBodyError, check_names
from reput.store.errors import UsageError

ANY_KEY = "*"
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z", re.ASCII)
_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}), ?([0-9]{1,2})\)\Z", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?\Z", re.ASCII)
_MAX_PRECISION = 38
_Converter = Callable[[Any], object]
"""Returns a value of Python for ``pa.array``. Raises TypeError or ValueError."""


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # raises for a lone surrogate
    return value


def _whole_number(bits: int) -> _Converter:
    def convert(value: object) -> int:
        if type(value) is not int or not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise TypeError
        return value

    return convert


def _double(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError
    if math.isinf(number := float(value)):
        raise TypeError
    return number


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _timestamp(value: object) -> datetime:
    time = datetime.fromisoformat(_string(value))
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _date(value: object) -> date:
    return date.fromisoformat(_string(value))


def _decimal(precision: int, scale: int) -> _Converter:
    def convert(value: object) -> Decimal:
        if isinstance(value, str) and not _NUMBER.match(value):
            raise TypeError
        if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
            raise TypeError
        number = Decimal(value)
        if not number:
            return Decimal(0)
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)  # what is not finite comes from no JSON
        if exponent < -scale or len(digits) + exponent > precision - scale:
            raise TypeError
        return number

    return convert


_TYPES: dict[str, tuple[pa.DataType, _Converter]] = {
    "string": (pa.string(), _string),
    "integer": (pa.int32(), _whole_number(32)),
    "long": (pa.int64(), _whole_number(64)),
    "double": (pa.float64(), _double),
    "boolean": (pa.bool_(), _boolean),
    "date": (pa.date32(), _date),
    "timestamp": (pa.timestamp("us", tz="UTC"), _timestamp),
}


class JsonBody:
    """Declared columns of one topic; a ``store.bodies.decoder.BodyDecoder``."""

    def __init__(self, declared: Mapping[str, object]) -> None:
        """``declared`` maps column -> type. Raises UsageError if it is malformed."""
        self.fields, self._converters = _members(declared)
        # a float has lost digits of a decimal; where there is none, it is made in half the time
        self._parse_float = Decimal if "decimal" in str(self.fields) else None

    def decode(self, body: bytes) -> dict[str, Any]:
        """Return the columns of one body. Raises BadBodyError."""
        try:
            found = jsontext.parse(body, parse_constant=_refuse, parse_float=self._parse_float)
        except (ValueError, InvalidOperation) as error:
            raise BadBodyError("it is no JSON") from error
        if not isinstance(found, dict):
            raise BadBodyError("it is no JSON object")
        values = dict[str, Any]()
        for name, convert in self._converters.items():
            try:
                values[name] = convert(found.get(name))
            except (ValueError, TypeError, OverflowError) as error:
                raise BadBodyError(f"{name} is not of type {self.fields[name]}") from error
        return values


def _members(
    declared: Mapping[str, object], prefix: str = ""
) -> tuple[dict[str, pa.DataType], dict[str, _Converter]]:
    """Return the types and converters of an object's members, whose names must be those of a
    struct; ``prefix`` is before them in messages. Raises UsageError."""
    for name in declared:
        if not _COLUMN_NAME.match(name):
            raise UsageError(f"column {name!r} must be a name of letters, digits and _")
    check_names(declared)
    made = {name: _type_of(f"{prefix}{name}", kind) for name, kind in declared.items()}
    types = {name: kind for name, (kind, _) in made.items()}
    return types, {name: _nullable(convert) for name, (_, convert) in made.items()}


def _type_of(name: str, kind: object) -> tuple[pa.DataType, _Converter]:
    if isinstance(kind, str) and kind in _TYPES:
        return _TYPES[kind]
    if isinstance(kind, str) and (found := _DECIMAL.match(kind)):
        precision, scale = int(found[1]), int(found[2])
        if 0 < precision <= _MAX_PRECISION and scale <= precision:
            return pa.decimal128(precision, scale), _decimal(precision, scale)
    if isinstance(kind, list) and len(kind) == 1:
        item, convert = _type_of(name, kind[0])
        return pa.list_(item), _list(_nullable(convert))
    if isinstance(kind, Mapping) and kind.keys() == {ANY_KEY}:
        item, convert = _type_of(name, kind[ANY_KEY])
        return pa.map_(pa.string(), item), _map(_nullable(convert))
    if isinstance(kind, Mapping) and kind:
        fields, converters = _members(kind, f"{name}.")
        return pa.struct(fields), _struct(converters)
    raise UsageError(
        f"column {name!r} is {kind!r}; it must be one of {', '.join(_TYPES)}, decimal(P,S) with up "
        f"to {_MAX_PRECISION} digits, [TYPE], {{name = TYPE}} or {{'{ANY_KEY}' = TYPE}}"
    )


def _nullable(convert: _Converter) -> _Converter:
    return lambda value: None if value is None else convert(value)


def _list(convert: _Converter) -> _Converter:
    def converted(value: object) -> list[object]:
        if not isinstance(value, list):
            raise TypeError
        return [convert(item) for item in value]

    return converted


def _map(convert: _Converter) -> _Converter:
    def converted(value: object) -> list[tuple[str, object]]:
        if not isinstance(value, dict):
            raise TypeError
        return [(_string(key), convert(item)) for key, item in value.items()]

    return converted


def _struct(converters: Mapping[str, _Converter]) -> _Converter:
    def converted(value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise TypeError
        return {name: convert(value.get(name)) for name, convert in converters.items()}

    return converted


def _refuse(constant: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads although JSON has neither."""
    raise ValueError(constant)
