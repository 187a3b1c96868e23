"""The parts of one batch, taken from the spool in the order of the log while tasks scan on.

A part counts if it begins exactly where the one before it ended: a walk of the log arrived there,
so that its begin is a record's. What no part covers is scanned here, in the end: a cut that a
forged record in a body has misled, a part for which the disk had no room, one whose task was lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from reput.store.runs.dispatch import DispatchBatch, ScannedRange
from reput.store.runs.packed import unpack
from reput.store.runs.scan import assemble
from reput.store.runs.spool import is_open, take_part

POLL_SECONDS = 0.004
UNITS_PER_QUEUE = 4096
"""Parts are committed together until their queues have got this many units on average, since each
commit syncs each of their files."""
COMMIT_BYTES = 2 << 30
"""A part that reaches this much of the log is its commit's last one, so that memory is bounded."""

logger = logging.getLogger("reput")


class Parts:
    """The parts of a batch. One thread takes them; the one in which Spark's job runs says when the
    job has ended."""

    def __init__(
        self, spool: Path, start: int, scan: Callable[[int, ScannedRange], DispatchBatch]
    ) -> None:
        """``scan`` returns what lies between an offset of the batch and the end of that file or
        batch, with the settings that the batch has."""
        self._spool = spool
        self._scan = scan
        self._ended = threading.Event()
        self._looking = threading.Lock()
        """Held during a look: parts of the next batch may come as soon as this one's end is known,
        and the first of them is no part of this one."""
        self._whole: ScannedRange | None = None
        self.position = start
        """End of what was taken."""

    def end(self, whole: ScannedRange | None) -> None:
        """Tell that no task of the batch runs any more, and the batch's range; None where the job
        has failed, so that nothing follows but what is there."""
        with self._looking:
            self._whole = whole
            self._ended.set()

    @property
    def are_whole(self) -> bool:
        """Whether the whole batch was taken."""
        return self._whole is not None and self.position >= self._whole.end

    @property
    def have_failed(self) -> bool:
        """Whether the batch's job has failed."""
        return self._ended.is_set() and self._whole is None

    def commits(self) -> Iterator[DispatchBatch]:
        """Yield the batch in pieces, each worth a commit of its own, or everything that is there
        while the one before was written."""
        while (first := self._next(wait=True)) is not None:
            parts, queues, messages = [first], _queues_of(first), first.message_count
            while parts[-1].end - first.start < COMMIT_BYTES:
                following = self._next(wait=messages < UNITS_PER_QUEUE * len(queues))
                if following is None:
                    break
                parts.append(following)
                queues |= _queues_of(following)
                messages += following.message_count
            yield joined(parts)

    def _next(self, *, wait: bool) -> DispatchBatch | None:
        """Return what follows ``position``; None if it is not there yet, or will never be."""
        while True:
            with self._looking:
                has_ended = self._ended.is_set()
                rows = None if self.are_whole else take_part(self._spool, self.position)
            part = None if rows is None else assemble(unpack(rows))
            if part is None and has_ended:
                part = self._scanned_here()
            if part is not None:
                self.position = part.end
            if part is not None or has_ended or not wait:
                return part
            self._ended.wait(POLL_SECONDS)

    def _scanned_here(self) -> DispatchBatch | None:
        if self._whole is None or self.are_whole or not is_open(self._spool):
            return None
        logger.warning(
            "a part of a batch is not in the spool, whose disk may be full; scanning it again: "
            "start=%d",
            self.position,
        )
        return self._scan(self.position, self._whole)


def joined(parts: Sequence[DispatchBatch]) -> DispatchBatch:
    """Return consecutive parts with the same settings as one."""
    return DispatchBatch(
        start=parts[0].start,
        end=parts[-1].end,
        runs=[run for part in parts for run in part.runs],
        bad=[bad for part in parts for bad in part.bad],
        message_count=sum(part.message_count for part in parts),
        last_record_offset=max(part.last_record_offset for part in parts),
        index_entries=[entries for part in parts for entries in part.index_entries],
        batch_topics=parts[0].batch_topics,
    )


def _queues_of(part: DispatchBatch) -> set[tuple[bytes, int]]:
    return {(run.topic, run.queue_id) for run in part.runs}
