"""The rows about live logs: their goals, a slow producer, and the use of the disk."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import live, producer
from bench.diskuse import SYNC_CALLS, DiskUse, disk_use
from bench.latency import Latencies
from bench.live import Goal, Run
from bench.processes import line_process
from reput.workload.appender import Appender
from reput.workload.messages import Workload

SYNCER = """
import ctypes, json, mmap, os, sys
libc = ctypes.CDLL(None)
print(json.dumps({}), flush=True)
for line in sys.stdin:
    with open(line.strip(), "w+b") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        os.fdatasync(file.fileno())
        libc.sync_file_range(file.fileno(), ctypes.c_long(0), ctypes.c_long(0), 2)
        libc.syncfs(file.fileno())
        os.sync()
        mmap.mmap(file.fileno(), 4096).flush()
        os.getpid()
    text = open("/proc/self/io").read().split()
    print(json.dumps({"written": int(text[text.index("write_bytes:") + 1])}), flush=True)
"""


def latencies(p50: float, p99: float, *, bounded: bool = True) -> Latencies:
    return Latencies(1000, p50, p99, p99, 10, bounded)


def run(cores: float, syncs: int | None, seconds: float = 10.0) -> Run:
    ends = np.zeros((1, 2), np.int64)
    return Run(ends, ends, ends, 1000, cores, DiskUse(seconds, syncs, 4096))


GOAL = Goal(8, 20, cores=0.10, durable_p99_ms=1200, syncs=20, bounded=True)


@pytest.mark.parametrize(
    ("change", "is_met"),
    [
        ({}, True),
        ({"visible": latencies(8.1, 20)}, False),
        ({"visible": latencies(8, 20.1)}, False),
        ({"visible": latencies(8, 20, bounded=False)}, False),
        ({"durable": latencies(600, 1201)}, False),
        ({"runs": [run(0.09, 200), run(0.12, 200)]}, False),
        ({"runs": [run(0.10, 100), run(0.10, 201)]}, False),
        ({"runs": [run(0.10, None)]}, True),
    ],
)
def test_a_goal_counts_time_and_cost(change: dict[str, Any], is_met: bool) -> None:
    """CPU time is the mean of the runs; each run has to keep to the number of syncs."""
    found: dict[str, Any] = {
        "visible": latencies(8, 20), "durable": latencies(600, 1200), "runs": [run(0.10, 200)],
    }  # fmt: skip
    assert GOAL.met(**found | change) is is_met


def test_a_goal_says_what_it_counts() -> None:
    """No word about what it leaves open."""
    assert str(GOAL) == (
        "p50 <= 8 ms, p99 <= 20 ms, <= 10% of a core, durable p99 <= 1,200 ms, <= 20 syncs/s, "
        "lag bounded"
    )
    assert str(Goal(80, 400)) == "p50 <= 80 ms, p99 <= 400 ms"


def test_costs_are_told_by_run() -> None:
    """Syncs that were not counted have no figure."""
    costs = live.costs([run(0.10, 200), run(0.20, 100)])
    assert {name: (f.unit, f.values) for name, f in costs.items()} == {
        "CPU": ("% of a core", (10.0, 20.0)),
        "syncs": ("syncs/s", (20.0, 10.0)),
        "written": ("KiB/s", (0.4, 0.4)),
    }
    assert set(live.costs([run(0.10, None)])) == {"CPU", "written"}


def test_a_slow_producer_appends_one_message_after_the_other(tmp_path: Path) -> None:
    """A rate below one message a tick."""
    workload = Workload(8, 4, 300, seed=1)
    with Appender(tmp_path, file_size=1 << 20) as appender:
        trace = producer.produce(appender, workload, 1 / 0.02, 3.5 * 0.02)
    assert trace[:, 2].tolist() == [1, 1, 1, 1]
    assert (np.diff(trace[:, 1]) > 0).all()


def test_the_use_of_the_disk_is_that_of_the_kernel(tmp_path: Path) -> None:
    """One call of each kind; the process itself says how much it has written."""
    with line_process([sys.executable, "-c", SYNCER], "a process that syncs") as process:
        process.answer(30)
        with disk_use(process.process.pid) as use:
            answer = process.ask(str(tmp_path / "file"), 30)
    assert use.written_bytes == answer["written"]
    assert 0 < use.seconds < math.inf
    if use.syncs is None:
        assert "syncs were not counted" in use.problem
    else:
        assert (use.syncs, use.problem) == (len(SYNC_CALLS), "")


def test_without_perf_the_row_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are known nevertheless."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with disk_use(os.getpid()) as use:
        pass
    assert (use.syncs, use.problem) == (None, "syncs were not counted: perf is not installed")
