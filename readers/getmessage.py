"""Pulling messages from a queue: the status, the messages and the next offset.

Source: RocketMQ 5.3.3 ``DefaultMessageStore.getMessage`` of a master with its default
``travelCqFileNumWhenGetMessage`` (a pull never leaves the file of its first unit), and the client's
part of it, ``PullAPIWrapper.processPullResult``; formats.md §10. Compacted topics are not
supported, because RocketMQ keeps their messages in separate files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from reput.readers.messagefilter import MessageFilter
from reput.readers.messages import Message
from reput.store.config import StoreSettings
from reput.store.errors import MessageBodyError
from reput.store.log.commitlog import NO_TIME, CommitLog
from reput.store.log.record import Record
from reput.store.queue.consumequeue import PRE_BLANK_SIZE
from reput.store.queue.view import CqUnit, QueueView

MAX_PULL_MSG_SIZE = 128 << 20
MIN_PULL_MSG_SIZE = 100
DEFAULT_MAX_MSG_NUMS = 32


class GetMessageStatus(StrEnum):
    """The outcome of a pull."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    """The filter matches none of the units that were read; continue at the next offset."""
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    """The messages of these units were removed from the log or are damaged there."""
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    """A file of the queue is missing."""
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    """All messages were read; ask again later."""
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    """No store can have such a queue."""
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    """The queue is empty or absent."""


@dataclass(frozen=True, slots=True)
class PullLimits:
    """A store's limits of one pull, besides those of its caller (``MessageStoreConfig``)."""

    max_transfer_bytes_in_memory: int
    max_transfer_count_in_memory: int
    max_transfer_bytes_on_disk: int
    max_transfer_count_on_disk: int
    max_filter_message_size: int
    """Bytes of units that one pull reads."""
    in_memory_bytes: int
    """Messages within this distance of the log's end have the in-memory limits."""

    @classmethod
    def of(cls, settings: StoreSettings) -> Self:
        """The limits of a store on this machine."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(
            settings.max_transfer_bytes_on_message_in_memory,
            settings.max_transfer_count_on_message_in_memory,
            settings.max_transfer_bytes_on_message_in_disk,
            settings.max_transfer_count_on_message_in_disk,
            settings.max_filter_message_size,
            int(memory * (settings.access_message_in_memory_max_ratio / 100)),
        )

    def max_units(self, max_count: int, unit_size: int) -> int:
        """Return how many units one pull looks at."""
        return -(-max(self.max_filter_message_size, max_count * unit_size) // unit_size)


@dataclass(frozen=True, slots=True)
class LogView:
    """The part of the log that may be read."""

    log: CommitLog
    end: int
    """Physical offset, exclusive."""

    def store_time(self, offset: int, size: int) -> int:
        """storeTimestamp of the record at ``offset``, NO_TIME if there is none
        (``CommitLog.pickupStoreTimestamp``)."""
        return NO_TIME if offset + size > self.end else self.log.store_time(offset)


@dataclass(frozen=True, slots=True)
class GetMessageResult:
    """The result of a pull."""

    status: GetMessageStatus
    next_begin_offset: int
    """Queue offset to continue at."""
    min_offset: int
    max_offset: int
    messages: tuple[Message, ...] = ()
    """Messages that a client hands to its listener: inner batches are unwrapped and tags compared
    as text. May be empty although the status is FOUND."""
    found: tuple[Message, ...] = ()
    """Messages that a broker sends, one for each record."""
    queue_offsets: tuple[int, ...] = ()
    """Offsets of ``found`` in this queue."""
    damaged: tuple[int, ...] = ()
    """Physical offsets of units whose record in the log is damaged, and those at which a part of
    the log begins that is lost, with the records of units."""


@dataclass(slots=True)
class _Pull:
    """State of one running pull."""

    max_count: int
    max_bytes: int
    limits: PullLimits
    status: GetMessageStatus = GetMessageStatus.NO_MATCHED_MESSAGE
    messages: list[Message] = field(default_factory=list)
    queue_offsets: list[int] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    byte_count: int = 0
    message_count: int = 0
    lost_before: int = 0
    """Physical offset up to which the log is known to be removed."""

    def is_full(self, unit: CqUnit, is_in_memory: bool) -> bool:
        """Whether ``unit`` would exceed the limits (``isTheBatchFull``); the first never does."""
        if not self.messages:
            return False
        limits, byte_count = self.limits, self.byte_count + unit.size
        if self.message_count + unit.batch_num > self.max_count or byte_count > self.max_bytes:
            return True
        if is_in_memory:
            most, count = limits.max_transfer_bytes_in_memory, limits.max_transfer_count_in_memory
        else:
            most, count = limits.max_transfer_bytes_on_disk, limits.max_transfer_count_on_disk
        return byte_count > most or self.message_count >= count

    def look_at(
        self,
        unit: CqUnit,
        view: LogView,
        message_filter: MessageFilter | None,
        max_body_bytes: int,
    ) -> None:
        """Add a unit's message if the log has it and the filter matches."""
        if unit.physical_offset < self.lost_before:
            return
        if message_filter and not message_filter.is_matched_by_consume_queue(
            unit.tags_code, unit.ext
        ):
            self._note(GetMessageStatus.NO_MATCHED_MESSAGE)
            return
        if view.log.segments.at(unit.physical_offset) is None:
            self._note(GetMessageStatus.MESSAGE_WAS_REMOVING)
            gap = view.log.segments.gap_at(unit.physical_offset)
            if gap is not None and gap[0] not in self.damaged:
                self.damaged.append(gap[0])
            file_size = view.log.file_size
            self.lost_before = unit.physical_offset + file_size - unit.physical_offset % file_size
            return
        if unit.size == PRE_BLANK_SIZE:
            # it fills a place without a message, of which a broker finds nothing in its log either
            self._note(GetMessageStatus.MESSAGE_WAS_REMOVING)
            return
        record = view.log.record_at(unit.physical_offset, unit.size)
        if not isinstance(record, Record):
            self._note(GetMessageStatus.MESSAGE_WAS_REMOVING)
            self.damaged.append(unit.physical_offset)
            return
        message = Message.of(record, max_body_bytes)
        if message_filter and not message_filter.is_matched_by_commit_log(message.properties):
            self._note(GetMessageStatus.NO_MATCHED_MESSAGE)
            return
        self.messages.append(message)
        self.queue_offsets.append(unit.queue_offset)
        self.byte_count += unit.size
        self.message_count += unit.batch_num
        self.status = GetMessageStatus.FOUND
        self.lost_before = 0

    def _note(self, status: GetMessageStatus) -> None:
        if not self.messages:
            self.status = status


def get_message(
    queue: QueueView,
    view: LogView,
    offset: int,
    max_count: int,
    *,
    max_bytes: int,
    message_filter: MessageFilter | None,
    limits: PullLimits,
    max_body_bytes: int,
) -> GetMessageResult:
    """Pull from queue offset ``offset`` on; ``QueueReader.get_message`` has the parameters."""
    low, high = queue.stated_min_offset, queue.max_offset
    outside = outside_queue(offset, low, high)
    if outside is not None:
        return GetMessageResult(*outside, low, high)
    max_units = limits.max_units(max_count, queue.unit_size)
    # one more, because the first unit of a batch queue may begin before the offset
    units = queue.units_from(offset, max_units + 1)
    if units is None:
        next_offset = queue.roll_next_file(offset)
        return GetMessageResult(GetMessageStatus.OFFSET_FOUND_NULL, next_offset, low, high)
    pull = _Pull(max_count, clamped_max_bytes(max_bytes), limits)
    next_offset = offset
    for unit in units:
        is_in_memory = view.end - unit.physical_offset <= limits.in_memory_bytes
        is_far = unit.queue_offset - offset >= max_units
        if is_far or pull.is_full(unit, is_in_memory):
            break
        next_offset = unit.queue_offset + unit.batch_num
        pull.look_at(unit, view, message_filter, max_body_bytes)
    return GetMessageResult(
        pull.status,
        next_offset,
        low,
        high,
        tuple(delivered(pull.messages, message_filter)),
        tuple(pull.messages),
        tuple(pull.queue_offsets),
        tuple(pull.damaged),
    )


def clamped_max_bytes(max_bytes: int) -> int:
    """Return the caller's limit of bytes within RocketMQ's bounds."""
    return min(max(max_bytes, MIN_PULL_MSG_SIZE), MAX_PULL_MSG_SIZE)


def outside_queue(offset: int, low: int, high: int) -> tuple[GetMessageStatus, int] | None:
    """Return (status, next offset) if the queue [low, high) has no message at ``offset``, otherwise
    None."""
    if high == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < low:
        return GetMessageStatus.OFFSET_TOO_SMALL, low
    if offset == high:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > high:
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, high
    return None


def delivered(
    messages: Iterable[Message], message_filter: MessageFilter | None
) -> Iterator[Message]:
    """Yield the messages that a client hands to its listener, given those a broker sent."""
    for outer in messages:
        try:
            inner = outer.unwrap()
        except MessageBodyError:
            # RocketMQ's client hands over the whole batch too
            inner = [outer]
        for message in inner:
            if message_filter is None or message_filter.is_delivered(message.properties):
                yield message
