"""Upkeep of an Iceberg table, beside all its writers.

pyiceberg 0.12 neither joins files nor removes any, so both are done here. A file is removed only
after a commit has taken, from what the catalog then says, the last snapshot that names it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from itertools import islice
from typing import Any

import pyarrow.fs as pafs
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
)
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from reput.sinks.iceberg.catalog import TableName, open_catalog
from reput.sinks.iceberg.datafiles import (
    commit,
    delete_files,
    is_own_file,
    rewrite_data_files,
    stage_expiry,
    stage_replacement,
)
from reput.sinks.iceberg.marks import MAIN, line, only_marks
from reput.sinks.iceberg.partitions import unfit_partition
from reput.sinks.iceberg.table import TARGET_FILE_SIZE
from reput.sinks.tables.tablerows import OWN_COLUMN
from reput.sinks.tables.upkeep import TARGET_FILE_BYTES, Compaction, Expiry
from reput.store.errors import StoreError, UsageError
from reput.store.rows.rowschema import ROWS_SCHEMA

ORPHAN_SECONDS = 24 * 3600.0
"""Age of a file that belongs to no snapshot; a commit that takes longer would lose its files."""
GROUPS_PER_COMMIT = 50
"""Number of new files of one compaction's commit. Each commit takes a snapshot's place among those
that stay."""
COMMITS = 20
"""Commits of one change that other writers may overtake."""
_LARGE = 3 / 4
_OFFSET = "physicalOffset"


class IcebergUpkeep:
    """The upkeep of one table; a ``sinks.tables.upkeep.TableUpkeep``."""

    def __init__(self, table: TableName, catalog: Mapping[str, Any], kept_snapshots: int) -> None:
        """``catalog`` as of ``sinks.iceberg.catalog.read_catalog``."""
        self._name = table
        self._properties = catalog
        self._kept_snapshots = kept_snapshots

    def compact(self, target_bytes: int | None = None) -> Compaction:
        """Join the small files of each partition, many by one commit."""
        done = Compaction()
        with open_catalog(self._name.catalog, self._properties) as catalog:
            table = self._load(catalog)
            if unfit_partition(table.metadata) is not None or not _has_our_columns(table):
                raise UsageError(
                    f"the table {self._name} has not the columns and partitions that reput writes: "
                    "compact it by the program that fills it"
                )
            if _has_equality_deletes(table):
                raise UsageError(
                    f"the table {self._name} has equality deletes, which pyiceberg cannot read: "
                    "compact it by the program that made them"
                )
            own_bytes = int(table.properties.get(TARGET_FILE_SIZE, TARGET_FILE_BYTES))
            groups = _groups(table, target_bytes or own_bytes)
            while some := [*islice(groups, GROUPS_PER_COMMIT)]:
                done = _sum(done, self._replace(catalog, _rewritten(table, some)))
        return done

    def _replace(self, catalog: Catalog, made: list[_Replacement]) -> Compaction:
        """Commit files in the place of others, until no other writer overtakes it. Those are given
        up whose old files another writer has changed."""
        ids, left = set[int](), made
        for attempt in range(COMMITS + 1):
            table = self._load(catalog)
            if not ids.isdisjoint(one.snapshot_id for one in table.metadata.snapshots):
                break
            # the last look is for the last commit alone
            left = _without_changed(table, left) if attempt < COMMITS else []
            if not left:
                break
            transaction = table.transaction()
            old = [task.file for one in left for task in one.tasks]
            new = [file for one in left for file in one.files]
            ids.add(stage_replacement(transaction, old, new))
            # what is refused may have been taken before: a box between may send a request twice
            with suppress(CommitFailedException):
                commit(catalog, table, transaction)
        given_up = {file.file_path for one in made if one not in left for file in one.files}
        if given_up:
            # our snapshot may have been taken, and expired since
            stay = _manifests(table.io, table.metadata.snapshots)
            given_up -= _live_files(table.io, stay.values())
        delete_files(table.io, given_up)
        return _compaction(left)

    def expire(self) -> Expiry:
        """Remove all but the newest snapshots of the main branch, those that only tags and other
        branches have excepted, and files that nothing names any more."""
        with open_catalog(self._name.catalog, self._properties) as catalog:
            expired, files = self._expire_snapshots(catalog)
            table = self._load(catalog)
            return Expiry(expired, files + _delete_orphans(table))

    def _expire_snapshots(self, catalog: Catalog) -> tuple[int, int]:
        """Return the numbers of snapshots and of files that were removed."""
        for _ in range(COMMITS):
            table = self._load(catalog)
            if table.properties.get("gc.enabled", "true") == "false":
                raise UsageError(
                    f"the table {self._name} has gc.enabled = false: its files may belong to other "
                    "tables, too, and are not removed"
                )
            gone = _expired(table.metadata, self._kept_snapshots)
            if not gone:
                return 0, 0
            left = _left_by(table, gone)
            transaction = table.transaction()
            stage_expiry(transaction, table, [one.snapshot_id for one in gone])
            # what was refused may have been taken before, and ValueError is the library's word for
            # a snapshot that is gone
            with suppress(CommitFailedException, ValueError):
                commit(catalog, table, transaction)
            table = self._load(catalog)
            ids = {one.snapshot_id for one in table.metadata.snapshots}
            if ids.isdisjoint(one.snapshot_id for one in gone):
                return len(gone), _delete_unnamed(table, left)
        raise StoreError(
            f"other writers have overtaken {COMMITS} commits of the table {self._name}: no "
            "snapshot was removed"
        )

    def _load(self, catalog: Catalog) -> Table:
        try:
            return catalog.load_table(self._name.identifier)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise UsageError(f"there is no table {self._name}") from error


def _has_our_columns(table: Table) -> bool:
    return {*ROWS_SCHEMA.names, OWN_COLUMN} <= set(table.schema().column_names)


def _has_equality_deletes(table: Table) -> bool:
    snapshot = table.current_snapshot()
    return snapshot is not None and any(
        entry.data_file.content == DataFileContent.EQUALITY_DELETES
        for manifest in snapshot.manifests(table.io)
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io)
    )


@dataclass(frozen=True, slots=True)
class _Replacement:
    """Files of a partition, and those that hold their rows anew."""

    tasks: list[FileScanTask]
    files: list[DataFile]


def _rewritten(table: Table, groups: list[list[FileScanTask]]) -> list[_Replacement]:
    """Write each group's rows anew; leave no file where one fails."""
    made: list[_Replacement] = []
    try:
        for tasks in groups:
            made.append(_Replacement(tasks, rewrite_data_files(table, tasks)))
    except BaseException:
        delete_files(table.io, (file.file_path for one in made for file in one.files))
        raise
    return made


def _compaction(made: Iterable[_Replacement]) -> Compaction:
    done = Compaction()
    for one in made:
        old = [task.file.file_size_in_bytes for task in one.tasks]
        new = [file.file_size_in_bytes for file in one.files]
        done = _sum(done, Compaction(len(old), sum(old), len(new), sum(new)))
    return done


def _sum(one: Compaction, other: Compaction) -> Compaction:
    return Compaction(*(a + b for a, b in zip(astuple(one), astuple(other), strict=True)))


def _groups(table: Table, target_bytes: int) -> Iterator[list[FileScanTask]]:
    """Yield files of one partition each that are small, in the order of their offsets."""
    small: dict[tuple[object, ...], list[FileScanTask]] = defaultdict(list)
    offset_id = table.schema().find_field(_OFFSET).field_id
    for task in _tasks(table):
        file, partition = task.file, task.file.partition
        is_small = file.file_size_in_bytes < target_bytes * _LARGE
        if is_small and file.spec_id == table.metadata.default_spec_id:
            small[tuple(partition[at] for at in range(len(partition)))].append(task)
    for tasks in small.values():
        tasks.sort(key=lambda task: _least_offset(task.file, offset_id))
        group, size = list[FileScanTask](), 0
        for task in tasks:
            group.append(task)
            size += task.file.file_size_in_bytes
            if size >= target_bytes:
                yield group
                group, size = [], 0
        if len(group) > 1:
            yield group


def _tasks(table: Table) -> list[FileScanTask]:
    return [task for task in table.scan().plan_files() if isinstance(task, FileScanTask)]


def _least_offset(file: DataFile, field_id: int) -> int:
    bound = (file.lower_bounds or {}).get(field_id)
    return -1 if bound is None else int.from_bytes(bound, "little", signed=True)


def _without_changed(table: Table, made: list[_Replacement]) -> list[_Replacement]:
    """Return those whose old files the main branch has still, with no other rows deleted."""
    now = {task.file.file_path: task.delete_files for task in _tasks(table)}
    return [
        one
        for one in made
        if all(now.get(task.file.file_path) == task.delete_files for task in one.tasks)
    ]


def _expired(metadata: TableMetadata, keep: int) -> list[Snapshot]:
    """The snapshots that go. One without a branch stays while it is no older than those that
    stay: it may be staged by another program, or have been rolled back a moment ago."""
    snapshots = {one.snapshot_id: one for one in metadata.snapshots}
    main = list(line(metadata.snapshot_by_name(MAIN), snapshots))
    kept = {one.snapshot_id for one in main[:keep]} | only_marks(metadata)
    for name in metadata.refs.keys() - {MAIN}:
        kept |= {one.snapshot_id for one in line(metadata.snapshot_by_name(name), snapshots)}
    since = min((one.timestamp_ms for one in main[:keep]), default=0)
    main_ids = {one.snapshot_id for one in main}
    return [
        one
        for one in metadata.snapshots
        if one.snapshot_id not in kept and (one.snapshot_id in main_ids or one.timestamp_ms < since)
    ]


@dataclass(frozen=True, slots=True)
class _Left:
    """The files of snapshots that go, as far as those that stay do not name them."""

    lists: set[str]
    manifests: set[str]
    data: set[str]


def _left_by(table: Table, gone: list[Snapshot]) -> _Left:
    """The files that snapshots will leave."""
    ids, io = {one.snapshot_id for one in gone}, table.io
    stay = _manifests(io, (one for one in table.metadata.snapshots if one.snapshot_id not in ids))
    dead = {path: one for path, one in _manifests(io, gone).items() if path not in stay}
    data = {
        entry.data_file.file_path
        for manifest in dead.values()
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
    }
    return _Left({one.manifest_list for one in gone}, {*dead}, data)


def _delete_unnamed(table: Table, left: _Left) -> int:
    """Remove what no snapshot names now; return the number of files."""
    io = table.io
    stay = _manifests(io, table.metadata.snapshots)
    data = left.data - _live_files(io, stay.values()) if left.data else set()
    return delete_files(io, (*data, *(left.manifests - stay.keys()), *left.lists))


def _manifests(io: FileIO, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    return {one.manifest_path: one for snapshot in snapshots for one in snapshot.manifests(io)}


def _live_files(io: FileIO, manifests: Iterable[ManifestFile]) -> set[str]:
    return {
        entry.data_file.file_path
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
        if entry.status != ManifestEntryStatus.DELETED
    }


def _delete_orphans(table: Table) -> int:
    """Remove data files with names of ours that no snapshot has; return their number. Broken-off
    writes and commits that were lost leave them."""
    io = table.io
    assert isinstance(io, PyArrowFileIO)
    scheme, netloc, root = io.parse_location(table.location_provider().data_path, io.properties)
    file_system = io.fs_by_scheme(scheme, netloc)
    found = file_system.get_file_info(pafs.FileSelector(root, allow_not_found=True, recursive=True))
    before = time.time() - ORPHAN_SECONDS
    old = {
        one.path
        for one in found
        if one.type == pafs.FileType.File
        and is_own_file(table, one.base_name)
        and one.mtime is not None
        and one.mtime.timestamp() < before
    }
    if old:
        live = _live_files(io, _manifests(io, table.metadata.snapshots).values())
        old -= {io.parse_location(path, io.properties)[2] for path in live}
    for path in old:
        file_system.delete_file(path)
    return len(old)
