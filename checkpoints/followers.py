"""The positions of a log's followers, one small file each, for ``reput status``.

A follower's target keeps the position that counts (``store.follower``); the file holds what was
true when it was written. Only one fact is kept here alone: that a target still has to be truncated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from checkpoints import FOLLOWERS_DIRECTORY
from store import fsops, jsontext


@dataclass(frozen=True, slots=True)
class FollowerState:
    """The state of one follower; its counts begin when its file is created."""

    name: str
    target: str
    """A description of the target for people."""
    position: int | None = None
    """End (exclusive) of the part of the log that the target holds; None while it is unknown or
    empty."""
    rows: int = 0
    lost_bytes: int = 0
    """Bytes that the log lost before they were delivered."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Further counts that the follower keeps."""
    error: str | None = None
    """The reason why the last attempt failed; None where it succeeded."""
    failing_since: str | None = None
    """Time of the first of these failures, in ISO 8601 and UTC."""
    truncate_to: int | None = None
    """The offset at which the log was cut, until the target has been truncated there; None
    otherwise."""


def read_follower_states(state_directory: Path) -> Iterator[FollowerState]:
    """Yield the state of every follower that ever ran, by name. A file that cannot be read is
    skipped."""
    for _, state in _read(state_directory):
        if state is not None:
            yield state


def write_follower_state(state_directory: Path, state: FollowerState) -> None:
    """Replace a follower's file. Raises OutputError."""
    directory = state_directory / FOLLOWERS_DIRECTORY
    fsops.make_directories(directory, state_directory)
    text = json.dumps(asdict(state))
    fsops.replace_file(directory / f"{state.name}.json", text.encode())


def note_truncation(state_directory: Path, end: int) -> None:
    """Record for every target, whether in use now or not, that it must drop messages from ``end``
    on. A file that cannot be read is replaced, because it too stands for a target. Raises
    OutputError."""
    for name, found in _read(state_directory):
        state = found or FollowerState(name, "")
        known = end if state.truncate_to is None else min(end, state.truncate_to)
        write_follower_state(state_directory, replace(state, truncate_to=known))


def _read(state_directory: Path) -> Iterator[tuple[str, FollowerState | None]]:
    for path in sorted((state_directory / FOLLOWERS_DIRECTORY).glob("*.json")):
        try:
            yield path.stem, FollowerState(**jsontext.parse(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            yield path.stem, None
