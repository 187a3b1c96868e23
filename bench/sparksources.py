"""The source ``rocketmq-consumequeue`` beside Spark's own Kafka source, on the same messages.

Kafka gets them from the mirror: bodies as values, the rest as headers. One Spark session then reads
both in turn into a sink that drops the rows; missing or duplicate rows are an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import kafka, logs, measures, reput
from bench.context import Context
from bench.logs import GIB, Log
from bench.measures import Figures, Row
from bench.processes import BenchError, LineProcess, line_process, python_command

BATCH_ROW, STREAM_ROW = "consumequeue-source", "consumequeue-stream"
ROW_NAMES = (BATCH_ROW, STREAM_ROW)
GOALS = {BATCH_ROW: (3.0, 3.0), STREAM_ROW: (2.0, 2.0)}
"""Multiples of Kafka's rate: with everything, and without bodies, properties and headers."""
LOG_SHARE = 1 / 4
"""Share of the main log's size, because it goes through Kafka's producer first. With less, the
start of a stream is most of its time."""
PREFIX = "bench."
"""Prefix of the Kafka topics."""
PROJECT = Path(__file__).parent / "kafkasource"
UNIT = "M rows/s"
ANSWER_SECONDS = 900.0
FETCH_WAIT_MS = 10
"""Milliseconds instead of 500: Spark's consumer waits that long for more at each partition's end,
several times, which at 32 partitions takes longer than reading them."""
OURS, OURS_LIGHT = "reput, all columns", "reput, without body and properties"
KAFKA, KAFKA_LIGHT = "Spark's Kafka source, with headers", "Spark's Kafka source, without headers"


@dataclass(frozen=True, slots=True)
class Source:
    """The input of a system, and the rows that it must find."""

    name: str
    options: dict[str, str]
    row_count: int


def measure(context: Context) -> Iterator[Row]:
    """Yield the wanted ones of both rows."""
    jars = ",".join(map(str, _jars()))
    with context.directory("sparksources") as directory:
        with logs.log_writer(directory / "store", 300) as writer:
            log = writer.grow(int(context.gib * LOG_SHARE * GIB))
        context.say(f"log: {log.title}")
        output = directory / "output"
        reput.build(log, output)
        logs.warm(log)
        with kafka.running_broker(directory / "kafka") as broker:
            seconds = kafka.mirror(log, broker.bootstrap, "bench", f"{PREFIX}{{topic}}")
            context.say(f"the mirror took {seconds:.0f} s")
            sources = _queues(log, output) | _topics(log, broker.bootstrap)
            command = python_command("-m", "bench.table_worker", f"spark.jars={jars}")
            with line_process(command, "the Spark session") as session:
                session.answer(ANSWER_SECONDS)
                for name in ROW_NAMES:
                    if name in context.row_names:
                        yield _row(context, session, name, sources, log)


def _jars() -> list[Path]:
    """Return Spark's Kafka source and its dependencies, fetched by Maven where they are missing."""
    # imported here, because other rows do without filelock and pytest
    from tests.interop import maven  # noqa: PLC0415

    return sorted((maven.build(PROJECT) / "lib").iterdir())


def _queues(log: Log, output: Path) -> dict[str, Source]:
    options = {"path": str(log.store), "output": str(output), "startingOffsets": "earliest"}
    light = {"includeBody": "false", "includeProperties": "false"}
    name = "rocketmq-consumequeue"
    return {
        OURS: Source(name, options, log.message_count),
        OURS_LIGHT: Source(name, options | light, log.message_count),
    }


def _topics(log: Log, bootstrap: str) -> dict[str, Source]:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": str(FETCH_WAIT_MS),
        "subscribePattern": f"{PREFIX.replace('.', '[.]')}.*",
        "startingOffsets": "earliest",
    }
    return {
        KAFKA: Source("kafka", options | {"includeHeaders": "true"}, log.message_count),
        KAFKA_LIGHT: Source("kafka", options, log.message_count),
    }


def _row(
    context: Context, session: LineProcess, name: str, sources: dict[str, Source], log: Log
) -> Row:
    is_stream = name == STREAM_ROW
    systems = {key: _reading(session, source, is_stream) for key, source in sources.items()}
    for read in systems.values():
        read()  # the first read loads kernels and classes, and compiles
    seconds = measures.alternate(context.rounds, systems, context.say)
    rates = {key: _rate(sources[key], values) for key, values in seconds.items()}
    whole = measures.ratios(rates[OURS], rates[KAFKA])
    light = measures.ratios(rates[OURS_LIGHT], rates[KAFKA_LIGHT])
    goal, light_goal = GOALS[name]
    how = "a stream, Trigger.AvailableNow" if is_stream else "a batch read"
    return Row(
        name=name,
        title=f"queues as a Spark table, {how}, {log.body_size} bytes, beside Spark's Kafka source",
        goal=f">= {goal:g}x and {light_goal:g}x",
        result=(
            f"{measures.ratio_text(whole)} with everything, {measures.ratio_text(light)} without "
            "bodies, properties and headers"
        ),
        met=context.judged(whole.median >= goal and light.median >= light_goal),
        figures=rates,
        details={"log": log.title, "jars": [path.name for path in _jars()]},
        notes=[
            "Kafka's rows have the values (bodies) always",
            f"Kafka's consumer with fetch.max.wait.ms={FETCH_WAIT_MS}, otherwise its defaults",
        ],
    )


def _reading(session: LineProcess, source: Source, is_stream: bool) -> Callable[[], float]:
    def read() -> float:
        request = {"format": source.name, "options": source.options, "stream": is_stream}
        return checked(session.ask(json.dumps(request), ANSWER_SECONDS), source)

    return read


def checked(answer: dict[str, Any], source: Source) -> float:
    """Return the seconds of a pass; one that did not find every message is an error, never a
    time."""
    if answer["rows"] != source.row_count:
        raise BenchError(
            f"the source {source.name} gave {answer['rows']:,} rows instead of {source.row_count:,}"
        )
    return float(answer["seconds"])


def _rate(source: Source, seconds: Figures) -> Figures:
    return seconds.as_rate(source.row_count / 1e6, UNIT)
