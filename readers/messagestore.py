"""A store as its consumers see it: messages by queue, time, key or id, without a broker.

Reads end where our dispatcher has written everything (``store.state.visible``). A store that
RocketMQ built has no such end; there, reads end with the log's last whole record, and the queues
with the units up to it. Nothing is written, so a broker and a dispatcher may run meanwhile;
``refresh`` picks up their progress.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from reput.readers.getmessage import LogView, PullLimits
from reput.readers.indexreader import IndexReader
from reput.readers.logreader import LogReader
from reput.readers.messagefilter import MessageFilter
from reput.readers.messages import DEFAULT_MAX_BODY_BYTES
from reput.readers.queuereader import OpenQueues, QueueReader
from reput.store.commandline import command_line
from reput.store.config import StoreSettings, read_store_settings
from reput.store.files import INDEX_DIRECTORY, STATE_DIRECTORY
from reput.store.index.indexfile import IndexFiles
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.log.losses import warn_of_unmounted
from reput.store.log.places import AsOf
from reput.store.queue.topics import check_topics, topics_with_queues
from reput.store.state.built import settings_of
from reput.store.state.coverage import Coverage, read_coverage
from reput.store.state.output import end_of_output
from reput.store.state.visible import EndReader
from reput.store.state.watermark import Watermark


class MessageStore:
    """One store, or a store's log with another output's indexes; a context manager.

    Upper bounds of offsets in queues and in the log are exclusive; times are ms. An absent queue
    reads as empty, as in RocketMQ, which creates it on demand. Not thread-safe. Every read raises a
    StoreError if a file contradicts the store's settings.
    """

    def __init__(
        self,
        root: Path,
        *,
        output: Path | None = None,
        settings: StoreSettings | None = None,
        limits: PullLimits | None = None,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        as_of: AsOf | None = None,
        fail_on_data_loss: bool = False,
    ) -> None:
        """Open the store at ``root``, with its indexes in ``output`` if they are elsewhere.

        With ``as_of`` the log, queues and index read as they did at that moment, for good. With
        ``fail_on_data_loss`` a lost or damaged record is an error for ``iterate``, ``TopicTail``
        and queries, which otherwise add it to ``losses``.

        ``settings`` replace those that ``root`` states and the indexes were built with
        (``store.state.built``); ``limits`` replace a pull's. Bodies are inflated up to
        ``max_body_bytes``. Raises UsageError if ``root`` is not a store, if its settings cannot be
        read, if ``output`` is not an output of this log, or if ``as_of`` is not dispatched yet.
        """
        self._output = output or root
        settings = settings or settings_of(self._output, read_store_settings(root))
        self._settings = settings
        log = CommitLog(settings.commit_log_directories, settings.mapped_file_size_commit_log)
        if fail_on_data_loss:
            log.segments.check_mounted("the log may have begun earlier")
        warn_of_unmounted(log)
        self._tail = LogTail(log)
        self._dispatched = end_of_output(self._output, settings.root, log)
        self._end_reader = EndReader(self._output / STATE_DIRECTORY)
        end = self._dispatched.end_offset if self._dispatched else self._tail.settled()
        self._last_end = None if as_of is None else as_of.end(log, end)
        view = LogView(log, end if self._last_end is None else self._last_end)
        self.log = LogReader(view, settings, max_body_bytes, fail_on_data_loss)
        self.losses = self.log.losses
        """Parts of the log without the records to which queues and index point."""
        limits = limits or PullLimits.of(settings)
        self._queues = OpenQueues(root, self._output, settings, limits, self.log)
        files = IndexFiles(self._output / INDEX_DIRECTORY, settings.index_layout)
        self.index = IndexReader(files, self.log, settings.max_msgs_num_batch)

    def refresh(self) -> None:
        """Pick up what was dispatched and removed since the last call; without changes, it costs a
        stat and a small read. Without a watermark the log's last record may need one more."""
        log, dispatched = self.log.view.log, self._dispatched
        before = (_lifetime(dispatched), log.min_offset)
        log.refresh()
        self._dispatched = self._end_reader.read()
        end = self._dispatched.end_offset if self._dispatched else self._tail.poll(self.log.end)
        if self._last_end is not None:
            end = min(end, self._last_end)
        if (_lifetime(self._dispatched), log.min_offset) != before or end < self.log.end:
            self._queues.clear()
        if self._dispatched != dispatched or end != self.log.end:
            self.log.view = LogView(log, end)

    def close(self) -> None:
        """Close the log's files."""
        self.log.view.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def topics(self) -> list[str]:
        """Topics that have queues, sorted."""
        return sorted(topics_with_queues(self._output))

    def queue_ids(self, topic: str) -> list[int]:
        """A topic's queues, sorted."""
        return self._queues.ids(topic)

    def queue(self, topic: str, queue_id: int) -> QueueReader:
        """One of a topic's queues, or one that is not there yet."""
        return QueueReader(self._queues, topic, queue_id)

    def check_topic(self, topic: str) -> None:
        """Raise UsageError if neither the store nor the output knows a topic."""
        check_topics([topic], self._settings.root, self._output)

    def command(self, name: str, *words: str) -> str:
        """Return the line of a shell that calls a command of ``reput`` on this store."""
        return command_line(name, self._settings.root, self._output, *words)

    def load_kernels(self) -> None:
        """Load what the first call of ``get_ranges`` would load, or compile: a server must not
        stand still for it."""
        self._queues.range_reader  # noqa: B018

    def consumer_filter(self, topic: str, group: str) -> MessageFilter | None:
        """The SQL92 filter that a consumer group registered with the broker; None without one.
        Raises StoreError where the broker's file cannot be used."""
        return MessageFilter.registered(self._settings.root, topic, group)

    def coverage(self) -> Coverage:
        """How far the queues reach into the log, and what of it is in no queue, as of now or as of
        the store's moment. It reads the log's last records: not for every call."""
        log, end = self.log.view.log, self.log.end
        dispatched_end = None if self._dispatched is None else end
        is_last = dispatched_end is None or self._last_end is not None
        log_end = end if is_last else self._tail.settled(end)
        return read_coverage(self._output, self._settings, log, dispatched_end, log_end)

    def note_coverage(self) -> str | None:
        """A line about messages that are in no queue, for whoever reads queues; None where there
        are none, or only the lag of a process that builds the queues."""
        coverage = self.coverage()
        return None if coverage.is_growing else coverage.line(self._settings.root, self._output)


def _lifetime(dispatched: Watermark | None) -> tuple[str, int] | None:
    """Return a value that stays equal as long as queues only grow."""
    return (dispatched.store_id, dispatched.epoch) if dispatched else None
