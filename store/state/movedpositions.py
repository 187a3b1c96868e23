"""Queues in which positions no longer equal queue offsets, since a gap was closed up.

RocketMQ appends the message after a gap at the queue's end. A consumer group's committed offset is
a position, so one beyond the gap then means another message than where nothing is missing. A gap
that is filled with blank units (on-queue-gap blank) moves nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from reput.store.errors import StoreError
from reput.store.names import escaped
from reput.store.state.consumeroffset import Offsets, read_committed
from reput.store.state.ledger import QUEUE_OFFSET_GAP, LedgerEntry

SHOWN_QUEUES = 8
_POSITION = re.compile(r"queue offset \d+ at position (\d+)")
"""The detail of a gap in the ledger."""
logger = logging.getLogger("reput")


@dataclass(frozen=True, slots=True)
class MovedQueue:
    """One queue, from its first gap on."""

    topic: str
    """Escaped."""
    queue_id: int
    position: int
    queue_offset: int
    """Queue offset of the message at ``position``: the first that is not its place."""
    physical_offset: int
    groups: int
    """Number of consumer groups that have committed an offset beyond ``position``."""

    @property
    def line(self) -> str:
        """The fields as one line of a log."""
        return (
            f"positions no longer equal queue offsets: topic={self.topic} queue={self.queue_id} "
            f"position={self.position} queue_offset={self.queue_offset} "
            f"physical_offset={self.physical_offset} groups_beyond={self.groups}"
        )


ADVICE = (
    "RocketMQ closes gaps up, and an offset that a group has committed beyond one means a later "
    "message than before; reput rebuild --on-queue-gap blank keeps each message at its offset"
)


def moved_queues(
    entries: Iterable[LedgerEntry | None], roots: Collection[Path]
) -> tuple[MovedQueue, ...]:
    """Return the queues with gaps among some lines of a ledger, sorted; ``roots`` are those of the
    store and its output, of which the last one with committed offsets counts."""
    first: dict[tuple[str, int], tuple[int, LedgerEntry]] = {}
    for entry in entries:
        if entry is None or entry.reason != QUEUE_OFFSET_GAP or entry.queue_offset is None:
            continue
        match = _POSITION.search(entry.detail or "")
        key = (entry.topic or "", entry.queue_id or 0)
        if match and (key not in first or entry.physical_offset < first[key][1].physical_offset):
            first[key] = int(match[1]), entry
    if not first:
        return ()
    offsets = _committed(roots)
    return tuple(
        MovedQueue(
            *key, position, entry.queue_offset or 0, entry.physical_offset,
            _groups_beyond(offsets, *key, position),
        )
        for key, (position, entry) in sorted(first.items())
    )  # fmt: skip


def _committed(roots: Collection[Path]) -> Offsets:
    offsets: Offsets = {}
    for root in roots:
        try:
            offsets = read_committed(root) or offsets
        except StoreError as error:
            # what is only told must not keep anything from being written
            logger.warning("%s", error)
    return offsets


def _groups_beyond(offsets: Offsets, topic: str, queue_id: int, position: int) -> int:
    return len(
        {
            key.group
            for key, queues in offsets.items()
            if escaped(key.topic.encode()) == topic and queues.get(queue_id, 0) > position
        }
    )


def warn_of_moved(queues: Collection[MovedQueue]) -> None:
    """Log a line for each of the first queues, and what it means."""
    for queue in list(queues)[:SHOWN_QUEUES]:
        logger.warning("%s", queue.line)
    if queues:
        more = len(queues) - SHOWN_QUEUES
        logger.warning("%s%s", f"{more} queues more; " if more > 0 else "", ADVICE)
