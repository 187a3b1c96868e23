"""Alerts that are caused in a real run and fire in a real Prometheus (tests.support.prometheus)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from reput.store.config import read_store_settings
from reput.store.files import FOLLOWERS_DIRECTORY, STATE_DIRECTORY
from reput.store.log.record import Record
from reput.workload.appender import Appender
from reput.workload.messages import Workload
from tests.support.cli import REPUT
from tests.support.prometheus import ALERTS, LIMITS, Prometheus, scaled, scaled_alerts
from tests.support.smalldisk import FILLER, SmallDisk
from tests.upkeep.test_metrics import running

FILE_SIZE = 1 << 20
SLOW_DISK = """
import os, time
def slowly(fd, sync=os.fdatasync):
    path = os.readlink(f"/proc/self/fd/{fd}")
    if "/consumequeue/" in path and os.path.exists(os.environ["SLOW_DISK"]):
        time.sleep(3)
    sync(fd)
os.fdatasync = slowly
"""
"""A disk on which the sync of a queue takes long while a file is there."""


class Log:
    """A store whose log the test appends to, damages, cuts and removes files of."""

    def __init__(self, directory: Path, appender: Appender) -> None:
        self.store = directory
        self.appender = appender
        self._workload = Workload(2, 2, 100, seed=1)
        self._count = 0

    def append(self, count: int) -> None:
        now = time.time_ns() // 1_000_000
        self.appender.append_batch(self._workload.batch(self._count, count, now))
        self._count += count

    def append_of(self, age_seconds: float) -> None:
        """Append a message that a broker stored a while ago."""
        log = read_store_settings(self.store).open_log()
        found = log.record_starting_at(log.min_offset)
        log.close()
        assert isinstance(found, Record)
        then = time.time_ns() // 1_000_000 - int(age_seconds * 1000)
        self.appender.append(replace(found, store_timestamp=then))

    def skip_queue_offsets(self) -> None:
        """Assign offsets in every queue, and write no message of them."""
        offsets = self.appender._queue_offsets
        offsets.update({queue: offset + 100 for queue, offset in offsets.items()})

    def damage(self, offset: int) -> None:
        """Overwrite the magic of the record at a position."""
        self._overwrite(offset + 4, b"XXXX")

    def cut(self, offset: int) -> None:
        """Take back what was appended from a position on, as a power failure does."""
        self._overwrite(offset, bytes(self.appender.end_offset - offset))

    def _overwrite(self, offset: int, data: bytes) -> None:
        with self._path(offset).open("r+b") as file:
            file.seek(offset % FILE_SIZE)
            file.write(data)

    def _path(self, offset: int) -> Path:
        return self.store / "commitlog" / f"{offset // FILE_SIZE * FILE_SIZE:020d}"

    def remove_first_file(self) -> None:
        """As retention does; the file that is written stays."""
        first = min((self.store / "commitlog").iterdir())
        if first != self._path(self.appender.end_offset):
            first.unlink()

    def remove_files(self) -> None:
        """Leave the file that is written, and the next one."""
        for path in sorted((self.store / "commitlog").iterdir())[:-2]:
            path.unlink()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Appender(tmp_path / "store", file_size=FILE_SIZE) as appender:
        made = Log(tmp_path / "store", appender)
        made.append(300)
        yield made


def every(seconds: float, act: Callable[[], object]) -> Callable[[], None]:
    """Return a function that acts when it is called, but so seldom."""
    due = 0.0

    def call() -> None:
        nonlocal due
        if time.monotonic() >= due:
            act()
            due = time.monotonic() + seconds

    return call


@contextmanager
def watched(directory: Path, url: str) -> Iterator[Prometheus]:
    """A Prometheus that has seen the run catch up, and no alert."""
    address = url.removeprefix("http://").removesuffix("/metrics")
    with Prometheus(directory, address) as prometheus:
        prometheus.await_value("reput_messages_total == 300 and reput_lag_bytes == 0")
        # a start may take longer than the ages that are scaled
        prometheus.await_silence()
        yield prometheus


def test_durations_are_scaled_and_nothing_else() -> None:
    """Every limit of the list is in an expression."""
    assert scaled("sum(rate(x[15m])) > 30 offset 1h") == "sum(rate(x[15s])) > 30 offset 1m"
    alerts = {one["alert"]: one for one in scaled_alerts()["groups"][0]["rules"]}
    assert alerts["ReputStalled"]["for"] == "1s"
    assert alerts["ReputStalled"]["expr"].endswith("reput_watermark_timestamp_seconds > 5")
    whole = " ".join(
        rule["expr"] for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    )
    assert not [limit for limit in LIMITS if limit not in whole]


@pytest.mark.slow
def test_a_run_that_goes_wrong(tmp_path: Path, log: Log) -> None:
    """A follower that fails, Java that stands still, damage in the log, another owner, a kill and
    a start that finds Spark's checkpoint cut; before all that, no alert."""
    output, table = tmp_path / "output", tmp_path / "table"
    options = (log.store, "--output", output, "--delta", table, "--delta-interval", "0s")
    with (
        running(*options, "--metrics-port", 0) as (run, url),
        watched(tmp_path / "prometheus", url) as prometheus,
    ):
        prometheus.await_value("reput_follower_lag_bytes == 0")
        table.rename(tmp_path / "away")
        table.mkdir()
        (table / "_delta_log").write_text("no directory", "utf-8")
        log.append(100)
        alert = prometheus.await_alert("ReputFollowerDown")
        assert alert["labels"]["follower"] == "delta"

        (java,) = run.children("jvm")
        java.suspend()
        damaged = log.appender.end_offset
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

        run.kill()
        alert = prometheus.await_alert("ReputDown")
        assert alert["labels"]["instance"] == prometheus.target

        metadata = output / STATE_DIRECTORY / "spark" / "metadata"
        metadata.write_text("", "utf-8")
        with running(*options, "--metrics-port", prometheus.target):
            prometheus.await_alert("ReputCheckpointReplaced")


@pytest.mark.slow
def test_a_log_that_is_lost(tmp_path: Path, log: Log) -> None:
    """While Java stands still the log grows, and retention comes closer, overtakes the run and
    removes what it needs; then queue offsets jump, and the log loses its end. A start mends that,
    as the runbook says."""
    options = (log.store, "--output", tmp_path / "output")
    log.append(20_000)
    with (
        running(*options, "--metrics-port", 0) as (run, url),
        Prometheus(tmp_path / "prometheus", url.split("/")[2]) as prometheus,
    ):
        prometheus.await_value("reput_messages_total == 20300 and reput_lag_bytes == 0")
        prometheus.await_silence()
        (java,) = run.children("jvm")
        java.suspend()
        grow = every(0.2, lambda: log.append(20))
        prometheus.await_alert("ReputLagGrows", grow)

        shrink = every(2, log.remove_first_file)
        prometheus.await_alert("ReputRetentionOvertakes", shrink)

        log.append(10_000)
        log.remove_files()
        java.resume()
        prometheus.await_alert("ReputMessagesLost")
        prometheus.await_value("reput_lag_bytes == 0")

        log.skip_queue_offsets()
        log.append(10)
        prometheus.await_alert("ReputGaps")

        cut = log.appender.end_offset
        log.append(10)
        prometheus.await_value(f"reput_watermark_bytes == {log.appender.end_offset}")
        java.suspend()
        log.cut(cut)
        prometheus.await_alert("ReputLagUnknown")
        java.resume()
        assert run.wait(60) == 1
        with running(*options, "--metrics-port", prometheus.target):
            prometheus.await_value(f"reput_watermark_bytes == {cut} and reput_lag_bytes == 0")


@pytest.mark.slow
def test_a_disk_that_fills(tmp_path: Path, log: Log) -> None:
    """At a pace first, then whole; with room, the run goes on."""
    disk = SmallDisk(tmp_path / "disk", 192 << 20)
    options = (log.store, "--output", disk.mount_point / "output")
    try:
        with (
            running(*options, "--metrics-port", 0, reput=disk.command(*REPUT)) as (_, url),
            watched(tmp_path / "prometheus", url) as prometheus,
        ):
            with (disk.path / FILLER).open("ab", buffering=0) as filler:
                grow = every(0.5, lambda: filler.write(bytes(1 << 20)))
                prometheus.await_alert("ReputDiskFills", grow)
            disk.fill()
            prometheus.await_alert("ReputWaitingForSpace", every(0.5, lambda: log.append(1000)))
            disk.free()
            prometheus.await_value("reput_waiting_for_space == 0 and reput_lag_bytes == 0")
    finally:
        disk.close()


@pytest.mark.slow
def test_what_is_late(tmp_path: Path, log: Log) -> None:
    """Messages that were stored long before they can be read, and a disk whose syncs take long."""
    slow, patch = tmp_path / "slow", tmp_path / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(SLOW_DISK, "utf-8")
    environment = {"PYTHONPATH": str(patch), "SLOW_DISK": str(slow)}
    options = (log.store, "--output", tmp_path / "output", "--metrics-port", 0)
    with (
        running(*options, environment=environment) as (_, url),
        watched(tmp_path / "prometheus", url) as prometheus,
    ):
        prometheus.await_alert("ReputDurableLate", every(0.2, lambda: log.append_of(100)))
        slow.touch()
        prometheus.await_alert("ReputSyncSlow", every(0.2, lambda: log.append(10)))


@pytest.mark.slow
def test_a_follower_that_misses_messages(tmp_path: Path, log: Log) -> None:
    """It writes too seldom, and the log loses its files before that; a follower's file is damaged;
    and the run is killed again and again."""
    output, table = tmp_path / "output", tmp_path / "table"
    options = (log.store, "--output", output, "--delta", table)
    with (
        running(*options, "--delta-interval", "1h", "--metrics-port", 0) as (run, url),
        watched(tmp_path / "prometheus", url) as prometheus,
    ):
        alert = prometheus.await_alert("ReputFollowerLags", every(0.2, lambda: log.append(400)))
        assert alert["labels"]["follower"] == "delta"
        prometheus.await_value("reput_lag_bytes == 0")
        run.kill()
        log.remove_files()
        with running(*options, "--delta-interval", "0s", "--metrics-port", prometheus.target):
            prometheus.await_alert("ReputFollowerLost")
            assert "ReputMessagesLost" not in prometheus.firing()
            (output / STATE_DIRECTORY / FOLLOWERS_DIRECTORY / "other.json").write_text("{", "utf-8")
            alert = prometheus.await_alert("ReputUnreadable")
            assert alert["labels"]["reason"] == "followers"
        options = (log.store, "--output", output, "--metrics-port", prometheus.target)
        starts = 0
        while "ReputRestarts" not in prometheus.firing():
            (before,) = prometheus.query("max_over_time(reput_epoch[1h])")
            with running(*options):
                prometheus.await_value(f"reput_epoch > {before['value'][1]}")
            starts += 1
            assert starts < 20
