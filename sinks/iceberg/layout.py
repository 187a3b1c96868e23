"""The layout of a new Iceberg table, as a user declares it.

| part | of a row |
|---|---|
| ``topic`` | its topic |
| ``day``, ``hour`` | that of storeTimestamp, UTC |
| ``queue(N)`` | its queueId, in one of N buckets |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from reput.sinks.tables.upkeep import TARGET_FILE_BYTES
from reput.store.errors import UsageError
from reput.store.rows.rowschema import ROWS_SCHEMA

_QUEUE = re.compile(r"queue\(([1-9][0-9]{0,4})\)\Z", re.ASCII)
_SORTABLE = (
    "topic", "queueId", "queueOffset", "physicalOffset", "storeTimestamp", "bornTimestamp", "tags",
    "keys",
)  # fmt: skip
assert {*_SORTABLE} <= {*ROWS_SCHEMA.names}


@dataclass(frozen=True, slots=True)
class Layout:
    """Partitions, order and sizes of files. A table keeps those that it was made with."""

    partition_by: tuple[str, ...] = ("day",)
    sort_by: tuple[str, ...] = ("topic", "physicalOffset")
    """Columns, ascending; the order of rows within a file."""
    target_file_bytes: int = TARGET_FILE_BYTES
    """The size to which compaction brings files."""

    @classmethod
    def parse(
        cls, partition_by: str | None, sort_by: str | None, target_file_bytes: int | None
    ) -> Layout:
        """Make a layout of lists with commas; None is the default. Raises UsageError."""
        default = DEFAULT_LAYOUT
        parts = default.partition_by if partition_by is None else _words(partition_by)
        for part in parts:
            if part not in ("topic", "day", "hour") and buckets(part) is None:
                raise UsageError(
                    f"a table is partitioned by topic, day, hour and queue(N), not by {part!r}"
                )
        columns = default.sort_by if sort_by is None else _words(sort_by)
        for column in columns:
            if column not in _SORTABLE:
                raise UsageError(f"a table is sorted by {', '.join(_SORTABLE)}, not by {column!r}")
        for words in (parts, columns):
            if len({*words}) < len(words):
                raise UsageError(f"{', '.join(words)} has a part twice")
        return cls(parts, columns, target_file_bytes or default.target_file_bytes)


DEFAULT_LAYOUT = Layout()


def buckets(part: str) -> int | None:
    """The number of buckets of ``queue(N)``; None for another part."""
    found = _QUEUE.match(part)
    return None if found is None else int(found[1])


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for one in text.split(",") if (word := one.strip()))
