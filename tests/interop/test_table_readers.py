"""Programs that read and change Iceberg tables: the examples of the documentation, and Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from reput.sinks.iceberg.catalog import TableName
from reput.sinks.iceberg.table import IcebergTarget
from tests.interop.environments import jar, python_with
from tests.sinks.test_tables import STORE_ID, Source, plain_source
from tests.support.cli import ROOT
from tests.support.settings import ANY_SETTINGS
from tests.support.wire import PlainLog

DUCKDB = (
    "duckdb==1.5.5", "duckdb-extension-avro==1.5.5", "duckdb-extension-iceberg==1.5.5",
    "pytz==2026.6",
)  # fmt: skip
SPARK = ("pyspark==4.1.4",)
ICEBERG_JAR = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
SQLITE_JAR = "org.xerial:sqlite-jdbc:3.46.1.3"
MESSAGES = 30
ORDERS = 10


class Lake:
    """The table of the documentation, with all messages of a log."""

    def __init__(self, root: Path) -> None:
        log = PlainLog(1 << 16)
        for number in range(MESSAGES):
            log.append(topic=b"Orders" if number % 3 == 0 else b"Other")
        self.root = root
        self.source: Source = plain_source(root, log)
        self.ends = [end for _, end in log.spans]
        self.starts = [start for start, _ in log.spans]
        (root / "lake").mkdir()
        self.properties = {
            "type": "sql", "uri": f"sqlite:///{root}/lake.db", "warehouse": f"file://{root}/lake",
        }  # fmt: skip
        self.target = IcebergTarget(
            TableName("lake", ("sales", "messages")), self.properties, interval_seconds=0.0
        )

    def fill(self, *counts: int) -> None:
        """Write up to each number of messages in turn."""
        for count in counts:
            follower = self.target.open(STORE_ID, ANY_SETTINGS)
            self.source.write(follower, follower.position() or 0, self.ends[count - 1])

    @property
    def metadata(self) -> str:
        """The newest metadata file."""
        return SqlCatalog("lake", **self.properties).load_table("sales.messages").metadata_location

    def offsets(self) -> list[int]:
        """Physical offsets of all rows."""
        table = SqlCatalog("lake", **self.properties).load_table("sales.messages")
        found: list[int] = table.scan().to_arrow().column("physicalOffset").to_pylist()
        return sorted(found)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A table with three commits."""
    lake = Lake(tmp_path)
    lake.fill(7, 15, MESSAGES)
    return lake


def example(word: str) -> str:
    """The example of the documentation in which a word stands."""
    page = (ROOT / "docs" / "tables.md").read_text("utf-8")
    (found,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.S) if word in text)
    return str(found)


def ran(python: Path | str, program: str) -> str:
    """The last line that a program prints."""
    done = subprocess.run(
        [str(python), "-c", program], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.extended
@pytest.mark.parametrize("word", ["to_pandas", "scan_iceberg"])
def test_pandas_and_polars(lake: Lake, word: str) -> None:
    """The examples, with the paths of this table."""
    assert ran(sys.executable, example(word).replace("/data/", f"{lake.root}/")) == str(ORDERS)


@pytest.mark.extended
def test_duckdb(lake: Lake) -> None:
    """The example, with the newest metadata of this table."""
    program = re.sub(r'"file://.*\.metadata\.json"', repr(lake.metadata), example("iceberg_scan"))
    assert ran(python_with("duckdb", DUCKDB), program) == str(ORDERS)


def spark_program(lake: Lake, *statements: str) -> str:
    """The example for Spark, with the paths of this table, and statements before its count."""
    program = example("SparkCatalog").replace("/data/iceberg-spark.jar", str(jar(ICEBERG_JAR)))
    program = program.replace("/data/sqlite-jdbc.jar", str(jar(SQLITE_JAR)))
    program = program.replace("/data/", f"{lake.root}/")
    program = program.replace(".builder", '.builder.master("local[1]")', 1)
    start, count = program.split("print(")
    run = "".join(f"spark.sql({statement!r}).collect()\n" for statement in statements)
    return f"{start}{run}print({count}"


def sql(statements: Sequence[str]) -> list[str]:
    """Statements on this table."""
    return [statement.format(table="lake.sales.messages") for statement in statements]


@pytest.mark.extended
def test_spark(lake: Lake) -> None:
    """The example; then Spark deletes rows by files of positions, compacts and expires. A
    compaction here leaves the deleted rows out, and the table is filled on."""
    python = python_with("spark41", SPARK)
    delete = sql(
        [
            "alter table {table} set tblproperties ('write.delete.mode' = 'merge-on-read')",
            "delete from {table} where physicalOffset = %d" % lake.starts[3],  # noqa: UP031
        ]
    )
    assert ran(python, spark_program(lake, *delete)) == str(ORDERS - 1)
    lake.target.upkeep().compact()
    kept = [offset for offset in lake.starts if offset != lake.starts[3]]
    assert lake.offsets() == kept
    upkeep = sql(
        [
            "call lake.system.rewrite_data_files(table => 'sales.messages', options => "
            "map('rewrite-all', 'true'))",
            "call lake.system.expire_snapshots(table => 'sales.messages', retain_last => 1, "
            "older_than => timestamp '2999-01-01 00:00:00')",
            "call lake.system.rewrite_manifests('sales.messages')",
        ]
    )
    assert ran(python, spark_program(lake, *upkeep)) == str(ORDERS - 1)
    follower = lake.target.open(STORE_ID, ANY_SETTINGS)
    assert follower.position() == lake.ends[-1]
    lake.target.upkeep(1).expire()
    assert lake.offsets() == kept
