"""ReputMessageService as a streaming query: source, foreachBatch, dispatchers, watermark.

Guarantee: every sound record of the log gets its entries exactly once, whatever stops the process
and whenever; everything else is in the ledger. Spark may call a batch again: the dispatchers are
idempotent, and the watermark, not Spark's checkpoint, says what is done.

Order within a batch (design.md §5): entries, their sync, the ledger, the watermark, RocketMQ's
checkpoint file, return to Spark.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from checkpoints import spark_checkpoint
from checkpoints.ownership import Ownership
from checkpoints.reconcile import Plan, make_plan
from checkpoints.watermark import WatermarkFile, fingerprint, read_watermark
from sinks.consumequeue import ConsumeQueueDispatcher
from sources.commitlog import CommitLogDataSource
from store import errors
from store.commitlog import CommitLog
from store.config import StoreSettings, read_store_settings
from store.consumequeue import CONSUME_QUEUE_DIRECTORY, list_queues
from store.cursor import BadRange, LogTail
from store.dispatch import CommitLogDispatcher, DispatchBatch, DispatchCounts, ScannedRange
from store.errors import (
    CorruptRecordError,
    NoSpaceError,
    ReputError,
    StoreError,
    UsageError,
)
from store.ledger import Ledger, LedgerEntry
from store.logoffset import parse_offset
from store.record import Outcome, Status, decode
from store.scan import assemble, scan_in_one_piece
from store.storecheckpoint import StoreCheckpoint
from streaming.config import DispatcherConfig
from streaming.packed import unpack
from streaming.progress import Progress
from streaming.session import session

NO_SPACE_RETRY_SECONDS = 1.0
STORE_CHECKPOINT_SECONDS = 1.0
POLL_SECONDS = 0.25
_RECORD_HEAD = 4096
_OUR_ERROR = re.compile(r"store\.errors\.(\w+): (.*)")

logger = logging.getLogger("reput")


class BatchWriter:
    """What happens with one batch on the driver. Owns the output's positions."""

    def __init__(
        self, config: DispatcherConfig, settings: StoreSettings, log: CommitLog, plan: Plan
    ) -> None:
        self._config = config
        self._settings = settings
        self._log = log
        self.stopping = threading.Event()
        self.busy = threading.Lock()
        self.failure: BaseException | None = None
        self._ledger = Ledger(config.state_directory)
        self._watermark = WatermarkFile(config.state_directory)
        built_by_us = self._watermark.current is not None
        self.progress = Progress(start_offset=plan.start, end_offset=plan.watermark.end_offset)
        self.dispatchers: Sequence[CommitLogDispatcher] = (
            ConsumeQueueDispatcher(
                config.output,
                settings.mapped_file_size_consume_queue,
                self._ledger,
                durable_end=plan.watermark.end_offset if built_by_us else None,
                queue_offset_at=self._queue_offset_at,
                on_queue_gap=config.on_queue_gap,
            ),
        )
        self._store_checkpoint_due = 0.0
        self._take_over(plan)

    def _take_over(self, plan: Plan) -> None:
        if plan.truncate_to is not None:
            for dispatcher in self.dispatchers:
                dispatcher.truncate(plan.truncate_to)
        if plan.lost is not None:
            self._note_bad(BadRange(*plan.lost, Status.SEGMENT_DELETED), DispatchCounts())
            self._ledger.sync()
        epoch = plan.watermark.epoch + (2 if plan.truncate_to is not None else 1)
        self._watermark.advance(replace(plan.watermark, epoch=epoch))

    def _queue_offset_at(self, physical_offset: int) -> int | None:
        data = self._log.read(physical_offset, _RECORD_HEAD)
        size = int.from_bytes(data[:4], "big", signed=True)
        if size > len(data):
            data = self._log.read(physical_offset, size)
        found = decode(data, physical_offset, physical_offset + len(data) + 8)
        return None if isinstance(found, Outcome) else found.queue_offset

    def __call__(self, frame: DataFrame, _batch_id: int) -> None:
        """foreachBatch: called by Spark on the driver; may be called again with the same batch."""
        with self.busy:
            try:
                self._write(self._collect(frame))
            except BaseException as error:
                self.failure = error
                raise

    def _collect(self, frame: DataFrame) -> DispatchBatch:
        if self.progress.first_batch is None:
            self.progress.first_batch = time.monotonic()
        items = list(unpack(frame.toArrow()))
        batch = assemble(items)
        if batch is not None:
            return batch
        scanned = [item for item in items if isinstance(item, ScannedRange)]
        if not scanned:
            raise StoreError("a batch came without its range; nothing was written")
        start = min(part.start for part in scanned)
        end = max(part.planned_end for part in scanned)
        logger.warning("parts of a batch do not join, scanning again: start=%d end=%d", start, end)
        self._log.refresh()
        batch = scan_in_one_piece(
            self._log, start, end,
            delay_levels_ms=self._settings.message_delay_levels_ms,
            verify_crc=self._config.verify_crc,
        )  # fmt: skip
        if batch is None:
            raise StoreError(f"the log between {start} and {end} changed while it was read")
        return batch

    def _write(self, batch: DispatchBatch) -> None:
        current = self._watermark.current
        if current is None or batch.start > current.end_offset:
            raise StoreError(
                f"a batch begins at {batch.start}, behind the watermark "
                f"{current and current.end_offset}; it would skip messages: nothing was written"
            )
        counts = DispatchCounts()
        for bad in batch.bad:
            self._note_bad(bad, counts)
        for dispatcher in self.dispatchers:
            counts.add(self._dispatch(dispatcher, batch))
            dispatcher.sync()
        self._with_space(self._ledger.sync)
        if batch.end > current.end_offset:
            last = batch.last_record_offset
            advanced = replace(
                current,
                end_offset=batch.end,
                last_record_offset=last,
                last_record_crc=fingerprint(self._log, last),
                last_store_timestamp=batch.last_store_timestamp or current.last_store_timestamp,
            )
            self._with_space(lambda: self._watermark.advance(advanced))
        self.write_store_checkpoint(final=False)
        self.progress.advance(batch.end, counts)
        logger.debug("batch: end=%d messages=%d", batch.end, counts.messages)

    def _dispatch(self, dispatcher: CommitLogDispatcher, batch: DispatchBatch) -> DispatchCounts:
        counts = DispatchCounts()
        self._with_space(lambda: counts.add(dispatcher.dispatch(batch)))
        return counts

    def _with_space(self, write: Callable[[], object]) -> None:
        """Try until there is space: nothing advances meanwhile, and nothing has to be restarted."""
        while True:
            try:
                write()
                return
            except NoSpaceError as error:
                logger.error("waiting for space: %s", error)
                if self.stopping.wait(NO_SPACE_RETRY_SECONDS):
                    raise

    def _note_bad(self, bad: BadRange, counts: DispatchCounts) -> None:
        reason = bad.status.name.lower()
        if self._config.fail_on_corrupt and bad.status is not Status.SEGMENT_DELETED:
            segment = self._log.segment_at(bad.start)
            place = str(segment.path) if segment else str(self._settings.root)
            raise CorruptRecordError(place, bad.start, bad.end, bad.status.name)
        counts.quarantined_bytes += bad.end - bad.start
        if self._ledger.add(LedgerEntry(bad.start, bad.end, reason)):
            logger.warning(
                "quarantined: physical_offset=%d bytes=%d reason=%s",
                bad.start, bad.end - bad.start, reason,
            )  # fmt: skip

    def write_store_checkpoint(self, final: bool) -> None:
        """RocketMQ's checkpoint file, at most once a second, as a broker does."""
        now, current = time.monotonic(), self._watermark.current
        if current is None or not current.last_store_timestamp:
            return
        if not final and now < self._store_checkpoint_due:
            return
        self._store_checkpoint_due = now + STORE_CHECKPOINT_SECONDS
        timestamp = current.last_store_timestamp
        before = StoreCheckpoint.read(self._config.output) or StoreCheckpoint()
        StoreCheckpoint(
            physic_msg_timestamp=max(before.physic_msg_timestamp, timestamp),
            logics_msg_timestamp=timestamp,
            index_msg_timestamp=before.index_msg_timestamp,
            master_flushed_offset=before.master_flushed_offset,
            confirm_phy_offset=max(current.last_record_offset, 0),
        ).write(self._config.output)

    def close(self) -> None:
        """Close files."""
        self._watermark.close()


def run_dispatcher(
    config: DispatcherConfig,
    stop: threading.Event,
    show: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Run until caught up (``once``) or until ``stop`` is set; returns the final counts.

    ``show`` is called a few times a second. Raises ReputError with a line for people.
    """
    settings = read_store_settings(config.store, config.broker_conf).with_overrides(
        config.commit_log_file_size, config.consume_queue_file_size
    )
    log = CommitLog(settings.commit_log_directories, settings.mapped_file_size_commit_log)
    for path in log.foreign:
        logger.warning("ignored, no commitlog file: path=%s", path)
    with Ownership(config.output):
        found = read_watermark(config.state_directory)
        if found is None and not config.adopt:
            _check_queues_are_ours(config.output)
        log_end = LogTail(log).settled()
        plan = make_plan(log, log_end, found, config.spark_directory, _replay_from(config, log))
        for note in plan.notes:
            logger.info("%s", note)
        writer = BatchWriter(config, settings, log, plan)
        try:
            _prepare_spark_directory(config, plan)
            writer.progress.log_end = log_end
            with session(config.spark_conf) as spark:
                query = _start(spark, config, settings, plan, writer)
                _wait(query, writer, stop, show, plan.watermark.store_id)
            writer.write_store_checkpoint(final=True)
        finally:
            writer.close()
            log.close()
    return writer.progress


def _check_queues_are_ours(output: Path) -> None:
    root = output / CONSUME_QUEUE_DIRECTORY
    if next(list_queues(root), None) is not None:
        raise UsageError(
            f"{root} holds queues that reput did not build; write elsewhere with --output DIR, "
            "or pass --adopt to go on with them"
        )


def _replay_from(config: DispatcherConfig, log: CommitLog) -> int | None:
    text = config.replay_from
    if text is None:
        return None
    if text == "earliest":
        return log.min_offset
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--replay-from is {text!r}; it must be earliest or a physical offset")
    return int(text)


def _prepare_spark_directory(config: DispatcherConfig, plan: Plan) -> None:
    """A kept checkpoint stays; a new query gets an empty directory and a pinned start."""
    directory = config.spark_directory
    if plan.keep_spark_checkpoint:
        return
    if directory.is_dir() and any(directory.iterdir()):
        logger.warning(
            "spark checkpoint moved aside: path=%s", spark_checkpoint.move_aside(directory)
        )
    root = config.output if directory.is_relative_to(config.output) else directory
    spark_checkpoint.pin_start(directory, root, plan.watermark.store_id, plan.start)


def _start(
    spark: SparkSession,
    config: DispatcherConfig,
    settings: StoreSettings,
    plan: Plan,
    writer: BatchWriter,
) -> StreamingQuery:
    spark.dataSource.register(CommitLogDataSource)
    options = {
        "path": str(config.store.resolve()),
        "mode": "runs",
        "startingOffsets": str(
            spark_checkpoint.read_start(config.spark_directory, plan.watermark.store_id)
            or plan.start
        ),
        "storeId": plan.watermark.store_id,
        "maxBytesPerTrigger": str(config.max_bytes_per_trigger),
        "minPartitions": str(spark.sparkContext.defaultParallelism),
        # what retention took is listed as a lost range, as a broker moves on to the log's start
        "failOnDataLoss": "false",
        "verifyCrc": str(config.verify_crc).lower(),
    }
    if config.broker_conf is not None:
        options["brokerConf"] = str(config.broker_conf.resolve())
    if settings.mapped_file_size_commit_log is not None:
        options["commitLogFileSize"] = str(settings.mapped_file_size_commit_log)
    stream = spark.readStream.format(CommitLogDataSource.name()).options(**options).load()
    query = stream.writeStream.queryName("reput").foreachBatch(writer)
    query = query.option("checkpointLocation", str(config.spark_directory.resolve()))
    if config.once:
        return query.trigger(availableNow=True).start()
    return query.trigger(processingTime=f"{config.trigger_ms} milliseconds").start()


def _wait(
    query: StreamingQuery,
    writer: BatchWriter,
    stop: threading.Event,
    show: Callable[[Progress], None],
    store_id: str,
) -> None:
    try:
        while query.isActive and not stop.wait(POLL_SECONDS):
            last = query.lastProgress
            if last is not None and last.sources:
                seen = parse_offset(last.sources[0].latestOffset, store_id)
                writer.progress.log_end = seen if seen is not None else writer.progress.log_end
            show(writer.progress)
        if query.isActive:
            # let the running batch end; one that begins now is repeated by the next start
            writer.stopping.set()
            with writer.busy:
                query.stop()
        query.awaitTermination()
    except StreamingQueryException as error:
        raise _our_error(error, writer.failure) from error
    show(writer.progress)


def _our_error(error: StreamingQueryException, failure: BaseException | None) -> ReputError:
    """The line for people behind a failed query: ours if one of ours caused it."""
    if isinstance(failure, ReputError):
        return failure
    text = str(error)
    for name, message in reversed(_OUR_ERROR.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, ReputError):
            return UsageError(message) if issubclass(kind, UsageError) else StoreError(message)
    if failure is not None:
        text = f"{type(failure).__name__}: {failure}"
    return StoreError(f"the query failed: {text.strip().splitlines()[0]}")
