"""Followers beside a log that grows: files that come meanwhile, and since when a target fails."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from reput.checkpoints.followers import FollowerState, read_follower_state, write_follower_state
from reput.sinks.delta.table import DeltaTarget
from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import StoreError
from reput.streaming import followers
from reput.streaming.config import DispatcherConfig
from reput.streaming.followers import Followers
from reput.workload.appender import Appender
from reput.workload.messages import Workload
from tests.streaming.test_followers import LONGEST_SECONDS, Held
from tests.support.processes import became
from tests.support.tables import log_end, plain_columns, plain_rows

FIRST = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)


def opened(store: Path, output: Path, target: Any) -> Followers:
    """The followers of an output that is there."""
    (output / "reput").mkdir(parents=True, exist_ok=True)
    config = DispatcherConfig(store, output, followers=(target,))
    return Followers(config, read_store_settings(store), "0" * 32)


def test_messages_of_files_that_come_meanwhile_reach_the_table(tmp_path: Path) -> None:
    """The follower has written what the first file holds when the next ones are begun."""
    store, output, table = tmp_path / "store", tmp_path / "output", tmp_path / "table"
    workload = Workload(2, 2, 100, seed=1)

    def has_position(end: int) -> bool:
        state = read_follower_state(output / "reput", "delta")
        return state is not None and state.position == end

    with Appender(store, file_size=1 << 14) as appender:
        appender.append_batch(workload.batch(0, 20, 1))
        following = opened(store, output, DeltaTarget(str(table), interval_seconds=0))
        following.start(appender.end_offset, appender.end_offset)
        begun = appender.end_offset
        assert became(lambda: has_position(begun), LONGEST_SECONDS)
        for first in (20, 120, 220):
            appender.append_batch(workload.batch(first, 100, 1))
            following.advance(appender.end_offset)
        assert appender.end_offset > 3 << 14
    following.catch_up(threading.Event())
    following.close()
    assert plain_columns(table) == plain_rows(store)


@dataclass
class Failing(Held):
    """A target whose writes fail where this says so."""

    fails: Iterator[bool] = field(default_factory=lambda: iter(()))

    def open(self, _store_id: str, _settings: StoreSettings) -> Failing:
        """Itself."""
        return self

    def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
        """Take all rows or none."""
        if next(self.fails):
            raise OSError("the target is away")
        super().write(start, end, rows)


class Clock:
    """Each look at it is a minute after the one before."""

    def __init__(self) -> None:
        self._minutes = 0

    def now(self, _zone: object) -> datetime:
        """The time."""
        self._minutes += 1
        return FIRST + timedelta(minutes=self._minutes)


@pytest.mark.parametrize("failed_before", [False, True])
def test_a_target_fails_since_its_first_failure(
    golden: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failed_before: bool,
) -> None:
    """It fails three times and then twice, with a success in between; that a run ends does not
    change since when. Every state that is written says so."""
    store, output, states = golden("plain"), tmp_path / "output", list[FollowerState]()
    fails = [True, True, True, False, True, True]

    def noted(directory: Path, state: FollowerState) -> None:
        states.append(state)
        write_follower_state(directory, state)

    monkeypatch.setattr(followers, "write_follower_state", noted)
    monkeypatch.setattr(followers, "datetime", Clock())
    monkeypatch.setattr(followers, "BYTES_PER_WRITE", 300_000)
    monkeypatch.setattr(followers, "FIRST_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(followers, "ATTEMPTS", len(fails))
    target = Failing(fails=iter([*fails, *[False] * 100]))
    target.go_on.set()
    following = opened(store, output, target)
    before = FollowerState("held", "memory", error="full", failing_since=FIRST.isoformat())
    if failed_before:
        write_follower_state(output / "reput", before)
    end = log_end(store)
    following.start(end, end)
    following.catch_up(threading.Event())
    following.close()
    minutes = [0, 0, 0, 1, 1] if failed_before else [1, 1, 1, 2, 2]
    expected = [(FIRST + timedelta(minutes=minute)).isoformat() for minute in minutes]
    found = [state.failing_since for state in states if state.error == "the target is away"]
    assert found == expected
    last = read_follower_state(output / "reput", "held")
    assert last is not None
    assert (last.error, last.failing_since, last.position) == (None, None, end)


def test_a_target_that_fails_cuts_no_other_one_short(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is due to end waits for what goes on, and names what does not."""
    monkeypatch.setattr(followers, "FIRST_RETRY_SECONDS", 0.01)
    store, output, slow = golden("plain"), tmp_path / "output", Held()

    def fails() -> Iterator[bool]:
        yield from itertools.repeat(True, 2 * followers.ATTEMPTS)
        slow.go_on.set()
        yield from itertools.repeat(True)

    away = Failing(name="away", fails=fails())
    (output / "reput").mkdir(parents=True)
    config = DispatcherConfig(store, output, followers=(away, slow))
    following, end = Followers(config, read_store_settings(store), "0" * 32), log_end(store)
    following.start(end, end)
    with pytest.raises(StoreError, match="followers are not: away: the target is away;"):
        following.catch_up(threading.Event())
    following.close()
    assert slow.offsets == [row["physicalOffset"] for row in plain_rows(store)]
