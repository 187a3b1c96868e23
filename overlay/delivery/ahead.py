"""Deliveries that are made before they are due, so that only the write remains then."""

from __future__ import annotations

import itertools

from reput.overlay.delivery.waiting import WaitingRecords
from reput.overlay.records.sources import Source
from reput.store.log.record import Record

AHEAD_MS = 2000
"""Time within which a record is due whose delivery is made."""
AT_ONCE = 100
"""Deliveries that are made before it is looked again whether something is due."""
MOST_RECORDS, MOST_BYTES = 20_000, 64 << 20
"""Limits of the deliveries that are kept, and of their bodies: beyond them nothing more is made."""
PAUSE_MS = 200
"""Pause after a look that found nothing."""


class DeliveriesAhead:
    """Deliveries that are made and not due yet; not thread-safe."""

    def __init__(self) -> None:
        self._made: dict[Source, Record] = {}
        self._bytes = 0
        """Bytes of their bodies."""
        self._next_look = 0

    def missing(self, waiting: WaitingRecords, now: int) -> list[Source]:
        """The places of records whose deliveries are made next, while nothing is due."""
        is_early = self._next_look - PAUSE_MS <= now < self._next_look
        if is_early:
            return []
        if self._made and next(waiting.soon(now + AHEAD_MS), None) is None:
            self._made.clear()  # recalled
            self._bytes = 0
        if self._bytes >= MOST_BYTES or len(self._made) >= MOST_RECORDS:
            return []
        soon = (place for place in waiting.soon(now + AHEAD_MS) if place not in self._made)
        found = list(itertools.islice(soon, AT_ONCE))
        if not found:
            self._next_look = now + PAUSE_MS
        return found

    def put(self, place: Source, made: Record | None) -> None:
        """Keep a delivery; None where there is none to be made."""
        if made is not None:
            self._made[place] = made
            self._bytes += len(made.body)

    def take(self, place: Source) -> Record | None:
        """Return a delivery, which is not kept any more; None where it is not made yet."""
        made = self._made.pop(place, None)
        if made is not None:
            self._bytes -= len(made.body)
        return made
