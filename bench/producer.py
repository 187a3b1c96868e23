"""A live log: ``python -m bench.producer STORE TRACE RATE SIZE`` appends at a rate and traces it.

It appends ``RATE`` messages/s, or less than one, in ticks of 1 ms or of one message; the messages
of a tick are one call, so they share the moment at which it returned. Messages are made beforehand
and appended again and again, because their content does not matter to a dispatcher. It first
reports where the log ends, which is not empty then. For each line ``SECONDS`` it appends for so
long, writes the trace and answers. Meanwhile the log is flushed as often as a broker's
FlushRealTimeService does: seconds of unwritten log would be a load on the disk that no broker
makes.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from reput.store.files import COMMIT_LOG_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.workload.appender import Appender
from reput.workload.messages import Workload

TICK_SECONDS = 0.001
FLUSH_SECONDS = 0.5
"""RocketMQ's flushIntervalCommitLog, in seconds."""
_BATCHES = 80
TRACE_FIELDS = ("returned_ns", "end_offset", "messages")


def produce(appender: Appender, workload: Workload, rate: float, seconds: float) -> Any:
    """Return int64[ticks, 3]: TRACE_FIELDS of every tick; ``returned_ns`` is CLOCK_MONOTONIC.

    A late tick appends no more than its own messages, and the next ones follow at once.
    """
    size = max(1, round(rate * TICK_SECONDS))
    interval = size / rate
    batches = [
        workload.batch(index * size, size, time.time_ns() // 1_000_000) for index in range(_BATCHES)
    ]
    ticks = math.ceil(seconds / interval)
    trace = np.empty((ticks, len(TRACE_FIELDS)), np.int64)
    began = time.monotonic()
    for tick in range(ticks):
        wait = began + tick * interval - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        appender.append_batch(batches[tick % _BATCHES])
        trace[tick] = time.monotonic_ns(), appender.end_offset, size
    return trace


@contextmanager
def flushed(store: Path) -> Iterator[None]:
    """Sync the newest files of the log every ``FLUSH_SECONDS`` while in the block."""
    stop = threading.Event()

    def flush() -> None:
        while not stop.wait(FLUSH_SECONDS):
            log = CommitLog([store / COMMIT_LOG_DIRECTORY])
            for segment in log.segments.listed[-2:]:  # the last one is preallocated
                fd = os.open(segment.path, os.O_RDONLY)
                os.fdatasync(fd)
                os.close(fd)

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def main() -> None:
    """Get ready, then produce and answer for each line until stdin ends."""
    store, trace_path = Path(sys.argv[1]), Path(sys.argv[2])
    rate, size = float(sys.argv[3]), int(sys.argv[4])
    workload = Workload(8, 4, size, seed=1)
    with Appender(store) as appender:
        produce(appender, workload, 1000, 0.1)
        print(json.dumps({"end_offset": appender.end_offset}), flush=True)
        for line in sys.stdin:
            began = time.monotonic()
            with flushed(store):
                trace = produce(appender, workload, rate, float(line))
            seconds = time.monotonic() - began
            np.save(trace_path, trace)
            answer = {"end_offset": int(trace[-1, 1]), "rate": int(trace[:, 2].sum()) / seconds}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
