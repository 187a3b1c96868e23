"""Followers read the log after the consume queues: tables and other systems (ARCHITECTURE.md).

A follower has its own position, which its target keeps, and its own pace: if it fails or is slow,
the queues and the other followers continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    # the command line names followers long before any code reads a row
    import pyarrow as pa

    from reput.store.config import StoreSettings
    from reput.store.rows.rowform import RowForm

BAD_BODIES, MESSAGES_LEFT_OUT = "bad bodies", "messages left out"
"""Names of counts: of bodies that do not fit their declaration, and of messages that have no row
for that reason."""


class LogFollower(Protocol):
    """One target of messages outside the store. Only one thread uses it at a time."""

    def position(self) -> int | None:
        """Ask the target for the exclusive end of the log that it holds durably.

        None if it holds nothing yet. Called before the first write and after a failed one.
        """
        ...

    def row_form(self) -> RowForm:
        """The rows that the target takes; asked for after ``position()``.

        Raises UsageError if what the target holds has another form than it is configured for.
        """
        ...

    def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
        """Add the messages of [start, end) of the log.

        ``start`` is the position, or the log's start if the position is None. ``rows`` are of
        ROWS_SCHEMA, in ``row_form()`` and the log's order, with damaged and lost ranges among them.
        Taking one raises if the run is stopped; the target must then keep nothing. On return the
        rows are durable and ``position()`` is ``end``. Both happen or neither, so wherever the
        process is killed no message is missing or written twice. Raises the errors of the target's
        library, or a ReputError.
        """
        ...

    def truncate(self, end: int) -> None:
        """Remove messages at and after ``end``, where the log was cut and may be rewritten.

        A target removes what it can; ``position()`` is then up to ``end``. May be called again.
        Raises like ``write``.
        """
        ...

    def counts(self) -> Mapping[str, int]:
        """Counts of durable writes since the follower was opened, for the status."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class FollowerTarget(Protocol):
    """Configuration of one follower, as plain data."""

    @property
    def name(self) -> str:
        """Short name, valid as a file name and unique among the followers of one output."""
        ...

    @property
    def description(self) -> str:
        """Address for log lines and messages, without secrets."""
        ...

    @property
    def local_path(self) -> Path | None:
        """The directory on this machine that it fills; None if there is none."""
        ...

    @property
    def position_is_apart(self) -> bool:
        """Whether it can lose its position and keep messages: a position that is older than a known
        one is then refused. Otherwise messages are gone with it, and are to come again."""
        ...

    @property
    def interval_seconds(self) -> float:
        """Minimum time between starts of writes while there is little to write."""
        ...

    def open(self, store_id: str, settings: StoreSettings) -> LogFollower:
        """Create the follower; it connects to nothing yet.

        ``store_id`` is the output's identity, 32 hex digits; ``settings`` are those of the store
        that it follows. Raises UsageError if the configuration is wrong or a library is missing.
        """
        ...
