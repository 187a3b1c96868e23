"""The output's own disk, a real small one, fills and empties at random moments of a real run.

Spark's checkpoint, the spool, queues, index, ledger, watermark, the table and its follower's file
all lie on it. A run goes on by itself when there is space, or stops when it is told to.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from reput.store.files import STATE_DIRECTORY
from reput.store.state.watermark import read_watermark
from reput.streaming.space import LOG_SECONDS
from tests.streaming.test_golden import dispatch
from tests.support.cli import REPUT, ROOT, kill_tree
from tests.support.golden import difference
from tests.support.index_model import Content, read_content
from tests.support.smalldisk import SmallDisk
from tests.support.tables import log_end, plain_rows, table_rows

pytestmark = pytest.mark.usefixtures("spark")
POLL_SECONDS = 0.02
LONGEST_SECONDS = 240.0
DISK_BYTES = 160 << 20
HASH_SLOTS, INDEX_NUM = 5_000, 20_000
BROKER_CONF = f"""mappedFileSizeCommitLog={8 << 20}
mappedFileSizeConsumeQueue=40000
maxHashSlotNum={HASH_SLOTS}
maxIndexNum={INDEX_NUM}
"""
WAITING = re.compile(r"(\S+) error +waiting for space: ")


class Runs:
    """A live log, and the runs of a dispatcher whose output is on the small disk."""

    def __init__(self, directory: Path, disk: SmallDisk) -> None:
        self.disk = disk
        self.store = directory / "store"
        self.inside = disk.path / "output"
        self._errors = directory / "errors"
        output, table = disk.mount_point / "output", disk.mount_point / "table"
        self.arguments = [
            "run", self.store, "--output", output, "--delta", table, "--delta-interval", "1s",
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self.codes: list[int] = []
        self.longest_stop = 0.0
        self.waits = 0
        self.resumed = 0

    def produce(self) -> subprocess.Popen[bytes]:
        """Grow the log by 500 messages a second, as a broker would."""
        self.store.mkdir()
        (self.store / "broker.conf").write_text(BROKER_CONF)
        command = [
            *REPUT, "produce", str(self.store), "--rate", "500", "--seconds", "100000", "--size",
            "40", "--topics", "3", "--queues", "2", "--commitlog-file-size", "8m",
        ]  # fmt: skip
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}
        process = subprocess.Popen(command, **quiet)  # type: ignore[call-overload]
        self.wait_until(lambda: any((self.store / "commitlog").glob("*")))
        return process  # type: ignore[no-any-return]

    def wait_until(self, is_true: object) -> None:
        """Poll until a condition of other processes holds, while the run goes on."""
        assert callable(is_true)
        deadline = time.monotonic() + LONGEST_SECONDS
        while not is_true():
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"the run ended by itself: {self._errors.read_text()}")
            assert time.monotonic() < deadline, self._errors.read_text()
            time.sleep(POLL_SECONDS)

    def position(self) -> int:
        """The watermark's physical offset."""
        found = read_watermark(self.inside / STATE_DIRECTORY)
        return found.end_offset if found else 0

    def start(self) -> None:
        """Begin a run, and wait until it dispatches or waits for space."""
        before = self.position()
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                self.disk.command(*REPUT, *self.arguments), stdout=subprocess.DEVNULL, stderr=errors
            )
        self.wait_until(lambda: self.position() > before or self._waiting())

    def _waiting(self) -> list[datetime]:
        found = WAITING.findall(self._errors.read_text())
        return [datetime.fromisoformat(moment) for moment in found]

    def catch_up(self) -> None:
        """After there is space again, wait until the same process has caught up with the log."""
        end = log_end(self.store)
        self.wait_until(lambda: self.position() >= end)
        self.resumed += 1

    def stop(self) -> None:
        """Send SIGTERM, and check that the run ends with 0, or with 1 if it was waiting, and with
        one error line at most."""
        process = self.process
        assert process is not None
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait(LONGEST_SECONDS)
        self.longest_stop = max(self.longest_stop, time.monotonic() - began)
        self.process = None
        self.codes.append(code)
        said = self._errors.read_text()
        lines = [line for line in said.splitlines() if line.startswith("reput: error: ")]
        assert code in (0, 1), said
        assert len(lines) == code, said
        assert "Traceback" not in said
        moments = self._waiting()
        self.waits += len(moments)
        for earlier, later in pairwise(moments):
            assert (later - earlier).total_seconds() > LOG_SECONDS - 1, said


def _index(root: Path) -> list[Content]:
    paths = sorted((root / "index").iterdir())
    return [read_content(path, HASH_SLOTS, INDEX_NUM) for path in paths]


def _round(runs: Runs, rng: random.Random, *, stopping: bool) -> None:
    """Fill the disk and empty it once."""
    disk = runs.disk
    if runs.process is not None:
        time.sleep(rng.random())  # the moment is random, not an event
    disk.fill(rng.choice((0, 0, 4096, 8192, 65536, rng.randrange(1 << 20))))
    if runs.process is None:
        runs.start()
    time.sleep(rng.random() * rng.choice((0.2, 3)))  # as above
    if stopping and rng.random() < 0.8:
        runs.stop()
        disk.free()
        return
    disk.free()
    if stopping:
        time.sleep(rng.random())  # as above
        runs.stop()
    else:
        runs.catch_up()


def _fill_and_empty(tmp_path: Path, rounds: int, seed: int) -> None:
    print(f"seed={seed}")
    rng = random.Random(seed)
    disk = SmallDisk(tmp_path / "disk", DISK_BYTES)
    runs = Runs(tmp_path, disk)
    producer = runs.produce()
    try:
        for number in range(rounds):
            _round(runs, rng, stopping=number % 2 == 1 if rounds == 2 else rng.random() < 0.25)
        if runs.process is not None:
            runs.catch_up()
            runs.stop()
            assert runs.codes[-1] == 0
        producer.terminate()
        producer.wait()
        subprocess.run(
            disk.command(*REPUT, *runs.arguments, "--once"), check=True, capture_output=True
        )
        plain = tmp_path / "plain"
        end = dispatch(runs.store, plain).end_offset
        assert runs.position() == end == log_end(runs.store) > 0
        assert difference(runs.inside / "consumequeue", plain / "consumequeue") == []
        assert _index(runs.inside) == _index(plain)
        assert not (runs.inside / STATE_DIRECTORY / "quarantine.jsonl").exists()
        assert list((runs.inside / STATE_DIRECTORY / "spool").iterdir()) == []
        # the library would look for the table where the disk is not mounted
        shutil.copytree(disk.path / "table", tmp_path / "table")
        expected = [row["physicalOffset"] for row in plain_rows(runs.store)]
        found = table_rows(tmp_path / "table", "physicalOffset")
        assert [row["physicalOffset"] for row in found] == expected
        print(
            f"rounds={rounds} messages={len(expected)} resumed={runs.resumed} "
            f"stops={len(runs.codes)} with_1={sum(runs.codes)} "
            f"longest_stop_seconds={runs.longest_stop:.1f} waiting_lines={runs.waits}"
        )
    finally:
        for process in (producer, runs.process):
            if process is not None:
                kill_tree(process.pid)
                process.wait()
        disk.close()


def test_a_full_disk_is_waited_out(tmp_path: Path) -> None:
    """The disk is filled and emptied once during a run, and once with a SIGTERM while it is
    full."""
    _fill_and_empty(tmp_path, 2, int(os.environ.get("REPUT_TEST_SEED", "20261101")))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_disk_that_fills_a_hundred_times(tmp_path: Path) -> None:
    """A hundred rounds, a quarter of them with a SIGTERM."""
    _fill_and_empty(tmp_path, 100, int(os.environ.get("REPUT_TEST_SEED", "20261102")))
