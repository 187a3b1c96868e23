"""Rows of a dataset whose large columns are read in a second look, near clocks that were set, and
the progress of a scan: whatever the look, the rows are those of the log."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset

from reput.readers.dataset import MessageDataset
from reput.readers.sql import answer
from reput.store.config import read_store_settings
from reput.store.errors import CorruptRecordError, ReputError, StoreError, UsageError
from reput.store.rows.rowform import AS_STORED, RowForm
from tests.support.wire import PlainLog

field = dataset.field
FIRST_MS = 1_700_000_000_000
ZLIB = 0x301
"""Flags of a body that is compressed with zlib."""


def rows_of(root: Path, form: RowForm, *columns: str, **wanted: Any) -> list[tuple[Any, ...]]:
    """The values of some columns, where a column has a value."""
    condition = None
    for name, value in wanted.items():
        condition = field(name) == value
    table = MessageDataset(read_store_settings(root), form).scanner(columns, condition).to_table()
    return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


@pytest.mark.parametrize("most", [None, 99, 100, 1 << 20])
def test_bodies_are_inflated_as_far_as_was_asked(tmp_path: Path, most: int | None) -> None:
    """All columns at once, and bodies of the rows alone that a filter leaves."""
    log = PlainLog(1 << 16)
    plain, short = b"ab" * 50, b"c" * 99
    for body in (plain, short):
        log.append(topic=b"Other", body=b"x")
        log.append(topic=b"T", body=zlib.compress(body), sys_flag=ZLIB)
    log.append(topic=b"T", body=b"as it is")
    log.write(tmp_path / "commitlog")
    expected = [
        (body, None) if most is not None and len(body) <= most else (zlib.compress(body), "zlib")
        for body in (plain, short)
    ]
    expected.append((b"as it is", None))
    form = RowForm(max_inflated_bytes=most)
    assert rows_of(tmp_path, form, "body", "bodyCompression", topic="T") == expected
    whole = rows_of(tmp_path, form, "body", "bodyCompression", "topic")
    assert [row[:2] for row in whole if row[2] == "T"] == expected


def test_due_times_are_those_of_the_stores_delay_levels(tmp_path: Path) -> None:
    """A delayed message's tagsCode is its store time and the delay of its level, the last one for
    levels above it (formats.md §3)."""
    log = PlainLog(1 << 16)
    for level in (1, 2, 9):
        log.append(
            topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01%d\x02" % level,
            queue_id=level - 1, store_timestamp=FIRST_MS,
        )  # fmt: skip
    log.write(tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text("messageDelayLevel=7s 9m\n")
    due = [(FIRST_MS + delay,) for delay in (7_000, 540_000, 540_000)]
    assert rows_of(tmp_path, AS_STORED, "tagsCode") == due
    for columns in (("tagsCode",), ("tagsCode", "body", "properties")):
        found = rows_of(tmp_path, AS_STORED, *columns, topic="SCHEDULE_TOPIC_XXXX")
        assert [row[:1] for row in found] == due


@pytest.mark.parametrize("damaged", [None, 1, 2])
def test_a_clock_may_be_set_by_a_minute(tmp_path: Path, damaged: int | None) -> None:
    """A file may have messages that are a minute older than its first one, and such that are a
    minute younger than the next file's; so it may be if a file's first record is damaged."""
    log = PlainLog(1024)
    times = []
    for number in range(4):
        first = FIRST_MS + number * 600_000
        for time in (first, first - 60_000, first + 660_000):
            times.append(time)
            log.append(store_timestamp=time, body=bytes(200))
    firsts = [start for start, _ in log.spans if start % 1024 == 0]
    assert firsts == [0, 1024, 2048, 3072]
    if damaged is not None:
        log.put(firsts[damaged] + 4, bytes(4))
    log.write(tmp_path / "commitlog")
    expected = [
        (start, time)
        for (start, _), time in zip(log.spans, times, strict=True)
        if damaged is None or start != firsts[damaged]
    ]
    for time in {*times}:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time)
        found = rows_of(tmp_path, AS_STORED, "physicalOffset", storeTimestamp=at)
        assert found == [(start,) for start, stored in expected if stored == time]


@pytest.mark.parametrize("topic", [None, "Topic", "nothing"])
def test_progress_is_told_with_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str | None
) -> None:
    """In bytes of the log that were passed, also where no row is found, over a gap, to the end."""
    monkeypatch.setattr("reput.store.rows.rows.ROWS_PER_BATCH", 4)
    log = PlainLog(2048)
    for _ in range(60):
        log.append(body=bytes(100))
    log.write(tmp_path / "commitlog")
    (tmp_path / "commitlog" / f"{2048:020}").unlink()
    condition = None if topic is None else field("topic") == topic
    seen: list[tuple[int, int]] = []
    messages = MessageDataset(read_store_settings(tmp_path))
    batches = messages.batches(["body"], condition, lambda done, total: seen.append((done, total)))
    rows = sum(batch.num_rows for batch in batches)
    ends = [end for _, end in log.spans]
    assert {total for _, total in seen} == {ends[-1]}
    told = [done for done, _ in seen]
    assert told == sorted(told)
    assert told[-1] == ends[-1]
    # the steps are ends of records, of the gap or of a file
    assert {*told} <= {*ends, *range(2048, ends[-1], 2048)}
    assert len({*told}) >= len(ends) // 5
    assert (rows > 0) == (topic != "nothing")


@pytest.mark.parametrize(
    ("query", "kind", "line"),
    [
        ("", UsageError, "gives no result; select from the table messages"),
        ("select nothing from messages", UsageError, "the query cannot be run: "),
        ("select * from 'x.parquet'", UsageError, "names a file"),
        ("select topic::int from messages", StoreError, "the query failed: "),
    ],
)
def test_a_query_that_fails_is_told_from_one_that_is_none(
    tmp_path: Path, query: str, kind: type[ReputError], line: str
) -> None:
    """At once, or when its rows are read."""
    log = PlainLog(1 << 12)
    log.append(topic=b"T")
    log.write(tmp_path / "commitlog")
    messages = MessageDataset(read_store_settings(tmp_path))
    with pytest.raises(kind, match=line) as raised, answer(messages, query) as reader:
        reader.read_all()
    assert type(raised.value) is kind


def test_a_query_of_a_log_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    """The log's own error, which DuckDB would hide in one of its own."""
    log = PlainLog(1024)
    offsets = [log.append(body=bytes(100)) for _ in range(20)]
    log.put(offsets[9] + 4, bytes(4))
    log.write(tmp_path / "commitlog")
    settings = read_store_settings(tmp_path)
    query = "select count(body) from messages where topic = 'Topic'"
    messages = MessageDataset(settings, fail_on_data_loss=True)
    line = f"at physical offset {offsets[9]}"
    with pytest.raises(CorruptRecordError, match=line), answer(messages, query) as reader:
        reader.read_all()
    assert isinstance(messages.failure, CorruptRecordError)
