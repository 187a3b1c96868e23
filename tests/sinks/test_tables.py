"""Real tables of each format on a local path: every row once, whatever stops the writer."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from reput.sinks.tables.follower import TableFollower
from reput.store.bodies.declaration import BodyColumns
from reput.store.config import read_store_settings
from reput.store.errors import StoreError, UsageError
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, walk
from reput.store.rows.rowform import AS_STORED, DEFAULT_FORM
from reput.store.rows.rows import message_rows, read_rows
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.support.golden import GOLDEN_CASES
from tests.support.plain_rows import inflated, is_internal, stored
from tests.support.plain_rows import plain_rows as plain_rows_of
from tests.support.settings import ANY_SETTINGS
from tests.support.tableformats import FORMATS, TableFormat
from tests.support.tables import log_end, plain_rows
from tests.support.wire import PlainLog

STORE_ID = "0123456789abcdef" * 2
COMPARED = (
    "topic", "queueId", "queueOffset", "physicalOffset", "storeSize", "tags", "keys",
    "storeTimestamp", "properties", "body", "corruptReason",
)  # fmt: skip


class Source:
    """Hands ranges of a log to followers, as the thread of a run does."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.log = CommitLog(read_store_settings(store).commit_log_directories)
        self.end = log_end(store)

    def rows(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Rows of a range."""
        return read_rows(
            self.log, start, end, ROWS_SCHEMA, delay_levels_ms=(), fail_on_corrupt=False,
            max_inflated_bytes=None, fail_on_data_loss=False,
        )  # fmt: skip

    def write(self, follower: TableFollower, start: int, end: int) -> None:
        """One write."""
        follower.write(start, end, self.rows(start, end))

    def follow(self, follower: TableFollower, start: int, end: int) -> None:
        """One write of rows in the follower's form."""
        rows = message_rows(
            self.log, start, end, ROWS_SCHEMA, follower.row_form(), delay_levels_ms=(),
            fail_on_corrupt=False, fail_on_data_loss=False,
        )  # fmt: skip
        follower.write(start, end, rows)

    def cuts(self, parts: int) -> list[int]:
        """Record starts that split the log, and its end."""
        first, window = self.log.min_offset, Window(self.log)
        size = (self.end - first) // parts
        found = {walk(self.log, window, first, first + size * k).offset for k in range(1, parts)}
        return [*sorted(found), self.end]


def plain_source(tmp_path: Path, log: PlainLog) -> Source:
    """A log that a test has made."""
    log.write(tmp_path / "store" / "commitlog")
    return Source(tmp_path / "store")


@pytest.fixture(params=sorted(FORMATS))
def tables(request: pytest.FixtureRequest) -> TableFormat:
    """Each format in turn."""
    return FORMATS[request.param]


def columns_of(tables: TableFormat, table: Path) -> list[dict[str, Any]]:
    """Columns of a table's rows."""
    rows = tables.rows(table, *COMPARED)
    return [{**row, "properties": sorted(row["properties"] or ())} for row in rows]


def rows_of(store: Path) -> list[dict[str, Any]]:
    """The same columns of what the log stands for."""
    return [{name: row[name] for name in COMPARED} for row in plain_rows(store)]


@pytest.fixture
def source(golden: Callable[[str], Path]) -> Source:
    """The log of golden store plain."""
    return Source(golden("plain"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The table's root, which does not exist yet."""
    return tmp_path / "table"


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_rows_are_those_of_the_log(
    golden: Callable[[str], Path], tmp_path: Path, name: str, tables: TableFormat
) -> None:
    """RocketMQ's stores; each write by a follower that knows nothing but the table."""
    store, table = golden(name), tmp_path / "table"
    source = Source(store)
    for end in source.cuts(3):
        follower = tables.target(table).open(STORE_ID, ANY_SETTINGS)
        position = follower.position()
        source.write(follower, source.log.min_offset if position is None else position, end)
    assert tables.target(table).open(STORE_ID, ANY_SETTINGS).position() == source.end
    expected = rows_of(store)
    assert expected
    assert columns_of(tables, table) == expected


@pytest.mark.extended
@pytest.mark.parametrize("name", ["mixed", "broker"])
def test_a_new_table_has_what_consumers_see(
    golden: Callable[[str], Path], table: Path, name: str, tables: TableFormat
) -> None:
    """With plain bodies, whichever follower goes on with it; or everything as stored, if asked."""
    source, everything = Source(golden(name)), table.with_name("everything")
    for place, form, inflate in ((table, DEFAULT_FORM, inflated), (everything, AS_STORED, stored)):
        rows = plain_rows_of(source.log, source.log.min_offset, source.end, inflate)
        expected = [row for row in rows if form.include_internal or not is_internal(row)]
        for number, end in enumerate(source.cuts(3)):
            asked = form if number == 0 else DEFAULT_FORM
            follower = tables.target(place, form=asked).open(STORE_ID, ANY_SETTINGS)
            position = follower.position()
            assert follower.row_form() == form
            source.follow(follower, source.log.min_offset if position is None else position, end)
            assert follower.row_form() == form
        columns = ["topic", "physicalOffset", "transactionType", "bodyCompression", "body"]
        assert tables.rows(place, *columns) == [
            {name: row[name] for name in columns} for row in expected
        ]


def test_a_range_that_does_not_follow_is_not_added(
    source: Source, table: Path, tables: TableFormat
) -> None:
    """Neither one that the table has, nor one that leaves out a part."""
    first, second, end = source.cuts(3)
    follower = tables.target(table).open(STORE_ID, ANY_SETTINGS)
    assert follower.position() is None
    source.write(follower, source.log.min_offset, first)
    assert follower.position() == first
    for start, stop in ((source.log.min_offset, second), (second, end)):
        with pytest.raises(StoreError, match=f"the table is at {first}, not at {start}"):
            source.write(follower, start, stop)
        assert follower.position() == first
    source.write(follower, first, end)
    assert columns_of(tables, table) == rows_of(source.store)


def test_write_that_is_broken_off_leaves_nothing(
    source: Source, table: Path, tables: TableFormat
) -> None:
    """The rows end in an error: neither rows nor position have changed."""
    middle, end = source.cuts(2)
    follower = tables.target(table).open(STORE_ID, ANY_SETTINGS)

    def broken(start: int, end: int) -> Iterator[pa.RecordBatch]:
        yield from source.rows(start, end)
        raise InterruptedError("stopped")

    for start, cut in ((source.log.min_offset, middle), (middle, end)):
        before = follower.position()
        with pytest.raises(Exception, match="stopped"):
            follower.write(start, cut, broken(start, cut))
        assert follower.position() == before
        source.write(follower, start, cut)
    assert columns_of(tables, table) == rows_of(source.store)


def test_range_without_a_row_moves_the_position(tmp_path: Path, tables: TableFormat) -> None:
    """The rest of a file is too small for the next message: a BLANK and nothing else."""
    log = PlainLog(400)
    first = log.append(body=b"x" * 200)
    log.append(body=b"y" * 200)
    source = plain_source(tmp_path, log)
    follower = tables.target(tmp_path / "table").open(STORE_ID, ANY_SETTINGS)
    assert follower.position() is None
    source.write(follower, 0, log.spans[0][1])
    source.write(follower, log.spans[0][1], 400)
    assert follower.position() == 400
    source.write(follower, 400, log.end)
    offsets = [row["physicalOffset"] for row in tables.rows(tmp_path / "table")]
    assert offsets == [first, 400]


def test_damaged_and_lost_ranges_are_rows(tmp_path: Path, tables: TableFormat) -> None:
    """Without topic and time; the first file is gone."""
    log = PlainLog(1000)
    for _ in range(12):
        log.append(body=b"b" * 100)
    victim = log.spans[7]
    log.put(victim[0] + 4, b"\0\0\0\0")
    source = plain_source(tmp_path, log)
    (tmp_path / "store" / "commitlog" / f"{0:020d}").unlink()
    source.log.refresh()
    follower = tables.target(tmp_path / "table").open(STORE_ID, ANY_SETTINGS)
    assert follower.position() is None
    source.write(follower, 0, log.end)
    columns = "topic", "storeTimestamp", "physicalOffset", "corruptReason"
    found = tables.rows(tmp_path / "table", *columns)
    damaged = [row for row in found if row["corruptReason"] is not None]
    assert [(row["physicalOffset"], row["corruptReason"]) for row in damaged] == [
        (0, "segment_deleted"),
        (victim[0], "bad_magic"),
    ]
    assert {(row["topic"], row["storeTimestamp"]) for row in damaged} == {(None, None)}
    sound = [start for start, _ in log.spans if start >= 1000 and start != victim[0]]
    assert [r["physicalOffset"] for r in found if r["corruptReason"] is None] == sound


def test_log_that_was_cut_takes_its_rows_back(tmp_path: Path, tables: TableFormat) -> None:
    """Another store's rows in the table stay; what is written anew comes in."""
    log, table = PlainLog(4000), tmp_path / "table"
    for number in range(20):
        log.append(body=b"old" + bytes([number]))
    source = plain_source(tmp_path, log)
    cut = log.spans[10][0]
    targets = [tables.target(table, store_id=name) for name in ("a", "b")]
    stores = [target.open(STORE_ID, ANY_SETTINGS) for target in targets]
    for follower in stores:
        follower.position()
        source.write(follower, 0, log.end)
    ours = stores[0]
    for at in (cut, cut, log.end):
        ours.truncate(at)
        assert ours.position() == cut
    assert stores[1].position() == log.end
    source.write(ours, cut, log.end)
    found = tables.rows(table, "storeId", "physicalOffset")
    starts = [start for start, _ in log.spans]
    for name in ("a", "b"):
        assert [row["physicalOffset"] for row in found if row["storeId"] == name] == starts
    other = tables.target(table, store_id="c").open(STORE_ID, ANY_SETTINGS)
    other.truncate(0)
    assert other.position() is None, "it has no rows here"
    # nothing was delivered past the cut
    ours.truncate(log.end)
    ours.write(log.end, log.end + 8, iter(()))
    ours.truncate(log.end)
    assert ours.position() == log.end


def test_table_of_others_is_not_added_to_unless_named(tmp_path: Path, tables: TableFormat) -> None:
    """An output that was made anew has a new identity, and would add everything once more."""
    log, table = PlainLog(1000), tmp_path / "table"
    log.append()
    source = plain_source(tmp_path, log)
    first = tables.target(table).open(STORE_ID, ANY_SETTINGS)
    assert first.position() is None
    source.write(first, 0, log.end)
    with pytest.raises(UsageError, match=r"Target\.store_id="):
        tables.target(table).open("f" * 32, ANY_SETTINGS).position()
    named = tables.target(table, store_id=STORE_ID)
    assert named.open("f" * 32, ANY_SETTINGS).position() == log.end
    with pytest.raises(UsageError, match="letters"):
        tables.target(table, store_id="a'b")


COLUMNS = {
    "Orders": {"id": "long", "price": "double", "at": "timestamp", "paid": "boolean"},
    "Notes": {"id": "long", "text": "string", "kind": "integer"},
}
GOOD = {"id": 7, "price": 2, "at": "2026-01-02T03:04:05.5+01:00", "paid": True, "more": [1]}
BAD_BODIES = [
    b"", b"\xff", b"[1]", b"{", b'{"id": "7"}', b'{"id": 7.0}', b'{"id": true}', b'{"paid": 1}',
    b'{"id": 9223372036854775808}', b'{"price": NaN}', b'{"at": "yesterday"}', b"9" * 5000,
    b'{"at": "0001-01-01T00:00:00+14:00"}', b"[" * 100_000, b'{"price": ' + b"9" * 400 + b"}",
]  # fmt: skip


def test_json_bodies_become_columns(tmp_path: Path, tables: TableFormat) -> None:
    """Bodies of declared topics become columns; one that does not fit stays and is counted."""
    log, table = PlainLog(1 << 20), tmp_path / "table"
    good = json.dumps(GOOD).encode()
    log.append(topic=b"Orders", body=good)
    log.append(topic=b"Orders", body=zlib.compress(good), sys_flag=1)
    log.append(topic=b"Orders", body=b'{"id": null}')
    log.append(topic=b"Notes", body='{"text": "\\u0000订", "kind": -2147483648}'.encode())
    log.append(topic=b"Notes", body=b'{"text": "\\ud800"}')
    log.append(topic=b"Other", body=good)
    for body in BAD_BODIES:
        log.append(topic=b"Orders", body=body)
    source = plain_source(tmp_path, log)
    follower = tables.target(table, BodyColumns(COLUMNS)).open(STORE_ID, ANY_SETTINGS)
    assert follower.position() is None
    source.write(follower, 0, log.end)
    found = tables.rows(table)
    nothing = dict.fromkeys(("at", "id", "kind", "paid", "price", "text"))
    order = {
        "id": 7, "price": 2.0, "paid": True,
        "at": datetime(2026, 1, 2, 2, 4, 5, 500_000, tzinfo=UTC),
    }  # fmt: skip
    assert [row["json"] for row in found[:6]] == [
        {**nothing, **order},
        {**nothing, **order},
        nothing,
        {**nothing, "text": "\0订", "kind": -2147483648},
        None,
        None,
    ]
    bad = len(BAD_BODIES)
    assert [row["badBody"] for row in found] == [False] * 4 + [True, None] + [True] * bad
    assert [row["body"] for row in found[6:]] == BAD_BODIES
    assert follower.counts() == {"bad bodies": bad + 1}


def test_columns_may_be_declared_later(tmp_path: Path, tables: TableFormat) -> None:
    """None, some, more, none again: older rows have nulls there."""
    log, table = PlainLog(4000), tmp_path / "table"
    for _ in range(4):
        log.append(topic=b"T", body=b'{"a": 1, "b": "x"}')
    source = plain_source(tmp_path, log)
    declared: list[dict[str, str]] = [{}, {"b": "string"}, {"a": "long", "b": "string"}, {}]
    for columns, (start, end) in zip(declared, log.spans, strict=True):
        body_columns = BodyColumns({"T": columns}) if columns else None
        follower = tables.target(table, body_columns).open(STORE_ID, ANY_SETTINGS)
        assert follower.position() == (start or None)
        source.write(follower, start, end)
    assert [row["json"] for row in tables.rows(table)] == [
        None, {"a": None, "b": "x"}, {"a": 1, "b": "x"}, None,
    ]  # fmt: skip
