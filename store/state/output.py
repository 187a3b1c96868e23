"""Whether a directory is an output of a log: the rule of every command and source that reads one.

Without it a mistyped path looks like a store in which nothing was built yet. It reads positions
only, takes no lock, and may be called while a dispatcher writes.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from store.errors import UsageError
from store.index.indexfile import INDEX_DIRECTORY
from store.log.commitlog import CommitLog
from store.queue.batchconsumequeue import BATCH_CONSUME_QUEUE_DIRECTORY
from store.queue.consumequeue import CONSUME_QUEUE_DIRECTORY
from store.queue.consumequeueext import CONSUME_QUEUE_EXT_DIRECTORY
from store.state.watermark import STATE_DIRECTORY, Watermark, read_watermark

FINGERPRINT_LENGTH = 88
_PARTS = (
    CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_EXT_DIRECTORY, BATCH_CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY, STATE_DIRECTORY,
)  # fmt: skip


def fingerprint(log: CommitLog, record_offset: int) -> int:
    """CRC-32 of the first bytes of the record at ``record_offset``; 0 where there is none."""
    data = log.read(record_offset, FINGERPRINT_LENGTH) if record_offset >= 0 else b""
    return zlib.crc32(data) if len(data) == FINGERPRINT_LENGTH else 0


def is_same_log(log: CommitLog, watermark: Watermark) -> bool:
    """Whether the last record below the watermark is the one that was dispatched, or is gone."""
    last = watermark.last_record_offset
    if last < log.min_offset or log.segment_at(last) is None:
        return True
    return fingerprint(log, last) == watermark.last_record_crc


def check_is_output(output: Path, store: Path) -> None:
    """Raises UsageError where there is no such directory, or it is none that holds queues or a
    watermark; the store itself is one though its broker has built nothing yet."""
    place = "give the --output of reput run, or the root of a store"
    if not output.is_dir():
        raise UsageError(f"there is no directory {output}, in which queues are looked for; {place}")
    is_store = store.is_dir() and output.samefile(store)
    if not is_store and not any((output / part).is_dir() for part in _PARTS):
        raise UsageError(
            f"{output} is no output: it holds no queues ({CONSUME_QUEUE_DIRECTORY}/, "
            f"{BATCH_CONSUME_QUEUE_DIRECTORY}/) and no watermark ({STATE_DIRECTORY}/); {place}"
        )


def watermark_of_output(output: Path, store: Path, log: CommitLog) -> Watermark | None:
    """The watermark of an output that is to be read with this log, which is read again first; None
    where a broker built the queues, or nothing is built yet.

    Raises UsageError where ``check_is_output`` does, and where the log is not the one that was
    dispatched.
    """
    check_is_output(output, store)
    found = read_watermark(output / STATE_DIRECTORY)
    if found is None:
        return None
    log.refresh()
    last = found.last_record_offset
    is_past = last >= log.min_offset and log.segment_at(last) is None
    if is_past or not is_same_log(log, found):
        raise UsageError(
            f"{output} is no output of the log of {store}, or the log was cut: the last message "
            f"below its watermark {found.end_offset}, at physical offset {last}, is "
            f"{'past the end of' if is_past else 'another one in'} the log; give the --output of "
            "this log, or run the dispatcher, which cuts the queues where the log was cut"
        )
    return found
