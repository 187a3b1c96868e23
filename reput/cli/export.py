"""``reput export``: a range of the log as Parquet files."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import options, render, tables
from store.runs.dispatch import DispatchCounts
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
    topic: options.Topics = None,
    from_time: Annotated[str | None, options.time_value("Stored then or later")] = None,
    to_time: Annotated[str | None, options.value("TIME", "Stored before.")] = None,
    from_offset: Annotated[
        int | None, options.value("OFFSET", "At this physical offset or beyond it.", min=0)
    ] = None,
    to_offset: Annotated[
        int | None, options.value("OFFSET", "Up to this physical offset, exclusive.", min=0)
    ] = None,
    columns: Annotated[
        str | None,
        options.value("NAMES", "With commas: `topic,storeTimestamp,body`; all if not given."),
    ] = None,
    partition_by: Annotated[
        str | None, options.value("NAMES", "Directories: `topic`, `date`, or both with a comma.")
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
    done = _export(settings, out, selection, columns, partition_by)
    seconds = round(time.monotonic() - began, 3)
    if as_json:
        render.print_json({**asdict(done), "seconds": seconds})
    else:
        tables.print_line(
            f"{done.rows:,} rows in {done.files:,} files, {tables.human_bytes(done.bytes)}, "
            f"in {seconds} s"
        )


def _export(
    settings: StoreSettings,
    out: Path,
    selection: Selection,
    columns: str | None,
    partition_by: str | None,
) -> Exported:
    from readers.export import export as export_rows  # noqa: PLC0415
    from store.rows.rowschema import ROWS_SCHEMA  # noqa: PLC0415

    names = ROWS_SCHEMA.names if columns is None else columns.split(",")
    partitions = [] if partition_by is None else partition_by.split(",")
    progress, display = _ExportProgress(), render.ProgressDisplay("exporting")

    def show(rows: int, done_bytes: int, total_bytes: int) -> None:
        progress.log_end = total_bytes
        progress.advance(done_bytes, DispatchCounts(messages=rows - progress.counts.messages))
        display(progress)

    try:
        with render.stopped_by_signals() as stop:
            return export_rows(settings, out, selection, names, partitions, stop, show)
    finally:
        display.close()
