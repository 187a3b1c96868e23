"""Where the followers of a log stand, a small file each, for ``reput status``.

The position that counts is kept by a follower's target (``store.follower``); what is here was true
when it was written. One thing is kept here alone: that a target has still to be cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from checkpoints import FOLLOWERS_DIRECTORY
from store import fsops


@dataclass(frozen=True, slots=True)
class FollowerState:
    """One follower. Counts are since its file was made."""

    name: str
    target: str
    """Where to, for people."""
    position: int | None = None
    """End (exclusive) of the log that the target holds; None while unknown or nothing."""
    rows: int = 0
    lost_bytes: int = 0
    """Bytes that the log had lost before they were delivered."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What the follower counts besides."""
    error: str | None = None
    """Why the last attempt failed; None where it did not."""
    failing_since: str | None = None
    """ISO 8601, UTC."""
    truncate_to: int | None = None
    """The log was cut here, which the target has not been told yet."""


def read_follower_states(state_directory: Path) -> Iterator[FollowerState]:
    """Every follower that ever ran, by name. A file that cannot be read is left out."""
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
    """Every target, whether in use now or not, has to forget what lies behind ``end``. A file that
    cannot be read is made anew: it stands for a target all the same. Raises OutputError."""
    for name, found in _read(state_directory):
        state = found or FollowerState(name, "")
        known = end if state.truncate_to is None else min(end, state.truncate_to)
        write_follower_state(state_directory, replace(state, truncate_to=known))


def _read(state_directory: Path) -> Iterator[tuple[str, FollowerState | None]]:
    for path in sorted((state_directory / FOLLOWERS_DIRECTORY).glob("*.json")):
        try:
            yield path.stem, FollowerState(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            yield path.stem, None
