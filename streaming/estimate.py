"""Estimates the room that an output of a whole log will take, before its first message.

A run waits for space and loses nothing, but an operator wants to know beforehand. Records from a
few places of the log say how large messages are and how many keys they have; queue and index files
are sparse, so that units and entries are what fills the disk.
"""

from __future__ import annotations

import logging
import os
from itertools import islice
from pathlib import Path

from reput.store.config import StoreSettings
from reput.store.index.indexfile import INDEX_ENTRY_DTYPE, index_keys
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.record import Record
from reput.store.queue.consumequeue import UNIT_DTYPE

SAMPLED_FILES, SAMPLED_RECORDS = 8, 200
"""Log files, spread evenly, and records from the start of each, that are looked at."""
logger = logging.getLogger("reput")


def estimated_bytes(log: CommitLog, log_end: int, settings: StoreSettings) -> int:
    """Return the bytes of units and index entries of [the log's start, ``log_end``).

    The hash slots of an index file, 20 MB for 20 million entries, are not counted, nor an ext's
    units. Raises StoreError where the log cannot be read.
    """
    starts = [segment.start for segment in log.segments.listed if segment.start < log_end]
    step = max(1, -(-len(starts) // SAMPLED_FILES))
    sizes = keys = count = 0
    for start in starts[::step]:
        items = records(log, start, min(start + log.file_size, log_end), fail_on_data_loss=False)
        sample = (item for item in items if isinstance(item, Record))
        for record in islice(sample, SAMPLED_RECORDS):
            count += 1
            sizes += record.total_size
            if settings.builds_index:
                keys += len(index_keys(record, index_tags=settings.index_tags))
    if not count:
        return 0
    index_bytes = UNIT_DTYPE.itemsize * count + INDEX_ENTRY_DTYPE.itemsize * keys
    return (log_end - log.min_offset) * index_bytes // sizes


def warn_of_little_space(
    output: Path, log: CommitLog, log_end: int, settings: StoreSettings
) -> None:
    """Log a warning where the disk of ``output`` seems too small for all that the log holds."""
    place = output
    while not place.is_dir():
        place = place.parent
    status = os.statvfs(place)
    free, needed = status.f_bavail * status.f_frsize, estimated_bytes(log, log_end, settings)
    if needed > free:
        logger.warning(
            "the log's %d bytes need about %d bytes of queues and index, and the disk of %s has "
            "%d: give it more room, or another `output=`; a run without room waits",
            log_end - log.min_offset, needed, output, free,
        )  # fmt: skip
