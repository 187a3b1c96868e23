"""Options of the consume queue source, one row each; names and rules follow Spark's Kafka source.

The parsing, the rejection of unknown keys and the reference page follow from these rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from reput.filters import tags
from reput.sources.commitlogoptions import COMMIT_LOG_OPTIONS
from reput.sources.options import (
    EARLIEST,
    LATEST,
    Option,
    SourceOptions,
    boolean,
    local_path,
    non_empty,
    positive,
    timestamp_ms,
)
from reput.store import jsontext
from reput.store.log.places import AsOf
from reput.store.queue.consumequeue import QueueKey, topic_directory
from reput.store.rows.rowform import RowForm

EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
"""The numbers for these offsets in JSON, as in Kafka."""
EVIDENCE = "/evidence"
"""The key beside the topics of an offset, under which evidence stands (``sources.queueposition``):
no topic has a slash in its name."""
Offsets = dict[QueueKey, int]
_FORM = 'must be JSON like {"topic": {"0": 23, "1": 5}}'


def parse_offsets(text: str, smallest: int = 0) -> Offsets:
    """Parse ``{"topic": {"0": 23}}``, the form of Spark's Kafka source; evidence is left out.
    Raises ValueError."""
    try:
        document = jsontext.parse(text)
    except ValueError as error:
        raise ValueError(f"must be JSON ({error})") from error
    offsets: Offsets = {}
    if not isinstance(document, dict) or not all(isinstance(q, dict) for q in document.values()):
        raise ValueError(_FORM)
    for topic, queues in document.items():
        if topic == EVIDENCE:
            continue
        for queue_id, offset in queues.items():
            if not re.fullmatch(r"0|[1-9][0-9]{0,9}", queue_id, re.ASCII):
                raise ValueError(_FORM)
            if type(offset) is not int or not smallest <= offset < 1 << 63:
                raise ValueError(f"must hold whole numbers from {smallest} on, not {offset!r}")
            offsets[QueueKey(topic, int(queue_id))] = offset
    return offsets


def _offsets_or(*words: str) -> Callable[[str], str | Offsets]:
    smallest = EARLIEST_OFFSET if EARLIEST in words else LATEST_OFFSET

    def parse(text: str) -> str | Offsets:
        if text.strip().lower() in words:
            return text.strip().lower()
        if not text.lstrip().startswith("{"):
            raise ValueError(f"must be {' or '.join(words)}, or {_FORM.removeprefix('must be ')}")
        return parse_offsets(text, smallest)

    return parse


def _topics(text: str) -> frozenset[str]:
    topics = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not topics:
        raise ValueError("must be topics, separated by commas")
    return topics


def _queue_ids(text: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,10}", part, re.ASCII) for part in parts):
        raise ValueError("must be queue ids, separated by commas")
    return frozenset(map(int, parts))


def _group(text: str) -> str:
    # its members' directory is named so
    if topic_directory(text.encode("utf-8", "surrogateescape")) is None:
        raise ValueError(
            "must be a group's name: up to 255 bytes without slash and control character"
        )
    return text


def _tags(text: str) -> tags.TagFilter:
    if text.strip().lower().startswith("sql:"):
        raise ValueError("must be tags, TagA || TagB; filter the rows to select by properties")
    tag_filter = tags.parse(text)
    if not (tag_filter.takes_all or tag_filter.tags):
        raise ValueError("names no tag; give * for all")
    return tag_filter


def _physical_offset(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text.strip(), re.ASCII):
        raise ValueError("must be a physical offset of up to 18 digits")
    return int(text)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"must be a regular expression ({error})") from error
    return non_empty(text)


_SHARED = {option.key: option for option in COMMIT_LOG_OPTIONS}

CONSUME_QUEUE_OPTIONS: tuple[Option, ...] = (
    _SHARED["path"],
    Option("output", None, local_path, "both",
           "the directory of the queues, if not `path`: the `--output` of `reput run`"),
    Option("outputs", None, local_path, "both",
           "the same for several stores: the `--outputs` of `reput run`, with a directory for each "
           "store, of the name of its root"),
    Option("topics", None, _topics, "both", "topics to read, comma-separated; all if not given"),
    Option("topicPattern", None, _pattern, "both",
           "a regular expression that matches whole topic names, in place of `topics`"),
    Option("queueIds", None, _queue_ids, "both", "comma-separated queue ids to read in each topic"),
    Option("tags", None, _tags, "both",
           "a consumer's expression, `TagA || TagB`: no other message is read from the log"),
    Option("group", None, _group, "both",
           "a consumer group, at whose committed offsets the query begins without a checkpoint; "
           "`startingOffsets` (`earliest` or `latest`) is for topics in which it has none. A "
           "stream has the group for itself and commits what Spark has committed; a batch read "
           "commits nothing"),
    Option("startingOffsets", None, _offsets_or(EARLIEST, LATEST), "both",
           "where to begin without a checkpoint: `earliest` (batch default), `latest` (stream "
           "default) or queue offsets for all queues that are read, "
           "`{\"topic\": {\"0\": 23, \"1\": -2}}`; -2 is earliest, -1 latest. A queue that comes "
           "later is read from its beginning"),
    Option("startingTimestamp", None, timestamp_ms, "both",
           "begin in each queue at the first message with this storeTimestamp or a later one: ms "
           "since the epoch, or an ISO 8601 time, in UTC unless it names a zone; overrides "
           "`startingOffsetsByTimestamp`, which overrides `startingOffsets`"),
    Option("startingOffsetsByTimestamp", None, parse_offsets, "both",
           "the same by queue: `{\"topic\": {\"0\": 1700000000000}}`"),
    _SHARED["startingOffsetsByTimestampStrategy"],
    Option("endingOffsets", None, _offsets_or(LATEST), "batch",
           "where to end, exclusive: `latest` or queue offsets for all queues; -1 is latest"),
    Option("endingTimestamp", None, timestamp_ms, "batch",
           "end in each queue before the first message with this storeTimestamp or a later one, in "
           "the same forms; overrides `endingOffsetsByTimestamp`, which overrides `endingOffsets`"),
    Option("endingOffsetsByTimestamp", None, parse_offsets, "batch", "the same by queue"),
    Option("timestampAsOf", None, timestamp_ms, "batch",
           "read the queues as they were then: without the messages with a later storeTimestamp, "
           "in the same forms, and whatever follows them in the log"),
    Option("physicalOffsetAsOf", None, _physical_offset, "batch",
           "the same by a physical offset, such as the end of a batch in `reput checkpoints`"),
    _SHARED["initialOffsetPath"],
    Option("failOnDataLoss", "true", boolean, "both",
           "whether removed messages and queues, a log and queues that lost what was read, "
           "messages that are in no queue, and units beyond the log's end are errors; if not, a "
           "stream warns, and reads on in each queue from its first message that may not have been "
           "read"),
    _SHARED["maxOffsetsPerTrigger"],
    _SHARED["minOffsetsPerTrigger"],
    _SHARED["maxTriggerDelay"],
    Option("minPartitions", None, positive, "both",
           "divide a read into at least this many partitions, each of a slice of every queue; if "
           "not given, one or more for each core of the driver's machine, of 32,768 units or more"),
    Option("maxRecordsPerPartition", None, positive, "both",
           "divide a read into partitions of up to this many units; 262,144 if not given"),
    _SHARED["onCorrupt"],
    _SHARED["verifyCrc"],
    Option("includeBody", "true", boolean, "both", "include the column `body`"),
    Option("includeProperties", "true", boolean, "both", "include the column `properties`"),
    Option("includeStore", "false", boolean, "both",
           "include the column `store`, a string: the root of the row's store"),
    Option("bodySchema", None, local_path, "both",
           "a file that declares columns of bodies by topic, as `--delta-schema` of `reput run`; "
           "includes the columns `json`, `avro` or `protobuf`, and `badBody`, with or without "
           "`includeBody`"),
    Option("inflateBodies", "true", boolean, "both",
           "decompress compressed bodies; one that cannot be inflated stays as stored, and its "
           "`bodyCompression` says so"),
    _SHARED["maxInflatedBytes"],
    Option("includeInternal", "false", boolean, "both",
           "read the queues of RocketMQ's own topics, too; those that an option names are read "
           "anyway, but not those that `topicPattern` matches"),
    _SHARED["brokerConf"],
    _SHARED["commitLogFileSize"],
    Option("consumeQueueFileSize", None, positive, "both",
           "mappedFileSizeConsumeQueue; overrides the property file"),
)  # fmt: skip


class ConsumeQueueOptions(SourceOptions):
    """Parsed options of ``rocketmq-consumequeue``."""

    table: ClassVar[tuple[Option, ...]] = CONSUME_QUEUE_OPTIONS
    kafka_names: ClassVar[Mapping[str, str]] = {
        **SourceOptions.kafka_names,
        "subscribe": "topics",
        "subscribepattern": "topicPattern",
        "assign": "topics with queueIds",
        "includeheaders": "includeProperties",
        "kafka.group.id": "group",
    }

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self.check_not_both("topics", "topicPattern")
        self.check_least_within_most()
        self.check_not_both("timestampAsOf", "physicalOffsetAsOf")
        for key in ("startingTimestamp", "startingOffsetsByTimestamp", "initialOffsetPath"):
            self.check_not_both("group", key)
        if not isinstance(self["startingOffsets"], str | None):
            self.check_not_both("group", "startingOffsets")

    @property
    def starts_by_time(self) -> bool:
        """Whether a time decides the starts: one for all queues, or one for each."""
        return super().starts_by_time or self["startingOffsetsByTimestamp"] is not None

    @property
    def row_form(self) -> RowForm:
        """As that of the log; a topic that an option names is asked for."""
        named = {key.topic for offsets in self._offsets_by_queue for key in offsets}
        return replace(super().row_form, named_topics=named | (self["topics"] or set()))

    @property
    def as_of(self) -> AsOf | None:
        """The moment that a batch read is of; None for now."""
        offset, time_ms = self["physicalOffsetAsOf"], self["timestampAsOf"]
        return None if offset is None and time_ms is None else AsOf(offset, time_ms)

    @property
    def names_queues(self) -> bool:
        """Whether an option names topics or queues that must exist."""
        return self["topics"] is not None or bool(self._offsets_by_queue)

    @property
    def _offsets_by_queue(self) -> list[Offsets]:
        keys = ("startingOffsets", "startingOffsetsByTimestamp",
                "endingOffsets", "endingOffsetsByTimestamp")  # fmt: skip
        return [self[key] for key in keys if not isinstance(self[key], str | None)]
