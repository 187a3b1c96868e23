"""The open transactions of a base at rest: whom to ask about them, and their ends.

An end is one append, which names the half as its source: the committed message, the op record of a
rollback, or, after the last check, the message without an end. So the overlay's log is the only
note of it, and a transaction ends once, whatever is asked or answered again later. Where RocketMQ
appends the half anew for each check, nothing is appended here, so that the message keeps its flag;
and a check counts only if it was sent, so that no transaction is given up that nobody was asked
about. The counts are kept in memory: a start begins them again, which asks more often.

Source: RocketMQ 5.3.3 ``TransactionalMessageServiceImpl.check``, ``EndTransactionProcessor``,
``TransactionalMessageUtil.getImmunityTime``.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from reput.overlay.base.halves import HalfPlace, OpenTransaction
from reput.overlay.delivery.deliveries import OWED_QUEUE_ID
from reput.overlay.records import properties as names
from reput.overlay.records import transactions
from reput.overlay.records.drafts import HALF_TOPIC
from reput.overlay.records.release import Refusal, Writer
from reput.overlay.records.sources import Source, source_of
from reput.store.config import StoreSettings, read_properties
from reput.store.errors import RefusedMessageError, StoreError
from reput.store.log import java
from reput.store.log.record import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    Record,
)

logger = logging.getLogger("reput")


@dataclass(frozen=True, slots=True)
class CheckTimes:
    """When producers are asked, in ms, and how often; a broker's own settings."""

    first: int = 6_000
    """``transactionTimeOut``: the time until the first check of a half that states none."""
    interval: int = 30_000
    """``transactionCheckInterval``."""
    most: int = 15
    """``transactionCheckMax``."""

    @classmethod
    def of(cls, base: StoreSettings) -> Self:
        """The times that a base's property file states."""
        stated = read_properties(base.root, base.property_file)
        default = cls()
        return cls(
            stated.number("transactionTimeOut") or default.first,
            stated.number("transactionCheckInterval") or default.interval,
            stated.number("transactionCheckMax") or default.most,
        )


class End(NamedTuple):
    """A producer's answer to how its transaction ended (END_TRANSACTION)."""

    group: bytes
    place: HalfPlace
    is_commit: bool
    topic: bytes | None = None
    """The topic of the message, or that of halves, where the answer names one."""


class _Turn(NamedTuple):
    at: int
    """ms since the overlay was opened."""
    number: int
    """Position in ``_transactions``."""


class OpenTransactions:
    """The open transactions of one base; any thread may call it."""

    def __init__(
        self,
        times: CheckTimes,
        writer: Writer,
        read: Callable[[int], Record | None],
        submit: Callable[[Record], Future[list[Record]]],
        base_pid: Callable[[], int | None],
        now_ms: Callable[[], int],
    ) -> None:
        """``read`` returns the base's record at a physical offset, None where it cannot be read;
        ``submit`` promises a record once it is durable; ``base_pid`` returns the process of the
        base's broker, None while it is at rest."""
        self._times = times
        self._writer = writer
        self._read = read
        self._submit = submit
        self._base_pid = base_pid
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._transactions: Sequence[OpenTransaction] = ()
        self._numbers: dict[int, int] = {}
        """By the physical offset of each of a transaction's records."""
        self._open: set[int] = set()
        self._ended: set[int] = set()
        """Physical offsets of the halves that the overlay's ends name."""
        self._ending: dict[int, Future[list[Record]]] = {}
        """Transactions whose ends are being written."""
        self._checks: list[int] = []
        self._turns: dict[bytes, list[_Turn]] = {}
        """By producer group: a heap of when each transaction is asked about next."""
        self._last_turns: list[_Turn] = []
        """A heap of when those are given up that were asked about often enough."""

    def take_over(self, found: Sequence[OpenTransaction]) -> None:
        """Begin with what is open in the base, before anything else is taken in."""
        self._transactions = found
        self._open = set(range(len(found)))
        self._checks = [0] * len(found)
        for number, transaction in enumerate(found):
            for place in transaction.places:
                self._numbers[place.physical_offset] = number
            turn = _Turn(self._first_check(transaction), number)
            heapq.heappush(self._turns.setdefault(transaction.group, []), turn)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def open_places(self) -> list[HalfPlace]:
        """The places of the records to be asked about of those that have not ended."""
        return [self._transactions[number].last for number in sorted(self._open)]

    @property
    def topics(self) -> Mapping[bytes, set[bytes]]:
        """The topics of all that were open at the start, by their producers' group."""
        topics: dict[bytes, set[bytes]] = {}
        for transaction in self._transactions:
            topics.setdefault(transaction.group, set()).add(transaction.topic)
        return topics

    def _first_check(self, transaction: OpenTransaction) -> int:
        if transaction.immunity is None:
            return self._times.first
        # what is no number counts as none, and -1 as well
        seconds = java.parse_integer(transaction.immunity, 64)
        return self._times.first if seconds is None or seconds == -1 else seconds * 1000

    def note(self, record: Record) -> None:
        """Take the next record of the overlay's log in: it may be an end."""
        source = source_of(record)
        if source is None or not source.is_base:
            return
        with self._lock:
            # ends of what is not known are kept, too: beside the base's broker nothing is known
            if source.physical_offset in self._numbers or not _is_of_failed_copy(record):
                self._end(source.physical_offset)

    def _end(self, physical_offset: int) -> None:
        self._ended.add(physical_offset)
        number = self._numbers.get(physical_offset)
        if number is not None:
            self._open.discard(number)
            self._ending.pop(number, None)

    def frozen(self) -> Callable[[], dict[str, Any]]:
        """Return a function that makes what ``restore`` needs, as of now."""
        with self._lock:
            ended = sorted(self._ended)
        return lambda: {"ended": ended}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what a snapshot was made of; what is open in the base was taken over before."""
        with self._lock:
            for physical_offset in state["ended"]:
                self._end(physical_offset)

    def leave_if_broker_runs(self) -> None:
        """Forget what is open, until the next start, once the base's broker runs again: it asks
        producers itself, and takes the ends."""
        if not self._open or (pid := self._base_pid()) is None:
            return
        with self._lock:
            count = len(self._open)
            self._open.clear()
        logger.warning(
            "the base's broker runs again, process %d: %d open transactions are left to it, and "
            "it asks about those that have ended in the overlay, too", pid, count,
        )  # fmt: skip

    def next_check(self, group: bytes, elapsed_ms: int) -> Record | None:
        """Return the half of a transaction whose producer is to be asked now, and count the
        check; None if there is none.

        ``elapsed_ms`` is the time since the overlay was opened.
        """
        while (number := self._next(self._turns.get(group, []), elapsed_ms)) is not None:
            transaction = self._transactions[number]
            half = self._half(transaction.last)
            if half is None:
                continue
            self._checks[number] += 1
            turn = self._turn_after(elapsed_ms, number)
            is_last = self._checks[number] >= self._times.most
            heapq.heappush(self._last_turns if is_last else self._turns[group], turn)
            return half
        return None

    def _next(self, turns: list[_Turn], elapsed_ms: int) -> int | None:
        """Remove the first turn of a heap that has come and whose transaction is open, and put the
        turns off of those whose end is being written: a write that fails is no end."""
        put_off = []
        found = None
        with self._lock:
            while found is None and turns and turns[0].at <= elapsed_ms:
                number = heapq.heappop(turns).number
                if number in self._ending:
                    put_off.append(self._turn_after(elapsed_ms, number))
                elif number in self._open:
                    found = number
            for turn in put_off:
                heapq.heappush(turns, turn)
        return found

    def _turn_after(self, elapsed_ms: int, number: int) -> _Turn:
        return _Turn(elapsed_ms + self._times.interval, number)

    def _half(self, place: HalfPlace) -> Record | None:
        half = self._read(place.physical_offset)
        if half is None:
            logger.error(
                "the half message at %d cannot be read: its transaction stays open",
                place.physical_offset,
            )
        return half

    def give_up(self, elapsed_ms: int) -> None:
        """Write those that were asked about often enough to where no consumer looks for them."""
        turns = []
        while (number := self._next(self._last_turns, elapsed_ms)) is not None:
            place = self._transactions[number].last
            half = self._half(place)
            if half is None:
                continue
            # one that has ended by then has no turn any more
            turns.append(self._turn_after(elapsed_ms, number))
            source = Source(is_base=True, physical_offset=place.physical_offset)
            try:
                made = transactions.discarded(
                    half, self._writer, source=source.field, now_ms=self._now_ms()
                )
                self._write(number, made)
            except StoreError as error:
                logger.warning("the half message at %d is not given up: %s", place[0], error)
        for turn in turns:
            heapq.heappush(self._last_turns, turn)

    def end(self, asked: End) -> Future[list[Record]] | None:
        """Commit or roll back; None if the transaction has ended before, or is left to the broker.

        The future ends when the end is durable. Raises RefusedMessageError for an answer that fits
        no half, BusyError, StoreError.
        """
        self.leave_if_broker_runs()
        number = self._numbers.get(asked.place.physical_offset)
        if number is None:
            raise _refused(f"no transaction was open at {asked.place.physical_offset}")
        transaction = self._transactions[number]
        if asked.group != transaction.group:
            raise _refused(f"the half at {asked.place.physical_offset} is another group's")
        if asked.place not in transaction.places:
            raise _refused(f"the half at {asked.place.physical_offset} has another queue offset")
        if asked.topic not in (None, transaction.topic, HALF_TOPIC):
            raise _refused(f"the half at {asked.place.physical_offset} is of another topic")
        return self._write(number, self._end_record(asked, transaction))

    def _end_record(self, asked: End, transaction: OpenTransaction) -> Record:
        offset, now_ms = asked.place.physical_offset, self._now_ms()
        source = Source(is_base=True, physical_offset=offset).field
        if not asked.is_commit:
            return transactions.op(
                [asked.place.queue_offset], 0, self._writer, source=source, now_ms=now_ms
            )
        half = self._half(asked.place)
        if half is None:
            raise _refused(f"the half at {offset} cannot be read")
        made = transactions.committed(half, self._writer, source=source, now_ms=now_ms)
        waits = made.topic != transaction.topic
        return made if waits else replace(made, queue_id=OWED_QUEUE_ID)

    def _write(self, number: int, record: Record) -> Future[list[Record]] | None:
        """Write an end, unless there is one."""
        with self._lock:
            if number not in self._open:
                return None
            if (ending := self._ending.get(number)) is not None:
                return ending
            future = self._ending[number] = self._submit(record)
        future.add_done_callback(lambda _: self._landed(number))
        return future

    def _landed(self, number: int) -> None:
        with self._lock:
            self._ending.pop(number, None)


def _refused(text: str) -> RefusedMessageError:
    return RefusedMessageError(Refusal.SYSTEM_ERROR, text)


def _is_of_failed_copy(record: Record) -> bool:
    """Whether a record says what became of a copy that a group could not consume."""
    topic = record.property_map.get(names.REAL_TOPIC, record.topic)
    is_dead = record.topic.startswith(DLQ_GROUP_TOPIC_PREFIX)
    return is_dead or topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
