"""Layouts of Delta tables: every row once, in the partition where readers look for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from reput.sinks.delta.table import DeltaTarget
from reput.sinks.tables import ordering
from reput.sinks.tables.follower import TableFollower
from reput.sinks.tables.layout import DELTA_LAYOUT, Layout
from reput.store.bodies.declaration import BodyColumns
from reput.store.errors import UsageError
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.sinks.test_tables import STORE_ID, Source, plain_source
from tests.support.settings import ANY_SETTINGS
from tests.support.tables import plain_columns, plain_rows, table_rows
from tests.support.wire import PlainLog

HOUR_MS = 3_600_000
MESSAGES = 40
DECLARED = {
    "topic,day": ["topic", "date"],
    "topic,hour,queue(3)": ["topic", "date", "hour", "queueMod3"],
    "queue(7),hour": ["queueMod7", "date", "hour"],
    "hour,day": ["date", "hour"],
    "topic": ["topic"],
    "": [],
}
"""Layouts, and the columns by which their tables are partitioned."""


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Topics, queues and hours, some before 1970, in no order; a damaged record may have any queue
    id."""
    log = PlainLog(1 << 16)
    for number in range(MESSAGES):
        log.append(
            topic=b"T%d" % (number * 7 % 3), queue_id=number * 3 % 5 - 1,
            store_timestamp=(number * 5 % 4 - 2) * HOUR_MS + number,
        )  # fmt: skip
    return plain_source(tmp_path, log)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The table's root, which does not exist yet."""
    return tmp_path / "table"


def opened(table: Path, layout: Layout = DELTA_LAYOUT, **options: Any) -> TableFollower:
    """A follower that knows nothing but the table."""
    return DeltaTarget(str(table), layout=layout, **options).open(STORE_ID, ANY_SETTINGS)


def fill(source: Source, table: Path, layout: Layout = DELTA_LAYOUT, parts: int = 2) -> None:
    """A table with all rows, by so many commits, each of another follower."""
    for end in source.cuts(parts):
        follower = opened(table, layout)
        source.write(follower, follower.position() or 0, end)


def plain_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a layout, of a row that the log stands for."""
    found = {"topic": row["topic"], "date": row["date"], "hour": row["storeTimestamp"].hour}
    return found | {f"queueMod{n}": (row["queueId"] % n + n) % n for n in (3, 7)}


def rows_of_files(table: Path) -> list[tuple[Mapping[str, str], list[dict[str, Any]]]]:
    """The partition of each live file by the names of its directories, and its rows in order."""
    found = []
    for name in DeltaTable(table).file_uris():
        relative = Path(name).relative_to(table)
        values = dict(part.split("=", 1) for part in relative.parts[:-1])
        found.append((values, pq.read_table(name, partitioning=None).to_pylist()))
    return found


@pytest.mark.parametrize(("declared", "columns"), DECLARED.items())
def test_rows_are_in_the_partitions_declared(
    source: Source, table: Path, declared: str, columns: list[str]
) -> None:
    """DuckDB, which knows only files and the names of their directories, finds the same."""
    fill(source, table, DELTA_LAYOUT.declared(declared, None, None), parts=3)
    opened_table, plain = DeltaTable(table), plain_rows(source.store)
    assert opened_table.metadata().partition_columns == columns
    assert plain_columns(table) == plain
    expected = {row["physicalOffset"]: plain_values(row) for row in plain}
    own = [name for name in columns if name not in ("topic", "date")]
    for row in table_rows(table, "physicalOffset", "topic", "date", *own):
        wanted = expected[row["physicalOffset"]]
        assert row == {"physicalOffset": row["physicalOffset"]} | {
            name: wanted[name] for name in ("topic", "date", *own)
        }
    for values, rows in rows_of_files(table):
        assert [*values] == columns
        for row in rows:
            wanted = expected[row["physicalOffset"]]
            assert values == {name: str(wanted[name]) for name in columns}
    files = opened_table.file_uris()
    for name in columns:
        by_value = defaultdict(list)
        for offset, wanted in expected.items():
            by_value[str(wanted[name])].append(offset)
        found = duckdb.sql(
            f"select {name}::varchar, list(physicalOffset order by physicalOffset) from "
            f"read_parquet({files}, hive_partitioning = true) group by 1"
        )
        assert dict(found.fetchall()) == by_value


def test_the_default_is_as_it_was(source: Source, table: Path) -> None:
    """No column, no property and no mark of a layout."""
    fill(source, table)
    opened_table = DeltaTable(table)
    fields = opened_table.schema().fields
    names = [*ROWS_SCHEMA.names, "storeId", "date", "fullTopic"]
    assert [field.name for field in fields] == names
    assert [field.metadata for field in fields] == [{}] * len(names)
    assert opened_table.metadata().configuration == {}
    for _, rows in rows_of_files(table):
        offsets = [row["physicalOffset"] for row in rows]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("declared", DECLARED)
def test_a_table_keeps_its_layout(source: Source, table: Path, declared: str) -> None:
    """Later runs ask for another one, add columns, and take rows back."""
    layout = DELTA_LAYOUT.declared(declared, "queueId,storeTimestamp", 1 << 20)
    first, second, third, end = source.cuts(4)
    source.write(opened(table, layout), 0, first)
    other = Layout(("hour", "queue(7)"), ("keys",), 1 << 10)
    columns = BodyColumns({"T1": {"a": "long"}})
    for start, stop in ((first, second), (second, third)):
        follower = opened(table, other, body_columns=columns)
        assert follower.position() == start
        source.write(follower, start, stop)
    follower.truncate(first)
    follower.truncate(first)
    source.write(follower, first, end)
    assert plain_columns(table) == plain_rows(source.store)
    found = DeltaTable(table)
    assert found.metadata().partition_columns == DECLARED[declared]
    assert found.metadata().configuration == {"delta.targetFileSize": str(1 << 20)}
    for _, rows in rows_of_files(table):
        order = [(row["queueId"], row["storeTimestamp"]) for row in rows]
        assert order == sorted(order)


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_rows_are_sorted_a_chunk_at_a_time(
    source: Source, table: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """More at once would take more memory the longer a run lags."""
    monkeypatch.setattr(ordering, "CHUNK_BYTES", chunk_bytes)
    follower = opened(table, Layout((), ("queueId",)))
    assert follower.position() is None
    (whole,) = source.rows(0, source.end)
    middle = MESSAGES // 2
    follower.write(0, source.end, iter((whole.slice(0, middle), whole.slice(middle))))
    ((_, rows),) = rows_of_files(table)
    queues = [row["queueId"] for row in plain_rows(source.store)]
    pieces = [queues[:middle], queues[middle:]] if chunk_bytes == 1 else [queues]
    assert [row["queueId"] for row in rows] == [one for piece in pieces for one in sorted(piece)]
    assert plain_columns(table) == plain_rows(source.store)


def test_nulls_are_first(tmp_path: Path, table: Path) -> None:
    """As in an Iceberg table that is made here."""
    log = PlainLog(1 << 16)
    for keys in (b"KEYS\x01b\x02", b"", b"KEYS\x01a\x02"):
        log.append(topic=b"T", properties=keys)
    source = plain_source(tmp_path, log)
    fill(source, table, Layout(("topic",), ("keys",)), parts=1)
    ((_, rows),) = rows_of_files(table)
    assert [row["keys"] for row in rows] == [None, "a", "b"]


def test_a_compaction_keeps_partitions_and_pieces(source: Source, table: Path) -> None:
    """Files are joined one after the other, up to the size of the table's property."""
    layout = Layout(("hour", "queue(3)"), ("topic", "queueOffset"), 64 << 20)
    fill(source, table, layout, parts=4)
    before = rows_of_files(table)
    done = DeltaTarget(str(table)).upkeep().compact()
    after = rows_of_files(table)
    partitions = {tuple(values.items()) for values, _ in before}
    assert sorted(tuple(values.items()) for values, _ in after) == sorted(partitions)
    assert (done.replaced_files, len(after)) == (len(before), len(partitions))
    assert plain_columns(table) == plain_rows(source.store)
    pieces = {tuple(row["physicalOffset"] for row in rows) for _, rows in before}
    for _, rows in after:
        offsets = [row["physicalOffset"] for row in rows]
        while offsets:
            (piece,) = (one for one in pieces if one[0] == offsets[0])
            assert tuple(offsets[: len(piece)]) == piece
            del offsets[: len(piece)]


def test_a_compaction_joins_up_to_the_declared_size(source: Source, table: Path) -> None:
    """Files as large as that are left."""
    fill(source, table, Layout((), (), 1), parts=4)
    assert DeltaTarget(str(table)).upkeep().compact().replaced_files == 0
    assert DeltaTarget(str(table)).upkeep().compact(1 << 20).replaced_files >= 4


def test_damage_and_a_lost_time_have_a_partition(tmp_path: Path, table: Path) -> None:
    """Without topic, hour and queue; a time that no timestamp holds is null."""
    log = PlainLog(1 << 16)
    for time_ms in (0, 0, -(1 << 62)):
        log.append(topic=b"T", store_timestamp=time_ms)
    log.put(log.spans[1][0] + 4, b"\0\0\0\1")
    source = plain_source(tmp_path, log)
    fill(source, table, Layout(("topic", "hour", "queue(3)")), parts=1)
    columns = "topic", "hour", "queueMod3"
    found = table_rows(table, "physicalOffset", *columns)
    assert [[row[name] for name in columns] for row in found] == [
        ["T", 0, 0], [None, None, None], ["T", None, 0],
    ]  # fmt: skip


def foreign(table: Path, partition: str, kind: pa.DataType) -> None:
    """A table that another program has made, with one row."""
    rows = pa.table({"topic": ["X"], partition: pa.array([None], kind)})
    write_deltalake(str(table), rows, partition_by=[partition])


@pytest.mark.parametrize(
    ("partition", "kind"),
    [("queueId", pa.int32()), ("date", pa.date32()), ("queueMod3", pa.int32())],
)
def test_a_table_of_others_keeps_its_partitions(
    source: Source, table: Path, partition: str, kind: pa.DataType
) -> None:
    """It may have partitions whose values are known here."""
    foreign(table, partition, kind)
    end = source.end
    follower = opened(table, Layout(("topic",)), store_id="a")
    assert follower.position() is None
    source.write(follower, 0, end)
    assert DeltaTable(table).metadata().partition_columns == [partition]
    names = [*dict.fromkeys(("physicalOffset", "queueId", "date", partition))]
    found = [row for row in table_rows(table, *names) if row["physicalOffset"] is not None]
    assert found == [
        {name: (row | plain_values(row))[name] for name in names}
        for row in plain_rows(source.store)
    ]


@pytest.mark.parametrize(
    ("partition", "kind"),
    [("region", pa.string()), ("hour", pa.string()), ("queueMod0", pa.int32())],
)
def test_partitions_without_a_value_are_refused(
    source: Source, table: Path, partition: str, kind: pa.DataType
) -> None:
    """All rows would be in one partition, and readers of the others would miss them."""
    foreign(table, partition, kind)
    follower = opened(table, store_id="a")
    with pytest.raises(UsageError, match=f"the partition column {partition}, .* another one"):
        follower.position()
    assert DeltaTable(table).version() == 0
    # what the error advises
    fill(source, table.with_name("another"))


def test_a_column_of_others_that_must_have_a_value_is_refused(source: Source, table: Path) -> None:
    """Before a row is written: each commit would fail."""
    schema = pa.schema([pa.field("topic", pa.string()), pa.field("region", pa.int32(), False)])
    write_deltalake(str(table), pa.table({"topic": ["X"], "region": [1]}, schema))
    follower = opened(table, store_id="a")
    with pytest.raises(UsageError, match=r"the column region, which must not be null.* another"):
        follower.position()
    # what the error advises
    fill(source, table.with_name("another"))


def test_days_are_apart_in_a_table_of_hours(tmp_path: Path, table: Path) -> None:
    """The same hour of two days is in two partitions, which the date alone finds, too."""
    log = PlainLog(1 << 16)
    for day in (0, 1):
        log.append(topic=b"T", store_timestamp=(24 * day + 5) * HOUR_MS)
    source = plain_source(tmp_path, log)
    fill(source, table, Layout(("hour",)), parts=1)
    first, second = sorted(plain_rows(source.store), key=lambda row: row["date"])
    assert second["date"] - first["date"] == timedelta(1)
    here = [("date", "=", str(second["date"])), ("hour", "=", "5")]
    (file,) = DeltaTable(table).file_uris(file_pruning_predicate=here)
    (offset,) = pq.read_table(file, partitioning=None).column("physicalOffset").to_pylist()
    assert offset == second["physicalOffset"]


def test_the_table_of_bad_records_has_the_same_layout(table: Path) -> None:
    """Both are asked for by one option."""
    layout = Layout(("hour",), ("keys",), 1 << 20)
    assert DeltaTarget(str(table), layout=layout).of_bad_records().layout == layout
