"""The file that declares columns of bodies, and what becomes of bodies that do not fit.

The file is TOML, or JSON if its name ends so: topic -> column -> type, for example::

    on-bad-record = "table"

    [Orders]
    orderId = "long"
    items = [{ sku = "string", price = "decimal(10,2)" }]

    ["Payment*"]
    avro-schema = "payment.avsc"

    [Shipments]
    protobuf-descriptors = "shop.desc"
    protobuf-message = "shop.Shipment"
    on-bad-record = "stop"

A topic may be a pattern of a shell. The name itself goes before patterns, and the first pattern
that fits before others. Paths are relative to the file. The columns of each format become the
fields of one struct, whatever their topic; names that topics share have one type.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from reput.store import jsontext
from reput.store.bodies.avrobody import AvroBody
from reput.store.bodies.decoder import BadBodyError, BodyDecoder, check_names
from reput.store.bodies.jsonbody import JsonBody
from reput.store.bodies.protobufbody import ProtobufBody
from reput.store.errors import UsageError
from reput.store.log.compression import MAX_INFLATED_BYTES, inflate

ON_BAD_RECORD, AVRO, PROTOBUF, MESSAGE = (
    "on-bad-record", "avro-schema", "protobuf-descriptors", "protobuf-message",
)  # fmt: skip
"""The settings of a topic; no column has a name with a hyphen."""
FORMATS = "json", "avro", "protobuf"
"""The formats, and the columns that hold their structs."""
BAD_BODY = "badBody"
_UNFIT = pa.ArrowException, ValueError, TypeError, OverflowError
"""Errors of Arrow for a value that is not of a type."""


class OnBadRecord(StrEnum):
    """Fate of a message whose body does not fit."""

    FLAG = "flag"
    """Its row says so, and has no columns of the body."""
    SKIP = "skip"
    """It has no row."""
    TABLE = "table"
    """As ``FLAG``, and it has a second row in a table of bad records, with the reason."""
    STOP = "stop"
    """The table waits before it until the declaration is mended."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """One message whose body does not fit."""

    row: int
    """The row's number in its batch."""
    policy: OnBadRecord
    reason: str


@dataclass(frozen=True, slots=True)
class _Topic:
    format: str
    decoder: BodyDecoder
    policy: OnBadRecord


class BodyColumns:
    """Declared columns of all topics."""

    def __init__(
        self, declared: Mapping[str, object], files: Mapping[str, bytes] = MappingProxyType({})
    ) -> None:
        """``declared`` is the document, ``files`` what is in the files that it names. Raises
        UsageError if it is malformed, or a library is missing."""
        self._given = dict(declared), dict(files)
        self._read_from: tuple[Path, tuple[int, ...] | None] | None = None
        default = _policy(declared)
        topics = {name: part for name, part in declared.items() if isinstance(part, Mapping)}
        if unknown := declared.keys() - topics.keys() - {ON_BAD_RECORD}:
            raise UsageError(
                f"{min(unknown)!r} must be the name of a topic, with columns below it, or "
                f"{ON_BAD_RECORD}"
            )
        if not topics:
            raise UsageError("it must declare topics")
        self._declared = {name: _topic(name, part, default, files) for name, part in topics.items()}
        self._found: dict[str | None, _Topic | None] = {None: None}
        types = {kind: _struct(kind, self._declared) for kind in FORMATS}
        self.fields = [
            *(pa.field(kind, found) for kind, found in types.items() if found is not None),
            pa.field(BAD_BODY, pa.bool_()),
        ]
        """The columns that ``decode`` returns: a struct for each format, and whether the body does
        not fit; all null for a topic that is not declared."""

    @classmethod
    def read(cls, path: Path) -> BodyColumns:
        """Read the declaration from a file. Raises UsageError."""
        try:
            stamp = _stamp(path)
            text = path.read_text("utf-8")
            declared = jsontext.parse(text) if path.suffix == ".json" else tomllib.loads(text)
            if not isinstance(declared, dict):
                raise UsageError("it must declare topics")
            names = {str(name) for name in _file_names(declared)}
            made = cls(declared, {name: (path.parent / name).read_bytes() for name in names})
        except (OSError, ValueError, UsageError) as error:
            raise UsageError(f"cannot take columns from {path}: {error}") from error
        made._read_from = path, stamp
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # decoders cannot be pickled; a task makes them anew from what was read first
        return BodyColumns, self._given

    def refreshed(self) -> BodyColumns:
        """Return the declaration as its file has it now. Raises UsageError."""
        if self._read_from is None:
            return self
        path, stamp = self._read_from
        return self if _stamp(path) == stamp else self.read(path)

    @property
    def has_table_of_bad(self) -> bool:
        """Whether there is a table of bad records."""
        return any(topic.policy is OnBadRecord.TABLE for topic in self._declared.values())

    def decode(self, rows: pa.RecordBatch) -> tuple[list[pa.Array], list[BadRecord]]:
        """Return ``fields`` of public rows, and the rows whose bodies do not fit."""
        columns: dict[str, list[dict[str, Any] | None]] = {
            field.name: [None] * rows.num_rows for field in self.fields[:-1]
        }
        is_bad: list[bool | None] = [None] * rows.num_rows
        bad: list[BadRecord] = []
        bodies, compressions = rows.column("body"), rows.column("bodyCompression")
        for row, name in enumerate(rows.column("topic").to_pylist()):
            if (topic := self._topic_of(name)) is None:
                continue
            try:
                body = _plain(bodies[row].as_py(), compressions[row].as_py())
                columns[topic.format][row] = topic.decoder.decode(body)
                is_bad[row] = False
            except BadBodyError as error:
                is_bad[row] = True
                bad.append(BadRecord(row, topic.policy, str(error)))
        arrays = []
        for field, values in zip(self.fields[:-1], columns.values(), strict=True):
            array, beyond = _array(values, field.type)
            arrays.append(array)
            for row in beyond:
                topic = self._topic_of(rows.column("topic")[row].as_py())
                assert topic is not None
                is_bad[row] = True
                bad.append(BadRecord(row, topic.policy, "a value is beyond the type of its column"))
        bad.sort(key=lambda one: one.row)
        return [*arrays, pa.array(is_bad, pa.bool_())], bad

    def _topic_of(self, name: str | None) -> _Topic | None:
        if name not in self._found:
            assert name is not None
            patterns = (one for one in self._declared if fnmatchcase(name, one))
            found = name if name in self._declared else next(patterns, None)
            self._found[name] = None if found is None else self._declared[found]
        return self._found[name]


def _file_names(declared: Mapping[str, object]) -> Iterator[object]:
    for part in declared.values():
        if isinstance(part, Mapping):
            yield from (part[key] for key in (AVRO, PROTOBUF) if key in part)


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Time, size and number of a file, one of which a change changes; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _array(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Return an array of values, with nulls in place of those that do not fit, and the numbers of
    these rows: damage may make a number of Avro larger than its type."""
    try:
        return pa.array(values, kind), []
    except _UNFIT:
        fits = [_fits(value, kind) for value in values]
        fitting = [value if fit else None for value, fit in zip(values, fits, strict=True)]
        return pa.array(fitting, kind), [row for row, fit in enumerate(fits) if not fit]


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except _UNFIT:
        return False
    return True


def _plain(stored: bytes, compression: str | None) -> bytes:
    """Raises BadBodyError."""
    plain = stored if compression is None else inflate(stored, compression, MAX_INFLATED_BYTES)
    if plain is None:
        raise BadBodyError("it cannot be inflated")
    return plain


def _policy(declared: Mapping[str, object], default: OnBadRecord = OnBadRecord.FLAG) -> OnBadRecord:
    given = declared.get(ON_BAD_RECORD, default)
    if given not in list(OnBadRecord):
        raise UsageError(
            f"{ON_BAD_RECORD} is {given!r}; it must be one of {', '.join(OnBadRecord)}"
        )
    return OnBadRecord(str(given))


def _topic(
    name: str, declared: Mapping[str, object], default: OnBadRecord, files: Mapping[str, bytes]
) -> _Topic:
    """Raises UsageError naming the topic."""
    try:
        policy = _policy(declared, default)
        settings = {key: declared[key] for key in (AVRO, PROTOBUF, MESSAGE) if key in declared}
        columns = {
            key: kind for key, kind in declared.items() if key not in {*settings, ON_BAD_RECORD}
        }
        if settings.keys() not in ({AVRO}, {PROTOBUF, MESSAGE}, set()) or (settings and columns):
            raise UsageError(f"give columns, or {AVRO}, or {PROTOBUF} with {MESSAGE}")
        given = {key: str(value) for key, value in settings.items()}
        if AVRO in given:
            return _Topic("avro", AvroBody(given[AVRO], files[given[AVRO]]), policy)
        if PROTOBUF in given:
            descriptors = files[given[PROTOBUF]]
            decoder = ProtobufBody(given[PROTOBUF], descriptors, given[MESSAGE])
            return _Topic("protobuf", decoder, policy)
        if not columns:
            raise UsageError("it must have columns: name = type")
        return _Topic("json", JsonBody(columns), policy)
    except UsageError as error:
        raise UsageError(f"topic {name!r}: {error}") from error


def _struct(kind: str, topics: Mapping[str, _Topic]) -> pa.StructType | None:
    """The struct of a format's columns; None without any. Raises UsageError where topics share a
    name and not its type."""
    types = dict[str, pa.DataType]()
    for topic, declared in topics.items():
        if declared.format == kind:
            for name, found in declared.decoder.fields.items():
                if types.setdefault(name, found) != found:
                    raise UsageError(
                        f"column {name!r} is {types[name]} in one topic and {found} in {topic!r}; "
                        "one name has one type"
                    )
    check_names(types)
    return pa.struct([pa.field(name, types[name]) for name in sorted(types)]) if types else None
