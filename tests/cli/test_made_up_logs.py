"""``produce`` and ``demo``: what they write and say, and what they leave of directories."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from reput.store.errors import StoreError
from reput.workload import demo
from tests.cli.test_errors import assert_one_line
from tests.support.cli import Call, json_object
from tests.support.golden import log_records


def test_a_summary_is_of_what_this_run_has_appended(tmp_path: Path, call: Call) -> None:
    """The log's end is that of all runs."""
    produce = ("produce", tmp_path / "s", "--commitlog-file-size", "256k", "--json", "--count")
    first = json_object(call(*produce, 30))
    second = json_object(call(*produce, 7))
    records = log_records(tmp_path / "s")
    sizes = [record.total_size for record in records]
    assert len(records) == 37
    assert (first["messages"], first["bytes"]) == (30, sum(sizes[:30]))
    assert (second["messages"], second["bytes"]) == (7, sum(sizes[30:]))
    assert (first["end_offset"], second["end_offset"]) == (sum(sizes[:30]), sum(sizes))


def test_bodies_follow_the_seed(tmp_path: Path, call: Call) -> None:
    """One seed gives the same bodies again, and another one others."""

    def bodies(name: str, *seed: object) -> list[bytes]:
        size = ("--commitlog-file-size", "256k", "--count", 20, "--size", 64)
        assert call("produce", tmp_path / name, *size, *seed).returncode == 0
        return [record.body for record in log_records(tmp_path / name)]

    first = bodies("a", "--seed", 7)
    assert {len(body) for body in first} == {64}
    assert bodies("b", "--seed", 7) == first
    assert bodies("c", "--seed", 8) != first
    assert bodies("d", "--seed", 1) == bodies("e")


def test_a_file_is_no_store_to_write_to(tmp_path: Path, call: Call) -> None:
    """It is left as it is."""
    file = tmp_path / "notes"
    file.write_text("mine")
    assert_one_line(call("produce", file, "--count", 1), 2, f"{file} is not a directory")
    assert file.read_text() == "mine"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """The directories in which a demo has begun, left a file, and found a wrong message."""
    places: list[Path] = []

    def run(_plan: object, place: Path, *_: object) -> None:
        places.append(place)
        place.mkdir(exist_ok=True)
        (place / "log").touch()
        raise StoreError("a wrong message")

    monkeypatch.setattr(demo, "run_demo", run)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return places


def test_a_demo_keeps_the_directory_that_was_given(
    tmp_path: Path, call: Call, failing: list[Path]
) -> None:
    """With what it was doing when it failed."""
    for name in ("new", "empty"):
        given = tmp_path / name
        if name == "empty":
            given.mkdir()
        assert_one_line(call("demo", "--dir", given), 1, "a wrong message")
        assert [path.name for path in given.iterdir()] == ["log"]
    assert failing == [tmp_path / "new", tmp_path / "empty"]


def test_a_demo_removes_the_directory_that_it_has_made(
    tmp_path: Path, call: Call, failing: list[Path]
) -> None:
    """A demo that fails would fill a disk otherwise."""
    assert_one_line(call("demo"), 1, "a wrong message")
    (place,) = failing
    assert place.parent == tmp_path / "temporary"
    assert not place.exists()


def test_a_demo_takes_no_directory_with_files(
    tmp_path: Path, call: Call, failing: list[Path]
) -> None:
    """They could be a store's; nothing is written beside them."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    done = call("demo", "--dir", tmp_path / "mine")
    assert_one_line(done, 2, "is not empty; the demo wants a directory of its own")
    assert failing == []
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
