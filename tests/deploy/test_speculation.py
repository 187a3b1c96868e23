"""A task that stands still on a real standalone cluster: Spark starts another attempt beside it,
and the first one goes on when nobody waits for it any more."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from reput.checkpoints.swap import build_root
from reput.store.files import ASIDE_DIRECTORY, STATE_DIRECTORY
from reput.store.state.watermark import read_watermark
from tests.support.cli import kill_tree, reput
from tests.support.golden import difference
from tests.support.processes import became, name_of, open_files, process_tree
from tests.support.standalone import (
    JOB_TIMEOUT,
    RECIPE,
    Cluster,
    finished,
    standalone_cluster,
    submission,
)

pytestmark = pytest.mark.slow
SPECULATION = {
    "spark.default.parallelism": "2",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.task.duration.threshold": "2s",
    # otherwise Spark kills the first attempt's process two seconds after the other one has ended
    "spark.python.task.killTimeout": "1h",
}
POLL_SECONDS = 0.001
MESSAGES = 400_000
ROUNDS = 5
TASK_START = "SparkListenerTaskStart"
APPLICATION = str(RECIPE / "reput_job.py")
KINDS = ("consumequeue", "consumequeue_ext", "batchconsumequeue")


def _python_of(cluster: Cluster) -> list[psutil.Process]:
    """The Python processes of all executors."""
    return [one for worker in cluster.workers for one in _python_below(worker.process.pid)]


def _python_below(pid: int) -> list[psutil.Process]:
    return [one for one in process_tree(pid) if name_of(one).startswith("python")]


def _has_open(process: psutil.Process, place: Path) -> bool:
    """Whether a process has a file below a directory open."""
    with suppress(OSError):
        return open_files(place, process.pid) > 0
    return False  # it has ended


def _until(is_true: Callable[[], object]) -> None:
    assert became(is_true, JOB_TIMEOUT, POLL_SECONDS)


def _stop(process: psutil.Process) -> None:
    process.suspend()
    _until(lambda: process.status() == psutil.STATUS_STOPPED)


def _stop_at_work(cluster: Cluster, job: subprocess.Popen[str], place: Path) -> psutil.Process:
    """Stop the first task that has a file below a directory open, and still has it once stopped."""
    while job.poll() is None:
        for one in _python_of(cluster):
            if _has_open(one, place):
                with suppress(psutil.NoSuchProcess):
                    _stop(one)
                    if _has_open(one, place):
                        return one
                    one.resume()
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"the job ended before a task was seen: {job.communicate()}")


def _overtake(
    cluster: Cluster, job: subprocess.Popen[str], place: Path, is_done: Callable[[], bool]
) -> subprocess.CompletedProcess[str]:
    """Let a task that is at work below ``place`` stand still until the driver has the answer of the
    other attempt, and then go on while their application lives: the driver stands still for that
    time."""
    task = _stop_at_work(cluster, job, place)
    driver = next(one for one in _python_below(job.pid) if APPLICATION in one.cmdline())
    try:
        _until(lambda: is_done() or job.poll() is not None)
        assert job.poll() is None, job.communicate()
        _stop(driver)
        try:
            assert task.status() == psutil.STATUS_STOPPED
            task.resume()
            _until(lambda: not _has_open(task, place))
            assert job.poll() is None
        finally:
            driver.resume()
        return finished(job)
    finally:
        with suppress(psutil.NoSuchProcess):
            task.resume()
        if job.poll() is None:
            kill_tree(job.pid)


def _second_attempts(directory: Path) -> int:
    """Number of tasks that Spark started again beside a first attempt, in all jobs so far."""
    lines = (line for path in (directory / "events").iterdir() for line in path.open("r"))
    started = (event for event in map(json.loads, lines) if event["Event"] == TASK_START)
    return sum(event["Task Info"]["Speculative"] for event in started)


@pytest.mark.parametrize("command", [("run", "--once"), ("rebuild", "--executors")])
def test_a_scan_that_stands_still_is_done_by_another(
    golden: Callable[[str], Path], tmp_path: Path, command: tuple[str, str]
) -> None:
    """RocketMQ's bytes, and nothing is left of the first attempt."""
    store, output = golden("queues-5.5.1"), tmp_path / "output"
    name, flag = command

    def is_done() -> bool:
        if name == "rebuild":
            return (build_root(output) / KINDS[0]).exists()
        found = read_watermark(output / STATE_DIRECTORY)
        return found is not None and found.end_offset > 0

    with standalone_cluster(tmp_path, (1, 1)) as cluster:
        job = submission(
            tmp_path, cluster.url, name, store, "--output", output, flag, "--json",
            settings=SPECULATION,
        )  # fmt: skip
        done = _overtake(cluster, job, store / "commitlog", is_done)
    assert done.returncode == 0, done.stdout
    assert _second_attempts(tmp_path)
    for kind in KINDS:
        assert difference(output / kind, store / kind) == []
    assert not [*output.glob(".reput-*"), *output.glob("reput/spool/*")]


def test_a_write_that_stands_still_is_done_by_another(tmp_path: Path, seed: int) -> None:
    """The first attempt goes on while the other one's files are moved in."""
    store, one, output = tmp_path / "store", tmp_path / "one", tmp_path / "output"
    shape = ("--topics", 8, "--queues", 4, "--size", 100, "--rate", 0, "--seed", seed)
    assert reput("produce", store, "--count", MESSAGES, *shape).returncode == 0
    done = reput("run", store, "--output", one, "--once", "--no-index", timeout=600)
    assert done.returncode == 0, done.stderr
    call = ("rebuild", store, "--output", output, "--executors", "--only", "consumequeue")
    with standalone_cluster(tmp_path, (1, 1)) as cluster:
        for round_number in range(1, ROUNDS + 1):
            job = submission(tmp_path, cluster.url, *call, "--json", settings=SPECULATION)
            begun = build_root(output) / "consumequeue"
            done = _overtake(cluster, job, output / ASIDE_DIRECTORY, begun.exists)
            assert done.returncode == 0, done.stdout
            assert json.loads(done.stdout.splitlines()[-1])["messages"] == MESSAGES
            assert difference(output / "consumequeue", one / "consumequeue") == []
            assert not [*output.glob(".reput*")]
            print(f"round={round_number} second_attempts={_second_attempts(tmp_path)}")
            shutil.rmtree(output)
    assert _second_attempts(tmp_path) >= ROUNDS
