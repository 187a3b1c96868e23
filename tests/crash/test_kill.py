"""kill -9 of the whole process tree of a live run, at random moments, again and again."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from reput.sources.plainspark import PLAIN_VARIABLE
from reput.store.files import STATE_DIRECTORY
from reput.store.state.watermark import read_watermark
from tests.streaming.test_golden import dispatch
from tests.support.cli import REPUT, ROOT, kill_tree, reput_json
from tests.support.golden import difference

pytestmark = pytest.mark.usefixtures("spark")
POLL_SECONDS = 0.01
FIRST_BATCH_TIMEOUT = 120.0


def _sequence(output: Path) -> int:
    found = read_watermark(output / STATE_DIRECTORY)
    return found.sequence if found else 0


def _end_offset(output: Path) -> int:
    found = read_watermark(output / STATE_DIRECTORY)
    return found.end_offset if found else 0


def _wait_for_batches(
    process: subprocess.Popen[bytes], output: Path, wanted: int, log_end: int | None = None
) -> None:
    """Wait until the run has moved the watermark ``wanted`` times (taking over is the first), or to
    the end of a log that does not grow."""
    before, deadline = _sequence(output), time.monotonic() + FIRST_BATCH_TIMEOUT
    while _sequence(output) < before + wanted and _end_offset(output) != log_end:
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < deadline, "no batch came"
        time.sleep(POLL_SECONDS)  # polls a file of another process


def _kill_catch_ups(
    tmp_path: Path, messages: int, rounds: int, seed: int, plain_spark: str = ""
) -> None:
    """Kill catch-ups whose batches are large enough to be written while the next one is scanned."""
    print(f"seed={seed}")
    rng = random.Random(seed)
    store, output, plain = tmp_path / "store", tmp_path / "output", tmp_path / "plain"
    reput_json("produce", store, "--count", messages, "--rate", 0, "--topics", 5)
    run = [*REPUT, "run", str(store), "--output", str(output), "--max-bytes-per-trigger", "64m"]
    environment = {**os.environ, PLAIN_VARIABLE: plain_spark}
    undisturbed = dispatch(store, plain)
    assert undisturbed.counts.messages == messages
    for _ in range(rounds):
        if _end_offset(output) == undisturbed.end_offset:
            assert difference(output / "consumequeue", plain / "consumequeue") == []
            shutil.rmtree(output)
        process = subprocess.Popen(
            run, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait_for_batches(process, output, rng.randint(1, 3), undisturbed.end_offset)
            time.sleep(rng.random() * 0.3)  # the moment is random, not an event
            assert (output / STATE_DIRECTORY / "abort").exists()
        finally:
            kill_tree(process.pid)
            process.wait()
    assert dispatch(store, output).end_offset == undisturbed.end_offset
    assert difference(output / "consumequeue", plain / "consumequeue") == []
    assert not (output / STATE_DIRECTORY / "quarantine.jsonl").exists()
    assert list((output / STATE_DIRECTORY / "spool").iterdir()) == []
    assert not (output / STATE_DIRECTORY / "abort").exists()


def _kill_rounds(tmp_path: Path, rounds: int, seed: int) -> None:
    print(f"seed={seed}")
    rng = random.Random(seed)
    store, output, plain = tmp_path / "store", tmp_path / "output", tmp_path / "plain"
    produce = [
        *REPUT, "produce", str(store), "--rate", "4000", "--seconds", "100000",
        "--commitlog-file-size", "8m", "--topics", "5", "--queues", "3",
    ]  # fmt: skip
    run = [*REPUT, "run", str(store), "--output", str(output), "--max-bytes-per-trigger", "300k"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}
    producer = subprocess.Popen(produce, **quiet)  # type: ignore[call-overload]
    try:
        while not (store / "broker.conf").exists():
            assert producer.poll() is None
            time.sleep(POLL_SECONDS)
        for _ in range(rounds):
            process = subprocess.Popen(run, **quiet)  # type: ignore[call-overload]
            try:
                if rng.random() < 0.75:
                    _wait_for_batches(process, output, rng.randint(1, 6))
                    time.sleep(rng.random() * 0.5)  # the moment is random, not an event
                else:
                    time.sleep(rng.random() * 8)
            finally:
                kill_tree(process.pid)
                process.wait()
    finally:
        producer.terminate()
        producer.wait()
    last, undisturbed = dispatch(store, output), dispatch(store, plain)
    assert last.end_offset == undisturbed.end_offset > 0
    assert undisturbed.counts.messages > 0
    assert difference(output / "consumequeue", plain / "consumequeue") == []
    assert not (output / STATE_DIRECTORY / "quarantine.jsonl").exists()


@pytest.mark.parametrize(
    "plain_spark", [pytest.param("", id="fast"), pytest.param("1", id="plain")]
)
def test_killed_catch_ups_end_equal_to_an_undisturbed_one(tmp_path: Path, plain_spark: str) -> None:
    """Two rounds over a backlog of five batches; no spool file is left."""
    seed = int(os.environ.get("REPUT_TEST_SEED", "20260103"))
    _kill_catch_ups(tmp_path, 600_000, 2, seed, plain_spark)


@pytest.mark.slow
def test_thirty_killed_catch_ups_end_equal_to_an_undisturbed_one(tmp_path: Path) -> None:
    """Thirty rounds over ten batches; a complete output is removed and built again."""
    _kill_catch_ups(tmp_path, 1_200_000, 30, int(os.environ.get("REPUT_TEST_SEED", "20260104")))


@pytest.mark.slow
def test_hundred_killed_runs_end_equal_to_an_undisturbed_one(tmp_path: Path) -> None:
    """Runs with batches of milliseconds; test_kill_followers.py has a few such rounds, with a
    table."""
    _kill_rounds(tmp_path, 100, int(os.environ.get("REPUT_TEST_SEED", "20260102")))
