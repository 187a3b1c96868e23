"""Turns options into queue offsets: starts, ends, limits, and checks that the messages still exist.

Each queue moves by itself, so a position maps queues to offsets, in the JSON of Spark's Kafka
source. Nothing here keeps state: Spark does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reput.sources.lossreport import LossReport
from reput.sources.options import EARLIEST, LATEST
from reput.sources.queueoptions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    ConsumeQueueOptions,
    Offsets,
)
from reput.store.errors import UsageError
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.view import QueueView

Queues = Mapping[QueueKey, QueueView]


def offsets_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return ``{"topic": {"0": 23}}``, always in the same order: Spark compares offsets as text."""
    by_topic: dict[str, dict[str, int]] = {}
    for key in sorted(offsets, key=lambda key: (key.topic, key.queue_id)):
        by_topic.setdefault(key.topic, {})[str(key.queue_id)] = offsets[key]
    return by_topic


def latest(queues: Queues) -> Offsets:
    """Return the end of each queue."""
    return {key: queue.max_offset for key, queue in queues.items()}


def resolve_starts(options: ConsumeQueueOptions, queues: Queues, default: str) -> Offsets:
    """Return where a query without a checkpoint begins in each queue, in the order of Spark's Kafka
    source. Raises UsageError for a time that no message of a queue has, and for queues that the
    JSON omits or that do not exist."""
    times = _times(options, "starting", queues)
    if times is not None:
        first_offsets = {key: queues[key].first_from_time(times[key]) for key in queues}
        late = [key for key, offset in first_offsets.items() if offset is None]
        if late and options["startingOffsetsByTimestampStrategy"] == "error":
            raise UsageError(
                f"no message of {named(late)} has a storeTimestamp of {times[late[0]]} or later; "
                "set startingOffsetsByTimestampStrategy to latest to begin at the end there"
            )
        return {
            key: queues[key].max_offset if offset is None else offset
            for key, offset in first_offsets.items()
        }
    return _resolved("startingOffsets", options["startingOffsets"] or default, queues)


def resolve_ends(options: ConsumeQueueOptions, queues: Queues) -> Offsets:
    """Return where a batch read ends in each queue, exclusive. Raises UsageError as
    ``resolve_starts``."""
    times = _times(options, "ending", queues)
    if times is not None:
        first_offsets = {key: queues[key].first_from_time(times[key]) for key in queues}
        return {
            key: queues[key].max_offset if offset is None else offset
            for key, offset in first_offsets.items()
        }
    return _resolved("endingOffsets", options["endingOffsets"] or LATEST, queues)


def check_order(starts: Offsets, ends: Offsets, queues: Queues) -> None:
    """Reject ends before their starts, if those are in the queues. Raises UsageError."""
    for key, end in ends.items():
        if end < starts[key] <= queues[key].max_offset:
            raise UsageError(
                f"the read of {named([key])} would end at {end}, before its start at {starts[key]}"
            )


def _times(options: ConsumeQueueOptions, word: str, queues: Queues) -> Offsets | None:
    timestamp = options[f"{word}Timestamp"]
    if timestamp is not None:
        return dict.fromkeys(queues, timestamp)
    key = f"{word}OffsetsByTimestamp"
    return None if options[key] is None else _complete(key, options[key], queues)


def _resolved(key: str, value: str | Offsets, queues: Queues) -> Offsets:
    if value == EARLIEST:
        return {key: queue.min_offset for key, queue in queues.items()}
    if value == LATEST or isinstance(value, str):
        return latest(queues)
    offset_of: dict[int, Callable[[QueueView], int]] = {
        EARLIEST_OFFSET: lambda queue: queue.min_offset,
        LATEST_OFFSET: lambda queue: queue.max_offset,
    }
    return {
        key: offset_of[offset](queues[key])
        if offset in offset_of
        else queues[key].unit_start(offset)
        for key, offset in _complete(key, value, queues).items()
    }


def _complete(key: str, given: Offsets, queues: Queues) -> Offsets:
    """Check, as Kafka does, that all queues are named and no others."""
    missing, strange = queues.keys() - given.keys(), given.keys() - queues.keys()
    if missing:
        raise UsageError(f"option {key} does not name {named(missing)}; name every queue")
    if strange:
        raise UsageError(f"option {key} names {named(strange)}, which is not among the queues")
    return given


def named(keys: Any) -> str:
    """Return the first of some queues by name, and how many there are besides."""
    first, *others = sorted(f"topic {key.topic} queue {key.queue_id}" for key in keys)
    return f"{first} and {len(others)} more" if others else first


def limited_ends(starts: Offsets, ends: Offsets, most: int) -> Offsets:
    """Return where one micro-batch of up to ``most`` messages ends: each queue gets a share in
    proportion to its lag, and at least one message, as in Spark's Kafka source."""
    waiting = {key: end - starts[key] for key, end in ends.items()}
    total = sum(waiting.values())
    if total <= most:
        return ends
    return {
        key: ends[key] - waiting[key] + min(waiting[key], max(1, most * waiting[key] // total))
        for key in ends
    }


class LossCheck(LossReport):
    """Holds the positions of a read against the queues: are their messages still there?"""

    def starts(self, starts: Offsets, queues: Queues) -> Offsets:
        """Return where each of ``queues`` is read from: ``starts`` without lost messages; new
        queues start at their beginning."""
        start_offsets: Offsets = {}
        for key in starts.keys() - queues.keys():
            self.report("QUEUE_DELETED", f"{named([key])} no longer exists")
        for key, queue in queues.items():
            start = starts.get(key)
            if start is None:
                start = queue.min_offset
            elif start > (end := queue.max_offset):
                self.report(
                    "START_ABOVE_MAX",
                    f"{named([key])} was requested from {start}, but ends at {end}",
                )
            elif queue.is_gone(start):
                first = queue.min_offset
                self.report(
                    "START_BELOW_MIN",
                    f"{named([key])} was requested from {start}, but begins at {first}",
                )
                start = first
            start_offsets[key] = start
        return start_offsets

    def ends(self, ends: Offsets, queues: Queues) -> Offsets:
        """Return ``ends`` without queues and messages that no longer exist."""
        end_offsets: Offsets = {}
        for key, end in ends.items():
            if key not in queues:
                self.report("QUEUE_DELETED", f"{named([key])} no longer exists")
                continue
            end_offsets[key] = min(end, queues[key].max_offset)
            if end_offsets[key] < end:
                self.report(
                    "END_ABOVE_MAX",
                    f"{named([key])} was requested up to {end}, but ends at {end_offsets[key]}",
                )
        return end_offsets
