"""A resident child that only parses: ``python -m bench.kernel_worker STORE START END``.

It shows the limits of a dispatcher on this machine. For each line ``scan`` it runs the kernels by
``store.runs.scan``, compiled beforehand, and drops the results: only reading the page cache,
parsing and grouping cost time. For each line ``hop`` it does what no parser can leave out: it reads
a MiB at a time, goes from header to header and takes three fields of each. There is one such
process for each core, each with its part of the log. It answers with a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from reput.store.config import read_store_settings
from reput.store.log import record
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window
from reput.store.log.kernelbase import i32, i64, kernel
from reput.store.runs.dispatch import ScannedRange
from reput.store.runs.scan import scan


@kernel
def hop(buf, length, pos, fields):  # type: ignore[no-untyped-def]
    """(position after the last whole record, number of records); every value of three fields goes
    into ``fields``, so that none is left out by the compiler."""
    count = 0
    while pos + record.MAX_FIXED_LENGTH <= length:
        size = i32(buf, pos)
        is_record = i32(buf, pos + record.MAGIC_POSITION) & 0xFFFFFFFF != record.BLANK_MAGIC
        if not is_record or size <= 0 or pos + size > length:
            break
        fields[0] ^= i32(buf, pos + record.QUEUE_ID_POSITION)
        fields[1] ^= i64(buf, pos + record.QUEUE_OFFSET_POSITION)
        fields[2] ^= i64(buf, pos + record.PHYSICAL_OFFSET_POSITION)
        pos += size
        count += 1
    return pos, count


def hop_pass(log: CommitLog, start: int, end: int) -> dict[str, float]:
    """Hop over the log's bytes [start, end), both starts of records or files; as ``one_pass``."""
    began = time.monotonic()
    window, fields, messages, offset = Window(log), np.zeros(3, np.int64), 0, start
    while offset < end:
        window.load(offset)
        pos, count = hop(window.data, min(window.length, end - offset), 0, fields)
        messages += count
        # without a record, only the BLANK is left of the file
        following = offset + pos if count else (offset // log.file_size + 1) * log.file_size
        offset = following
    return {"messages": messages, "seconds": time.monotonic() - began}


def one_pass(log: CommitLog, start: int, end: int) -> dict[str, float]:
    """Scan the log's bytes [start, end); return ``seconds`` and the number of ``messages``."""
    began = time.monotonic()
    messages = 0
    for item in scan(log, start, end):
        if isinstance(item, ScannedRange):
            messages = item.message_count
            if item.end != end:
                raise RuntimeError(f"the scan ended at {item.end} instead of {end}")
    return {"messages": messages, "seconds": time.monotonic() - began}


def main() -> None:
    """Answer requests until stdin ends."""
    store, start, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    settings = read_store_settings(store)
    log = settings.open_log()
    passes = {"scan": one_pass, "hop": hop_pass}
    for each in passes.values():
        # the first pass compiles the kernels, or loads compiled ones
        each(log, start, end)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(passes[line.strip()](log, start, end)), flush=True)
    log.close()


if __name__ == "__main__":
    main()
