"""Sizes of the parts into which a read of the log is divided."""

from __future__ import annotations

MIN_PARTITION_BYTES = 1 << 20
LEAST_PART = 32
"""A part is at least this fraction of its batch: each costs two milliseconds."""


def even_sizes(size: int, least_count: int, largest: int) -> list[int]:
    """Return the sizes of equal parts, at least ``least_count`` unless they are small."""
    count = max(1, min(max(least_count, -(-size // max(largest, 1))), size // MIN_PARTITION_BYTES))
    return [(index + 1) * size // count - index * size // count for index in range(count)]


def shrinking_sizes(size: int, tasks: int, largest: int) -> list[int]:
    """Return the sizes of parts for tasks that share them: large ones first, since fewer runs are
    less work, and small ones last, so that tasks end together and the last part is soon written."""
    least, sizes = max(MIN_PARTITION_BYTES, size // LEAST_PART), []
    while size > 2 * least:
        sizes.append(max(least, min(size // tasks, largest)))
        size -= sizes[-1]
    return [*sizes, size]
