"""The consumer group of a query over queues: where the query begins, and its committed offsets.

A query reads all queues for its group, so it has the group to itself: no member of
``readers.consumer`` and no other query may consume for it meanwhile. Its offsets follow Spark's
checkpoint, which decides where a restarted query continues.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

from reput.sources.queueoffsets import Queues, resolve_starts
from reput.sources.queueoptions import ConsumeQueueOptions, Offsets
from reput.store.state.consumeroffset import Offsets as Committed
from reput.store.state.consumeroffset import (
    SharedConsumerOffsetFile,
    TopicGroup,
    first_position,
    read_committed_of,
)
from reput.store.state.groupmembers import lock_group_alone

logger = logging.getLogger("reput")

PATIENCE_SECONDS = 5.0
"""A query that was just stopped may have the group for a moment longer."""


class QueryGroup:
    """The group of one query, in its planner.

    Methods raise OutputError, UsageError for offsets that cannot be used, and OwnershipError if
    others consume for the group.
    """

    def __init__(self, options: ConsumeQueueOptions) -> None:
        self._options = options
        self._store = Path(options["path"])
        self._output = Path(options["output"] or options["path"])
        self._resources = ExitStack()
        self._file: SharedConsumerOffsetFile | None = None

    def begin(self, queues: Queues, default: str) -> Offsets:
        """Return where a query without a checkpoint begins, and commit it at once, since a repeated
        batch 0 asks again and must get the same answer."""

        def plan(committed: Committed) -> Committed:
            starts = group_starts(self._options, committed, queues, default)
            return self._changes(committed, starts, only_new=True)

        committed = self._opened().update(plan)
        return group_starts(self._options, committed, queues, default)

    def commit(self, offsets: Offsets) -> None:
        """Commit the offsets at which the query's next batch begins."""
        self._opened().update(lambda committed: self._changes(committed, offsets, only_new=False))

    def close(self) -> None:
        """Release the group, so that others may consume for it."""
        self._file = None
        self._resources.close()

    def _opened(self) -> SharedConsumerOffsetFile:
        if self._file is None:
            group = self._options["group"]
            with ExitStack() as resources:
                file = resources.enter_context(SharedConsumerOffsetFile(self._output, self._store))
                resources.enter_context(lock_group_alone(self._output, group, PATIENCE_SECONDS))
                self._resources = resources.pop_all()
            self._file = file
        return self._file

    def _changes(self, committed: Committed, offsets: Offsets, *, only_new: bool) -> Committed:
        commits: Committed = {}
        for queue, offset in offsets.items():
            key = TopicGroup(queue.topic, self._options["group"])
            before = committed.get(key, {}).get(queue.queue_id)
            if before == offset or (only_new and before is not None):
                continue
            if before is not None and before > offset:
                logger.warning(
                    "the query sets group %s back from %d to %d in queue %d of topic %s, where its "
                    "checkpoint is", key.group, before, offset, queue.queue_id, queue.topic,
                )  # fmt: skip
            commits.setdefault(key, {})[queue.queue_id] = offset
        return commits


def committed_of(options: ConsumeQueueOptions) -> Committed:
    """Return the offsets that groups have committed, for a batch read, which commits nothing
    itself.

    Raises UsageError.
    """
    store, output = Path(options["path"]), options["output"]
    return read_committed_of(store if output is None else Path(output), store)


def group_starts(
    options: ConsumeQueueOptions, committed: Committed, queues: Queues, default: str
) -> Offsets:
    """Return where the group continues in each queue; ``startingOffsets``, or ``default``, decides
    for topics that are new to it."""
    asked = resolve_starts(options, queues, default)
    starts: Offsets = {}
    for key, queue in queues.items():
        group_offsets = committed.get(TopicGroup(key.topic, options["group"]), {})
        if key.queue_id in group_offsets:
            starts[key] = queue.unit_start(group_offsets[key.queue_id])
        else:
            starts[key] = first_position(group_offsets, asked[key], queue.min_offset)
    return starts
