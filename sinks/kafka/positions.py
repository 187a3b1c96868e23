"""The topic on Kafka that keeps a follower's position: reading it, and the cases in which it no
longer says how far the follower came.

The position is the last committed record. It is believed only if no transaction is open in the
topic, since readers of committed records stop before the first open one, whosever it is, and would
find an older position. If records were removed, and none is left, the position is lost: beginning
anew would send all messages twice.

kafka-python is imported late, because it is an extra.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from reput.store import jsontext
from reput.store.errors import StoreError

POSITION_KEY = b"position"
WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Position:
    """A record of the position topic."""

    end: int | None = None
    """Physical offset up to which all is on Kafka; None at the log's start."""
    instance: str | None = None
    """The one that wrote it."""


def check_no_transaction(topic: str, client: Mapping[str, Any]) -> None:
    """Raises StoreError while records of the position topic are hidden by an open transaction.

    A writer calls this when Kafka has ended its own one.
    """
    from kafka import IsolationLevel, KafkaAdminClient, TopicPartition  # noqa: PLC0415
    from kafka.admin import OffsetSpec  # noqa: PLC0415

    place = TopicPartition(topic, 0)
    with closing(KafkaAdminClient(**client)) as admin:
        # in this order: what comes meanwhile is no reason to refuse
        end, stable = (
            admin.list_partition_offsets({place: OffsetSpec.LATEST}, level)[place].offset
            for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        )
    if stable < end:
        raise StoreError(
            f"another program's transaction is open in topic {topic} on Kafka, and hides the "
            f"positions from its offset {stable} on: end that transaction"
        )


def last_position(topic: str, client: Mapping[str, Any]) -> Position:
    """The last committed record of the position topic.

    Raises StoreError where another program wrote it, or if it was removed.
    """
    from kafka import KafkaConsumer, TopicPartition  # noqa: PLC0415

    place = TopicPartition(topic, 0)
    consumer = KafkaConsumer(
        **client, group_id=None, enable_auto_commit=False, isolation_level="read_committed"
    )
    with closing(consumer):
        consumer.assign([place])
        first = consumer.beginning_offsets([place])[place]
        end = consumer.end_offsets([place])[place]
        # the end of a transaction takes an offset too, and an aborted one takes all of its own
        back = 2
        while True:
            start = max(end - back, first)
            text = _last_record(consumer, place, start, end)
            if text is not None or start == first:
                break
            back *= 8
    if text is None:
        if first > 0:
            raise StoreError(
                f"the position is gone from topic {topic} on Kafka, whose records up to offset "
                f"{first} were removed: give the topic no cleanup.policy but compact; to start "
                "over, delete it and the topics that were filled"
            )
        return Position()
    try:
        return jsontext.build(Position, jsontext.parse(text))
    except ValueError as error:
        raise StoreError(
            f"the last record of topic {topic} on Kafka is no position: {error}; "
            "find what else writes there, and give another `KafkaSettings.store_id=`"
        ) from error


def _last_record(consumer: Any, place: Any, start: int, end: int) -> bytes | None:
    """Value of the last committed record in [start, end) of a partition; empty if it has none."""
    from kafka.errors import KafkaTimeoutError  # noqa: PLC0415

    last = None
    consumer.seek(place, start)
    deadline = time.monotonic() + WAIT_SECONDS
    while consumer.position(place) < end:
        if time.monotonic() > deadline:
            raise KafkaTimeoutError(f"{place.topic} was not read up to offset {end}")
        for records in consumer.poll(timeout_ms=500).values():
            last = records[-1].value or b""
    return last
