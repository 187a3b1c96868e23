"""Messages whose bodies do not fit their declaration, in tables of each format."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from reput.checkpoints.followers import read_follower_states
from reput.sinks.delta.table import DeltaTarget
from reput.sinks.iceberg.table import IcebergTarget
from reput.sinks.tables.tablerows import check_types
from reput.store.bodies.declaration import BodyColumns
from reput.store.errors import StoreError, UsageError
from tests.sinks.test_tables import STORE_ID, Source, plain_source
from tests.support.cli import Call
from tests.support.following import follow
from tests.support.settings import ANY_SETTINGS
from tests.support.tableformats import FORMATS, TableFormat
from tests.support.wire import PlainLog

GOOD, BAD = b'{"id": 1}', b'{"id": "x"}'
REASON = "id is not of type int64"
AVRO = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(params=sorted(FORMATS))
def tables(request: pytest.FixtureRequest) -> TableFormat:
    """Each format in turn."""
    return FORMATS[request.param]


def source_of(directory: Path, *messages: tuple[bytes, bytes]) -> tuple[Source, list[int]]:
    """A log of topics with bodies, and the ends of its messages."""
    log = PlainLog(1 << 16)
    for topic, body in messages:
        log.append(topic=topic, body=body)
    return plain_source(directory, log), [end for _, end in log.spans]


def declared(policy: str) -> BodyColumns:
    """A column of topic T, and what becomes of bad bodies."""
    return BodyColumns({"T": {"id": "long", "on-bad-record": policy}})


def bad_target(target: Any) -> DeltaTarget | IcebergTarget:
    """The table of bad records beside a table."""
    assert isinstance(target, DeltaTarget | IcebergTarget)
    return target.of_bad_records()


def bad_rows(tables: TableFormat, root: Path) -> list[dict[str, Any]]:
    """Rows of the table of bad records of the table there."""
    if tables is FORMATS["delta"]:
        return tables.rows(root.with_name(f"{root.name}_bad"))
    return tables.rows(root, table="messages_bad")


@pytest.mark.parametrize("policy", ["flag", "table"])
def test_rows_say_that_a_body_is_bad(tmp_path: Path, tables: TableFormat, policy: str) -> None:
    """Each message has a row, in which the body stands as it is."""
    source, _ = source_of(tmp_path, (b"T", GOOD), (b"T", BAD), (b"U", BAD))
    follower = tables.target(tmp_path / "table", declared(policy)).open(STORE_ID, ANY_SETTINGS)
    follower.position()
    source.write(follower, 0, source.end)
    found = tables.rows(tmp_path / "table", "body", "json", "badBody", "physicalOffset")
    assert [(row["body"], row["json"], row["badBody"]) for row in found] == [
        (GOOD, {"id": 1}, False), (BAD, None, True), (BAD, None, None),
    ]  # fmt: skip
    assert follower.counts() == {"bad bodies": 1}


def test_messages_with_bad_bodies_may_be_left_out(tmp_path: Path, tables: TableFormat) -> None:
    """They are counted; the position is beyond them."""
    messages = [(b"T", BAD), (b"T", GOOD), (b"U", BAD), (b"T", BAD)]
    source, ends = source_of(tmp_path, *messages)
    follower = tables.target(tmp_path / "table", declared("skip")).open(STORE_ID, ANY_SETTINGS)
    follower.position()
    source.write(follower, 0, ends[2])
    source.write(follower, ends[2], ends[3])
    found = tables.rows(tmp_path / "table", "topic", "badBody", "physicalOffset")
    assert [(row["topic"], row["badBody"]) for row in found] == [("T", False), ("U", None)]
    assert follower.counts() == {"bad bodies": 2, "messages left out": 2}
    assert follower.position() == source.end


def test_only_those_that_are_left_out_are_counted_so(tmp_path: Path, tables: TableFormat) -> None:
    """Another topic's bad bodies are flagged in the same batch."""
    source, _ = source_of(tmp_path, (b"T", BAD), (b"F", BAD), (b"F", GOOD))
    columns = BodyColumns({"T": {"id": "long", "on-bad-record": "skip"}, "F": {"id": "long"}})
    follower = tables.target(tmp_path / "table", columns).open(STORE_ID, ANY_SETTINGS)
    follower.position()
    source.write(follower, 0, source.end)
    assert follower.counts() == {"bad bodies": 2, "messages left out": 1}


def test_values_of_one_size_go_on(tmp_path: Path, tables: TableFormat) -> None:
    """A Delta table has no such type, and takes them as any binary."""
    schema = {
        "type": "record", "name": "R",
        "fields": [{"name": "hash", "type": {"type": "fixed", "name": "H", "size": 2}}],
    }  # fmt: skip
    columns = BodyColumns({"T": {"avro-schema": "f"}}, {"f": json.dumps(schema).encode()})
    source, ends = source_of(tmp_path, (b"T", b"ab"), (b"T", b"cd"))
    start = 0
    for end in ends:
        follower = tables.target(tmp_path / "table", columns).open(STORE_ID, ANY_SETTINGS)
        assert (follower.position() or 0) == start
        source.write(follower, start, end)
        start = end
    found = tables.rows(tmp_path / "table", "avro", "physicalOffset")
    assert [row["avro"] for row in found] == [{"hash": b"ab"}, {"hash": b"cd"}]


def test_a_bad_body_may_stop_the_table(tmp_path: Path, tables: TableFormat) -> None:
    """Before the range with it, with the place and the reason; with a mended declaration the table
    goes on."""
    source, ends = source_of(tmp_path, (b"T", GOOD), (b"T", GOOD), (b"T", BAD))
    path = tmp_path / "columns.json"
    path.write_text('{"T": {"id": "long", "on-bad-record": "stop"}}')
    target = tables.target(tmp_path / "table", BodyColumns.read(path))
    follower = target.open(STORE_ID, ANY_SETTINGS)
    follower.position()
    source.write(follower, 0, ends[0])
    for _ in range(2):
        with pytest.raises(StoreError, match=REASON) as raised:
            source.write(follower, ends[0], ends[2])
        assert raised.value.physical_offset == ends[1]
        assert f"at physical offset {ends[1]} does not" in str(raised.value)
        assert "mend the declaration" in str(raised.value)
        assert follower.position() == ends[0]
    path.write_text('{"T": {"id": "long", "on-bad-record": "flag"}}')
    source.write(follower, ends[0], ends[2])
    found = tables.rows(tmp_path / "table", "badBody", "physicalOffset")
    assert [row["badBody"] for row in found] == [False, False, True]
    assert follower.counts() == {"bad bodies": 1}


def test_bad_records_have_a_table(tmp_path: Path, tables: TableFormat) -> None:
    """With the reason, the body and all public columns; of those topics alone that ask for it."""
    columns = BodyColumns(
        {
            "on-bad-record": "table",
            "T": {"id": "long"},
            "A": {"avro-schema": "r.avsc"},
            "F": {"id": "long", "on-bad-record": "flag"},
        },
        {"r.avsc": json.dumps(AVRO).encode()},
    )
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), {"id": 7})
    datum = stream.getvalue()
    messages = [(b"T", GOOD), (b"T", BAD), (b"A", datum), (b"A", datum + b"!"), (b"F", BAD)]
    source, ends = source_of(tmp_path, *messages)
    root = tmp_path / "table"
    target = tables.target(root, columns)
    assert bad_target(target).name == f"{target.name}-bad"
    for one in (target, bad_target(target)):
        follower = one.open(STORE_ID, ANY_SETTINGS)
        follower.position()
        source.write(follower, 0, ends[1])
        source.write(follower, ends[1], ends[-1])
        assert follower.position() == ends[-1]
    assert follower.counts() == {"bad bodies": 2}
    found = bad_rows(tables, root)
    assert [(row["topic"], row["body"], row["badReason"]) for row in found] == [
        ("T", BAD, REASON), ("A", datum + b"!", "1 bytes follow its Avro datum"),
    ]  # fmt: skip
    assert {row["storeId"] for row in found} == {STORE_ID}
    every = tables.rows(root)
    assert [row["avro"] for row in every] == [None, None, {"id": 7}, None, None]
    assert [row["badBody"] for row in every] == [False, True, False, True, True]


def test_the_table_of_bad_records_is_beside_one_that_ends_with_a_slash(tmp_path: Path) -> None:
    """Within the table it would be files that the table does not know."""
    for table in (str(tmp_path / "table"), "s3://bucket/table"):
        for given in (table, f"{table}/"):
            assert DeltaTarget(given).of_bad_records().url == f"{table}_bad"


def test_a_table_of_bad_records_that_fails_stops_nothing(tmp_path: Path) -> None:
    """Nor does it double rows; it catches up once it works again."""
    tables = FORMATS["delta"]
    source, _ = source_of(tmp_path, (b"T", GOOD), (b"T", BAD))
    target = tables.target(tmp_path / "table", declared("table"))
    in_the_way = tmp_path / "table_bad"
    in_the_way.write_text("a file")
    output = tmp_path / "output"
    with pytest.raises(StoreError, match="delta-bad"):
        follow(source.store, output, target, [source.end], None, bad_target(target))
    assert len(tables.rows(tmp_path / "table")) == 2
    states = {state.name: state.error for state in read_follower_states(output / "reput")}
    assert states["delta"] is None
    assert states["delta-bad"] is not None
    in_the_way.unlink()
    follow(source.store, output, target, [source.end], None, bad_target(target))
    assert len(tables.rows(tmp_path / "table")) == 2
    assert [row["body"] for row in bad_rows(tables, tmp_path / "table")] == [BAD]


def test_columns_may_be_declared_while_a_run_goes_on(tmp_path: Path, tables: TableFormat) -> None:
    """With the next commit; a file that is wrong stops the table until it is right."""
    bodies = [b'{"id": %d, "more": {"a": %d}}' % (number, number) for number in range(3)]
    source, ends = source_of(tmp_path, *((b"T", body) for body in bodies))
    path = tmp_path / "columns.json"
    path.write_text('{"T": {"id": "long"}}')
    target = tables.target(tmp_path / "table", BodyColumns.read(path))
    follower = target.open(STORE_ID, ANY_SETTINGS)
    follower.position()
    source.write(follower, 0, ends[0])
    path.write_text('{"T": {"id": "long", "more": {"a": "lon')
    with pytest.raises(UsageError, match="cannot take columns"):
        source.write(follower, ends[0], ends[1])
    path.write_text('{"T": {"id": "long", "more": {"a": "long"}}}')
    source.write(follower, ends[0], ends[1])
    path.write_text('{"T": {"id": "long", "more": {"a": "long", "b": "string"}}}')
    source.write(follower, ends[1], ends[2])
    found = tables.rows(tmp_path / "table", "json", "physicalOffset")
    assert [row["json"] for row in found] == [
        {"id": 0, "more": None},
        {"id": 1, "more": {"a": 1, "b": None}},
        {"id": 2, "more": {"a": 2, "b": None}},
    ]


@pytest.mark.parametrize(
    ("before", "after", "column"),
    [
        ("long", "string", "json.c"),
        ("long", "integer", "json.c"),
        ("integer", "long", "json.c"),
        (["long"], ["string"], r"json.c\[\]"),
        ({"*": "long"}, {"*": "string"}, r"json.c\{\}"),
        ({"a": "long"}, {"a": "date"}, "json.c.a"),
        ({"a": "long"}, "string", "json.c"),
        ("decimal(5,2)", "decimal(5,1)", "json.c"),
    ],
)
def test_a_column_whose_type_changes_is_refused(
    tmp_path: Path, tables: TableFormat, before: Any, after: Any, column: str
) -> None:
    """Nothing is written; with the old declaration the table goes on."""
    source, ends = source_of(tmp_path, (b"T", b"{}"), (b"T", b'{"c": null}'))
    root = tmp_path / "table"

    def follower(kind: Any) -> Any:
        columns = BodyColumns({"T": {"c": kind, "d": "date"}})
        return tables.target(root, columns).open(STORE_ID, ANY_SETTINGS)

    first = follower(before)
    first.position()
    source.write(first, 0, ends[0])
    changed = follower(after)
    assert changed.position() == ends[0]
    with pytest.raises(UsageError, match=f"the column {column} is of type"):
        source.write(changed, ends[0], ends[1])
    again = follower(before)
    assert again.position() == ends[0]
    source.write(again, ends[0], ends[1])
    assert len(tables.rows(root)) == 2


def test_keys_of_a_map_whose_type_changes_are_refused() -> None:
    """Protobuf has maps by numbers, too."""

    def schema(key: pa.DataType) -> pa.Schema:
        return pa.schema([pa.field("protobuf", pa.struct([("m", pa.map_(key, pa.int64()))]))])

    check_types(schema(pa.int32()), schema(pa.int32()))
    with pytest.raises(UsageError, match=r"the column protobuf.m\{key\} is of type string"):
        check_types(schema(pa.string()), schema(pa.int32()))


@pytest.mark.usefixtures("spark")
def test_a_run_fills_both_tables(tmp_path: Path, call: Call) -> None:
    """If a topic asks for the second; `status` shows both, with their counts."""
    source, _ = source_of(tmp_path, (b"T", GOOD), (b"T", BAD))
    columns = tmp_path / "columns.toml"
    columns.write_text('on-bad-record = "table"\n[T]\nid = "long"\n')
    output, table = tmp_path / "output", tmp_path / "table"
    done = call(
        "run", source.store, "--output", output, "--once", "--delta", table, "--delta-schema",
        columns,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [row["body"] for row in bad_rows(FORMATS["delta"], table)] == [BAD]
    counts = {"delta": {"bad bodies": 1}, "delta-bad": {"bad bodies": 1}}
    assert _shown_counts(call, source.store, output) == counts
    # a run that counts none of them keeps what was counted
    done = call("run", source.store, "--output", output, "--once", "--delta", table)
    assert done.returncode == 0, done.stderr
    assert _shown_counts(call, source.store, output) == counts


def _shown_counts(call: Call, store: Path, output: Path) -> dict[str, dict[str, int]]:
    shown = json.loads(call("status", store, "--output", output, "--json").stdout)
    return {one["name"]: one["counts"] for one in shown["followers"]}
