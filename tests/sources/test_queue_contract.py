"""Spark's contract with the consume queue source: options, ranges, limits, partitions, data loss.

The readers are called as Spark's planner calls them; where queries run is in ``test_queue_stream``.
Expected positions come from RocketMQ's units, read plainly.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, In
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from reput.sources.consumequeue import ConsumeQueueStreamReader, PushingBatchReader
from reput.sources.queueoptions import ConsumeQueueOptions
from reput.sources.queueranges import QueuePartition, UnitRange, divide
from reput.store.errors import CommitLogDataLossError, ReputError, UsageError
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.kinds import QueueKind
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.sources.test_queue_rows import batch_reader, in_queues, rows_of
from tests.sources.test_rows import EVERYTHING, reference
from tests.support.golden import tree
from tests.support.micro_batches import plain
from tests.support.queue_units import queue_units

Offsets = dict[str, dict[str, int]]


def stream_reader(store: Path, **options: object) -> ConsumeQueueStreamReader:
    """The reader as Spark's planner makes it, of every record unless ``options`` say otherwise."""
    given = {key: str(value) for key, value in {**EVERYTHING, **options}.items()}
    return ConsumeQueueStreamReader(
        ConsumeQueueOptions({"path": str(store), **given}), from_arrow_schema(ROWS_SCHEMA)
    )


def ends_of(store: Path) -> Offsets:
    """After the last unit of every consume queue."""
    found: Offsets = {}
    for unit in queue_units(store):
        found.setdefault(unit.topic, {})[str(unit.queue_id)] = unit.queue_offset + 1
    return found


def zeros(store: Path) -> Offsets:
    """The beginning of every queue."""
    return {topic: dict.fromkeys(queues, 0) for topic, queues in ends_of(store).items()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "T"}, "did you mean topics"),
        ({"subscribe": "T"}, "unknown option subscribe, which is topics here"),
        ({"subscribePattern": "T.*"}, "unknown option subscribePattern, which is topicPattern"),
        ({"topics": "A", "topicPattern": "B"}, "give topics or topicPattern, not both"),
        ({"topicPattern": "("}, "option topicPattern is '\\('; it must be a regular expression"),
        ({"queueIds": "0,1x"}, "must be queue ids, separated by commas"),
        ({"tags": "||"}, "option tags is '||'"),
        ({"tags": "sql:a > 1"}, "must be tags, TagA || TagB; filter the rows"),
        ({"tags": " || "}, "names no tag"),
        ({"startingOffsets": "12"}, "must be earliest or latest, or JSON like"),
        ({"startingOffsets": '{"T": 3}'}, "must be JSON like"),
        ({"startingOffsets": '{"T": {"0": -3}}'}, "must hold whole numbers from -2 on, not -3"),
        ({"startingOffsets": '{"T": {"00": 3}}'}, "must be JSON like"),
        ({"endingOffsets": '{"T": {"0": -2}}'}, "must hold whole numbers from -1 on, not -2"),
        ({"endingOffsets": "earliest"}, "must be latest, or JSON like"),
        ({"startingOffsetsByTimestamp": '{"T": {"0": true}}'}, "whole numbers from 0 on"),
        ({"maxRecordsPerPartition": "0"}, "must be a whole number above 0"),
        ({"maxBytesPerTrigger": "1m"}, "unknown option maxBytesPerTrigger"),
    ],
)
def test_wrong_option_is_named(tmp_path: Path, options: dict[str, str], message: str) -> None:
    """The option, the value and what would be right, in one line."""
    with pytest.raises(UsageError, match=message) as caught:
        ConsumeQueueOptions({"path": str(tmp_path), **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "must begin at or before its end"),
        ({"topics": "Topic_0, Typo"}, "option topics names Typo, for which"),
        ({"startingOffsets": '{"Topic_0": {"0": 1}}'}, "does not name topic Topic_0 queue 1 and"),
        ({"topics": "Topic_0", "queueIds": 1, "startingOffsets": '{"Topic_0": {"1": 1, "9": 1}}'},
         "names topic Topic_0 queue 9, which is not among"),
        ({"startingTimestamp": 99999999999999}, "no message of topic Topic_0 queue 0 and 23 more"),
        ({"topics": "Topic_0", "queueIds": 1, "startingOffsets": '{"Topic_0": {"1": 138}}',
          "endingOffsets": '{"Topic_0": {"1": 137}}'}, "end at 137, before its start at 138"),
        ({"topics": "Topic_0", "queueIds": 1, "startingOffsets": '{"Topic_0": {"1": 999}}'},
         "START_ABOVE_MAX: topic Topic_0 queue 1 was requested from 999, but ends at 138"),
        ({"topics": "Topic_0", "queueIds": 1, "endingOffsets": '{"Topic_0": {"1": 999}}'},
         "END_ABOVE_MAX: topic Topic_0 queue 1 was requested up to 999, but ends at 138"),
    ],
)  # fmt: skip
def test_wrong_range_of_a_batch_read_is_named(
    golden: Callable[[str], Path], options: dict[str, Any], message: str
) -> None:
    """When the read is planned, naming the queue."""
    with pytest.raises(ReputError, match=message):
        reader = batch_reader(golden("plain"), **options)
        reader.partitions()


@pytest.mark.parametrize(
    "options",
    [
        {"topics": "Topic_0,Topic_1"},
        {"startingOffsets": "zeros"},
        {"endingOffsets": "ends"},
        {"startingOffsetsByTimestamp": "zeros"},
    ],
)
@pytest.mark.parametrize(
    "pushed", [EqualTo(("topic",), "Topic_0"), In(("queueId",), (1, 3)), EqualTo(("queueId",), 9)]
)
def test_pushed_filters_leave_what_options_may_name(
    golden: Callable[[str], Path], options: dict[str, str], pushed: Filter
) -> None:
    """A queue that an option names is there, whatever a filter leaves of it."""
    store = golden("plain")
    texts = {"zeros": json.dumps(zeros(store)), "ends": json.dumps(ends_of(store))}
    given = {"path": str(store), **{key: texts.get(text, text) for key, text in options.items()}}
    reader = PushingBatchReader(ConsumeQueueOptions(given), from_arrow_schema(ROWS_SCHEMA))
    assert reader.pushFilters([pushed]) == [pushed]
    topics = options.get("topics", "").split(",")
    wanted = {
        (unit.topic, unit.queue_id)
        for unit in queue_units(store)
        if topics == [""] or unit.topic in topics
    }
    column, values = pushed.attribute[0], getattr(pushed, "value")  # noqa: B009
    values = values if isinstance(values, tuple) else (values,)
    wanted = {key for key in wanted if key[column == "queueId"] in values}
    parts = [part for part in reader.partitions() if isinstance(part, QueuePartition)]
    assert {(each.key.topic, each.key.queue_id) for part in parts for each in part.ranges} == wanted


def test_stream_refuses_batch_options(golden: Callable[[str], Path]) -> None:
    """Ends, as with Spark's Kafka source."""
    for option in ({"endingTimestamp": 5}, {"endingOffsets": "latest"}):
        with pytest.raises(UsageError, match="is for batch reads"):
            stream_reader(golden("plain"), **option)


def test_times_stand_above_offsets(golden: Callable[[str], Path]) -> None:
    """``latest``, which makes no sense for a batch read, is then of no account."""
    store = golden("plain")
    by_queue = json.dumps(zeros(store))
    given = {"startingOffsets": "latest"}
    with pytest.raises(UsageError, match="a batch read must begin at or before its end"):
        batch_reader(store, **given)
    everything = rows_of(batch_reader(store))
    assert rows_of(batch_reader(store, **given, startingTimestamp=0)) == everything
    assert rows_of(batch_reader(store, **given, startingOffsetsByTimestamp=by_queue)) == everything


def test_offsets_by_queue_and_words(golden: Callable[[str], Path]) -> None:
    """-2 and -1 mean what they mean to Kafka's source; ends are exclusive."""
    store = golden("broker")
    starts = {"Orders": {"0": -2, "1": 700, "2": -1, "3": 1499}}
    ends = {"Orders": {"0": 10, "1": 1100, "2": -1, "3": -1}}
    rows = rows_of(
        batch_reader(
            store, topics="Orders", startingOffsets=json.dumps(starts),
            endingOffsets=json.dumps(ends),
        )
    )  # fmt: skip
    wanted = [(0, offset) for offset in range(10)]
    wanted += [(1, offset) for offset in range(700, 1100)]
    wanted += [(3, 1499)]
    assert [(row["queueId"], row["queueOffset"]) for row in rows] == wanted


@pytest.mark.parametrize("name", ["plain", "batch", "broker"])
def test_times_are_looked_up_in_each_queue(golden: Callable[[str], Path], name: str) -> None:
    """From the first message at or after one time to the first one at or after another."""
    store = golden(name)
    times = {found.physical_offset: found.store_timestamp for found in reference(store)}
    ordered = sorted(times.values())
    low, high = ordered[len(ordered) // 3], ordered[len(ordered) * 2 // 3]
    assert low < high
    wanted = []
    queues: dict[tuple[str, int], list[int]] = {}
    for unit in queue_units(store):
        queues.setdefault((unit.topic, unit.queue_id), []).append(unit.offset)
    for offsets in queues.values():
        stored = [times[offset] for offset in offsets]
        wanted += offsets[bisect_left(stored, low) : bisect_left(stored, high)]
    options = {"startingOffsetsByTimestampStrategy": "latest", "endingTimestamp": high}
    rows = rows_of(batch_reader(store, startingTimestamp=low, **options))
    assert [row["physicalOffset"] for row in rows] == wanted
    by_queue = {topic: dict.fromkeys(queues, low) for topic, queues in ends_of(store).items()}
    again = batch_reader(store, startingOffsetsByTimestamp=json.dumps(by_queue), **options)
    assert rows_of(again) == rows


def test_a_batch_is_of_the_range_in_which_it_begins(golden: Callable[[str], Path]) -> None:
    """An inner batch is one row; a start inside of it takes it, the end of a range before too."""
    store = golden("batch")
    units = [unit for unit in queue_units(store) if unit.topic == "BatchTopic"]
    queue = [unit for unit in units if unit.queue_id == units[0].queue_id]
    following = queue[5].queue_offset
    assert following - queue[4].queue_offset > 1
    only = {"topics": "BatchTopic", "queueIds": queue[0].queue_id}
    inside = {"BatchTopic": {str(queue[0].queue_id): following - 1}}
    found = rows_of(batch_reader(store, startingOffsets=json.dumps(inside), **only))
    assert [row["physicalOffset"] for row in found] == [unit.offset for unit in queue[4:]]
    found = rows_of(batch_reader(store, endingOffsets=json.dumps(inside), **only))
    assert [row["physicalOffset"] for row in found] == [unit.offset for unit in queue[:4]]


@pytest.mark.parametrize(
    ("options", "count", "longest"),
    [
        ({}, 1, 6120),
        ({"minPartitions": 3}, 3, 2045),
        ({"minPartitions": 20}, 20, 311),
        ({"maxRecordsPerPartition": 400}, 16, 400),
        ({"maxRecordsPerPartition": 700, "minPartitions": 30}, 30, 209),
        ({"maxRecordsPerPartition": 1}, 6120, 1),
    ],
)
def test_partitions_are_slices_of_all_queues(
    golden: Callable[[str], Path], options: dict[str, int], count: int, longest: int
) -> None:
    """Together they are everything, once; each is in the log's order, and each queue in its own
    from the first partition to the last."""
    store = golden("broker")
    reader = batch_reader(store, **options)
    parts = [part for part in reader.partitions() if isinstance(part, QueuePartition)]
    assert len(parts) == count
    assert max(sum(map(len, part.ranges)) for part in parts) <= longest
    queues: dict[tuple[str, int], list[int]] = {}
    for part in parts:
        rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
        places = [row["physicalOffset"] for row in rows]
        assert places == sorted(places)
        for row in rows:
            queues.setdefault((row["topic"], row["queueId"]), []).append(row["physicalOffset"])
    wanted: dict[tuple[str, int], list[int]] = {}
    for unit in queue_units(store):
        wanted.setdefault((unit.topic, unit.queue_id), []).append(unit.offset)
    assert queues == wanted


def test_a_division_keeps_its_bounds(seed: int) -> None:
    """Any number of queues of any lengths: every unit once, in order, in partitions that are not
    empty, not beyond ``most``, and as many as are wanted where one queue can give them all."""
    rng = random.Random(seed)
    for _ in range(60):
        lengths = [rng.choice((1, rng.randint(1, 9), rng.randint(1, 3000)))
                   for _ in range(rng.choice((1, 3, 40, 1500)))]  # fmt: skip
        firsts = [rng.choice((0, 7)) for _ in lengths]
        ranges = [
            UnitRange(QueueKey("T", number), QueueKind.CONSUME, first, first + length)
            for number, (first, length) in enumerate(zip(firsts, lengths, strict=True))
        ]
        least = rng.choice((None, 1, 2, 50))
        most = rng.choice((None, 1, 2, 3, 100, 5000))
        if most is not None and sum(lengths) // most > 5000:
            continue
        parts = divide(ranges, least, most)
        sizes = [sum(map(len, part.ranges)) for part in parts]
        assert all(sizes)
        assert max(sizes) <= (most or 1 << 18)
        if least is not None and len(lengths) <= 40 and least <= max(lengths):
            assert len(parts) >= least
        assert all(len(part.ranges) <= 1024 for part in parts)
        ends = dict(enumerate(firsts))
        for part in parts:
            for each in part.ranges:
                assert each.first == ends[each.key.queue_id] < each.last
                ends[each.key.queue_id] = each.last
        assert [ends[number] - first for number, first in enumerate(firsts)] == lengths


def test_queues_of_one_message_each_are_shared_out() -> None:
    """As in a small batch of a stream of many queues."""
    ranges = [UnitRange(QueueKey("T", number), QueueKind.CONSUME, 5, 6) for number in range(100)]
    assert [sum(map(len, part.ranges)) for part in divide(ranges, 10, None)] == [10] * 10


def test_a_queue_whose_offsets_go_back_keeps_its_order(golden: Callable[[str], Path]) -> None:
    """As after a log that was cut and written anew, or in a damaged queue."""
    store = golden("plain")
    queue = store / "consumequeue" / "Topic_1" / "2" / f"{0:020d}"
    data = bytearray(queue.read_bytes())
    data[400:420], data[1400:1420] = data[1400:1420], data[400:420]
    queue.write_bytes(data)
    reader = batch_reader(store)
    (part,) = reader.partitions()
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    found = [row for row in rows if (row["topic"], row["queueId"]) == ("Topic_1", 2)]
    assert [row["queueOffset"] for row in found] == list(range(len(found)))
    units = [unit for unit in queue_units(store) if (unit.topic, unit.queue_id) == ("Topic_1", 2)]
    assert [row["physicalOffset"] for row in found] == [unit.offset for unit in units]


def test_offsets_have_kafkas_form_and_one_order(golden: Callable[[str], Path]) -> None:
    """Spark compares them as text: an idle query must not run empty batches."""
    store = golden("plain")
    reader = stream_reader(store)
    offset = reader.initialOffset()
    assert plain(offset) == ends_of(store)
    assert list(plain(offset)) == sorted(plain(offset))
    assert [list(queues) for queues in plain(offset).values()] == [["0", "1", "2", "3"]] * 6
    following = reader.latestOffset(json.loads(json.dumps(offset)), ReadAllAvailable())
    assert json.dumps(following) == json.dumps(offset)
    assert json.dumps(plain(offset)) == json.dumps(reader.reportLatestOffset())
    assert stream_reader(store, startingOffsets="earliest").initialOffset() == zeros(store)
    given = json.dumps(offset)
    assert stream_reader(store, startingOffsets=given).initialOffset() == offset


@pytest.mark.parametrize(("most", "lag"), [(1, 9), (100, 400), (1000, 9999), (10_000, 9999)])
def test_limits_are_obeyed_and_lead_to_the_end(
    golden: Callable[[str], Path], most: int, lag: int
) -> None:
    """In proportion to what waits, at least one message of each queue in which any does."""
    store = golden("broker")
    ends = ends_of(store)
    start = {
        topic: {queue: max(0, end - lag) for queue, end in queues.items()}
        for topic, queues in ends.items()
    }
    waiting = [u for u in queue_units(store) if u.queue_offset >= start[u.topic][str(u.queue_id)]]
    reader = stream_reader(store)
    reader.prepareForTriggerAvailableNow()
    seen, steps = [], 0
    while (end := reader.latestOffset(start, ReadMaxRows(most))) != start:
        parts = [p for p in reader.partitions(start, end) if isinstance(p, QueuePartition)]
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        assert 0 < len(rows) <= most + sum(len(part.ranges) for part in parts)
        seen += [row["physicalOffset"] for row in rows]
        start, steps = end, steps + 1
    assert sorted(seen) == sorted(unit.offset for unit in waiting)
    assert plain(start) == ends
    assert steps >= len(seen) // (most + 5)


def test_first_files_removed_by_retention(golden: Callable[[str], Path]) -> None:
    """Files of the log or of the queues are gone: failOnDataLoss both ways, and earliest."""
    store = golden("broker")
    log_files = sorted((store / "commitlog").iterdir())
    log_files[0].unlink()
    kept = [unit for unit in queue_units(store) if unit.offset >= int(log_files[1].name)]
    for remove_queue_files in (False, True):
        if remove_queue_files:
            removed = list((store / "consumequeue" / "Orders").glob(f"*/{0:020d}"))
            assert len(removed) == 4
            for file in removed:
                file.unlink()
            kept = [unit for unit in queue_units(store) if unit.offset >= int(log_files[1].name)]
        start = zeros(store)
        reader = stream_reader(store)
        with pytest.raises(CommitLogDataLossError, match=r"START_BELOW_MIN: topic Orders queue 0"):
            reader.latestOffset(start, ReadAllAvailable())
        lax = stream_reader(store, failOnDataLoss="false")
        end = lax.latestOffset(start, ReadAllAvailable())
        parts = lax.partitions(start, end)
        rows = in_queues(
            row for part in parts for batch in lax.read(part) for row in batch.to_pylist()
        )
        assert [row["physicalOffset"] for row in rows] == [unit.offset for unit in kept]
        assert rows_of(batch_reader(store)) == rows
        assert all(row["corruptReason"] is None for row in rows)


def test_files_that_go_after_the_plan(
    golden: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A task finds them gone: an error, or rows that say so and one warning that counts them."""
    store = golden("broker")
    strict, lax = batch_reader(store), batch_reader(store, failOnDataLoss="false")
    parts, before = list(strict.partitions()), rows_of(strict)
    (store / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(CommitLogDataLossError, match="SEGMENT_DELETED"):
        [batch for part in parts for batch in _fresh(strict).read(part)]
    rows = in_queues(row for part in parts for b in _fresh(lax).read(part) for row in b.to_pylist())
    lost = [row for row in rows if row["corruptReason"] == "segment_deleted"]
    warned = [line for line in caplog.messages if "SEGMENT_DELETED" in line]
    told = [int(line.split(" nor those of ")[1].split()[0]) for line in warned]
    assert len(told) <= len(parts) < len(lost) == sum(told) + len(told)
    places = ("topic", "queueId", "queueOffset", "physicalOffset", "storeSize")
    assert [[row[name] for name in places] for row in rows] == [
        [row[name] for name in places] for row in before
    ]
    assert {row["physicalOffset"] for row in lost} == {
        row["physicalOffset"] for row in before if row["physicalOffset"] < 1048576
    }
    (store / "consumequeue" / "Orders" / "0" / f"{0:020d}").unlink()
    with pytest.raises(CommitLogDataLossError, match="START_BELOW_MIN"):
        list(_fresh(strict).read(parts[0]))
    kept = in_queues(row for b in _fresh(lax).read(parts[0]) for row in b.to_pylist())
    assert (rows[0]["topic"], rows[0]["queueId"]) == ("Orders", 0)
    assert kept == rows[1000:]


def _fresh(reader: Any) -> Any:
    """As a task has it: pickled, nothing opened."""
    return pickle.loads(pickle.dumps(reader))


def test_queues_that_are_gone_or_shrank(golden: Callable[[str], Path]) -> None:
    """failOnDataLoss both ways; without it such a queue is left out, or waited for."""
    store = golden("plain")
    offset = stream_reader(store).initialOffset()
    shutil.rmtree(store / "consumequeue" / "Topic_2" / "3")
    with pytest.raises(CommitLogDataLossError, match="QUEUE_DELETED: topic Topic_2 queue 3"):
        stream_reader(store).latestOffset(offset, ReadAllAvailable())
    lax = stream_reader(store, failOnDataLoss="false")
    left = lax.latestOffset(offset, ReadAllAvailable())
    assert plain(left) == ends_of(store)
    file = store / "consumequeue" / "Topic_1" / "0" / f"{0:020d}"
    file.write_bytes(file.read_bytes()[:200].ljust(6000, b"\0"))
    with pytest.raises(CommitLogDataLossError, match=r"START_ABOVE_MAX.*from 113, but ends at 10"):
        stream_reader(store).latestOffset(left, ReadAllAvailable())
    assert lax.latestOffset(left, ReadAllAvailable()) == left


def test_a_missing_file_between_others_is_named(golden: Callable[[str], Path]) -> None:
    """Positions after it would not be what they seem."""
    store = golden("broker")
    queue = store / "consumequeue" / "Orders" / "0"
    shutil.copy(queue / f"{20000:020d}", queue / f"{60000:020d}")
    with pytest.raises(ReputError, match="one is missing or foreign"):
        rows_of(batch_reader(store))


def test_a_read_as_of_a_moment_has_what_was_stored_then(
    golden: Callable[[str], Path], seed: int
) -> None:
    """By physical offset and by time; this log is in time order."""
    store, rng = golden("mixed"), random.Random(seed)
    records = {found.physical_offset: found for found in reference(store)}
    units = queue_units(store)
    for unit in rng.sample(units, 5):
        time = records[unit.offset].store_timestamp
        for moment in (unit.offset + unit.size - 1, unit.offset + unit.size):
            found = rows_of(batch_reader(store, physicalOffsetAsOf=moment))
            wanted = [one.offset for one in units if one.offset + one.size <= moment]
            assert sorted(row["physicalOffset"] for row in found) == sorted(wanted)
        found = rows_of(batch_reader(store, timestampAsOf=time))
        wanted = [one.offset for one in units if records[one.offset].store_timestamp <= time]
        assert sorted(row["physicalOffset"] for row in found) == sorted(wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"physicalOffsetAsOf": 1 << 50}, "is beyond what is dispatched, which ends at"),
        ({"physicalOffsetAsOf": "x"}, "must be a physical offset"),
        ({"physicalOffsetAsOf": 1, "timestampAsOf": 1}, "give timestampAsOf or physicalOffsetAsOf"),
    ],
)
def test_wrong_moments_are_named(
    golden: Callable[[str], Path], options: dict[str, Any], message: str
) -> None:
    """A moment that was never there, and two at once."""
    with pytest.raises(UsageError, match=message):
        batch_reader(golden("plain"), **options).partitions()


def test_a_stream_is_of_no_moment(golden: Callable[[str], Path]) -> None:
    """It follows the queues."""
    with pytest.raises(UsageError, match="option timestampAsOf is for batch reads"):
        stream_reader(golden("plain"), timestampAsOf=1)


def test_nothing_is_changed(golden: Callable[[str], Path]) -> None:
    """A reader leaves store and queues as they are."""
    store = golden("mixed")
    before = tree(store)
    rows_of(batch_reader(store))
    stream_reader(store).initialOffset()
    assert tree(store) == before


def test_pinned_start_does_not_move(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Spark asks again when it repeats batch 0; ``latest`` must then be what it was."""
    store, pin = golden("plain"), {"initialOffsetPath": tmp_path / "start"}
    first = stream_reader(store, **pin).initialOffset()
    shutil.rmtree(store / "consumequeue" / "Topic_2")
    assert stream_reader(store, failOnDataLoss="false").initialOffset() != first
    assert stream_reader(store, **pin).initialOffset() == first
    (tmp_path / "start").write_text("{")
    with pytest.raises(UsageError, match="start is damaged or another store's"):
        stream_reader(store, **pin).initialOffset()
