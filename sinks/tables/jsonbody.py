"""Columns of JSON bodies, declared per topic in a file.

The file is TOML, or JSON if its name ends so: topic -> column -> type, for example::

    [Orders]
    orderId = "long"
    note = "string"

A column reads the body's key of the same name. A missing or null key gives null. A body that is not
a JSON object, or that holds a value of another type, is bad, and all its columns are null. Types:
string, integer (32 bits), long, double, boolean, and timestamp (ISO 8601; UTC if it has no zone).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from reput.store import jsontext
from reput.store.errors import UsageError
from reput.store.log.compression import MAX_INFLATED_BYTES, inflate

_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z", re.ASCII)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # raises for a lone surrogate
    return value


def _whole_number(bits: int) -> Callable[[object], int]:
    def convert(value: object) -> int:
        if type(value) is not int or not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise TypeError
        return value

    return convert


def _double(value: object) -> float:
    if type(value) not in (int, float):
        raise TypeError
    return float(value)  # type: ignore[arg-type]


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _timestamp(value: object) -> datetime:
    time = datetime.fromisoformat(_string(value))
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


_TYPES: dict[str, tuple[pa.DataType, Callable[[object], object]]] = {
    "string": (pa.string(), _string),
    "integer": (pa.int32(), _whole_number(32)),
    "long": (pa.int64(), _whole_number(64)),
    "double": (pa.float64(), _double),
    "boolean": (pa.bool_(), _boolean),
    "timestamp": (pa.timestamp("us", tz="UTC"), _timestamp),
}


class JsonColumns:
    """Columns declared per topic, as one struct; topics may share its fields."""

    def __init__(self, declared: Mapping[str, Mapping[str, str]]) -> None:
        """``declared`` maps topic -> column -> type. Raises UsageError if it is malformed."""
        types: dict[str, str] = {}
        spelled: dict[str, str] = {}
        for topic, columns in declared.items():
            if not isinstance(columns, Mapping) or not columns:
                raise UsageError(f"topic {topic!r} must have columns: name = type")
            for name, kind in columns.items():
                _check_column(topic, name, kind)
                # engines that read tables treat names that differ only in case as equal
                if (other := spelled.setdefault(name.lower(), name)) != name:
                    raise UsageError(
                        f"columns {other!r} and {name!r} differ only in case; rename one"
                    )
                if types.setdefault(name, kind) != kind:
                    raise UsageError(
                        f"column {name!r} is {types[name]} in one topic and {kind} in {topic!r}; "
                        "one name has one type"
                    )
        self.type = pa.struct([pa.field(name, _TYPES[types[name]][0]) for name in sorted(types)])
        """The struct's type."""
        self._converters = {
            topic: [(name, _TYPES[kind][1]) for name, kind in columns.items()]
            for topic, columns in declared.items()
        }

    @classmethod
    def read(cls, path: Path) -> JsonColumns:
        """Read the declaration from a file. Raises UsageError."""
        try:
            text = path.read_text("utf-8")
            declared = jsontext.parse(text) if path.suffix == ".json" else tomllib.loads(text)
            if not isinstance(declared, dict) or not declared:
                raise UsageError("it must declare topics")
            return cls(declared)
        except (OSError, ValueError, UsageError) as error:
            raise UsageError(f"cannot take columns from {path}: {error}") from error

    def of(self, rows: pa.RecordBatch) -> tuple[pa.StructArray, pa.BooleanArray]:
        """(columns, whether the body is bad) of public rows.

        Both are null if the topic declares no columns; the columns of a bad body are null too.
        """
        topics = rows.column("topic").to_pylist()
        bodies, compressions = rows.column("body"), rows.column("bodyCompression")
        values: list[dict[str, object] | None] = [None] * len(topics)
        bad: list[bool | None] = [None] * len(topics)
        for at, topic in enumerate(topics):
            if topic in self._converters:
                body, compression = bodies[at].as_py(), compressions[at].as_py()
                values[at] = self._parse(self._converters[topic], body, compression)
                bad[at] = values[at] is None
        return pa.array(values, self.type), pa.array(bad, pa.bool_())

    @staticmethod
    def _parse(
        converters: list[tuple[str, Callable[[object], object]]],
        body: bytes,
        compression: str | None,
    ) -> dict[str, object] | None:
        """The columns of one body; None if it is bad."""
        plain = body if compression is None else inflate(body, compression, MAX_INFLATED_BYTES)
        try:
            fields: Any = jsontext.parse(plain or b"", parse_constant=_refuse)
            if not isinstance(fields, dict):
                return None
            return {
                name: None if (value := fields.get(name)) is None else convert(value)
                for name, convert in converters
            }
        except (ValueError, TypeError, OverflowError):
            return None


def _check_column(topic: str, name: str, kind: object) -> None:
    if not _COLUMN_NAME.match(name):
        raise UsageError(
            f"column {name!r} of topic {topic!r} must be a name of letters, digits and _"
        )
    if not isinstance(kind, str) or kind not in _TYPES:
        raise UsageError(
            f"column {name!r} of topic {topic!r} is {kind!r}; it must be one of {', '.join(_TYPES)}"
        )


def _refuse(constant: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads although JSON has neither."""
    raise ValueError(constant)
