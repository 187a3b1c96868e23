"""``reput export``: writes a range of the log as Parquet files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import options, render, texts
from reput.cli.printer import Result, printed
from reput.store.config import StoreSettings
from reput.store.rows.rowform import RowForm
from reput.store.runs.dispatch import DispatchCounts
from reput.streaming.progress import ReadProgress

if TYPE_CHECKING:
    from reput.readers.export import Exported, RowSelection


@printed
@options.with_options(settings=options.store_settings, form=options.row_form)
def export(
    settings: StoreSettings,
    out: Annotated[
        Path,
        typer.Argument(help="The directory to write; it must be new or empty.", metavar="OUT"),
    ],
    topic: options.Topics = None,
    from_time: Annotated[
        str | None, options.time_value("Take messages stored then or later")
    ] = None,
    to_time: Annotated[
        str | None, options.value("TIME", "Take messages stored before then.")
    ] = None,
    from_offset: Annotated[
        int | None, options.value("OFFSET", "Take messages from this physical offset on.", min=0)
    ] = None,
    to_offset: Annotated[
        int | None, options.value("OFFSET", "Take messages below this physical offset.", min=0)
    ] = None,
    columns: Annotated[
        str | None,
        options.value(
            "NAMES", "Write only these columns, with commas: `topic,storeTimestamp,body`."
        ),
    ] = None,
    partition_by: Annotated[
        str | None,
        options.value(
            "NAMES", "Write a directory per `topic`, per `date`, or per both with a comma."
        ),
    ] = None,
    fail_on_data_loss: options.FailOnDataLoss = False,
    *,
    form: RowForm,
) -> Iterator[Result]:
    """Write a range of the log as Parquet files with a row per message.

    It opens only the log files of that range. It writes to OUT.incomplete, which becomes OUT when
    everything is durable.
    """
    from reput.readers.export import RowSelection  # noqa: PLC0415

    selection = RowSelection(
        [options.text(name) for name in topic or ()],
        options.optional_time_ms("--from-time", from_time),
        options.optional_time_ms("--to-time", to_time),
        from_offset,
        to_offset,
    )
    began = time.monotonic()
    done = _export(settings, out, selection, columns, partition_by, form, fail_on_data_loss)
    seconds = round(time.monotonic() - began, 3)
    line = (
        f"{texts.counted(done.rows, 'row')} in {texts.counted(done.files, 'file')}, "
        f"{texts.human_bytes(done.bytes)}, in {texts.human_seconds(seconds)}"
        + _in_words("lost", done.lost_bytes) + _in_words("damaged", done.damaged_bytes)
    )  # fmt: skip
    yield Result({**asdict(done), "seconds": seconds}, [line])
    options.note_internal(done.internal_left_out)


def _in_words(kind: str, count: int) -> str:
    return f"; {texts.counted(count, 'byte')} of the log {kind}" if count else ""


def _export(
    settings: StoreSettings,
    out: Path,
    selection: RowSelection,
    columns: str | None,
    partition_by: str | None,
    form: RowForm,
    fail_on_data_loss: bool,
) -> Exported:
    from reput.readers.export import export as export_rows  # noqa: PLC0415
    from reput.store.rows.rowschema import ROWS_SCHEMA  # noqa: PLC0415

    names = ROWS_SCHEMA.names if columns is None else columns.split(",")
    partitions = [] if partition_by is None else partition_by.split(",")
    progress = ReadProgress()

    def show(rows: int, done_bytes: int, total_bytes: int) -> None:
        progress.log_end = total_bytes
        progress.advance(done_bytes, DispatchCounts(messages=rows - progress.counts.messages))
        display(progress)

    with render.ProgressDisplay("exporting") as display, render.stopped_by_signals() as stop:
        return export_rows(
            settings, out, selection, names, partitions, stop, show, form,
            fail_on_data_loss=fail_on_data_loss,
        )  # fmt: skip
