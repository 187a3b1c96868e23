"""Upkeep of tables of each format: the same rows in fewer files, and nothing that is still read
goes."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.snapshots import Operation

from reput.sinks.delta.table import DeltaTarget
from reput.sinks.iceberg import upkeep as iceberg_upkeep
from reput.sinks.iceberg.table import IcebergTarget
from reput.sinks.iceberg.upkeep import ORPHAN_SECONDS
from reput.sinks.tables.upkeep import Compaction, Expiry
from reput.store import fsops
from reput.store.errors import StoreError, SyncError, UsageError
from tests.sinks.test_iceberg import (
    MESSAGES,
    Filling,
    at_commits,
    overtaken,
    roll_back,
    snapshots,
)
from tests.sinks.test_tables import STORE_ID, Source, columns_of, plain_source, rows_of
from tests.support.settings import ANY_SETTINGS
from tests.support.tableformats import FORMATS, TableFormat, iceberg_table, iceberg_target
from tests.support.wire import PlainLog

DAY_MS = 86_400_000
HOUR = 3600.0


@pytest.fixture(params=sorted(FORMATS))
def tables(request: pytest.FixtureRequest) -> TableFormat:
    """Each format in turn."""
    return FORMATS[request.param]


@pytest.fixture
def filling(tmp_path: Path) -> Filling:
    """A log, and no Iceberg table yet."""
    return Filling(tmp_path)


def one_day_source(directory: Path, messages: int = MESSAGES) -> tuple[Source, list[int]]:
    """A log of one topic and day, and the ends of its messages."""
    log = PlainLog(1 << 16)
    for _ in range(messages):
        log.append(topic=b"T", store_timestamp=DAY_MS)
    return plain_source(directory, log), [end for _, end in log.spans]


def parquet_files(root: Path) -> set[Path]:
    """All data files, whether the table knows them or not."""
    return set(root.rglob("*.parquet"))


def live_files(root: Path, tables: TableFormat) -> int:
    """Number of data files of the newest version."""
    if tables is FORMATS["delta"]:
        return len(DeltaTable(str(root)).file_uris())
    return len(list(iceberg_table(root).scan().plan_files()))


def upkeep_of(tables: TableFormat, root: Path) -> Any:
    """The upkeep of the table there."""
    target = tables.target(root)
    assert isinstance(target, DeltaTarget | IcebergTarget)
    return target.upkeep()


def test_small_files_become_one(tables: TableFormat, tmp_path: Path) -> None:
    """With the same rows, and the position that the table had; a second time nothing is left to
    do."""
    source, ends = one_day_source(tmp_path)
    root = tmp_path / "table"
    start = 0
    for end in ends[:-1]:
        follower = tables.target(root).open(STORE_ID, ANY_SETTINGS)
        assert (follower.position() or 0) == start
        source.write(follower, start, end)
        start = end
    before = columns_of(tables, root)
    assert upkeep_of(tables, root).compact(1) == Compaction()
    done = upkeep_of(tables, root).compact()
    assert (done.replaced_files, done.new_files) == (len(ends) - 1, 1)
    assert done.replaced_bytes > done.new_bytes > 0
    assert live_files(root, tables) == 1
    assert columns_of(tables, root) == before
    assert upkeep_of(tables, root).compact() == Compaction()
    source.write(follower, start, ends[-1])
    assert columns_of(tables, root) == rows_of(source.store)
    assert follower.position() == ends[-1]


def test_upkeep_goes_on_beside_a_follower(tables: TableFormat, tmp_path: Path) -> None:
    """After each write here; the follower then commits to a table that it did not load."""
    source, ends = one_day_source(tmp_path)
    root = tmp_path / "table"
    target = tables.target(root)
    assert isinstance(target, DeltaTarget | IcebergTarget)
    follower = replace(target, compact_every_seconds=0.0).open(STORE_ID, ANY_SETTINGS)
    assert follower.position() is None
    start = 0
    for end in ends:
        source.write(follower, start, end)
        start = end
        assert live_files(root, tables) == 1
    assert columns_of(tables, root) == rows_of(source.store)
    assert follower.position() == ends[-1]


def test_upkeep_waits_for_its_interval(tables: TableFormat, tmp_path: Path) -> None:
    """The first time comes an interval after the start."""
    source, ends = one_day_source(tmp_path)
    root = tmp_path / "table"
    target = tables.target(root)
    assert isinstance(target, DeltaTarget | IcebergTarget)
    follower = target.open(STORE_ID, ANY_SETTINGS)
    follower.position()
    source.write(follower, 0, ends[0])
    follower = replace(target, compact_every_seconds=HOUR).open(STORE_ID, ANY_SETTINGS)
    follower.position()
    source.write(follower, ends[0], ends[1])
    assert live_files(root, tables) == 2


def test_upkeep_that_fails_stops_no_rows(
    filling: Filling, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and tried again."""
    filling.fill(1)
    filling.table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    target = replace(iceberg_target(filling.root), compact_every_seconds=0.0)
    follower = target.open(STORE_ID, ANY_SETTINGS)
    with caplog.at_level(logging.WARNING):
        start = follower.position()
        assert start == filling.ends[0]
        filling.source.write(follower, start, filling.ends[1])
        filling.source.write(follower, filling.ends[1], filling.ends[-1])
    assert [record.message.count("gc.enabled") for record in caplog.records] == [1, 1]
    assert filling.offsets() == filling.starts


def test_a_compaction_whose_sync_fails_ends_the_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows which of the pages of a local Delta table are on disk then."""
    source, ends = one_day_source(tmp_path)
    target = DeltaTarget(str(tmp_path / "table"), compact_every_seconds=0.0)
    follower = target.open(STORE_ID, ANY_SETTINGS)
    follower.position()
    # of the write, of what is there, of the compaction
    monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints("sync:3=EIO"))
    with pytest.raises(SyncError):
        source.write(follower, 0, ends[0])
    with pytest.raises(SyncError):
        follower.position()


@pytest.mark.parametrize("lines", [-1, -2])
def test_a_torn_compaction_is_named(tmp_path: Path, lines: int) -> None:
    """Its commit ends with a whole line, and says how many files there should be. The rows are
    whole without it."""
    source, ends = one_day_source(tmp_path)
    root = tmp_path / "table"
    follower = DeltaTarget(str(root)).open(STORE_ID, ANY_SETTINGS)
    follower.position()
    source.write(follower, 0, ends[0])
    source.write(follower, ends[0], ends[-1])
    DeltaTarget(str(root)).upkeep().compact()
    commit = max((root / "_delta_log").glob("*.json"))
    kept = commit.read_bytes().splitlines(keepends=True)[:lines]
    commit.write_bytes(b"".join(kept))
    with pytest.raises(StoreError, match="torn"):
        follower.position()
    commit.unlink()
    assert follower.position() == ends[-1]
    assert columns_of(FORMATS["delta"], root) == rows_of(source.store)


def test_expired_files_of_a_delta_table_go_after_its_retention(tmp_path: Path) -> None:
    """By the times of the table, a week if it has none; files of broken-off writes go, too."""
    source, ends = one_day_source(tmp_path)
    root = tmp_path / "table"
    follower = DeltaTarget(str(root)).open(STORE_ID, ANY_SETTINGS)
    follower.position()
    source.write(follower, 0, ends[0])
    source.write(follower, ends[0], ends[-1])
    upkeep = DeltaTarget(str(root)).upkeep()
    upkeep.compact()
    left = root / "topic=T" / "left.parquet"
    left.write_bytes(b"half")
    assert upkeep.expire() == Expiry()
    month = time.time() - 30 * 24 * HOUR
    os.utime(left, (month, month))
    assert upkeep.expire().files == 1
    assert not left.exists()
    assert columns_of(FORMATS["delta"], root) == rows_of(source.store)


def test_files_of_different_days_stay_apart(filling: Filling) -> None:
    """Each new file is of one partition, as the old ones; it tells what replaces what."""
    filling.fill(*range(1, MESSAGES + 1))
    before = filling.offsets()
    done = iceberg_target(filling.root).upkeep().compact()
    assert (done.replaced_files, done.new_files) == (MESSAGES, 3)
    table = filling.table
    assert len(table.snapshots()) == MESSAGES + 1
    files = table.inspect.files().to_pylist()
    assert len({file["partition"]["storeTimestamp_day"] for file in files}) == len(files) == 3
    assert filling.offsets() == before == filling.starts
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary.operation == Operation.REPLACE
    assert head.summary["total-records"] == str(MESSAGES)
    assert len(list(table.scan("storeTimestamp < '1970-01-01T00:00:00+00:00'").plan_files())) == 1


def test_files_are_joined_up_to_a_size(filling: Filling) -> None:
    """In the order of the log; those that are large enough stay."""
    filling.fill(*range(1, 6))
    sizes = [task.file.file_size_in_bytes for task in filling.table.scan().plan_files()]
    done = iceberg_target(filling.root).upkeep().compact(2 * max(sizes))
    assert (done.replaced_files, done.new_files) == (4, 2)
    columns = filling.table.inspect.files().to_pylist()
    spans = sorted(
        (file["readable_metrics"]["physicalOffset"]["lower_bound"], file["record_count"])
        for file in columns
    )
    assert spans == [(filling.starts[0], 2), (filling.starts[2], 2), (filling.starts[4], 1)]
    assert iceberg_target(filling.root).upkeep().compact(max(sizes)) == Compaction()


def test_an_append_meanwhile_is_followed_by_the_same_files(filling: Filling) -> None:
    """The rows are not written a second time."""
    filling.fill(2, 4)
    with overtaken(lambda: filling.fill(5)):
        done = iceberg_target(filling.root).upkeep().compact()
    assert (done.replaced_files, done.new_files) == (2, 1)
    assert len(list(filling.root.rglob("reput-*-compacted-*"))) == 1
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts


def test_files_that_another_writer_replaced_meanwhile_are_left(filling: Filling) -> None:
    """The new ones go."""
    filling.fill(2, 4)
    with overtaken(lambda: filling.follower().truncate(filling.ends[2])):
        assert iceberg_target(filling.root).upkeep().compact() == Compaction()
    assert not list(filling.root.rglob("reput-*-compacted-*"))
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts


def test_the_last_commit_of_a_compaction_may_be_taken(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for as those before it."""
    filling.fill(2, 4)
    monkeypatch.setattr(iceberg_upkeep, "COMMITS", 1)
    done = iceberg_target(filling.root).upkeep().compact()
    assert (done.replaced_files, done.new_files) == (2, 1)
    assert filling.offsets() == filling.starts[:4]


def test_what_another_writer_left_alone_is_replaced(filling: Filling) -> None:
    """The files of the other days; nothing is left of the new file that is given up."""
    filling.fill(*range(1, MESSAGES + 1))
    with overtaken(lambda: filling.follower().truncate(filling.ends[10])):
        done = iceberg_target(filling.root).upkeep().compact()
    assert (done.replaced_files, done.new_files) == (10, 2)
    assert len(list(filling.root.rglob("reput-*-compacted-*"))) == 2
    assert filling.offsets() == filling.starts[:11]


def test_a_compaction_that_was_sent_twice_is_taken_once(filling: Filling) -> None:
    """The second request is refused, and the files of the first one stay."""
    filling.fill(2, 4)

    def twice(commit: Any) -> Any:
        commit()
        return commit()

    with at_commits(twice):
        done = iceberg_target(filling.root).upkeep().compact()
    assert (done.replaced_files, done.new_files) == (2, 1)
    assert filling.offsets() == filling.starts[:4]


def test_a_compaction_whose_answer_is_lost_is_taken_all_the_same(filling: Filling) -> None:
    """Nothing that it names is removed."""
    filling.fill(2, 4)

    def lost(commit: Any) -> Any:
        commit()
        raise ConnectionError("the answer was lost")

    with at_commits(lost), pytest.raises(ConnectionError):
        iceberg_target(filling.root).upkeep().compact()
    assert iceberg_target(filling.root).upkeep().compact() == Compaction()
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts


def test_a_rollback_to_a_compaction_has_the_position_before_it(filling: Filling) -> None:
    """The snapshot of the compaction tells none."""
    filling.fill(2, 4)
    upkeep = iceberg_target(filling.root).upkeep()
    upkeep.compact()
    compacted = snapshots(filling.table)[-1]
    filling.fill(8)
    roll_back(filling.table, compacted)
    assert filling.follower().position() == filling.ends[3]
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts


@pytest.mark.parametrize("keep", [1, 3])
def test_what_only_old_snapshots_have_is_removed(filling: Filling, keep: int) -> None:
    """The position stays, although all snapshots that tell it may be gone."""
    filling.fill(2, 4, 6, 8)
    target = iceberg_target(filling.root)
    target.upkeep().compact()
    before = parquet_files(filling.root)
    done = target.upkeep(keep).expire()
    table = filling.table
    assert [one.snapshot_id for one in table.snapshots()] == snapshots(table)
    assert len(table.snapshots()) == keep
    assert done.versions > 0
    for snapshot_id in snapshots(table):
        assert table.scan(snapshot_id=snapshot_id).to_arrow().num_rows > 0
    named = {
        Path(entry["data_file"]["file_path"].removeprefix("file://"))
        for snapshot in table.snapshots()
        for entry in table.inspect.entries(snapshot.snapshot_id).to_pylist()
        if entry["status"] != 2
    }
    assert parquet_files(filling.root) == named
    assert (len(named) < len(before)) == (keep == 1)
    lists = {Path(one.manifest_list.removeprefix("file://")) for one in table.snapshots()}
    manifests = {
        Path(one.manifest_path.removeprefix("file://"))
        for snapshot in table.snapshots()
        for one in snapshot.manifests(table.io)
    }
    assert set(filling.root.rglob("*.avro")) == lists | manifests
    assert target.upkeep(keep).expire() == Expiry()
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts


def test_files_stay_whose_manifest_was_written_anew(filling: Filling) -> None:
    """The old manifest goes, with the files that the newest snapshot has no more."""
    filling.fill(MESSAGES)
    filling.follower().truncate(filling.ends[9])
    assert iceberg_target(filling.root).upkeep(1).expire() == Expiry(1, 3)
    assert len(parquet_files(filling.root)) == 2
    assert filling.offsets() == filling.starts[:10]


def test_snapshots_of_tags_and_branches_stay(filling: Filling) -> None:
    """With all that came before on their branch."""
    filling.fill(2, 4, 6, 8)
    first, second, third, _ = snapshots(filling.table)
    filling.table.manage_snapshots().create_branch(second, "aside").commit()
    assert iceberg_target(filling.root).upkeep(1).expire().versions == 1
    table = filling.table
    assert third not in snapshots(table)
    assert table.scan(snapshot_id=first).to_arrow().num_rows == 2
    assert table.scan(snapshot_id=second).to_arrow().num_rows == 4


def test_snapshots_without_a_branch_stay_while_they_are_young(filling: Filling) -> None:
    """As after a rollback, which may have been a mistake; those that are older than all that stay
    go."""
    filling.fill(2, 4)
    first, second = snapshots(filling.table)
    roll_back(filling.table, first)
    iceberg_target(filling.root).upkeep(1).expire()
    assert second in snapshots(filling.table)
    filling.fill(6, 8)
    iceberg_target(filling.root).upkeep(1).expire()
    assert snapshots(filling.table) == [filling.table.metadata.current_snapshot_id]
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts


def test_the_last_mark_after_a_rollback_stays(filling: Filling) -> None:
    """Without it nobody could see that the main branch was rolled back."""
    filling.fill(2, 4, 6)
    roll_back(filling.table, snapshots(filling.table)[1])
    filling.append_foreign()
    iceberg_target(filling.root).upkeep(1).expire()
    assert filling.follower().position() == filling.ends[3]
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts
    iceberg_target(filling.root).upkeep(1).expire()
    assert len(filling.table.snapshots()) == 1


def test_an_expiry_that_is_overtaken_looks_again(filling: Filling) -> None:
    """The snapshots that stay are those of the new head."""
    filling.fill(2, 4, 6)
    with overtaken(lambda: filling.fill(8)):
        done = iceberg_target(filling.root).upkeep(1).expire()
    assert done.versions == 3
    assert len(filling.table.snapshots()) == 1
    assert filling.offsets() == filling.starts[:8]


def test_an_expiry_whose_answer_is_lost_removes_no_file(filling: Filling) -> None:
    """Nobody knows which snapshots there are."""
    filling.fill(2, 4)
    target = iceberg_target(filling.root)
    target.upkeep().compact()

    def lost(commit: Any) -> Any:
        commit()
        raise ConnectionError("the answer was lost")

    before = parquet_files(filling.root)
    with at_commits(lost), pytest.raises(ConnectionError):
        target.upkeep(1).expire()
    assert parquet_files(filling.root) == before
    assert len(filling.table.snapshots()) == 1


def test_conflicts_without_end_are_an_error(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction leaves nothing, an expiry removes nothing."""
    filling.fill(2, 4)
    monkeypatch.setattr(iceberg_upkeep, "COMMITS", 3)
    before = snapshots(filling.table)

    def refused(_commit: Any) -> Any:
        raise CommitFailedException("the branch has changed")

    upkeep = iceberg_target(filling.root).upkeep(1)
    with at_commits(refused):
        assert upkeep.compact() == Compaction()
        with pytest.raises(StoreError, match="overtaken 3 commits"):
            upkeep.expire()
    assert not list(filling.root.rglob("reput-*-compacted-*"))
    assert snapshots(filling.table) == before


def test_files_of_others_are_not_removed(filling: Filling) -> None:
    """A table says so, whose files belong to others, too."""
    filling.fill(2, 4)
    filling.table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    with pytest.raises(UsageError, match=r"gc\.enabled = false"):
        iceberg_target(filling.root).upkeep(1).expire()
    assert len(filling.table.snapshots()) == 2


def test_files_of_no_snapshot_go_when_they_are_a_day_old(filling: Filling) -> None:
    """If their names are ours. A younger one may be of a commit that is being made."""
    filling.fill(2, 4)
    live = sorted(parquet_files(filling.root))
    old = time.time() - ORPHAN_SECONDS - HOUR
    data = live[0].parent
    ours, young = data / f"{live[0].stem[:-5]}00007.parquet", data / f"0101-{live[0].name}"
    foreign = data / "00000-1-0b2f4c6e-0000-4000-8000-000000000000-00001.parquet"
    for path in (ours, young, foreign):
        path.write_bytes(b"half")
    for path in (*live, ours, foreign):
        os.utime(path, (old, old))
    assert iceberg_target(filling.root).upkeep().expire() == Expiry(0, 1)
    assert parquet_files(filling.root) == {*live, young, foreign}
    os.utime(young, (old, old))
    assert iceberg_target(filling.root).upkeep().expire() == Expiry(0, 1)


def test_tables_that_are_not_ours_are_not_compacted(filling: Filling) -> None:
    """Nor is one that does not exist."""
    upkeep = iceberg_target(filling.root).upkeep()
    for call in (upkeep.compact, upkeep.expire):
        with pytest.raises(UsageError, match="there is no table"):
            call()
    filling.fill(2)
    for column in ("storeId", "flag"):
        with filling.table.update_schema(allow_incompatible_changes=True) as schema:
            schema.delete_column(column)
        with pytest.raises(UsageError, match="by the program that fills it"):
            upkeep.compact()
    with pytest.raises(UsageError, match="there is no Delta table"):
        DeltaTarget(str(filling.root / "none")).upkeep().compact()
