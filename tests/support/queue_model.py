"""RocketMQ's ``ConsumeQueue.putMessagePositionInfo``, one message at a time (formats.md §5, a-f).

What the writer's files are compared with, byte for byte. ``blank_gaps`` is a rule that is
not RocketMQ's: gaps are filled with pre-blank units, so that positions stay queue offsets. The
other is what a broker does by removing queues: one of which the log has lost every message begins
anew with a message that does not go on where it ended. If the log then loses that message, too,
nothing brings the earlier units back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.wire import PRE_BLANK, UNIT, file_name


@dataclass
class ModelQueue:
    """One queue's files in memory."""

    file_size: int
    blank_gaps: bool = False
    files: dict[int, bytearray] = field(default_factory=dict)
    wrote: int = 0
    """Bytes written in the last file."""
    max_physic_offset: int = -1
    last_queue_offset: int = -1
    dropped: list[int] = field(default_factory=list)
    """Physical offsets of messages that RocketMQ drops (step d)."""
    gaps: list[int] = field(default_factory=list)
    """Physical offsets of messages before which queue offsets jump."""
    emptied_at: int = 0
    """Physical offset before which all units were removed, for a message that the log has lost."""
    begun_at: int = -1
    """Physical offset of the last message with which the queue began anew."""

    def put(
        self, offset: int, size: int, tags_code: int, queue_offset: int, log_min: int = 0
    ) -> None:
        """One message: duplicate, dropped, or appended; the log begins at ``log_min``."""
        expect = queue_offset * 20
        if offset + size <= self.max_physic_offset:
            return
        if self.max_physic_offset <= self.emptied_at <= offset:
            self.files, self.wrote = {}, 0
        if self.files and self.max_physic_offset <= log_min and expect != self._current():
            self.files, self.wrote = {}, 0
            self.begun_at = offset
        if not self.files:
            self.files[expect - expect % self.file_size] = bytearray(self.file_size)
            for _ in range(expect % self.file_size // 20):
                self._append(PRE_BLANK)
        elif queue_offset != 0:
            if expect < self._current():
                self.dropped.append(offset)
                return
            if expect > self._current() and queue_offset != self.last_queue_offset + 1:
                self.gaps.append(offset)
            while self.blank_gaps and expect > self._current():
                self._append(PRE_BLANK)
        self._append(UNIT.pack(offset, size, tags_code))
        self.max_physic_offset = offset + size
        self.last_queue_offset = queue_offset

    def _current(self) -> int:
        return max(self.files) + self.wrote

    def _append(self, unit: bytes) -> None:
        if self.wrote == self.file_size:
            self.files[max(self.files) + self.file_size] = bytearray(self.file_size)
            self.wrote = 0
        self.files[max(self.files)][self.wrote : self.wrote + 20] = unit
        self.wrote += 20


class ModelQueues:
    """All queues of an output."""

    def __init__(
        self,
        file_size: int,
        *,
        blank_gaps: bool = False,
        emptied: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """``emptied`` has the ``emptied_at`` of queues."""
        self._file_size = file_size
        self._blank_gaps = blank_gaps
        self._emptied = emptied or {}
        self.queues: dict[tuple[str, int], ModelQueue] = {}

    def put(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        size: int,
        tags_code: int,
        queue_offset: int,
        log_min: int = 0,
    ) -> None:
        """One message of the log, in log order; the log begins at ``log_min``."""
        key = topic, queue_id
        if key not in self.queues:
            emptied_at = self._emptied.get(key, 0)
            self.queues[key] = ModelQueue(self._file_size, self._blank_gaps, emptied_at=emptied_at)
        self.queues[key].put(offset, size, tags_code, queue_offset, log_min)

    def tree(self) -> dict[str, bytes]:
        """Relative file names and contents below ``consumequeue``."""
        return {
            f"{topic}/{queue_id}/{file_name(start)}": bytes(data)
            for (topic, queue_id), queue in self.queues.items()
            for start, data in queue.files.items()
        }

    def dropped(self) -> list[int]:
        """Physical offsets of all messages without a unit."""
        return sorted(offset for queue in self.queues.values() for offset in queue.dropped)

    def gaps(self) -> list[int]:
        """Physical offsets of all messages after a jump."""
        return sorted(offset for queue in self.queues.values() for offset in queue.gaps)
