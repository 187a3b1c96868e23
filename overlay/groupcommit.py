"""Makes records of any number of callers durable together: one sync for all that wait.

A sync takes milliseconds, however much it makes durable. So one thread appends what has come since
the last sync began, syncs once, and then answers every caller. Nobody is answered before, and after
a write that failed nobody is answered with success any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from reput.store.errors import BusyError, OutputError, StoreError
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record

WAITING_RECORDS = 10_000
WAITING_BYTES = 64 << 20
"""Bytes of bodies and properties."""
OnCommit = Callable[[int, Sequence[Record]], None]
"""Is told in the committing thread, before the callers are: the physical offset up to which the log
is durable, and the records that have become so, as they are stored."""

logger = logging.getLogger("reput")


@dataclass(slots=True)
class _Submission:
    """Records that are appended together, and the promise to their caller."""

    records: Sequence[Record]
    size: int
    future: Future[list[Record]]


class GroupCommit:
    """Appends and syncs in a thread of its own, while in a ``with`` block.

    It is the only user of its appender. At the end of the block what waits is still made durable.
    """

    def __init__(
        self,
        appender: LogAppender,
        on_commit: OnCommit = lambda *_: None,
        *,
        waiting_records: int = WAITING_RECORDS,
        waiting_bytes: int = WAITING_BYTES,
    ) -> None:
        """``appender`` is open. No more than ``waiting_records`` and ``waiting_bytes`` wait for the
        commit in progress."""
        self._appender = appender
        self._on_commit = on_commit
        self._limits = (waiting_records, waiting_bytes)
        self._changed = threading.Condition()
        self._waiting: list[_Submission] = []
        self._waiting_records = self._waiting_bytes = 0
        self._is_closed = True
        self._failure: BaseException | None = None
        self._durable_end = 0
        self._thread = threading.Thread(target=self._run, name="reput-group-commit", daemon=True)

    def __enter__(self) -> GroupCommit:
        """Make durable what an earlier process has left. Raises OutputError."""
        self._appender.sync()
        self._durable_end = self._appender.end_offset
        self._is_closed = False
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    @property
    def durable_end(self) -> int:
        """The physical offset up to which the log is durable."""
        return self._durable_end

    @property
    def failure(self) -> BaseException | None:
        """The error after which nothing is appended any more; None while all is well."""
        return self._failure

    def submit(self, records: Record | Sequence[Record]) -> Future[list[Record]]:
        """Promise the records as they are stored, once they are durable; several follow each other
        in the log, and are appended all or none.

        The future gets StoreError where they cannot be stored, and the error of a failed write,
        after which the disk may have them or not; its callbacks run in the committing thread.
        Raises BusyError where too much waits, and StoreError after a failed write or the end.
        """
        given = [records] if isinstance(records, Record) else list(records)
        size = sum(len(one.body) + len(one.properties) for one in given)
        submission = _Submission(given, size, Future())
        with self._changed:
            if self._failure is not None:
                raise StoreError(
                    f"nothing is written any more, because an earlier write failed: {self._failure}"
                )
            if self._is_closed:
                raise StoreError("nothing is written any more: the overlay is closed")
            records_then = self._waiting_records + len(given)
            bytes_then = self._waiting_bytes + size
            if self._waiting and (records_then > self._limits[0] or bytes_then > self._limits[1]):
                raise BusyError(
                    f"{self._waiting_records} records of {self._waiting_bytes} bytes wait to be "
                    "written, and no more are taken until they are"
                )
            self._waiting.append(submission)
            self._waiting_records, self._waiting_bytes = records_then, bytes_then
            self._changed.notify()
        return submission.future

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                group, self._waiting = self._waiting, []
                self._waiting_records = self._waiting_bytes = 0
            if not group:
                return
            try:
                appended = self._append(group)
                self._appender.sync()
            except BaseException as error:
                self._fail(group, error)
                return
            if appended:
                self._answer(appended)

    def _append(self, group: Sequence[_Submission]) -> list[tuple[_Submission, list[Record]]]:
        """Append what can be stored; answer the others."""
        appended = []
        for submission in group:
            if not submission.future.set_running_or_notify_cancel():
                continue
            try:
                stored = self._appender.append_all(submission.records)
            except OutputError:
                raise
            except StoreError as error:
                submission.future.set_exception(error)
            else:
                appended.append((submission, stored))
        return appended

    def _answer(self, appended: Sequence[tuple[_Submission, list[Record]]]) -> None:
        self._durable_end = self._appender.end_offset
        try:
            self._on_commit(self._durable_end, [one for _, stored in appended for one in stored])
        except Exception:
            # the records are durable all the same
            logger.exception("who is told of commits has failed")
        for submission, stored in appended:
            submission.future.set_result(stored)

    def _fail(self, group: Sequence[_Submission], error: BaseException) -> None:
        """Refuse everything from now on, and tell all who wait."""
        logger.error("nothing is written any more: %s", error)
        with self._changed:
            self._failure = error
            group, self._waiting = [*group, *self._waiting], []
        for submission in group:
            if not submission.future.done():
                submission.future.set_exception(error)
