"""kill -9 of the whole process tree of a live run, at random moments, again and again."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from reput.sources.plainspark import PLAIN_VARIABLE
from reput.store.files import STATE_DIRECTORY
from reput.store.state.watermark import read_watermark
from tests.streaming.test_golden import dispatch
from tests.support.childruns import ChildRun, check_whole, growing_log, kill_runs
from tests.support.cli import REPUT, reput_json
from tests.support.golden import difference

pytestmark = pytest.mark.usefixtures("spark")
LONGEST_START_SECONDS = 8.0


def _run(directory: Path, trigger: str, plain_spark: str = "") -> ChildRun:
    """A run of ``directory``'s store, in batches of so many bytes."""
    output = directory / "output"
    command = [*REPUT, "run", directory / "store", "--output", output]
    command += ["--max-bytes-per-trigger", trigger]
    environment = {PLAIN_VARIABLE: plain_spark}
    return ChildRun(directory / "log", command, output, environment=environment)


def _kill_catch_ups(
    tmp_path: Path, messages: int, rounds: int, seed: int, plain_spark: str = ""
) -> None:
    """Kill catch-ups whose batches are large enough to be written while the next one is scanned."""
    print(f"seed={seed}")
    rng = random.Random(seed)
    store, output, plain = tmp_path / "store", tmp_path / "output", tmp_path / "plain"
    reput_json("produce", store, "--count", messages, "--rate", 0, "--topics", 5)
    undisturbed = dispatch(store, plain)
    assert undisturbed.counts.messages == messages
    for _ in range(rounds):
        watermark = read_watermark(output / STATE_DIRECTORY)
        if watermark is not None and watermark.end_offset == undisturbed.end_offset:
            assert difference(output / "consumequeue", plain / "consumequeue") == []
            shutil.rmtree(output)
        with _run(tmp_path, "64m", plain_spark) as run:
            run.wait_for_moves(rng.randint(1, 3), undisturbed.end_offset)
            time.sleep(rng.random() * 0.3)  # the moment is random, not an event
            assert (output / STATE_DIRECTORY / "abort").exists()
    assert dispatch(store, output).end_offset == undisturbed.end_offset
    check_whole(output, plain)


def _kill_rounds(tmp_path: Path, rounds: int, seed: int) -> None:
    print(f"seed={seed}")
    rng = random.Random(seed)
    store, output, plain = tmp_path / "store", tmp_path / "output", tmp_path / "plain"
    with growing_log(store, 4000, "--topics", 5, "--queues", 3):
        kill_runs(
            lambda: _run(tmp_path, "300k"), rng, rounds,
            lambda run: run.wait_for_moves(rng.randint(1, 6)), LONGEST_START_SECONDS,
        )  # fmt: skip
    last, undisturbed = dispatch(store, output), dispatch(store, plain)
    assert last.end_offset == undisturbed.end_offset > 0
    assert undisturbed.counts.messages > 0
    check_whole(output, plain)


@pytest.mark.extended
@pytest.mark.parametrize(
    "plain_spark",
    [pytest.param("", id="fast"), pytest.param("1", id="plain", marks=pytest.mark.slow)],
)
def test_killed_catch_ups_end_equal_to_an_undisturbed_one(tmp_path: Path, plain_spark: str) -> None:
    """Once in a backlog of five batches; no spool file is left."""
    seed = int(os.environ.get("REPUT_TEST_SEED", "20260103"))
    _kill_catch_ups(tmp_path, 600_000, 1, seed, plain_spark)


@pytest.mark.slow
def test_thirty_killed_catch_ups_end_equal_to_an_undisturbed_one(tmp_path: Path) -> None:
    """Thirty rounds over ten batches; a complete output is removed and built again."""
    _kill_catch_ups(tmp_path, 1_200_000, 30, int(os.environ.get("REPUT_TEST_SEED", "20260104")))


@pytest.mark.slow
def test_hundred_killed_runs_end_equal_to_an_undisturbed_one(tmp_path: Path) -> None:
    """Runs with batches of milliseconds; test_kill_followers.py has a few such rounds, with a
    table."""
    _kill_rounds(tmp_path, 100, int(os.environ.get("REPUT_TEST_SEED", "20260102")))
