"""Measures of reading queues: one queue from end to end, and its messages with a rare tag."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from bench import logs, measures, reput
from bench.context import Context
from bench.logs import GIB, RARE_TAG, Log
from bench.measures import Figures, Row
from bench.processes import BenchError, LineProcess, line_process, python_command
from reput.store.queue.consumequeue import CQ_STORE_UNIT_SIZE
from reput.store.rows.rowschema import rows_schema

LOG_SHARE = 0.25
"""Share of the main log's size."""
RARE_TAG_EVERY = 100
TOPIC, QUEUE_ID = "Topic_000", 0
UNITS = ("queueOffset", "physicalOffset", "storeSize", "tagsCode")
UNIT = "M messages/s"
BODILESS_GOAL = 1.0
BODIES_GOAL = 0.3
READ_GOAL = 2.0
"""Bytes read, as a multiple of the bytes of the wanted records."""
ANSWER_SECONDS = 600.0


def measure(context: Context) -> Iterator[Row]:
    """Yield the wanted ones of both rows."""
    with context.directory("reading") as directory:
        with logs.log_writer(directory / "store", 300, rare_tag_every=RARE_TAG_EVERY) as writer:
            log = writer.grow(int(context.gib * LOG_SHARE * GIB))
        context.say(f"log: {log.title}")
        output = directory / "output"
        reput.build(log, output)
        logs.warm(log)
        command = python_command(
            "-m", "bench.read_worker", str(log.store), str(output), TOPIC, str(QUEUE_ID)
        )
        with line_process(command, "the reading process") as reader:
            reader.answer(ANSWER_SECONDS)
            if "queue-iteration" in context.row_names:
                yield _iteration(context, reader, log)
            if "filtered-read" in context.row_names:
                yield _filtered(context, reader, log)


def _asking(
    reader: LineProcess, columns: list[str] | None, tag: str | None, answers: list[dict[str, Any]]
) -> Callable[[], float]:
    """Return a pass whose answer is stored in ``answers``."""

    def ask() -> float:
        request = json.dumps({"columns": columns, "tag": tag})
        answers.append(checked(reader.ask(request, ANSWER_SECONDS), tag))
        return float(answers[-1]["seconds"])

    return ask


def checked(answer: dict[str, Any], tag: str | None) -> dict[str, Any]:
    """Check that a pass found the messages that were appended: otherwise it is an error, never a
    time."""
    every = 1 if tag is None else RARE_TAG_EVERY
    expected = -(-answer["looked_at"] // every)
    if answer["messages"] != expected:
        raise BenchError(
            f"the reader found {answer['messages']:,} messages instead of {expected:,}"
        )
    return answer


def _iteration(context: Context, reader: LineProcess, log: Log) -> Row:
    answers: list[dict[str, Any]] = []
    systems = {
        "units alone": _asking(reader, list(UNITS), None, answers),
        "all but bodies": _asking(reader, rows_schema(include_body=False).names, None, answers),
        "all": _asking(reader, None, None, answers),
    }
    seconds = measures.alternate(context.rounds, systems, context.say)
    rates = {name: _rate(answers[0], values) for name, values in seconds.items()}
    bodiless, whole = rates["all but bodies"].median, rates["all"].median
    return Row(
        name="queue-iteration",
        title="one queue of 32 as Arrow batches, 300 bytes, page cache warm, "
        f"{reput.core_count()} cores",
        goal=f">= {BODILESS_GOAL:g} {UNIT} without bodies, >= {BODIES_GOAL:g} with bodies",
        result=f"{bodiless:.2f} and {whole:.2f}",
        met=context.judged(bodiless >= BODILESS_GOAL and whole >= BODIES_GOAL),
        figures=rates,
        details={"log": log.title, "passes": answers},
    )


def _filtered(context: Context, reader: LineProcess, log: Log) -> Row:
    answers: list[dict[str, Any]] = []
    systems = {"all of a tag": _asking(reader, None, RARE_TAG, answers)}
    seconds = measures.alternate(context.rounds, systems, context.say)
    message_bytes = answers[0]["messages"] * log.end_offset / log.message_count
    units = answers[0]["looked_at"] * CQ_STORE_UNIT_SIZE
    read = max(answer["read_bytes"] for answer in answers) - units
    return Row(
        name="filtered-read",
        title=f"the messages of a queue with a tag that 1 of {RARE_TAG_EVERY} has",
        goal=f"reads <= {READ_GOAL:g}x the bytes of the messages wanted",
        result=f"{read / message_bytes:.2f}x: {read / 1e6:.1f} of "
        f"{message_bytes * RARE_TAG_EVERY / 1e6:.0f} MB",
        met=context.judged(read <= READ_GOAL * message_bytes),
        figures={name: _rate(answers[0], values) for name, values in seconds.items()},
        details={"log": log.title, "passes": answers},
        notes=["messages/s count the messages examined, not those with the tag"],
    )


def _rate(answer: dict[str, Any], seconds: Figures) -> Figures:
    return seconds.as_rate(answer["looked_at"] / 1e6, UNIT)
