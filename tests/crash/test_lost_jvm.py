"""The kernel kills Spark's JVM under a run, as it does when memory runs out."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from reput.store.files import STATE_DIRECTORY
from reput.store.state.watermark import read_watermark
from tests.streaming.test_golden import dispatch
from tests.support.cli import REPUT, ROOT, kill_tree
from tests.support.golden import difference, unpack_golden
from tests.support.processes import check_lost_jvm
from tests.support.tables import log_end

POLL_SECONDS = 0.02
LONGEST_SECONDS = 120.0


@pytest.mark.usefixtures("spark")
def test_a_lost_jvm_is_one_line_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """After the next run, the queues are RocketMQ's own."""
    store, output = unpack_golden("plain", tmp_path), tmp_path / "output"
    end = log_end(store)
    process = subprocess.Popen(
        [*REPUT, "run", str(store), "--output", str(output)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + LONGEST_SECONDS
        while (found := read_watermark(output / STATE_DIRECTORY)) is None or (
            found.end_offset < end
        ):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(POLL_SECONDS)
        check_lost_jvm(process, LONGEST_SECONDS)
    finally:
        kill_tree(process.pid)
    dispatch(store, output)
    assert difference(output / "consumequeue", store / "consumequeue") == []
