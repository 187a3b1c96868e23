"""``reput run --iceberg`` with a real REST catalog: Iceberg's own server, whose tables are in
object storage."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from reput.sinks.iceberg.catalog import TableName, open_catalog
from reput.sinks.iceberg.table import IcebergTarget
from reput.store.errors import StoreError
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.interop.restcatalog import RestServer
from tests.sinks.test_tables import STORE_ID, Source
from tests.support import tableacts
from tests.support.cli import Call
from tests.support.filledtables import FilledTable, Filling
from tests.support.killedfillers import kill_fillers
from tests.support.plain_rows import inflated, is_internal
from tests.support.plain_rows import plain_rows as plain_rows_of
from tests.support.settings import ANY_SETTINGS

MESSAGES = 12


@pytest.fixture
def table(rest_server: RestServer, request: pytest.FixtureRequest) -> FilledTable:
    """A table of the test's own, which does not exist yet."""
    return FilledTable(request.node.name, catalog=rest_server.properties())


@pytest.fixture
def filling(tmp_path: Path) -> Filling:
    """A log."""
    return Filling.of(tmp_path, MESSAGES)


def several(table: FilledTable) -> Iterator[FilledTable]:
    """Tables that do not exist yet."""
    return (replace(table, name=f"{table.name}_{number}") for number in itertools.count())


def fill_up_to(filling: Filling, table: FilledTable, *counts: int) -> None:
    """Write up to each number of messages, each by a follower of its own."""
    for count in counts:
        follower = table.follower()
        filling.source.write(follower, follower.position() or 0, filling.ends[count - 1])
        follower.close()


def in_order(rows: pa.Table) -> pa.Table:
    """The public columns, by physical offset."""
    return rows.select(ROWS_SCHEMA.names).sort_by("physicalOffset")


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
def test_a_run_fills_a_table_whose_rows_are_those_of_an_export(
    golden: Callable[[str], Path], tmp_path: Path, call: Call, rest_server: RestServer
) -> None:
    """The namespace has two parts."""
    store, output = golden("broker"), tmp_path / "output"
    properties = rest_server.properties()
    catalogs = tmp_path / "catalogs.toml"
    lines = (f"'{name}' = '{value}'\n" for name, value in properties.items())
    catalogs.write_text(f"[lake]\n{''.join(lines)}", "utf-8")
    done = call(
        "run", store, "--output", output, "--once", "--iceberg", "lake.sales.eu.messages",
        "--iceberg-config", catalogs,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = call("export", store, tmp_path / "export")
    assert done.returncode == 0, done.stderr
    table = open_catalog("lake", properties).load_table(("sales", "eu", "messages"))
    rows = in_order(table.scan().to_arrow())
    exported = in_order(pq.read_table(tmp_path / "export"))
    assert rows.to_pylist() == exported.to_pylist()
    source = Source(store)
    plain = plain_rows_of(source.log, source.log.min_offset, source.end, inflated)
    expected = [row for row in plain if not is_internal(row)]
    for name in ("physicalOffset", "topic", "queueOffset", "body"):
        assert rows.column(name).to_pylist() == [row[name] for row in expected]


def test_rows_are_in_object_storage(filling: Filling, table: FilledTable) -> None:
    """Each of them once, however many followers came and went."""
    fill_up_to(filling, table, 1, 4, 5, MESSAGES)
    filling.check(table)
    assert table.iceberg().location().startswith("s3://")


def test_of_two_followers_at_a_position_one_is_refused(
    filling: Filling, table: FilledTable
) -> None:
    """It learns the other one's position, and goes on from there."""
    fill_up_to(filling, table, 4)
    ours, theirs = table.follower(), table.follower()
    position = ours.position()
    assert theirs.position() == position == filling.ends[3]
    filling.source.write(theirs, position, filling.ends[5])
    refused = f"the table is at {filling.ends[5]}, not at {position}: another writer has the "
    with pytest.raises(StoreError, match=f"{refused}identity {STORE_ID}"):
        filling.source.write(ours, position, filling.ends[7])
    assert ours.position() == filling.ends[5]
    filling.source.write(ours, filling.ends[5], filling.ends[-1])
    filling.check(table)


def test_two_followers_with_one_identity_write_every_row_once(
    filling: Filling, table: FilledTable, seed: int
) -> None:
    """They fill the table at the same time, from its creation on."""
    errors = filling.race(table, random.Random(seed))
    filling.check(table)
    print(f"errors={len(errors)}")


def test_of_two_followers_that_begin_a_table_one_is_refused(
    filling: Filling, table: FilledTable
) -> None:
    """The server makes it once."""
    ours, theirs = table.follower(), table.follower()
    assert ours.position() is theirs.position() is None
    filling.source.write(theirs, 0, filling.ends[3])
    with pytest.raises(StoreError, match="another writer has made the table"):
        filling.source.write(ours, 0, filling.ends[3])
    fill_up_to(filling, table, MESSAGES)
    filling.check(table)


def roll_back(table: Table) -> None:
    """Bring the state of the oldest mark back."""
    first = [one for one in tableacts.line(table) if tableacts.is_marked(one)][-1]
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()


def test_rows_that_were_rolled_back_come_again(filling: Filling, table: FilledTable) -> None:
    """Another program has rolled back, and appended rows of its own after that."""
    fill_up_to(filling, table, 4, 8, MESSAGES)
    opened = table.iceberg()
    roll_back(opened)
    follower = table.follower()
    assert follower.position() == filling.ends[3]
    tableacts.append(table, random.Random(0))
    assert follower.position() == filling.ends[3]
    fill_up_to(filling, table, MESSAGES)
    filling.check(table)
    assert tableacts.foreign_count(table) == 1


def test_a_position_whose_snapshots_have_expired(filling: Filling, table: FilledTable) -> None:
    """Another program's commit is the only one that is left."""
    fill_up_to(filling, table, 4, 8)
    tableacts.append(table, random.Random(0))
    opened = table.iceberg()
    old = [one.snapshot_id for one in tableacts.line(opened)[1:]]
    opened.maintenance.expire_snapshots().by_ids(old).commit()
    assert len(table.iceberg().snapshots()) == 1
    fill_up_to(filling, table, MESSAGES)
    filling.check(table)


def test_a_follower_that_others_overtake_writes_its_rows_once(
    filling: Filling, table: FilledTable, seed: int
) -> None:
    """They commit between its load and its write."""
    rng = random.Random(seed)
    fill_up_to(filling, table, 3)
    for count, act in ((5, "append"), (8, "compact"), (10, "expire"), (MESSAGES, "set_property")):
        follower = table.follower()
        position = follower.position()
        tableacts.ACTS[act](table, rng)
        filling.source.write(follower, position or 0, filling.ends[count - 1])
    filling.check(table)
    assert tableacts.foreign_count(table) == 1


def test_a_table_that_belongs_to_another_catalog_of_the_same_server(
    filling: Filling, table: FilledTable
) -> None:
    """The name that a user gives a catalog is no part of the table's."""
    fill_up_to(filling, table, 4)
    name = TableName("other", table.identifier)
    follower = IcebergTarget(name, table.catalog).open(STORE_ID, ANY_SETTINGS)
    assert follower.position() == filling.ends[3]
    filling.source.write(follower, filling.ends[3], filling.ends[-1])
    filling.check(table)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_rows_are_there_once_whatever_another_process_does_to_ten_tables(
    tmp_path: Path, table: FilledTable, seed: int
) -> None:
    """It appends, compacts, expires and rolls back at random moments."""
    rng, done = random.Random(seed), Counter[str]()
    for number, one in enumerate(itertools.islice(several(table), 10)):
        filling = Filling.of(tmp_path / str(number), 60)
        done += tableacts.fill_while_acting(filling, one, rng)
    print(f"acts and errors: {dict(done)}")
    assert done["roll_back"] > 0


@pytest.mark.extended
def test_killed_fillers_leave_every_row_once(tmp_path: Path, table: FilledTable, seed: int) -> None:
    """They are killed at random moments."""
    assert kill_fillers(tmp_path, several(table), messages=12, count=3, seed=seed) >= 3


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_three_hundred_killed_fillers_leave_every_row_once(
    tmp_path: Path, table: FilledTable, seed: int
) -> None:
    """The same, more often."""
    assert kill_fillers(tmp_path, several(table), messages=40, count=300, seed=seed) >= 300
