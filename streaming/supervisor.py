"""Dispatches several stores in one Spark application, each as a run of its own.

A store has a thread, a query, a scheduler pool and an output, and with the output a watermark, a
ledger, followers and Spark's checkpoint of its own. A run that fails ends alone; it is started
again after a pause, which doubles from failure to failure. The runs share the session, its JVM and
the processes of its workers: where those are lost, all runs end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.util import InheritableThread

from reput.sources.commitlog import CommitLogDataSource
from reput.store.errors import ReputError, StoreError
from reput.store.runs.dispatch import DispatchCounts
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import query_name, run_dispatcher
from reput.streaming.logcontext import about, store_name
from reput.streaming.measures import Measures
from reput.streaming.progress import TotalProgress, summed_up
from reput.streaming.spark.errors import error_line
from reput.streaming.spark.metrics import BatchListener

TICK_SECONDS = 0.5
LOOK_SECONDS = 5.0
"""Time between two looks for stores that have come."""
FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 60.0
"""Longest pause before a failed run is started again; one that lasted longer was no failed start.
"""

END_SECONDS = 10.0
"""Time that the runs get to end after Spark was lost; what they leave is as after a kill."""

logger = logging.getLogger("reput")


@dataclass(slots=True)
class SupervisedStore:
    """One store: its run and its failures."""

    name: str
    config: DispatcherConfig
    measures: Measures
    error: str | None = None
    """The reason for which its last run has failed, until the next one is started."""
    failures: int = 0
    """Failed runs since one that made progress."""
    due: float = 0.0
    """The time, of the monotonic clock, from which on it may be started."""
    began: float = 0.0
    thread: threading.Thread | None = None
    """The thread of its run; None where there is none."""
    before: DispatchCounts = field(default_factory=DispatchCounts)
    """The counts of its runs that have failed."""

    def failed(self) -> float:
        """Note that a run has failed; return the seconds until the next one is due."""
        now, progress = time.monotonic(), self.measures.progress
        if (progress is not None and progress.batches) or now - self.began > LAST_PAUSE_SECONDS:
            self.failures = 0
        if progress is not None:
            # the next run writes again what is not durable
            progress.begin_again()
            self.before.add(progress.counts)
            self.measures.progress = None
        self.measures.is_failing = True
        pause = min(FIRST_PAUSE_SECONDS * (1 << min(self.failures, 10)), LAST_PAUSE_SECONDS)
        self.failures += 1
        self.due = now + pause
        return pause

    def summary(self) -> dict[str, Any]:
        """The store's part of a summary."""
        counts, progress = DispatchCounts(), self.measures.progress
        counts.add(self.before)
        if progress is not None:
            counts.add(progress.counts)
        return {
            "store": str(self.config.store),
            "output": str(self.config.output),
            **summed_up(counts),
            "end_offset": None if progress is None else progress.end_offset,
            "error": self.error,
        }


class Supervisor:
    """The runs of all stores, from the first look for stores until they are stopped."""

    def __init__(
        self,
        find: Callable[[], Mapping[str, DispatcherConfig]],
        new_measures: Callable[[], Measures] | None = None,
        *,
        once: bool,
    ) -> None:
        """``find`` returns the configuration of each store that is there, by the store's name; it
        raises ReputError where it cannot tell, here or later. ``new_measures`` makes what a store's
        metrics need; None where there are none, and Spark's part of them need not be heard. With
        ``once`` each store is caught up with one run."""
        self._find = find
        self._listens = new_measures is not None
        self._new_measures = new_measures or Measures
        self._once = once
        self._stores: dict[str, SupervisedStore] = {}
        for name, config in find().items():
            self._take_up(name, config)
        self._look_due = time.monotonic() + LOOK_SECONDS
        self._said = ""

    def _take_up(self, name: str, config: DispatcherConfig) -> None:
        self._stores[name] = SupervisedStore(name, config, self._new_measures())

    @property
    def stores(self) -> Sequence[SupervisedStore]:
        """All stores; any thread may ask."""
        return [*self._stores.values()]

    def runs(self) -> Sequence[tuple[DispatcherConfig, Measures]]:
        """The configuration and measures of each run; any thread may ask."""
        return [(store.config, store.measures) for store in self.stores]

    def run(
        self,
        spark: SparkSession,
        stop: threading.Event,
        show: Callable[[TotalProgress], None] = lambda _: None,
    ) -> None:
        """Run until every store is caught up (``once``) or until ``stop`` is set.

        ``show`` is called with the progress of all. Raises StoreError or py4j's errors where Spark
        is gone; otherwise failures are in ``stores``.
        """
        spark.dataSource.register(CommitLogDataSource)
        if self._listens:
            BatchListener(self._measures_of).listen(spark)
        try:
            while not stop.is_set():
                if not self._once:
                    self._look()
                self._attend_all(spark, stop)
                if self._once and not self._threads():
                    return
                self._show(show)
                stop.wait(TICK_SECONDS)
            while threads := self._threads():
                threads[0].join(TICK_SECONDS)
                self._attend_all(spark, stop)
                self._show(show)
        finally:
            stop.set()
            deadline = time.monotonic() + END_SECONDS
            for thread in self._threads():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _measures_of(self, query: str) -> Measures | None:
        of_queries = {query_name(config): measures for config, measures in self.runs()}
        return of_queries.get(query)

    def _threads(self) -> list[threading.Thread]:
        return [store.thread for store in self.stores if store.thread is not None]

    def _show(self, show: Callable[[TotalProgress], None]) -> None:
        runs = [store.measures.progress for store in self.stores]
        show(TotalProgress([run for run in runs if run is not None]))

    def _look(self) -> None:
        """Take up stores that have come, and forget those that are gone and do not run."""
        if time.monotonic() < self._look_due:
            return
        self._look_due = time.monotonic() + LOOK_SECONDS
        try:
            configs = self._find()
        except (ReputError, OSError) as error:
            if str(error) != self._said:
                logger.error("no other stores are taken up: %s", error)
            self._said = str(error)
            return
        self._said = ""
        for name, config in configs.items():
            if name not in self._stores:
                logger.info("a store has come: path=%s", config.store)
                self._take_up(name, config)
        for store in self.stores:
            if store.name not in configs and store.thread is None:
                logger.warning("a store is gone: path=%s", store.config.store)
                del self._stores[store.name]

    def _attend_all(self, spark: SparkSession, stop: threading.Event) -> None:
        for store in self.stores:
            with about(store.name):
                self._attend(store, spark, stop)

    def _attend(self, store: SupervisedStore, spark: SparkSession, stop: threading.Event) -> None:
        """Start the store's run if it is due; see whether it has ended."""
        if store.thread is None:
            is_done = self._once and store.began > 0
            if not (is_done or stop.is_set() or time.monotonic() < store.due):
                self._start(store, spark, stop)
        elif not store.thread.is_alive():
            store.thread = None
            is_over = self._once or stop.is_set()
            if store.error is None and not is_over:
                store.error = "its query has ended by itself"
            if store.error is not None:
                _check(spark)
                pause = store.failed()
                again = "" if is_over else f"; it is started again in {pause:.0f} s"
                logger.error("failed: %s%s", store.error, again)

    def _start(self, store: SupervisedStore, spark: SparkSession, stop: threading.Event) -> None:
        if store.failures:
            logger.info("starting again")
        store.began, store.error, store.measures.is_failing = time.monotonic(), None, False
        # its end frees the thread that the JVM keeps for it
        store.thread = InheritableThread(
            _dispatch, args=(store, spark, stop), name=f"reput-{store.name}", daemon=True
        )
        store.thread.start()


def _dispatch(store: SupervisedStore, spark: SparkSession, stop: threading.Event) -> None:
    """Run one store's dispatcher, in its thread."""
    store_name.set(store.name)
    try:
        run_dispatcher(store.config, stop, measures=store.measures, spark=spark)
    except Exception as error:
        # whatever it is, it is this store's alone
        store.error = error_line(error)


def _check(spark: SparkSession) -> None:
    """Raise py4j's error where the JVM is gone, and StoreError where Spark has stopped: no run can
    be started again."""
    try:
        # Spark asserts that it has not stopped before it answers this
        spark.sparkContext.defaultParallelism  # noqa: B018
    except Py4JJavaError as error:
        raise StoreError(
            "Spark has stopped; start the command again: every store goes on"
        ) from error
