"""Messages of one batch whose queue offsets a queue has already: RocketMQ drops them, in silence.

That is what becomes of a topic that was deleted and made again while the log still holds its old
messages. Every message is in the ledger; this says it once for each queue, with the way out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from reput.store.names import escaped
from reput.store.queue.consumequeue import QueueKey

SHOWN_QUEUES = 8
"""Queues of one batch that get a line of their own."""
logger = logging.getLogger("reput")


@dataclass(slots=True)
class _Repeat:
    begin: int
    """Physical offset of the first message whose offset is not beyond that of the one before."""
    count: int = 0


@dataclass(slots=True)
class RepeatedOffsets:
    """The queues of one batch in which offsets begin again."""

    _queues: dict[QueueKey, _Repeat] = field(default_factory=dict)

    def note_begin(self, key: QueueKey, physical_offset: int) -> None:
        """A message with queue offset 0 was appended, as it is anywhere."""
        self._queues.setdefault(key, _Repeat(physical_offset))

    def note(self, key: QueueKey, physical_offset: int, count: int) -> None:
        """So many messages from a physical offset on were dropped."""
        self._queues.setdefault(key, _Repeat(physical_offset)).count += count

    def warn(self) -> None:
        """Log what was dropped, a line for each of the first queues."""
        dropped = {key: repeat for key, repeat in self._queues.items() if repeat.count}
        begins: dict[str, int] = {}
        for key, repeat in dropped.items():
            begins[key.topic] = min(repeat.begin, begins.get(key.topic, repeat.begin))
        for key, repeat in list(dropped.items())[:SHOWN_QUEUES]:
            topic = escaped(key.topic.encode())
            logger.warning(
                "queue offsets begin again: topic=%s queue=%d messages=%d from physical offset %d "
                "on are in no queue, since RocketMQ drops offsets that a queue has; if the topic "
                "was deleted and made again, reput rebuild --topic %s --from %d gives its queues "
                "to the new messages",
                topic, key.queue_id, repeat.count, repeat.begin, topic, begins[key.topic],
            )  # fmt: skip
        if len(dropped) > SHOWN_QUEUES:
            logger.warning(
                "queue offsets begin again in %d queues more", len(dropped) - SHOWN_QUEUES
            )
