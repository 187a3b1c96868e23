"""Checks that a directory is an output of a log, for every command and source that reads one.

Without this check a mistyped path would look like a store in which nothing was built yet. It reads
only positions, takes no lock, and may run while a dispatcher writes.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from reput.store.errors import NotReadyError, UsageError
from reput.store.files import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
    QUEUE_DIRECTORIES,
    STATE_DIRECTORY,
)
from reput.store.log.commitlog import CommitLog
from reput.store.state.visible import read_end
from reput.store.state.watermark import Watermark

FINGERPRINT_LENGTH = 88
_PARTS = (*QUEUE_DIRECTORIES, INDEX_DIRECTORY, STATE_DIRECTORY)


def fingerprint(log: CommitLog, record_offset: int) -> int:
    """CRC-32 of the first bytes of the record at ``record_offset``; 0 if there is none."""
    data = log.read(record_offset, FINGERPRINT_LENGTH) if record_offset >= 0 else b""
    return zlib.crc32(data) if len(data) == FINGERPRINT_LENGTH else 0


def is_same_log(log: CommitLog, watermark: Watermark) -> bool:
    """Whether the last record before the watermark is the dispatched one, or was removed."""
    last = watermark.last_record_offset
    if last < log.min_offset or log.segments.at(last) is None:
        return True
    return fingerprint(log, last) == watermark.last_record_crc


def check_is_output(output: Path, store: Path) -> None:
    """Raise NotReadyError if the directory is missing or holds neither queues nor a watermark.

    The store itself is an output even if its broker has built nothing yet.
    """
    place = "give the `output=` of reput run, or the root of a store"
    if not output.is_dir():
        line = f"there is no directory {output} to read queues from; {place}"
        raise NotReadyError(line, path=output)
    is_store = store.is_dir() and output.samefile(store)
    if not is_store and not any((output / part).is_dir() for part in _PARTS):
        raise NotReadyError(
            f"{output} is not an output: it holds no queues ({CONSUME_QUEUE_DIRECTORY}/, "
            f"{BATCH_CONSUME_QUEUE_DIRECTORY}/) and no watermark ({STATE_DIRECTORY}/); {place}",
            path=output,
        )


def end_of_output(output: Path, store: Path, log: CommitLog) -> Watermark | None:
    """How far an output may be read, with this log, which is refreshed first (``read_end``).

    None if a broker built the queues, or if nothing is built yet. Raises NotReadyError like
    ``check_is_output``, and UsageError if the log is not the dispatched one.
    """
    check_is_output(output, store)
    dispatched = read_end(output / STATE_DIRECTORY)
    if dispatched is None:
        return None
    log.refresh()
    last = dispatched.last_record_offset
    is_beyond = last >= log.min_offset and log.segments.at(last) is None
    if is_beyond or not is_same_log(log, dispatched):
        raise UsageError(
            f"{output} is not an output of the log of {store}, or the log was cut: the last "
            f"message before its watermark {dispatched.end_offset}, at physical offset {last}, is "
            f"{'beyond the end of' if is_beyond else 'another one in'} the log; give the `output=` "
            "of this log, or run the dispatcher, which cuts the queues where the log was cut"
        )
    return dispatched
