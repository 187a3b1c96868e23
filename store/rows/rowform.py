"""The choice of the records that become rows, and the form of their bodies.

Internal records are those that consumers of RocketMQ never see: records of its own topics
(``store.log.systemtopics``), and PREPARED and ROLLBACK records, which go into no consume queue.
Whatever gives messages leaves them out unless it is asked for them, and inflates bodies.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from reput.store.log.compression import MAX_INFLATED_BYTES
from reput.store.log.systemtopics import is_system_topic


@dataclass(frozen=True, slots=True)
class RowForm:
    """Whether internal records are rows, and how far bodies are inflated."""

    include_internal: bool = False
    max_inflated_bytes: int | None = MAX_INFLATED_BYTES
    """The largest size to which a body is inflated; None leaves all as stored."""
    named_topics: Collection[str] = frozenset()
    """Topics that were asked for by name: all of their records are rows. A pattern is no name."""

    def takes_topic(self, topic: str) -> bool:
        """Whether records of a topic may be rows."""
        return self.include_internal or topic in self.named_topics or not is_system_topic(topic)


DEFAULT_FORM = RowForm()
AS_STORED = RowForm(include_internal=True, max_inflated_bytes=None)
"""Every record, as it is."""
