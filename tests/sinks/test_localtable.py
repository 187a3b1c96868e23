"""A Delta table on a local path after a power loss: whole, or said to be torn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest

from reput.sinks.delta.localtable import LocalTable, without_password
from reput.sinks.delta.table import DeltaTarget
from reput.store import fsops
from reput.store.errors import StoreError, SyncError
from tests.sinks.test_tables import STORE_ID, Source
from tests.support.processes import open_files
from tests.support.settings import ANY_SETTINGS
from tests.support.tables import plain_columns, plain_rows


def table_of(source: Source, table: Path, ends: list[int]) -> None:
    """A table with a version for each end."""
    follower = DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS)
    follower.position()
    start = source.log.min_offset
    for end in ends:
        source.write(follower, start, end)
        start = end


def newest_commit(table: Path) -> Path:
    """The newest version's file."""
    return max((table / "_delta_log").glob("*.json"))


def cut_at(part: float) -> Callable[[Path], None]:
    """The commit ends there."""

    def damage(table: Path) -> None:
        commit = newest_commit(table)
        data = commit.read_bytes()
        commit.write_bytes(data[: int(len(data) * part)])

    return damage


def cut_after_lines(count: int) -> Callable[[Path], None]:
    """The commit ends with a whole line; a negative count is from its end."""

    def damage(table: Path) -> None:
        commit = newest_commit(table)
        lines = commit.read_bytes().split(b"\n")
        commit.write_bytes(b"\n".join(lines[:count]) + b"\n")

    return damage


def zeroed(table: Path) -> None:
    """Its length was written, its bytes were not."""
    commit = newest_commit(table)
    commit.write_bytes(bytes(commit.stat().st_size))


def added_file(table: Path) -> Path:
    """A data file of the newest version."""
    actions = [json.loads(line) for line in newest_commit(table).read_bytes().splitlines()]
    return table / unquote(next(action["add"]["path"] for action in actions if "add" in action))


def without_a_file(table: Path) -> None:
    """A data file's name was not written."""
    added_file(table).unlink()


def with_a_cut_file(table: Path) -> None:
    """Some of its bytes were not written."""
    path = added_file(table)
    path.write_bytes(path.read_bytes()[:-1])


def with_an_empty_file(table: Path) -> None:
    """Nor its bytes."""
    added_file(table).write_bytes(b"")


DAMAGE = (
    cut_at(0.1), cut_at(0.5), cut_at(0.999), cut_after_lines(1), cut_after_lines(2),
    cut_after_lines(-1), cut_after_lines(-2), zeroed, without_a_file, with_an_empty_file,
    with_a_cut_file,
)  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "versions"),
    [
        pytest.param(damage, versions, marks=[pytest.mark.slow] * ((turn + versions // 2) % 2))
        for turn, damage in enumerate(DAMAGE)
        for versions in (1, 3)
    ],
)
def test_torn_version_is_named_and_its_rows_come_again(
    golden: Callable[[str], Path], tmp_path: Path, versions: int, damage: Callable[[Path], None]
) -> None:
    """Nothing is written to such a table; without the torn commit all goes on."""
    store, table = golden("plain"), tmp_path / "table"
    source = Source(store)
    ends = source.cuts(4)
    table_of(source, table, ends[:versions])
    damage(table)
    commit = newest_commit(table)
    follower = DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS)
    upkeep = DeltaTarget(str(table)).upkeep()
    for look in (follower.position, follower.position, upkeep.compact, upkeep.expire):
        with pytest.raises(StoreError, match="torn") as raised:
            look()
        assert str(commit) in str(raised.value)
    commit.unlink()
    position = follower.position()
    assert position == (ends[versions - 2] if versions > 1 else None)
    source.write(follower, source.log.min_offset if position is None else position, ends[-1])
    assert plain_columns(table) == plain_rows(store)


def test_commits_of_earlier_versions_are_torn_without_their_position(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """They do not say how many transactions they include, and include one, in their last line."""
    table, source = tmp_path / "table", Source(golden("plain"))
    ends = source.cuts(2)
    table_of(source, table, ends)
    commit = newest_commit(table)
    actions = [json.loads(line) for line in commit.read_bytes().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            del action["commitInfo"]["reputTransactions"]
    others = [action for action in actions if "txn" not in action]
    one = next(action for action in actions if "txn" in action)

    def write(lines: list[dict[str, object]]) -> None:
        commit.write_text("".join(json.dumps(line) + "\n" for line in lines))

    write(others)
    with pytest.raises(StoreError, match="its end is missing"):
        DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS).position()
    write([*others, one])
    assert DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS).position() == ends[-1]


def test_empty_commit_adds_nothing(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """The rows of a file that ext4 lost, for it was not synced, come again by themselves. A write
    leaves nothing open."""
    store, table = golden("plain"), tmp_path / "table"
    source = Source(store)
    ends = source.cuts(4)
    table_of(source, table, ends[:3])
    newest_commit(table).write_bytes(b"")
    follower = DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS)
    assert follower.position() == ends[1]
    source.write(follower, ends[1], ends[3])
    assert open_files(table) == 0
    assert plain_columns(table) == plain_rows(store)


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_a_version_begins_when_those_before_it_are_on_disk(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A follower whose sync has failed writes no more; a new one syncs what it finds first."""

    def fail(ordinal: int) -> None:
        monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(f"sync:{ordinal}=EIO"))

    store, table = golden("plain"), tmp_path / "a table"
    url = form.format(str(table).replace(" ", "%20") if "file" in form else table)
    source = Source(store)
    first, second, end = source.cuts(3)
    follower = DeltaTarget(url).open(STORE_ID, ANY_SETTINGS)
    assert follower.position() is None
    source.write(follower, source.log.min_offset, first)
    fail(1)
    with pytest.raises(SyncError):
        source.write(follower, first, second)
    with pytest.raises(SyncError):
        follower.position()
    fail(1)
    follower = DeltaTarget(url).open(STORE_ID, ANY_SETTINGS)
    with pytest.raises(SyncError):
        follower.position()
    fail(3)  # after those of two requests for the position
    follower = DeltaTarget(url).open(STORE_ID, ANY_SETTINGS)
    assert follower.position() == second
    with pytest.raises(SyncError):
        follower.truncate(first)
    fail(0)
    follower = DeltaTarget(url).open(STORE_ID, ANY_SETTINGS)
    assert follower.position() == first
    source.write(follower, first, end)
    assert plain_columns(table) == plain_rows(store)


@pytest.mark.parametrize("act", ["compact", "expire"])
def test_an_upkeep_ends_when_what_it_did_is_on_disk(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """It syncs what it finds, and then what it has done."""
    source, table = Source(golden("plain")), str(tmp_path / "table")
    follower = DeltaTarget(table).open(STORE_ID, ANY_SETTINGS)
    assert follower.position() is None
    source.write(follower, source.log.min_offset, source.cuts(1)[0])
    for ordinal in (1, 2):
        failing = fsops._Failpoints(f"sync:{ordinal}=EIO")
        monkeypatch.setattr(fsops, "_failpoints", failing)
        with pytest.raises(SyncError):
            getattr(DeltaTarget(table).upkeep(), act)()


def test_only_local_tables_are_synced() -> None:
    """An object store has no files."""
    assert LocalTable.of("s3://bucket/table") is None
    assert LocalTable.of("table") is not None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://ann:secret@bucket/a/b", "s3://bucket/a/b"),
        ("az://ann:@box:10000/a", "az://box:10000/a"),
        ("of s3://a:secret@b/c and s3://d:secret@e", "of s3://b/c and s3://e"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
        ("file:///data/a:b@c", "file:///data/a:b@c"),
        ("/data/ann:b@c", "/data/ann:b@c"),
        ("http://box:9000/a@b", "http://box:9000/a@b"),
    ],
)
def test_a_table_is_named_without_its_password(text: str, shown: str) -> None:
    """Neither in a log line nor in an error; what only looks like one stays."""
    assert without_password(text) == shown
    if "://" in text and " " not in text:
        assert DeltaTarget(text).description == shown
