"""A task that stands still on a real standalone cluster: Spark starts another attempt beside it,
and the first one goes on when nobody waits for it any more."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.support.cli import reput
from tests.support.golden import difference
from tests.support.processes import name_of, not_ended, process_tree
from tests.support.standalone import Cluster, finished, standalone_cluster, submission

SPECULATION = {
    "spark.default.parallelism": "2",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.task.duration.threshold": "2s",
}
POLL_SECONDS = 0.001
END_SECONDS = 60.0
MESSAGES = 400_000
ROUNDS = 5
TASK_START = "SparkListenerTaskStart"
KINDS = ("consumequeue", "consumequeue_ext", "batchconsumequeue")


def _python_of(cluster: Cluster) -> list[psutil.Process]:
    """The Python processes of all executors."""
    trees = (process_tree(worker.process.pid) for worker in cluster.workers)
    return [one for tree in trees for one in tree if name_of(one).startswith("python")]


def _writes_below(process: psutil.Process, directory: Path) -> bool:
    with suppress(OSError):
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(OSError):
                if entry.readlink().is_relative_to(directory):
                    return True
    return False


@contextmanager
def _standing_still(
    process: subprocess.Popen[str], find: Callable[[], psutil.Process | None]
) -> Iterator[psutil.Process | None]:
    """Stop a process as soon as it is found, let it go on after the block, and wait for its end;
    None where the job ends before."""
    while (found := find()) is None and process.poll() is None:
        time.sleep(POLL_SECONDS)
    if found is None:
        yield None
        return
    with suppress(psutil.NoSuchProcess):
        found.suspend()
    try:
        yield found
    finally:
        with suppress(psutil.NoSuchProcess):
            found.resume()
        assert not not_ended([found], END_SECONDS)


def _second_attempts(directory: Path) -> int:
    """Number of tasks that Spark started again beside a first attempt, in all jobs so far."""
    lines = (line for path in (directory / "events").iterdir() for line in path.open("r"))
    started = (event for event in map(json.loads, lines) if event["Event"] == TASK_START)
    return sum(event["Task Info"]["Speculative"] for event in started)


@pytest.mark.parametrize(
    "command",
    [("run", "--once"), pytest.param(("rebuild", "--executors"), marks=pytest.mark.slow)],
)
def test_a_scan_that_stands_still_is_done_by_another(
    golden: Callable[[str], Path], tmp_path: Path, command: tuple[str, str]
) -> None:
    """RocketMQ's bytes, and nothing is left of the first attempt."""
    store, output = golden("queues-5.5.1"), tmp_path / "output"
    name, flag = command
    with standalone_cluster(tmp_path, (1, 1)) as cluster:
        process = submission(
            tmp_path, cluster.url, name, store, "--output", output, flag, "--json",
            settings=SPECULATION,
        )  # fmt: skip
        with _standing_still(process, lambda: next(iter(_python_of(cluster)), None)) as stopped:
            done = finished(process)
    assert stopped is not None
    assert done.returncode == 0, done.stdout
    assert _second_attempts(tmp_path)
    for kind in KINDS:
        assert difference(output / kind, store / kind) == []
    assert not [*output.glob(".reput-*"), *output.glob("reput/spool/*")]


@pytest.mark.slow
def test_a_write_that_stands_still_is_done_by_another(tmp_path: Path, seed: int) -> None:
    """The first attempt goes on once the other one's files have been moved in."""
    store, one, output = tmp_path / "store", tmp_path / "one", tmp_path / "output"
    shape = ("--topics", 8, "--queues", 4, "--size", 100, "--rate", 0, "--seed", seed)
    assert reput("produce", store, "--count", MESSAGES, *shape).returncode == 0
    done = reput("run", store, "--output", one, "--once", "--no-index", timeout=600)
    assert done.returncode == 0, done.stderr
    call = ("rebuild", store, "--output", output, "--executors", "--only", "consumequeue")

    def writing(cluster: Cluster) -> psutil.Process | None:
        place = output / ".reput-rebuild"
        if not place.exists():
            return None
        return next((one for one in _python_of(cluster) if _writes_below(one, place)), None)

    with standalone_cluster(tmp_path, (1, 1)) as cluster:
        for round_number in range(1, ROUNDS + 1):
            process = submission(tmp_path, cluster.url, *call, "--json", settings=SPECULATION)
            with _standing_still(process, lambda: writing(cluster)) as stopped:
                done = finished(process)
            assert done.returncode == 0, done.stdout
            assert json.loads(done.stdout.splitlines()[-1])["messages"] == MESSAGES
            assert difference(output / "consumequeue", one / "consumequeue") == []
            assert not [*output.glob(".reput*")]
            print(f"round={round_number} stopped={stopped is not None}")
            shutil.rmtree(output)
    # a task whose files were synced and named when it was stopped needs no other attempt
    assert _second_attempts(tmp_path)
