"""``reput sql``: SQL over the raw log, without a broker and without Spark."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from reput.cli import messages, options, render, tables


def sql(
    store: options.Store,
    query: Annotated[
        str, typer.Argument(help="In DuckDB's SQL; the table is `messages`, a row per message.")
    ],
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    as_json: options.AsJsonLines = False,
) -> None:
    """Ask the log itself: `select topic, count(*) from messages group by topic`.

    Reads what a query needs: the columns that it names, from the files that its conditions on
    physicalOffset and storeTimestamp allow. `copy (select ...) to 'file.parquet'` exports.
    """
    from readers.sql import answer  # noqa: PLC0415

    settings = options.store_settings(store, broker_conf, commitlog_file_size)
    with answer(settings, query) as reader:
        if not messages.is_for_people(as_json):
            for batch in reader:
                for row in batch.to_pylist(maps_as_pydicts="lossy"):
                    render.print_json(row, default=_plain)
            return
        rows = [
            tuple(row.values())
            for batch in reader
            for row in batch.to_pylist(maps_as_pydicts="lossy")
        ]
    if rows:
        tables.print_table("", reader.schema.names, rows)
    else:
        tables.print_line("no rows")


def _plain(value: Any) -> str:
    """What JSON has no form for: times as ISO 8601, bytes as base64 would hide text, so as text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
