"""Queues as Arrow batches: the rows are what RocketMQ's queues and the plain decoder say."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from reput.readers import iteration
from reput.readers.iteration import iterate
from reput.readers.messagefilter import MessageFilter
from reput.readers.messagestore import MessageStore
from reput.store.errors import CommitLogError, QueueFileError, StoreError
from reput.store.rows.rowschema import ROWS_SCHEMA, rows_schema
from tests.readers.stores import LOG_FILE_SIZE, QUEUE_FILE_SIZE, SmallStore
from tests.support.batch_queue import BatchMessage
from tests.support.golden import GOLDEN_CASES, destroy
from tests.support.live_store import LiveStore
from tests.support.plain_queues import PlainMessage, plain_queue, queue_directories
from tests.support.processes import open_files
from tests.support.wire import file_name

UNITS = pa.schema(
    [ROWS_SCHEMA.field(name) for name in ("queueOffset", "physicalOffset", "storeSize", "tagsCode")]
)
BODIES = pa.schema([ROWS_SCHEMA.field("queueOffset"), ROWS_SCHEMA.field("body")])
TAGS = ("Tag1 || Tag3", "T1||Tag0 || \U0001f600", "nobody")
EXPRESSIONS: tuple[tuple[str, Callable[[Mapping[str, str]], bool]], ...] = (
    ("TAGS = 'Tag1'", lambda values: values.get("TAGS") == "Tag1"),
    ("KEYS IS NULL AND TAGS IS NOT NULL", lambda v: "KEYS" not in v and "TAGS" in v),
    ("a > 5", lambda values: int(values.get("a", 0)) > 5),
    ("b IN ('x', 'y') OR a IS NULL", lambda v: v.get("b") in ("x", "y") or "a" not in v),
    ("TRUE", lambda _: True),
    ("1 = 2", lambda _: False),
)


def rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    """All rows; no batch is empty."""
    found = []
    for batch in batches:
        assert len(batch)
        found += batch.to_pylist()
    return found


def unit_fields(message: PlainMessage) -> dict[str, Any]:
    """The values that a row's columns of UNITS must have."""
    return {
        "queueOffset": message.queue_offset,
        "physicalOffset": message.record.physical_offset,
        "storeSize": message.record.total_size,
        "tagsCode": message.tags_code,
    }


def assert_equal(row: dict[str, Any], message: PlainMessage) -> None:
    """The unit's columns, and those of the record that tell it from every other one."""
    assert {name: row[name] for name in UNITS.names} == unit_fields(message)
    found = message.record
    assert row["topic"].encode() == found.topic
    assert (row["queueId"], row["body"]) == (found.queue_id, found.body)
    assert dict(row["properties"]) == message.values
    assert row["tags"] == message.values.get("TAGS")
    assert round(row["storeTimestamp"].timestamp() * 1000) == found.store_timestamp
    assert row["corruptReason"] is None


def keys(found: list[dict[str, Any]]) -> list[int]:
    return [row["queueOffset"] for row in found]


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_every_queue_of_a_golden_store(golden: Callable[[str], Path], name: str, seed: int) -> None:
    """Whole, and a random part, with and without columns of the record."""
    store, rng = golden(name), random.Random(seed)
    count = 0
    with MessageStore(store) as opened:
        for directory in queue_directories(store):
            queue = (directory.parent.name, int(directory.name))
            expected = list(plain_queue(store, directory))
            found = rows(iterate(opened, *queue, max_inflated_bytes=None))
            assert len(found) == len(expected)
            for row, message in zip(found, expected, strict=True):
                assert_equal(row, message)
            assert rows(iterate(opened, *queue, schema=UNITS)) == list(map(unit_fields, expected))
            first, last = expected[0].queue_offset, expected[-1].queue_offset + 3
            start, end = sorted(rng.choices(range(first, last), k=2))
            part = keys(rows(iterate(opened, *queue, start, end, schema=UNITS)))
            # an inner batch comes whole
            held = [m.queue_offset for m in expected if m.queue_offset <= start]
            first = held[-1] if directory.parts[-3] == "batchconsumequeue" else start
            wanted = [m.queue_offset for m in expected if first <= m.queue_offset < end]
            assert part == (wanted if start < end else [])
            count += len(expected)
    assert count > 500


@pytest.mark.extended
@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_filters_on_every_queue_of_a_golden_store(
    golden: Callable[[str], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In reads and batches so small that every queue takes many."""
    monkeypatch.setattr(iteration, "UNITS_PER_READ", 97)
    monkeypatch.setattr(iteration, "ROWS_PER_BATCH", 31)
    monkeypatch.setattr(iteration, "LOG_BYTES_PER_BATCH", 10_000)
    store = golden(name)
    with MessageStore(store) as opened:
        for directory in queue_directories(store):
            queue = (directory.parent.name, int(directory.name))
            assert_filtered(opened, queue, list(plain_queue(store, directory)))


def assert_filtered(
    opened: MessageStore, queue: tuple[str, int], expected: list[PlainMessage]
) -> None:
    """Each filter takes what its plain twin takes, with and without columns of the record."""
    filters = [(MessageFilter.by_tags("*"), expected)]
    for text in TAGS:
        tags = frozenset(text.replace(" ", "").split("||"))
        messages = [m for m in expected if m.values.get("TAGS") in tags and m.has_tag_hash]
        filters.append((MessageFilter.by_tags(text), messages))
    for text, twin in EXPRESSIONS:
        messages = [m for m in expected if twin(m.values)]
        filters.append((MessageFilter.by_sql(text), messages))
    for wanted, messages in filters:
        found = rows(
            iterate(opened, *queue, message_filter=wanted, schema=BODIES, max_inflated_bytes=None)
        )
        assert [(row["queueOffset"], row["body"]) for row in found] == [
            (m.queue_offset, m.record.body) for m in messages
        ]
        units = rows(iterate(opened, *queue, message_filter=wanted, schema=UNITS))
        assert units == list(map(unit_fields, messages))


@pytest.mark.parametrize("group", ["g1", "g2"])
def test_a_registered_consumer(golden: Callable[[str], Path], group: str) -> None:
    """Bit maps rule messages out without a look into the log: those records are destroyed here."""
    store = golden("ext")
    with MessageStore(store) as opened:
        wanted = opened.consumer_filter("Topic_0", group)
        assert wanted is not None
        for queue_id in opened.queue_ids("Topic_0"):
            directory = store / "consumequeue" / "Topic_0" / str(queue_id)
            expected = list(plain_queue(store, directory))
            matching = [m for m in expected if wanted.is_matched_by_commit_log(m.values)]
            assert 0 < len(matching) < len(expected)
            found = rows(iterate(opened, "Topic_0", queue_id, message_filter=wanted))
            assert keys(found) == [m.queue_offset for m in matching]
            kept = {m.queue_offset for m in matching}
            lost = [m.record for m in expected if m.queue_offset not in kept]
            destroy(store, lost)
            left = rows(iterate(opened, "Topic_0", queue_id, message_filter=wanted))
            assert [row for row in left if row["corruptReason"] is None] == found
            # a bit map may say yes where the expression says no
            assert len(left) - len(found) < len(lost) / 2


def test_units_that_a_tag_rules_out_cost_no_look_into_the_log(
    golden: Callable[[str], Path],
) -> None:
    """Without a filter their destroyed records are rows with a reason, and so are wanted ones."""
    store = golden("plain")
    directory = store / "consumequeue" / "Topic_1" / "0"
    expected = list(plain_queue(store, directory))
    wanted = MessageFilter.by_tags("Tag2")
    unwanted = [m for m in expected if m.values.get("TAGS") != "Tag2"]
    matching = [m for m in expected if m.values.get("TAGS") == "Tag2"]
    with MessageStore(store) as opened:
        before = rows(iterate(opened, "Topic_1", 0, message_filter=wanted))
        destroy(store, [m.record for m in unwanted])
        assert rows(iterate(opened, "Topic_1", 0, message_filter=wanted)) == before
        assert len(before) == len(matching) > 5
        everything = rows(iterate(opened, "Topic_1", 0))
        reasons = {row["queueOffset"]: row["corruptReason"] for row in everything}
        assert reasons == {m.queue_offset: "zero_hole" if m in unwanted else None for m in expected}
        destroy(store, [matching[3].record])
        after = rows(iterate(opened, "Topic_1", 0, message_filter=wanted))
        assert keys(after) == keys(before)
        assert after[3]["corruptReason"] == "zero_hole"
        # units alone: nobody can see it
        assert len(rows(iterate(opened, "Topic_1", 0, schema=UNITS))) == len(expected)


def test_tags_with_the_same_hash(tmp_path: Path) -> None:
    """Java's hashes of Aa and BB are equal: the text decides, whichever columns are wanted."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"Aa", b"BB", b"Aa", b"C", b"BB")
        live.dispatch()
        wanted = MessageFilter.by_tags("BB || D")
        with MessageStore(live.root, output=live.output) as opened:
            for schema in (UNITS, BODIES, ROWS_SCHEMA):
                found = rows(iterate(opened, "T", 0, schema=schema, message_filter=wanted))
                assert keys(found) == [1, 4]


def test_what_is_dispatched_later_is_there_for_the_next_call(tmp_path: Path) -> None:
    """Up to the watermark and no further."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"A", b"A", b"A")
        live.dispatch()
        with MessageStore(live.root, output=live.output) as opened:
            live.append_tags(b"B", b"C")
            opened.refresh()
            assert keys(rows(iterate(opened, "T", 0, schema=UNITS))) == [0, 1, 2]
            live.dispatch()
            assert keys(rows(iterate(opened, "T", 0))) == [0, 1, 2]
            opened.refresh()
            found = rows(iterate(opened, "T", 0, 3))
            assert [(row["queueOffset"], row["tags"]) for row in found] == [(3, "B"), (4, "C")]
            assert rows(iterate(opened, "T", 0, 5)) == []


def test_a_missing_queue_file_is_said(tmp_path: Path) -> None:
    """Never a silent gap."""
    small = SmallStore(tmp_path)
    for _ in range(35):
        small.append()
    small.write()
    queue = tmp_path / "consumequeue" / "Topic" / "0"
    (queue / file_name(QUEUE_FILE_SIZE)).unlink()
    with MessageStore(tmp_path) as opened:
        assert keys(rows(iterate(opened, "Topic", 0, 20))) == list(range(20, 35))
        with pytest.raises(QueueFileError, match="no file with offset 10;") as caught:
            rows(iterate(opened, "Topic", 0))
    assert caught.value.fields == {"retriable": False, "path": str(queue), "queue_offset": 10}


def test_offsets_that_jump_between_inner_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From every offset on, in files of three units, read one by one: each batch once."""
    monkeypatch.setattr(iteration, "UNITS_PER_READ", 1)
    small = SmallStore(tmp_path)
    bases = {3: 4, 7: 1, 10: 2, 30: 5, 35: 5, 40: 1, 90: 3, 100: 1}
    units = []
    for base, batch_size in bases.items():
        offset = small.log.append(topic=b"Topic", queue_offset=base)
        size = small.log.end - offset
        units.append(BatchMessage(offset, size, base=base, batch_size=batch_size).unit)
    small.write()
    directory = tmp_path / "batchconsumequeue" / "Topic" / "0"
    directory.mkdir(parents=True)
    for first in range(0, len(units), 3):
        data = b"".join(units[first : first + 3]).ljust(138, b"\0")
        (directory / file_name(first * 46)).write_bytes(data)
    with (tmp_path / "broker.conf").open("a") as conf:
        conf.write("mapperFileSizeBatchConsumeQueue=138\n")
    with MessageStore(tmp_path) as opened:
        assert opened.queue("Topic", 0).max_offset() == 101
        for start in range(102):
            for end in (start, start + 1, start + 20, None):
                found = keys(rows(iterate(opened, "Topic", 0, start, end, schema=UNITS)))
                last = 101 if end is None else end
                assert found == [
                    base for base, n in bases.items() if base + n > start and base < last > start
                ]
    (directory / file_name(138)).unlink()
    with MessageStore(tmp_path) as opened, pytest.raises(QueueFileError, match="no file with"):
        rows(iterate(opened, "Topic", 0, schema=UNITS))


@pytest.fixture
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every queue takes many batches, and threads read ahead whatever the machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(iteration, "UNITS_PER_READ", 17)
    monkeypatch.setattr(iteration, "ROWS_PER_BATCH", 5)


@pytest.mark.usefixtures("many_parts")
def test_a_store_that_changes_while_threads_read(golden: Callable[[str], Path]) -> None:
    """Refreshed, asked something else and closed at each batch: the rows are what they were."""
    store = golden("plain")
    expected = list(plain_queue(store, store / "consumequeue" / "Topic_1" / "0"))
    with MessageStore(store) as opened:
        found = []
        for batch in iterate(opened, "Topic_1", 0):
            found += batch.to_pylist()
            opened.close()
            # as when a file comes: all that is known of the directory is looked at again
            os.utime(store / "commitlog")
            opened.refresh()
            assert len(opened.queue("Topic_1", 0).get_message(0, 3).messages) == 3
        for row, message in zip(found, expected, strict=True):
            assert_equal(row, message)


@pytest.mark.usefixtures("many_parts")
def test_a_queue_that_nobody_reads_to_its_end(golden: Callable[[str], Path]) -> None:
    """Closed or dropped after any number of batches: no thread and no open file stays."""
    store = golden("plain")
    with MessageStore(store) as opened:
        whole = list(iterate(opened, "Topic_1", 0))
        assert len(whole) > 10
        for count in range(len(whole)):
            batches = iterate(opened, "Topic_1", 0)
            assert list(islice(batches, count)) == whole[:count]
            del batches
            names = {thread.name for thread in threading.enumerate()}
            assert not any(name.startswith("reput-read-ahead") for name in names)
    assert open_files(store) == 0


@pytest.mark.usefixtures("many_parts")
def test_rows_before_what_cannot_be_read_are_given(tmp_path: Path) -> None:
    """A file of the queue that is gone, and one of the log that cannot be opened any more."""
    small = SmallStore(tmp_path)
    offsets = [small.append(body=bytes(200)) for _ in range(45)]
    small.write()
    first_lost = next(index for index, at in enumerate(offsets) if at >= 2 * LOG_FILE_SIZE)
    assert 20 < first_lost < 30
    queue_file = tmp_path / "consumequeue" / "Topic" / "0" / file_name(3 * QUEUE_FILE_SIZE)
    kept = queue_file.rename(tmp_path / "kept")
    with MessageStore(tmp_path) as opened:
        assert given_before(opened, QueueFileError, "no file with offset 30;") == list(range(30))
    kept.rename(queue_file)
    with MessageStore(tmp_path) as opened:
        path = tmp_path / "commitlog" / file_name(2 * LOG_FILE_SIZE)
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        lost = given_before(opened, CommitLogError, "cannot read commitlog file")
        assert lost == list(range(len(lost)))
        assert first_lost - 5 < len(lost) <= first_lost


def given_before(opened: MessageStore, error: type[StoreError], match: str) -> list[int]:
    """Queue offsets that came before an error; nothing comes after it."""
    batches, found = iterate(opened, "Topic", 0), []
    with pytest.raises(error, match=match):
        for batch in batches:
            found += batch.column("queueOffset").to_pylist()
    assert list(batches) == []
    return found


def test_columns_are_those_asked_for(golden: Callable[[str], Path]) -> None:
    """In the order asked for; what a filter needs besides is not given."""
    names = ["storeTimestamp", "queueOffset", "body"]
    schema = pa.schema([ROWS_SCHEMA.field(name) for name in names])
    with MessageStore(golden("plain")) as opened:
        for wanted in (None, MessageFilter.by_tags("Tag1"), MessageFilter.by_sql("a > 3")):
            batches = list(iterate(opened, "Topic_0", 0, schema=schema, message_filter=wanted))
            assert {batch.schema for batch in batches} == {schema}
            no_body = rows_schema(include_body=False)
            batches = list(iterate(opened, "Topic_0", 0, schema=no_body, message_filter=wanted))
            assert {batch.schema for batch in batches} == {no_body}
        assert list(iterate(opened, "Nothing", 0)) == []
