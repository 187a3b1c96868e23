"""``reput run --delta`` with a layout, as a user calls it: the rows are those of an export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from tests.support.cli import Call, json_object

pytestmark = pytest.mark.usefixtures("spark")


def test_a_table_of_hours_and_buckets_has_what_an_export_has(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """From a configuration file; a later run that asks for another layout goes on with this one."""
    store, output, table = golden("broker"), tmp_path / "output", tmp_path / "table"
    config = tmp_path / "reput.toml"
    config.write_text(
        f'[run]\ndelta = "{table}"\ndelta-partition-by = "hour,queue(2)"\n'
        'delta-sort-by = "tags,physicalOffset"\ndelta-file-size = "32m"\n'
    )
    run = "run", store, "--output", output, "--once"
    for words in (
        ("--config", config, *run),
        (*run, "--delta", table, "--delta-partition-by", "topic", "--delta-sort-by", "keys"),
    ):
        done = call(*words)
        assert done.returncode == 0, done.stderr
    opened = DeltaTable(table)
    assert opened.metadata().partition_columns == ["date", "hour", "queueMod2"]
    assert opened.metadata().configuration == {"delta.targetFileSize": str(32 << 20)}
    assert call("export", store, tmp_path / "export").returncode == 0
    exported = duckdb.read_parquet(str(tmp_path / "export" / "**" / "*.parquet"))
    columns = ", ".join(name for name in exported.columns if name not in ("date", "properties"))
    # of hours and buckets DuckDB knows the names of directories alone
    files = duckdb.read_parquet(opened.file_uris(), hive_partitioning=True)
    expected = exported.query(
        "exported",
        f"select {columns}, (storeTimestamp at time zone 'UTC')::date, "
        "hour(storeTimestamp at time zone 'UTC'), queueId % 2 from exported "
        "order by physicalOffset",
    ).fetchall()
    assert expected
    found = files.query(
        "files", f"select {columns}, date, hour, queueMod2 from files order by physicalOffset"
    )
    assert found.fetchall() == expected
    done = json_object(call("table", "compact", table, "--json"))
    assert done["replaced_files"] == 0, "each partition has one file"
