"""Where the messages of a batch topic belong in a batch queue, as a function without files: the
rules of RocketMQ's ``BatchConsumeQueue.putMessagePositionInfo`` (formats.md §7).

Units stand one after the other; no position follows from a queue offset. The steps are applied as
those of ``store.runs.placing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reput.store.names import escaped
from reput.store.queue.batchconsumequeue import BATCH_UNIT_DTYPE, INVALID_POS
from reput.store.runs.dispatch import Run
from reput.store.state.ledger import LedgerEntry


@dataclass(frozen=True, slots=True)
class BatchQueueEnd:
    """The end of a batch queue, on which the next message's place depends."""

    position: int = 0
    """Byte after the last unit."""
    max_msg_phy_offset: int = -1
    """Physical offset of the last message with a unit; -1 without one."""
    last_size: int = 0
    """Size of that message."""


@dataclass(frozen=True, slots=True)
class BatchStep:
    """Messages of one queue, and the queue's end after them."""

    units: NDArray[np.void]
    """BATCH_UNIT_DTYPE[n]."""
    after: BatchQueueEnd


@dataclass(frozen=True, slots=True)
class BatchesBuilt(BatchStep):
    """Messages that have their units already: offset <= maxMsgPhyOffset."""


@dataclass(frozen=True, slots=True)
class BatchesBegunAnew(BatchStep):
    """No message: all units of the queue go, since the log has lost their messages."""


@dataclass(frozen=True, slots=True)
class BatchesPlaced(BatchStep):
    """Messages that get units, one after the other."""

    position: int
    """Byte of the first unit."""


@dataclass(frozen=True, slots=True)
class BatchesDropped(BatchStep):
    """Messages that get no unit."""

    reason: str

    def entries(self, topic: bytes, queue_id: int) -> Iterator[LedgerEntry]:
        """One for each message."""
        for unit in self.units:
            offset = int(unit["offset"])
            yield LedgerEntry(
                offset, offset + int(unit["size"]), self.reason, escaped(topic), queue_id,
                int(unit["msg_base_offset"]), f"batch of {unit['batch_size']}",
            )  # fmt: skip


def place_batches(
    end: BatchQueueEnd,
    units: NDArray[np.void],
    is_gone: Callable[[int], bool],
    read_next_queue_offset: Callable[[], int],
) -> Iterator[BatchStep]:
    """Place the messages of a queue in a batch after the queue's end; the steps cover them, those
    that are dropped last.

    ``is_gone`` tells whether the log has lost all bytes before an offset; a broker has removed a
    queue of which it has none (``ConsumeQueueStore.cleanExpired``), so that offsets begin again.
    ``read_next_queue_offset`` returns the queue offset after the queue's last unit.
    """
    is_refused = (units["msg_base_offset"] < 0) | (units["batch_size"] < 0)
    sound = units[~is_refused]
    # the idempotence rule
    built = int(np.searchsorted(sound["offset"], end.max_msg_phy_offset, side="right"))
    if built:
        yield BatchesBuilt(sound[:built], end)
    rest = sound[built:]
    ends = rest["msg_base_offset"] + rest["batch_size"]
    steps_back = np.flatnonzero(rest["msg_base_offset"][1:] < ends[:-1]) + 1
    for part in np.split(rest, steps_back) if len(rest) else ():
        # an end without a unit, or one whose message the log has
        is_old = end.max_msg_phy_offset >= 0 and is_gone(end.max_msg_phy_offset + 1)
        if is_old and int(part["msg_base_offset"][0]) < read_next_queue_offset():
            end = BatchQueueEnd()
            yield BatchesBegunAnew(part[:0], end)
        position = end.position
        end = BatchQueueEnd(position + part.nbytes, int(part["offset"][-1]), int(part["size"][-1]))
        yield BatchesPlaced(part, end, position)
    if is_refused.any():
        yield BatchesDropped(units[is_refused], end, "batch_offset_out_of_range")


def batch_units(runs: Sequence[Run]) -> NDArray[np.void]:
    """BATCH_UNIT_DTYPE[n]: the units of a queue's runs, without those of light queues.

    The runs must have details, or ValueError.
    """
    parts = []
    for run in runs:
        if run.details is None:
            raise ValueError("runs of a batch topic must come with details")
        own = run.details["is_light"] == 0
        units, details = run.units[own], run.details[own]
        part = np.zeros(len(units), BATCH_UNIT_DTYPE)
        for field in ("offset", "size", "tags_code"):
            part[field] = units[field]
        part["store_time"] = details["store_timestamp"]
        part["msg_base_offset"] = details["base_offset"]
        part["batch_size"] = details["batch_size"]
        part["compacted_offset"] = INVALID_POS
        parts.append(part.view(np.uint8))
    # joined as bytes, because numpy's concatenate would convert the byte order
    return np.concatenate(parts).view(BATCH_UNIT_DTYPE)
