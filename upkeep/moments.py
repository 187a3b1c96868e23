"""Compares two moments of one output: which queues grew between them, and by which messages.

Whoever asks what a batch or an incident brought has two places in the log, and no copy of the
queues as they were: everything follows from the queues as they are now.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from reput.store.config import StoreSettings
from reput.store.errors import UsageError
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.log.places import AsOf
from reput.store.queue.kinds import list_all_queues
from reput.store.queue.view import open_view
from reput.store.state.output import end_of_output


@dataclass(frozen=True, slots=True)
class QueueGrowth:
    """One queue with messages between two moments, [``from_offset``, ``to_offset``)."""

    topic: str
    queue_id: int
    from_offset: int
    """Queue offset after the last message of the earlier moment."""
    to_offset: int


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of an output between two moments; physical offsets, ends exclusive."""

    from_end: int
    to_end: int
    queues: tuple[QueueGrowth, ...]
    """By topic and queue; those that did not grow are left out."""


def compare_moments(
    settings: StoreSettings, output: Path, since: AsOf, until: AsOf | None
) -> Growth:
    """Return what an output has of the messages between two moments; ``until`` is now if None.

    Only reads. Raises UsageError for a moment beyond what is dispatched, or moments in the wrong
    order, and StoreError for files that contradict the settings.
    """
    with closing(settings.open_log()) as log:
        watermark = end_of_output(output, settings.root, log)
        now = LogTail(log).settled() if watermark is None else watermark.end_offset
        start = since.end(log, now)
        end = now if until is None else until.end(log, now)
        if start > end:
            raise UsageError(f"the moments are in the wrong order: {start} is beyond {end}")
        return Growth(start, end, tuple(_grown(settings, output, log, start, end)))


def _grown(
    settings: StoreSettings, output: Path, log: CommitLog, start: int, end: int
) -> Iterator[QueueGrowth]:
    for key, kind in list_all_queues(output):
        view = open_view(output, key, settings, log, kind)
        view.follow(start)
        first = view.max_offset
        view.follow(end)
        if view.max_offset > first:
            yield QueueGrowth(key.topic, key.queue_id, first, view.max_offset)
