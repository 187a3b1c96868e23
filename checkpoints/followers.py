"""The positions of a log's followers, one small file each, for ``reput status``.

A follower's target keeps the position that counts (``store.follower``); the file holds what was
true when it was written. Only one fact is kept here alone: that a target still has to be truncated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from reput.store import fsops, jsontext
from reput.store.errors import StoreError
from reput.store.files import FOLLOWERS_DIRECTORY


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
    internal_left_out: int = 0
    """Internal records that were no rows (``store.rows.rowform``)."""
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
    """Yield the state of every follower that ever ran, by name. Raises StoreError for a file that
    cannot be read."""
    for path in _paths(state_directory):
        yield _read(path)


def read_follower_state(state_directory: Path, name: str) -> FollowerState | None:
    """Return the state of one follower; None if it never ran. Raises StoreError as
    ``read_follower_states``: a cut that its target has yet to make may stand in the file."""
    path = follower_file(state_directory, name)
    return _read(path) if path.exists() else None


def write_follower_state(state_directory: Path, state: FollowerState) -> None:
    """Replace a follower's file. Raises OutputError."""
    path = follower_file(state_directory, state.name)
    if not path.exists():
        fsops.make_directories(path.parent, state_directory)
    fsops.replace_file(path, json.dumps(asdict(state)).encode())


def note_truncation(state_directory: Path, end: int) -> None:
    """Record for every target, whether in use now or not, that it must drop messages from ``end``
    on. A file that cannot be read is replaced, because it too stands for a target. Raises
    OutputError."""
    for path in _paths(state_directory):
        stored_state = None
        with suppress(StoreError):
            stored_state = _read(path)
        state = stored_state or FollowerState(path.stem, "")
        truncate_to = end if state.truncate_to is None else min(end, state.truncate_to)
        write_follower_state(state_directory, replace(state, truncate_to=truncate_to))


def follower_file(state_directory: Path, name: str) -> Path:
    """Return the file of one follower, whether it exists or not."""
    return state_directory / FOLLOWERS_DIRECTORY / f"{name}.json"


def _paths(state_directory: Path) -> list[Path]:
    return sorted((state_directory / FOLLOWERS_DIRECTORY).glob("*.json"))


def _read(path: Path) -> FollowerState:
    try:
        return jsontext.build(FollowerState, jsontext.parse(path.read_text("utf-8")))
    except ValueError as error:
        raise StoreError(
            f"cannot read {path}, the state of a follower: {error}; remove it, then its position "
            "is read from its target again, and if the log was cut since the target last followed, "
            "make the target anew",
            path=path,
        ) from error
