"""A member of a consumer group in this process: no sockets, no broker.

The members of a group are processes of one machine, on one store and one output. They share the
queues as RocketMQ's clients do (``readers.allocation``), find each other below the output, and have
a queue only while they hold its lock (``store.state.groupmembers``). A message is consumed at least
once: what ``poll`` returned counts as consumed only when ``commit`` has returned. As long as no
member dies and each commits before it polls again, every message is consumed exactly once.

A member takes and gives up queues within ``poll``. One that does not poll keeps its queues.
"""

from __future__ import annotations

import logging
import operator
import os
import platform
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Self, SupportsIndex

from reput.readers.allocation import (
    AllocateAveragely,
    AllocateMessageQueueStrategy,
    MessageQueue,
    assigned_queues,
)
from reput.readers.getmessage import MAX_PULL_MSG_SIZE, GetMessageStatus, PullLimits, delivered
from reput.readers.messagefilter import MessageFilter
from reput.readers.messages import Message
from reput.readers.messagestore import MessageStore
from reput.readers.offsetreset import check_offset
from reput.store.config import broker_name, read_properties, read_store_settings
from reput.store.datadirectories import check_target
from reput.store.errors import OwnershipError, UsageError
from reput.store.filelocks import HeldLock
from reput.store.files import SERVE_DIRECTORY
from reput.store.log.record import RETRY_GROUP_TOPIC_PREFIX
from reput.store.names import is_group
from reput.store.state.built import settings_of
from reput.store.state.consumeroffset import (
    Offsets,
    SharedConsumerOffsetFile,
    TopicGroup,
    first_position,
)
from reput.store.state.groupmembers import GroupMember, Member
from reput.store.state.ledger import Ledger, damaged_record

logger = logging.getLogger("reput")

DEFAULT_MAX_COUNT = 500
MAX_POLL_BYTES = 8 << 20
POLL_SECONDS = 0.02
"""Interval at which a waiting poll looks for messages; a look in vain costs two small reads."""
REBALANCE_SECONDS = 0.2
"""Interval at which a member looks for other members and for new queues."""
CONSUME_TIMESTAMP_SECONDS = 30 * 60
_NO_LIMIT = 1 << 31


class ConsumeFromWhere(StrEnum):
    """Where a group begins in a topic in which it has committed nothing."""

    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ConsumedMessage(NamedTuple):
    """A message, and where it was in its queue."""

    queue: MessageQueue
    queue_offset: int
    message: Message


class Consumer:
    """One member; a context manager. It is not thread-safe and must not be used in a forked child.

    Every method raises a StoreError if files contradict the store's settings, and an OutputError
    if offsets or locks cannot be written.
    """

    def __init__(
        self,
        store: Path,
        group: str,
        subscription: Mapping[str, MessageFilter | None],
        *,
        output: Path | None = None,
        strategy: AllocateMessageQueueStrategy | None = None,
        from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        from_time_ms: int | None = None,
        client_id: str | None = None,
        on_revoked: Callable[[Collection[MessageQueue]], None] | None = None,
    ) -> None:
        """Join the group.

        ``subscription`` maps each wanted topic, which need not exist yet, to a filter, or to None
        for all messages. ``output`` is the root of the queues, where offsets are written too;
        without it both are in the store, and no broker may run there. All members must use the same
        filters and the same ``strategy``, by default AllocateAveragely. ``from_time_ms`` is the
        time for TIMESTAMP, by default half an hour ago. ``on_revoked`` is called with queues that
        this member is about to give up, and may still commit in them.

        Raises UsageError for wrong arguments or a directory that is no store or output, and
        OwnershipError if a broker or a server writes the offsets, or if another member has the
        client id.
        """
        if not is_group(group):
            raise UsageError(
                f"{group!r} cannot be a group's name, which has letters, digits, %, |, - and _, up "
                "to 255 of them"
            )
        if not subscription:
            raise UsageError("the subscription is empty; name at least one topic")
        self.group = group
        self.client_id = client_id or f"{platform.node()}@{os.getpid()}#{uuid.uuid4().hex[:12]}"
        self._subscription = dict(subscription)
        self._strategy = strategy or AllocateAveragely()
        self._from_where = from_where
        self._from_time_ms = from_time_ms
        self._on_revoked = on_revoked
        self._locks: dict[MessageQueue, HeldLock] = {}
        self._positions: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}
        self._paused: set[MessageQueue] = set()
        self._order: deque[MessageQueue] = deque()
        """The queues of this member, in the order in which they are read next."""
        self._rebalance_at = time.monotonic()
        place = output or store
        check_target(place)
        self._ledger_directory = place / SERVE_DIRECTORY
        settings = settings_of(place, read_store_settings(store))
        properties = read_properties(store)
        self._broker_name = broker_name(store, properties)
        topics = frozenset(self._subscription)
        member = Member(self.client_id, topics, type(self._strategy).__name__)
        with ExitStack() as resources:
            self.store = MessageStore(
                store, output=output, settings=settings, limits=_limits(PullLimits.of(settings))
            )
            """For questions about queues, such as ``offset_by_time``."""
            resources.callback(self.store.close)
            self._offsets = resources.enter_context(SharedConsumerOffsetFile(place, store))
            self._member = resources.enter_context(GroupMember(place, group, member))
            resources.callback(self._release, self._locks)
            if (line := self.store.note_coverage()) is not None:
                logger.warning("not consumed: %s", line)
            # a topic that comes later is new to everyone
            self._new_topics = {topic for topic in topics if not self.store.queue_ids(topic)}
            self._resources = resources.pop_all()

    def close(self) -> None:
        """Leave the group and give up all queues, without a commit."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """This member's queues, and the offset in each from which the next poll reads."""
        return dict(self._positions)

    def committed(self, topic: str, queue_id: int) -> int | None:
        """Return the group's committed offset in a queue, also of another member; None without
        one."""
        return self._offsets.read().get(TopicGroup(topic, self.group), {}).get(queue_id)

    def poll(
        self, timeout_seconds: float = 0.0, max_count: int = DEFAULT_MAX_COUNT
    ) -> list[ConsumedMessage]:
        """Return the next messages of this member's queues, in order within each queue.

        It waits up to ``timeout_seconds`` for the first message; meanwhile the member may gain and
        lose queues. An inner batch may exceed ``max_count``. A damaged record is skipped, logged
        and listed in the output's ``reput/serve/quarantine.jsonl``.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            self.store.refresh()
            if time.monotonic() >= self._rebalance_at:
                self._rebalance()
                self._rebalance_at = time.monotonic() + REBALANCE_SECONDS
            before = dict(self._positions)
            try:
                messages = self._read(max_count)
            except BaseException:
                # nobody got what was read of other queues: a commit must not pass it
                self._positions = before
                raise
            left = deadline - time.monotonic()
            if messages or left <= 0:
                return messages
            if self._positions == before:
                time.sleep(min(POLL_SECONDS, left))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit everything that was polled, or in each given queue the offset of the next message
        to consume, durably.

        Raises OwnershipError for a queue that this member does not have, UsageError for what is no
        queue offset, and OutputError if nothing was committed.
        """
        positions = dict(self._positions if offsets is None else offsets)
        for queue, offset in positions.items():
            self._check_mine(queue)
            positions[queue] = _queue_offset(offset)
        new = {queue: at for queue, at in positions.items() if self._committed[queue] != at}
        if new:
            self._offsets.update(lambda _: self._by_group(new))
            self._committed.update(new)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset of one of this member's queues, without a commit.

        Raises OwnershipError for a queue that this member does not have, and UsageError for an
        offset outside the queue's [min, max].
        """
        self._check_mine(queue)
        self.store.refresh()
        check_offset(self.store, queue.topic, queue.queue_id, offset)
        self._positions[queue] = offset

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Keep these queues, but read nothing from them until ``resume``. Raises OwnershipError for
        a queue that this member does not have."""
        for queue in queues:
            self._check_mine(queue)
            self._paused.add(queue)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Read from paused queues again."""
        self._paused.difference_update(queues)

    def _read(self, max_count: int) -> list[ConsumedMessage]:
        messages: list[ConsumedMessage] = []
        for _ in range(len(self._order)):
            if len(messages) >= max_count:
                break
            queue = self._order[0]
            self._order.rotate(-1)
            if queue not in self._paused:
                messages += self._read_queue(queue, max_count - len(messages))
        return messages

    def _read_queue(self, queue: MessageQueue, max_count: int) -> list[ConsumedMessage]:
        position, message_filter = self._positions[queue], self._subscription[queue.topic]
        pulled = self.store.queue(queue.topic, queue.queue_id).get_message(
            position, max_count, max_bytes=MAX_POLL_BYTES, message_filter=message_filter
        )
        if pulled.damaged:
            self._list_damaged(queue, pulled.damaged)
        if not self._is_moved(queue, pulled.status, pulled.next_begin_offset):
            self._positions[queue] = pulled.next_begin_offset
        messages = []
        for outer, offset in zip(pulled.found, pulled.queue_offsets, strict=True):
            for message in delivered([outer], message_filter):
                place = offset + message.queue_offset - outer.queue_offset
                if place >= position:
                    messages.append(ConsumedMessage(queue, place, message))
        return messages

    def _list_damaged(self, queue: MessageQueue, physical_offsets: Iterable[int]) -> None:
        """Log skipped records and add them to the quarantine, durably, before a commit can pass
        them."""
        with self._offsets.turn():
            ledger = Ledger(self._ledger_directory)
            for physical_offset in physical_offsets:
                if ledger.add(damaged_record(physical_offset, queue.topic)):
                    logger.error(
                        "group %s skips what is lost or damaged at physical offset %d, in queue %d "
                        "of topic %s; see reput inspect record",
                        self.group, physical_offset, queue.queue_id, queue.topic,
                    )  # fmt: skip
            ledger.sync()

    def _is_moved(self, queue: MessageQueue, status: GetMessageStatus, next_offset: int) -> bool:
        """Whether a position beyond the queue's end may be right because the log is not dispatched
        up to it yet. A position that the queue has corrected is logged."""
        position = self._positions[queue]
        if status is GetMessageStatus.OFFSET_TOO_SMALL:
            reason = "the messages before it were removed"
        elif status in (
            GetMessageStatus.OFFSET_OVERFLOW_BADLY, GetMessageStatus.NO_MESSAGE_IN_QUEUE
        ):  # fmt: skip
            if not self.store.log.is_dispatched_whole():
                return True
            reason = "the queue ends there"
        else:
            return False
        if next_offset != position:
            logger.warning(
                "group %s goes on at offset %d in place of %d in queue %d of topic %s: %s",
                self.group, next_offset, position, queue.queue_id, queue.topic, reason,
            )  # fmt: skip
        return False

    def _rebalance(self) -> None:
        """Give up the queues that other members should have now, and take those that are free."""
        members = self._member.members()
        share: set[MessageQueue] = set()
        for topic in self._subscription:
            queues = [self._queue(topic, queue_id) for queue_id in self.store.queue_ids(topic)]
            if queues:
                ids = [member.client_id for member in members if topic in member.topics]
                allocated = assigned_queues(self._strategy, self.client_id, queues, ids)
                share.update(set(allocated).intersection(queues))
        lost = self._locks.keys() - share
        if lost:
            if self._on_revoked is not None:
                self._on_revoked(frozenset(lost))
            self._release(lost)
        locks: dict[MessageQueue, HeldLock] = {}
        with ExitStack() as given_back:
            for queue in sorted(share - self._locks.keys()):
                queue_lock = self._member.lock_queue(queue.topic, queue.queue_id)
                if queue_lock is not None:
                    locks[queue] = given_back.enter_context(queue_lock)
            if locks:
                self._begin(locks)
            given_back.pop_all()

    def _begin(self, locks: Mapping[MessageQueue, HeldLock]) -> None:
        """Go on at the group's committed offsets. Where it has none, choose them for all queues of
        the topic, and commit them."""
        queue_ids: dict[str, set[int]] = {}
        for queue in locks:
            # offsets in a topic that is new to the group are chosen together (first_position)
            topic_ids = queue_ids.setdefault(queue.topic, set(self.store.queue_ids(queue.topic)))
            topic_ids.add(queue.queue_id)

        def plan(offsets: Offsets) -> Offsets:
            first_offsets: Offsets = {}
            for topic, ids in queue_ids.items():
                key = TopicGroup(topic, self.group)
                group_offsets = offsets.get(key, {})
                for n in sorted(ids - group_offsets.keys()):
                    low = self.store.queue(topic, n).min_offset()
                    first = first_position(group_offsets, self._asked(topic, n), low)
                    first_offsets.setdefault(key, {})[n] = first
            return first_offsets

        offsets = self._offsets.update(plan)
        for queue, queue_lock in locks.items():
            offset = offsets[TopicGroup(queue.topic, self.group)][queue.queue_id]
            self._locks[queue] = queue_lock
            self._positions[queue] = self._committed[queue] = offset
            self._order.append(queue)
            logger.info(
                "member %s of group %s begins at offset %d in queue %d of topic %s",
                self.client_id, self.group, offset, queue.queue_id, queue.topic,
            )  # fmt: skip

    def _asked(self, topic: str, queue_id: int) -> int:
        """Return the offset that ``from_where`` asks for
        (``RebalancePushImpl.computePullFromWhere``)."""
        queue = self.store.queue(topic, queue_id)
        is_retry = topic.startswith(RETRY_GROUP_TOPIC_PREFIX.decode())
        if self._from_where is ConsumeFromWhere.FIRST_OFFSET or topic in self._new_topics:
            return queue.min_offset()
        if self._from_where is ConsumeFromWhere.TIMESTAMP and not is_retry:
            time_ms = self._from_time_ms
            if time_ms is None:
                time_ms = int((time.time() - CONSUME_TIMESTAMP_SECONDS) * 1000)
            return queue.offset_by_time(time_ms)
        if self._from_where is ConsumeFromWhere.LAST_OFFSET and is_retry:
            return queue.min_offset()
        return queue.max_offset()

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker_name, queue_id)

    def _by_group(self, offsets: Mapping[MessageQueue, int]) -> Offsets:
        commits: Offsets = {}
        for queue, offset in offsets.items():
            key = TopicGroup(queue.topic, self.group)
            commits.setdefault(key, {})[queue.queue_id] = offset
        return commits

    def _check_mine(self, queue: MessageQueue) -> None:
        if queue not in self._locks:
            raise OwnershipError(
                f"queue {queue.queue_id} of topic {queue.topic} is not among those of member "
                f"{self.client_id} of group {self.group}; positions names those that are"
            )

    def _release(self, queues: Collection[MessageQueue]) -> None:
        for queue in list(queues):
            self._locks.pop(queue).release()
            del self._positions[queue], self._committed[queue]
            self._paused.discard(queue)
            self._order.remove(queue)


def _queue_offset(offset: SupportsIndex) -> int:
    """Return a queue offset as the file of offsets can hold it, which all groups share. Raises
    UsageError for another value."""
    try:
        number = operator.index(offset)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise UsageError(f"offset {offset!r} cannot be committed; give a whole number from 0 on")
    return number


def _limits(limits: PullLimits) -> PullLimits:
    """Return limits that leave only those of a poll: RocketMQ's spare a broker's memory and
    network."""
    return replace(
        limits,
        max_transfer_bytes_in_memory=MAX_PULL_MSG_SIZE,
        max_transfer_count_in_memory=_NO_LIMIT,
        max_transfer_bytes_on_disk=MAX_PULL_MSG_SIZE,
        max_transfer_count_on_disk=_NO_LIMIT,
    )
