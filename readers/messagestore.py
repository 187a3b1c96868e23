"""A store as its consumers see it: messages by queue, time, key or id, without a broker.

Reads end at the watermark of our dispatcher. A store that RocketMQ built has no watermark; there,
reads end with the log's last whole record, and the queues with the units up to it. Nothing is
written, so a broker and a dispatcher may run meanwhile; ``refresh`` picks up their progress.
Source: RocketMQ 5.3.3 ``DefaultMessageStore``, ``ConsumeQueueStore``, and for queries by key its
client's ``MQAdminImpl``; formats.md §10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from reput.readers.getmessage import (
    DEFAULT_MAX_MSG_NUMS,
    MAX_PULL_MSG_SIZE,
    GetMessageResult,
    GetMessageStatus,
    LogView,
    PullLimits,
    get_message,
)
from reput.readers.getranges import GetRangesResult, RangeReader
from reput.readers.messagefilter import MessageFilter
from reput.readers.messages import (
    DEFAULT_MAX_BODY_BYTES,
    Message,
    QueryMessageResult,
    message_place,
)
from reput.store.commandline import command_line
from reput.store.config import StoreSettings, read_store_settings
from reput.store.files import INDEX_DIRECTORY, STATE_DIRECTORY
from reput.store.index.indexfile import TOPIC_KEY_SEPARATOR, IndexFiles
from reput.store.log import record
from reput.store.log.commitlog import NO_TIME, CommitLog
from reput.store.log.cursor import BadRange, LogTail
from reput.store.log.losses import Losses, loss_error, warn_of_unmounted
from reput.store.log.places import AsOf
from reput.store.log.record import Record
from reput.store.log.status import Outcome, Status
from reput.store.queue.consumequeue import (
    BoundaryType,
    QueueKey,
    list_queue_ids,
    topic_directory,
)
from reput.store.queue.kinds import QueueKind, kind_of
from reput.store.queue.queuetype import BATCH_CQ, read_queue_types
from reput.store.queue.topics import check_topics, topics_with_queues
from reput.store.queue.view import CqUnit, QueueView, UnitColumns, open_view
from reput.store.state.built import settings_of
from reput.store.state.coverage import Coverage, read_coverage
from reput.store.state.output import watermark_of_output
from reput.store.state.watermark import Watermark, WatermarkReader

if TYPE_CHECKING:
    import pyarrow as pa

UNIQUE_KEY_MAX_COUNT = 32
"""Number of messages that a broker examines for a unique key."""
MAX_TIMESTAMP_MS = (1 << 63) - 1

_T = TypeVar("_T")
_NO_QUEUE = GetMessageResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
_NO_RANGES = GetRangesResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)


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
        self._limits = limits or PullLimits.of(settings)
        self._max_body_bytes = max_body_bytes
        self._fail = fail_on_data_loss
        self.losses = Losses()
        """Parts of the log without the records to which queues and index point."""
        self._queue_types = read_queue_types(root)
        log = CommitLog(settings.commit_log_directories, settings.mapped_file_size_commit_log)
        if fail_on_data_loss:
            log.check_mounted("the log may have begun earlier")
        warn_of_unmounted(log)
        self._tail = LogTail(log)
        self._index = IndexFiles(self._output / INDEX_DIRECTORY, settings.index_layout)
        self._queues: dict[tuple[str, int], tuple[QueueView, LogView]] = {}
        """The open queues by topic and id, each with the part of the log that it has seen."""
        self._watermark = watermark_of_output(self._output, settings.root, log)
        self._watermark_reader = WatermarkReader(self._output / STATE_DIRECTORY)
        end = self._watermark.end_offset if self._watermark else self._tail.settled()
        self._last_end = None if as_of is None else as_of.end(log, end)
        self._view = LogView(log, end if self._last_end is None else self._last_end)

    def refresh(self) -> None:
        """Pick up what was dispatched and removed since the last call; without changes, it costs a
        stat and a small read. Without a watermark the log's last record may need one more."""
        log, watermark = self._view.log, self._watermark
        before = (_lifetime(watermark), log.min_offset)
        log.refresh()
        self._watermark = self._watermark_reader.read()
        end = self._watermark.end_offset if self._watermark else self._tail.poll(self._view.end)
        if self._last_end is not None:
            end = min(end, self._last_end)
        if (_lifetime(self._watermark), log.min_offset) != before or end < self._view.end:
            self._queues.clear()
        if self._watermark != watermark or end != self._view.end:
            self._view = LogView(log, end)

    def close(self) -> None:
        """Close the log's files."""
        self._view.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def min_physical_offset(self) -> int:
        """Min offset of the log."""
        return self._view.log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Physical offset up to which the log may be read."""
        return self._view.end

    def topics(self) -> list[str]:
        """Topics that have queues, sorted."""
        return sorted(topics_with_queues(self._output))

    def queue_ids(self, topic: str) -> list[int]:
        """A topic's queues, sorted."""
        if (name := topic_directory(topic.encode())) is None:
            return []
        return list_queue_ids(self._output / self._kind(name) / name)

    def check_topic(self, topic: str) -> None:
        """Raise UsageError if neither the store nor the output knows a topic."""
        check_topics([topic], self._settings.root, self._output)

    def command(self, name: str, *words: str) -> str:
        """Return the line of a shell that calls a command of ``reput`` on this store."""
        return command_line(name, self._settings.root, self._output, *words)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Offset of the first message that is still in the log: the max offset if there is none, 0
        without a queue."""
        return self._ask(topic, queue_id, lambda queue: queue.min_offset, 0)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Offset after the last message; 0 without a queue."""
        return self._ask(topic, queue_id, lambda queue: queue.max_offset, 0)

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = DEFAULT_MAX_MSG_NUMS,
        *,
        max_bytes: int = MAX_PULL_MSG_SIZE,
        message_filter: MessageFilter | None = None,
    ) -> GetMessageResult:
        """Pull from ``offset`` on up to ``max_count`` messages of up to ``max_bytes`` in all.

        The first message is returned whatever its size. The number of units read is limited too, so
        a filter that matches none of them gives NO_MATCHED_MESSAGE and the next offset.
        """

        def ask(queue: QueueView) -> GetMessageResult:
            return get_message(
                queue, self._view, offset, max_count, max_bytes=max_bytes,
                message_filter=message_filter, limits=self._limits,
                max_body_bytes=self._max_body_bytes,
            )  # fmt: skip

        return self._ask(topic, queue_id, ask, _NO_QUEUE)

    def get_ranges(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = DEFAULT_MAX_MSG_NUMS,
        *,
        max_bytes: int = MAX_PULL_MSG_SIZE,
        message_filter: MessageFilter | None = None,
    ) -> GetRangesResult:
        """The records that ``get_message`` finds, as the log holds them."""
        reader = self._range_reader

        def ask(queue: QueueView) -> GetRangesResult:
            return reader.get_ranges(
                queue, self._view, offset, max_count, max_bytes=max_bytes,
                message_filter=message_filter,
            )  # fmt: skip

        return self._ask(topic, queue_id, ask, _NO_RANGES)

    @cached_property
    def _range_reader(self) -> RangeReader:
        return RangeReader(self._limits)

    def load_kernels(self) -> None:
        """Load what the first call of ``get_ranges`` would load, or compile: a server must not
        stand still for it."""
        self._range_reader  # noqa: B018

    def unit_columns(
        self, topic: str, queue_id: int, offset: int, count: int
    ) -> tuple[UnitColumns, int] | None:
        """Up to ``count`` units from ``offset`` on, and the offset after them; None if no file of
        the queue holds ``offset``."""
        return self._ask(topic, queue_id, lambda queue: queue.columns_from(offset, count), None)

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[CqUnit]:
        """Up to ``count`` units from ``offset`` on, within one file; none if no file holds it."""
        return self._ask(topic, queue_id, lambda q: list(q.units_from(offset, count) or ()), [])

    def rows_at(
        self, units: UnitColumns, schema: pa.Schema, max_inflated_bytes: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the log at the given units (``store.rows.rows.rows_at``)."""
        # numba takes half a second to import, which readers of single messages avoid
        from reput.store.rows.rows import rows_at  # noqa: PLC0415

        return rows_at(
            self._view.log, units.physical_offsets, units.sizes, schema,
            delay_levels_ms=self._settings.message_delay_levels_ms,
            max_inflated_bytes=max_inflated_bytes,
        )  # fmt: skip

    def consumer_filter(self, topic: str, group: str) -> MessageFilter | None:
        """The SQL92 filter that a consumer group registered with the broker; None without one.
        Raises StoreError where the broker's file cannot be used."""
        return MessageFilter.registered(self._settings.root, topic, group)

    def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        """Queue offset by store time, within the queue's bounds (``ConsumeQueueFiles``)."""

        def ask(queue: QueueView) -> int:
            offset = queue.offset_by_time(timestamp_ms, boundary, self._view.store_time)
            return min(max(offset, queue.min_offset), queue.max_offset)

        return self._ask(topic, queue_id, ask, 0)

    def first_from_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Offset of the first message stored at a time or later, or the max offset.

        Unlike ``offset_by_time`` it takes a lost record for one stored with the next that is there.
        """

        def ask(queue: QueueView) -> int:
            offset = queue.first_from_time(timestamp_ms)
            return queue.max_offset if offset is None else offset

        return self._ask(topic, queue_id, ask, 0)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of the message at ``offset``; -1 without one."""

        def ask(queue: QueueView) -> int:
            for unit in queue.units_from(offset, 1) or ():
                return self._view.store_time(unit.physical_offset, unit.size)
            return NO_TIME

        return self._ask(topic, queue_id, ask, NO_TIME)

    def begins_in_memory(self, topic: str, queue_id: int) -> bool:
        """Whether a queue begins at offset 0 with a message so near the log's end that a broker
        takes it for cached (``checkInMemByConsumeOffset``)."""

        def ask(queue: QueueView) -> bool:
            first = next(iter(queue.units_from(0, 1) or ()), None) if not queue.min_offset else None
            limit = self._limits.in_memory_bytes
            return first is not None and self._view.end - first.physical_offset <= limit

        return self._ask(topic, queue_id, ask, False)

    def is_dispatched_whole(self) -> bool:
        """Whether the log holds nothing after the readable part, so that a queue's end is final."""
        log, end = self._view.log, self._view.end
        head = log.read(end, record.SIZE_MAGIC_LENGTH)
        if head[4:] == record.BLANK_MAGIC.to_bytes(4, "big"):
            segment = log.segment_after(end)
            head = log.read(segment.start, record.SIZE_MAGIC_LENGTH) if segment else b""
        return not any(head)

    def coverage(self) -> Coverage:
        """How far the queues reach into the log, and what of it is in no queue, as of now or as of
        the store's moment. It reads the log's last records: not for every call."""
        log, end = self._view.log, self._view.end
        watermark = None if self._watermark is None else end
        is_last = watermark is None or self._last_end is not None
        log_end = end if is_last else self._tail.settled(end)
        return read_coverage(self._output, self._settings, log, watermark, log_end)

    def note_coverage(self) -> str | None:
        """A line about messages that are in no queue, for whoever reads queues; None where there
        are none, or only the lag of a process that builds the queues."""
        coverage = self.coverage()
        return None if coverage.is_growing else coverage.line(self._settings.root, self._output)

    def earliest_message_time(self, topic: str, queue_id: int) -> int:
        """Store time of the queue's first message; -1 without one."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def earliest_time(self) -> int:
        """Store time of the log's first record; -1 without one."""
        return self._view.store_time(self.min_physical_offset, record.MIN_RECORD_LENGTH)

    def message_at(self, physical_offset: int) -> Message | None:
        """The message whose record begins at ``physical_offset``; None if none does."""
        log = self._view.log
        if not log.min_offset <= physical_offset < self._view.end:
            return None
        result = log.record_starting_at(physical_offset)
        if not isinstance(result, Record) or physical_offset + result.total_size > self._view.end:
            return None
        return Message.of(result, self._max_body_bytes)

    def note_loss(self, physical_offset: int) -> int:
        """Add the lost or damaged range to which a unit or an entry points to ``losses``; return
        its end.

        Raises CommitLogDataLossError or CorruptRecordError with ``fail_on_data_loss``.
        """
        log = self._view.log
        gap, result = log.gap_at(physical_offset), log.record_starting_at(physical_offset)
        if gap is not None:
            bad = BadRange(*gap, Status.SEGMENT_DELETED)
        elif isinstance(result, Outcome):
            bad = BadRange(physical_offset, physical_offset + max(result.size, 0), result.status)
        else:
            return physical_offset
        if self._fail:
            raise loss_error(log, bad)
        self.losses.add(bad)
        return bad.end

    def stored_record(self, message: Message) -> bytes:
        """The bytes of a message's record in the log."""
        return self._view.log.read(message.physical_offset, message.size)

    def message_by_id(self, offset_message_id: str) -> Message | None:
        """The message with the id that a broker assigned; None for another broker's id. Raises
        UsageError like ``message_place``."""
        host, physical_offset = message_place(offset_message_id)
        message = self.message_at(physical_offset)
        return message if message and message.record.store_host == host else None

    def query(
        self,
        topic: str,
        key: str,
        *,
        max_count: int | None = None,
        begin_ms: int = 0,
        end_ms: int = MAX_TIMESTAMP_MS,
    ) -> list[Message]:
        """Messages of a topic with ``key`` among their keys, by physical offset.

        Only the newest ``max_count`` entries (up to the store's maxMsgsNumBatch) with the key's
        hash and a store time in [begin, end], to the second, are examined.
        """
        return self.query_index(topic, key, max_count, begin_ms, end_ms).with_key(topic, key)

    def query_unique_key(
        self,
        topic: str,
        unique_key: str,
        *,
        max_count: int = UNIQUE_KEY_MAX_COUNT,
        begin_ms: int = 0,
        end_ms: int = MAX_TIMESTAMP_MS,
    ) -> list[Message]:
        """Messages of a topic with a unique key, by physical offset; a message that was sent again
        has the same key."""
        result = self.query_index(topic, unique_key, max_count, begin_ms, end_ms)
        return result.with_key(topic, unique_key, is_unique=True)

    def query_index(
        self,
        topic: str,
        key: str,
        max_count: int | None,
        begin_ms: int,
        end_ms: int,
        *,
        is_limited: bool = True,
    ) -> QueryMessageResult:
        """Messages with the hash of ``topic#key``, as a broker sends them: its clients choose those
        that have the key, as one of their keys or as unique key. ``is_limited`` keeps ``max_count``
        within the store's maxMsgsNumBatch."""
        whole = topic.encode() + TOPIC_KEY_SEPARATOR + key.encode()
        limit = self._settings.max_msgs_num_batch
        most = limit if max_count is None else max_count
        most = min(most, limit) if is_limited else most
        result = self._index.query_offset(whole, most + 1, begin_ms, end_ms, self._view.end)
        offsets = sorted(set(result.phy_offsets[:most]))
        messages = [self.message_at(offset) for offset in offsets]
        for offset, message in zip(offsets, messages, strict=True):
            if message is None and offset >= self.min_physical_offset:
                self.note_loss(offset)
        self.losses.say()
        return QueryMessageResult(
            [message for message in messages if message is not None],
            result.index_last_update_timestamp,
            result.index_last_update_phyoffset,
            len(result.phy_offsets) > most,
        )

    @property
    def has_index(self) -> bool:
        """Whether the index has a file."""
        return bool(self._index.paths())

    def _ask(
        self, topic: str, queue_id: int, question: Callable[[QueueView], _T], without: _T
    ) -> _T:
        """A queue's answer, or ``without`` if no store can have such a queue."""
        try:
            queue = self._queue(topic, queue_id)
            return without if queue is None else question(queue)
        except FileNotFoundError:
            # the queue and its messages were removed since it was opened
            self._view.log.refresh()
            self._queues.clear()
            queue = self._queue(topic, queue_id)
            return without if queue is None else question(queue)

    def _queue(self, topic: str, queue_id: int) -> QueueView | None:
        entry = self._queues.get((topic, queue_id))
        if entry is not None and entry[1] is self._view:
            return entry[0]
        name = topic_directory(topic.encode())
        if name is None or queue_id < 0:
            return None
        queue = entry[0] if entry else open_view(
            self._output, QueueKey(name, queue_id), self._settings, self._view.log,
            self._kind(name),
        )  # fmt: skip
        queue.follow(self._view.end)
        self._queues[topic, queue_id] = queue, self._view
        return queue

    def _kind(self, topic: str) -> QueueKind:
        """The kind of a topic's queues, as found on disk or else as the broker declares."""
        is_declared = self._queue_types.get(topic.encode()) == BATCH_CQ
        return QueueKind.BATCH if is_declared else kind_of(self._output, topic)


def _lifetime(watermark: Watermark | None) -> tuple[str, int] | None:
    """Return a value that stays equal as long as queues only grow."""
    return (watermark.store_id, watermark.epoch) if watermark else None
