"""The settings of a store that change while its log is followed, read once for each batch.

A broker writes a topic to ``config/topics.json`` before it announces it to clients, and thus before
the topic's first message. The file, read after the end of a batch was found, therefore has all that
the batch needs. It may be newer than some of the batch's messages: those are dispatched as RocketMQ
dispatches the rest of its log at a start. A batch that is repeated after a kill is dispatched by
the file as it is then, for the same reason: none of it was below the watermark, and its units are
cut first.

A broker reads ``broker.conf`` when it starts: a changed messageDelayLevel counts from the next
start on, which the ``abort`` file shows, since a store writes it before it takes messages. The
consumers' filters in ``config/consumerFilter.json`` are up to ten seconds old.
"""

from __future__ import annotations

from pathlib import Path

from reput.store.config import StoreSettings, read_store_settings
from reput.store.files import ABORT_FILE, TOPICS_FILE
from reput.store.filetimes import Watched, signature
from reput.store.queue.queuetype import batch_topics, read_queue_types
from reput.store.runs.dispatch import BatchSettings


class LiveSettings:
    """The settings of one store, for one reader of its log; not thread-safe."""

    def __init__(
        self,
        settings: StoreSettings,
        broker_conf: Path | None,
        known_batch_topics: frozenset[bytes] = frozenset(),
    ) -> None:
        """``settings`` were read from ``broker_conf``; None for the store's own file.
        ``known_batch_topics`` have batch queues unless the topic's declaration differs."""
        self._root = settings.root
        self._broker_conf = broker_conf
        self._batch_topics = known_batch_topics
        self._delay_levels_ms = settings.message_delay_levels_ms
        self._topics = Watched(self._root / TOPICS_FILE, self._read_batch_topics)
        self._abort = self._root / ABORT_FILE
        self._started = signature(self._abort)

    def poll(self) -> BatchSettings:
        """Return the settings by which a batch whose end is known is dispatched. Raises UsageError
        for a file that cannot be read."""
        return BatchSettings(self._topics.value(), self.delay_levels_ms())

    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delay levels of the broker that was started last."""
        started = signature(self._abort)
        if started is not None and started != self._started:
            settings = read_store_settings(self._root, self._broker_conf)
            self._delay_levels_ms = settings.message_delay_levels_ms
            self._started = started
        return self._delay_levels_ms

    def _read_batch_topics(self) -> frozenset[bytes]:
        self._batch_topics = batch_topics(read_queue_types(self._root), self._batch_topics)
        return self._batch_topics
