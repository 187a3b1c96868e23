"""Batches that wait for more messages: ``minOffsetsPerTrigger`` and ``maxTriggerDelay``.

The rule is that of Spark's Kafka source. A look at the end takes what is there if that is enough,
or if ``maxTriggerDelay`` has passed since the last look that did so, which may have found nothing.
The first look of a query always does. With Trigger.AvailableNow a query must reach its end, so no
batch is held back there; the Kafka source leaves the last messages to the next run. Spark's Python
sources have no limit of that form, so the reader answers with the batch's start, which Spark takes
for "nothing new".
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMinRows

from reput.sources.options import SourceOptions
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, walk


class TriggerDelay:
    """Holds the batches of one query back; it lives in the planner and starts anew with it."""

    def __init__(self, options: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives seconds."""
        self.least: int = options["minOffsetsPerTrigger"] or 0
        """Messages that begin a batch at once; 0 where none is held back."""
        self._delay_seconds = options["maxTriggerDelay"] / 1000
        self._clock = clock
        self._last: float | None = None

    def limit(self, most: ReadLimit | None) -> ReadLimit:
        """Return the limit that Spark is told: ``most``, or one that is not ReadAllAvailable, with
        which Spark overrides all limits in a query with Trigger.Once."""
        if most is None:
            return ReadMinRows(self.least) if self.least else ReadAllAvailable()
        return most

    def may_hold(self, limit: ReadLimit) -> bool:
        """Return whether a batch would wait now if too few messages were there."""
        if not self.least or isinstance(limit, ReadAllAvailable):
            return False
        return self._last is not None and self._clock() - self._last < self._delay_seconds

    def holds(self, limit: ReadLimit, count: Callable[[], int]) -> bool:
        """Return whether a batch of ``count()`` messages waits. Otherwise the delay begins anew."""
        if self.may_hold(limit) and count() < self.least:
            return True
        self._last = self._clock()
        return False


class MessageCount:
    """Counts the messages of a log that a held batch would have; a look walks only new ones."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._begin, self._reached, self._count = -1, -1, 0

    def within(self, begin: int, end: int, most: int) -> int:
        """Return how many messages are in [begin, end), a range of the log, up to ``most``."""
        if self._begin != begin or self._reached > end:
            self._begin, self._reached, self._count = begin, begin, 0
        left = most - self._count
        if self._reached < end and left > 0:
            hop = walk(self._log, Window(self._log), self._reached, end, max_records=left)
            self._reached, self._count = hop.offset, self._count + hop.record_count
        return self._count
