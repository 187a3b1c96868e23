"""Rare states as ``top``, ``status`` and the metrics show them.

A log that was cut below a follower, a run of another machine, a broker's own store, faults that
last.
"""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from reput.checkpoints.followers import FollowerState, write_follower_state
from reput.store.config import read_store_settings
from reput.store.state.watermark import Watermark, read_watermark
from reput.streaming.progress import Progress
from reput.upkeep.checkpoints import spark_directory_of
from reput.upkeep.verify.positions import rewrite_watermark
from reput.upkeep.watch.metrics import RunsCollector
from reput.upkeep.watch.metricsserver import MetricsServer
from reput.upkeep.watch.outputs import OutputWatch
from reput.upkeep.watch.stages import StageReader
from reput.upkeep.watch.status import follower_statuses
from tests.streaming.test_begin_again import Site
from tests.support.golden import tree
from tests.upkeep.test_metrics import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize(
    ("position", "lag"), [(90, 10), (100, 0), (101, 0), (0, 100), (None, None)]
)
def test_a_follower_beyond_a_log_that_was_cut_has_no_lag(
    tmp_path: Path, position: int | None, lag: int | None
) -> None:
    """Its target is still to be truncated; a lag below 0 would hide the others in a sum."""
    state = FollowerState("one", "table", position)
    write_follower_state(tmp_path / "reput", state)
    (found,) = follower_statuses(tmp_path, 100)
    assert (found.position, found.lag_bytes) == (position, lag)
    (found,) = follower_statuses(tmp_path, None)
    assert found.lag_bytes is None


def test_the_only_run_that_answers_is_the_one(scene: Scene, tmp_path: Path) -> None:
    """On another machine the store has another path."""
    scene.measures.stage("sync").add(0.5)
    elsewhere = replace(scene.config, store=Path("/on/another/machine"))
    collector = RunsCollector(lambda: [(elsewhere, scene.measures)], "1")
    with MetricsServer("127.0.0.1", 0, collector) as server:
        found = StageReader("127.0.0.1", server.port, tmp_path / "here").read()
    assert found.store == "/on/another/machine"
    assert [stage.seconds for stage in found.stages] == [0.5]


def test_followers_of_earlier_runs_are_no_series(scene: Scene) -> None:
    """Their files stay; an alert on their lag could not be ended."""
    scene.dispatch(1)
    for name in (scene.target.name, "old"):
        write_follower_state(scene.config.state_directory, FollowerState(name, "table", 0))
    found = {name for name in scene.scrape() if name.startswith("reput_follower_")}
    assert found and all('follower="delta"' in name for name in found)


def test_an_output_without_a_message_has_no_time_of_one(scene: Scene) -> None:
    """A time of 0 would be an age of fifty years."""
    scene.dispatch(2)
    name = "reput_last_message_timestamp_seconds"
    assert scene.scrape()[name] == scene.stored[1].store_timestamp / 1000
    found = read_watermark(scene.config.state_directory)
    assert isinstance(found, Watermark)
    rewrite_watermark(scene.config.state_directory, replace(found, last_store_timestamp=0))
    assert name not in scene.scrape()


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0, 1.5])
def test_a_recovery_is_never_more_than_done(scene: Scene, share: float) -> None:
    """The log may have been cut below the run's position."""
    scene.dispatch(1)
    end = int(scene.scrape()["reput_log_end_bytes"])
    begin = scene.stored[3].physical_offset
    progress = Progress(start_offset=begin, log_end=end)
    progress.position = begin + int(share * (end - begin))
    scene.measures.progress = progress
    ratio = scene.scrape()["reput_recovery_ratio"]
    assert ratio == pytest.approx(min(share, 1.0), abs=1e-4)
    scene.measures.progress = Progress(start_offset=end, log_end=end)
    assert scene.scrape()["reput_recovery_ratio"] == 1.0


def test_a_fault_that_lasts_is_logged_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once more where it comes again."""
    scene.dispatch(1)
    path = scene.config.state_directory / "followers" / "torn.json"
    path.parent.mkdir()
    warnings = []
    with caplog.at_level(logging.WARNING, "reput"):
        for is_torn in (False, True, True, True, False, False, True, True):
            path.write_text("{") if is_torn else path.unlink(missing_ok=True)
            found = scene.scrape()
            assert found['reput_unreadable{reason="followers"}'] == is_torn
            warnings.append(sum("metrics of the followers" in one for one in caplog.messages))
    assert warnings == [0, 1, 1, 1, 1, 1, 2, 2]


def test_the_page_has_two_names_and_no_others(scene: Scene) -> None:
    """A question mark and what follows it are no part of them."""
    with scene.server as server:
        url = f"http://127.0.0.1:{server.port}"
        for path in ("/", "/metrics", "/metrics?name=x"):
            with urllib.request.urlopen(url + path, timeout=30) as answer:
                assert answer.read().startswith(b"# HELP")
        for path in ("/metrics/", "/x", "/metricsx"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(url + path, timeout=30)
            with closing(caught.value):
                assert caught.value.code == 404


def test_queues_of_a_broker_end_where_its_log_does(tmp_path: Path) -> None:
    """Its units beyond are of messages that the log has lost."""
    site = Site(tmp_path)
    site.put("Orders", range(10))
    site.write()
    site.output.start()
    store = site.output.store
    for name, data in tree(site.output.root / "consumequeue").items():
        path = store / "consumequeue" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    site.plain.cut(site.plain.spans[-4][1])
    site.write()
    settings = read_store_settings(store)
    with OutputWatch(settings, store, spark_directory_of(store, None)) as watched:
        found = watched.read()
    assert found.watermark is None
    assert [(one.min_offset, one.max_offset) for one in found.queues or ()] == [(0, 7)]
