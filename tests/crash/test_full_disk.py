"""The output's own disk, a real small one, fills and empties at random moments of a real run.

Spark's checkpoint, the spool, queues, index, ledger, watermark, the table and its follower's file
all lie on it. A run goes on by itself when there is space, or stops when it is told to.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from contextlib import ExitStack, closing
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from reput.streaming.space import LOG_SECONDS
from tests.streaming.test_golden import dispatch
from tests.support.childruns import ChildRun, check_whole, growing_log
from tests.support.cli import REPUT
from tests.support.index_model import Content, read_content
from tests.support.smalldisk import SmallDisk
from tests.support.tables import log_end, plain_rows, table_rows

pytestmark = pytest.mark.usefixtures("spark")
DISK_BYTES = 160 << 20
HASH_SLOTS, INDEX_NUM = 5_000, 20_000
BROKER_CONF = f"""mappedFileSizeCommitLog={8 << 20}
mappedFileSizeConsumeQueue=40000
maxHashSlotNum={HASH_SLOTS}
maxIndexNum={INDEX_NUM}
"""
WAITING = re.compile(r"(\S+) error +waiting for space: ")


class Runs:
    """The runs, one after another, of a dispatcher whose output is on the small disk."""

    def __init__(self, directory: Path, disk: SmallDisk, stack: ExitStack) -> None:
        """``stack`` ends what runs."""
        self.disk = disk
        self.store = directory / "store"
        self.inside = disk.path / "output"
        self._log, self._stack = directory / "log", stack
        self.command = disk.command(
            *REPUT, "run", self.store, "--output", disk.mount_point / "output",
            "--delta", disk.mount_point / "table", "--delta-interval", "1s",
        )  # fmt: skip
        self.run: ChildRun | None = None
        self.codes: list[int] = []
        self.longest_stop = 0.0
        self.waits = 0
        self.resumed = 0

    def start(self) -> None:
        """Begin a run, and wait until it dispatches or waits for space."""
        run = self._stack.enter_context(ChildRun(self._log, self.command, self.inside))
        self.run, begin = run, run.position()
        run.wait_until(lambda: run.position() > begin or self._waiting_times())

    def _waiting_times(self) -> list[datetime]:
        """When the run said that it waits for space."""
        assert self.run is not None
        return [datetime.fromisoformat(moment) for moment in WAITING.findall(self.run.stderr)]

    def catch_up(self) -> None:
        """After there is space again, wait until the same process has caught up with the log."""
        run, end = self.run, log_end(self.store)
        assert run is not None
        run.wait_until(lambda: run.position() >= end)
        self.resumed += 1

    def stop(self) -> None:
        """Send SIGTERM, and check that the run ends with 0, or with 1 if it was waiting."""
        assert self.run is not None
        began = time.monotonic()
        self.codes.append(self.run.stop())
        self.longest_stop = max(self.longest_stop, time.monotonic() - began)
        moments = self._waiting_times()
        self.waits += len(moments)
        for earlier, later in pairwise(moments):
            assert (later - earlier).total_seconds() > LOG_SECONDS - 1, self.run.stderr
        self.run = None


def _index(root: Path) -> list[Content]:
    paths = sorted((root / "index").iterdir())
    return [read_content(path, HASH_SLOTS, INDEX_NUM) for path in paths]


def _round(runs: Runs, rng: random.Random, *, stopping: bool) -> None:
    """Fill the disk and empty it once."""
    disk = runs.disk
    if runs.run is not None:
        time.sleep(rng.random())  # the moment is random, not an event
    disk.fill(rng.choice((0, 0, 4096, 8192, 65536, rng.randrange(1 << 20))))
    if runs.run is None:
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
    store, plain = tmp_path / "store", tmp_path / "plain"
    store.mkdir()
    (store / "broker.conf").write_text(BROKER_CONF)
    with closing(SmallDisk(tmp_path / "disk", DISK_BYTES)) as disk, ExitStack() as stack:
        runs = Runs(tmp_path, disk, stack)
        with growing_log(store, 500, "--size", 40, "--topics", 3, "--queues", 2):
            for number in range(rounds):
                _round(runs, rng, stopping=number % 2 == 1 if rounds == 2 else rng.random() < 0.25)
            if runs.run is not None:
                runs.catch_up()
                runs.stop()
                assert runs.codes[-1] == 0
        with ChildRun(tmp_path / "log", [*runs.command, "--once"], runs.inside) as last:
            assert last.wait() == 0
            assert last.position() == dispatch(store, plain).end_offset == log_end(store) > 0
        check_whole(runs.inside, plain)
        assert _index(runs.inside) == _index(plain)
        # the library would look for the table where the disk is not mounted
        shutil.copytree(disk.path / "table", tmp_path / "table")
    expected = [row["physicalOffset"] for row in plain_rows(store)]
    rows = table_rows(tmp_path / "table", "physicalOffset")
    assert [row["physicalOffset"] for row in rows] == expected
    print(
        f"rounds={rounds} messages={len(expected)} resumed={runs.resumed} "
        f"stops={len(runs.codes)} with_1={sum(runs.codes)} "
        f"longest_stop_seconds={runs.longest_stop:.1f} waiting_lines={runs.waits}"
    )


@pytest.mark.extended
def test_a_full_disk_is_waited_out(tmp_path: Path) -> None:
    """The disk is filled and emptied once during a run, and once with a SIGTERM while it is
    full."""
    _fill_and_empty(tmp_path, 2, int(os.environ.get("REPUT_TEST_SEED", "20261101")))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_disk_that_fills_a_hundred_times(tmp_path: Path) -> None:
    """A hundred rounds, a quarter of them with a SIGTERM."""
    _fill_and_empty(tmp_path, 100, int(os.environ.get("REPUT_TEST_SEED", "20261102")))
