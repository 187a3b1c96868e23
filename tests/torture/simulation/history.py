"""The events of a history, in their order: what its trace shows, and its checker looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class Kind(StrEnum):
    """The kinds of events; a number is that of a connection, where there is one."""

    STARTED = "started"
    """A server answers."""
    STOPPING = "stopping"
    """It is told to end."""
    STOPPED = "stopped"
    """It has ended."""
    KILLED = "killed"
    POWER_CUT = "power cut"
    OPENED = "opened"
    """The server has a connection."""
    LOST = "lost"
    """The server sees the end of a connection."""
    PAUSED = "paused"
    """The server may write no more to a connection now."""
    RESUMED = "resumed"
    CUT = "cut"
    """Nothing passes a connection any more."""
    SENT = "sent"
    """A client has sent a request."""
    TAKEN = "taken"
    """The server begins to handle one."""
    HANDLED = "handled"
    """It has handled one: the answer, or None."""
    WROTE = "wrote"
    """The server wrote a frame."""
    RECEIVED = "received"
    """A client got one."""
    FULL = "full"
    """The disk is full."""
    FREED = "freed"
    """It has space again."""
    GREW = "grew"
    """A queue has more messages, or fewer: its name and bounds."""
    QUIET = "quiet"
    """Nothing more is sent: what is asked must be answered."""


class Request(NamedTuple):
    """A client's request."""

    client: str
    code: int
    ext: Mapping[str, object]
    body: Any
    is_one_way: bool = False


class Reply(NamedTuple):
    """An answer, or a request of the server."""

    code: int
    remark: str | None
    ext: Mapping[str, str]
    body: bytes
    is_answer: bool = True


class Event(NamedTuple):
    """One event."""

    time: float
    kind: Kind
    number: int = 0
    opaque: int = 0
    what: Any = None


@dataclass
class History:
    """Everything that happened."""

    slowest_sync: float
    events: list[Event] = field(default_factory=list)

    def trace(self) -> str:
        """All of it as text."""
        return "\n".join(map(repr, self.events))
