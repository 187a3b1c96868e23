"""``reput demo``: see it work, on a log that it writes itself."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from reput.cli import render
from store.errors import UsageError


def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where to work, kept; else a temporary place.")
    ] = None,
    topics: Annotated[int, typer.Option(min=1, max=999, help="Topics.")] = 4,
    queues: Annotated[int, typer.Option(min=1, help="Queues of each topic.")] = 4,
    rate: Annotated[int, typer.Option(min=1, help="Messages/s.")] = 10_000,
    size: Annotated[int, typer.Option(min=12, help="Bytes of a body.")] = 300,
    seconds: Annotated[int, typer.Option(min=1, help="How long to append.")] = 20,
) -> None:
    """Append to a live log, follow it with the dispatcher, then check every message."""
    from streaming.demo import DemoPlan, run_demo  # noqa: PLC0415

    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; the demo wants a directory of its own")
    place = directory or Path(tempfile.mkdtemp(prefix="reput-demo-"))
    render.set_up_logging(False)
    typer.echo(f"a live log at {rate:,} messages/s for {seconds} s, in {place}")
    display = render.ProgressDisplay(False)
    plan = DemoPlan(topics, queues, rate, size, seconds)
    try:
        with render.stopped_by_signals() as stop:
            checked, progress = run_demo(plan, place, stop, display)
    finally:
        display.close()
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)
    by_topic: dict[str, list[int]] = {}
    for queue in checked:
        by_topic.setdefault(queue.topic, []).append(queue.message_count)
    render.print_table(
        "read back from the consume queues",
        ("topic", "queues", "messages", "checked"),
        [(topic, len(counts), sum(counts), "all right") for topic, counts in by_topic.items()],
    )
    active = progress.active_seconds()
    typer.echo(
        f"{progress.counts.messages:,} messages in {progress.batches} micro-batches, "
        f"{progress.counts.messages / active:,.0f}/s while following, lag now "
        f"{render.known(progress.lag_bytes)} bytes; every body, property, tag and offset was "
        "compared with what was appended"
    )
