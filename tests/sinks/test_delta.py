"""Properties of Delta tables alone: partitions by topic and date, and form and position as
transactions of the protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from reput.sinks.delta.table import DeltaTarget
from reput.sinks.tables.follower import TableFollower
from reput.store.errors import UsageError
from reput.store.rows.rowform import AS_STORED, DEFAULT_FORM, RowForm
from tests.sinks.test_tables import STORE_ID, Source, plain_source
from tests.support.settings import ANY_SETTINGS
from tests.support.tables import plain_columns, plain_rows, table_rows
from tests.support.wire import PlainLog


@pytest.fixture
def source(golden: Callable[[str], Path]) -> Source:
    """The log of golden store plain."""
    return Source(golden("plain"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The table's root, which does not exist yet."""
    return tmp_path / "table"


def test_partitions_are_topics_and_dates(source: Source, table: Path) -> None:
    """The date is that of the store's time, in UTC."""
    follower = DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS)
    assert follower.position() is None
    source.write(follower, source.log.min_offset, source.end)
    assert plain_columns(table) == plain_rows(source.store)
    assert DeltaTable(table).metadata().partition_columns == ["topic", "date"]


@pytest.mark.parametrize("url", ["{}/50%20", "{}/5%4a", "{}/5%4A", "file://{}/50%2520", "table"])
def test_a_path_that_the_library_misreads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """It would write one directory and read another; other percent signs do no harm."""
    here = tmp_path if "{}" in url else tmp_path / "5%20"
    here.mkdir(exist_ok=True)
    monkeypatch.chdir(here)
    at = url.format(tmp_path)
    with pytest.raises(DeltaError, match="File not found"):
        deltalake.write_deltalake(at, pa.table({"a": [1]}))
    with pytest.raises(UsageError, match=r"a Delta table cannot be at .*: .*another path"):
        DeltaTarget(at)


def test_another_percent_sign_in_a_path_does_no_harm(tmp_path: Path) -> None:
    """It stands for itself in a path, and in a URL it stands with two digits for a character."""
    for sound in f"{tmp_path}/50%", f"{tmp_path}/5%G0", f"file://{tmp_path}/5%200":
        deltalake.write_deltalake(sound, pa.table({"a": [1]}))
        assert DeltaTarget(sound).local_path is not None


def test_two_writers_of_one_store_cannot_both_add_a_range(source: Source, table: Path) -> None:
    """Both stand at the same position; the second commit is refused, also the table's first."""
    first, second, end = source.cuts(3)
    start = source.log.min_offset
    ours, theirs = (DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS) for _ in range(2))
    assert ours.position() is theirs.position() is None
    source.write(ours, start, first)
    with pytest.raises(Exception, match="already exists"):
        source.write(theirs, start, second)
    assert theirs.position() == first
    source.write(ours, first, second)
    with pytest.raises(CommitFailedError):
        source.write(theirs, first, end)
    assert theirs.position() == second
    source.write(theirs, second, end)
    assert plain_columns(table) == plain_rows(source.store)


@pytest.mark.parametrize("identity", [STORE_ID, "f" * 32])
def test_a_table_that_another_writer_makes_during_the_first_write(
    source: Source, table: Path, identity: str
) -> None:
    """The library would try again, and add the rows to that table, as it does after its look for
    one."""
    first, second, end = source.cuts(3)
    start = source.log.min_offset
    ours = DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS)
    theirs = DeltaTarget(str(table)).open(identity, ANY_SETTINGS)
    assert ours.position() is theirs.position() is None

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield from source.rows(start, second)
        # in a thread of its own, which does not wait for these rows
        other = threading.Thread(target=source.write, args=(theirs, start, first))
        other.start()
        other.join()

    with pytest.raises(DeltaError, match="commit"):
        ours.write(start, second, overtaken())
    if identity == STORE_ID:
        assert ours.position() == first
    else:
        with pytest.raises(UsageError, match="rows of other writers"):
            ours.position()
    source.write(theirs, first, end)
    assert plain_columns(table) == plain_rows(source.store)


def test_a_writer_is_refused_that_made_a_table_in_which_another_one_goes_on(
    source: Source, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the newest version for that of its own commit, and add the same rows."""
    first, second, end = source.cuts(3)
    ours, theirs = (DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS) for _ in range(2))
    assert ours.position() is None
    made = deltalake.write_deltalake

    def overtaken(*arguments: Any, **options: Any) -> None:
        made(*arguments, **options)
        monkeypatch.undo()
        assert theirs.position() == first
        source.write(theirs, first, second)

    monkeypatch.setattr(deltalake, "write_deltalake", overtaken)
    source.write(ours, source.log.min_offset, first)
    with pytest.raises(CommitFailedError, match="Concurrent transaction"):
        source.write(ours, first, end)
    assert ours.position() == second
    source.write(ours, second, end)
    assert plain_columns(table) == plain_rows(source.store)


@pytest.mark.parametrize("has_rows", [True, False])
def test_a_cut_is_refused_where_another_writer_goes_on(
    source: Source, table: Path, monkeypatch: pytest.MonkeyPatch, *, has_rows: bool
) -> None:
    """Its position would go back to the cut, and its rows would stay."""
    first, second, end = source.cuts(3)
    ours, theirs = (DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS) for _ in range(2))
    assert ours.position() is None
    source.write(ours, source.log.min_offset, first)
    if has_rows:
        source.write(ours, first, second)
    else:
        ours.write(first, second, iter(()))
    cut = DeltaTable.delete

    def overtaken(opened: DeltaTable, *arguments: Any, **options: Any) -> Any:
        deleted = cut(opened, *arguments, **options)
        monkeypatch.undo()
        source.write(theirs, theirs.position() or 0, end)
        return deleted

    monkeypatch.setattr(DeltaTable, "delete", overtaken)
    if has_rows:
        ours.truncate(first)
        expected = plain_rows(source.store)
    else:
        with pytest.raises(CommitFailedError, match="Concurrent transaction"):
            ours.truncate(first)
        expected = [
            row for row in plain_rows(source.store)
            if not first <= row["physicalOffset"] < second
        ]  # fmt: skip
    assert ours.position() == end
    assert plain_columns(table) == expected


def test_a_table_keeps_the_form_that_it_began_with(source: Source, table: Path) -> None:
    """One of an earlier version, which does not say, has everything; a contradiction is refused,
    and what the refusal advises works."""
    first, second, end = source.cuts(3)
    shared, start = "a", source.log.min_offset
    old = DeltaTarget(str(table), store_id=shared).open(STORE_ID, ANY_SETTINGS)
    assert old.position() is None
    source.write(old, start, first)
    forget_form(table, f"reput:{shared}")
    internal = RowForm(include_internal=True)

    def opened(form: RowForm, store_id: str = shared) -> TableFollower:
        follower = DeltaTarget(str(table), form=form, store_id=store_id).open("", ANY_SETTINGS)
        follower.position()
        return follower

    for form in (DEFAULT_FORM, AS_STORED, internal):
        assert opened(form).row_form() == AS_STORED
    with pytest.raises(UsageError, match="internal records and bodies as stored, which cannot"):
        opened(RowForm(max_inflated_bytes=77)).row_form()
    source.follow(opened(DEFAULT_FORM), first, second)
    assert opened(DEFAULT_FORM).row_form() == AS_STORED
    # another store in the same table begins with a form of its own
    other = opened(DEFAULT_FORM, "b")
    assert (other.position(), other.row_form()) == (None, DEFAULT_FORM)
    source.follow(other, start, end)
    assert opened(DEFAULT_FORM, "b").row_form() == DEFAULT_FORM
    for form in (AS_STORED, internal, RowForm(max_inflated_bytes=77)):
        with pytest.raises(UsageError, match="no internal records and bodies inflated up to 16777"):
            opened(form, "b").row_form()
    other = opened(DEFAULT_FORM, "b")
    other.truncate(first)
    assert (other.position(), other.row_form()) == (first, DEFAULT_FORM)
    assert opened(DEFAULT_FORM).position() == second


def forget_form(table: Path, application: str) -> None:
    """Make the table's first commit one of an earlier version, which stored no form."""
    path = table / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    kept = [
        action
        for action in actions
        if not action.get("txn", {}).get("appId", "").startswith(f"{application}:")
    ]
    assert len(actions) - len(kept) == 2
    for action in kept:
        action.get("commitInfo", {}).pop("reputTransactions", None)
    path.write_text("".join(json.dumps(action) + "\n" for action in kept), "utf-8")


def test_topics_that_can_name_no_directory(tmp_path: Path) -> None:
    """Too long when written as a path, or empty; each still has its name, odd ones are theirs."""
    long = ["订" * 28, "订" * 80, "订" * 79 + "单", "a" * 250, "%" * 84]
    short = ["a" * 249, "%" * 83, "订" * 27, "..", "a/b", "a\0b\n=c", "null", "__HIVE__"]
    log, table = PlainLog(1 << 20), tmp_path / "table"
    for topic in [*long, "", *short]:
        log.append(topic=topic.encode(), body=topic.encode())
    source = plain_source(tmp_path, log)
    follower = DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS)
    assert follower.position() is None
    source.write(follower, 0, log.end)
    found = table_rows(table)
    assert [row["body"].decode() for row in found] == [*long, "", *short]
    assert [row["fullTopic"] for row in found] == [*long, "", *[None] * len(short)]
    assert [row["topic"] for row in found[len(long) :]] == [None, *short]
    assert len({row["topic"] for row in found}) == len(found)


def test_a_table_on_this_machine_has_a_path() -> None:
    """A run looks there whether it would write among a store's data."""
    for url in ("/data/a b", "file:///data/a%20b", "file:/data/a%20b"):
        assert DeltaTarget(url).local_path == Path("/data/a b")
    assert DeltaTarget("s3://bucket/a").local_path is None
