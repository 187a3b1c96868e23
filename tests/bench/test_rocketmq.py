"""The harness that times RocketMQ, on a small log."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import logs, rocketmq
from bench.processes import BenchError
from tests.support.jdk import require_tools


@pytest.mark.slow
def test_its_concurrent_build_is_timed_to_its_last_entry(tmp_path: Path) -> None:
    """The last entry comes after it says that nothing is left to dispatch."""
    require_tools(("java", "mvn"), "RocketMQ beside it")
    with logs.log_writer(tmp_path / "store", 100, file_size=4 << 20) as writer:
        log = writer.grow(10 << 20)
    with rocketmq.warm(log, tmp_path / "warm", [rocketmq.CONCURRENT]) as resident:
        for _ in range(3):
            assert resident.rebuild_concurrently().entries == log.message_count
            logs.check_queues(resident.view, log)


@pytest.mark.slow
def test_its_latency_is_that_of_every_message(tmp_path: Path) -> None:
    """Two runs on one live log, at two rates."""
    require_tools(("java", "mvn"), "RocketMQ beside it")
    with rocketmq.live(tmp_path / "store") as process:
        for rate in (200, 1000):
            found = rocketmq.latencies(process, rate, 1.0, 300)
            assert len(found) == rate
            assert found.min() >= 0


@pytest.mark.slow
def test_every_message_gets_its_entry_again_and_again(tmp_path: Path) -> None:
    """Over several files, cold and warm; one message more in the count is an error."""
    require_tools(("java", "mvn"), "RocketMQ beside it")
    with logs.log_writer(tmp_path / "store", 100, file_size=4 << 20) as writer:
        log = writer.grow(10 << 20)
    assert rocketmq.cold(log, tmp_path / "cold") > 0
    with rocketmq.warm(log, tmp_path / "warm") as resident:
        for _ in range(3):
            rebuild = resident.rebuild()
            assert 0 < rebuild.dispatch_seconds < rebuild.flushed_seconds
        object.__setattr__(log, "message_count", log.message_count + 1)
        with pytest.raises(BenchError, match="entries of"):
            resident.rebuild()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["store"]
