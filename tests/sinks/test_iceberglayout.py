"""Layouts of Iceberg tables: every row once, in the partition where readers look for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from reput.sinks.tables import ordering
from reput.sinks.tables.layout import ICEBERG_LAYOUT, Layout
from reput.store.errors import UsageError
from tests.sinks.test_tables import STORE_ID, Source, plain_source
from tests.support.settings import ANY_SETTINGS
from tests.support.tableformats import (
    FORMATS,
    ICEBERG_TABLE,
    iceberg_catalog,
    iceberg_table,
    iceberg_target,
)
from tests.support.wire import PlainLog

HOUR_MS = 3_600_000
MESSAGES = 40
TIMES = ("storeTimestamp", "bornTimestamp")


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Topics, queues and hours, some before 1970, in no order."""
    log = PlainLog(1 << 16)
    for number in range(MESSAGES):
        log.append(
            topic=b"T%d" % (number * 7 % 3), queue_id=number * 3 % 5,
            store_timestamp=(number * 5 % 4 - 2) * HOUR_MS + number,
        )  # fmt: skip
    return plain_source(tmp_path, log)


def fill(source: Source, root: Path, layout: Layout = ICEBERG_LAYOUT) -> None:
    """A table with all rows, by two commits."""
    target = iceberg_target(root)
    follower = type(target)(target.table, target.catalog, interval_seconds=0.0, layout=layout).open(
        STORE_ID, ANY_SETTINGS
    )
    start = follower.position() or 0
    for end in source.cuts(2):
        source.write(follower, start, end)
        start = end


def rows_of_file(task: Any) -> list[dict[str, Any]]:
    """Rows of a data file, in its order."""
    path = unquote(urlsplit(task.file.file_path).path)
    rows: list[dict[str, Any]] = pq.read_table(path, partitioning=None).to_pylist()
    return rows


def test_partitions_and_order_are_those_declared(source: Source, tmp_path: Path) -> None:
    """The values are those by which the library finds partitions again."""
    layout = ICEBERG_LAYOUT.declared("topic,hour,queue(3)", "queueOffset,topic", 1 << 20)
    fill(source, tmp_path / "lake", layout)
    table = iceberg_table(tmp_path / "lake")
    assert [(one.name, str(one.transform)) for one in table.spec().fields] == [
        ("topic", "identity"), ("storeTimestamp_hour", "hour"), ("queueId_queue", "bucket[3]"),
    ]  # fmt: skip
    assert table.properties["write.target-file-size-bytes"] == str(1 << 20)
    bucket = BucketTransform(3).transform(IntegerType())
    for task in table.scan().plan_files():
        topic, hour, queue = (task.file.partition[at] for at in range(3))
        rows = rows_of_file(task)
        assert {row["topic"] for row in rows} == {topic}
        assert {int(row["storeTimestamp"].timestamp() // 3600) for row in rows} == {hour}
        assert {bucket(row["queueId"]) for row in rows} == {queue}
        order = [(row["queueOffset"], row["topic"]) for row in rows]
        assert order == sorted(order)
        assert task.file.sort_order_id == table.sort_order().order_id
    found = FORMATS["iceberg"].rows(tmp_path / "lake", "physicalOffset", "topic", "queueId")
    assert len(found) == MESSAGES
    for topic in ("T0", "T1", "T2"):
        for queue in range(5):
            here = table.scan(f"topic = '{topic}' and queueId = {queue}").to_arrow()
            assert sorted(here.column("physicalOffset").to_pylist()) == [
                row["physicalOffset"] for row in found
                if (row["topic"], row["queueId"]) == (topic, queue)
            ]  # fmt: skip
    files = len(list(table.scan().plan_files()))
    done = iceberg_target(tmp_path / "lake").upkeep().compact()
    assert (done.replaced_files > 0) == (done.new_files > 0) == (files > 12)
    again = FORMATS["iceberg"].rows(tmp_path / "lake", "physicalOffset", "topic", "queueId")
    assert again == found


@pytest.mark.parametrize("more", [(), (IdentityTransform(),), (DayTransform(),)])
@pytest.mark.parametrize("first", [IdentityTransform(), DayTransform()])
def test_a_table_of_others_keeps_its_layout(
    source: Source, tmp_path: Path, first: Any, more: tuple[Any, ...]
) -> None:
    """Without partitions here; an order that is more than columns, in any of its places, is neither
    made nor claimed."""
    root = tmp_path / "lake"
    catalog = iceberg_catalog(root)
    catalog.create_namespace(ICEBERG_TABLE.namespace)
    times = (NestedField(at, name, TimestamptzType()) for at, name in enumerate(TIMES, 1))
    own = SortOrder(*(SortField(at, each) for at, each in enumerate((first, *more), 1)))
    catalog.create_table(ICEBERG_TABLE.identifier, Schema(*times), sort_order=own)
    fill(source, root, Layout(("hour",)))
    table = iceberg_table(root)
    tasks = list(table.scan().plan_files())
    assert len(tasks) == 2
    for task in tasks:
        rows = rows_of_file(task)
        order: list[Any] = [(row["topic"], row["physicalOffset"]) for row in rows]
        expected = None
        if all(isinstance(each, IdentityTransform) for each in (first, *more)):
            order = [row["storeTimestamp"] for row in rows]
            expected = table.sort_order().order_id
        assert order == sorted(order)
        assert task.file.sort_order_id == expected


def test_a_descending_order_is_kept(source: Source, tmp_path: Path) -> None:
    """The table says so, which others have made."""
    root = tmp_path / "lake"
    catalog = iceberg_catalog(root)
    catalog.create_namespace(ICEBERG_TABLE.namespace)
    schema = Schema(NestedField(1, "physicalOffset", LongType(), required=True))
    descending = SortField(1, IdentityTransform(), SortDirection.DESC)
    catalog.create_table(ICEBERG_TABLE.identifier, schema, sort_order=SortOrder(descending))
    fill(source, root)
    for task in iceberg_table(root).scan().plan_files():
        offsets = [row["physicalOffset"] for row in rows_of_file(task)]
        assert offsets == sorted(offsets, reverse=True)


def test_damage_has_no_topic_and_its_own_partition(tmp_path: Path) -> None:
    """An empty name would be one that a reader could ask for."""
    log = PlainLog(1 << 16)
    for _ in range(3):
        log.append(topic=b"T")
    source = plain_source(tmp_path, log)
    (path,) = (path for path in (tmp_path / "store").rglob("0*") if path.is_file())
    with path.open("r+b") as file:
        file.seek(log.spans[1][0] + 4)
        file.write(b"\0\0\0\1")
    fill(source, tmp_path / "lake", Layout(("topic",)))
    files = iceberg_table(tmp_path / "lake").inspect.files().column("partition").to_pylist()
    assert {one["topic"] for one in files} == {None, "T"}
    assert iceberg_table(tmp_path / "lake").scan("topic is null").to_arrow().num_rows == 1


def test_nulls_are_where_the_order_has_them(tmp_path: Path) -> None:
    """First, as in a table that is made here."""
    log = PlainLog(1 << 16)
    for keys in (b"KEYS\x01a\x02", b"", b"KEYS\x01b\x02"):
        log.append(topic=b"T", properties=keys)
    source = plain_source(tmp_path, log)
    fill(source, tmp_path / "lake", Layout(("day",), ("keys",)))
    iceberg_target(tmp_path / "lake").upkeep().compact()
    (task,) = iceberg_table(tmp_path / "lake").scan().plan_files()
    assert [row["keys"] for row in rows_of_file(task)] == [None, "a", "b"]


@pytest.mark.parametrize("direction", SortDirection)
@pytest.mark.parametrize("nulls", NullOrder)
def test_nulls_are_where_a_table_of_others_has_them(
    tmp_path: Path, direction: SortDirection, nulls: NullOrder
) -> None:
    """First or last, whichever way the values go."""
    log, root = PlainLog(1 << 16), tmp_path / "lake"
    for keys in (b"KEYS\x01a\x02", b"", b"KEYS\x01b\x02"):
        log.append(topic=b"T", properties=keys)
    catalog = iceberg_catalog(root)
    catalog.create_namespace(ICEBERG_TABLE.namespace)
    order = SortOrder(SortField(1, IdentityTransform(), direction, nulls))
    schema = Schema(NestedField(1, "keys", StringType()))
    catalog.create_table(ICEBERG_TABLE.identifier, schema, sort_order=order)
    source = plain_source(tmp_path, log)
    follower = iceberg_target(root).open(STORE_ID, ANY_SETTINGS)
    follower.position()
    source.write(follower, 0, source.cuts(1)[0])
    (task,) = iceberg_table(root).scan().plan_files()
    values = ["a", "b"] if direction is SortDirection.ASC else ["b", "a"]
    expected = [None, *values] if nulls is NullOrder.NULLS_FIRST else [*values, None]
    assert [row["keys"] for row in rows_of_file(task)] == expected


def test_a_file_of_several_parts_claims_no_order(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction sorts no more rows at once than an append."""
    fill(source, tmp_path / "lake")
    monkeypatch.setattr(ordering, "CHUNK_BYTES", 1)
    iceberg_target(tmp_path / "lake").upkeep().compact()
    tasks = list(iceberg_table(tmp_path / "lake").scan().plan_files())
    assert [task.file.sort_order_id for task in tasks] == [None] * len(tasks)
    assert sum(task.file.record_count for task in tasks) == MESSAGES


def test_rows_without_a_time_have_a_partition(tmp_path: Path) -> None:
    """A time that no timestamp holds is null."""
    log = PlainLog(1 << 16)
    none = -(1 << 62)
    for time_ms in (none, 0, none, 0, -1, none, -1, none):
        log.append(topic=b"T", store_timestamp=time_ms)
    source = plain_source(tmp_path, log)
    fill(source, tmp_path / "lake", Layout(("hour", "topic")))
    files = iceberg_table(tmp_path / "lake").inspect.files().column("partition").to_pylist()
    assert sorted((one["storeTimestamp_hour"] for one in files), key=str) == [-1, 0, None, None]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (("month", None, None), "not by 'month'"),
        (("queue(0)", None, None), "not by 'queue"),
        (("queue", None, None), "not by 'queue'"),
        (("day,day", None, None), "has a part twice"),
        (("queue(2),day,queue(4)", None, None), "one queue.N., not by queue.2., day, queue.4."),
        ((None, "body", None), "not by 'body'"),
        ((None, "topic,topic", None), "has a part twice"),
    ],
)
def test_a_layout_that_is_none_is_named(given: tuple[Any, Any, Any], what: str) -> None:
    """With what there is."""
    with pytest.raises(UsageError, match=what):
        ICEBERG_LAYOUT.declared(*given)


def test_defaults_of_a_layout() -> None:
    """Blanks do not matter, and an empty list of partitions is none."""
    assert ICEBERG_LAYOUT.declared(None, None, None) == ICEBERG_LAYOUT
    found = ICEBERG_LAYOUT.declared("", " topic , keys", None)
    assert found == Layout((), ("topic", "keys"), 128 << 20)
