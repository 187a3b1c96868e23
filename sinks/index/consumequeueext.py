"""The ext units of one queue, written while its units are dispatched (``ConsumeQueueExt.put``).

Every message gets an ext unit, in log order, and its queue unit holds the address; light queues
have none. As in RocketMQ, the ext unit is written first, so a message that the queue then drops
leaves an ext unit without a reference. Unlike RocketMQ, a message that is dispatched again gets no
second one.

Like RocketMQ's, a restart cuts after the unit of the queue's last address: units of messages
dropped after it are removed, and all others are written again at the same place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store.errors import QueueFileError
from reput.store.files import CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_EXT_DIRECTORY
from reput.store.queue.consumequeue import (
    CQ_STORE_UNIT_SIZE,
    ConsumeQueueFiles,
    QueueKey,
    list_queues,
)
from reput.store.queue.consumequeueext import (
    MAX_ADDR,
    NO_ADDRESS,
    ConsumeQueueExtFiles,
    place,
    real_offset,
)
from reput.store.queue.unsynced import UnsyncedFiles
from reput.store.runs.dispatch import Run

UNITS_AT_ONCE = 1024


class QueueExt:
    """The ext files of one queue, cut at the queue's end; not thread-safe."""

    def __init__(
        self, output: Path, key: QueueKey, file_size: int, queue: ConsumeQueueFiles, end: int
    ) -> None:
        """Open the ext files and cut them at the queue's end.

        ``file_size`` is the bytes of an ext file, ``end`` the byte position after the queue's last
        unit. Raises QueueFileError if a unit that the queue points to is missing.
        """
        self._output = output
        directory = output / CONSUME_QUEUE_EXT_DIRECTORY / key.relative_path
        self._files = ConsumeQueueExtFiles(directory, file_size)
        # a queue that never had an ext (a light queue) is not searched to its start
        address = _last_address(queue, end, all_units=bool(self._files.starts))
        if address is None:
            self._end = 0
            self._files.clear_from(0)
        elif self._files.read(address) is None:
            raise QueueFileError(
                f"{directory} has no unit at byte {real_offset(address)}, to which "
                f"{queue.directory} points; remove both directories and dispatch the log again "
                "from its start (`replay_from=earliest`)",
                path=directory,
                position=real_offset(address),
            )
        else:
            self._end = self._files.truncate_by_max_address(address)
        self._physical_end = -1
        """End of the last message with an ext unit, as far as this process knows."""
        self._next = (self._end, self._physical_end)

    def put(self, run: Run, first: int, last: int, unsynced: UnsyncedFiles) -> NDArray[np.void]:
        """Write the ext units of messages [first, last) of a run; return queue units with
        addresses.

        Until ``advance``, the same messages go to the same place. Raises OutputError.
        """
        if run.details is None:
            raise AssertionError("ext units need the details of their messages")
        units, details = run.units[first:last], run.details[first:last]
        physical_ends = units["offset"] + units["size"]
        self._next = (self._end, self._physical_end)
        indexes = np.flatnonzero((details["is_light"] == 0) & (physical_ends > self._physical_end))
        if not len(indexes):
            return units
        bit_maps = np.empty((len(run), 0), np.uint8) if run.bit_maps is None else run.bit_maps
        placement = place(
            self._end,
            self._files.file_size,
            units["tags_code"][indexes],
            details["store_timestamp"][indexes],
            bit_maps[first:last][indexes],
        )
        self._files.write(placement, self._output, unsynced)
        self._next = (placement.end, int(physical_ends[-1]))
        addressed = units.copy()
        has_address = placement.addresses != NO_ADDRESS
        addressed["tags_code"][indexes[has_address]] = placement.addresses[has_address]
        return addressed

    def advance(self) -> None:
        """The units of the last ``put`` are in the queue, or never will be."""
        self._end, self._physical_end = self._next


def cut_exts(output: Path, file_size: int, queue_file_size: int, end_offset: int) -> None:
    """Cut every ext after the last unit that its queue, cut at ``end_offset``, points to."""
    for key in list_queues(output / CONSUME_QUEUE_EXT_DIRECTORY):
        directory = output / CONSUME_QUEUE_DIRECTORY / key.relative_path
        queue = ConsumeQueueFiles(directory, queue_file_size)
        QueueExt(output, key, file_size, queue, queue.find_end(end_offset))


def _last_address(queue: ConsumeQueueFiles, end: int, *, all_units: bool) -> int | None:
    """The last ext address among all units before byte ``end``, or among only the last of them."""
    seen = 0
    for codes in _tags_codes_backwards(queue, end):
        addresses = codes[codes <= MAX_ADDR]
        if len(addresses):
            return int(addresses[-1])
        seen += len(codes)
        if not all_units and seen >= UNITS_AT_ONCE:
            return None
    return None


def _tags_codes_backwards(queue: ConsumeQueueFiles, end: int) -> Iterator[NDArray[np.int64]]:
    for start in reversed(queue.starts):
        last = min(end - start, queue.file_size) // CQ_STORE_UNIT_SIZE
        while last > 0:
            first = max(last - UNITS_AT_ONCE, 0)
            yield queue.units(start, first, last - first)["tags_code"]
            last = first
