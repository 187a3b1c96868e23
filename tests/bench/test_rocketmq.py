"""The harness that times RocketMQ, on a small log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import logs, rocketmq
from bench.processes import BenchError


@pytest.mark.slow
def test_every_message_gets_its_entry_again_and_again(tmp_path: Path) -> None:
    """Over several files, cold and warm; one message more in the count is an error."""
    if not rocketmq.available():
        if os.environ.get("CI") == "true":
            pytest.fail("needs java and mvn on PATH")
        pytest.skip("needs java and mvn on PATH")
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
