"""What follows the log behind the consume queues: tables and other systems (ARCHITECTURE.md).

A follower has a position of its own, which its target keeps, and goes at its own pace: where it
fails or is slow, the queues and the other followers go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    # the command line names followers long before anything reads a row
    import pyarrow as pa

    from store.config import StoreSettings


class LogFollower(Protocol):
    """One target of messages outside the store. Used by one thread, which may change."""

    def position(self) -> int | None:
        """End (exclusive) of the log that the target holds durably, asked of the target itself;
        None where it holds nothing yet. Called before the first write and after a failed one."""
        ...

    def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
        """Add the messages of [start, end) of the log; ``start`` is the position, or the log's
        start where that was None.

        ``rows`` are of ROWS_SCHEMA in the log's order, damaged and lost ranges among them; taking
        one raises where the run is stopped: nothing is to be kept then. On return they are durable
        and ``position()`` is ``end``, both or neither: no message twice, none missing, wherever
        the process is killed. Raises what the target's library raises, or a ReputError.
        """
        ...

    def truncate(self, end: int) -> None:
        """The log was cut at ``end`` and may be written anew behind it: take back what the target
        holds of that if it can, and have ``position()`` be ``end`` at the most. May be called
        again. Raises as ``write`` does."""
        ...

    def counts(self) -> Mapping[str, int]:
        """What the follower has counted since it was opened, in durable writes, for the status."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class FollowerTarget(Protocol):
    """What a run is told of one follower: plain data."""

    @property
    def name(self) -> str:
        """Short, a file name, unique among the followers of one output."""
        ...

    @property
    def description(self) -> str:
        """Where to, for people; without secrets."""
        ...

    @property
    def local_path(self) -> Path | None:
        """The directory on this machine that it fills; None where it fills none."""
        ...

    @property
    def interval_seconds(self) -> float:
        """Least time between starts of writes, while there is little to write."""
        ...

    def open(self, store_id: str, settings: StoreSettings) -> LogFollower:
        """The follower; connects to nothing yet. ``store_id``: the output's identity, 32 hex
        digits; ``settings``: of the store that it follows. Raises UsageError where what it is told
        is wrong or a library is missing."""
        ...
