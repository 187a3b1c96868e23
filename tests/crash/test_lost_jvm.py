"""The kernel kills Spark's JVM under a run, as it does when memory runs out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streaming.test_golden import dispatch
from tests.support.childruns import ChildRun, check_whole
from tests.support.cli import REPUT
from tests.support.golden import unpack_golden
from tests.support.tables import log_end


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
def test_a_lost_jvm_is_one_line_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """After the next run, the queues are RocketMQ's own."""
    store, output = unpack_golden("plain", tmp_path), tmp_path / "output"
    end = log_end(store)
    with ChildRun(tmp_path / "log", [*REPUT, "run", store, "--output", output], output) as run:
        run.wait_until(lambda: run.position() == end)
        run.lose_jvm()
    dispatch(store, output)
    check_whole(output, store)
