"""The queues that a dispatcher or a broker has built, followed as they grow.

Queues appear and grow while a stream runs, and a query looks at all of them before each batch,
which must cost little while nothing changes. Units beyond a dispatcher's visible end are never
shown.
"""

from __future__ import annotations

import time
from pathlib import Path

from reput.sources.selection import QueueSelection
from reput.store.config import StoreSettings
from reput.store.errors import UsageError
from reput.store.files import STATE_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.log.places import AsOf
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.kinds import QueueKind, list_all_queues
from reput.store.queue.view import QueueView, open_view
from reput.store.state.visible import EndReader
from reput.store.state.watermark import Watermark

POLL_SHARE = 0.1
"""Share of its time that an idle query spends on finding the ends of queues without a watermark."""


class BuiltQueues:
    """The queues of an output that a selection takes, followed as they grow.

    Only units up to a dispatcher's visible end count. Queues that a broker built have no watermark:
    their own ends count.
    """

    def __init__(
        self,
        output: Path,
        settings: StoreSettings,
        log: CommitLog,
        selection: QueueSelection,
        as_of: AsOf | None = None,
    ) -> None:
        """``as_of`` bounds every refresh of ``found``."""
        self._output, self._settings, self._log = output, settings, log
        self._selection, self._as_of = selection, as_of
        self._opened: dict[QueueKey, QueueView] = {}
        self.views: dict[QueueKey, QueueView] = {}
        """The queues that hold a unit, sorted, as they were last seen."""
        self.refreshes = 0
        """Number of refreshes; ``found`` stays as it is between two of them."""
        self._end_reader = EndReader(output / STATE_DIRECTORY)
        self._seen: Watermark | None = None
        self._not_before = 0.0

    @property
    def writer(self) -> tuple[str, int] | None:
        """The watermark's store id, which queues that are built anew change, and epoch, which
        another dispatcher and a cut change; None without a watermark."""
        return None if self._seen is None else (self._seen.store_id, self._seen.epoch)

    def poll(self) -> None:
        """Call ``refresh`` if the visible end moved, or without one from time to time, so that
        idling costs little."""
        dispatched = self._end_reader.read()
        if dispatched == self._seen and (dispatched or time.monotonic() < self._not_before):
            return
        self.refresh()

    def refresh(self) -> dict[QueueKey, QueueView]:
        """Update ``found`` and return it.

        Raises QueueFileError for files of another size, UsageError for a queue of both kinds or a
        moment beyond the watermark.
        """
        begun = time.monotonic()
        dispatched = self._end_reader.read()
        end_offset = None if dispatched is None else dispatched.end_offset
        if self._as_of is not None:
            end = LogTail(self._log).settled() if end_offset is None else end_offset
            end_offset = self._as_of.end(self._log, end)
        opened = {}
        for key, kind in self._listed().items():
            queue = self._opened.get(key)
            if queue is None or queue.kind is not kind:
                queue = self.open(key, kind)
            queue.follow(end_offset)
            opened[key] = queue
        self._opened, self._seen = opened, dispatched
        self.refreshes += 1
        # a directory is created before its first unit, which may have any queue offset
        self.views = {
            key: queue for key, queue in opened.items() if queue.end_unit > queue.first_unit
        }
        now = time.monotonic()
        self._not_before = now + (now - begun) / POLL_SHARE
        return self.views

    def open(self, key: QueueKey, kind: QueueKind) -> QueueView:
        """Open one queue without looking for its end. Raises QueueFileError."""
        return open_view(self._output, key, self._settings, self._log, kind, whole=True)

    def _listed(self) -> dict[QueueKey, QueueKind]:
        """Return the selected queues, sorted, with their kinds."""
        kinds: dict[QueueKey, QueueKind] = {}
        for key, kind in list_all_queues(self._output):
            if not self._selection.takes(key):
                continue
            if key in kinds:
                roots = [str(self._output / each) for each in QueueKind]
                raise UsageError(
                    f"topic {key.topic} has queues of both kinds, in {' and '.join(roots)}; keep "
                    "the one that config/topics.json declares"
                )
            kinds[key] = kind
        return kinds
