"""Builds an output from a whole log at once, in which executors write the queues (decision 0014).

One Spark job scans the log in parts, brings all runs of a queue to one task by the hash of topic
and queue id, and lets the task write the queue (``streaming.queuetask``). The driver checks the
answers, moves the queues in, and writes what has one writer: index, ledger, watermark, RocketMQ's
checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from reput.checkpoints.ownership import Ownership
from reput.checkpoints.swap import epoch_of
from reput.sources.commitlog import CommitLogDataSource
from reput.sources.schemas import RUNS_SCHEMA
from reput.store.errors import StoreError
from reput.store.log.commitlog import CommitLog
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts
from reput.store.state.built import settings_of
from reput.streaming.commit import Committer
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import POLL_SECONDS, run_dispatcher, runs_options
from reput.streaming.followers import Followers
from reput.streaming.indexes import Indexes
from reput.streaming.progress import Progress
from reput.streaming.queuetask import SORT_COLUMNS, QueueTask
from reput.streaming.spark.errors import cause_line, error_of_ours
from reput.streaming.spark.frames import collected, mapped
from reput.streaming.spark.jvm import Jvm
from reput.streaming.spark.session import session
from reput.streaming.startup import Start, plan_start

PARTS_PER_CORE = 4
"""Parts of the log, and of its queues, for each core of the executors: a worker that is lost takes
little work along, and no core waits long for the last one."""

logger = logging.getLogger("reput")


def build_on_executors(
    config: DispatcherConfig,
    stop: threading.Event,
    show: Callable[[Progress], None] = lambda _: None,
    jvm: Jvm | None = None,
    spark: SparkSession | None = None,
) -> Progress:
    """Build the fresh output of ``config`` once, as ``run_dispatcher`` does; return the counts.

    ``show`` is called a few times a second. Nothing is counted where ``stop`` is set meanwhile.
    ``spark`` is a session with our source, which others use as well, each in a thread of its own.
    Where parts of the log do not join, because a body holds what looks like a record, one writer
    builds the output. Raises ReputError.
    """
    settings, log = config.open_store()
    with ExitStack() as resources:
        resources.callback(log.close)
        settings = settings_of(config.output, settings, config.flags)
        shared = spark
        if spark is None:
            spark = resources.enter_context(session(config.spark_conf, jvm))
            spark.dataSource.register(CommitLogDataSource)
        with Ownership(config.output):
            start = plan_start(config, settings, log)
            begin = start.plan.start
            progress = Progress(begin, begin, log_end=start.log_end)
            with epoch_of(config.output) as epoch:
                batch = _Job(config, spark, log, start, epoch).run(progress, stop, show)
                if batch is not None:
                    logger.info(
                        "executors wrote the queues, moving them in: queues=%d seconds=%.1f",
                        len(batch.queues), time.monotonic() - progress.started,
                    )  # fmt: skip
                    progress.advance(batch.end, _commit(config, log, start, batch))
        if batch is None and begin < start.log_end and not stop.is_set():
            logger.warning("parts of the log do not join: one writer builds the queues")
            return run_dispatcher(config, stop, show, jvm, spark=shared)
        show(progress)
        return progress


class _Job:
    """The Spark job of one rebuild."""

    def __init__(
        self,
        config: DispatcherConfig,
        spark: SparkSession,
        log: CommitLog,
        start: Start,
        epoch: Path,
    ) -> None:
        self._spark = spark
        self._task = QueueTask(_with_whole_paths(start.indexes), epoch.resolve())
        self._name = str(epoch)
        self._bytes = start.log_end - start.plan.start
        file_count = -(-self._bytes // log.file_size)
        cores = spark.sparkContext.defaultParallelism
        self._part_count = max(PARTS_PER_CORE * cores, file_count)
        self._options = {
            **runs_options(config, start.indexes),
            "startingOffsets": str(start.plan.start),
            "endingOffsets": str(start.log_end),
            "minPartitions": str(self._part_count),
        }

    def run(
        self, progress: Progress, stop: threading.Event, show: Callable[[Progress], None]
    ) -> DispatchBatch | None:
        """Run the job and return its answers as one batch; None where the parts do not join, there
        are none, or ``stop`` was set. Raises ReputError."""
        progress.first_batch = time.monotonic()
        with ThreadPoolExecutor(1, "reput-job") as thread:
            answers = thread.submit(self._collect)
            while wait([answers], POLL_SECONDS).not_done:
                if stop.is_set():
                    self._spark.sparkContext.cancelJobGroup(self._name)
                progress.ahead_bytes = self._scanned_bytes()
                show(progress)
            try:
                rows = answers.result()
            except (PySparkException, Py4JError) as error:
                if stop.is_set():
                    return None
                raise error_of_ours(error) or StoreError(
                    f"the rebuild failed: {cause_line(error)}; nothing is replaced, start it again"
                ) from error
        return self._task.batch_of(rows)

    def _scanned_bytes(self) -> int:
        """Return about how much of the log is scanned, by the tasks of the job's first stage."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._name))
        scanning = min((stage for job in jobs if job for stage in job.stageIds), default=None)
        stage = None if scanning is None else tracker.getStageInfo(scanning)
        return self._bytes * stage.numCompletedTasks // stage.numTasks if stage else 0

    def _collect(self) -> Sequence[pa.RecordBatch]:
        context = self._spark.sparkContext
        context.setJobGroup(self._name, f"reput rebuild {self._name}")
        # of several stores, none waits for all tasks of another
        context.setLocalProperty("spark.scheduler.pool", self._name)
        frame = self._spark.read.format(CommitLogDataSource.name()).options(**self._options).load()
        topic, queue_id, offset = SORT_COLUMNS
        # rows of no queue, most of all the index's, are divided too
        spread = frame[offset] * frame[topic].isNull().cast("long")
        frame = frame.repartition(self._part_count, topic, queue_id, spread)
        frame = frame.sortWithinPartitions(*SORT_COLUMNS)
        return collected(mapped(frame, self._task, RUNS_SCHEMA))


def _with_whole_paths(indexes: Indexes) -> Indexes:
    """Return the same for tasks, which open the log from working directories of their own."""
    settings = indexes.settings
    directories = tuple(path.resolve() for path in settings.commit_log_directories)
    whole = replace(settings, root=settings.root.resolve(), commit_log_directories=directories)
    return replace(indexes, settings=whole)


def _commit(
    config: DispatcherConfig, log: CommitLog, start: Start, batch: DispatchBatch
) -> DispatchCounts:
    """Move the queues in, write the rest, and make the watermark durable. Raises ReputError."""
    indexes = replace(start.indexes, on_executors=True)
    followers = Followers(config, indexes.settings, start.plan.watermark.store_id)
    with closing(followers), closing(Committer(config, indexes, log, followers)) as committer:
        committer.take_over(start.plan)
        counts = committer.commit(batch)
        committer.publish(batch)
        committer.end()
    return counts
