"""Values that follow from files, which others write at any moment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reput.store import filetimes
from reput.store.filetimes import LookTimer, Watched, is_settled, signature

LONG_AGO = 1_600_000_000


def write(path: Path, text: str) -> None:
    """A file that was last written long ago, as one that ``cp -p`` or ``mv`` brings."""
    path.write_text(text, "utf-8")
    os.utime(path, (LONG_AGO, LONG_AGO))


def test_a_file_that_is_replaced_during_a_read_is_read_again(tmp_path: Path) -> None:
    """Another file takes its place after its bytes were read, and is as old as that one."""
    path, other = tmp_path / "topics.json", tmp_path / "other"
    write(path, "first")
    write(other, "second one")

    def read() -> str:
        text = path.read_text("utf-8")
        if other.exists():
            other.replace(path)
        return text

    watched = Watched(path, read)
    assert watched.value() == "first"
    assert watched.value() == "second one"


def test_each_change_of_a_file_alone_is_seen(tmp_path: Path) -> None:
    """Another file of the same length and time; other bytes under the old time; another length; one
    that is as old as it was. What is not changed is the same."""
    path, other = tmp_path / "file", tmp_path / "other"
    write(path, "first")
    write(other, "other")
    before = signature(path)
    assert before == signature(path) is not None
    other.replace(path)
    replaced, changed = signature(path), path.stat().st_ctime_ns
    # the kernel's clock stands still for some milliseconds
    while path.stat().st_ctime_ns == changed:
        write(path, "bytes")
    rewritten = signature(path)
    write(path, "longer")
    longer = signature(path)
    os.utime(path, (LONG_AGO, LONG_AGO + 1))
    found = [before, replaced, rewritten, longer, signature(path)]
    assert len({*found}) == len(found)
    path.unlink()
    assert signature(path) is None


def test_a_young_file_may_change_within_its_time(tmp_path: Path) -> None:
    """Other file systems store two seconds; so what was written just now counts as changed, until
    it is looked at three seconds later."""
    path = tmp_path / "file"
    path.write_text("now")
    assert signature(path) != signature(path)
    at = 10**18
    assert not is_settled(at, at)
    assert not is_settled(at, at + 2 * 10**9)
    assert not is_settled(at, at - 10**10), "the clock of a file server may be ahead"
    assert is_settled(at, at + 3 * 10**9)


def test_a_file_that_is_not_there_is_read_when_it_comes(tmp_path: Path) -> None:
    """The meaning of its absence is found once; a reading that fails is tried again."""
    path, read = tmp_path / "file", list[str]()

    def text() -> str:
        read.append(path.read_text("utf-8") if path.exists() else "nothing")
        if read[-1] == "broken":
            raise ValueError
        return read[-1]

    watched = Watched(path, text)
    assert (watched.value(), watched.value(), read) == ("nothing", "nothing", ["nothing"])
    write(path, "broken")
    for _ in range(2):
        with pytest.raises(ValueError):
            watched.value()
    write(path, "sound")
    assert (watched.value(), watched.value()) == ("sound", "sound")
    assert read == ["nothing", "broken", "broken", "sound"]


def test_a_look_is_due_a_time_after_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once at first; being asked meanwhile does not put it off."""
    now = 0.0
    monkeypatch.setattr(filetimes.time, "monotonic", lambda: now)
    timer, due = LookTimer(2.0), list[float]()
    for now in (0.0, 1.0, 1.5, 2.0, 3.5, 3.9, 4.0, 9.0, 10.5, 11.0):
        if timer.is_due():
            due.append(now)
    assert due == [0.0, 2.0, 4.0, 9.0, 11.0]
