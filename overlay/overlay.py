"""The overlay of a base: the store below an output that keeps what consuming writes.

The base stays as it is. The overlay is an ordinary store, and is served as a broker of its own.
What waits in it, and which copies were sent back already, is read from its log at the start, or
from a snapshot and the log's end (``overlay.snapshot``). What waits in the base is found then as
well (``overlay.base.debts``), unless the base's broker runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

from reput.overlay.base.debts import Debts, find_debts, waiting_records
from reput.overlay.base.halves import Halves, find_halves
from reput.overlay.brokerfiles import BrokerFiles
from reput.overlay.checks import CheckTimes, OpenTransactions
from reput.overlay.delivery.deliveries import OWED_QUEUE_ID, Deliveries
from reput.overlay.delivery.waiting import FailedCopy, NextOffsets, WaitingRecords
from reput.overlay.groupcommit import GroupCommit
from reput.overlay.lostanswers import KEPT_MS, LostAnswers
from reput.overlay.pipeline import Pipeline, write_settings
from reput.overlay.records.copies import SendBack, sent_back
from reput.overlay.records.drafts import HALF_TOPIC
from reput.overlay.records.properties import REAL_TOPIC
from reput.overlay.records.release import Refusal, Writer
from reput.overlay.records.sends import Send, Target, sent
from reput.overlay.records.sources import Source
from reput.overlay.snapshot import Part, Snapshots
from reput.store.brokerlock import broker_pid
from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import RefusedMessageError, StoreError, error_text
from reput.store.files import OVERLAY_DIRECTORY
from reput.store.log import java
from reput.store.log.appender import LogAppender
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.places import first_at_or_after
from reput.store.log.record import Record
from reput.store.names import is_topic
from reput.streaming.commit import OnVisible

FILE_SIZE = 64 << 20
"""mappedFileSizeCommitLog of an overlay, in bytes."""

logger = logging.getLogger("reput")


def overlay_root(output: Path) -> Path:
    """The root of an output's overlay."""
    return output / OVERLAY_DIRECTORY


class Overlay:
    """One overlay, open while in a ``with`` block; any thread may call it."""

    def __init__(
        self,
        base: StoreSettings,
        output: Path,
        writer: Writer,
        on_visible: OnVisible = lambda *_: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """``output`` has the queues of ``base``; ``on_visible`` is called in another thread
        whenever the overlay's queues have grown."""
        self.root = overlay_root(output)
        self._base = base
        self._output = output
        self._debts = Debts()
        self._halves = Halves()
        self._writer = writer
        self._now_ms = now_ms
        self._on_visible = on_visible
        self._opened = ExitStack()
        self._lock = threading.Condition()
        self._waiting = WaitingRecords(base.message_delay_levels_ms)
        self._in_flight: dict[FailedCopy, Future[list[Record]]] = {}
        """Copies whose successors are being written."""
        self._lost_answers = LostAnswers()
        self.transactions = OpenTransactions(
            CheckTimes.of(base), writer, lambda place: self._read(Source(True, place)),
            self._submit, lambda: broker_pid(base.root), now_ms,
        )  # fmt: skip
        """The transactions that were open in the base when it was left."""
        self._files = BrokerFiles(self.root, base.root, self._next_offsets, self._is_complete)
        parts: dict[str, Part] = {
            "waiting": self._waiting, "queues": self._files, "transactions": self.transactions,
        }  # fmt: skip
        self._snapshots = Snapshots(self.root, self._lock, base.message_delay_levels_ms, parts)
        self._base_log: CommitLog
        self._log: CommitLog
        self._commits: GroupCommit
        self._pipeline: Pipeline

    def __enter__(self) -> Overlay:
        """Open the overlay, made if it is missing. Raises OwnershipError where another process
        writes it, UsageError, StoreError."""
        with ExitStack() as opened:
            write_settings(self.root, self._base, FILE_SIZE)
            appender = opened.enter_context(LogAppender(self.root, file_size=FILE_SIZE))
            self._log = self.settings.open_log()
            opened.callback(self._log.close)
            self._base_log = self._base.open_log()
            opened.callback(self._base_log.close)
            self._take_debts_over()
            start = self._snapshots.restore(self._log, appender.end_offset)
            for record in records(self._log, start, appender.end_offset):
                if isinstance(record, Record):
                    self._note(record)
            self._log_debts()
            self._note_last_answers(appender.end_offset)
            opened.enter_context(self._snapshots)
            opened.enter_context(self._files)
            self._pipeline = opened.enter_context(Pipeline(self.root, self._on_visible))
            self._commits = opened.enter_context(GroupCommit(appender, self._committed))
            self._pipeline.advance(self._commits.durable_end)
            opened.enter_context(
                Deliveries(
                    self._waiting, self._lock, self._commits, self._read, self._writer,
                    self._now_ms, lambda: broker_pid(self._base.root),
                )
            )  # fmt: skip
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    @property
    def settings(self) -> StoreSettings:
        """The overlay's settings as a store."""
        return read_store_settings(self.root)

    @property
    def owed_topics(self) -> frozenset[str]:
        """The topics to which messages belong that waited in the base when it was left, and those
        of its open transactions: these are delivered here."""
        halves = {transaction.topic for transaction in self._halves.open}
        return frozenset(filter(is_topic, map(java.decode, self._debts.topics | halves)))

    def _take_debts_over(self) -> None:
        """Find what the base owes, unless a broker still pays."""
        pid = broker_pid(self._base.root)
        if pid is not None:
            logger.warning(
                "the broker of %s runs, process %d, and delivers what waits there and asks "
                "producers about open transactions, which the overlay does not; once the broker "
                "has stopped for good, the next start takes over what is left",
                self._base.root, pid,
            )  # fmt: skip
        else:
            self._debts = find_debts(self._base, self._output)
            self._halves = find_halves(self._base, self._output)
        self.transactions.take_over(self._halves.open)
        for record in waiting_records(self._base_log, self._debts.places):
            self._waiting.owe(record)
        for topic in self.owed_topics:
            self._files.note_queue(topic.encode(), OWED_QUEUE_ID)

    def _note(self, record: Record) -> None:
        """Take the next record of the overlay's log in."""
        self._waiting.note(record)
        self.transactions.note(record)
        self._files.note(record)
        self._snapshots.note(record)

    def _log_debts(self) -> None:
        root = self._base.root
        if count := self._waiting.owed_count:
            logger.info(
                "%d messages that waited in %s when its broker stopped are delivered to the "
                "overlay when they are due; its broker, if it starts again, delivers them too",
                count, root,
            )  # fmt: skip
        if count := len(self.transactions):
            logger.info(
                "%d transactions of %s were open when its broker stopped: producers of their "
                "groups are asked once they connect, and the overlay takes the ends; its broker, "
                "if it starts again, asks too",
                count, root,
            )  # fmt: skip
        if self._halves.are_in_rocksdb:
            logger.warning(
                "transactions of %s are in its broker's RocksDB (transRocksDBEnable): only the "
                "broker can end them", root,
            )  # fmt: skip

    def _note_last_answers(self, end: int) -> None:
        """Nobody knows any more which answers a process that was killed had written."""
        now = self._now_ms()
        start = first_at_or_after(self._log, now - KEPT_MS, end)
        for record in records(self._log, end if start is None else start, end):
            if isinstance(record, Record):
                self._lost_answers.note(record, now)

    def answered(self, stored: Record) -> None:
        """The client that sent a copy has been told that ``stored`` waits, or is a dead letter."""
        with self._lock:
            self._lost_answers.answered(stored.physical_offset)

    def send_back(
        self, copy: Record, asked: SendBack, *, is_of_base: bool
    ) -> Future[list[Record]] | None:
        """Write what a group gets for a copy that it could not consume; None where that waits
        already, or is a dead letter.

        The future ends when it is durable. Raises RefusedMessageError, BusyError, StoreError.
        """
        source = Source(is_of_base, copy.physical_offset)
        failed = FailedCopy(asked.group, source)
        with self._lock:
            if self._waiting.has_ended(failed):
                return None
            if (in_flight := self._in_flight.get(failed)) is not None:
                return in_flight
            record = sent_back(
                copy, asked, self._writer, source=source.field, now_ms=self._now_ms()
            )
            future = self._commits.submit(record)
            self._in_flight[failed] = future
        future.add_done_callback(lambda _: self._landed(failed))
        return future

    def send(self, message: Send, target: Target, unique_key: bytes) -> Future[list[Record]]:
        """Write a message that a client sends; the future ends when it is durable. A copy that was
        taken back without an answer is not written again. Raises RefusedMessageError, BusyError,
        StoreError."""
        now_ms = self._now_ms()
        record = sent(message, target, self._writer, unique_key=unique_key, now_ms=now_ms)
        if HALF_TOPIC in (record.topic, record.property_map.get(REAL_TOPIC)):
            raise RefusedMessageError(
                Refusal.NO_PERMISSION,
                "no transaction begins here: send its message to a broker, or without a "
                "transaction",
            )
        with self._lock:
            place = self._lost_answers.take(record, now_ms)
        stored = None if place is None else self._read(Source(False, place))
        if stored is not None:
            written: Future[list[Record]] = Future()
            written.set_result([stored])
            return written
        return self._commits.submit(record)

    def _submit(self, record: Record) -> Future[list[Record]]:
        return self._commits.submit(record)

    def _next_offsets(self) -> NextOffsets:
        with self._lock:
            return self._waiting.next_offsets()

    def _is_complete(self) -> bool:
        """Whether all that was written is durable and dispatched, once the parts have ended."""
        return (
            self._commits.failure is None
            and self._pipeline.failure is None
            and self._pipeline.position >= self._commits.durable_end
        )

    def _landed(self, failed: FailedCopy) -> None:
        with self._lock:
            self._in_flight.pop(failed, None)

    def _committed(self, durable_end: int, stored: Sequence[Record]) -> None:
        with self._lock:
            now = self._now_ms()
            for record in stored:
                self._note(record)
                self._lost_answers.note(record, now)
            self._lock.notify_all()
        self._pipeline.advance(durable_end)

    def _read(self, place: Source) -> Record | None:
        """The record at a place; None where the log does not have it any more, or the disk does not
        give it."""
        log = self._base_log if place.is_base else self._log
        try:
            found = log.record_starting_at(place.physical_offset)
            if not isinstance(found, Record):
                log.refresh()
                found = log.record_starting_at(place.physical_offset)
        except (StoreError, OSError) as error:
            logger.warning("the record at %s cannot be read: %s", place, error_text(error))
            return None
        return found if isinstance(found, Record) else None
