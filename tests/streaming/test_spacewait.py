"""A wait for space by itself; without Spark."""

from __future__ import annotations

import os
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from reput.store import fsops
from reput.store.errors import NoSpaceError
from reput.streaming import space
from reput.streaming.measures import Measures
from reput.streaming.space import SpaceWait


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


def test_the_little_that_a_batch_has_found_too_little_is_not_tried_with_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try costs a whole start and an alarming line: it waits for more room than the batch had,
    and says that space is back when there is."""
    free = iter([6 << 20, 6 << 20, 6 << 20, 2 << 20, 9 << 20])
    tries = list[int]()

    def look(_directory: object) -> os.statvfs_result:
        left.append(next(free))
        return os.statvfs_result((4096, 1, 0, left[-1], left[-1], 0, 0, 0, 0, 255))

    def work() -> str:
        tries.append(len(left))
        if len(tries) == 1:
            raise NoSpaceError("a batch needs more")
        return "done"

    left = list[int]()
    monkeypatch.setattr(space, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(space, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(os, "statvfs", look)
    monkeypatch.setattr(fsops, "has_space", lambda _: True)
    with caplog.at_level("INFO", "reput"):
        assert SpaceWait([tmp_path], threading.Event()).retry(work) == "done"
    assert (tries, left[-1]) == ([0, 5], 9 << 20)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_a_quota_that_has_room_again_shows_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system's free bytes stay the same: that a trial write failed before is enough."""
    answers, tries = [False, False, True], list[int]()

    def work() -> str:
        tries.append(len(answers))
        if len(tries) == 1:
            raise NoSpaceError("over quota")
        return "done"

    left = os.statvfs_result((4096, 1, 0, 1 << 20, 1 << 20, 0, 0, 0, 0, 255))
    looks = iter(range(20))
    monkeypatch.setattr(space, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(space, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(os, "statvfs", lambda _: left)
    monkeypatch.setattr(fsops, "has_space", lambda _: answers.pop(0) if answers else True)
    wait = SpaceWait([tmp_path], threading.Event(), lambda: next(looks) and None)
    assert wait.retry(work) == "done"
    assert tries == [3, 0]


def test_each_wait_is_told_by_its_own_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither of two waits includes the time between them."""
    clock, answers = [1000.0], [False, True, False, True]

    def pass_by(seconds: float) -> None:
        clock[0] += seconds

    def work() -> str:
        pass_by(5000.0)
        if answers:
            raise NoSpaceError("full")
        return "done"

    monkeypatch.setattr(space, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(space, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(space, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(fsops, "has_space", lambda _: answers.pop(0))
    with caplog.at_level("INFO", "reput"):
        wait = SpaceWait([tmp_path], threading.Event(), lambda: pass_by(40.0))
        assert wait.retry(work) == "done"
    ends = [record.message for record in caplog.records if record.levelname == "INFO"]
    assert ends == ["space is back after 40 s"] * 2


def test_room_that_does_not_show_is_tried_after_the_longest_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a batch needs less than the one that failed, or the file system does not tell."""
    failures = [NoSpaceError("full")] * 3

    def work() -> str:
        if failures:
            raise failures.pop()
        return "done"

    few = os.statvfs_result((4096, 1, 0, 9, 9, 0, 0, 0, 0, 255))
    monkeypatch.setattr(space, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(space, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(space, "LAST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(os, "statvfs", lambda _: few)
    monkeypatch.setattr(fsops, "has_space", lambda _: True)
    assert SpaceWait([tmp_path], threading.Event()).retry(work) == "done"


def test_one_roomy_disk_of_two_is_no_reason_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint's disk has much room, and the output's as little as before, until it gets
    some."""
    few, much = 6 << 20, 1 << 40
    left, tries = {"output": few, "checkpoint": much}, list[int]()

    def look(directory: Path) -> os.statvfs_result:
        free = left[directory.name]
        return os.statvfs_result((4096, 1, 0, free, free, 0, 0, 0, 0, 255))

    def work() -> str:
        tries.append(left["output"])
        if len(tries) == 1:
            raise NoSpaceError("a batch needs more")
        return "done"

    looks = iter(range(6))

    def while_waiting() -> None:
        left["output"] += next(looks) // 5

    for name in left:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(space, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(space, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(os, "statvfs", look)
    monkeypatch.setattr(fsops, "has_space", lambda _: True)
    places = [tmp_path / name for name in left]
    assert SpaceWait(places, threading.Event(), while_waiting).retry(work) == "done"
    assert tries == [few, few + 1]


def test_pauses_double_up_to_the_longest_and_begin_anew_after_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try costs a whole start; one that has come further was worth it."""
    clock, starts = [0.0], list[float]()
    much = os.statvfs_result((4096, 1, 0, 1 << 40, 1 << 40, 0, 0, 0, 0, 255))

    def pass_by() -> None:
        clock[0] += 0.25

    def work() -> str:
        starts.append(clock[0])
        if len(starts) == 9:
            wait.progressed()
        if len(starts) < 12:
            raise NoSpaceError("full")
        return "done"

    monkeypatch.setattr(space, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(space, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(os, "statvfs", lambda _: much)
    monkeypatch.setattr(fsops, "has_space", lambda _: True)
    wait = SpaceWait([tmp_path], threading.Event(), pass_by)
    assert wait.retry(work) == "done"
    pauses = [after - before for before, after in pairwise(starts)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 0.5, 1, 2]


def test_a_wait_that_is_stopped_names_the_file_that_found_no_room(tmp_path: Path) -> None:
    """A program asks the error for it, as it would without a wait."""
    stop = threading.Event()
    stop.set()

    def work() -> None:
        raise NoSpaceError("full", path=tmp_path / "queue")

    with pytest.raises(NoSpaceError, match="full") as caught:
        SpaceWait([tmp_path], stop).retry(work)
    assert caught.value.path == str(tmp_path / "queue")
