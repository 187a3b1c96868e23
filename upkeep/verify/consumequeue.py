"""Compares consume queues together with the ext units that they point to, because neither can be
cut without the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.sinks.index.consumequeueext import QueueExt
from reput.store.config import OnQueueGap, StoreSettings
from reput.store.files import CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_EXT_DIRECTORY
from reput.store.queue.consumequeue import (
    CQ_STORE_UNIT_SIZE,
    PRE_BLANK,
    UNIT_DTYPE,
    ConsumeQueueFiles,
    QueueKey,
    list_queues,
)
from reput.store.runs.dispatch import Run
from reput.store.runs.placing import (
    Dropped,
    Placed,
    PlacingRules,
    QueueEnd,
    joined,
    place,
    unusable_reason,
)
from reput.store.state.ledger import Ledger
from reput.upkeep.verify.comparedqueue import ComparedQueue
from reput.upkeep.verify.consumequeueext import ComparedExt
from reput.upkeep.verify.difference import Difference, LogRange
from reput.upkeep.verify.queues import QueueVerifier


class ComparedConsumeQueue(ComparedQueue, ConsumeQueueFiles):
    """The files of one queue as they are."""

    writable = ConsumeQueueFiles
    directory_name = CONSUME_QUEUE_DIRECTORY

    def __init__(
        self,
        directory: Path,
        file_size: int,
        log: LogRange,
        first: Run | None,
        ext: ComparedExt | None,
        *,
        blank_gaps: bool,
    ) -> None:
        """``first`` holds the queue's first messages in the log; None without one. With
        ``blank_gaps``, blank units may also follow a message, not only precede the first one."""
        self.ext = ext
        self._blank_gaps = blank_gaps
        self._first_queue_offset = 0 if first is None else first.first_queue_offset
        super().__init__(directory, file_size, log, None if first is None else first.units)
        self.queue_end = QueueEnd(self.anchor or 0, log.start if self.anchor else -1)
        """Where the next message belongs."""

    def _go_on(self, position: int, physical_offset: int, size: int) -> None:
        self.queue_end = QueueEnd(position, physical_offset + size)

    def compare_units(self, step: Placed) -> None:
        """Compare units, and the ext units that they lead to."""
        if self.ext is not None:
            self.ext.expect(step.run, step.first, step.last)
        self.compare_at(step.position, step.data(step.units))

    def _first_index(self, voted: int) -> int:
        """Return the index of the first message: its queue offset, or a lower one where gaps were
        closed up; only offset 0 is placed anywhere."""
        offset = self._first_queue_offset
        return min(voted, offset) if offset > 0 else voted

    @property
    def differences(self) -> list[Difference]:
        """Return all differences, the ext's among them: for a lost ext unit its queue unit must be
        written anew."""
        return [*super().differences, *(self.ext.differences if self.ext else ())]

    def _are_wrong(
        self, position: int, expected: NDArray[np.void], actual: NDArray[np.void]
    ) -> NDArray[np.bool_]:
        """Compare units; the address of an ext unit stands for its tagsCode."""
        if self.ext is None:
            return super()._are_wrong(position, expected, actual)
        if position and self._begin is None:
            before = self.bytes_at(position - CQ_STORE_UNIT_SIZE, CQ_STORE_UNIT_SIZE)
            self.ext.begin_after(int(before.view(UNIT_DTYPE)[0]["tags_code"]))
        wrong: NDArray[np.bool_] = expected["offset"] != actual["offset"]
        wrong |= expected["size"] != actual["size"]
        blanks = int(np.count_nonzero(np.logical_and.accumulate(expected == PRE_BLANK)))
        wrong[:blanks] |= expected["tags_code"][:blanks] != actual["tags_code"][:blanks]
        codes = actual["tags_code"][blanks:].astype(np.int64)
        self.ext.check_lost(actual["size"][blanks:] == 0, position // CQ_STORE_UNIT_SIZE + blanks)
        wrong[blanks:] |= ~self.ext.resolve(codes, position // CQ_STORE_UNIT_SIZE + blanks)
        return wrong

    def _are_blank(self, units: NDArray[np.void], *, is_first: bool) -> NDArray[np.bool_]:
        is_blank: NDArray[np.bool_] = units == PRE_BLANK
        if not self._blank_gaps:
            is_blank = np.logical_and.accumulate(is_blank) & is_first
        return is_blank

    def _are_ahead(self, start: int, units: NDArray[np.void]) -> NDArray[np.bool_]:
        """Blanks are written together with the unit that follows them."""
        is_blank = units == PRE_BLANK
        real = np.flatnonzero(~is_blank)
        is_live = np.append(super()._are_ahead(start, units)[real], False)
        if is_blank[-1:].any():
            is_live[-1] = self._begins_live(start + self.file_size)
        return is_live[np.searchsorted(real, np.arange(len(units)))]

    def _begins_live(self, start: int) -> bool:
        """Return whether the first unit from a file on that is no blank is of a message that is not
        compared."""
        while start in self.sizes:
            units = self._units(start)
            real = units[units != PRE_BLANK]
            if len(real):
                return bool(super()._are_ahead(start, real[:1])[0])
            start += self.file_size
        return False

    def finish(self) -> None:
        """Finish the queue and its ext."""
        super().finish()
        if self.ext is None:
            return
        if self._is_emptied:
            self.ext.begin_empty()
        elif self._begin is None and (self._log.start or self._log.damaged):
            self.ext.check_gone(self._last_tags_code())
        self.ext.finish()

    def _has_traces(self) -> bool:
        return super()._has_traces() or bool(self.ext and self.ext.sizes)

    def _last_tags_code(self) -> int:
        """Return the tagsCode of the last unit of a queue that has no message in the log; 0 without
        one."""
        end = self._expired_end()
        if not end:
            return 0
        last = self.bytes_at(end - CQ_STORE_UNIT_SIZE, CQ_STORE_UNIT_SIZE)
        return int(last.view(UNIT_DTYPE)[0]["tags_code"])

    def remove_strays(self, root: Path) -> None:
        """Remove strays of the queue and its ext."""
        super().remove_strays(root)
        if self.ext is not None:
            self.ext.remove_strays(root)


class ConsumeQueueVerifier(QueueVerifier[ComparedConsumeQueue]):
    """Compares every consume queue of an output, and every ext."""

    is_of_batch_topics = False

    def __init__(
        self,
        output: Path,
        settings: StoreSettings,
        log: LogRange,
        ledger: Ledger,
        queue_offset_at: Callable[[QueueKey, int, int], int | None],
    ) -> None:
        """``queue_offset_at`` reads the offset in a queue of the record at (physical offset, size).
        Runs need details where there is an ext. Raises QueueFileError where no file has the
        settings' size, which is not damage."""
        file_size = settings.mapped_file_size_consume_queue
        super().__init__(output, settings, log, ledger, ComparedConsumeQueue, file_size)
        # no queue begins anew: what the log has lost is not compared
        self._rules = PlacingRules(file_size, settings.on_queue_gap)
        self._queue_offset_at = queue_offset_at
        ext = output / CONSUME_QUEUE_EXT_DIRECTORY
        self._has_ext = settings.enable_consume_queue_ext or ext.is_dir()

    def _open(self, directory: Path, first: Run | None) -> ComparedConsumeQueue:
        key = QueueKey(directory.parent.name, int(directory.name))
        return ComparedConsumeQueue(
            directory, self._file_size, self._log, first,
            ComparedExt(self._output, key, self._settings, self._log) if self._has_ext else None,
            blank_gaps=self._settings.on_queue_gap is OnQueueGap.BLANK,
        )  # fmt: skip

    def _compare_queue(self, queue: ComparedConsumeQueue | None, runs: list[Run]) -> None:
        for run in joined(runs):
            if queue is None:
                reason = unusable_reason(run.queue_id)
                self._list(Dropped(run, 0, len(run), QueueEnd(), reason).entries())
                continue
            next_queue_offset = partial(self._next_queue_offset, queue)
            for step in place(queue.queue_end, run, 0, self._rules, next_queue_offset):
                if isinstance(step, Placed):
                    queue.compare_units(step)
                self._list(step.entries())
                queue.queue_end = step.after

    def _next_queue_offset(self, queue: ComparedConsumeQueue) -> int | None:
        """Queue offset after that of the last message before the log's first byte."""
        last = queue.last_gone(queue.queue_end.position)
        queue_offset = self._queue_offset_at(queue.key, *last) if last else None
        return None if queue_offset is None else queue_offset + 1

    def _keys(self) -> Iterable[QueueKey]:
        yield from list_queues(self._root)
        if self._has_ext:
            yield from list_queues(self._output / CONSUME_QUEUE_EXT_DIRECTORY)

    def cut(self) -> None:
        """Cut queues at their first wrong units, and their exts after the last unit that they still
        point to."""
        super().cut()
        for files in self._by_key():
            has_lost_units = any(difference.is_lost for difference in files.differences)
            if self._has_ext and has_lost_units:
                queue = ConsumeQueueFiles(files.directory, self._file_size)
                size = self._settings.mapped_file_size_consume_queue_ext
                QueueExt(self._output, files.key, size, queue, queue.find_end(None))
