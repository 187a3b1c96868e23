"""The share of a topic's queues that each member of a consumer group reads: RocketMQ's strategies.

Members do not ask each other. Each computes its own share from the topic's queues and the ids of
the group's members, so all of them must use the same strategy and sort both lists alike, as
``assigned_queues`` does. Strings are ordered as Java orders them, by UTF-16 units. Source: RocketMQ
5.3.3 ``RebalanceImpl.rebalanceByTopic``, ``org.apache.rocketmq.client.consumer.rebalance`` and
``ConsistentHashRouter``. A custom hash function is not supported.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import NamedTuple, Protocol

from reput.store.errors import UsageError

DEFAULT_VIRTUAL_NODES = 10
ROOM_SEPARATOR = "@"
"""Between machine room and name in a broker name of ``AllocateMessageQueueByMachineRoom``."""


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker (``MessageQueue``)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """RocketMQ's text, which consistent hashing hashes."""
        return (
            f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, "
            f"queueId={self.queue_id}]"
        )


class AllocateMessageQueueStrategy(Protocol):
    """A rule by which members share queues."""

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The share of ``client_id``, given both lists in the order that all members use.

        It is empty for a client that is no member. Raises UsageError for an empty id or list.
        """
        ...


class MachineRoomResolver(Protocol):
    """Says where a broker and a client stand; an empty text means that it is not known."""

    def broker_room(self, queue: MessageQueue, /) -> str:
        """Machine room of a queue's broker."""
        ...

    def client_room(self, client_id: str, /) -> str:
        """Machine room of a client."""
        ...


def assigned_queues(
    strategy: AllocateMessageQueueStrategy,
    client_id: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue]:
    """The share of a member, from lists in any order (``RebalanceImpl.rebalanceByTopic``)."""
    in_order = sorted(queues, key=lambda q: (_java(q.topic), _java(q.broker_name), q.queue_id))
    return strategy.allocate(client_id, in_order, sorted(client_ids, key=_java))


class AllocateAveragely:
    """Neighbouring queues, in shares that differ by one at most; the first members have more."""

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See AllocateMessageQueueStrategy."""
        if not _is_member(client_id, queues, client_ids):
            return []
        index = client_ids.index(client_id)
        share, rest = divmod(len(queues), len(client_ids))
        start = index * share + min(index, rest)
        return list(queues[start : start + share + (index < rest)])


class AllocateAveragelyByCircle:
    """Every n-th queue for each of n members."""

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See AllocateMessageQueueStrategy."""
        if not _is_member(client_id, queues, client_ids):
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


@dataclass(frozen=True, slots=True)
class AllocateConsistentHash:
    """Each queue for the member whose virtual node follows the queue's hash on a ring."""

    virtual_node_count: int = DEFAULT_VIRTUAL_NODES

    def __post_init__(self) -> None:
        if self.virtual_node_count < 0:
            raise UsageError(f"virtual nodes are {self.virtual_node_count}; they must be 0 or more")

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See AllocateMessageQueueStrategy."""
        if not _is_member(client_id, queues, client_ids):
            return []
        ring = self._ring(client_ids)
        points = sorted(ring)
        return [queue for queue in queues if _owner(ring, points, str(queue)) == client_id]

    def _ring(self, client_ids: Sequence[str]) -> dict[int, str]:
        """Owner by hash; of two nodes with one hash the later stands (``addNode``)."""
        ring: dict[int, str] = {}
        added: set[str] = set()
        for client_id in client_ids:
            # the nodes of an id that is listed again are numbered on
            first = list(ring.values()).count(client_id) if client_id in added else 0
            added.add(client_id)
            for number in range(first, first + self.virtual_node_count):
                ring[_hash(f"{client_id}-{number}")] = client_id
        return ring


@dataclass(frozen=True, slots=True)
class AllocateByMachineRoom:
    """Queues of the brokers in the given rooms, whose names begin with ``ROOM@``."""

    rooms: Collection[str]

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See AllocateMessageQueueStrategy."""
        if not _is_member(client_id, queues, client_ids):
            return []
        near = [queue for queue in queues if _room(queue.broker_name) in self.rooms]
        index, count = client_ids.index(client_id), len(client_ids)
        share, rest = divmod(len(near), count)
        beyond = [near[index + share * count]] if index < rest else []
        return near[share * index : share * (index + 1)] + beyond


@dataclass(frozen=True, slots=True)
class AllocateMachineRoomNearby:
    """Queues for the members in their broker's room; for all members where the room has none."""

    strategy: AllocateMessageQueueStrategy
    """Shares the queues of each room."""
    resolver: MachineRoomResolver

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See AllocateMessageQueueStrategy; UsageError also where a room is not known."""
        if not _is_member(client_id, queues, client_ids):
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = _require_room(self.resolver.broker_room(queue), queue)
            queues_of.setdefault(room, []).append(queue)
        clients_of: dict[str, list[str]] = {}
        for member_id in client_ids:
            clients_of.setdefault(
                _require_room(self.resolver.client_room(member_id), member_id), []
            ).append(member_id)
        here = self.resolver.client_room(client_id)
        share = []
        if here in queues_of:
            share += self.strategy.allocate(client_id, queues_of[here], clients_of[here])
        for room in sorted(queues_of.keys() - clients_of.keys(), key=_java):
            share += self.strategy.allocate(client_id, queues_of[room], client_ids)
        return share


@dataclass(frozen=True, slots=True)
class AllocateByConfig:
    """The configured queues for every member."""

    message_queues: Sequence[MessageQueue]

    def allocate(
        self, _client_id: str, _queues: Sequence[MessageQueue], _client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See AllocateMessageQueueStrategy, except that nothing is refused."""
        return list(self.message_queues)


def _is_member(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> bool:
    """``AbstractAllocateMessageQueueStrategy.check``."""
    if not client_id:
        raise UsageError("the client's id is empty; every member of a group needs one")
    if not queues:
        raise UsageError("there are no queues to allocate; give the queues of the topic")
    if not client_ids:
        raise UsageError("there are no members to share the queues; give the ids of the group")
    return client_id in client_ids


def _owner(ring: dict[int, str], points: list[int], key: str) -> str | None:
    """``ConsistentHashRouter.routeNode``; ``points`` are the ring's, sorted."""
    if not points:
        return None
    return ring[points[bisect_left(points, _hash(key)) % len(points)]]


def _hash(text: str) -> int:
    """``ConsistentHashRouter.MD5Hash``; Java writes a lone surrogate as a question mark, too."""
    digest = md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _room(broker_name: str) -> str | None:
    """The first of two parts, None for another number of them; ``String.split`` drops empty parts
    at the end."""
    parts = broker_name.rstrip(ROOM_SEPARATOR).split(ROOM_SEPARATOR)
    return parts[0] if len(parts) == 2 else None


def _require_room(room: str, whose: object) -> str:
    if not room:
        raise UsageError(f"the machine room of {whose} is not known; the resolver must name it")
    return room


def _java(text: str) -> bytes:
    """A key that orders as ``String.compareTo``."""
    return text.encode("utf-16-be", "surrogatepass")
