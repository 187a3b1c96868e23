"""Executors that write whole queues, on a real standalone cluster whose workers are killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.golden import difference
from tests.support.standalone import finished, standalone_cluster, submission

POLL_SECONDS = 0.005


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
