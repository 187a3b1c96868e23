"""Print how far your own stream over ``rocketmq-commitlog`` or ``rocketmq-consumequeue`` lags.

Spark reports, after each batch, where the batch has ended and where the source ends now. The
distance is the lag: messages in queues, bytes in the log.

    PYSPARK_PYTHON=.venv/bin/python .venv/bin/python docs/examples/stream_lag.py STORE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


def lag(end: dict[str, Any], latest: dict[str, Any]) -> int:
    """Return the distance of two offsets of either source, also of several stores in one load."""
    if "stores" in latest:
        stores = latest["stores"].items()
        return sum(lag(end["stores"].get(root, {}), offset) for root, offset in stores)
    if "offset" in latest:
        return latest["offset"] - end.get("offset", 0)
    return sum(
        offset - end.get(topic, {}).get(queue_id, 0)
        for topic, queues in latest.items()
        for queue_id, offset in queues.items()
    )


class LagListener(StreamingQueryListener):
    """Tells a function the name and the lag of each query of a session, after each batch."""

    def __init__(self, tell: Callable[[str | None, int], None]) -> None:
        super().__init__()
        self._tell = tell

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Called by Spark in a thread of this program: keep it short."""
        for source in event.progress.sources:
            if source.endOffset and source.latestOffset:
                distance = lag(json.loads(source.endOffset), json.loads(source.latestOffset))
                self._tell(event.progress.name, distance)

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    spark.streams.addListener(LagListener(lambda name, lag: print(f"{name} lags by {lag}")))
    stream = spark.readStream.format("rocketmq-consumequeue").load(sys.argv[1])
    stream.writeStream.queryName("orders").format("noop").start().awaitTermination()
