"""Committed offsets of consumer groups, and where a group without one begins.

For a queue without a committed offset, RocketMQ answers 0 if the queue's first message is in
memory, so that CONSUME_FROM_LAST_OFFSET and CONSUME_FROM_TIMESTAMP begin at 0 on small or young
topics. With ``as-asked`` the answer is that there is no offset, and the client begins where it is
configured to; ``rocketmq`` keeps the broker's rule. Source: RocketMQ 5.3.3
``ConsumerManageProcessor``, ``ConsumerOffsetManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from reput.readers.offsetreset import OffsetChange
from reput.serving import requests
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.config import FirstPosition
from reput.serving.connection import Connection, Handler, Refused
from reput.serving.frame import Frame
from reput.serving.groups import Groups
from reput.serving.offsetwriter import OffsetWriter
from reput.serving.queues import ServedQueues
from reput.serving.resets import QueueOfGroup, Resets
from reput.serving.topics import CONSUMERS_PREFIXES
from reput.store.names import is_topic
from reput.store.state.consumeroffset import BROADCAST_SUFFIX, Offsets, TopicGroup, topics_of

logger = logging.getLogger("reput")

NO_OFFSET = -1
MAX_TOPIC_GROUPS = 1 << 17
"""Limit of the pairs of a topic and a group with offsets, since every replacement writes all."""
MAX_REMEMBERED = 10_000
"""Limit of the pairs of which pull offsets and first offsets are remembered; the oldest are
forgotten."""


class ConsumerOffsets:
    """The committed offsets of one broker."""

    def __init__(
        self,
        writer: OffsetWriter,
        queues: ServedQueues,
        groups: Groups,
        first_position: FirstPosition,
        base: ConsumerOffsets | None = None,
    ) -> None:
        """``base`` are those of the broker whose overlay this is. There a group begins at 0 in its
        retries and dead letters, and in a topic that it consumes at the base: it would never get
        what failed or waited while its clients were away."""
        self._writer = writer
        self._offsets = writer.offsets
        self._queues = queues
        self._groups = groups
        self._first_position = first_position
        self._base = base
        self._is_full = False
        """Whether the log says already that there are too many pairs of topics and groups."""
        self._resets = Resets()
        self._pull_offsets: Offsets = {}
        self._first: Offsets = {}
        """The queue end that was answered to a group without an offset, until it commits."""
        self._advised: set[TopicGroup] = set()
        """Groups that begin at the end, and whose log line said how they get what is there."""
        self._asked: dict[Connection, set[QueueOfGroup]] = {}
        """Queues for which a client found no offset."""

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
        }

    def committed(self, topic: str, group: str, queue_id: int) -> int:
        """The committed offset; NO_OFFSET without one."""
        return self._offsets.get(TopicGroup(topic, group), {}).get(queue_id, NO_OFFSET)

    def pulled(self, topic: str, group: str, queue_id: int) -> int:
        """The offset after the last pull since the start; NO_OFFSET without one."""
        return self._pull_offsets.get(TopicGroup(topic, group), {}).get(queue_id, NO_OFFSET)

    def topics_of(self, group: str) -> list[str]:
        """Topics in which a group has committed offsets, sorted."""
        return topics_of(self._offsets, group)

    def groups_of(self, topic: str) -> set[str]:
        """Groups that have committed offsets in a topic."""
        return {k.group.removesuffix(BROADCAST_SUFFIX) for k in self._offsets if k.topic == topic}

    def groups(self) -> set[str]:
        """All groups that have committed offsets."""
        return {key.group.removesuffix(BROADCAST_SUFFIX) for key in self._offsets}

    @property
    def table(self) -> Offsets:
        """All committed offsets, to be read only."""
        return self._offsets

    def commit(self, connection: Connection, key: TopicGroup, queue_id: int, offset: int) -> None:
        """Store a client's offset, unless the client has still to follow a reset."""
        if self._resets:
            member = self._groups.member(connection, key.group)
            if member and self._resets.is_awaited((*key, queue_id), member.client_id):
                return
        self._check_room(key)
        before = self._offsets.get(key, {}).get(queue_id, NO_OFFSET)
        if offset < before:
            logger.warning(
                "%s sets group %s back from %d to %d in queue %d of topic %s",
                connection.peer, key.group, before, offset, queue_id, key.topic,
            )  # fmt: skip
        self._store(key, queue_id, offset)

    def change(self, changes: Sequence[OffsetChange]) -> None:
        """Store offsets that an administrator sets, and have the members follow. Raises
        Refused."""
        for change in changes:
            self._check_room(TopicGroup(change.topic, change.group))
        for change in changes:
            key, queue_id = TopicGroup(change.topic, change.group), change.queue_id
            if change.after is None:
                self._writer.remove(key, queue_id)
                continue
            self._store(key, queue_id, change.after)
            group = self._groups.get(key.group)
            self._resets.begin((*key, queue_id), change.after, group.members if group else ())

    def _check_room(self, key: TopicGroup) -> None:
        """Raise Refused for a new pair if there are too many already."""
        if key in self._offsets or len(self._offsets) < MAX_TOPIC_GROUPS:
            return
        if not self._is_full:
            self._is_full = True
            logger.error(
                "there are offsets of %d pairs of a topic and a group: those of new pairs are not "
                "kept, and group %s in topic %s is the first; see who uses so many groups",
                len(self._offsets), key.group, key.topic,
            )  # fmt: skip
        raise Refused(ResponseCode.SYSTEM_BUSY, "there are too many groups with offsets")

    def reset_at_pull(self, connection: Connection, key: TopicGroup, queue_id: int) -> int | None:
        """Return the offset to which a client's queue was reset if its pull must be answered with
        it, otherwise None."""
        member = self._groups.member(connection, key.group) if self._resets else None
        return self._resets.pulled((*key, queue_id), member.client_id) if member else None

    def _store(self, key: TopicGroup, queue_id: int, offset: int) -> None:
        self._first.get(key, {}).pop(queue_id, None)
        self._writer.store(key, queue_id, offset)

    def note_pull(self, key: TopicGroup, queue_id: int, next_offset: int) -> None:
        """Remember where a group's next pull begins."""
        _remembered(self._pull_offsets, key)[queue_id] = next_offset

    def query_offset(self, connection: Connection, request: Frame) -> Frame:
        """Answer with the committed offset, or that there is none."""
        group, topic = requests.group(request), requests.text(request, "topic")
        queue_id = requests.number(request, "queueId")
        member = self._groups.member(connection, group)
        if member is not None:
            self._resets.began((topic, group, queue_id), member.client_id)
        offset = self.committed(topic, group, queue_id)
        if offset < 0:
            offset = self._first.get(TopicGroup(topic, group), {}).get(queue_id, NO_OFFSET)
        is_served = self._queues.has_queue(topic, queue_id)
        if offset < 0 and is_served and self._begins_at_zero(request, topic, group, queue_id):
            offset = 0
            if self._base is not None and member is not None:
                # a broker that goes on in the overlay may send the group elsewhere
                self._note_begin(TopicGroup(topic, group), queue_id)
        if offset < 0:
            if is_served and member is not None:
                self._asked.setdefault(connection, set()).add((topic, group, queue_id))
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            )
        return request.answer(ResponseCode.SUCCESS, None, {"offset": str(offset)})

    def _note_begin(self, key: TopicGroup, queue_id: int) -> None:
        """Commit offset 0 for a group without an offset, if there is room."""
        if key in self._offsets or len(self._offsets) < MAX_TOPIC_GROUPS:
            self._store(key, queue_id, 0)

    def _begins_at_zero(self, request: Frame, topic: str, group: str, queue_id: int) -> bool:
        """Whether an overlay's rule sends a group to offset 0, or RocketMQ's, if it is wanted."""
        if self._base is not None and (
            topic.startswith(CONSUMERS_PREFIXES) or TopicGroup(topic, group) in self._base.table
        ):
            return True
        if self._first_position is FirstPosition.AS_ASKED:
            return False
        if request.ext.get("setZeroIfNotFound") == "false":
            return False
        return self._queues.begins_in_memory(topic, queue_id)

    def update_offset(self, connection: Connection, request: Frame) -> Frame:
        """Commit an offset."""
        group = requests.group(request)
        topic, queue_id = self._queues.queue(request)
        offset = requests.number(request, "commitOffset")
        if not is_topic(topic):
            text = f"offsets of topic {topic!r} cannot be kept"
            raise Refused(ResponseCode.SYSTEM_ERROR, text)
        self.commit(connection, TopicGroup(topic, group), queue_id, offset)
        return request.answer(ResponseCode.SUCCESS)

    def max_offset(self, connection: Connection, request: Frame) -> Frame:
        """Answer with a queue's end.

        A client that found no committed offset begins there. An orderly client asks twice, and
        messages may arrive in between, so the first answer stands until the group commits.
        """
        topic, queue_id = self._queues.queue(request)
        offset = self._queues.max_offset(topic, queue_id)
        asked = self._asked.get(connection, set())
        for key in [key for key in asked if (key[0], key[2]) == (topic, queue_id)]:
            asked.discard(key)
            first = _remembered(self._first, TopicGroup(topic, key[1]))
            offset = first.setdefault(queue_id, offset)
            logger.info(
                "group %s begins at the end of queue %d of topic %s, offset %d, as its client asks"
                "%s", key[1], queue_id, topic, offset, self._advice(*key, offset),
            )  # fmt: skip
        return request.answer(ResponseCode.SUCCESS, None, {"offset": str(offset)})

    def _advice(self, topic: str, group: str, queue_id: int, offset: int) -> str:
        """How a group that begins at a queue's end gets what is before it; empty without any, and
        where it was said for another queue of the topic."""
        key = TopicGroup(topic, group)
        if key in self._advised or offset <= self._queues.min_offset(topic, queue_id):
            return ""
        if len(self._advised) >= MAX_REMEMBERED:
            self._advised.clear()
        self._advised.add(key)
        advice = (
            "; it gets nothing of what is there already: mqadmin resetOffsetByTime "
            f"-g {group} -t {topic} -s 0 moves it to the first message"
        )
        if self._queues.begins_in_memory(topic, queue_id):
            advice += (
                ", and with `first_position=rocketmq` further groups begin there, as at a broker"
            )
        return advice

    def connection_closed(self, connection: Connection) -> None:
        """Forget what a lost connection asked."""
        self._asked.pop(connection, None)


def _remembered(table: Offsets, key: TopicGroup) -> dict[int, int]:
    """Return the entry of ``key``, made if it is missing, in a table of bounded size."""
    entry = table.get(key)
    if entry is None:
        if len(table) >= MAX_REMEMBERED:
            del table[next(iter(table))]
        entry = table[key] = {}
    return entry
