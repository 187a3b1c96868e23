"""Whole queues in rare states: values that come twice, several batches of one read, ext units that
are gone or older than their consumer, files that expire meanwhile."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from reput.readers import iteration
from reput.readers.iteration import iterate
from reput.readers.keyscan import scan_for_key
from reput.readers.messagefilter import MessageFilter
from reput.readers.messagestore import MessageStore
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.readers.stores import LOG_FILE_SIZE, SmallStore, java_hash
from tests.readers.test_iteration import BODIES, UNITS, keys, rows
from tests.support.golden import log_records
from tests.support.plain_queues import plain_queue, queue_directories
from tests.support.wire import PlainLog, file_name

REASONS = pa.schema(
    [ROWS_SCHEMA.field(name) for name in ("queueOffset", "body", "bodyCompression",
                                          "corruptReason")]
)  # fmt: skip
ZLIB = 0x301
"""Flags of a body that is compressed with zlib."""


def pulled(opened: MessageStore, message_filter: MessageFilter, queue_id: int = 0) -> list[int]:
    """Queue offsets that a client gets from the first pull."""
    result = opened.queue("Topic", queue_id).get_message(0, message_filter=message_filter)
    return [message.queue_offset for message in result.messages]


def test_of_a_property_that_comes_twice_the_last_value_counts(tmp_path: Path) -> None:
    """For filters, keys and unique keys, in a pull and in whole queues (formats.md §2)."""
    small = SmallStore(tmp_path)
    values = [("1", "2"), ("2", "1"), ("2", "2"), ("3", "")]
    for first, second in values:
        text = "".join(
            f"{name}\x01{value}\x02" for value in (first, second)
            for name in ("a", "TAGS", "KEYS", "UNIQ_KEY") if value
        )  # fmt: skip
        small.append(java_hash(second or first), properties=text.encode())
    small.write()
    with MessageStore(tmp_path) as opened:
        for wanted in ("1", "2", "3"):
            expected = [
                number
                for number, (first, second) in enumerate(values)
                if (second or first) == wanted
            ]
            for name in ("a", "TAGS", "KEYS", "UNIQ_KEY"):
                by_sql = MessageFilter.by_sql(f"{name} = '{wanted}'")
                assert keys(rows(iterate(opened, "Topic", 0, message_filter=by_sql))) == expected
                assert pulled(opened, by_sql) == expected
            by_tag = MessageFilter.by_tags(wanted)
            assert keys(rows(iterate(opened, "Topic", 0, message_filter=by_tag))) == expected
            for is_unique in (False, True):
                found = scan_for_key(
                    opened, "Topic", wanted, is_unique=is_unique, begin_ms=0, end_ms=1 << 62
                )
                assert [message.queue_offset for message in found] == expected


@pytest.mark.parametrize("most", [1 << 20, 300, None])
@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_several_batches_of_one_read_are_the_rows_of_their_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, most: int | None
) -> None:
    """Where inflated bodies are large, with damaged records among them, which are noted once."""
    monkeypatch.setattr("reput.store.rows.rowcolumns.BYTES_PER_BATCH", size)
    small, damaged, expected = SmallStore(tmp_path, log=PlainLog(1 << 16)), 0, []
    for number in range(40):
        plain = b"%03d" % number * (150 if number % 2 else 50)
        data = zlib.compress(plain)
        offset = small.append(java_hash("x"), body=data, sys_flag=ZLIB, properties=b"TAGS\x01x\x02")
        is_plain = most is not None and len(plain) <= most
        body, codec = (plain, None) if is_plain else (data, "zlib")
        if number in (7, 8, 25, 39):
            small.log.put(offset + 4, bytes(4))
            damaged += small.log.spans[-1][1] - offset
            expected.append((number, None, None, "bad_magic"))
        else:
            expected.append((number, body, codec, None))
    # the last record of a log counts only where another one follows
    small.log.append(topic=b"Other")
    small.write()
    for message_filter in (None, MessageFilter.by_tags("x"), MessageFilter.by_sql("TAGS = 'x'")):
        with MessageStore(tmp_path) as opened:
            found = rows(
                iterate(opened, "Topic", 0, schema=REASONS, message_filter=message_filter,
                        max_inflated_bytes=most)
            )  # fmt: skip
            assert [tuple(row.values()) for row in found] == expected
            assert (opened.losses.damaged_bytes, opened.losses.lost_bytes) == (damaged, 0)


@pytest.mark.parametrize("gone", [1, 2])
def test_messages_whose_ext_unit_is_gone_are_told_by_the_log(
    golden: Callable[[str], Path], gone: int
) -> None:
    """A tag cannot rule them out, and nobody knows their tagsCode any more."""
    store = golden("ext")
    tag = next(
        found.property_map[b"TAGS"].decode()
        for found in log_records(store)
        if b"TAGS" in found.property_map
    )
    directories = queue_directories(store)
    expected = {directory: list(plain_queue(store, directory)) for directory in directories}
    kept = set(directories[::gone]) if gone > 1 else set()
    for directory in directories:
        if directory not in kept:
            place = directory.relative_to(store / "consumequeue")
            shutil.rmtree(store / "consumequeue_ext" / place)
    with MessageStore(store) as opened:
        for directory, messages in expected.items():
            queue = (directory.parent.name, int(directory.name))
            codes = [row["tagsCode"] for row in rows(iterate(opened, *queue, schema=UNITS))]
            assert codes == [one.tags_code if directory in kept else None for one in messages]
            wanted = [one.queue_offset for one in messages if one.values.get("TAGS") == tag]
            for message_filter in (
                MessageFilter.by_tags(tag),
                MessageFilter.by_sql(f"TAGS='{tag}'"),
            ):
                for schema in (UNITS, BODIES):
                    found = iterate(opened, *queue, schema=schema, message_filter=message_filter)
                    assert keys(rows(found)) == wanted
                result = opened.queue(*queue).get_message(0, message_filter=message_filter)
                first = [one for one in wanted if one < result.next_begin_offset]
                assert [one.queue_offset for one in result.messages] == first


def test_bit_maps_older_than_a_consumer_rule_nothing_out(golden: Callable[[str], Path]) -> None:
    """They do not cover it: the expression decides (``ConsumerFilterData.bornTime``)."""
    store = golden("ext")
    path = store / "config" / "consumerFilter.json"
    document = json.loads(path.read_text())
    filters = document["filterDataByTopic"]["Topic_0"]["groupFilterData"]
    times = sorted(found.store_timestamp for found in log_records(store))
    counts = []
    for born in (0, times[len(times) // 2], times[-1]):
        # another expression than that of the bit maps
        filters["g1"] |= {"expression": "TRUE", "bornTime": born}
        path.write_text(json.dumps(document))
        with MessageStore(store) as opened:
            wanted = opened.consumer_filter("Topic_0", "g1")
            assert wanted is not None
            total, old = 0, 0
            for queue_id in opened.queue_ids("Topic_0"):
                directory = store / "consumequeue" / "Topic_0" / str(queue_id)
                found = keys(rows(iterate(opened, "Topic_0", queue_id, message_filter=wanted)))
                messages = list(plain_queue(store, directory))
                old_ones = [m.queue_offset for m in messages if m.record.store_timestamp <= born]
                assert {*old_ones} <= {*found}
                total, old = total + len(messages), old + len(old_ones)
                counts.append((born, len(messages), len(found)))
            assert (old == total) == (born == times[-1])
    assert all(found == count for born, count, found in counts if born == times[-1])
    assert all(found < count for born, count, found in counts if born == 0)


def test_files_that_expire_while_a_queue_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read goes on at the first message that is left."""
    monkeypatch.setattr(iteration, "UNITS_PER_READ", 7)
    small = SmallStore(tmp_path)
    offsets = [small.append() for _ in range(100)]
    small.write()
    with MessageStore(tmp_path) as opened:
        batches = iterate(opened, "Topic", 0, schema=UNITS)
        assert keys(next(batches).to_pylist()) == list(range(7))
        (tmp_path / "commitlog" / file_name(0)).unlink()
        first = next(number for number, at in enumerate(offsets) if at >= LOG_FILE_SIZE)
        assert first > 20
        for start in range(0, first // 10 * 10, 10):
            (tmp_path / "consumequeue" / "Topic" / "0" / file_name(start * 20)).unlink()
        assert keys(rows(batches)) == list(range(first, 100))
