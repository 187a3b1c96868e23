"""Rules of tables of every format, without a table."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from reput.sinks.tables.follower import Mark, TableFollower, TableStore, check_store_id
from reput.sinks.tables.layout import DELTA_LAYOUT
from reput.sinks.tables.tablerows import AllRows, check_types
from reput.store.bodies.declaration import BodyColumns
from reput.store.errors import StoreError, UsageError
from reput.store.rows.rowform import DEFAULT_FORM, RowForm
from reput.store.rows.rowschema import ROWS_SCHEMA

GOOD, BAD = b'{"id": 1}', b"no JSON"


def rows_of(first: int, *bodies: bytes) -> pa.RecordBatch:
    """Public rows of topic T, whose physical offsets are numbers from ``first`` on."""
    rows = [
        {"topic": "T", "physicalOffset": number, "storeSize": 1, "body": body}
        for number, body in enumerate(bodies, first)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ROWS_SCHEMA)


class Table:
    """A table in memory, which may lose its answer to a commit."""

    def __init__(self) -> None:
        self.mark: Mark | None = None
        self.rows = list[int]()
        self.loses_answer = False

    def load(self) -> Mark | None:
        return self.mark

    def schema(self) -> pa.Schema | None:
        return None

    def has_rows(self) -> bool:
        return bool(self.rows)

    def has_rows_of_store(self) -> bool:
        return bool(self.rows)

    def append(
        self, end: int, form: RowForm, schema: pa.Schema, rows: Iterator[pa.RecordBatch]
    ) -> None:
        assert "badBody" in schema.names
        self.rows += [at for batch in rows for at in batch["physicalOffset"].to_pylist()]
        self.mark = Mark(end, form)
        if self.loses_answer:
            raise OSError("the answer was lost")

    def truncate(self, end: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def test_a_commit_is_counted_once_however_often_its_position_is_asked_for() -> None:
    """Whether its answer came or not; a write that is broken off counts nothing."""
    table, store = Table(), TableStore("s", is_shared=False, option="", losing="")
    columns = AllRows(BodyColumns({"T": {"id": "long"}}))
    follower = TableFollower(table, store, columns, DEFAULT_FORM)
    assert follower.position() is None
    follower.write(0, 2, iter([rows_of(0, GOOD, BAD)]))
    for _ in range(2):
        assert follower.position() == 2
        assert follower.counts() == {"bad bodies": 1}
    table.loses_answer = True
    with pytest.raises(OSError, match="lost"):
        follower.write(2, 5, iter([rows_of(2, BAD), rows_of(3, GOOD, BAD)]))
    assert follower.counts() == {"bad bodies": 1}
    for _ in range(2):
        assert follower.position() == 5
        assert follower.counts() == {"bad bodies": 3}
    assert table.rows == [*range(5)]


def test_the_first_body_that_stops_a_table_is_named() -> None:
    """The table goes on there when the declaration is mended."""
    columns = AllRows(BodyColumns({"T": {"id": "long", "on-bad-record": "stop"}}))
    with pytest.raises(StoreError, match="at physical offset 8 does not fit") as raised:
        columns.of(rows_of(7, GOOD, BAD, GOOD, BAD), "s")
    assert raised.value.physical_offset == 8


@pytest.mark.parametrize("name", ["json", "avro", "protobuf"])
@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        (pa.int64(), pa.int32(), ""),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32()), r"\{\}"),
        (pa.list_(pa.int64()), pa.list_(pa.int32()), r"\[\]"),
        (pa.struct({"b": pa.int64()}), pa.struct({"b": pa.int32()}), ".b"),
    ],
)
def test_no_part_of_a_column_changes_its_type(
    name: str, before: pa.DataType, after: pa.DataType, place: str
) -> None:
    """Bodies of each format; a column that is added is none that changes."""
    kept, wanted = (pa.schema([pa.field(name, pa.struct({"a": kind}))]) for kind in (before, after))
    check_types(kept, kept)
    check_types(pa.schema([pa.field(name, pa.struct({"c": before}))]), wanted)
    with pytest.raises(UsageError, match=f"the column {name}.a{place} is of type int64"):
        check_types(kept, wanted)


def test_the_longest_identity() -> None:
    """It has 128 characters."""
    check_store_id(None, "a table")
    check_store_id("i" * 128, "a table")
    for store_id in ("i" * 129, "", "a b", "a\n"):
        with pytest.raises(UsageError, match="the identity of a store in a table is"):
            check_store_id(store_id, "a table")


def test_the_most_buckets() -> None:
    """A number of up to five digits."""
    assert DELTA_LAYOUT.declared("queue(99999)", None, None).partition_by == ("queue(99999)",)
    for part in ("queue(100000)", "queue(08)", "queue(-1)", "queue(8)x"):
        with pytest.raises(UsageError, match="is partitioned by"):
            DELTA_LAYOUT.declared(part, None, None)
