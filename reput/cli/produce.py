"""``reput produce``: write a commitlog as a broker does."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from reput.cli import options, render
from store.errors import UsageError
from store.workload import Workload

BATCH_SECONDS = 0.005
MAX_BATCH = 10_000
PROGRESS_SECONDS = 5.0


def produce(
    store: options.Store,
    topics: Annotated[int, typer.Option(min=1, max=999, help="Topics.")] = 8,
    queues: Annotated[int, typer.Option(min=1, help="Queues of each topic.")] = 4,
    rate: Annotated[int, typer.Option(min=0, help="Messages/s; 0 for all that goes.")] = 5000,
    size: Annotated[int, typer.Option(min=12, max=4 << 20, help="Bytes of a body.")] = 300,
    seconds: Annotated[float, typer.Option(min=0, help="How long.")] = 30.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="How many messages, instead of how long.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Bodies follow from it.")] = 1,
    property_crc: Annotated[
        bool, typer.Option("--property-crc", help="Write the property CRC as well.")
    ] = False,
    commitlog_file_size: options.CommitLogFileSize = None,
    as_json: options.AsJson = False,
) -> None:
    """Append made-up messages to a store's commitlog, creating it where it is missing.

    Holds the store's lock as a broker does. Ctrl-C and SIGTERM end it after the running append.
    """
    from store.appender import DEFAULT_FILE_SIZE, Appender  # noqa: PLC0415

    file_size = options.size_option("--commitlog-file-size", commitlog_file_size)
    if store.exists() and not store.is_dir():
        raise UsageError(f"{store} is not a directory")
    workload = Workload(topics, queues, size, seed)
    done, began = 0, time.monotonic()
    shown = began
    with (
        render.stopped_by_signals() as stop,
        Appender(
            store, file_size=file_size or DEFAULT_FILE_SIZE, property_crc=property_crc
        ) as appender,
    ):
        first_offset = appender.end_offset
        began = time.monotonic()
        while not stop.is_set():
            elapsed = time.monotonic() - began
            if done >= count if count is not None else elapsed >= seconds:
                break
            due = int(rate * elapsed) + 1 if rate else done + MAX_BATCH
            if count is not None:
                due = min(due, count)
            if due > done:
                batch = min(due - done, MAX_BATCH)
                appender.append_batch(workload.batch(done, batch, time.time_ns() // 1_000_000))
                done += batch
            else:
                stop.wait(BATCH_SECONDS)
            if time.monotonic() - shown >= PROGRESS_SECONDS:
                shown = time.monotonic()
                typer.echo(f"{done:,} messages, {done / elapsed:,.0f}/s", err=True)
        end_offset = appender.end_offset
    elapsed = time.monotonic() - began
    summary = {
        "messages": done,
        "bytes": end_offset - first_offset,
        "end_offset": end_offset,
        "seconds": round(elapsed, 3),
    }
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        typer.echo(
            f"{done:,} messages, {render.human_bytes(end_offset - first_offset)} in {elapsed:.1f} s"
        )
