"""Options of the commitlog source, one row each; names and rules follow Spark's Kafka source.

The parsing, the rejection of unknown keys and the reference page follow from these rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from reput.sources.options import (
    EARLIEST,
    LATEST,
    Option,
    SourceOptions,
    boolean,
    local_path,
    non_empty,
    offset_or,
    one_of,
    parse_duration_ms,
    parse_size,
    positive,
    timestamp_ms,
)
from reput.store.runs.dispatch import Wanted

RESUME = "resume"
MODES = ("rows", "runs")

COMMIT_LOG_OPTIONS: tuple[Option, ...] = (
    Option("path", None, local_path, "both",
           "the store's root directory, which holds `commitlog/`; `file:///PATH` is one as well. A "
           "pattern such as `/data/broker-*`, or roots with commas between them, read several "
           "stores"),
    Option("mode", "rows", one_of(*MODES), "both",
           "`rows`: a row per message, public schema; `runs`: packed runs for the dispatcher"),
    Option("startingOffsets", None, offset_or(EARLIEST, LATEST, RESUME), "both",
           "where to begin without a checkpoint: `earliest` (batch default), `latest` (stream "
           "default), `resume` (the smallest maxPhysicOffset of the store's queues) or a physical "
           "offset at which a record starts"),
    Option("startingTimestamp", None, timestamp_ms, "both",
           "begin at the first record with this storeTimestamp or a later one: ms since the epoch, "
           "or an ISO 8601 time, in UTC unless it names a zone; overrides `startingOffsets`"),
    Option("startingOffsetsByTimestampStrategy", "error", one_of("error", LATEST), "both",
           "if no record has that storeTimestamp or a later one: `error`, or begin at `latest`"),
    Option("endingOffsets", None, offset_or(LATEST), "batch",
           "where to end, exclusive: `latest` or a physical offset at which a record starts"),
    Option("endingTimestamp", None, timestamp_ms, "batch",
           "end before the first record with this storeTimestamp or a later one, in the same "
           "forms"),
    Option("initialOffsetPath", None, non_empty, "stream",
           "a file in which the first start is kept, so that a `latest` or timestamp start does "
           "not move when Spark repeats batch 0; put it beside the checkpoint"),
    Option("sealedEnd", None, offset_or(), "stream",
           "a physical offset up to which the caller has found the log whole: nothing before it is "
           "checked again, and Trigger.AvailableNow ends there"),
    Option("maxWaitMs", None, positive, "stream",
           "at the log's end, wait up to this long for a message before the query is told that "
           "there is none: an idle query then costs little; not for a query of several streams, "
           "which would wait for each other"),
    Option("failOnDataLoss", "true", boolean, "both",
           "whether missing commitlog files, and a log that lost what was read, are errors; if "
           "not, a stream warns, and goes on where the log surely is what was read, and each range "
           "without a file is a row with the reason `segment_deleted`"),
    Option("maxOffsetsPerTrigger", None, positive, "stream",
           "up to this many messages per micro-batch"),
    Option("minOffsetsPerTrigger", None, positive, "stream",
           "hold a batch back until as many messages are there, or `maxTriggerDelay` has passed "
           "since the last one; what is there when a query starts is not held back, nor is "
           "anything with Trigger.AvailableNow"),
    Option("maxTriggerDelay", "15m", parse_duration_ms, "stream",
           "the longest time for which `minOffsetsPerTrigger` holds a batch back: `500ms`, `30s`, "
           "`15m`, `1h`"),
    Option("maxBytesPerTrigger", None, parse_size, "stream",
           "up to this many bytes of log per micro-batch, and at least one record; `64k`, `1g`"),
    Option("minPartitions", "1", positive, "both",
           "split a batch into at least this many partitions, at record starts"),
    Option("onCorrupt", "quarantine", one_of("quarantine", "fail"), "both",
           "at damaged bytes `quarantine` returns a row that says where and why, and `fail` stops"),
    Option("verifyCrc", "false", boolean, "both", "check the CRC of every body"),
    Option("includeBody", "true", boolean, "both", "`rows`: include the column `body`"),
    Option("includeProperties", "true", boolean, "both", "`rows`: include the column `properties`"),
    Option("includeStore", "false", boolean, "both",
           "`rows`: include the column `store`, a string: the root of the row's store"),
    Option("bodySchema", None, local_path, "both",
           "`rows`: a file that declares columns of bodies by topic, as `--delta-schema` of `reput "
           "run`; includes the columns `json`, `avro` or `protobuf`, and `badBody`, with or "
           "without `includeBody`"),
    Option("inflateBodies", "true", boolean, "both",
           "`rows`: decompress compressed bodies; one that cannot be inflated stays as stored, and "
           "its `bodyCompression` says so"),
    Option("maxInflatedBytes", "16m", parse_size, "both",
           "the largest size to which `inflateBodies` decompresses a body"),
    Option("includeInternal", "false", boolean, "both",
           "`rows`: include internal records, which consumers of RocketMQ never see: those of its "
           "own topics, and PREPARED and ROLLBACK records"),
    Option("brokerConf", None, non_empty, "both",
           "RocketMQ's property file; without it `broker.conf` in `path`, if it exists"),
    Option("commitLogFileSize", None, parse_size, "both",
           "mappedFileSizeCommitLog; overrides the property file"),
    Option("output", None, non_empty, "both",
           "`runs`: the output for which they are made, which records how it was built"),
    Option("spool", None, non_empty, "both",
           "`runs`: a directory that driver and tasks share; rows pass through it, not Spark"),
    Option("gather", "{}", Wanted.from_text, "both",
           "`runs`: further columns of a message, for indexes other than the consume queue"),
    Option("storeId", None, non_empty, "both",
           "the identity that offsets carry; give the old one after moving a store"),
)  # fmt: skip


class CommitLogOptions(SourceOptions):
    """Parsed options of ``rocketmq-commitlog``."""

    table: ClassVar[tuple[Option, ...]] = COMMIT_LOG_OPTIONS

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self.check_not_both("maxOffsetsPerTrigger", "maxBytesPerTrigger")
        self.check_least_within_most()
