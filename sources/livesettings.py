"""The settings of a store that change while its log is followed, looked at once for a batch.

A broker writes a topic to ``config/topics.json`` before it tells clients of it, thus before the
first message of it. So what stands there after the end of a batch was found is all that the batch
needs. It may be newer than some of its messages: those are dispatched as RocketMQ dispatches what
is left in its log when it starts. A batch that is repeated, after a kill, is dispatched by what
stands there then, for the same reason: nothing of it was below the watermark, and what was written
is cut first.

A broker reads ``broker.conf`` when it starts: messageDelayLevel counts from the next start on,
which is seen by the ``abort`` file that a store writes before it takes messages. The consumers'
filters in ``config/consumerFilter.json`` are what it knew up to ten seconds ago.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from store.config import StoreSettings, read_store_settings
from store.queue.queuetype import TOPICS_FILE, batch_topics, read_queue_types
from store.runs.dispatch import BatchSettings

ABORT_FILE = "abort"
"""Below a store's root while a broker has it open."""
_TICK_NS = 50_000_000
"""Two writes so close may leave a file with the same time."""

T = TypeVar("T")


class Watched(Generic[T]):
    """What follows from a file, read again after it was written to; costs a stat otherwise."""

    def __init__(self, path: Path, read: Callable[[], T]) -> None:
        self._path = path
        self._read = read
        self._value: T | None = None
        self._seen: object = None

    def value(self) -> T:
        """As of now. Raises what ``read`` raises, and then reads again the next time."""
        found = _signature(self._path)
        if self._value is None or found != self._seen:
            self._value, self._seen = self._read(), found
        return self._value


class LiveSettings:
    """One store's, for one reader of its log; not thread-safe."""

    def __init__(
        self,
        settings: StoreSettings,
        broker_conf: Path | None,
        known_batch_topics: frozenset[bytes] = frozenset(),
    ) -> None:
        """``settings``: as they were read from ``broker_conf``, None for the store's own file.
        ``known_batch_topics``: those that have batch queues as far as nothing else is declared."""
        self._root = settings.root
        self._broker_conf = broker_conf
        self._batch_topics = known_batch_topics
        self._delay_levels_ms = settings.message_delay_levels_ms
        self._topics = Watched(self._root / TOPICS_FILE, self._read_batch_topics)
        self._abort = self._root / ABORT_FILE
        self._started = _signature(self._abort)

    def poll(self) -> BatchSettings:
        """What a batch whose end is known is dispatched by. Raises UsageError for a file that
        cannot be read."""
        return BatchSettings(self._topics.value(), self.delay_levels_ms())

    def delay_levels_ms(self) -> tuple[int, ...]:
        """Those of the broker that was started last."""
        started = _signature(self._abort)
        if started is not None and started != self._started:
            settings = read_store_settings(self._root, self._broker_conf)
            self._delay_levels_ms = settings.message_delay_levels_ms
            self._started = started
        return self._delay_levels_ms

    def _read_batch_topics(self) -> frozenset[bytes]:
        self._batch_topics = batch_topics(read_queue_types(self._root), self._batch_topics)
        return self._batch_topics


def _signature(path: Path) -> object:
    """Another one whenever a file was written to; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if abs(time.time_ns() - found.st_mtime_ns) < _TICK_NS:
        return object()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
