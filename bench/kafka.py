"""The mirror to Kafka, compared with kafka-python's producer alone on the same messages.

The broker is that of the interop tests, on this machine. This does not measure Kafka's speed: the
producer alone is bound by the Python that assembles records, and the mirror shares the machine with
the broker, which uses as much CPU.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from bench import logs, measures
from bench.context import Context
from bench.logs import GIB, Log
from bench.measures import Row
from reput.sinks.kafka.mirror import KafkaMirrorTarget
from reput.sinks.kafka.topics import TopicNames, TopicSelection
from reput.sinks.kafka.transactions import KafkaSettings
from reput.store.config import read_store_settings
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import DEFAULT_DELAY_LEVELS_MS
from reput.store.rows.rowform import DEFAULT_FORM
from reput.store.rows.rows import message_rows
from reput.store.rows.rowschema import ROWS_SCHEMA

if TYPE_CHECKING:
    from tests.interop.kafka import Kafka

NAME = "kafka-mirror"
LOG_SHARE = 1 / 16
"""Share of the main log's size, because kafka-python does a hundredth of the log's rate."""
BROKER_OPTIONS = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
"""The options of ``kafka-server-start.sh``."""
RATE_UNIT = "messages/s"
GOAL = 150_000


def measure(context: Context) -> Iterator[Row]:
    """Measure a whole log into Kafka: read, encoded, sent and committed by one thread."""
    with context.directory(NAME) as directory:
        with logs.log_writer(directory / "store", 300) as writer:
            log = writer.grow(int(context.gib * LOG_SHARE * GIB))
        context.say(f"log: {log.title}")
        logs.warm(log)
        with running_broker(directory / "kafka") as broker:
            _mirror(log, broker.bootstrap)  # loads what it needs, and compiles the broker's code
            measures.freeze_as_reput()
            systems = {
                "reput": lambda: _mirror(log, broker.bootstrap),
                "kafka-python alone": lambda: _send(log, broker.bootstrap),
            }
            seconds = measures.alternate(context.rounds, systems, context.say)
    rates = {key: value.as_rate(log.message_count, RATE_UNIT) for key, value in seconds.items()}
    ours, alone = rates.values()
    times = measures.ratio_text(measures.ratios(ours, alone))
    yield Row(
        name=NAME,
        title="mirror to Kafka, 300 bytes, exactly once, with headers, one thread",
        goal=f">= {GOAL:,} messages/s",
        result=f"{ours.median:,.0f} messages/s, {times} of the producer",
        met=context.judged(ours.median >= GOAL),
        figures=rates,
        details={"log": log.title},
    )


def _rows(log: Log) -> Iterator[pa.RecordBatch]:
    opened = CommitLog([log.store / "commitlog"])
    with closing(opened):
        yield from message_rows(
            opened, 0, log.end_offset, ROWS_SCHEMA, DEFAULT_FORM,
            delay_levels_ms=DEFAULT_DELAY_LEVELS_MS, fail_on_corrupt=False,
        )  # fmt: skip


@contextmanager
def running_broker(home: Path) -> Iterator[Kafka]:
    """Run the broker of the interop tests in the block."""
    # imported here, because other rows do without pytest and kafka-python
    from tests.interop.kafka import Kafka  # noqa: PLC0415

    home.mkdir()
    broker = Kafka(home, BROKER_OPTIONS)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def mirror(log: Log, bootstrap: str, identity: str, topics: str) -> float:
    """Return the seconds to mirror a whole log to topics of these names, all committed."""
    target = KafkaMirrorTarget(
        KafkaSettings(bootstrap, identity), TopicSelection(), TopicNames(topics)
    )
    with closing(target.open("", read_store_settings(log.store))) as follower:
        begin = time.perf_counter()
        follower.position()
        follower.write(0, log.end_offset, _rows(log))
        return time.perf_counter() - begin


def _mirror(log: Log, bootstrap: str) -> float:
    name = f"bench-{secrets.token_hex(4)}"
    return mirror(log, bootstrap, name, f"{name}.{{topic}}")


def _send(log: Log, bootstrap: str) -> float:
    from kafka import KafkaAdminClient, KafkaProducer  # noqa: PLC0415

    topic = f"bench-{secrets.token_hex(4)}"
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        admin.create_topics({topic: {"num_partitions": 32}}, wait_for_metadata=True)
    messages = [
        (queue, key.encode(), body)
        for batch in _rows(log)
        for queue, key, body in zip(
            batch["queueId"].to_pylist(), batch["keys"].to_pylist(), batch["body"].to_pylist(),
            strict=True,
        )
    ]  # fmt: skip
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, batch_size=256 << 10, linger_ms=100, metrics_enabled=False
    )
    with closing(producer):
        begin = time.perf_counter()
        for queue, key, body in messages:
            producer.send(topic, body, key, None, queue)
        producer.flush()
        return time.perf_counter() - begin
