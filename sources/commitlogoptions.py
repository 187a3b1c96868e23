"""Options of the commitlog source: one row each, names and rules after Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sources.options import (
    EARLIEST,
    LATEST,
    Option,
    SourceOptions,
    boolean,
    non_empty,
    offset_or,
    one_of,
    parse_size,
    positive,
    timestamp_ms,
)
from store.runs.dispatch import Wanted

RESUME = "resume"
MODES = ("rows", "runs")

COMMIT_LOG_OPTIONS: tuple[Option, ...] = (
    Option("path", None, non_empty, "both", "the store's root directory, which holds `commitlog/`"),
    Option("mode", "rows", one_of(*MODES), "both",
           "`rows`: a row per message, public schema; `runs`: packed runs for the dispatcher"),
    Option("startingOffsets", None, offset_or(EARLIEST, LATEST, RESUME), "both",
           "where to begin without a checkpoint: `earliest` (batch default), `latest` (stream "
           "default), `resume` (the smallest maxPhysicOffset of the store's queues) or a physical "
           "offset at which a record starts"),
    Option("startingTimestamp", None, timestamp_ms, "both",
           "begin at the first record with this storeTimestamp (ms) or a later one; stands above "
           "`startingOffsets`"),
    Option("startingOffsetsByTimestampStrategy", "error", one_of("error", LATEST), "both",
           "what to do where no record is that young"),
    Option("endingOffsets", None, offset_or(LATEST), "batch",
           "where to end, exclusive: `latest` or a physical offset at which a record starts"),
    Option("endingTimestamp", None, timestamp_ms, "batch",
           "end before the first record with this storeTimestamp (ms) or a later one"),
    Option("initialOffsetPath", None, non_empty, "stream",
           "a file of yours that keeps the first start, so that a `latest` or timestamp start does "
           "not move when Spark repeats batch 0; put it beside the checkpoint"),
    Option("sealedEnd", None, offset_or(), "stream",
           "a physical offset up to which the caller has found the log whole: nothing before it is "
           "walked again, and Trigger.AvailableNow ends there"),
    Option("failOnDataLoss", "true", boolean, "both",
           "whether missing commitlog files and a log that shrank are errors"),
    Option("maxOffsetsPerTrigger", None, positive, "stream",
           "messages per micro-batch at the most"),
    Option("maxBytesPerTrigger", None, parse_size, "stream",
           "bytes of log per micro-batch at the most, but one record at least; `64k`, `1g`"),
    Option("minPartitions", "1", positive, "both",
           "split a batch into at least so many partitions, at record starts"),
    Option("onCorrupt", "quarantine", one_of("quarantine", "fail"), "both",
           "damaged bytes: give a row that says where and why, or stop there"),
    Option("verifyCrc", "false", boolean, "both", "check the CRC of every body"),
    Option("includeBody", "true", boolean, "both", "`rows`: have the column `body`"),
    Option("includeProperties", "true", boolean, "both", "`rows`: have the column `properties`"),
    Option("inflateBodies", "false", boolean, "both",
           "`rows`: decompress compressed bodies; one that does not inflate stays as stored"),
    Option("maxInflatedBytes", "16m", parse_size, "both",
           "the largest body that `inflateBodies` makes"),
    Option("brokerConf", None, non_empty, "both",
           "RocketMQ's property file, if not `broker.conf` in `path`"),
    Option("commitLogFileSize", None, parse_size, "both",
           "mappedFileSizeCommitLog, above the property file"),
    Option("output", None, non_empty, "both",
           "`runs`: the output that they are for, which says how it was built"),
    Option("spool", None, non_empty, "both",
           "`runs`: a directory that driver and tasks share; units go through it, not Spark"),
    Option("gather", "{}", Wanted.from_text, "both",
           "`runs`: what dispatchers besides that of the consume queue want of a message"),
    Option("storeId", None, non_empty, "both",
           "the identity that offsets carry; give the old one after a store was moved"),
)  # fmt: skip


class CommitLogOptions(SourceOptions):
    """Parsed options of ``rocketmq-commitlog``."""

    table: ClassVar[tuple[Option, ...]] = COMMIT_LOG_OPTIONS

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self.check_not_both("maxOffsetsPerTrigger", "maxBytesPerTrigger")
