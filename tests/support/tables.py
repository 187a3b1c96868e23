"""Delta tables read back, and the rows that a log stands for by the reference decoder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable

from reput.store.config import read_store_settings
from reput.store.log import java
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def table_rows(table: Path | str, *columns: str) -> list[dict[str, Any]]:
    """Rows of a table, a path or a URL, by physical offset; all columns if none are named."""
    found = DeltaTable(table).to_pyarrow_table(columns=list(columns) or None)
    order = pc.sort_indices(found, [("physicalOffset", "ascending")])
    rows: list[dict[str, Any]] = found.take(order).to_pylist()
    return rows


def log_end(store: Path) -> int:
    """The sealed end of a store's log."""
    log = CommitLog(read_store_settings(store).commit_log_directories)
    try:
        return LogTail(log).settled()
    finally:
        log.close()


def plain_rows(store: Path) -> list[dict[str, Any]]:
    """The columns that a table must hold of every message, decoded record by record."""
    log = CommitLog(read_store_settings(store).commit_log_directories)
    found = []
    for record in records(log, log.min_offset, log_end(store)):
        assert isinstance(record, Record)
        stored = EPOCH + timedelta(milliseconds=record.store_timestamp)
        properties = {java.decode(k): java.decode(v) for k, v in record.property_map.items()}
        found.append(
            {
                "topic": java.decode(record.topic),
                "queueId": record.queue_id,
                "queueOffset": record.queue_offset,
                "physicalOffset": record.physical_offset,
                "storeSize": record.total_size,
                "tags": properties.get("TAGS"),
                "keys": properties.get("KEYS"),
                "storeTimestamp": stored,
                "date": stored.date(),
                "properties": sorted(properties.items()),
                "body": record.body,
                "corruptReason": None,
            }
        )
    log.close()
    return found


def plain_columns(table: Path | str) -> list[dict[str, Any]]:
    """The same columns of a table's rows."""
    rows = table_rows(
        table, "topic", "queueId", "queueOffset", "physicalOffset", "storeSize", "tags", "keys",
        "storeTimestamp", "date", "properties", "body", "corruptReason",
    )  # fmt: skip
    return [{**row, "properties": sorted(row["properties"] or ())} for row in rows]
