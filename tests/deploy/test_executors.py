"""Executors that write whole queues, on a real standalone cluster whose workers are killed."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from glob import iglob
from pathlib import Path

import pytest

from tests.support.cli import reput
from tests.support.golden import difference
from tests.support.standalone import Cluster, finished, standalone_cluster, submission

POLL_SECONDS = 0.005
PARTS, KILLS = 5, 10
MESSAGES = 550_000
"""A log of 256 MiB."""


@pytest.mark.slow
def test_a_worker_killed_while_it_writes_changes_no_byte(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """RocketMQ's bytes of every kind of queue, and nothing else is left; executors wrote them."""
    store, output = golden("queues-5.5.1"), tmp_path / "output"
    call = ("rebuild", store, "--output", output, "--executors", "--json")
    settings = {"spark.default.parallelism": "2"}
    with standalone_cluster(tmp_path, (1, 1)) as cluster:
        process = submission(tmp_path, cluster.url, *call, settings=settings)
        while process.poll() is None and not [*output.glob(".reput-rebuild/epoch-*/attempt-*")]:
            time.sleep(POLL_SECONDS)
        cluster.kill_worker(0)
        was_running = process.poll() is None
        done = finished(process)
    assert done.returncode == 0, done.stdout
    assert was_running
    for kind in ("consumequeue", "consumequeue_ext", "batchconsumequeue"):
        assert difference(output / kind, store / kind) == []
    assert json.loads(done.stdout.splitlines()[-1])["messages"] == 546
    assert not [*output.glob(".reput*")]


def _work_of(output: Path) -> set[str]:
    """The files and directories that tasks of both stages have made so far."""
    # Path.glob raises where a directory is removed meanwhile
    attempts = f"{output}/.reput-rebuild/epoch-*/attempt-*"
    shuffled = f"{output.parent}/local/**/shuffle_*.data"
    return {*iglob(attempts), *iglob(shuffled, recursive=True)}  # noqa: PTH207


def _kill_while_it_runs(
    process: subprocess.Popen[str], cluster: Cluster, output: Path, rng: random.Random
) -> int:
    """Kill a worker after every few tasks, at a random moment, and start another one in its place,
    until the end of a job; return the number of kills."""
    kills = 0
    while True:
        before, wanted = _work_of(output), rng.randrange(2, 10)
        while len(_work_of(output) - before) < wanted:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10 * POLL_SECONDS)
                return kills
        time.sleep(rng.uniform(0, 0.5))
        cluster.kill_worker(rng.randrange(len(cluster.workers)))
        cluster.add_worker(1)
        kills += 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_fifty_killed_workers_change_no_byte(tmp_path: Path, seed: int, part: int) -> None:
    """A log of 256 MiB, rebuilt again and again while one of three workers is killed after every
    few tasks; the bytes are those of one writer, and nothing else is left."""
    rng = random.Random(f"{seed}:{part}")
    store, one, output = tmp_path / "store", tmp_path / "one", tmp_path / "output"
    shape = ("--topics", 8, "--queues", 4, "--size", 300, "--rate", 0, "--seed", seed)
    size = ("--commitlog-file-size", "16m")
    assert reput("produce", store, "--count", MESSAGES, *shape, *size).returncode == 0
    done = reput("run", store, "--output", one, "--once", "--no-index", timeout=600)
    assert done.returncode == 0, done.stderr
    call = ("rebuild", store, "--output", output, "--executors", "--only", "consumequeue")
    settings = {"spark.default.parallelism": "3"}
    kills = rounds = 0
    with standalone_cluster(tmp_path, (1, 1, 1)) as cluster:
        while kills < KILLS:
            process = submission(tmp_path, cluster.url, *call, "--json", settings=settings)
            killed = _kill_while_it_runs(process, cluster, output, rng)
            done = finished(process)
            kills, rounds = kills + killed, rounds + 1
            print(f"round={rounds} kills={killed} of {kills} exit={done.returncode}")
            assert done.returncode == 0, done.stdout
            assert json.loads(done.stdout.splitlines()[-1])["messages"] == MESSAGES
            assert difference(output / "consumequeue", one / "consumequeue") == []
            assert not [*output.glob(".reput*")]
            shutil.rmtree(output)
