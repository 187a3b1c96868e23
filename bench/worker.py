"""A resident child: the dispatcher in one open session, ``python -m bench.worker``.

Each line on stdin is a request ``{"store": DIR, "output": DIR, "index": BOOL}``; the answer is one
line of JSON. A pass begins with the query (the session is up) and ends when the watermark, which is
durable then, reaches the log's end: ``seconds``. ``returned_seconds`` counts on until the call
returns.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from reput.store.state.built import index_flags
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.spark.session import session


def one_pass(store: Path, output: Path, index: bool) -> dict[str, Any]:
    """Dispatch the whole log into a fresh output."""
    began = time.monotonic()
    config = DispatcherConfig(store, output, once=True, flags=index_flags(index))
    progress = run_dispatcher(config, threading.Event())
    returned = time.monotonic()
    first_batch = progress.first_batch if progress.first_batch is not None else returned
    return {
        "messages": progress.counts.messages,
        "end_offset": progress.end_offset,
        "batches": progress.batches,
        "first_batch_seconds": first_batch - began,
        "seconds": first_batch + progress.active_seconds() - began,
        "returned_seconds": returned - began,
    }


def main() -> None:
    """Answer requests until stdin ends."""
    # only answers may appear on stdout, whatever Spark or its JVM prints
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        with session({}):
            print(json.dumps({"ready": True}), file=answers, flush=True)
            for line in sys.stdin:
                request = json.loads(line)
                answer = one_pass(Path(request["store"]), Path(request["output"]), request["index"])
                print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
