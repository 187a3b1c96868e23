"""A resident child that reads one queue: ``python -m bench.read_worker STORE OUTPUT TOPIC QUEUE``.

It reads on all cores that it may use. Each line on stdin is a request ``{"columns": [NAME, ...] or
null for all, "tag": TAG or null}``; the answer is one line of JSON, with the bytes that were read
from files meanwhile, and the CPU seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from reput.readers.iteration import iterate
from reput.readers.messagefilter import MessageFilter
from reput.readers.messagestore import MessageStore
from reput.store.rows.rowschema import ROWS_SCHEMA


def read_bytes() -> int:
    """Return the bytes that this process has read by system calls, also from the page cache."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def one_pass(
    store: MessageStore, topic: str, queue_id: int, columns: list[str] | None, tag: str | None
) -> dict[str, Any]:
    """Read the queue from end to end; batches are dropped."""
    names = ROWS_SCHEMA.names if columns is None else columns
    schema = pa.schema([ROWS_SCHEMA.field(name) for name in names])
    message_filter = None if tag is None else MessageFilter.by_tags(tag)
    before, cpu, began = read_bytes(), time.process_time(), time.monotonic()
    messages = size = 0
    for batch in iterate(store, topic, queue_id, schema=schema, message_filter=message_filter):
        messages += len(batch)
        size += batch.nbytes
    seconds = time.monotonic() - began
    low, high = store.queue(topic, queue_id).bounds()
    return {
        "looked_at": high - low,
        "messages": messages,
        "arrow_bytes": size,
        "read_bytes": read_bytes() - before,
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu,
    }


def main() -> None:
    """Answer requests until stdin ends."""
    root, output, topic, queue_id = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    with MessageStore(root, output=output) as store:
        # the first pass compiles the kernels, or loads compiled ones
        one_pass(store, topic, int(queue_id), None, None)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            answer = one_pass(store, topic, int(queue_id), request["columns"], request["tag"])
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
