"""A Delta table that somebody restored to an older version gets the rows that it lost, once."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from reput.sinks.delta.table import DeltaTarget
from reput.sinks.tables.follower import TableFollower
from reput.store.errors import StoreError
from tests.sinks.test_tables import STORE_ID, plain_source
from tests.support.settings import ANY_SETTINGS
from tests.support.tables import plain_columns, plain_rows, table_rows
from tests.support.wire import PlainLog

PARTS = 4
FOREIGN = "foreign"


class Written:
    """A log of PARTS messages, and a table with a version for each."""

    def __init__(self, tmp_path: Path) -> None:
        log = PlainLog(1 << 16)
        for number in range(PARTS):
            log.append(topic=b"T", body=b"%d" % number, queue_offset=number)
        self.source = plain_source(tmp_path, log)
        self.ends = [end for _, end in log.spans]
        self.table = tmp_path / "table"
        self.go_on(self.follower())

    def follower(self, **options: str) -> TableFollower:
        """One that knows nothing but the table."""
        return DeltaTarget(str(self.table), **options).open(STORE_ID, ANY_SETTINGS)

    def go_on(self, follower: TableFollower) -> int | None:
        """Write the rest of the log, a message at a time; the position before."""
        reached = follower.position()
        start = reached or 0
        for end in self.ends:
            if end > start:
                self.source.write(follower, start, end)
                start = end
        return reached

    def check(self) -> None:
        """The table has all of the log, once."""
        assert plain_columns(self.table) == plain_rows(self.source.store)


def append_foreign_row(table: Path) -> None:
    """A commit of another program: a row of ours under another topic and store."""
    opened = DeltaTable(table)
    row = opened.to_pyarrow_table().slice(0, 1)
    for name in ("topic", "storeId"):
        at = row.schema.get_field_index(name)
        row = row.set_column(at, row.schema.field(name), pa.array([FOREIGN], row.schema.types[at]))
    write_deltalake(opened, row, mode="append")


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Four versions, 0 to 3."""
    return Written(tmp_path)


def test_a_restored_table_gets_the_rows_that_it_lost(written: Written) -> None:
    """By the version's number, by its time, twice in a row, and with another program's commits
    since; then the restored position no longer matters."""
    for version in (1, 0):
        DeltaTable(written.table).restore(version)
    append_foreign_row(written.table)
    assert written.go_on(written.follower()) == written.ends[0]
    assert written.follower().position() == written.ends[-1]
    ours = [row for row in plain_columns(written.table) if row["topic"] != FOREIGN]
    assert ours == plain_rows(written.source.store)


def test_a_table_restored_to_a_time_or_to_a_restored_version(written: Written) -> None:
    """RESTORE names either; and the version may itself be one that a RESTORE made."""
    now = time.time()
    for commit in (written.table / "_delta_log").iterdir():
        os.utime(commit, (now - 3600, now - 3600))
    moment = datetime.fromtimestamp(now - 1800, UTC)
    DeltaTable(written.table).restore(1)
    assert written.go_on(written.follower()) == written.ends[1]
    DeltaTable(written.table).restore(moment)
    assert written.go_on(written.follower()) == written.ends[3]
    DeltaTable(written.table).restore(4)
    assert written.go_on(written.follower()) == written.ends[1]
    written.check()


def test_a_running_follower_notices_a_restore(written: Written) -> None:
    """Between two writes and during one: the write fails, and the position is the rows'."""
    follower = written.follower()
    for version in (1, 2):
        assert follower.position() == written.ends[-1]
        during = written.source.rows(written.ends[-1], written.ends[-1])
        DeltaTable(written.table).restore(version)
        with pytest.raises(Exception, match="Metadata changed"):
            follower.write(written.ends[-1], written.ends[-1] + 1, during)
        assert written.go_on(follower) == written.ends[version]
    written.check()


def test_one_store_of_a_table_that_was_restored_from_before_its_rows(written: Written) -> None:
    """It begins anew, the other one goes on; each finds its own last commit."""
    late, name = written.follower(store_id="late"), STORE_ID
    assert written.go_on(late) is None
    DeltaTable(written.table).restore(2)
    assert written.go_on(written.follower(store_id="late")) is None
    assert written.go_on(written.follower(store_id=name)) == written.ends[2]
    for store in ("late", name):
        rows = table_rows(written.table, "storeId", "physicalOffset")
        offsets = [row["physicalOffset"] for row in rows if row["storeId"] == store]
        assert offsets == [0, *written.ends[:-1]]


def test_rows_of_a_cut_log_that_came_back_are_refused(written: Written) -> None:
    """The table was restored to a version from before the log was cut: messages that are no longer
    there. What the refusal advises works."""
    written.follower().truncate(written.ends[1])
    written.go_on(written.follower())
    DeltaTable(written.table).restore(3)
    with pytest.raises(StoreError, match=r"cut at \d+ since: restore it to version 4 or a later"):
        written.follower().position()
    DeltaTable(written.table).restore(4)
    assert written.go_on(written.follower()) == written.ends[1]
    written.check()
    DeltaTable(written.table).restore(0)
    assert written.go_on(written.follower()) == written.ends[0], "older than the cut"
    written.check()


@pytest.mark.parametrize(
    ("cuts", "restored", "named"), [((0, 2), 2, 4), ((2, 0), 1, 6)], ids=["first", "last"]
)
def test_rows_that_one_of_several_cuts_took_are_refused(
    written: Written, cuts: tuple[int, int], restored: int, named: int
) -> None:
    """Whichever cut it was; the version that it made is the one to restore."""
    for cut in cuts:
        written.follower().truncate(written.ends[cut])
        last = written.go_on(written.follower()) if cut == cuts[0] else None
        assert last in (None, written.ends[cut])
    DeltaTable(written.table).restore(restored)
    what = f"cut at {written.ends[0]} since: restore it to version {named} or a later"
    with pytest.raises(StoreError, match=what):
        written.follower().position()
    DeltaTable(written.table).restore(named)
    assert written.go_on(written.follower()) == written.ends[0]
    written.check()


def test_a_version_that_ends_where_the_log_was_cut_is_taken(written: Written) -> None:
    """It is older than the cut, and has no row of what the log has lost."""
    written.follower().truncate(written.ends[1])
    written.go_on(written.follower())
    DeltaTable(written.table).restore(1)
    assert written.go_on(written.follower()) == written.ends[1]
    written.check()


def test_a_version_that_cannot_be_read_is_refused(written: Written) -> None:
    """Its position is unknown, if its commits expired; or the time is not known."""
    table = DeltaTable(written.table)
    table.create_checkpoint()
    table.restore(1)
    for version in range(2):
        (written.table / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(StoreError, match="restored to its version 1, which cannot be read"):
        written.follower().position()
    restored = written.table / "_delta_log" / f"{PARTS:020d}.json"
    text = restored.read_text("utf-8")
    for other in (
        '{"timestamp":"yesterday"}',
        '{"version":null,"timestamp":"2026-01-31 12:30:00"}',
    ):
        restored.write_text(text.replace('{"version":"1"}', other), "utf-8")
        with pytest.raises(StoreError, match="restore it to a version by its number"):
            written.follower().position()
    DeltaTable(written.table).restore(3)
    assert written.go_on(written.follower()) == written.ends[3]
    written.check()


def test_commits_that_were_removed_from_the_log_are_made_again(written: Written) -> None:
    """The newest ones, under a running follower; one from the middle makes the table unreadable."""
    follower = written.follower()
    follower.position()
    commits = sorted((written.table / "_delta_log").glob("*.json"))
    for commit in commits[2:]:
        commit.unlink()
    with pytest.raises(DeltaError, match=r"Invalid table version|File not found"):
        follower.write(written.ends[-1], written.ends[-1] + 1, iter(()))
    assert written.go_on(follower) == written.ends[1]
    written.check()
    commits[1].unlink()
    with pytest.raises(DeltaError, match="Expected contiguous commit files, but found gap"):
        follower.position()


def test_rows_whose_position_is_gone_are_not_written_twice(written: Written) -> None:
    """Another program dropped the transactions, or copied the table without them."""
    rows = DeltaTable(written.table).to_pyarrow_table()
    shutil.rmtree(written.table)
    write_deltalake(written.table, rows, partition_by=["topic", "date"])
    with pytest.raises(StoreError, match=f"rows of the store {STORE_ID}, and its position is gone"):
        written.follower(store_id=STORE_ID).position()
    assert written.follower(store_id="other").position() is None


def test_a_commit_says_whose_position_it_has(written: Written) -> None:
    """The newest one of a store is looked for; one of an earlier version, which does not say it,
    counts as ours."""
    DeltaTable(written.table).restore(0)
    written.go_on(written.follower())
    for commit in sorted((written.table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text("utf-8").splitlines()]
        infos = (action.get("commitInfo", {}) for action in actions)
        (store,) = (info.pop("reputStore", None) for info in infos if "operation" in info)
        assert store == (None if commit.stem.endswith(str(PARTS)) else f"reput:{STORE_ID}")
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions), "utf-8")
    assert written.follower().position() == written.ends[3]
