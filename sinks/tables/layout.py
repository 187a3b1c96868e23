"""The layout of a new table, as a user declares it for every format.

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
SORTABLE = (
    "topic", "queueId", "queueOffset", "physicalOffset", "storeTimestamp", "bornTimestamp", "tags",
    "keys",
)  # fmt: skip
assert {*SORTABLE} <= {*ROWS_SCHEMA.names}


@dataclass(frozen=True, slots=True)
class Layout:
    """Partitions, order and sizes of files. A table keeps those that it was made with."""

    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    """Columns, ascending; the order of rows within a file. Without one, it is the format's."""
    target_file_bytes: int | None = None
    """The size to which compaction brings files; None leaves it to the format."""

    def declared(
        self, partition_by: str | None, sort_by: str | None, target_file_bytes: int | None
    ) -> Layout:
        """Return the layout of lists with commas; what is None is as here. Raises UsageError."""
        parts = self.partition_by if partition_by is None else _words(partition_by)
        for part in parts:
            if part not in ("topic", "day", "hour") and buckets(part) is None:
                raise UsageError(
                    f"a table is partitioned by topic, day, hour and queue(N), not by {part!r}"
                )
        if sum(buckets(part) is not None for part in parts) > 1:
            # an Iceberg table can have no two partitions of one name
            raise UsageError(f"a table is partitioned by one queue(N), not by {', '.join(parts)}")
        columns = self.sort_by if sort_by is None else _words(sort_by)
        for column in columns:
            if column not in SORTABLE:
                raise UsageError(f"a table is sorted by {', '.join(SORTABLE)}, not by {column!r}")
        for words in (parts, columns):
            if len({*words}) < len(words):
                raise UsageError(f"{', '.join(words)} has a part twice")
        return Layout(parts, columns, target_file_bytes or self.target_file_bytes)


DELTA_LAYOUT = Layout(("topic", "day"))
"""The default, in which rows are in the order of the log."""
ICEBERG_LAYOUT = Layout(("day",), ("topic", "physicalOffset"), TARGET_FILE_BYTES)
"""The default."""


def buckets(part: str) -> int | None:
    """The number of buckets of ``queue(N)``; None for another part."""
    found = _QUEUE.match(part)
    return None if found is None else int(found[1])


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for one in text.split(",") if (word := one.strip()))
