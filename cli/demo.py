"""``reput demo``: shows the dispatcher at work on a log that the demo writes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

from reput.cli import render, texts
from reput.cli.options import value
from reput.cli.printer import Result, Table, printed
from reput.store.errors import UsageError


@printed
def demo(
    directory: Annotated[
        Path | None,
        value("DIR", "Work in this directory and keep it; a temporary one if not given.", "--dir"),
    ] = None,
    topics: Annotated[int, value("N", "Number of topics.", min=1, max=999)] = 4,
    queues: Annotated[int, value("N", "Number of queues of each topic.", min=1)] = 4,
    rate: Annotated[int, value("N", "Messages to append per second.", min=1)] = 10_000,
    size: Annotated[int, value("BYTES", "Length of each body.", min=12)] = 300,
    seconds: Annotated[int, value("N", "How many seconds to append for.", min=1)] = 20,
) -> Result:
    """Run the whole pipeline on generated messages, and check every one of them."""
    from reput.workload.demo import DemoPlan, run_demo  # noqa: PLC0415

    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; the demo wants a directory of its own")
    place = directory or Path(tempfile.mkdtemp(prefix="reput-demo-"))
    render.print_note(f"a live log at {rate:,} messages/s for {seconds} s, in {place}")
    plan = DemoPlan(topics, queues, rate, size, seconds)
    try:
        with render.ProgressDisplay() as display, render.stopped_by_signals() as stop:
            result = run_demo(plan, place, stop, display)
    finally:
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)
    by_topic: dict[str, list[int]] = {}
    for queue in result.queues:
        by_topic.setdefault(queue.topic, []).append(queue.message_count)
    rows = [
        (topic, len(counts), texts.grouped(sum(counts)), "all as appended",
         f"{consumed:,}, each once, in order")
        for (topic, counts), consumed in zip(by_topic.items(), result.consumed, strict=True)
    ]  # fmt: skip
    progress = result.progress
    line = (
        f"{texts.counted(progress.counts.messages, 'message')} in "
        f"{texts.counted(progress.batches, 'micro-batch', 'micro-batches')}, "
        f"lag now {texts.human_bytes(progress.lag_bytes)}; every body, property, tag and offset "
        "was compared with what was appended"
    )
    title = "read back from the consume queues, and consumed over the wire meanwhile"
    columns = ("topic", "queues", "messages", "queues hold", "consumed")
    return Result(progress.summary(), [Table(title, columns, rows), line])
