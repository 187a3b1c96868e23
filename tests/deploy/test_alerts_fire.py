"""Alerts that are caused in a real run and fire in a real Prometheus (tests.support.prometheus)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest

from checkpoints import STATE_DIRECTORY
from tests.support.cli import kill_tree
from tests.support.prometheus import Prometheus, scaled, scaled_alerts
from tests.upkeep.test_metrics import running
from workload.appender import Appender
from workload.messages import Workload

FILE_SIZE = 1 << 20


class Log:
    """A store whose log the test appends to and damages."""

    def __init__(self, directory: Path, appender: Appender) -> None:
        self.store = directory
        self.appender = appender
        self._workload = Workload(2, 2, 100, seed=1)
        self._count = 0

    def append(self, count: int) -> None:
        now = time.time_ns() // 1_000_000
        self.appender.append_batch(self._workload.batch(self._count, count, now))
        self._count += count

    def damage(self, offset: int) -> None:
        """Overwrite the magic of the record at a position."""
        path = self.store / "commitlog" / f"{offset // FILE_SIZE * FILE_SIZE:020d}"
        with path.open("r+b") as file:
            file.seek(offset % FILE_SIZE + 4)
            file.write(b"XXXX")


def _java(pid: int) -> psutil.Process:
    (found,) = [one for one in psutil.Process(pid).children(recursive=True) if one.name() == "java"]
    return found


def test_durations_are_scaled_and_nothing_else() -> None:
    assert scaled("sum(rate(x[15m])) > 30 offset 1h") == "sum(rate(x[15s])) > 30 offset 1m"
    stalled = next(
        one for one in scaled_alerts()["groups"][0]["rules"] if one["alert"] == "ReputStalled"
    )
    assert stalled["for"] == "1s"
    assert stalled["expr"].endswith("reput_watermark_timestamp_seconds > 5")


@pytest.mark.slow
def test_alerts_of_a_run_that_goes_wrong(tmp_path: Path) -> None:
    """A follower that fails, Java that stands still, damage in the log, another owner, a kill and
    a start that finds Spark's checkpoint cut; before all that, no alert."""
    output, table = tmp_path / "output", tmp_path / "table"
    with Appender(tmp_path / "store", file_size=FILE_SIZE) as appender:
        log = Log(tmp_path / "store", appender)
        log.append(300)
        options = (log.store, "--output", output, "--delta", table, "--delta-interval", "0s")
        with running(*options, "--metrics-port", 0) as (process, url, _):
            address = url.removeprefix("http://").removesuffix("/metrics")
            with Prometheus(tmp_path / "prometheus", address) as prometheus:
                prometheus.await_value("reput_messages_total == 300 and reput_lag_bytes == 0")
                prometheus.await_value("reput_follower_lag_bytes == 0")
                # a start may take longer than the age of the watermark that is scaled
                prometheus.await_silence()

                table.rename(tmp_path / "away")
                table.mkdir()
                (table / "_delta_log").write_text("no directory", "utf-8")
                log.append(100)
                alert = prometheus.await_alert("ReputFollowerDown")
                assert alert["labels"]["follower"] == "delta"

                java = _java(process.pid)
                java.suspend()
                damaged = appender.end_offset
                log.append(100)
                log.damage(damaged)
                log.append(100)
                prometheus.await_alert("ReputStalled")
                java.resume()
                prometheus.await_alert("ReputLedgerGrows")

                owner = output / STATE_DIRECTORY / "owner.json"
                said = json.loads(owner.read_text("utf-8"))
                owner.write_text(json.dumps({**said, "pid": said["pid"] + 1}), "utf-8")
                alert = prometheus.await_alert("ReputTwoOwners")
                assert alert["labels"]["store"] == str(log.store)

                kill_tree(process.pid)
                process.wait()
                alert = prometheus.await_alert("ReputDown")
                assert alert["labels"]["instance"] == address

                metadata = output / STATE_DIRECTORY / "spark" / "metadata"
                metadata.write_text("", "utf-8")
                with running(*options, "--metrics-port", address):
                    prometheus.await_alert("ReputCheckpointReplaced")
