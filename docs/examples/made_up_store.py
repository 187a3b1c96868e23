"""Writes an hour of made-up traffic into STORE, the argument, for the chart in docs/reading.md."""

import math
import random
import sys
from pathlib import Path

from reput.store.log.record import Record
from reput.workload.appender import Appender

BEGIN_MS = 1_760_000_400_000
TOPICS = {b"Orders": 60, b"Payments": 45, b"Shipments": 25, b"Refunds": 4}
"""Topic -> approximate messages per minute."""


def write_store(root: Path) -> None:
    """Write an hour with a lunch rush, in which refunds rise for ten minutes."""
    chance = random.Random(7)
    with Appender(root, file_size=4 << 20) as appender:
        for minute in range(60):
            rush = 1 + 1.5 * math.exp(-(((minute - 30) / 10) ** 2))
            due = []
            for topic, rate in TOPICS.items():
                incident = 12 if topic == b"Refunds" and 40 <= minute < 50 else 1
                count = round(rate * rush * incident * chance.uniform(0.9, 1.1))
                due += [(chance.randrange(60_000), topic) for _ in range(count)]
            for millisecond, topic in sorted(due):
                time = BEGIN_MS + minute * 60_000 + millisecond
                appender.append(Record(topic, b"{}", born_timestamp=time, store_timestamp=time))


if __name__ == "__main__":
    write_store(Path(sys.argv[1]))
