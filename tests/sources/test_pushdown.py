"""Filters that Spark pushes: what is found without them is found with them, and less is read.

Those of queues are in ``test_queue_rows``, too, with the units that they leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringContains,
)
from pyspark.sql.pandas.types import from_arrow_schema

import reput.sources
from reput.sources.commitlog import CommitLogBatchReader, PushingLogReader
from reput.sources.commitlogoptions import CommitLogOptions
from reput.sources.pushdown import SETTING
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.sources.test_rows import EVERYTHING
from tests.support.golden import unpack_golden

SOURCES = ("rocketmq-commitlog", "rocketmq-consumequeue")
CONDITIONS = (
    "topic = 'Topic_0'",
    "topic in ('Topic_0', 'Topic_3') and queueId = 1",
    "tags = 'Tag4' and topic <> 'Topic_0'",
    "storeTimestamp > timestamp_millis({middle_ms}) "
    "and storeTimestamp <= timestamp_millis({late_ms})",
    "physicalOffset >= 262144 and physicalOffset < 400000",
    "queueOffset = 5000000000 and queueId = 1",
    "corruptReason is null and keys = 'bk0'",
    "bornTimestamp < timestamp'1970-01-01'",
)  # fmt: skip


def damaged(store: Path) -> Path:
    """The store without a file in the middle, and with damage in another one."""
    files = sorted((store / "commitlog").iterdir())
    with files[1].open("r+b") as log:
        log.seek(5000)
        log.write(b"\xff" * 3000)
    files[3].unlink()
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A golden store, damaged."""
    return damaged(unpack_golden("plain", tmp_path_factory.mktemp("pushdown")))


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[Callable[[bool], None]]:
    """Turns the setting of the session."""
    reput.sources.register(spark)
    yield lambda is_on: spark.conf.set(SETTING, is_on)
    spark.conf.unset(SETTING)


def table(spark: SparkSession, source: str, store: Path) -> DataFrame:
    """A table of whatever there still is."""
    reader = spark.read.format(source).option("failOnDataLoss", "false")
    return reader.option("includeProperties", "false").load(str(store))


@pytest.mark.parametrize("source", SOURCES)
def test_registered_sources_are_those_of_the_session(
    spark: SparkSession, golden: Callable[[str], Path], source: str
) -> None:
    """They are, whatever it has found under their names before."""

    class Another(DataSource):
        @classmethod
        def name(cls) -> str:
            return source

        def schema(self) -> str:
            return "another int"

    spark.dataSource.register(Another)
    assert table(spark, source, golden("plain")).columns == ["another"]
    reput.sources.register(spark)
    assert "physicalOffset" in table(spark, source, golden("plain")).columns


@pytest.mark.extended
@pytest.mark.parametrize("source", SOURCES)
def test_pushed_filters_find_the_same_rows(
    spark: SparkSession, store: Path, pushing: Callable[[bool], None], source: str
) -> None:
    """Conditions on text, numbers and times, in a log with a lost file and damage."""
    pushing(False)
    frame = table(spark, source, store)
    times = sorted(
        row[0] for row in frame.selectExpr("unix_millis(storeTimestamp)").collect() if row[0]
    )
    given = {"middle_ms": times[len(times) // 2], "late_ms": times[-3]}
    conditions = [each.format(**given) for each in CONDITIONS]
    found = []
    for is_on in (False, True):
        pushing(is_on)
        frames = [table(spark, source, store).where(each) for each in conditions]
        found.append([each.orderBy("physicalOffset", "queueId").collect() for each in frames])
    assert found[0] == found[1]
    counts = list(map(len, found[0]))
    assert sum(map(bool, counts)) == 6


def test_rows_that_filters_rule_out_do_not_leave_the_task(
    spark: SparkSession, golden: Callable[[str], Path], pushing: Callable[[bool], None]
) -> None:
    """Spark counts the rows that a scan gives it; nobody has to give an option."""
    store = golden("plain")
    pushing(True)
    for source in SOURCES:
        for condition in ("topic = 'Topic_0' and queueId = 2", "storeTimestamp >= '{}'"):
            times = table(spark, source, store).select("storeTimestamp").collect()
            late = sorted(times)[-9].storeTimestamp
            frame = table(spark, source, store).where(condition.format(late))
            count = len(frame.collect())
            assert scanned(frame) == count > 0
    pushing(False)
    whole = table(spark, SOURCES[0], store).where("topic = 'Topic_0'")
    assert len(whole.collect()) < scanned(whole)


def scanned(frame: DataFrame) -> int:
    """The rows that the scan of a frame gave when it was collected last."""
    plan: Any = frame._jdf.queryExecution().executedPlan()
    while not plan.children().isEmpty():
        plan = plan.children().head()
    return int(plan.metrics().apply("numOutputRows").value())


def rows_of(reader: CommitLogBatchReader) -> list[dict[str, Any]]:
    """Every row, without Spark."""
    return [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "kind", [GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualTo]
)
def test_bounds_of_offsets_limit_what_is_planned(
    store: Path, kind: Callable[[tuple[str, ...], int], Filter]
) -> None:
    """At records, within them, in damage, in a lost file, and beyond both ends."""
    options = {"path": str(store), "failOnDataLoss": "false"} | {
        k: str(v) for k, v in EVERYTHING.items()
    }
    schema = from_arrow_schema(ROWS_SCHEMA)
    rows = rows_of(CommitLogBatchReader(CommitLogOptions(options), schema))
    assert {row["corruptReason"] for row in rows} > {None, "segment_deleted"}
    compare: dict[Any, Callable[[int, int], bool]] = {
        GreaterThan: int.__gt__, GreaterThanOrEqual: int.__ge__, LessThan: int.__lt__,
        LessThanOrEqual: int.__le__, EqualTo: int.__eq__,
    }  # fmt: skip
    starts = [row["physicalOffset"] for row in rows]
    near = [at + step for at in starts[::199] for step in (-1, 0, 1)]
    bad = [row["physicalOffset"] for row in rows if row["corruptReason"]]
    for bound in [0, *near, *bad, *(at + 700 for at in bad), 10**7]:
        reader = PushingLogReader(CommitLogOptions(options), schema)
        reader.pushFilters([kind(("physicalOffset",), bound)])
        expected = [row for row in rows if compare[kind](row["physicalOffset"], bound)]
        assert rows_of(reader) == expected, bound


def test_a_narrow_range_reads_little_of_the_log(store: Path) -> None:
    """The planned bytes are those of the records between the bounds."""
    options = {"path": str(store), "failOnDataLoss": "false"}
    reader = PushingLogReader(CommitLogOptions(options), from_arrow_schema(ROWS_SCHEMA))
    column = ("physicalOffset",)
    reader.pushFilters([GreaterThan(column, 1_200_000), LessThan(column, 1_210_000)])
    (part,) = reader.partitions()
    ((start, end),) = part.ranges  # type: ignore[attr-defined]
    assert 1_199_000 < start <= end < 1_211_000


@pytest.mark.usefixtures("spark")
def test_values_that_a_column_cannot_have_are_left_to_spark(store: Path) -> None:
    """So are filters that are not understood."""
    options = {"path": str(store), "failOnDataLoss": "false"}
    schema = from_arrow_schema(ROWS_SCHEMA)
    whole = rows_of(CommitLogBatchReader(CommitLogOptions(options), schema))
    odd: list[Filter] = [
        EqualTo(("queueId",), 1 << 40), In(("queueId",), (1, 1 << 40)), EqualTo(("topic",), 7),
        GreaterThan(("storeTimestamp",), "late"), LessThan(("queueId",), 0.5),
        StringContains(("topic",), "nothing"), EqualTo(("properties", "a"), "b"),
        EqualTo(("unknown",), 1),
    ]  # fmt: skip
    for each in odd:
        reader = PushingLogReader(CommitLogOptions(options), schema)
        assert list(reader.pushFilters([each])) == [each]
        assert rows_of(reader) == whole, each
    instant = datetime(2100, 1, 1, tzinfo=UTC)
    reader = PushingLogReader(CommitLogOptions(options), schema)
    reader.pushFilters([GreaterThan(("storeTimestamp",), instant)])
    assert rows_of(reader) == []
