"""Latency of an overlay's appends: from submit to acknowledged, and to visible in the queue.

``python -m bench.groupcommit DIRECTORY [--seconds 4]`` prints a line for 1, 16 and 256 threads, of
which each submits a record as soon as its last one was acknowledged, or has become visible.
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from reput.overlay.groupcommit import GroupCommit
from reput.overlay.pipeline import Pipeline
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record

SUBMITTERS = (1, 16, 256)
FILE_SIZE = 64 << 20


def measure(root: Path, submitters: int, seconds: float, *, dispatches: bool) -> str:
    """The line about one run in a new store."""
    acknowledged: list[float] = []
    visible: list[float] = []
    with ExitStack() as opened:
        appender = opened.enter_context(LogAppender(root, file_size=FILE_SIZE))
        pipeline = Pipeline(root)
        if dispatches:
            opened.enter_context(pipeline)
        commits = opened.enter_context(
            GroupCommit(appender, lambda end, _: pipeline.advance(end) if dispatches else None)
        )
        end = time.monotonic() + seconds

        def submit(number: int) -> None:
            block = b"KEYS\x01k%d\x02TAGS\x01a\x02REAL_TOPIC\x01Orders\x02" % number
            record = Record(topic=b"%RETRY%group", body=b"x" * 200, properties=block)
            while time.monotonic() < end:
                began = time.perf_counter()
                stored = commits.submit(record).result()[0]
                acknowledged.append(time.perf_counter() - began)
                if dispatches:
                    pipeline.wait_for(stored.physical_offset + stored.total_size)
                    visible.append(time.perf_counter() - began)

        threads = [threading.Thread(target=submit, args=(n,)) for n in range(submitters)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    line = f"submitters={submitters} records/s={len(acknowledged) / seconds:.0f}"
    line += f" acknowledged {_percentiles(acknowledged)}"
    return f"{line} visible {_percentiles(visible)}" if dispatches else line


def _percentiles(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    at = [ordered[min(int(len(ordered) * share), len(ordered) - 1)] for share in (0.5, 0.99)]
    return f"p50={at[0] * 1000:.1f} p99={at[1] * 1000:.1f} ms"


def main() -> None:
    """Measure all, first without and then with the dispatch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    for dispatches in (False, True):
        for submitters in SUBMITTERS:
            root = options.directory / "overlay"
            print(measure(root, submitters, options.seconds, dispatches=dispatches), flush=True)
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
