"""A resident child that only parses: ``python -m bench.kernel_worker STORE START END``.

It shows the limit of a dispatcher on this machine for which only reading the page cache, parsing
and grouping cost time: it runs the kernels by ``store.runs.scan``, compiled beforehand, and drops
the results. There is one such process for each core, each with its part of the log. It answers each
line with a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from store.config import read_store_settings
from store.log.commitlog import CommitLog
from store.runs.dispatch import ScannedRange
from store.runs.scan import scan


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
    # the first pass compiles the kernels, or loads compiled ones
    one_pass(log, start, end)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(one_pass(log, start, end)), flush=True)
    log.close()


if __name__ == "__main__":
    main()
