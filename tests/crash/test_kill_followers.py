"""kill -9 around the commits of a Delta table: every message is there once, wherever a commit was
cut."""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from reput.sinks.delta.table import DeltaTarget
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, walk
from reput.workload.appender import Appender
from reput.workload.messages import Workload
from tests.streaming.test_golden import dispatch
from tests.support.childruns import ChildRun, check_whole, growing_log, kill_runs
from tests.support.cli import REPUT
from tests.support.s3 import BUCKET, running_server
from tests.support.tables import log_end, plain_columns, plain_rows, table_rows

LONGEST_START_SECONDS = 8.0

FOLLOW = """
import signal, sys, threading
from pathlib import Path
from reput.sinks.delta.table import DeltaTarget
from reput.store.config import read_store_settings
from reput.streaming.config import DispatcherConfig
from reput.streaming.followers import Followers

store, output = map(Path, sys.argv[1:3])
grants, *ends = map(int, sys.argv[4:])
target = DeltaTarget(sys.argv[3], interval_seconds=0.0)
config = DispatcherConfig(store, output, followers=(target,))
settings = read_store_settings(store)
followers = Followers(config, settings, "0" * 32)
followers.start(0, ends[-1])
position = target.open("0" * 32, settings).position() or 0
for number, end in enumerate(end for end in ends if end > position):
    # one commit each, as many as the test grants
    if number == grants:
        signal.pause()
    followers.advance(end)
    followers.catch_up(threading.Event())
followers.close()
"""


def commits(table: Path | str) -> int:
    """The number of the table's versions."""
    if isinstance(table, Path):
        return len(list((table / "_delta_log").glob("*.json")))
    return DeltaTable(table).version() + 1 if DeltaTable.is_deltatable(table) else 0


@pytest.fixture
def object_storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a table in object storage, to which the environment gives access."""
    with running_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}/table"


@pytest.mark.extended
def test_killed_followers_leave_every_row_once(tmp_path: Path) -> None:
    """Followers without Spark commit every few messages, and are killed during commits."""
    _kill_followers(tmp_path, tmp_path / "table", 12, 2)


@pytest.mark.slow
def test_killed_followers_leave_every_row_once_in_object_storage(
    tmp_path: Path, object_storage: str
) -> None:
    """The same, with a table that is reached by the protocol of S3."""
    _kill_followers(tmp_path, object_storage, 12, 3)


@pytest.mark.slow
def test_followers_killed_more_often_leave_every_row_once(tmp_path: Path) -> None:
    """The same, with more rounds."""
    _kill_followers(tmp_path, tmp_path / "table", 150, 6)


@pytest.mark.slow
def test_followers_killed_more_often_leave_every_row_once_in_object_storage(
    tmp_path: Path, object_storage: str
) -> None:
    """The same, with more rounds and the protocol of S3."""
    _kill_followers(tmp_path, object_storage, 40, 6)


def _kill_followers(tmp_path: Path, table: Path | str, parts: int, share: int) -> None:
    """Kill followers in rounds, none of which commits more than one of ``share`` parts of the
    log."""
    seed = int(os.environ.get("REPUT_TEST_SEED", "20260105"))
    print(f"seed={seed}")
    rng = random.Random(seed)
    store, output = tmp_path / "store", tmp_path / "output"
    (output / "reput").mkdir(parents=True)
    with Appender(store, file_size=1 << 20) as appender:
        appender.append_batch(Workload(3, 2, 200, seed=1).batch(0, 3000, 1_700_000_000_000))
    log, end = CommitLog([store / "commitlog"]), log_end(store)
    cuts = [walk(log, Window(log), 0, end * part // parts).offset for part in range(1, parts)]
    command = [sys.executable, "-c", FOLLOW, store, output, table]
    rounds = 0
    while True:
        number = rng.randint(1, parts // share - 1)
        goal = commits(table) + number
        # one more, which may be under way when it is killed
        with ChildRun(tmp_path / "log", [*command, number + 1, *cuts, end]) as child:
            child.wait_until(lambda: commits(table) >= goal or not child.is_alive)  # noqa: B023
            if commits(table) < goal:
                assert child.wait() == 0
                break
            time.sleep(rng.random() * 0.03)  # the moment is random, not an event
        rounds += 1
    assert rounds >= share - 1
    assert plain_columns(table) == plain_rows(store)


def _kill_runs(tmp_path: Path, rounds: int, seed: int) -> None:
    """Kill whole runs at random moments while a log grows, and sometimes remove their positions."""
    print(f"seed={seed}")
    rng = random.Random(seed)
    store, output, table = tmp_path / "store", tmp_path / "output", tmp_path / "table"
    command = [
        *REPUT, "run", store, "--output", output, "--delta", table, "--delta-interval", "0ms",
        "--max-bytes-per-trigger", "100k",
    ]  # fmt: skip

    def wait_for_commits(run: ChildRun) -> None:
        goal = commits(table) + rng.randint(1, 6)
        run.wait_until(lambda: commits(table) >= goal)

    def remove_positions() -> None:
        # a run that was killed early has made none
        if rng.random() < 0.2 and (output / "reput" / "spark").exists():
            shutil.rmtree(output / "reput" / "spark")

    with growing_log(store, 500, "--topics", 5, "--queues", 3):
        kill_runs(
            lambda: ChildRun(tmp_path / "log", command, output), rng, rounds,
            wait_for_commits, LONGEST_START_SECONDS, remove_positions,
        )  # fmt: skip
    last = dispatch(store, output, followers=(DeltaTarget(str(table), interval_seconds=0.0),))
    expected = plain_rows(store)
    assert len(expected) > 0
    assert last.end_offset == log_end(store)
    assert plain_columns(table) == expected
    queues: dict[tuple[str, int], list[int]] = {}
    for row in table_rows(table, "topic", "queueId", "queueOffset", "physicalOffset"):
        queues.setdefault((row["topic"], row["queueId"]), []).append(row["queueOffset"])
    assert all(offsets == list(range(len(offsets))) for offsets in queues.values())
    plain = tmp_path / "plain"
    assert dispatch(store, plain).end_offset == last.end_offset
    check_whole(output, plain)


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
def test_killed_runs_leave_every_row_once(tmp_path: Path) -> None:
    """The whole command is killed once; the queues too are those of an undisturbed run."""
    _kill_runs(tmp_path, 1, int(os.environ.get("REPUT_TEST_SEED", "20260106")))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("spark")
def test_hundred_killed_runs_leave_every_row_once(tmp_path: Path) -> None:
    """The same, with a hundred rounds."""
    _kill_runs(tmp_path, 100, int(os.environ.get("REPUT_TEST_SEED", "20260107")))
