"""Properties of Iceberg tables alone: a position on a branch that others commit to, roll back and
expire, and a catalog whose answers may get lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from reput.sinks.tables import ordering
from reput.sinks.tables.follower import TableFollower
from reput.store import fsops
from reput.store.bodies.declaration import BodyColumns
from reput.store.errors import StoreError, UsageError
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

MESSAGES = 12
DAY_MS = 86_400_000


class Filling:
    """A table that is filled from a log, a few messages at a time."""

    def __init__(self, directory: Path) -> None:
        log = PlainLog(1 << 16)
        for number in range(MESSAGES):
            day = number // 5 - 1
            log.append(topic=b"T%d" % (number % 3), store_timestamp=day * DAY_MS + 1)
        self.source: Source = plain_source(directory, log)
        self.ends = [end for _, end in log.spans]
        self.starts = [start for start, _ in log.spans]
        self.root = directory / "lake"

    def follower(self, store_id: str | None = None) -> TableFollower:
        """Another one, which knows nothing but the table."""
        found = iceberg_target(self.root, store_id=store_id).open(STORE_ID, ANY_SETTINGS)
        assert isinstance(found, TableFollower)
        return found

    def write(self, follower: TableFollower, count: int) -> None:
        """Go on to the end of that many messages."""
        self.source.write(follower, follower.position() or 0, self.ends[count - 1])

    def fill(self, *counts: int) -> None:
        """Write up to each number of messages in turn."""
        for count in counts:
            self.write(self.follower(), count)

    def offsets(self) -> list[int]:
        """Physical offsets of this store's rows."""
        rows = FORMATS["iceberg"].rows(self.root, "physicalOffset", "storeId")
        return [row["physicalOffset"] for row in rows if row["storeId"] == STORE_ID]

    @property
    def table(self) -> Table:
        """The table as another program sees it."""
        return iceberg_table(self.root)

    def append_foreign(self) -> None:
        """Another program adds a row of its own."""
        table = self.table
        row = table.scan(limit=1).to_arrow().slice(0, 1)
        at = row.schema.get_field_index("storeId")
        table.append(row.set_column(at, row.schema.field(at), pa.array(["other"])))


@pytest.fixture
def filling(tmp_path: Path) -> Filling:
    """A log, and no table yet."""
    return Filling(tmp_path)


@contextmanager
def at_commits(around: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    """Have ``around`` make each commit, which it is given."""
    commit = SqlCatalog.commit_table

    def made(self: SqlCatalog, *arguments: Any) -> Any:
        return around(lambda: commit(self, *arguments))

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(SqlCatalog, "commit_table", made)
        yield


@contextmanager
def overtaken(step: Callable[[], object], *, is_before: bool = True) -> Iterator[None]:
    """Have another writer make a step right before the first commit, or right after it."""
    steps = iter((step,))

    def around(commit: Callable[[], Any]) -> Any:
        first = next(steps, None)
        if first is not None and is_before:
            first()
        answer = commit()
        if first is not None and not is_before:
            first()
        return answer

    with at_commits(around):
        yield


def test_files_are_of_one_day_and_one_order(filling: Filling) -> None:
    """One partition for each day; within a file the topics follow each other. The schema stays as
    it was made."""
    filling.fill(MESSAGES)
    assert len(filling.table.schemas()) == 1
    assert filling.table.schema().find_field("physicalOffset").required
    files = filling.table.inspect.files().to_pylist()
    assert sorted(file["partition"]["storeTimestamp_day"].toordinal() for file in files) == [
        day + 719163 for day in (-1, 0, 1)
    ]
    for task in filling.table.scan().plan_files():
        path = unquote(urlsplit(task.file.file_path).path)
        topics = pa.parquet.read_table(path).column("topic").to_pylist()
        assert topics == sorted(topics)


def test_a_table_that_is_removed_is_an_error(filling: Filling) -> None:
    """It is made anew by the next attempt, with all rows."""
    filling.fill(4)
    follower = filling.follower()
    position = follower.position()

    def removed(_commit: Callable[[], Any]) -> Any:
        iceberg_catalog(filling.root).drop_table(ICEBERG_TABLE.identifier)
        raise CommitFailedException("it has changed")

    with at_commits(removed), pytest.raises(StoreError, match="was removed: nothing was written"):
        filling.source.write(follower, position or 0, filling.ends[7])
    filling.write(follower, MESSAGES)
    assert filling.offsets() == filling.starts


def test_a_commit_whose_answer_is_lost_was_made(filling: Filling) -> None:
    """The next attempt finds it."""

    def lost(commit: Callable[[], Any]) -> Any:
        commit()
        raise ConnectionError("the answer was lost")

    follower = filling.follower()
    for count in (4, 8, MESSAGES):
        with at_commits(lost), pytest.raises(ConnectionError):
            filling.write(follower, count)
        assert follower.position() == filling.ends[count - 1]
    assert filling.offsets() == filling.starts


def test_a_commit_whose_request_is_lost_is_made_again(filling: Filling) -> None:
    """With the same error."""

    def lost(_commit: Callable[[], Any]) -> Any:
        raise ConnectionError("the request was lost")

    follower, position = filling.follower(), None
    for count in (4, 8, MESSAGES):
        with at_commits(lost), pytest.raises(ConnectionError):
            filling.write(follower, count)
        assert follower.position() == position
        filling.write(follower, count)
        position = filling.ends[count - 1]
    assert filling.offsets() == filling.starts


def test_a_request_that_is_sent_twice_is_one_commit(filling: Filling) -> None:
    """The second answer is a conflict; the files of the first stay."""

    def twice(commit: Callable[[], Any]) -> Any:
        commit()
        return commit()

    with at_commits(twice):
        filling.fill(4, 8, MESSAGES)
    assert filling.offsets() == filling.starts


def test_a_commit_that_others_overtake_follows_them(filling: Filling) -> None:
    """With the same files."""
    filling.fill(4)
    turns = itertools.count()

    def counted(commit: Callable[[], Any]) -> Any:
        if next(turns) == 0:
            filling.append_foreign()
        return commit()

    with at_commits(counted):
        filling.fill(8)
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts
    assert next(turns) > 2, "one of ours was made twice"
    paths = [file["file_path"] for file in filling.table.inspect.files().to_pylist()]
    assert len([path for path in paths if STORE_ID in path]) == len(list(data_files(filling)))


def data_files(filling: Filling) -> Iterator[Path]:
    """Files of ours on the disk."""
    return filling.root.rglob(f"reput-*-{STORE_ID}-*.parquet")


@pytest.mark.parametrize("same_range", [True, False])
@pytest.mark.parametrize("begun", [0, 4])
def test_one_of_two_writers_at_a_position_is_refused(
    filling: Filling, begun: int, *, same_range: bool
) -> None:
    """Wherever the other one ends, and where it makes the table."""
    if begun:
        filling.fill(begun)
    ours, theirs = filling.follower(), filling.follower()
    start = ours.position()
    assert theirs.position() == start
    filling.source.write(theirs, start or 0, filling.ends[5])
    end = filling.ends[5 if same_range else 7]
    refused = "another writer has (the identity|made the table)"
    with pytest.raises(StoreError, match=refused):
        filling.source.write(ours, start or 0, end)
    assert ours.position() == filling.ends[5]
    filling.write(ours, MESSAGES)
    assert filling.offsets() == filling.starts


def test_a_writer_is_refused_that_read_the_table_before_another_one_wrote(
    filling: Filling,
) -> None:
    """It would begin where the other one has ended, and add the same rows."""
    filling.fill(4)
    ours, theirs = filling.follower(), filling.follower()
    assert ours.position() == theirs.position() == filling.ends[3]
    refused = pytest.raises(StoreError, match="another writer has the identity")
    with overtaken(lambda: filling.write(theirs, 6)), refused:
        filling.source.write(ours, filling.ends[3], filling.ends[5])
    assert filling.offsets() == filling.starts[:6]


def test_a_position_that_another_writer_has_reached_anew_is_not_ours(filling: Filling) -> None:
    """It has taken rows back and written others up to the same place."""
    filling.fill(4)
    ours, theirs = filling.follower(), filling.follower()
    assert ours.position() == theirs.position() == filling.ends[3]

    def write_anew() -> None:
        theirs.truncate(filling.ends[1])
        filling.write(theirs, 4)

    refused = pytest.raises(StoreError, match="another writer has the identity")
    with overtaken(write_anew), refused:
        filling.source.write(ours, filling.ends[3], filling.ends[5])
    filling.write(ours, MESSAGES)
    assert filling.offsets() == filling.starts


def test_a_writer_that_sleeps_after_its_commit_is_refused(filling: Filling) -> None:
    """Another one with its identity has gone on meanwhile; its range is not written twice."""
    filling.fill(2)
    ours = filling.follower()
    position = ours.position()
    refused = pytest.raises(StoreError, match="another writer has the identity")
    with overtaken(lambda: filling.fill(6), is_before=False), refused:
        filling.source.write(ours, position or 0, filling.ends[3])
    filling.write(ours, MESSAGES)
    assert filling.offsets() == filling.starts


def test_of_two_outputs_that_begin_a_table_one_is_refused(filling: Filling) -> None:
    """Neither has rows there yet, and it belongs to one of them."""
    ours = filling.follower()
    assert ours.position() is None
    theirs = iceberg_target(filling.root).open("f" * 32, ANY_SETTINGS)
    assert isinstance(theirs, TableFollower)
    refused = pytest.raises(StoreError, match="begun to fill the table")
    with overtaken(lambda: filling.write(theirs, 2)), refused:
        filling.source.write(ours, 0, filling.ends[3])
    with pytest.raises(UsageError, match="rows of other writers"):
        ours.position()
    assert filling.offsets() == []


def test_a_write_that_is_broken_off_leaves_no_file(filling: Filling) -> None:
    """Rows of each day were written before."""
    follower = filling.follower()
    assert follower.position() is None

    def broken() -> Iterator[pa.RecordBatch]:
        for batch in filling.source.rows(0, filling.ends[-1]):
            yield from (batch.slice(at, 1) for at in range(batch.num_rows))
        raise InterruptedError("stopped")

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(ordering, "CHUNK_BYTES", 1)
        with pytest.raises(InterruptedError):
            follower.write(0, filling.ends[-1], broken())
        assert not list(data_files(filling))
        filling.write(follower, MESSAGES)
    assert list(data_files(filling))
    assert filling.offsets() == filling.starts


def test_metadata_of_old_commits_goes(filling: Filling) -> None:
    """The table's properties say how much of it stays."""
    filling.fill(1)
    table = filling.table
    kept = {"write.metadata.previous-versions-max": "2"}
    table.transaction().set_properties(kept).commit_transaction()
    filling.fill(*range(2, MESSAGES + 1))
    assert len(list(filling.root.rglob("*.metadata.json"))) <= 4
    assert filling.offsets() == filling.starts


def test_a_table_that_another_writer_fills_while_columns_are_added(filling: Filling) -> None:
    """The second load finds another position, at which the range does not begin."""
    filling.fill(4)
    columns = BodyColumns({"T0": {"id": "long"}})
    ours = iceberg_target(filling.root, columns).open(STORE_ID, ANY_SETTINGS)
    position = ours.position()
    assert position == filling.ends[3]
    refused = pytest.raises(StoreError, match="another writer has the identity")
    with overtaken(lambda: filling.fill(6), is_before=False), refused:
        filling.source.write(ours, position, filling.ends[7])
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts


def test_columns_that_the_catalog_refused_are_added_later(filling: Filling) -> None:
    """By the next attempt, before the rows that have them."""
    filling.fill(4)
    columns = BodyColumns({"T0": {"id": "long"}})
    ours = iceberg_target(filling.root, columns).open(STORE_ID, ANY_SETTINGS)

    def refused(_commit: Callable[[], Any]) -> Any:
        raise CommitFailedException("it has changed")

    with at_commits(refused), pytest.raises(CommitFailedException):
        filling.write(ours, 8)
    filling.write(ours, MESSAGES)
    assert filling.offsets() == filling.starts


def snapshots(table: Table) -> list[int]:
    """Snapshot ids, oldest first."""
    return [one.snapshot_id for one in sorted(table.snapshots(), key=lambda s: s.sequence_number)]


def roll_back(table: Table, snapshot_id: int) -> None:
    """Set the main branch to an older snapshot."""
    table.manage_snapshots().rollback_to_snapshot(snapshot_id).commit()


def expire(table: Table, *snapshot_ids: int) -> None:
    """Expire snapshots."""
    table.maintenance.expire_snapshots().by_ids([*snapshot_ids]).commit()


@pytest.mark.parametrize("with_foreign", [False, True])
def test_rows_that_were_rolled_back_come_again(filling: Filling, *, with_foreign: bool) -> None:
    """Another program may have committed to the branch that was rolled back."""
    filling.fill(4, 8, MESSAGES)
    roll_back(filling.table, snapshots(filling.table)[0])
    if with_foreign:
        filling.append_foreign()
    follower = filling.follower()
    assert follower.position() == filling.ends[3]
    filling.write(follower, MESSAGES)
    assert filling.offsets() == filling.starts


@pytest.mark.parametrize("is_expired", [False, True])
def test_a_rollback_beyond_all_marks_is_refused(filling: Filling, *, is_expired: bool) -> None:
    """The marks may have expired, too; what the refusal advises works."""
    filling.fill(1)
    filling.append_foreign()
    foreign = snapshots(filling.table)[-1]
    shared = filling.follower("late")
    assert shared.position() is None
    filling.source.write(shared, 0, filling.ends[3])
    filling.source.write(shared, filling.ends[3], filling.ends[5])
    last = snapshots(filling.table)[-1]
    roll_back(filling.table, foreign)
    if is_expired:
        expire(filling.table, snapshots(filling.table)[2])
    with pytest.raises(StoreError, match=f"set its main branch to snapshot {last}") as raised:
        shared.position()
    assert "rolled back" in str(raised.value)
    with filling.table.manage_snapshots() as manage:
        manage.set_current_snapshot(snapshot_id=last)
    assert shared.position() == filling.ends[5]


def test_a_position_whose_snapshots_have_expired_stands_in_a_property(filling: Filling) -> None:
    """After another program's commit, which tells no position."""
    filling.fill(4, 8)
    filling.append_foreign()
    table = filling.table
    expire(table, *snapshots(table)[:-1])
    assert len(filling.table.snapshots()) == 1
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts


def test_a_commit_to_another_branch_tells_no_position(filling: Filling) -> None:
    """Rows of the branch are not those of main."""
    filling.fill(4, 8)
    table = filling.table
    first = snapshots(table)[0]
    table.manage_snapshots().create_branch(first, "aside").commit()
    filling.table.append(
        filling.table.scan(limit=1).to_arrow(), {"reput.position." + STORE_ID: "7"}, branch="aside"
    )
    assert filling.follower().position() == filling.ends[7]


def test_rows_of_a_cut_log_that_came_back_are_refused(filling: Filling) -> None:
    """By a rollback to before the cut; what the refusal advises works."""
    filling.fill(4, 8)
    before = snapshots(filling.table)[-1]
    filling.follower().truncate(filling.ends[5])
    assert filling.offsets() == filling.starts[:6]
    after = snapshots(filling.table)[-1]
    roll_back(filling.table, before)
    follower = filling.follower()
    with pytest.raises(StoreError, match=f"set its main branch to snapshot {after}"):
        follower.position()
    with filling.table.manage_snapshots() as manage:
        manage.set_current_snapshot(snapshot_id=after)
    assert follower.position() == filling.ends[5]
    filling.write(follower, MESSAGES)
    assert filling.offsets() == filling.starts


def test_rows_whose_position_is_gone_are_not_written_twice(filling: Filling) -> None:
    """Somebody has removed the property, and the marked snapshots have expired."""
    filling.fill(4)
    filling.append_foreign()
    table = filling.table
    table.transaction().remove_properties(f"reput.position.{STORE_ID}").commit_transaction()
    expire(filling.table, snapshots(filling.table)[0])
    named = filling.follower(STORE_ID)
    with pytest.raises(StoreError, match="its position is gone"):
        named.position()


def test_files_are_durable_before_the_catalog_names_them(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data, lists and metadata, and the names of their directories."""
    synced = set[str]()

    def reached(kind: str, path: str) -> None:
        if kind == "sync":
            synced.add(path)

    def unsynced() -> set[str]:
        files = {path for path in filling.root.rglob("*.*") if path.suffix != ".db"}
        above = {parent for path in files for parent in path.parents}
        return {str(path) for path in files | above if path.is_relative_to(filling.root)} - synced

    def checked(commit: Callable[[], Any]) -> Any:
        assert not unsynced()
        answer = commit()
        assert not unsynced()
        return answer

    monkeypatch.setattr(fsops._failpoints, "reach", reached)
    with at_commits(checked):
        filling.fill(4, 8)
    assert len(synced) > 10


def test_conflicts_that_do_not_end_are_an_error(filling: Filling) -> None:
    """Nothing is written, and the next attempt goes on."""
    filling.fill(4)

    def refused(_commit: Callable[[], Any]) -> Any:
        raise CommitFailedException("the branch has changed")

    follower = filling.follower()
    with at_commits(refused), pytest.raises(StoreError, match="overtaken 100 commits"):
        filling.write(follower, 8)
    filling.write(follower, MESSAGES)
    assert filling.offsets() == filling.starts
