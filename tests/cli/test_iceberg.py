"""``reput run --iceberg`` as a user calls it: a real table, read with another program's library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.sinks.test_tables import Source
from tests.support.cli import Call
from tests.support.plain_rows import inflated, is_internal
from tests.support.plain_rows import plain_rows as plain_rows_of

pytestmark = pytest.mark.usefixtures("spark")


def test_a_run_fills_a_table_and_the_next_one_goes_on(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """With an interval, an identity and columns; `status` shows where the table is."""
    store, output = golden("broker"), tmp_path / "output"
    uri, warehouse = f"sqlite:///{tmp_path}/lake.db", f"file://{tmp_path}/lake"
    catalogs = tmp_path / "catalogs.toml"
    catalogs.write_text(f'[lake]\ntype = "sql"\nuri = "{uri}"\nwarehouse = "{warehouse}"\n')
    columns = tmp_path / "columns.toml"
    columns.write_text('[Orders]\nid = "long"\n')
    run = (
        "run", store, "--output", output, "--once", "--iceberg", "lake.sales.messages",
        "--iceberg-config", catalogs, "--iceberg-schema", columns, "--iceberg-store-id", "a",
    )  # fmt: skip
    for _ in range(2):
        done = call(*run)
        assert done.returncode == 0, done.stderr
    catalog = SqlCatalog("lake", uri=uri, warehouse=warehouse)
    rows = catalog.load_table("sales.messages").scan().to_arrow()
    source = Source(store)
    plain = plain_rows_of(source.log, source.log.min_offset, source.end, inflated)
    expected = [row["physicalOffset"] for row in plain if not is_internal(row)]
    assert sorted(rows.column("physicalOffset").to_pylist()) == expected
    assert {*rows.column("storeId").to_pylist()} == {"a"}
    assert rows.schema.field("json").type.field("id").name == "id"
    shown = json.loads(call("status", store, "--output", output, "--json").stdout)
    (follower,) = shown["followers"]
    assert (follower["name"], follower["target"]) == ("iceberg", "lake.sales.messages")
    assert follower["lag_bytes"] == 0
