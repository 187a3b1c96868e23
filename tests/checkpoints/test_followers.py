"""The file of a follower keeps the cut of the log that its target has yet to make."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path

import pytest

from reput.checkpoints.followers import (
    FollowerState,
    note_truncation,
    read_follower_state,
    read_follower_states,
    write_follower_state,
)
from reput.store.errors import StoreError
from reput.store.files import FOLLOWERS_DIRECTORY
from tests.support.operations import killed_before
from tests.support.power_cuts import Disk
from tests.support.recorder import Recorder, read_tree

DAMAGED = (
    '{"name": "to', "", "null", "[]", "7", '"text"', '{"name": "a"}',
    pytest.param("[" * 100_000, id="deep"),
    '{"name": 1, "target": "t"}', '{"name": "a", "target": "t", "more": 1}',
    '{"name": "a", "target": "t", "position": "7"}', '{"name": "a", "target": "t", "rows": 1.5}',
    '{"name": "a", "target": "t", "rows": true}', '{"name": "a", "target": "t", "rows": null}',
    '{"name": "a", "target": "t", "truncate_to": [1]}',
    '{"name": "a", "target": "t", "counts": [1]}',
    '{"name": "a", "target": "t", "counts": {"b": "c"}}',
    '{"name": "a", "target": "t", "error": 5}',
)  # fmt: skip


def cuts(state: Path) -> dict[str, int | None]:
    """The cut that each follower has yet to make."""
    return {found.name: found.truncate_to for found in read_follower_states(state)}


def test_a_position_is_durable_after_a_kill_at_the_first_one(tmp_path: Path) -> None:
    """At any operation of it: the next run finds a directory that only the kernel knows."""
    is_killed = True
    for number in count(1):
        state = tmp_path / str(number)
        state.mkdir()
        with Recorder(state) as recorder:
            with killed_before(number):
                write_follower_state(state, FollowerState("one", "memory", position=1))
                is_killed = False
            write_follower_state(state, FollowerState("one", "memory", position=2))
        assert Disk.after(recorder).durable() == read_tree(state), f"{number=}"
        if not is_killed:
            break
    assert number > 4


def test_the_lowest_cut_counts_until_it_is_made(tmp_path: Path) -> None:
    """The log is cut, goes on, and is cut again, while a target does not run."""
    for name in ("one", "two"):
        write_follower_state(tmp_path, FollowerState(name, "memory", position=900, rows=9))
    assert cuts(tmp_path) == {"one": None, "two": None}
    for end, lowest in ((500, 500), (700, 500), (300, 300), (300, 300), (301, 300)):
        note_truncation(tmp_path, end)
        assert cuts(tmp_path) == {"one": lowest, "two": lowest}
    assert {(found.position, found.rows) for found in read_follower_states(tmp_path)} == {(900, 9)}
    write_follower_state(tmp_path, FollowerState("one", "memory", position=300))
    note_truncation(tmp_path, 700)
    assert cuts(tmp_path) == {"one": 700, "two": 300}


@pytest.mark.parametrize("text", DAMAGED)
def test_a_file_that_cannot_be_read_stands_for_a_target(tmp_path: Path, text: str) -> None:
    """The error names it and what to do. A cut is noted for it as well."""
    (tmp_path / FOLLOWERS_DIRECTORY).mkdir()
    path = tmp_path / FOLLOWERS_DIRECTORY / "torn.json"
    path.write_text(text)
    for read in (cuts, partial(read_follower_state, name="torn")):
        with pytest.raises(StoreError, match=f"cannot read {path}, .*; remove it"):
            read(tmp_path)
    assert read_follower_state(tmp_path, "other") is None
    note_truncation(tmp_path, 500)
    assert cuts(tmp_path) == {"torn": 500}
