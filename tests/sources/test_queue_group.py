"""A consumer group's offsets as a query begins with them and commits them, with real queries.

The log is a golden store's; its queues are built into an output in steps. Expected positions come
from RocketMQ's units, read plainly.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from reput.readers.consumer import Consumer
from reput.readers.messagestore import MessageStore
from reput.readers.offsetreset import change_offsets, reset_to_earliest
from reput.sources.queueoptions import ConsumeQueueOptions
from reput.store.errors import OwnershipError, UsageError
from reput.store.filelocks import lock
from reput.store.files import OFFSET_JOURNALS
from reput.store.state.consumeroffset import ConsumerOffsetFile, TopicGroup, read_committed
from tests.sources.test_queue_contract import ends_of, stream_reader
from tests.sources.test_queue_rows import batch_reader, rows_of
from tests.sources.test_queue_stream import Growing, found, start
from tests.support.cli import reput
from tests.support.golden import tree
from tests.support.micro_batches import plain
from tests.support.queue_units import queue_units

GROUP = "spark"


def set_offsets(output: Path, offsets: dict[str, dict[int, int]]) -> None:
    with ConsumerOffsetFile(output) as file:
        file.replace({TopicGroup(topic, GROUP): found for topic, found in offsets.items()}, 1)


def committed(output: Path) -> dict[str, dict[str, int]]:
    """The group's offsets in the form of the source's."""
    return {
        key.topic: {str(queue_id): offset for queue_id, offset in sorted(queues.items())}
        for key, queues in sorted((read_committed(output) or {}).items())
        if key.group == GROUP
    }


def rows_from(store: Path, begin: Callable[[str, int], int]) -> list[tuple[object, ...]]:
    return [
        (unit.topic, unit.queue_id, unit.queue_offset, unit.offset)
        for unit in queue_units(store)
        if unit.queue_offset >= begin(unit.topic, unit.queue_id)
    ]


@pytest.mark.extended
def test_a_query_begins_where_the_group_is_and_commits_what_it_did(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """In topics that are new to it as the option says; a restart goes on from the checkpoint."""
    growing = Growing(golden("plain"), tmp_path / "output")
    growing.build(1000)
    first = ends_of(growing.output)
    known = {"Topic_0": {0: 7, 1: 2}, "Topic_1": {0: 0}}
    set_offsets(growing.output, known)
    options = {"group": GROUP, "startingOffsets": "latest"}

    def begin(topic: str, queue_id: int) -> int:
        # a queue that the group lacks in a topic that it knows came later
        return known[topic].get(queue_id, 0) if topic in known else first[topic][str(queue_id)]

    run = partial(start, spark, growing, tmp_path, once=True)
    query = run(**options, maxOffsetsPerTrigger="100")
    query.awaitTermination()
    assert len(query.recentProgress) > 2
    # the last batch too, for which Spark never calls commit()
    assert committed(growing.output) == first
    growing.build(len(growing.records))
    # Spark does not wait until the planner of a query that has ended is gone
    ended = lock(growing.output / OFFSET_JOURNALS[0], patience=None)
    assert ended is not None
    ended.release()
    with MessageStore(growing.store, output=growing.output) as store:
        back = partial(reset_to_earliest, store, group=GROUP, topic="Topic_0")
        change_offsets(growing.store, growing.output, back, apply=True)
    run(**options).awaitTermination()
    assert found(spark, tmp_path) == rows_from(growing.store, begin)
    assert committed(growing.output) == ends_of(growing.store)
    shown = reput("groups", "show", growing.store, GROUP, "--output", growing.output, "--json")
    assert [queue["lag"]["messages"] for queue in json.loads(shown.stdout)["queues"]] == [0] * 24


def test_nothing_counts_before_spark_has_committed_it(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """The group's offsets during a batch are its start; a failed first batch is repeated whole."""
    growing = Growing(golden("plain"), tmp_path / "output")
    growing.build(300)
    seen: list[dict[str, dict[str, int]]] = []
    rows: list[int] = []
    fails: list[str] = []

    def sink(batch: DataFrame, _: int) -> None:
        seen.append(committed(growing.output))
        taken = [row[0] for row in batch.select("physicalOffset").collect()]
        if fails:
            raise RuntimeError(fails.pop())
        rows.extend(taken)

    def query() -> None:
        frame = spark.readStream.format("rocketmq-consumequeue").options(
            path=str(growing.store), output=str(growing.output), group=GROUP,
            startingOffsets="latest",
        )  # fmt: skip
        writer = frame.load().writeStream.foreachBatch(sink).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()

    query()
    begun = committed(growing.output)
    assert begun == ends_of(growing.output)
    assert sum(map(len, begun.values())) == 24
    growing.build(600)
    seen.clear()
    fails.append("the sink is full")
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        query()
    assert committed(growing.output) == begun
    growing.build(900)
    query()
    middle = committed(growing.output)
    growing.build(len(growing.records))
    query()
    assert seen[:2] == [begun, begun]
    assert seen[-1] == middle
    assert middle == ends_of_first(growing, 900)
    assert sorted(rows) == sorted(r.physical_offset for r in growing.records[300:])
    assert committed(growing.output) == ends_of(growing.output)


def ends_of_first(growing: Growing, count: int) -> dict[str, dict[str, int]]:
    """The ends of the queues once so many messages were dispatched."""
    found: dict[str, dict[str, int]] = {}
    last = growing.records[count - 1].physical_offset
    for unit in queue_units(growing.store):
        if unit.offset <= last:
            found.setdefault(unit.topic, {})[str(unit.queue_id)] = unit.queue_offset + 1
    return found


@pytest.mark.extended
def test_a_query_has_its_group_alone(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """No second query and no member beside it, until it has ended; another group may."""
    growing = Growing(golden("plain"), tmp_path / "output")
    growing.build(500)
    join = partial(Consumer, growing.store, subscription={"Topic_0": None}, output=growing.output)
    options = {"group": GROUP, "startingOffsets": "earliest"}
    query = start(spark, growing, tmp_path, once=False, **options)
    try:
        query.processAllAvailable()
        with pytest.raises(OwnershipError, match="a process that reads all queues has it"):
            join(GROUP)
        join("other").close()
        (tmp_path / "second").mkdir()
        second = start(spark, growing, tmp_path / "second", once=True, **options)
        with pytest.raises(StreamingQueryException, match="cannot consume for group spark"):
            second.awaitTermination()
        with pytest.raises(OwnershipError, match="written by another process"):
            ConsumerOffsetFile(growing.output).__enter__()
    finally:
        query.stop()
    again = start(spark, growing, tmp_path, once=True, **options)
    again.awaitTermination()
    assert committed(growing.output) == ends_of(growing.output)
    with join(GROUP) as member:
        assert member.poll() == []
        assert {q.queue_id: offset for q, offset in member.positions.items()} == {
            int(queue_id): end for queue_id, end in ends_of(growing.output)["Topic_0"].items()
        }


def test_a_repeated_first_batch_begins_at_the_same_offsets(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Spark asks for the start anew; the group's first positions were committed."""
    growing = Growing(golden("plain"), tmp_path / "output")
    growing.build(500)
    reader = stream_reader(growing.store, output=growing.output, group=GROUP)
    begin = reader.initialOffset()
    assert plain(begin) == committed(growing.output) == ends_of(growing.output)
    reader.stop()
    growing.build(900)
    again = stream_reader(growing.store, output=growing.output, group=GROUP)
    repeated = again.initialOffset()
    assert {topic: {**repeated[topic], **queues} for topic, queues in plain(begin).items()} == {
        topic: repeated[topic] for topic in plain(begin)
    }
    following = again.latestOffset(repeated, ReadAllAvailable())
    assert plain(following) == ends_of(growing.output)
    again.stop()


def test_a_batch_read_begins_at_the_groups_offsets_and_changes_nothing(
    golden: Callable[[str], Path],
) -> None:
    """The store's own offsets; they may be of a broker that runs."""
    store = golden("plain")
    set_offsets(store, {"Topic_0": dict.fromkeys(range(4), 100)})
    before = tree(store)
    reader = batch_reader(store, group=GROUP, topics="Topic_0,Topic_1")
    rows = {(row["topic"], row["queueId"], row["queueOffset"]) for row in rows_of(reader)}
    assert rows == {
        (unit.topic, unit.queue_id, unit.queue_offset)
        for unit in queue_units(store)
        if unit.topic == "Topic_1" or (unit.topic == "Topic_0" and unit.queue_offset >= 100)
    }
    assert tree(store) == before


def test_of_an_output_its_own_offsets_count_once_it_has_any(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """The store's count until then: its first commit would begin with them."""
    store = golden("plain")
    output = shutil.copytree(store, tmp_path / "output", ignore=shutil.ignore_patterns("config"))
    reader = batch_reader(store, output=output, group=GROUP, topics="Topic_0")
    for root, offset in ((store, 100), (output, 40)):
        set_offsets(root, {"Topic_0": dict.fromkeys(range(4), offset)})
        rows = {(row["topic"], row["queueId"], row["queueOffset"]) for row in rows_of(reader)}
        assert rows == {
            (unit.topic, unit.queue_id, unit.queue_offset)
            for unit in queue_units(store)
            if unit.topic == "Topic_0" and unit.queue_offset >= offset
        }


def test_an_offset_inside_an_inner_batch_begins_with_the_whole_batch(
    golden: Callable[[str], Path],
) -> None:
    """The group has consumed a part of it, and a row is a whole batch."""
    store = golden("batch")
    units = [unit for unit in queue_units(store) if unit.topic == "BatchTopic"]
    queue = [unit for unit in units if unit.queue_id == units[0].queue_id]
    inside = queue[5].queue_offset - 1
    assert inside > queue[4].queue_offset
    set_offsets(store, {"BatchTopic": {queue[0].queue_id: inside}})
    only = {"topics": "BatchTopic", "queueIds": queue[0].queue_id}
    rows = rows_of(batch_reader(store, group=GROUP, **only))
    assert [row["physicalOffset"] for row in rows] == [unit.offset for unit in queue[4:]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "a/b"}, "option group is 'a/b'; it must be a group's name"),
        ({"group": "g", "startingTimestamp": "1"}, "give group or startingTimestamp, not both"),
        ({"group": "g", "startingOffsets": '{"T": {"0": 1}}'}, "give group or startingOffsets"),
        ({"group": "g", "startingOffsetsByTimestamp": '{"T": {"0": 1}}'},
         "give group or startingOffsetsByTimestamp, not both"),
        ({"group": "g", "initialOffsetPath": "/x"}, "give group or initialOffsetPath, not both"),
        ({"kafka.group.id": "g"}, "unknown option kafka.group.id, which is group here"),
    ],
)  # fmt: skip
def test_options_that_contradict_a_group(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    """Refused when the source is loaded."""
    with pytest.raises(UsageError, match=message):
        ConsumeQueueOptions({"path": str(tmp_path), **options})
