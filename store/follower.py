"""What follows the log behind the consume queues: tables and other systems (design.md §5).

A follower has a position of its own, which its target keeps, and goes at its own pace: where it
fails or is slow, the queues and the other followers go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa


class LogFollower(Protocol):
    """One target of messages outside the store. Used by one thread, which may change."""

    name: str
    """Short and unique among the followers of one store; names its place in ``reput status``."""

    def position(self) -> int | None:
        """End (exclusive) of the log that the target holds durably, asked of the target itself;
        None where it holds nothing yet. Called before the first write and after a failed one."""
        ...

    def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
        """Add the messages of [start, end) of the log; ``start`` is the position.

        ``rows`` are of ROWS_SCHEMA in the log's order, damaged ranges among them. On return they
        are durable and ``position()`` is ``end``, both or neither: no message twice, none missing,
        wherever the process is killed. Raises what the target's library raises, or a ReputError.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
