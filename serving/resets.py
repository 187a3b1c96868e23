"""Resets of a group's offsets while its members consume.

A member keeps its own position in memory and commits it, so an offset that is merely stored would
be overwritten. As in RocketMQ the member's next pull of the queue is answered with the new offset,
and its commits are ignored until then. In RocketMQ a commit that was under way arrives after that
pull and puts the old offset back: a client of 4.9 goes on committing for ten seconds. Here a
member's commits are ignored until it has begun anew: it asks for the committed offset, or pulls
after it was told. Commits of all others count. Source: RocketMQ 5.3.3
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
    untold: set[str]
    """Ids of the clients that go on as before."""
    told: set[str]
    """Ids of those that know the new offset and did not begin there yet."""


class Resets:
    """The resets that some member has not followed yet."""

    def __init__(self) -> None:
        self._resets: dict[QueueOfGroup, _Reset] = {}

    def begin(self, queue: QueueOfGroup, offset: int, client_ids: Iterable[str]) -> None:
        """A queue was reset while its group had these members."""
        untold = set(client_ids)
        if untold:
            self._resets[queue] = _Reset(offset, untold, set())
        else:
            self._resets.pop(queue, None)

    def is_awaited(self, queue: QueueOfGroup, client_id: str) -> bool:
        """Whether a client has not begun anew, so that its commits are of no value."""
        reset = self._resets.get(queue)
        return reset is not None and (client_id in reset.untold or client_id in reset.told)

    def pulled(self, queue: QueueOfGroup, client_id: str) -> int | None:
        """A client pulls: the offset that it must be told instead of an answer, if any."""
        reset = self._resets.get(queue)
        if reset is None:
            return None
        if client_id in reset.untold:
            reset.untold.remove(client_id)
            reset.told.add(client_id)
            return reset.offset
        self.began(queue, client_id)
        return None

    def began(self, queue: QueueOfGroup, client_id: str) -> None:
        """A client begins with the offset that is committed now."""
        reset = self._resets.get(queue)
        if reset is not None:
            reset.untold.discard(client_id)
            reset.told.discard(client_id)
            if not reset.untold and not reset.told:
                del self._resets[queue]
