"""The readings that ``reput top`` shows: rates between two of them, and what becomes unknown."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.config import read_store_settings
from store.errors import StoreError, UsageError
from store.log.record import Record
from tests.support.live_store import LiveStore
from tests.upkeep.test_metrics import Scene
from upkeep import watch
from upkeep.checkpoints import spark_directory_of
from upkeep.stages import StageReader
from upkeep.watch import OutputWatch, Reading


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveStore]:
    """Four messages of topic T, all dispatched."""
    with LiveStore(tmp_path) as store:
        store.append_tags(b"A", b"B", b"C", b"D")
        store.dispatch()
        yield store


@pytest.fixture
def watched(live: LiveStore) -> Iterator[OutputWatch]:
    settings = read_store_settings(live.root)
    with OutputWatch(settings, live.output, spark_directory_of(live.output, None)) as opened:
        yield opened


def bounds(reading: Reading) -> dict[str, tuple[int | None, int | None]]:
    """Topic -> min and max offset of its one queue."""
    assert reading.queues is not None
    return {one.topic: (one.min_offset, one.max_offset) for one in reading.queues}


def test_rates_are_what_came_between_two_readings(live: LiveStore, watched: OutputWatch) -> None:
    """A queue that is new has got all that it holds; before a second reading nothing is known."""
    before = time.monotonic()
    first = watched.read()
    assert (first.appended_rate, first.dispatched_rate) == (None, None)
    assert [one.rate for one in first.queues or ()] == [None]
    between = time.monotonic()
    live.append_tags(b"E", b"F")
    live.append([Record(topic=b"New", body=b"x")] * 3)
    live.dispatch()
    began = time.monotonic()
    second = watched.read()
    longest, shortest = time.monotonic() - before, began - between
    size = (second.watermark or 0) - (first.watermark or 0)
    assert size > 0
    assert second.dispatched_rate == second.appended_rate is not None
    assert size / longest <= second.dispatched_rate <= size / shortest
    rates = {one.topic: one.rate for one in second.queues or ()}
    assert rates["T"] is not None and rates["New"] is not None
    assert rates["New"] == pytest.approx(1.5 * rates["T"])
    assert bounds(second) == {"T": (0, 6), "New": (0, 3)}


def test_a_rewind_begins_rates_anew(live: LiveStore, watched: OutputWatch) -> None:
    """A rate below 0 is none, and what was before the cut does not count."""
    path = live.output / "reput" / "watermark"
    low = path.read_bytes()
    watched.read()
    live.append_tags(b"E")
    live.dispatch()
    assert watched.read().dispatched_rate
    path.write_bytes(low)
    found = watched.read()
    assert found.dispatched_rate is None
    assert bounds(found) == {"T": (0, 4)}


def test_files_that_change_under_an_open_queue_are_noticed(
    live: LiveStore, watched: OutputWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another size, and a queue that is gone; the others are read on."""
    monkeypatch.setattr(watch, "REOPEN_SECONDS", -1.0)
    live.append([Record(topic=topic, body=b"x") for topic in (b"A", b"B")])
    live.dispatch()
    assert bounds(watched.read()) == {"A": (0, 1), "B": (0, 1), "T": (0, 4)}
    for path in (live.output / "consumequeue" / "A" / "0").iterdir():
        path.unlink()
    (live.output / "consumequeue" / "A" / "0").rmdir()
    (file,) = (live.output / "consumequeue" / "B" / "0").iterdir()
    with file.open("ab") as appended:
        appended.write(b"x")
    found = watched.read()
    assert bounds(found) == {"B": (None, None), "T": (0, 4)}
    assert str(file) in found.unreadable["queues"]


def test_damage_of_a_checkpoint_counts_if_it_lasts(live: LiveStore, watched: OutputWatch) -> None:
    """Spark removes files of old batches while they are read."""
    offsets = live.output / "reput" / "spark" / "offsets"
    offsets.mkdir(parents=True)
    for name in ("0", "1", "1"):
        (offsets / name).write_text("v1\n{}\n")
        damage = watched.read().damage
        (offsets / name).unlink()
    (line,) = (line for line in damage if line.startswith("offsets/"))
    assert line.startswith("offsets/1 ")


def test_stages_are_those_that_the_run_serves(tmp_path: Path) -> None:
    """With the mean of the last seconds; a run that began since counts from its start, and where
    none answers this is an error."""
    scene = Scene(tmp_path)
    with scene.server:
        reader = StageReader("127.0.0.1", scene.server.port)
        for seconds in (0.5, 0.25, 0.75):
            scene.measures.stage("sync").add(seconds)
            found = reader.read()
        assert found.store == str(scene.store)
        (stage,) = found.stages
        assert (stage.name, stage.count, stage.seconds, stage.recent_ms) == ("sync", 3, 1.5, 500.0)
        del scene.measures.stages["sync"]
        scene.measures.stage("sync").add(0.125)
        assert [one.recent_ms for one in reader.read().stages] == [None]
        scene.measures.stage("sync").add(0.5)
        assert [one.recent_ms for one in reader.read().stages] == [500.0]
    with pytest.raises(StoreError, match=f"port {scene.server.port}: .*refused; give the address"):
        reader.read()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"pip install 'reput\[metrics\]'"):
        StageReader("127.0.0.1", 1)
