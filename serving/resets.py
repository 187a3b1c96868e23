"""Resets of a group's offsets while its members consume.

A member keeps its position in memory and commits it, so it would overwrite an offset that is merely
stored. As in RocketMQ, the member's next pull of the queue is answered with the new offset, and its
commits are ignored until then. At a broker, a commit that is under way at that pull still puts the
old offset back: a client of 4.9 goes on committing for ten seconds. Here a member's commits are
ignored until it has begun at the new offset, which it shows by asking for the committed offset, or
by its first pull after that answer. Commits of other clients count. Source: RocketMQ 5.3.3
``ConsumerOffsetManager.assignResetOffset``, ``PullMessageProcessor``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

QueueOfGroup = tuple[str, str, int]
"""(topic, group, queue id)."""


@dataclass(slots=True)
class _Reset:
    offset: int
    unaware: set[str]
    """Ids of the clients to which the new offset has not been sent."""
    notified: set[str]
    """Ids of those to which it was sent, but that have not begun there yet."""


class Resets:
    """The resets that some member has not followed yet."""

    def __init__(self) -> None:
        self._resets: dict[QueueOfGroup, _Reset] = {}

    def __bool__(self) -> bool:
        return bool(self._resets)

    def begin(self, queue: QueueOfGroup, offset: int, client_ids: Iterable[str]) -> None:
        """Await these members of the group, whose queue was reset to ``offset``."""
        unaware = set(client_ids)
        if unaware:
            self._resets[queue] = _Reset(offset, unaware, set())
        else:
            self._resets.pop(queue, None)

    def is_awaited(self, queue: QueueOfGroup, client_id: str) -> bool:
        """Whether a client has not begun at the new offset, so that its commits are ignored."""
        reset = self._resets.get(queue)
        return reset is not None and (client_id in reset.unaware or client_id in reset.notified)

    def pulled(self, queue: QueueOfGroup, client_id: str) -> int | None:
        """Note a client's pull. Return the new offset if the pull must be answered with it."""
        reset = self._resets.get(queue)
        if reset is None:
            return None
        if client_id in reset.unaware:
            reset.unaware.remove(client_id)
            reset.notified.add(client_id)
            return reset.offset
        self.began(queue, client_id)
        return None

    def began(self, queue: QueueOfGroup, client_id: str) -> None:
        """Note that a client begins at the offset that is committed now."""
        reset = self._resets.get(queue)
        if reset is not None:
            reset.unaware.discard(client_id)
            reset.notified.discard(client_id)
            if not reset.unaware and not reset.notified:
                del self._resets[queue]
