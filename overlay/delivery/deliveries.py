"""Delivers what waits, when it is due: all that is due together, in one commit.

What is due soon is made already, so that only the write remains then.

A delivery is one append, which names the waiting record as its source, so that nothing is delivered
twice, whenever the process ends. A record that cannot be read or delivered is passed over with a
line, as a broker passes it over; it stays where it is.

What is no retry belongs to a topic of the base's, and is delivered to queue 0, whatever queue its
REAL_QID names, as are retries that waited in the base: such a topic has one queue in the overlay.
With as many as in the base, members that share the queues of two brokers out would have most of the
base's or most of the overlay's. What waits in the base is not delivered any more once its broker
runs again.

Source of the rules: ``overlay.delivery.waiting``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from reput.overlay.delivery.ahead import DeliveriesAhead
from reput.overlay.delivery.waiting import WaitingRecords
from reput.overlay.groupcommit import GroupCommit
from reput.overlay.records.copies import level_delivered, timer_delivered
from reput.overlay.records.release import Writer
from reput.overlay.records.sources import Source
from reput.store.errors import BusyError, RefusedMessageError, StoreError
from reput.store.log.record import RETRY_GROUP_TOPIC_PREFIX, SCHEDULE_TOPIC, Record

AT_ONCE = 2000
"""Deliveries of one commit: the first of many that are due together are not kept waiting for the
last."""
OWED_QUEUE_ID = 0
"""The queue of what the base owes."""
RETRY_SECONDS = 0.1
"""Time after which a delivery that could not be written is tried again."""
MAX_PAUSE_SECONDS = 1.0
"""The clock is looked at that often, since it may be set."""

logger = logging.getLogger("reput")


class Deliveries:
    """Delivers in a thread of its own, while in a ``with`` block."""

    def __init__(
        self,
        waiting: WaitingRecords,
        lock: threading.Condition,
        commits: GroupCommit,
        read: Callable[[Source], Record | None],
        writer: Writer,
        now_ms: Callable[[], int],
        base_pid: Callable[[], int | None],
    ) -> None:
        """``lock`` guards ``waiting``, and is notified when that changes; ``read`` returns the
        record at a place, None where it cannot be read; ``base_pid`` returns the process of the
        base's broker, None while it is at rest."""
        self._waiting = waiting
        self._lock = lock
        self._commits = commits
        self._read = read
        self._writer = writer
        self._now_ms = now_ms
        self._base_pid = base_pid
        self._ahead = DeliveriesAhead()
        self._at_once = AT_ONCE
        """Deliveries of the next commit."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="reput-deliveries", daemon=True)

    def __enter__(self) -> Deliveries:
        """Begin to deliver."""
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (places := self._next_due()) is not None:
            if any(place.is_base for place in places) and self._base_came_back():
                continue
            made = [(place, self._ahead.take(place) or self._delivered(place)) for place in places]
            records = {place: record for place, record in made if record is not None}
            if records and not self._is_written(records):
                return

    def _is_written(self, records: Mapping[Source, Record]) -> bool:
        """Write deliveries, all or none: of what the log cannot hold, give up a single one, or have
        each tried alone. False where nothing is written any more: the next start delivers
        them."""
        try:
            self._commits.submit([*records.values()]).result()
        except BusyError as error:
            logger.debug("%d deliveries wait: %s", len(records), error)
            with self._lock:
                self._lock.wait_for(lambda: self._is_closed, RETRY_SECONDS)
        except StoreError as error:
            if self._commits.failure is not None:
                return False
            if len(records) > 1:
                self._at_once = 1
            else:
                logger.error("not delivered: %s", error)
                self._at_once = AT_ONCE
                with self._lock:
                    self._waiting.give_up(*records)
        return True

    def _base_came_back(self) -> bool:
        """Whether the base's broker delivers what waits there."""
        pid = self._base_pid()
        if pid is None:
            return False
        with self._lock:
            count = self._waiting.owed_count
            self._waiting.disown()
        logger.warning(
            "the base's broker runs again, process %d: %d messages that wait there are left to it, "
            "and those that the overlay has delivered it delivers once more", pid, count,
        )  # fmt: skip
        return True

    def _next_due(self) -> Sequence[Source] | None:
        """Wait until something is due, and return the places; None at the end."""
        while True:
            with self._lock:
                now = self._now_ms()
                due = self._waiting.due(now)
                if self._is_closed:
                    return None
                if due:
                    return due[: self._at_once]
                self._at_once = AT_ONCE
                soon = self._ahead.missing(self._waiting, now)
                if not soon:
                    next_due = self._waiting.next_due()
                    pause = MAX_PAUSE_SECONDS
                    if next_due is not None:
                        pause = min(max(next_due - now, 0) / 1000, pause)
                    self._lock.wait(pause)
            for place in soon:
                self._ahead.put(place, self._delivered(place))

    def _delivered(self, place: Source) -> Record | None:
        """The delivery of a waiting record; None where there is none to be made."""
        waiting = self._read(place)
        try:
            if waiting is None:
                raise RefusedMessageError(0, f"the record at {place} cannot be read")
            if waiting.topic == SCHEDULE_TOPIC:
                made = level_delivered(waiting, self._writer, source=place.field)
            else:
                made = timer_delivered(
                    waiting, self._writer, source=place.field, now_ms=self._now_ms(),
                    enqueued_ms=waiting.store_timestamp // 1000 * 1000,
                )  # fmt: skip
        except RefusedMessageError as error:
            logger.error("not delivered: %s", error)
            with self._lock:
                self._waiting.give_up(place)
            return None
        is_own_retry = not place.is_base and made.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        return made if is_own_retry else replace(made, queue_id=OWED_QUEUE_ID)
