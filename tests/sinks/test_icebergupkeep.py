"""Upkeep and cuts of Iceberg tables beside others: branches that move, deletes, partitions."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestWriterV2,
)
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import IdentityTransform

from reput.sinks.iceberg import datafiles, upkeep
from reput.sinks.iceberg.upkeep import ORPHAN_SECONDS
from reput.sinks.tables import upkeep as regular
from reput.sinks.tables.upkeep import Compaction, Expiry, RegularUpkeep
from reput.store.errors import StoreError, UsageError
from tests.sinks.test_iceberg import (
    MESSAGES,
    Filling,
    at_commits,
    overtaken,
    roll_back,
    snapshots,
)
from tests.sinks.test_tables import STORE_ID
from tests.support.settings import ANY_SETTINGS
from tests.support.tableformats import (
    ICEBERG_TABLE,
    iceberg_catalog,
    iceberg_table,
    iceberg_target,
)


@pytest.fixture
def filling(tmp_path: Path) -> Filling:
    """A log, and no table yet."""
    return Filling(tmp_path)


def sizes_of_files(table: Table) -> dict[str, int]:
    """Bytes of each file of rows, by its path."""
    files = table.inspect.files().to_pylist()
    return {file["file_path"]: file["file_size_in_bytes"] for file in files}


def test_files_of_older_partitions_are_left(filling: Filling) -> None:
    """Their rows are of several partitions of the new kind."""
    filling.fill(2, 4)
    with filling.table.update_spec() as update:
        update.add_field("topic", IdentityTransform())
    filling.fill(6, 8, 10, MESSAGES)
    before = sizes_of_files(filling.table)
    done = iceberg_target(filling.root).upkeep().compact()
    after = sizes_of_files(filling.table)
    gone, new = ([one[path] for path in one.keys() - other] for one, other in (
        (before, after), (after, before)
    ))  # fmt: skip
    assert done == Compaction(len(gone), sum(gone), len(new), sum(new))
    assert len(new) > 1
    files = filling.table.inspect.files().to_pylist()
    assert [file["record_count"] for file in files if file["spec_id"] == 0] == [2, 2]
    assert filling.offsets() == filling.starts
    for topic in range(3):
        found = filling.table.scan(f"topic = 'T{topic}'").to_arrow()
        assert found.num_rows == MESSAGES // 3


def test_a_commit_right_after_a_compaction_hides_nothing(filling: Filling) -> None:
    """The compaction finds its snapshot below that of the other writer."""
    filling.fill(2, 4)
    with overtaken(lambda: filling.fill(5), is_before=False):
        done = iceberg_target(filling.root).upkeep().compact()
    assert (done.replaced_files, done.new_files) == (2, 1)
    assert filling.offsets() == filling.starts[:5]


def test_a_compaction_whose_snapshot_expires_at_once_keeps_its_files(filling: Filling) -> None:
    """Another writer commits, and another upkeep leaves that writer's snapshot alone."""
    filling.fill(2, 4)

    def go_on() -> None:
        filling.fill(5)
        iceberg_target(filling.root).upkeep(1).expire()

    with overtaken(go_on, is_before=False):
        iceberg_target(filling.root).upkeep().compact()
    assert len(filling.table.snapshots()) == 1
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts


def test_rows_that_others_delete_meanwhile_stay_deleted(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of deleted positions belongs to one of the old files, and would not to the new one."""
    filling.fill(2, 4)
    deleted = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path="deletes.parquet",
        file_format=FileFormat.PARQUET, record_count=1, file_size_in_bytes=1,
    )  # fmt: skip
    planned: Callable[[Table], list[FileScanTask]] = upkeep._tasks
    looks = iter((False, True))

    def tasks(table: Table) -> list[FileScanTask]:
        found = planned(table)
        if next(looks):
            found[0].delete_files.add(deleted)
        return found

    monkeypatch.setattr(upkeep, "_tasks", tasks)
    before = snapshots(filling.table)
    assert iceberg_target(filling.root).upkeep().compact() == Compaction()
    assert snapshots(filling.table) == before
    assert not list(filling.root.rglob("reput-*-compacted-*"))


def test_a_table_with_equality_deletes_is_only_expired(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library reads no such table; its snapshots would grow without end."""
    filling.fill(2, 4)
    table = filling.table
    (task, *_) = table.scan().plan_files()
    deletes = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES, file_path=f"{table.location()}/deletes.parquet",
        file_format=FileFormat.PARQUET, partition=task.file.partition, record_count=1,
        file_size_in_bytes=1, equality_ids=[1], spec_id=0,
    )  # fmt: skip
    with monkeypatch.context() as patched:
        # the library writes manifests of data alone
        patched.setattr(ManifestWriterV2, "content", lambda _: ManifestContent.DELETES)
        with table.transaction() as made, made.update_snapshot().fast_append() as snapshot:
            snapshot.append_data_file(deletes)
    kept = iceberg_target(filling.root).upkeep(1)
    with pytest.raises(UsageError, match="has equality deletes, which pyiceberg cannot read"):
        kept.compact()
    before = len(filling.table.snapshots())
    RegularUpkeep(kept, "iceberg", 0.0).run_if_due()
    assert len(filling.table.snapshots()) < before


def test_old_files_of_snapshots_that_stay_are_no_orphans(filling: Filling) -> None:
    """The newest snapshot has them no more; readers of the one before it do."""
    filling.fill(2, 4)
    before = snapshots(filling.table)[-1]
    iceberg_target(filling.root).upkeep().compact()
    old = time.time() - ORPHAN_SECONDS - 1
    for path in filling.root.rglob("*.parquet"):
        os.utime(path, (old, old))
    assert iceberg_target(filling.root).upkeep().expire() == Expiry()
    assert filling.table.scan(snapshot_id=before).to_arrow().num_rows == 4


def test_files_of_another_table_in_the_same_directory_stay(filling: Filling) -> None:
    """As after a table was renamed, and made anew in its place."""
    filling.fill(2, 4)
    name = ICEBERG_TABLE.identifier
    renamed = (*name[:-1], "renamed")
    iceberg_catalog(filling.root).rename_table(name, renamed)
    old = time.time() - ORPHAN_SECONDS - 1
    for path in filling.root.rglob("*.parquet"):
        os.utime(path, (old, old))
    filling.fill(4)
    assert iceberg_target(filling.root).upkeep(1).expire() == Expiry()
    assert iceberg_table(filling.root, "renamed").scan().to_arrow().num_rows == 4


def test_an_expiry_that_was_sent_twice_removes_its_files(filling: Filling) -> None:
    """The second request is refused, after the first was taken."""
    filling.fill(2, 4)
    iceberg_target(filling.root).upkeep().compact()

    def twice(commit: Any) -> Any:
        commit()
        return commit()

    with at_commits(twice):
        done = iceberg_target(filling.root).upkeep(1).expire()
    assert done.versions == 2
    assert len(list(filling.root.rglob("*.parquet"))) == 1
    assert len(filling.table.snapshots()) == 1
    assert filling.offsets() == filling.starts[:4]


def test_a_branch_that_moves_during_an_expiry_keeps_its_snapshot(filling: Filling) -> None:
    """It moves to one that was about to go."""
    filling.fill(2, 4, 6, 8)
    first, _, third, _ = snapshots(filling.table)
    filling.table.manage_snapshots().create_branch(first, "aside").commit()

    def move() -> None:
        filling.table.manage_snapshots().remove_branch("aside").commit()
        filling.table.manage_snapshots().create_branch(third, "aside").commit()

    with overtaken(move):
        iceberg_target(filling.root).upkeep(1).expire()
    refs = filling.table.metadata.refs
    assert refs["aside"].snapshot_id == third
    assert filling.table.scan(snapshot_id=third).to_arrow().num_rows == 6


def test_a_cut_leaves_rows_of_others_in_the_same_file(filling: Filling) -> None:
    """They may have no store."""
    filling.fill(4)
    table = filling.table
    row = table.scan(f"physicalOffset = {filling.starts[3]}").to_arrow()
    at = row.schema.get_field_index("storeId")
    foreign = row.set_column(at, row.schema.field(at), pa.array([None], pa.string()))
    table.append(foreign)
    iceberg_target(filling.root).upkeep().compact()
    assert len(list(filling.table.scan().plan_files())) == 1
    filling.follower().truncate(filling.ends[1])
    assert filling.offsets() == filling.starts[:2]
    assert filling.table.scan("storeId is null").to_arrow().num_rows == 1


def test_every_cut_is_remembered(filling: Filling) -> None:
    """A rollback to before the first of two brings rows back that only the first took."""
    filling.fill(7)
    before = snapshots(filling.table)[-1]
    filling.follower().truncate(filling.ends[5])
    first = snapshots(filling.table)[-1]
    filling.fill(8)
    filling.follower().truncate(filling.ends[6])
    roll_back(filling.table, before)
    with pytest.raises(StoreError, match=f"set its main branch to snapshot {first}"):
        filling.follower().position()


def test_a_rollback_to_where_the_log_was_cut_goes_on(filling: Filling) -> None:
    """All of its rows are in the log still."""
    filling.fill(4)
    before = snapshots(filling.table)[-1]
    filling.fill(8)
    filling.follower().truncate(filling.ends[3])
    roll_back(filling.table, before)
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts


class Clock:
    """Time that passes where a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        """The time."""
        return self.seconds


def test_upkeep_that_failed_waits_for_its_interval(
    filling: Filling, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows would wait for it at every write, and each would log a line."""
    filling.fill(1)
    filling.table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    clock, interval = Clock(), 60.0
    monkeypatch.setattr(regular, "time", clock)
    target = replace(iceberg_target(filling.root), compact_every_seconds=interval)
    follower = target.open(STORE_ID, ANY_SETTINGS)
    failures = []
    for number, seconds in enumerate((0.0, interval, 0.0, interval / 2, interval / 2), 2):
        clock.seconds += seconds
        filling.write(follower, number)
        failures.append(sum("gc.enabled" in record.message for record in caplog.records))
    assert failures == [0, 1, 1, 1, 2]


class SlowTable:
    """A table whose upkeep takes some seconds of a clock, and is counted."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self.upkeeps = 0

    def compact(self, _target_bytes: int | None = None) -> Compaction:
        """There is nothing to do, but to look at everything."""
        self._clock.seconds += self._seconds
        self.upkeeps += 1
        return Compaction()

    def expire(self) -> Expiry:
        """Nothing is old."""
        return Expiry()


def test_upkeep_that_takes_longer_than_its_interval_leaves_time_to_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one begins an interval after the last one's end, however many would have been due
    meanwhile, or before the first."""
    clock = Clock()
    monkeypatch.setattr(regular, "time", clock)
    table = SlowTable(clock, 150.0)
    upkeep_of_table = RegularUpkeep(table, "iceberg", 60.0)
    counts = []
    for seconds in (59.0, 200.0, 0.0, 59.0, 1.0, 0.0):
        clock.seconds += seconds
        upkeep_of_table.run_if_due()
        counts.append(table.upkeeps)
    assert counts == [0, 1, 1, 1, 2, 2]


def test_a_table_whose_files_are_all_of_earlier_commits_is_no_empty_one(filling: Filling) -> None:
    """A deletion by others writes the list of the files that stay anew, in which none is added."""
    filling.write(filling.follower("b" * 32), MESSAGES)
    filling.table.delete(f"physicalOffset < {filling.starts[5]}")
    table = filling.table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert not any(manifest.has_added_files() for manifest in snapshot.manifests(table.io))
    assert table.scan().to_arrow().num_rows == MESSAGES - 5
    with pytest.raises(UsageError, match="holds only rows of other writers"):
        filling.follower().position()


def test_a_table_whose_rows_are_all_deleted_is_an_empty_one(filling: Filling) -> None:
    """It has snapshots, and an output of its own may begin in it."""
    filling.write(filling.follower("b" * 32), MESSAGES)
    filling.table.delete()
    assert filling.table.scan().to_arrow().num_rows == 0
    assert filling.table.current_snapshot() is not None
    filling.fill(MESSAGES)
    assert filling.offsets() == filling.starts


def test_files_of_three_quarters_of_the_size_are_large(filling: Filling) -> None:
    """They stay, and smaller ones are joined."""
    filling.fill(*range(1, 6))
    sizes = sorted(sizes_of_files(filling.table).values())
    assert sizes[-1] < sizes[0] * 1.1
    upkeep = iceberg_target(filling.root).upkeep()
    assert upkeep.compact(sizes[0] * 4 // 3) == Compaction()
    done = upkeep.compact(sizes[-1] * 4 // 3 + 2)
    assert (done.replaced_files, done.new_files) == (4, 2)


def test_a_file_of_no_snapshot_stays_for_a_day(filling: Filling) -> None:
    """A commit may take hours, and has its files before it."""
    filling.fill(2)
    live = next(filling.root.rglob("*.parquet"))
    left = live.with_name(f"{live.stem[:-5]}00007.parquet")
    for hours, count in ((23, 0), (25, 1)):
        left.write_bytes(b"half")
        then = time.time() - hours * 3600
        os.utime(left, (then, then))
        assert iceberg_target(filling.root).upkeep().expire() == Expiry(0, count)
        assert left.exists() is (count == 0)


@contextmanager
def no_file_beyond(most: int) -> Iterator[None]:
    """Let the kernel refuse bytes of files beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_not_filled_by_parts_of_files(filling: Filling) -> None:
    """Neither by rows nor by a compaction, of which both are tried again and again."""
    filling.fill(2, 4)
    before = {*filling.root.rglob("*.parquet")}
    follower = filling.follower()
    for act in (lambda: filling.write(follower, 8), iceberg_target(filling.root).upkeep().compact):
        with no_file_beyond(1000), pytest.raises(OSError, match="large"):
            act()
        assert {*filling.root.rglob("*.parquet")} == before
    filling.write(follower, MESSAGES)
    assert filling.offsets() == filling.starts


def test_a_compaction_that_fails_leaves_no_file(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor those of partitions that it was done with."""
    filling.fill(2, 4, 6, 8)
    before = {*filling.root.rglob("*.parquet")}
    made = list[DataFile]()

    def failing(table: Table, tasks: list[FileScanTask]) -> list[DataFile]:
        if made:
            raise OSError("No space left on device")
        made.extend(datafiles.rewrite_data_files(table, tasks))
        return made

    monkeypatch.setattr(upkeep, "rewrite_data_files", failing)
    with pytest.raises(OSError, match="No space"):
        iceberg_target(filling.root).upkeep().compact()
    assert len(made) == 1
    assert {*filling.root.rglob("*.parquet")} == before


def test_a_compaction_of_several_commits_counts_all_of_them(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit for each partition, and the files of all."""
    filling.fill(2, 4, 6, 8)
    monkeypatch.setattr(upkeep, "GROUPS_PER_COMMIT", 1)
    before = {task.file.file_path for task in filling.table.scan().plan_files()}
    commits = len(filling.table.snapshots())
    done = iceberg_target(filling.root).upkeep().compact()
    after = {task.file.file_path for task in filling.table.scan().plan_files()}
    assert len(filling.table.snapshots()) >= commits + 2
    assert (done.replaced_files, done.new_files) == (len(before - after), len(after - before))


def test_manifests_become_one(filling: Filling) -> None:
    """A commit reads all of them, so that many would make each one slower."""
    filling.fill(2)
    few = {"commit.manifest.min-count-to-merge": "2"}
    filling.table.transaction().set_properties(few).commit_transaction()
    filling.fill(4, 6, 8, 10)
    head = filling.table.current_snapshot()
    assert head is not None
    assert len(head.manifests(filling.table.io)) == 1
    assert filling.offsets() == filling.starts[:10]


def test_a_file_that_is_gone_counts_as_removed(tmp_path: Path) -> None:
    """Somebody else may have removed it; those after it are removed."""
    paths = [tmp_path / name for name in ("first", "gone", "last")]
    for path in paths:
        path.touch()
    paths[1].unlink()
    assert datafiles.delete_files(PyArrowFileIO(), map(str, paths)) == 3
    assert not any(path.exists() for path in paths)
