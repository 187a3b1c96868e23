"""Where the messages of a run belong in a consume queue, as a function without files: the rules of
RocketMQ's ``ConsumeQueue.putMessagePositionInfo`` (formats.md §5).

From the end of a queue and the messages that follow it come steps: messages that have their units
already, units to write, messages that get none, and a queue that begins anew. The writer applies
them, and ``upkeep.verify`` compares what they say with the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.store.config import OnQueueGap
from reput.store.errors import QueueGapError
from reput.store.names import escaped
from reput.store.queue.consumequeue import CQ_STORE_UNIT_SIZE, PRE_BLANK, UNIT_DTYPE
from reput.store.runs.dispatch import Run
from reput.store.state.ledger import QUEUE_OFFSET_GAP, QUEUE_OFFSET_SEEN_BEFORE, LedgerEntry

MAX_BLANK_UNITS = 1 << 24
LONG_RUN_UNITS = 1 << 12
MAX_QUEUE_OFFSET = ((1 << 63) - 1) // CQ_STORE_UNIT_SIZE - (1 << 32)
"""Positions stay below 2^63 bytes, a file's length included."""


@dataclass(slots=True)
class QueueEnd:
    """The end of a queue, on which the next message's place depends.

    Like the steps and the runs, it is not frozen, because one is made for each queue of each step,
    and that would take three times as long.
    """

    position: int = 0
    """Byte after the last unit."""
    max_physic_offset: int = -1
    """End of the last message with a unit; -1 without one: the queue begins anywhere."""
    next_queue_offset: int | None = None
    """Queue offset after that of the last message with a unit; None if not known yet."""


@dataclass(frozen=True, slots=True)
class PlacingRules:
    """Settings of an output and the state of the log, on which a place depends as well."""

    file_size: int
    """Bytes of a queue file, a multiple of the unit size."""
    on_queue_gap: OnQueueGap = OnQueueGap.ROCKETMQ
    is_gone: Callable[[int], bool] = lambda _: False
    """Whether the log has lost all bytes before an offset."""


@dataclass(slots=True)
class Step:
    """Messages [first, last) of a run, and the queue's end after them."""

    run: Run
    first: int
    last: int
    after: QueueEnd

    @property
    def units(self) -> NDArray[np.void]:
        """UNIT_DTYPE[last - first]."""
        return self.run.units[self.first : self.last]

    def entries(self) -> Iterable[LedgerEntry]:
        """Lines for the ledger."""
        return ()


@dataclass(slots=True)
class Built(Step):
    """Messages that have their units already: offset + size <= maxPhysicOffset."""


@dataclass(slots=True)
class BegunAnew(Step):
    """No message: all units of the queue go, since the log has lost their messages."""


@dataclass(slots=True)
class Placed(Step):
    """Messages that get units, one after the other."""

    position: int
    """Byte of the first unit, or of the blank ones before it."""
    blanks: int
    gap: LedgerEntry | None
    """The jump of queue offsets before the first message."""

    def data(self, units: NDArray[np.void]) -> bytes | memoryview:
        """The bytes at the position; ``units`` are the step's, or those with ext addresses."""
        # a copy costs less than numpy's view of a record array as bytes, but of long ones
        data = units.tobytes() if len(units) < LONG_RUN_UNITS else units.view(np.uint8).data
        return PRE_BLANK.tobytes() * self.blanks + data if self.blanks else data

    def entries(self) -> Iterable[LedgerEntry]:
        """The jump."""
        return () if self.gap is None else (self.gap,)


@dataclass(slots=True)
class Dropped(Step):
    """Messages that get no unit."""

    reason: str

    def entries(self) -> Iterator[LedgerEntry]:
        """One for each message."""
        run = self.run
        topic = escaped(run.topic)
        for index in range(self.first, self.last):
            offset, size = int(run.units[index]["offset"]), int(run.units[index]["size"])
            yield LedgerEntry(
                offset, offset + size, self.reason, topic, run.queue_id, queue_offset_of(run, index)
            )


def place(
    end: QueueEnd,
    run: Run,
    first: int,
    rules: PlacingRules,
    read_next_queue_offset: Callable[[], int | None],
) -> Iterable[Step]:
    """Place the messages of a run from index ``first`` on after a queue's end; the steps cover
    them in order.

    Cases, in RocketMQ's order: a message that ends at or before maxPhysicOffset has its unit; an
    empty queue starts at the first queue offset; offset 0 is appended unchecked; a message whose
    position is taken is dropped; a jump leaves a gap. Where the log has lost every message of the
    queue, one that does not go on at its end begins it anew: a broker has removed such a queue
    (``ConsumeQueueStore.cleanExpired``). ``read_next_queue_offset`` returns ``next_queue_offset``
    of an end that does not have it. Raises QueueGapError for a gap that is not allowed.
    """
    if first == 0 and run.queue_offsets is None and _goes_on(run, end):
        # nearly every run of a live log, which has as many as messages
        return (_placed(run, 0, len(run), end.position, 0, None),)
    return _place_all(end, run, first, rules, read_next_queue_offset)


def _goes_on(run: Run, end: QueueEnd) -> bool:
    """Whether the first message of a run belongs right after a queue's last one."""
    return (
        0 < run.first_queue_offset <= MAX_QUEUE_OFFSET - len(run)
        and run.first_queue_offset * CQ_STORE_UNIT_SIZE == end.position
        and 0 <= end.max_physic_offset <= run.first_physical_offset
    )


def _place_all(
    end: QueueEnd,
    run: Run,
    first: int,
    rules: PlacingRules,
    read_next_queue_offset: Callable[[], int | None],
) -> Iterator[Step]:
    # the idempotence rule
    is_old = run.first_physical_offset < end.max_physic_offset
    built = _count_built(run.units, end.max_physic_offset) if is_old else 0
    if built > first:
        yield Built(run, first, built, end)
        first = built
    for low, high in _stretches(run, first):
        at = low
        while at < high:
            for step in _place_next(end, run, at, high, rules, read_next_queue_offset):
                yield step
                at, end = step.last, step.after


def _place_next(
    end: QueueEnd,
    run: Run,
    first: int,
    last: int,
    rules: PlacingRules,
    read_next_queue_offset: Callable[[], int | None],
) -> Iterator[Step]:
    """The first step, or two, of units [first, last), whose queue offsets increase by one."""
    queue_offset = queue_offset_of(run, first)
    if not 0 <= queue_offset <= MAX_QUEUE_OFFSET - (last - first):
        yield Dropped(run, first, first + 1, end, "queue_offset_out_of_range")
        return
    expected = queue_offset * CQ_STORE_UNIT_SIZE
    has_units = end.max_physic_offset >= 0
    if has_units and expected != end.position and rules.is_gone(end.max_physic_offset):
        end, has_units = QueueEnd(), False
        yield BegunAnew(run, first, first, end)
    position, blanks, gap = end.position, 0, None
    if not has_units:
        blanks = expected % rules.file_size // CQ_STORE_UNIT_SIZE
        position = expected - blanks * CQ_STORE_UNIT_SIZE
    elif queue_offset == 0:
        last = first + 1
    elif expected < position:
        last = min(last, first + (position - expected) // CQ_STORE_UNIT_SIZE)
        yield Dropped(run, first, last, end, QUEUE_OFFSET_SEEN_BEFORE)
        return
    elif expected > position:
        follows = end.next_queue_offset
        if queue_offset != (read_next_queue_offset() if follows is None else follows):
            blanks, gap = _gap(run, first, position // CQ_STORE_UNIT_SIZE, rules.on_queue_gap)
    yield _placed(run, first, last, position, blanks, gap)


def _placed(
    run: Run, first: int, last: int, position: int, blanks: int, gap: LedgerEntry | None
) -> Placed:
    offset, size, _ = run.units[last - 1].item()
    count = last - first
    after = QueueEnd(
        position + (blanks + count) * CQ_STORE_UNIT_SIZE,
        offset + size,
        queue_offset_of(run, first) + count,
    )
    return Placed(run, first, last, after, position, blanks, gap)


def _gap(run: Run, index: int, position: int, policy: OnQueueGap) -> tuple[int, LedgerEntry]:
    """The blank units to insert at a jump of queue offsets, and its entry; ``position`` is that of
    a unit."""
    queue_offset = queue_offset_of(run, index)
    missing = queue_offset - position
    offset, size = int(run.units[index]["offset"]), int(run.units[index]["size"])
    topic = escaped(run.topic)
    detail = f"queue offset {queue_offset} at position {position}"
    where = f"in topic {topic} queue {run.queue_id}: {detail}, physical offset {offset}"
    if policy is OnQueueGap.FAIL:
        raise QueueGapError(
            f"queue offsets jump {where}; set `on_queue_gap=` to rocketmq or blank to go on",
            physical_offset=offset,
        )
    if policy is OnQueueGap.BLANK and missing > MAX_BLANK_UNITS:
        raise QueueGapError(
            f"a gap of {missing} units is too large to blank out {where}; "
            "set `on_queue_gap=` to rocketmq",
            physical_offset=offset,
        )
    entry = LedgerEntry(
        offset, offset + size, QUEUE_OFFSET_GAP, topic, run.queue_id, queue_offset, detail
    )
    return missing if policy is OnQueueGap.BLANK else 0, entry


def unusable_reason(queue_id: int) -> str:
    """Why the messages of a queue that cannot exist get no unit."""
    return "queue_id" if queue_id < 0 else "topic_name"


def queue_offset_of(run: Run, index: int) -> int:
    """The queue offset of a message of a run."""
    if run.queue_offsets is None:
        return run.first_queue_offset + index
    return int(run.queue_offsets[index])


def _count_built(units: NDArray[np.void], max_physic_offset: int) -> int:
    """Count a run's first units that end at or before ``max_physic_offset``."""
    ends = units["offset"] + units["size"]
    return int(np.searchsorted(ends, max_physic_offset, side="right"))


def _stretches(run: Run, first: int) -> Iterator[tuple[int, int]]:
    """[first, last) pairs from unit ``first`` on, each with consecutive queue offsets."""
    if run.queue_offsets is None:
        if first < len(run):
            yield first, len(run)
        return
    breaks = np.flatnonzero(np.diff(run.queue_offsets[first:]) != 1) + first + 1
    bounds = [first, *(int(at) for at in breaks), len(run)]
    yield from ((low, high) for low, high in pairwise(bounds) if low < high)


def joined(runs: list[Run]) -> list[Run]:
    """Join a queue's short runs if their queue offsets are consecutive, for one write; a copy of
    long ones would take longer than their writes."""
    if len(runs) == 1 or sum(map(len, runs)) >= LONG_RUN_UNITS * len(runs):
        return runs
    for before, after in pairwise(runs):
        follows = before.first_queue_offset + len(before) == after.first_queue_offset
        if before.queue_offsets is not None or after.queue_offsets is not None or not follows:
            return runs
        if _bit_map_size(before) != _bit_map_size(after):
            return runs
    # joined as bytes, because numpy's concatenate would convert the byte order
    units = np.frombuffer(b"".join([run.units.tobytes() for run in runs]), UNIT_DTYPE)
    return [
        replace(
            runs[0],
            units=units,
            last_store_timestamp=runs[-1].last_store_timestamp,
            details=_stacked([run.details for run in runs]),
            bit_maps=_stacked([run.bit_maps for run in runs]),
        )
    ]


def _bit_map_size(run: Run) -> int:
    return 0 if run.bit_maps is None else run.bit_maps.shape[1]


def _stacked(arrays: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    given = [array for array in arrays if array is not None]
    return np.concatenate(given) if len(given) == len(arrays) else None
