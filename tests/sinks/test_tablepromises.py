"""Promises of every format: layout, upkeep, types and errors of tables, without a table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from reput.sinks.kafka.topics import TopicNames
from reput.sinks.tables import upkeep
from reput.sinks.tables.follower import TableFollower, TableStore
from reput.sinks.tables.layout import DELTA_LAYOUT, ICEBERG_LAYOUT, Layout
from reput.sinks.tables.tablerows import OWN_COLUMN, AllRows, BadRows, TableRows, check_types
from reput.sinks.tables.upkeep import Compaction, Expiry, RegularUpkeep
from reput.store.bodies.declaration import BodyColumns
from reput.store.errors import StoreError, SyncError, UsageError
from reput.store.follower import BAD_BODIES
from reput.store.rows.rowform import DEFAULT_FORM, RowForm
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.sinks.test_tablerules import Table


class Upkeep:
    """An upkeep that takes its time, of which each act may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.done = list[tuple[str, float]]()
        self.errors = dict[str, Exception]()
        monkeypatch.setattr(upkeep.time, "monotonic", lambda: self.now)

    def _act(self, name: str) -> None:
        self.done.append((name, self.now))
        self.now += 50.0
        if name in self.errors:
            raise self.errors[name]

    def compact(self, target_bytes: int | None = None) -> Compaction:
        assert target_bytes is None
        self._act("compact")
        return Compaction(9, 900, 2, 800)

    def expire(self) -> Expiry:
        self._act("expire")
        return Expiry(3, 4)


def test_rows_have_their_turn_between_two_upkeeps_that_take_longer_than_the_interval(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The interval begins when the upkeep has ended; each of its acts says what it did."""
    table = Upkeep(monkeypatch)
    regular = RegularUpkeep(table, "lake", 10.0)
    with caplog.at_level(logging.INFO, "reput"):
        for table.now in (0.0, 9.9, 10.0, 110.0, 119.9, 120.0):
            regular.run_if_due()
    assert table.done == [
        ("compact", 10.0),
        ("expire", 60.0),
        ("compact", 120.0),
        ("expire", 170.0),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "follower lake: 9 files compacted to 2",
        "follower lake: 3 old versions and 4 files removed",
    ] * 2


@pytest.mark.parametrize("failing", ["compact", "expire"])
def test_each_act_of_an_upkeep_fails_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    """The other one is done, and both again after the interval; a sync that failed ends it."""
    table = Upkeep(monkeypatch)
    table.errors[failing] = OSError("no answer")
    regular = RegularUpkeep(table, "lake", 10.0)
    for table.now in (10.0, 110.0, 120.0):
        regular.run_if_due()
    assert [name for name, _ in table.done] == ["compact", "expire"] * 2
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    act = {"compact": "compaction", "expire": "expiry"}[failing]
    assert warnings == [f"follower lake: {act} failed, and is tried again in 10 s: no answer"] * 2
    table.errors[failing] = SyncError("no sync")
    table.now = 1000.0
    with pytest.raises(SyncError, match="no sync"):
        regular.run_if_due()


def test_a_layout_is_as_declared_or_as_the_format_has_it() -> None:
    """Each of its three parts alone; blanks around a word do not count."""
    for base in (DELTA_LAYOUT, ICEBERG_LAYOUT):
        assert base.declared(None, None, None) == base
        assert base.declared("", "", 7) == Layout((), (), 7)
        assert base.declared(None, None, 7) == Layout(base.partition_by, base.sort_by, 7)
        found = base.declared(" hour , queue(8)", "topic, queueOffset ", None)
        words = ("hour", "queue(8)"), ("topic", "queueOffset")
        assert found == Layout(*words, base.target_file_bytes)
    assert ICEBERG_LAYOUT.target_file_bytes == 128 << 20


@pytest.mark.parametrize(
    ("partition_by", "sort_by", "line"),
    [
        ("topic,topic", None, "topic, topic has a part twice"),
        (None, "topic,keys,topic", "topic, keys, topic has a part twice"),
        ("queue(8),queue(8)", None, "is partitioned by one queue"),
        ("queue(8),queue(16)", None, "is partitioned by one queue"),
        ("Topic", None, "not by 'Topic'"),
        (None, "body", "not by 'body'"),
        (None, "Topic", "not by 'Topic'"),
        ("topic;day", None, "not by 'topic;day'"),
    ],
)
def test_a_layout_that_no_table_has_is_refused(
    partition_by: str | None, sort_by: str | None, line: str
) -> None:
    """By the word that is wrong, before anything is written."""
    with pytest.raises(UsageError, match=line):
        ICEBERG_LAYOUT.declared(partition_by, sort_by, None)


def schema_of(kind: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("json", pa.struct({"a": kind}))])


@pytest.mark.parametrize(
    ("kept", "declared"),
    [
        (pa.large_string(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(), pa.binary(16)),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.map_(pa.large_string(), pa.binary()), pa.map_(pa.string(), pa.binary(4))),
    ],
)
def test_a_type_that_a_library_has_in_another_form_is_the_same(
    kept: pa.DataType, declared: pa.DataType
) -> None:
    """Libraries give texts and lists of any length back, and Delta tables have no bytes of one."""
    check_types(schema_of(kept), schema_of(declared))
    check_types(schema_of(declared), schema_of(kept))


@pytest.mark.parametrize(
    ("kept", "declared", "place"),
    [
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.int64(), pa.int64()), r"json\.a\{key\} is"),
        (pa.list_(pa.string()), pa.string(), r"json\.a is of type list"),
        (pa.struct({"b": pa.string()}), pa.string(), r"json\.a is of type struct"),
        (pa.large_list(pa.large_string()), pa.list_(pa.binary()), r"json\.a\[\] is of type string"),
        (pa.string(), pa.binary(), r"json\.a is of type string in the table"),
    ],
)
def test_a_type_that_is_another_is_named_where_it_is(
    kept: pa.DataType, declared: pa.DataType, place: str
) -> None:
    """Within maps, lists and structs as well; one of those is none of the others."""
    with pytest.raises(UsageError, match=place):
        check_types(schema_of(kept), schema_of(declared))


class Library(Table):
    """A table whose library wraps what it meets while it takes rows."""

    def append(
        self, end: int, form: RowForm, schema: pa.Schema, rows: Iterator[pa.RecordBatch]
    ) -> None:
        assert (end, form) == (9, DEFAULT_FORM)
        assert "json" in schema.names
        try:
            for _ in rows:
                pass
        except StoreError as error:
            raise RuntimeError("C stream error") from error


def test_a_body_that_stops_a_table_is_the_error_and_not_what_its_library_made_of_it() -> None:
    """The exit code and the line follow from it; nothing of the range counts."""
    columns = AllRows(BodyColumns({"T": {"id": "long", "on-bad-record": "stop"}}))
    store = TableStore("s", is_shared=False, option="", losing="")
    follower = TableFollower(Library(), store, columns, DEFAULT_FORM)
    assert follower.position() is None
    bad = {"topic": "T", "physicalOffset": 5, "storeSize": 1, "body": b"no JSON"}
    rows = pa.RecordBatch.from_pylist([bad], schema=ROWS_SCHEMA)
    with pytest.raises(StoreError, match="at physical offset 5 does not fit") as raised:
        follower.write(0, 9, iter([rows]))
    assert raised.value.__cause__ is None
    assert follower.counts() == {}
    follower.write(0, 9, iter([]))
    with pytest.raises(StoreError, match="the table is at 9, not at 0"):
        follower.write(0, 9, iter([]))


class Taking(Table):
    """A table that takes all rows."""

    def append(
        self, end: int, form: RowForm, schema: pa.Schema, rows: Iterator[pa.RecordBatch]
    ) -> None:
        assert end > 0
        assert form == DEFAULT_FORM
        assert OWN_COLUMN in schema.names
        for _ in rows:
            pass


@pytest.mark.parametrize("kind", [AllRows, BadRows])
def test_a_declaration_that_has_changed_is_read_again_before_a_write(
    tmp_path: Path, kind: Callable[[BodyColumns], TableRows]
) -> None:
    """By the table of bad records, too: with the old one it would get what is not bad now."""
    path, declared = tmp_path / "columns.toml", '[T]\non-bad-record = "table"\nid = "{}"\n'
    path.write_text(declared.format("long"))
    store = TableStore("s", is_shared=False, option="", losing="")
    follower = TableFollower(Taking(), store, kind(BodyColumns.read(path)), DEFAULT_FORM)
    assert follower.position() is None
    body = {"topic": "T", "physicalOffset": 5, "storeSize": 1, "body": b'{"id": "x"}'}
    rows = pa.RecordBatch.from_pylist([body], schema=ROWS_SCHEMA)
    follower.write(0, 9, iter([rows]))
    assert follower.counts() == {BAD_BODIES: 1}
    path.write_text(declared.format("string"))
    follower.write(9, 18, iter([rows]))
    assert follower.counts() == {BAD_BODIES: 1}


def test_a_topic_without_a_name_has_one_on_kafka_that_no_other_has() -> None:
    """Its two digits are no byte that begins or continues a name, nor those of a name that is
    cut."""
    assert TopicNames().of("") == ".xff"
    assert TopicNames("m-{topic}").of("") == "m-.xff"
    others = {TopicNames().of(topic) for topic in (".xff", "ÿ", "\x7f", "_xff", "x" * 300)}
    assert not {name for name in others if name.startswith(".xff")}
