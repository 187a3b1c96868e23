"""Declarations of columns: the file, its topics, and what is wrong in it."""

from __future__ import annotations

import json
import os
import pickle
import zlib
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from reput.store.bodies.declaration import BadRecord, BodyColumns, OnBadRecord
from reput.store.errors import UsageError

AVRO = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}


def rows_of(*messages: tuple[str | None, bytes]) -> pa.RecordBatch:
    """Public rows, of the columns that matter here."""
    topics, bodies = zip(*messages, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(topics, pa.string()),
            "body": pa.array(bodies, pa.binary()),
            "bodyCompression": pa.nulls(len(messages), pa.string()),
        }
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "Expecting"),
        ("[]", "declare topics"),
        ("{}", "declare topics"),
        ('{"on-bad-record": "flag"}', "declare topics"),
        ('{"T": "long"}', "'T' must be the name of a topic"),
        ('{"T": {}}', "must have columns"),
        ('{"T": {"on-bad-record": "skip"}}', "must have columns"),
        ('{"T": {"a": "long", "on-bad-record": "drop"}}', "one of flag, skip, table, stop"),
        ('{"on-bad-record": 7, "T": {"a": "long"}}', "one of flag, skip, table, stop"),
        ('{"T": {"a b": "long"}}', "a b"),
        ('{"T": {"a": "money"}}', "money"),
        ('{"T": {"a": "decimal(39,2)"}}', "38 digits"),
        ('{"T": {"a": "decimal(2,3)"}}', "38 digits"),
        ('{"T": {"a": []}}', "one of string"),
        ('{"T": {"a": {}}}', "one of string"),
        ('{"T": {"a": ["money"]}}', "money"),
        ('{"T": {"a": {"b": "long", "B": "long"}}}', "case"),
        ('{"T": {"a": "long"}, "U": {"a": "string"}}', "one name has one type"),
        ('{"T": {"a": "long", "A": "long"}}', "case"),
        ('{"T": {"a": "long"}, "U": {"A": "long"}}', "case"),
        ('{"T": {"avro-schema": "r.avsc", "a": "long"}}', "give columns, or avro-schema"),
        ('{"T": {"avro-schema": "r.avsc", "protobuf-message": "M"}}', "give columns, or avro"),
        ('{"T": {"protobuf-descriptors": "x.desc"}}', "with protobuf-message"),
        ('{"T": {"avro-schema": "none.avsc"}}', "none.avsc"),
        ('{"T": {"protobuf-descriptors": "x.desc", "protobuf-message": "M"}}', "x.desc"),
    ],
)
def test_declaration_that_is_none_is_named(tmp_path: Path, text: str, what: str) -> None:
    """The file and what is wrong in it."""
    (tmp_path / "r.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "x.desc").write_bytes(b"")
    path = tmp_path / "columns.json"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=what) as raised:
        BodyColumns.read(path)
    assert str(path) in str(raised.value)


def test_declaration_in_toml(tmp_path: Path) -> None:
    """Types may be nested; a file beside it declares Avro."""
    (tmp_path / "r.avsc").write_text(json.dumps(AVRO))
    path = tmp_path / "columns.toml"
    path.write_text(
        '[T]\na = "long"\nitems = [{ sku = "string", price = "decimal(10,2)" }]\n'
        '["with.dot"]\nb = { "*" = ["date"] }\n[U]\navro-schema = "r.avsc"\n',
        "utf-8",
    )
    item = pa.struct({"sku": pa.string(), "price": pa.decimal128(10, 2)})
    json_type = pa.struct(
        {
            "a": pa.int64(),
            "b": pa.map_(pa.string(), pa.list_(pa.date32())),
            "items": pa.list_(item),
        }
    )
    found = BodyColumns.read(path)
    assert found.fields == [
        pa.field("json", json_type),
        pa.field("avro", pa.struct({"a": pa.int64()})),
        pa.field("badBody", pa.bool_()),
    ]
    assert not found.has_table_of_bad


def test_a_name_goes_before_patterns() -> None:
    """Among patterns the first that fits counts; a pattern fits the whole name and its case."""
    declared = BodyColumns(
        {
            "Order*": {"a": "long"},
            "Orders-*": {"b": "long"},
            "Orders": {"c": "long", "on-bad-record": "skip"},
        }
    )
    body = b'{"a": 1, "b": 2, "c": 3}'
    names = "Orders", "Orders-1", "Order", "orders", "MyOrders", None
    (columns, is_bad), bad = declared.decode(rows_of(*((name, body) for name in names)))
    assert columns.to_pylist() == [
        {"a": None, "b": None, "c": 3},
        {"a": 1, "b": None, "c": None},
        {"a": 1, "b": None, "c": None},
        None,
        None,
        None,
    ]
    assert is_bad.to_pylist() == [False, False, False, None, None, None]
    assert not bad


def test_policies_are_those_of_topics() -> None:
    """A topic without its own has that of the file."""
    declared = BodyColumns(
        {
            "on-bad-record": "stop",
            "T": {"a": "long", "on-bad-record": "table"},
            "U": {"a": "long"},
        }
    )
    assert declared.has_table_of_bad
    _, bad = declared.decode(rows_of(("T", b"["), ("U", b'{"a": ""}'), ("U", b"{}"), ("T", b"1")))
    assert bad == [
        BadRecord(0, OnBadRecord.TABLE, "it is no JSON"),
        BadRecord(1, OnBadRecord.STOP, "a is not of type int64"),
        BadRecord(3, OnBadRecord.TABLE, "it is no JSON object"),
    ]


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    """One that has not is not; one that is wrong now is an error until it is right."""
    path = tmp_path / "columns.json"
    path.write_text('{"T": {"a": "long"}}')
    first = BodyColumns.read(path)
    assert first.refreshed() is first
    path.write_text('{"T": {"a": "long", "b": "long"}}')
    second = first.refreshed()
    assert second.fields[0].type == pa.struct({"a": pa.int64(), "b": pa.int64()})
    path.write_text("{")
    with pytest.raises(UsageError, match="cannot take columns"):
        second.refreshed()
    path.unlink()
    with pytest.raises(UsageError, match="cannot take columns"):
        second.refreshed()
    path.write_text('{"T": {"c": "long"}}')
    os.utime(path, ns=(1, 1))
    third = second.refreshed()
    assert third.fields[0].type == pa.struct({"c": pa.int64()})
    own = BodyColumns({"T": {"a": "long"}})
    assert own.refreshed() is own


def test_a_task_has_what_was_read_first(tmp_path: Path) -> None:
    """Where the files are not, or are others now."""
    (tmp_path / "r.avsc").write_text(json.dumps(AVRO))
    path = tmp_path / "columns.json"
    path.write_text('{"T": {"avro-schema": "r.avsc"}, "U": {"a": ["decimal(3,1)"]}}')
    columns = BodyColumns.read(path)
    for file in (path, tmp_path / "r.avsc"):
        file.unlink()
    copied = pickle.loads(pickle.dumps(columns))
    assert copied.fields == columns.fields
    assert copied.refreshed() is copied
    (json_column, avro_column, _), _ = copied.decode(rows_of(("T", b"\2"), ("U", b'{"a": [1.5]}')))
    assert (avro_column[0].as_py(), json_column[1].as_py()) == ({"a": 1}, {"a": [Decimal("1.5")]})


def test_a_value_beyond_its_type_is_a_bad_record() -> None:
    """Damage makes a number of Avro too large, and a decimal too long; other rows are as they
    were."""
    money = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    fields = [{"name": "a", "type": "int"}, {"name": "m", "type": money}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
    columns = BodyColumns({"T": {"avro-schema": "r", "on-bad-record": "skip"}}, {"r": schema})
    good, large = b"\x02\x04\x04\xd2", b"\x80\x80\x80\x80\x80\x40\x04\x04\xd2"
    long = b"\x02\x06\x01\xe2\x40"
    batch = rows_of(("T", good), ("T", large), (None, b""), ("T", b""), ("T", long), ("T", good))
    (found, is_bad), bad = columns.decode(batch)
    value = {"a": 1, "m": Decimal("12.34")}
    assert found.to_pylist() == [value, None, None, None, None, value]
    assert is_bad.to_pylist() == [False, True, None, True, True, False]
    assert [(one.row, one.policy) for one in bad] == [(row, OnBadRecord.SKIP) for row in (1, 3, 4)]


@pytest.mark.parametrize(
    ("name", "time_ns", "is_new_file"), [("b", 2, False), ("bb", 1, False), ("b", 1, True)]
)
def test_a_file_that_differs_in_one_respect_has_changed(
    tmp_path: Path, name: str, time_ns: int, is_new_file: bool
) -> None:
    """Its time, its size, or which file it is: an editor or a copy may keep the others."""
    path = tmp_path / "columns.json"
    path.write_text('{"T": {"a": "long"}}')
    os.utime(path, ns=(1, 1))
    first = BodyColumns.read(path)
    written = tmp_path / "written.json" if is_new_file else path
    written.write_text(f'{{"T": {{"{name}": "long"}}}}')
    os.utime(written, ns=(time_ns, time_ns))
    written.replace(path)
    assert first.refreshed().fields[0].type == pa.struct({name: pa.int64()})


def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text may be older than what the file has when the reading ends."""
    path, read = tmp_path / "columns.json", Path.read_text

    def overtaken(self: Path, encoding: str) -> str:
        text = read(self, encoding)
        self.write_text('{"T": {"later": "long"}}')
        return text

    path.write_text('{"T": {"a": "long"}}')
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", overtaken)
        first = BodyColumns.read(path)
    assert first.fields[0].type == pa.struct({"a": pa.int64()})
    assert first.refreshed().fields[0].type == pa.struct({"later": pa.int64()})


def test_a_body_that_cannot_be_inflated_is_bad() -> None:
    """Its bytes may be JSON all the same; one that can be is read as what it stands for."""
    plain = b'{"a": 7}'
    bodies = [plain, zlib.compress(plain), zlib.compress(plain)[:-4], plain]
    batch = rows_of(*(("T", body) for body in bodies))
    codecs = pa.array(["zlib", "zlib", "zlib", "unknown"])
    columns = BodyColumns({"T": {"a": "long"}})
    (found, is_bad), bad = columns.decode(batch.set_column(2, "bodyCompression", codecs))
    assert found.to_pylist() == [None, {"a": 7}, None, None]
    assert is_bad.to_pylist() == [True, False, True, True]
    assert [(one.row, one.reason) for one in bad] == [
        (row, "it cannot be inflated") for row in (0, 2, 3)
    ]


def test_the_longest_name_of_a_column() -> None:
    """It has 128 characters."""
    assert BodyColumns({"T": {"n" * 128: "long"}}).fields[0].type.names == ["n" * 128]
    with pytest.raises(UsageError, match="must be a name"):
        BodyColumns({"T": {"n" * 129: "long"}})
