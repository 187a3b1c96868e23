"""Internal records and compressed bodies in both Spark sources, by the readers that Spark calls.

What consumers see is told from the rest by a plain rule, over RocketMQ's own stores.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from reput.sources.commitlog import CommitLogBatchReader
from reput.sources.commitlogoptions import CommitLogOptions
from reput.sources.consumequeue import ConsumeQueueBatchReader, ConsumeQueueStreamReader
from reput.sources.queueoptions import ConsumeQueueOptions
from reput.store.rows.rowschema import rows_schema
from tests.sources.test_rows import reference
from tests.support.plain_rows import OWN_TOPICS, inflated, is_internal, plain_row, stored
from tests.support.queue_units import queue_units

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
Reader = CommitLogBatchReader | ConsumeQueueBatchReader


def reader(store: Path, source: str, **options: str) -> Reader:
    """A batch reader with the default options, but for those given."""
    schema = from_arrow_schema(rows_schema(include_body=options.get("includeBody") != "false"))
    given = {"path": str(store), **options}
    if source == "queues":
        return ConsumeQueueBatchReader(ConsumeQueueOptions(given), schema)
    return CommitLogBatchReader(CommitLogOptions(given), schema)


def rows(found: Reader) -> list[dict[str, Any]]:
    """Its rows by place in the log."""
    parts = (batch.to_pylist() for part in found.partitions() for batch in found.read(part))
    return sorted((row for part in parts for row in part), key=lambda row: row["physicalOffset"])


def places(found: Iterable[dict[str, Any]]) -> list[int]:
    return [row["physicalOffset"] for row in found]


@pytest.mark.parametrize("name", ["mixed", "broker", "orders-5.5.1"])
def test_the_log_gives_what_consumers_see(golden: Callable[[str], Path], name: str) -> None:
    """The rest comes with includeInternal; bodies are plain, or as stored without inflateBodies."""
    store = golden(name)
    records = reference(store)
    whole = [plain_row(record, inflated) for record in records]
    wanted = [row for row in whole if not is_internal(row)]
    assert len(wanted) < len(whole)
    assert rows(reader(store, "log")) == wanted
    assert rows(reader(store, "log", includeInternal="true")) == whole
    as_stored = [plain_row(record, stored) for record in records]
    off = {"includeInternal": "true", "inflateBodies": "false"}
    assert rows(reader(store, "log", **off)) == as_stored
    bare = rows(reader(store, "log", includeInternal="true", includeBody="false"))
    assert [row["bodyCompression"] for row in bare] == [row["bodyCompression"] for row in as_stored]


@pytest.mark.parametrize("name", ["mixed", "broker"])
def test_queues_of_rocketmqs_own_topics_are_asked_for(
    golden: Callable[[str], Path], name: str
) -> None:
    """By includeInternal, or by name; a pattern and a filter name none."""
    store = golden(name)
    units = queue_units(store)
    by_topic = Counter(unit.topic for unit in units)
    ordinary = sorted(unit.offset for unit in units if unit.topic not in OWN_TOPICS)
    scheduled = sorted(unit.offset for unit in units if unit.topic == SCHEDULE)
    assert scheduled and len(ordinary) + len(scheduled) == len(units)
    assert places(rows(reader(store, "queues"))) == ordinary
    assert places(rows(reader(store, "queues", topicPattern=".*"))) == ordinary
    assert places(rows(reader(store, "queues", topicPattern="SCHEDULE.*"))) == []
    assert len(rows(reader(store, "queues", includeInternal="true"))) == len(units)
    both = {"topicPattern": "SCHEDULE.*", "includeInternal": "true"}
    assert places(rows(reader(store, "queues", **both))) == scheduled
    topic = next(topic for topic in by_topic if topic != SCHEDULE)
    named = rows(reader(store, "queues", topics=f"{SCHEDULE},{topic}"))
    assert Counter(row["topic"] for row in named) == {
        SCHEDULE: by_topic[SCHEDULE], topic: by_topic[topic],
    }  # fmt: skip
    assert all(row["bodyCompression"] is None for row in named)


def test_offsets_by_queue_name_their_topics(golden: Callable[[str], Path]) -> None:
    """They need not name RocketMQ's own, and ask for those that they name."""
    store = golden("broker")
    units = queue_units(store)
    for own in (False, True):
        wanted = [unit for unit in units if own or unit.topic not in OWN_TOPICS]
        starts: dict[str, dict[str, int]] = {}
        for unit in wanted:
            starts.setdefault(unit.topic, {})[str(unit.queue_id)] = -2
        found = rows(reader(store, "queues", startingOffsets=json.dumps(starts)))
        assert len(found) == len(wanted)


def test_a_checkpoint_with_rocketmqs_own_queues_goes_on(golden: Callable[[str], Path]) -> None:
    """As earlier versions wrote it: those queues are neither lost nor read, and keep their
    offsets."""
    store = golden("broker")
    units = queue_units(store)
    old: dict[str, dict[str, int]] = {}
    for unit in units:
        old.setdefault(unit.topic, {})[str(unit.queue_id)] = 3
    assert SCHEDULE in old
    stream = ConsumeQueueStreamReader(
        ConsumeQueueOptions({"path": str(store)}), from_arrow_schema(rows_schema())
    )
    end = stream.latestOffset(old, ReadAllAvailable())
    assert end[SCHEDULE] == old[SCHEDULE]
    parts = stream.partitions(old, end)
    found = [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
    assert sorted(places(found)) == sorted(
        unit.offset for unit in units if unit.topic not in OWN_TOPICS and unit.queue_offset >= 3
    )
    # the next batch begins where this one ends, as ever
    assert stream.latestOffset(end, ReadAllAvailable()) == end
