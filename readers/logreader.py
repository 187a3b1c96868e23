"""A store's log as its readers see it: messages by physical offset, up to where it may be read.

Source: RocketMQ 5.3.3 ``DefaultMessageStore.lookMessageByOffset``; formats.md §10.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from reput.readers.getmessage import LogView
from reput.readers.messages import Message, message_place
from reput.store.config import StoreSettings
from reput.store.log import record
from reput.store.log.cursor import BadRange, Window, bad_range
from reput.store.log.losses import Losses, loss_error
from reput.store.log.record import Record
from reput.store.log.status import Outcome, Status
from reput.store.queue.view import UnitColumns

if TYPE_CHECKING:
    import pyarrow as pa


class LogReader:
    """The log up to the end of ``view``, which its owner replaces when there is more to read."""

    def __init__(
        self,
        view: LogView,
        settings: StoreSettings,
        max_body_bytes: int,
        fail_on_data_loss: bool,
    ) -> None:
        self.view = view
        self.max_body_bytes = max_body_bytes
        """Bytes up to which bodies are inflated."""
        self.losses = Losses()
        """Parts of the log without the records to which queues and index point."""
        self._delay_levels_ms = settings.message_delay_levels_ms
        self._fail = fail_on_data_loss
        self._noted = BadRange(0, 0, Status.OK)
        """The range that was added last, which many units may lead to."""

    @property
    def min_offset(self) -> int:
        """Min offset of the log."""
        return self.view.log.min_offset

    @property
    def end(self) -> int:
        """Physical offset up to which the log may be read, exclusive."""
        return self.view.end

    def earliest_time(self) -> int:
        """Store time of the log's first record; -1 without one."""
        return self.view.store_time(self.min_offset, record.MIN_RECORD_LENGTH)

    def message_at(self, physical_offset: int) -> Message | None:
        """The message whose record begins at ``physical_offset``; None if none does."""
        log = self.view.log
        if not log.min_offset <= physical_offset < self.view.end:
            return None
        result = log.record_starting_at(physical_offset)
        if not isinstance(result, Record) or physical_offset + result.total_size > self.view.end:
            return None
        return Message.of(result, self.max_body_bytes)

    def note_loss(self, physical_offset: int) -> int:
        """Add the lost or damaged range to which a unit or an entry points to ``losses``; return
        its end.

        Raises CommitLogDataLossError or CorruptRecordError with ``fail_on_data_loss``.
        """
        if self._noted.start <= physical_offset < self._noted.end:
            return self._noted.end
        log = self.view.log
        gap, result = log.segments.gap_at(physical_offset), log.record_starting_at(physical_offset)
        if gap is not None:
            bad = BadRange(*gap, Status.SEGMENT_DELETED)
        elif isinstance(result, Outcome):
            # its own length may be damaged as well
            bad = bad_range(log, Window(log), physical_offset, result.status)
            bad = replace(bad, end=max(min(bad.end, self.view.end), physical_offset))
        else:
            return physical_offset
        if self._fail:
            raise loss_error(log, bad)
        self.losses.add(bad)
        self._noted = bad
        return bad.end

    def stored_record(self, message: Message) -> bytes:
        """The bytes of a message's record in the log."""
        return self.view.log.read(message.physical_offset, message.size)

    def message_by_id(self, offset_message_id: str) -> Message | None:
        """The message with the id that a broker assigned; None for another broker's id. Raises
        UsageError like ``message_place``."""
        host, physical_offset = message_place(offset_message_id)
        message = self.message_at(physical_offset)
        return message if message and message.record.store_host == host else None

    def rows_at(
        self, units: UnitColumns, schema: pa.Schema, max_inflated_bytes: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the log at the given units (``store.rows.rows.rows_at``)."""
        # numba takes half a second to import, which readers of single messages avoid
        from reput.store.rows.rows import rows_at  # noqa: PLC0415

        return rows_at(
            self.view.log, units.physical_offsets, units.sizes, schema,
            delay_levels_ms=self._delay_levels_ms,
            max_inflated_bytes=max_inflated_bytes,
        )  # fmt: skip

    def is_dispatched_whole(self) -> bool:
        """Whether the log holds nothing after the readable part, so that a queue's end is final."""
        log, end = self.view.log, self.view.end
        head = log.read(end, record.SIZE_MAGIC_LENGTH)
        if head[4:] == record.BLANK_MAGIC.to_bytes(4, "big"):
            segment = log.segments.after(end)
            head = log.read(segment.start, record.SIZE_MAGIC_LENGTH) if segment else b""
        return not any(head)
