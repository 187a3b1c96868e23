"""A wait for space by itself; without Spark."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from store import fsops
from store.errors import NoSpaceError
from streaming import space
from streaming.measures import Measures
from streaming.space import SpaceWait


def test_work_is_tried_again_only_where_every_directory_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try costs a whole start of a query; one that found no room is followed by a look."""
    answers, steps = [True, False, False, True, True], list[str]()

    def look(directory: Path) -> bool:
        steps.append(directory.name)
        return answers.pop(0)

    def work() -> str:
        steps.append("work")
        assert len(steps) < 10
        if answers:
            raise NoSpaceError("full")
        return "done"

    monkeypatch.setattr(space, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(space, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(fsops, "has_space", look)
    places = [tmp_path / "a", tmp_path / "b"]
    for path in places:
        path.mkdir()
    waiting = list[bool]()
    measures = Measures()

    def while_waiting() -> None:
        waiting.append(measures.is_waiting)

    wait = SpaceWait(places, threading.Event(), while_waiting, measures)
    assert wait.retry(work) == "done"
    assert steps == ["work", "a", "b", "a", "a", "b", "work"]
    assert waiting == [True, True]
    assert (measures.is_waiting, measures.space_waits.cumulative) == (False, (1,))
