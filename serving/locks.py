"""Locks of queues that orderly consumers hold, by group (``RebalanceLockManager``).

Where RocketMQ keeps a dead consumer's locks for 60 s, they end here 3 s after the owner's
connection was lost: a client that merely reconnects has its locks back by then. Those that it took
over another connection stay as long as that is open: where a connection breaks in silence, the
client has a new one before the server knows, and its first heartbeat there may come later.
RocketMQ forgets all locks when a broker ends; here they are kept (``serving.lockfile``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from reput.serving import requests
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.connection import Connection, Handler, Refused
from reput.serving.fastjson import as_number, as_objects, as_text
from reput.serving.frame import Frame
from reput.serving.queues import QueueName
from reput.store.names import is_client_id, is_group
from reput.store.queue.consumequeue import MAX_TOPIC_BYTES

LOCK_SECONDS = 60.0
"""A lock that was not renewed ends after this time."""
RESTORED_SECONDS = 30.0
"""A lock of before the start ends after this time, unless its owner renews it: so long a client
consumes a queue after it had its lock (``ProcessQueue.REBALANCE_LOCK_MAX_LIVE_TIME``)."""
MAX_LOCKS = 1 << 18
"""Limit of the locks of all groups; beyond it, no further lock is granted."""
RELEASE_SECONDS = 3.0
"""Time from the loss of an owner's connection to the end of its locks."""


Owners = dict[str, dict[str, dict[str, list[int]]]]
"""Queue ids by group, client id and topic."""


@dataclass(slots=True)
class _Lock:
    client_id: str
    ends: float
    connection: Connection | None
    """The connection over which it was taken or renewed last; None for one of before the start."""


class Locks:
    """All locks of one broker's queues."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._groups: dict[str, dict[QueueName, _Lock]] = {}
        self._count = 0
        self._swept_at = clock()
        self.changed = asyncio.Event()
        """Set when a lock has another owner, or none, or had ended and is taken again."""

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock_batch,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock_batch,
        }

    def lock_batch(self, connection: Connection, request: Frame) -> Frame:
        """Answer with the queues that the client has locked."""
        group, client_id, queues = _asked(request)
        granted = set(self.lock(group, client_id, queues, connection))
        locked = [data for name, data in queues.items() if name in granted]
        return request.answer(ResponseCode.SUCCESS, body=requests.to_json({"lockOKMQSet": locked}))

    def unlock_batch(self, _connection: Connection, request: Frame) -> Frame:
        """Give up the locks that a client names."""
        self.unlock(*_asked(request))
        return request.answer(ResponseCode.SUCCESS)

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[QueueName],
        connection: Connection | None = None,
    ) -> list[QueueName]:
        """Lock or renew; returns the queues that this client now has."""
        now = self._clock()
        if now >= self._swept_at + LOCK_SECONDS:
            self._sweep(now)
        granted, locks = [], self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is None:
                if self._count >= MAX_LOCKS:
                    continue
                self._count += 1
            if lock is None or lock.client_id == client_id or lock.ends <= now:
                if lock is None or lock.client_id != client_id or lock.ends <= now:
                    self.changed.set()
                locks[queue] = _Lock(client_id, now + LOCK_SECONDS, connection)
                granted.append(queue)
        if locks:
            self._groups[group] = locks
        return granted

    def _sweep(self, now: float) -> None:
        """Forget locks that ended."""
        self._swept_at = now
        for group, locks in list(self._groups.items()):
            kept = {queue: lock for queue, lock in locks.items() if lock.ends > now}
            self._count -= len(locks) - len(kept)
            self._groups[group] = kept
            if not kept:
                del self._groups[group]

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueName]) -> None:
        """Give up locks; those of others stay."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._count -= 1
                self.changed.set()
        if not locks:
            self._groups.pop(group, None)

    def owner_left(self, group: str, client_id: str, *, said: bool) -> None:
        """End the locks of an owner that left: at once if it said so, otherwise soon, unless it
        renews them, or took them over a connection that is open."""
        ends = self._clock() + (0 if said else RELEASE_SECONDS)
        for lock in self._groups.get(group, {}).values():
            is_open = lock.connection is not None and lock.connection.is_open
            if lock.client_id == client_id and (said or not is_open):
                lock.ends = min(lock.ends, ends)

    def connection_closed(
        self, connection: Connection, is_member: Callable[[str, str], bool]
    ) -> None:
        """End the locks that were taken over a lost connection soon, unless their owner is a member
        of the group, over another one; ``is_member`` is asked with the group and the client id."""
        ends = self._clock() + RELEASE_SECONDS
        for group, locks in self._groups.items():
            for lock in locks.values():
                if lock.connection is connection and not is_member(group, lock.client_id):
                    lock.ends = min(lock.ends, ends)

    def holds(self, group: str) -> bool:
        """Whether a member of a group has a lock that has not ended."""
        now = self._clock()
        return any(lock.ends > now for lock in self._groups.get(group, {}).values())

    def owners(self) -> Owners:
        """The owner of each lock that has not ended."""
        now, owners = self._clock(), Owners()
        for group, locks in self._groups.items():
            for (topic, queue_id), lock in locks.items():
                if lock.ends > now:
                    topics = owners.setdefault(group, {}).setdefault(lock.client_id, {})
                    topics.setdefault(topic, []).append(queue_id)
        return owners

    def restore(self, owners: Owners) -> None:
        """Lock for the owners of before the start."""
        ends = self._clock() + RESTORED_SECONDS
        for group, clients in owners.items():
            for client_id, topics in clients.items():
                self.lock(group, client_id, [(t, n) for t, ids in topics.items() for n in ids])
            for lock in self._groups.get(group, {}).values():
                lock.ends = ends


def _asked(request: Frame) -> tuple[str, str, dict[QueueName, dict[str, object]]]:
    """Group, client id and queues of a request. Raises Refused."""
    body = requests.json_body(request)
    group = requests.field(body, "consumerGroup", as_text)
    client_id = requests.field(body, "clientId", as_text)
    queues = requests.field(body, "mqSet", as_objects)
    if not is_group(group) or not is_client_id(client_id):
        raise _refused()
    return group, client_id, dict(map(_message_queue, queues))


def _message_queue(queue: Mapping[str, object]) -> tuple[QueueName, dict[str, object]]:
    """The name of a MessageQueue, and how answers show it. Raises Refused."""
    topic = requests.field(queue, "topic", as_text)
    queue_id = requests.field(queue, "queueId", as_number)
    if not topic or len(topic) > MAX_TOPIC_BYTES:
        raise _refused()
    broker_name = requests.field(queue, "brokerName", as_text)
    return (topic, queue_id), {"brokerName": broker_name, "queueId": queue_id, "topic": topic}


def _refused() -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, "the request does not say which locks it means")
