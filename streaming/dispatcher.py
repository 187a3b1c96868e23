"""ReputMessageService as a streaming query: source, foreachBatch, index writers, watermark.

Guarantee: every sound record of the log gets its entries exactly once, no matter when or how the
process stops; everything else is in the ledger.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from reput.checkpoints import spark_checkpoint
from reput.checkpoints.ownership import Ownership
from reput.checkpoints.reconcile import Plan
from reput.checkpoints.swap import finish_swap
from reput.sources.commitlog import CommitLogDataSource
from reput.store import fsops
from reput.store.config import NO_PROPERTY_FILE, StoreSettings, read_store_settings
from reput.store.errors import NoSpaceError, NotReadyError, ReputError, StoreError
from reput.store.files import BROKER_CONF_FILE
from reput.store.filetimes import LookTimer, Watched
from reput.store.log.commitlog import CommitLog
from reput.store.runs.spool import open_spool
from reput.store.state.built import settings_of
from reput.store.state.logoffset import parse_offset
from reput.streaming.commit import Committer, OnVisible
from reput.streaming.config import MAX_BYTES_THROUGH_SPARK, DispatcherConfig
from reput.streaming.followers import Followers
from reput.streaming.following import Following
from reput.streaming.foreachbatch import BatchFunction
from reput.streaming.indexes import Indexes
from reput.streaming.measures import Measures
from reput.streaming.progress import Progress
from reput.streaming.space import SpaceWait
from reput.streaming.spark.errors import error_of_ours, first_line
from reput.streaming.spark.jvm import Jvm
from reput.streaming.spark.metrics import BatchListener, LagGauge
from reput.streaming.spark.session import session
from reput.streaming.startup import plan_start, replay_offset, take_over
from reput.streaming.waiting import until_ready

POLL_SECONDS = 0.25
LIVE_POLL_SECONDS = 0.5
"""The same while the log is followed: a stop ends the wait, and twenty idle stores wait at once."""
_CALLBACKS = threading.Lock()
"""pyspark prepares the JVM's calls of foreachBatch functions without a lock."""
IDLE_WAIT_MS = 1000
"""Time for which the source waits at the log's end before it answers: what Spark does in between
takes most of an idle query's CPU time."""
RESTART_SECONDS = 1.0
"""Least time between two queries, where a file of the store was not whole."""
PLANNER_SECONDS = 10.0

logger = logging.getLogger("reput")


def run_dispatcher(
    config: DispatcherConfig,
    stop: threading.Event,
    show: Callable[[Progress], None] = lambda _: None,
    jvm: Jvm | None = None,
    on_visible: OnVisible = lambda *_: None,
    measures: Measures | None = None,
    spark: SparkSession | None = None,
) -> Progress:
    """Run until caught up (``once``) or until ``stop`` is set; return the final counts.

    Where the disk is full, the run waits and goes on when there is room. ``show`` is called a few
    times a second. ``jvm`` is a JVM that was started early, with ``config.spark_conf``. ``spark``
    is a session with our source, which this run shares with others, each in a thread of its own.
    ``on_visible`` is told of the output once it can be read, and whenever it can be read further.
    ``measures`` receives what the run measures; Spark's part only where it is given, and not of a
    shared session. Raises ReputError with a line for people.
    """
    # whoever shares a session starts its runs again, and forgets a store that is gone
    waits = not config.once and spark is None
    opened = until_ready(config.open_store, stop) if waits else config.open_store()
    if opened is None:
        return Progress(0, 0)
    settings, log = opened
    logger.info("settings: broker_conf=%s", settings.property_file or NO_PROPERTY_FILE)
    for directory in settings.commit_log_directories:
        logger.info("reading commitlog: directory=%s", directory)
    with ExitStack() as resources:
        resources.callback(log.close)
        for path in log.segments.foreign:
            logger.warning("ignored, no whole commitlog file: path=%s", path)
        if finish_swap(config.output):
            logger.warning("finished a rebuild that was killed: output=%s", config.output)
        settings = settings_of(config.output, settings, config.flags)
        listens = measures is not None
        measures = measures or Measures()
        run = _Run(config, settings, log, stop, show, on_visible, measures, spark, listens)
        run.space.retry(lambda: resources.enter_context(Ownership(config.output)))
        while True:
            try:
                return run.space.retry(lambda: run.attempt(resources, jvm))
            except NotReadyError as error:
                # a file is torn that a broker writes over, or a directory is gone for a moment
                if not waits:
                    raise
                logger.warning("the query has ended and is started again: %s", error)
                stop.wait(RESTART_SECONDS)
                again = until_ready(config.open_store, stop)
                if again is None:
                    return run.progress or Progress(0, 0)
                again[1].close()


def query_name(config: DispatcherConfig) -> str:
    """Return the name that Spark shows of a run's query."""
    return f"reput {config.output}"


@dataclass
class _Run:
    """One call of ``run_dispatcher``: the state that outlives its queries, each of which is one
    attempt."""

    config: DispatcherConfig
    """The configuration that the run was called with."""
    settings: StoreSettings
    """The store's settings, with those that the output was built with."""
    log: CommitLog
    """The open log, of all attempts."""
    stop: threading.Event
    """The event that ends the run."""
    show: Callable[[Progress], None]
    """Called with the progress a few times a second."""
    on_visible: OnVisible
    """Called once the output can be read, and whenever it can be read further."""
    measures: Measures
    """Receives what the run measures."""
    spark: SparkSession | None
    """The session: one shared with other runs, or the run's own; None before the first attempt."""
    listens: bool
    """Whether Spark's part of the measures is wanted, too."""
    lag_gauge: LagGauge | None = None
    """The gauge of the run's own session; None for a shared one."""
    progress: Progress | None = None
    """The progress of all attempts; None before the first."""

    def __post_init__(self) -> None:
        config = self.config
        self.replay_from = replay_offset(config, self.log)
        """Physical offset from which the next attempt replays; None without a replay."""
        self.stated_directories = Watched(
            config.broker_conf or config.store / BROKER_CONF_FILE,
            lambda: read_store_settings(config.store, config.broker_conf).commit_log_directories,
        )
        """The log's directories, as the property file states them now."""
        self.checks, self.samples = LookTimer(), LookTimer()
        """Times to ask Spark whether the query is active, and for its progress."""
        directories = (config.state_directory, config.spark_directory)
        self.space = SpaceWait(directories, self.stop, self._show_waiting, self.measures)

    def attempt(self, resources: ExitStack, jvm: Jvm | None) -> Progress:
        """Compare the positions and dispatch from there on; the session stays in ``resources``.

        Raises NoSpaceError or NotReadyError where another attempt is worthwhile.
        """
        config, log = self.config, self.log
        start = plan_start(config, self.settings, log, self.replay_from)
        plan, indexes = start.plan, start.indexes
        if self.progress is None:
            self.progress = Progress(plan.start, plan.watermark.end_offset)
        progress = self.measures.progress = self.progress
        progress.begin_again()
        progress.log_end = start.log_end
        followers = Followers(config, self.settings, plan.watermark.store_id)
        with ExitStack() as opened:
            opened.callback(followers.close)
            committer = Committer(
                config, indexes, log, followers, self.on_visible, self.measures,
                progress.note_durable,
            )  # fmt: skip
            opened.callback(self._note_progress, progress, progress.durable_position)
            opened.callback(committer.close)
            following = None
            if not config.once:
                store_id = plan.watermark.store_id
                following = Following(config, indexes, log, store_id, progress)
            take_over(config, start, committer, followers)
            logger.info("begins", extra={"fields": {"start": plan.start, "log_end": start.log_end}})
            self.on_visible(self.settings, None)
            log.will_need(plan.start, start.log_end - plan.start)
            if self.spark is None:
                self.spark = resources.enter_context(session(config.spark_conf, jvm))
                self.spark.dataSource.register(CommitLogDataSource)
                self.lag_gauge = LagGauge(self.spark)
                if self.listens:
                    BatchListener(lambda _: self.measures).listen(self.spark)
            spool = None
            if str(self.spark.sparkContext.master).startswith("local"):
                spool = open_spool(config.spool_directory, config.output)
            batches = BatchFunction(
                spool, plan.start, indexes, log, committer, progress, following, self.measures
            )
            opened.callback(batches.close)
            self.measures.queries += 1
            with _only_new_objects_collected():
                self._query(self.spark, indexes, plan, batches)
            committer.end()
            if config.once:
                followers.catch_up(self.stop)
        logger.info("ended", extra={"fields": progress.summary()})
        return progress

    def _query(
        self, spark: SparkSession, indexes: Indexes, plan: Plan, batches: BatchFunction
    ) -> None:
        """Run one query, until it or the run ends."""
        batches.follow()
        try:
            query = _start(spark, self.config, indexes, plan, batches)
        except (PySparkException, Py4JError) as error:
            raise self._our_error(error, None) from error
        try:
            self._wait(query, batches, plan.watermark.store_id)
            batches.commits.wait()
        except BaseException:
            # Spark cannot interrupt a callback that pauses
            batches.stop()
            raise
        finally:
            query.stop()

    def _wait(self, query: StreamingQuery, batches: BatchFunction, store_id: str) -> None:
        try:
            while not self._has_ended(query) and not self.stop.is_set():
                if self.samples.is_due():
                    _sample(query, batches.progress, store_id)
                batches.commits.check()
                batches.tend()
                batches.note_progress()
                if self.lag_gauge is not None:
                    self.lag_gauge.show(batches.progress.lag_bytes)
                self._check_directories()
                self.show(batches.progress)
            batches.stop()
            if query.isActive:
                _await_planner(query)
                query.stop()
            query.awaitTermination()
        except StreamingQueryException as error:
            if not batches.has_refused:
                raise self._our_error(error, batches.failure) from error
        batches.note_progress()
        self.show(batches.progress)

    def _has_ended(self, query: StreamingQuery) -> bool:
        """Wait a moment, or until the query has ended. One that follows the log ends only by an
        error, and Spark is asked less often: a question costs more than all else of an idle one."""
        if self.config.once:
            # pyspark accepts fractions of a second too; its annotation does not say so
            return bool(query.awaitTermination(POLL_SECONDS))  # type: ignore[arg-type]
        self.stop.wait(LIVE_POLL_SECONDS)
        return self.checks.is_due() and not query.isActive

    def _our_error(self, error: Exception, failure: BaseException | None) -> ReputError:
        """Return the line for people about a failed query: our own error if one of ours caused
        it."""
        if isinstance(failure, ReputError):
            return failure
        text = str(error)
        if fsops.says_no_space(f"{text}{failure}") or not self.space.is_there():
            return NoSpaceError(
                f"spark finds no space, for its checkpoint {self.config.spark_directory} or for "
                "temporary files; free some space and the work goes on where it stopped",
                path=self.config.spark_directory,
            )
        cause = error_of_ours(failure or error)
        return cause or StoreError(f"the query failed: {first_line(failure or error)}")

    def _note_progress(self, progress: Progress, begun: int) -> None:
        if progress.durable_position != begun:
            self.space.progressed()
        if self.replay_from is not None:
            # positions do not show how far a replay has come
            self.replay_from = progress.durable_position

    def _check_directories(self) -> None:
        """Check that the log's directories are the same: a broker that was started again with
        another path writes where this run does not look."""
        try:
            stated = self.stated_directories.value()
        except ReputError:
            return  # the file is being written, or the broker has yet to create the directory
        if {*stated} != {*self.log.segments.directories}:
            raise StoreError(
                "the commitlog directories have changed since this run began, to "
                f"{', '.join(map(str, stated))}; start it again, it goes on where it was"
            )

    def _show_waiting(self) -> None:
        if self.progress is not None:
            self.show(self.progress)


@contextmanager
def _only_new_objects_collected() -> Iterator[None]:
    """Have Python's collector leave out what is loaded by now. It walks over all objects whenever
    they have become a quarter more, as with thousands of new queues, and took a third of such a
    commit's CPU time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _start(
    spark: SparkSession,
    config: DispatcherConfig,
    indexes: Indexes,
    plan: Plan,
    batches: BatchFunction,
) -> StreamingQuery:
    limit = config.max_bytes_per_trigger
    if batches.spool is None:
        limit = min(limit or MAX_BYTES_THROUGH_SPARK, MAX_BYTES_THROUGH_SPARK)
    options = {
        **runs_options(config, indexes),
        "startingOffsets": str(
            spark_checkpoint.read_start(config.spark_directory, plan.watermark.store_id)
            or plan.start
        ),
        "storeId": plan.watermark.store_id,
        "sealedEnd": str(batches.progress.log_end),
        "maxBytesPerTrigger": str(limit),
        "maxWaitMs": str(IDLE_WAIT_MS),
        "minPartitions": str(spark.sparkContext.defaultParallelism),
    }
    if batches.spool is not None:
        options["spool"] = str(batches.spool.resolve())
    # each output has a pool, which gets as much of the executors as any other (FAIR)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", str(config.output))
    stream = spark.readStream.format(CommitLogDataSource.name()).options(**options).load()
    with _CALLBACKS:
        query = stream.writeStream.queryName(query_name(config)).foreachBatch(batches)
    query = query.option("checkpointLocation", str(config.spark_directory.resolve()))
    if config.once:
        return query.trigger(availableNow=True).start()
    return query.start()


def _sample(query: StreamingQuery, progress: Progress, store_id: str) -> None:
    """Take over where Spark has seen the log's end."""
    last = query.lastProgress
    if last is not None and last.sources:
        seen = parse_offset(last.sources[0].latestOffset, store_id)
        # steps see it sooner
        progress.log_end = max(seen or 0, progress.log_end or 0)


def runs_options(config: DispatcherConfig, indexes: Indexes) -> dict[str, str]:
    """Return the options by which the source yields what the indexes of an output need."""
    options = {
        "path": str(config.store.resolve()),
        "mode": "runs",
        # a range that retention removed is listed as lost, as a broker moves on to the log's start
        "failOnDataLoss": "false",
        "output": str(config.output.resolve()),
        "verifyCrc": str(indexes.settings.verify_crc).lower(),
        "gather": indexes.extras.to_text(),
    }
    if config.broker_conf is not None:
        options["brokerConf"] = str(config.broker_conf.resolve())
    if indexes.settings.mapped_file_size_commit_log is not None:
        options["commitLogFileSize"] = str(indexes.settings.mapped_file_size_commit_log)
    return options


def _await_planner(query: StreamingQuery) -> None:
    """Let Spark start the source's planner before the query is stopped: one that finds Spark gone
    when it connects prints a traceback."""
    deadline = time.monotonic() + PLANNER_SECONDS
    while query.isActive and query.status["message"].startswith("Initializing"):
        if time.monotonic() > deadline:
            return
        time.sleep(POLL_SECONDS / 5)
