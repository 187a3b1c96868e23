"""Moving the committed offsets of a consumer group: by time, to an offset, beyond everything, or to
where another group is.

Changes are computed from the committed offsets and the queues' bounds; ``change_offsets`` returns
them, or also writes them below the output. Members do not learn of a change: one that consumes goes
on from its own position and commits that, so stop the group's members first.
Source of the rules: RocketMQ 5.3.3 ``AdminBrokerProcessor.resetOffsetInner`` and ``cloneOffset``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from reput.readers.grouplag import CommittedOffsets
from reput.readers.messagestore import MessageStore
from reput.readers.queuereader import QueueReader
from reput.store import configjson
from reput.store.brokerlock import BrokerLock
from reput.store.datadirectories import check_target
from reput.store.errors import NotFoundError, UsageError
from reput.store.files import SUBSCRIPTION_GROUP_FILE
from reput.store.log.record import RETRY_GROUP_TOPIC_PREFIX
from reput.store.names import is_group
from reput.store.state.consumeroffset import (
    BROADCAST_SUFFIX,
    TOPIC_GROUP_SEPARATOR,
    ConsumerOffsetFile,
    Offsets,
    TopicGroup,
    topics_of,
)


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A group's new offset in one queue."""

    group: str
    topic: str
    queue_id: int
    before: int | None
    """None if the group has committed nothing."""
    after: int | None
    """None if the group will have committed nothing."""


Plan = Callable[[Offsets], list[OffsetChange]]
"""Computes changes from the committed offsets."""


def change_offsets(
    store: Path, output: Path | None, plan: Plan, *, apply: bool
) -> list[OffsetChange]:
    """Return the changes of a plan; with ``apply``, also write them below ``output``, or in the
    store if there is none.

    An output without offsets takes over the store's. Raises OwnershipError if a broker, a
    dispatcher or a server runs on the directory that would be written.
    """
    if not apply:
        table = CommittedOffsets.read(store, output).table
        return _writable(plan(table), table)
    root = output or store
    check_target(root)
    with BrokerLock(root), ConsumerOffsetFile(root) as file:
        offsets = file.load(store)
        changes = _writable(plan(offsets), offsets)
        for change in changes:
            queues = offsets.setdefault(TopicGroup(change.topic, change.group), {})
            if change.after is None:
                queues.pop(change.queue_id, None)
            else:
                queues[change.queue_id] = change.after
        file.replace({key: queues for key, queues in offsets.items() if queues}, 1)
    return changes


def _writable(changes: list[OffsetChange], offsets: Offsets) -> list[OffsetChange]:
    """Return the changes. Raises UsageError for one that the file of offsets cannot hold, and for a
    new group whose name no client could have; one that the file has may have any name."""
    groups = {key.group for key in offsets}
    for change in changes:
        is_named = change.group in groups or is_group(change.group.removesuffix(BROADCAST_SUFFIX))
        if not is_named or TOPIC_GROUP_SEPARATOR in change.topic:
            raise UsageError(
                f"the offsets of group {change.group} in topic {change.topic} cannot be written; "
                "the name of a new group has letters, digits, %, |, - and _, up to 255 of them"
            )
    return changes


def check_group(root: Path, offsets: Offsets, group: str) -> None:
    """Raise NotFoundError for a group that has committed nothing and that the store's broker does
    not know: its name may be mistyped. Raises NotReadyError or StoreError where that cannot be
    read."""
    document = configjson.read(root / SUBSCRIPTION_GROUP_FILE)
    table = document.get("subscriptionGroupTable") if isinstance(document, dict) else None
    groups = {key.group for key in offsets} | {*(table if isinstance(table, dict) else ())}
    if group not in groups:
        near = difflib.get_close_matches(group, groups, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise NotFoundError(f"nobody knows a group {group}{meant}; give `new=` to make it")


def reset_to_time(
    store: MessageStore, offsets: Offsets, group: str, topic: str, time_ms: int
) -> list[OffsetChange]:
    """Move a group to the first message stored at a time or later, in each queue of a topic; to the
    max offset where there is none."""
    return _reset(store, offsets, group, topic, lambda queue: queue.offset_by_time(time_ms))


def reset_to_earliest(
    store: MessageStore, offsets: Offsets, group: str, topic: str
) -> list[OffsetChange]:
    """Move a group to the first message that the log still has, in each queue of a topic."""
    return _reset(store, offsets, group, topic, QueueReader.min_offset)


def reset_to_offset(
    store: MessageStore, offsets: Offsets, group: str, topic: str, queue_id: int, offset: int
) -> list[OffsetChange]:
    """Move a group to an offset of one queue. Raises UsageError for an offset outside the queue's
    [min, max], and NotFoundError for a queue that does not exist."""
    if queue_id not in _queue_ids(store, topic):
        raise NotFoundError(
            f"topic {topic} has no queue {queue_id}; {store.command('status', '--topic', topic)} "
            "lists its queues"
        )
    check_offset(store, topic, queue_id, offset)
    before = offsets.get(TopicGroup(topic, group), {}).get(queue_id)
    return [OffsetChange(group, topic, queue_id, before, offset)]


def check_offset(store: MessageStore, topic: str, queue_id: int, offset: int) -> None:
    """Raise UsageError for an offset outside the queue's [min, max]; the max offset is allowed."""
    low, high = store.queue(topic, queue_id).bounds()
    if not low <= offset <= high:
        raise UsageError(
            f"offset {offset} is outside of queue {queue_id} of topic {topic}; choose one from "
            f"{low} to {high}"
        )


def skip(
    store: MessageStore, offsets: Offsets, group: str, topics: Sequence[str] | None
) -> list[OffsetChange]:
    """Move a group beyond every message, in ``topics``, or in all topics in which it has
    committed."""
    chosen = topics or _topics(offsets, group)
    changes = [_reset(store, offsets, group, topic, QueueReader.max_offset) for topic in chosen]
    return list(chain.from_iterable(changes))


def clone(
    offsets: Offsets, source: str, target: str, topics: Sequence[str] | None
) -> list[OffsetChange]:
    """Give ``target`` the offsets of ``source``, in ``topics``, or in all topics but its retry
    topic.

    A topic's offsets are replaced as a whole: in a queue where ``source`` has committed nothing,
    ``target`` loses its offset.
    """
    if source == target:
        raise UsageError(
            f"the offsets of group {source} would be cloned to itself; name two groups"
        )
    own = RETRY_GROUP_TOPIC_PREFIX.decode() + source
    chosen = topics or [topic for topic in _topics(offsets, source) if topic != own]
    changes = []
    for topic in chosen:
        given = offsets.get(TopicGroup(topic, source))
        if given is None:
            raise NotFoundError(
                f"group {source} has committed nothing in topic {topic}; reput groups show lists "
                "where it has"
            )
        had = offsets.get(TopicGroup(topic, target), {})
        changes += [
            OffsetChange(target, topic, queue_id, had.get(queue_id), given.get(queue_id))
            for queue_id in sorted({*given, *had})
        ]
    return changes


def _reset(
    store: MessageStore,
    offsets: Offsets,
    group: str,
    topic: str,
    place: Callable[[QueueReader], int],
) -> list[OffsetChange]:
    queue_ids = _queue_ids(store, topic)
    before = offsets.get(TopicGroup(topic, group), {})
    return [
        OffsetChange(group, topic, q, before.get(q), place(store.queue(topic, q)))
        for q in queue_ids
    ]


def _queue_ids(store: MessageStore, topic: str) -> list[int]:
    """Return the queues of a topic. Raises UsageError for an unknown topic, and NotFoundError for
    one without queues."""
    queue_ids = store.queue_ids(topic)
    if not queue_ids:
        store.check_topic(topic)
        raise NotFoundError(f"topic {topic} has no queues; `output=` names another place of them")
    return queue_ids


def _topics(offsets: Offsets, group: str) -> list[str]:
    """Topics in which a group has committed, sorted. Raises NotFoundError if there are none."""
    topics = topics_of(offsets, group)
    if not topics:
        raise NotFoundError(
            f"group {group} has committed nothing; reput groups list shows those that have"
        )
    return topics
