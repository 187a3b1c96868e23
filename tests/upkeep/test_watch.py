"""The readings that ``reput top`` shows: rates between two of them, and what becomes unknown."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.errors import StoreError, UsageError
from reput.store.log.record import Record
from reput.streaming.measures import Durations
from reput.upkeep.checkpoints import spark_directory_of
from reput.upkeep.watch import outputs as watch
from reput.upkeep.watch.metrics import RunsCollector
from reput.upkeep.watch.metricsserver import MetricsServer
from reput.upkeep.watch.outputs import OutputWatch, Reading
from reput.upkeep.watch.stages import Stage, StageReader
from tests.support.live_store import LiveStore
from tests.upkeep.test_metrics import Scene


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
    stages = scene.measures.stages
    stages["sync"] = Durations()
    stages["sync"].add(0.5)
    with scene.server:
        reader = StageReader("127.0.0.1", scene.server.port, scene.store)

        def served() -> Stage:
            """The stage once the run serves what it has measured, which takes up to a second."""
            while True:
                found = reader.read()
                assert found.store == str(scene.store)
                if [one.seconds for one in found.stages] == [stages["sync"].sum]:
                    return found.stages[0]

        assert served().recent_ms is None
        stages["sync"].add(0.25)
        assert served().recent_ms == 250.0
        stages["sync"].add(0.75)
        assert served() == Stage("sync", 3, 1.5, 500.0)
        another = Durations()
        another.add(0.125)
        stages["sync"] = another
        assert served().recent_ms is None
        another.add(0.5)
        assert served().recent_ms == 500.0
    with pytest.raises(StoreError, match=f"port {scene.server.port}: .*refused; give the address"):
        reader.read()


def test_of_several_stores_the_one_that_is_watched_is_shown(tmp_path: Path) -> None:
    """Any path may name it, here and to the run; a run of others alone is no run of this store."""
    scenes = [Scene(tmp_path / name) for name in ("a", "b", "c")]
    for number, scene in enumerate(scenes):
        scene.measures.stage("sync").add(number)
    links = [tmp_path / "link", tmp_path / "runs link"]
    for link in links:
        link.symlink_to(scenes[1].store)
    linked = replace(scenes[1].config, store=links[1])
    runs = [(scenes[0].config, scenes[0].measures), (linked, scenes[1].measures)]
    with MetricsServer("127.0.0.1", 0, RunsCollector(lambda: runs, "1")) as server:
        for path in (scenes[1].store, *links):
            (stage,) = StageReader("127.0.0.1", server.port, path).read().stages
            assert stage.seconds == 1
        with pytest.raises(StoreError, match=r"it is of other stores: .*/a/plain, .*/runs link"):
            StageReader("127.0.0.1", server.port, scenes[2].store).read()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"pip install 'reput\[metrics\]'"):
        StageReader("127.0.0.1", 1, Path())
