"""``reput export``: a range of the log as Parquet files."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import options, render
from store.dispatch import DispatchCounts
from streaming.progress import Progress

if TYPE_CHECKING:
    from readers.export import Exported, Selection
    from store.config import StoreSettings


class _ExportProgress(Progress):
    """Offsets are bytes of what is gone through."""

    def summary(self) -> dict[str, Any]:
        """Counts so far."""
        return {"messages": self.counts.messages}


def export(
    store: options.Store,
    out: Annotated[
        Path, typer.Argument(help="Directory to make; what is there already must be empty.")
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Only of this topic; with `*` and `?`; may be repeated."),
    ] = None,
    from_time: Annotated[
        str | None, typer.Option(help="Stored then or later: ms since the epoch, or ISO 8601.")
    ] = None,
    to_time: Annotated[str | None, typer.Option(help="Stored before.")] = None,
    from_offset: Annotated[
        int | None, typer.Option(min=0, help="At this physical offset or behind it.")
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option(min=0, help="In front of this physical offset.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="With commas: `topic,storeTimestamp,body`; all if not given.")
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option(help="Directories: `topic`, `date`, or both with a comma.")
    ] = None,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a range of the log as Parquet files, a row per message.

    Log files that no condition allows are not opened. OUT is there when all of it is: until then it
    is written as OUT.incomplete.
    """
    from readers.export import Selection  # noqa: PLC0415

    settings = options.store_settings(store, broker_conf, commitlog_file_size)
    selection = Selection(
        [options.text(name) for name in topic or ()],
        options.optional_time_ms("--from-time", from_time),
        options.optional_time_ms("--to-time", to_time),
        from_offset,
        to_offset,
    )
    began = time.monotonic()
    done = _export(settings, out, selection, columns, partition_by, as_json)
    seconds = round(time.monotonic() - began, 3)
    if as_json:
        typer.echo(json.dumps({**asdict(done), "seconds": seconds}))
    else:
        typer.echo(
            f"{done.rows:,} rows in {done.files:,} files, {render.human_bytes(done.bytes)}, "
            f"in {seconds} s"
        )


def _export(
    settings: StoreSettings,
    out: Path,
    selection: Selection,
    columns: str | None,
    partition_by: str | None,
    as_json: bool,
) -> Exported:
    from readers.export import export as export_rows  # noqa: PLC0415
    from store.rowschema import ROWS_SCHEMA  # noqa: PLC0415

    names = ROWS_SCHEMA.names if columns is None else columns.split(",")
    partitions = [] if partition_by is None else partition_by.split(",")
    progress, display = _ExportProgress(), render.ProgressDisplay(as_json, "exporting")

    def show(rows: int, done_bytes: int, total_bytes: int) -> None:
        progress.log_end = total_bytes
        progress.advance(done_bytes, DispatchCounts(messages=rows - progress.counts.messages))
        display(progress)

    try:
        with render.stopped_by_signals() as stop:
            return export_rows(settings, out, selection, names, partitions, stop, show)
    finally:
        display.close()
