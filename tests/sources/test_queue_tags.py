"""Messages of queues by tags where units say less than tags do: the log then decides.

What is expected is told by the plain decoder of the log, which knows no units.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, Filter, In
from pyspark.sql.pandas.types import from_arrow_schema

from reput.sources.commitlog import CommitLogBatchReader
from reput.sources.commitlogoptions import CommitLogOptions
from reput.sources.consumequeue import PushingBatchReader
from reput.sources.queueoptions import ConsumeQueueOptions
from reput.store.errors import CommitLogDataLossError, CorruptRecordError
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.readers.stores import SmallStore, java_hash
from tests.sources.test_queue_rows import batch_reader, rows_of
from tests.sources.test_rows import reference
from tests.support.golden import destroy
from tests.support.queue_units import queue_units

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


def places(store: Path, *, topic: str | None, tags: set[str | None]) -> list[int]:
    """Physical offsets of a topic's messages with some tags that are in a queue."""
    queued = {unit.offset for unit in queue_units(store)}
    return sorted(
        found.physical_offset
        for found in reference(store)
        if found.physical_offset in queued
        and topic in (None, found.topic.decode())
        and found.property_map.get(b"TAGS", b"").decode() in tags
    )


def read_places(store: Path, **options: object) -> list[int]:
    """Physical offsets of the rows of a read."""
    return sorted(row["physicalOffset"] for row in rows_of(batch_reader(store, **options)))


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_tags_whose_ext_units_are_gone_are_looked_for_in_the_log(
    golden: Callable[[str], Path], gone: int
) -> None:
    """Some queues have lost them, or all; the text decides, as for RocketMQ's client."""
    store = golden("ext")
    for number, directory in enumerate(sorted((store / "consumequeue_ext").glob("*/*"))):
        if gone == 2 or (gone == 1 and number % 2):
            shutil.rmtree(directory)
    tags = {found.property_map[b"TAGS"].decode()
            for found in reference(store) if b"TAGS" in found.property_map}  # fmt: skip
    for tag in sorted(tags)[:3]:
        expected = places(store, topic=None, tags={tag})
        assert expected
        assert read_places(store, tags=tag) == expected


@pytest.mark.parametrize("name", ["mixed", "broker"])
def test_delayed_messages_have_tags_too(golden: Callable[[str], Path], name: str) -> None:
    """Their units hold due times in place of hashes."""
    store = golden(name)
    by_tag = {
        tag: places(store, topic=SCHEDULE, tags={tag})
        for tag in {found.property_map.get(b"TAGS", b"").decode() for found in reference(store)}
        if tag
    }
    assert sum(map(len, by_tag.values())) > 3
    for tag, expected in by_tag.items():
        assert read_places(store, topics=SCHEDULE, tags=tag) == expected


def test_due_times_are_those_of_the_stores_delay_levels(tmp_path: Path) -> None:
    """By both sources, as RocketMQ computes them when it dispatches (formats.md §3)."""
    small, at = SmallStore(tmp_path, SCHEDULE.encode()), 1_700_000_000_000
    delays = (7_000, 540_000, 540_000)
    for level, delay in zip((1, 2, 9), delays, strict=True):
        text = b"DELAY\x01%d\x02" % level
        small.append(at + delay, queue_id=level - 1, properties=text, store_timestamp=at)
    small.write()
    with (tmp_path / "broker.conf").open("a") as conf:
        conf.write("messageDelayLevel=7s 9m\n")
    schema, options = from_arrow_schema(ROWS_SCHEMA), {"path": str(tmp_path)}
    log = CommitLogBatchReader(CommitLogOptions({**options, "includeInternal": "true"}), schema)
    rows = [row for part in log.partitions() for one in log.read(part) for row in one.to_pylist()]
    for found in (rows, rows_of(batch_reader(tmp_path, includeInternal=True))):
        assert [row["tagsCode"] - at for row in found] == [*delays]


def test_a_damaged_record_of_a_wanted_tag_is_a_row(tmp_path: Path) -> None:
    """Nobody knows whether its text was wanted; a unit of another tag is not looked up."""
    small = SmallStore(tmp_path)
    tags = ("Aa", "C", "BB", "C", "Aa")
    offsets = [
        small.append(java_hash(tag), properties=f"TAGS\x01{tag}\x02".encode()) for tag in tags
    ]
    start, end = small.log.spans[2]
    for damaged in offsets[1:3]:
        small.log.put(damaged + 4, bytes(4))
    small.write()
    rows = rows_of(batch_reader(tmp_path, tags="Aa"))
    assert [(row["queueOffset"], row["corruptReason"], row["tags"]) for row in rows] == [
        (0, None, "Aa"), (2, "bad_magic", None), (4, None, "Aa")
    ]  # fmt: skip
    line = rf"BAD_MAGIC.*offset {start}, {end - start} bytes are no record"
    with pytest.raises(CorruptRecordError, match=line):
        rows_of(batch_reader(tmp_path, tags="Aa", onCorrupt="fail"))
    assert read_places(tmp_path, tags="nobody", onCorrupt="fail") == []


def test_the_upper_half_of_a_tags_code_is_of_no_account(tmp_path: Path) -> None:
    """RocketMQ compares ``tagsCode.intValue()``, for hashes below zero, too."""
    small, half = SmallStore(tmp_path), 1 << 32
    tags = ["Aa", "other", "below zero"] * 3
    for number, tag in enumerate(tags):
        upper = (0, 1, 1 << 30)[number // 3] * half
        properties = f"TAGS\x01{tag}\x02".encode()
        small.append(java_hash(tag) % half + upper, properties=properties)
    small.write()
    for wanted in ("Aa", "below zero"):
        rows = rows_of(batch_reader(tmp_path, tags=wanted))
        assert [tags[row["queueOffset"]] for row in rows] == [wanted] * 3


def test_pushed_filters_and_options_both_hold(golden: Callable[[str], Path]) -> None:
    """A filter never widens what an option chose; a value that is null chooses nothing."""
    store = golden("plain")
    records = reference(store)
    names = sorted({found.topic.decode() for found in records})
    tag, other = sorted(
        {found.property_map.get(b"TAGS", b"").decode() for found in records} - {""}
    )[:2]
    topics = {"topics": ",".join(names[:2]), "queueIds": "0,1"}
    cases: list[tuple[dict[str, str], Filter, tuple[str, ...], set[int], set[str] | None]] = [
        (topics, EqualTo(("topic",), names[1]), (names[1],), {0, 1}, None),
        (topics, In(("topic",), (names[1], names[2])), (names[1],), {0, 1}, None),
        (topics, EqualTo(("topic",), names[2]), (), {0, 1}, None),
        (topics, In(("queueId",), (1, 2, None)), tuple(names[:2]), {1}, None),
        (topics, In(("topic",), (None,)), (), {0, 1}, None),
        ({"queueIds": "0,1"}, In(("queueId",), (1, 2)), tuple(names), {1}, None),
        ({"tags": tag}, In(("tags",), (tag, None)), tuple(names), {0, 1, 2, 3}, {tag}),
        ({"tags": tag}, EqualTo(("tags",), other), (), {0, 1, 2, 3}, {tag}),
        ({"tags": f"{tag}||{other}"}, In(("tags",), (other,)), tuple(names), {0, 1, 2, 3}, {other}),
        ({"tags": tag}, In(("queueOffset",), ()), tuple(names), {0, 1, 2, 3}, {tag}),
    ]
    for options, pushed, wanted, queue_ids, tags in cases:
        given = {"path": str(store), **options}
        reader = PushingBatchReader(ConsumeQueueOptions(given), from_arrow_schema(ROWS_SCHEMA))
        reader.pushFilters([pushed])
        found = sorted(row["physicalOffset"] for row in rows_of(reader))
        assert found == [
            one.physical_offset
            for one in records
            if one.topic.decode() in wanted
            and one.queue_id in queue_ids
            and (tags is None or one.property_map.get(b"TAGS", b"").decode() in tags)
        ] or (pushed.attribute == ("queueOffset",) and not found), pushed


def test_bodies_are_checked_where_it_is_asked_for(golden: Callable[[str], Path]) -> None:
    """RocketMQ's queues know nothing of bodies."""
    store = golden("plain")
    victim = next(found for found in reference(store) if found.body)
    file = sorted((store / "commitlog").iterdir())[0]
    with file.open("r+b") as out:
        out.seek(victim.physical_offset + 88)
        out.write(bytes([victim.body[0] ^ 1]))
    assert not any(row["corruptReason"] for row in rows_of(batch_reader(store)))
    (bad,) = (row for row in rows_of(batch_reader(store, verifyCrc=True)) if row["corruptReason"])
    place = (bad["topic"], bad["queueId"], bad["queueOffset"])
    assert place == (victim.topic.decode(), victim.queue_id, victim.queue_offset)
    assert (bad["physicalOffset"], bad["corruptReason"]) == (victim.physical_offset, "bad_body_crc")


def test_losing_of_several_kinds_is_told_apart(golden: Callable[[str], Path]) -> None:
    """A lost file is a matter of failOnDataLoss, and damage one of onCorrupt, also in one read."""
    store = golden("plain")
    records = reference(store)
    files = sorted((store / "commitlog").iterdir())
    size = files[0].stat().st_size
    lost = [one for one in records if one.physical_offset // size == 2]
    files[2].unlink()
    options = {"failOnDataLoss": "false", "onCorrupt": "fail"}
    rows = rows_of(batch_reader(store, **options))
    reasons = {row["physicalOffset"]: row["corruptReason"] for row in rows}
    gone = [place for place, reason in reasons.items() if reason == "segment_deleted"]
    assert sorted(gone) == [one.physical_offset for one in lost]
    victim = next(one for one in records if one.physical_offset > lost[-1].physical_offset)
    destroy(store, [victim])
    with pytest.raises(CorruptRecordError, match=rf"ZERO_HOLE.*offset {victim.physical_offset}\b"):
        rows_of(batch_reader(store, **options))


@pytest.mark.parametrize("first", [1000, 1003, 999])
def test_files_that_vanish_after_the_plan_are_a_loss(
    golden: Callable[[str], Path], caplog: pytest.LogCaptureFixture, first: int
) -> None:
    """The newest ones, also where a range has no other file: a read that finds nothing would pass
    all of its messages in silence."""
    store = golden("broker")
    newest = max((store / "consumequeue" / "Orders" / "0").iterdir())
    assert int(newest.name) == 1000 * 20
    where = json.dumps({"Orders": {"0": first}})
    options = {"topics": "Orders", "queueIds": "0", "startingOffsets": where}
    strict, lax = (
        batch_reader(store, **options, failOnDataLoss=str(fails).lower()) for fails in (True, False)
    )
    (part,), (same,) = strict.partitions(), lax.partitions()
    newest.unlink()
    with pytest.raises(CommitLogDataLossError, match=r"END_ABOVE_MAX: .*/Orders/0 ends at unit "):
        list(strict.read(part))
    rows = [row for batch in lax.read(same) for row in batch.to_pylist()]
    assert [row["queueOffset"] for row in rows] == list(range(first, 1000))
    assert "END_ABOVE_MAX" in caplog.text
