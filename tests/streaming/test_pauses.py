"""The pauses at a live tail, in virtual time: Spark and the batches take what the test says."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from reput.store.config import read_store_settings
from reput.store.state.logoffset import offset_json
from reput.streaming import tail
from reput.streaming.indexes import Indexes
from tests.support.configs import configured
from tests.support.wire import PlainLog

STORE_ID = "0" * 32
LATENCY_MS = 2000
BATCHES = 30


class _Waits(threading.Event):
    """A stop that never comes; to wait for it moves the clock on."""

    def __init__(self, clock: SimpleNamespace) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now += timeout
        return False


@pytest.mark.parametrize("lead", [0.0, 0.2])
@pytest.mark.parametrize("duration", [0.1, 0.5])
def test_the_median_latency_is_the_wanted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lead: float, duration: float
) -> None:
    """Messages that arrive evenly wait for half of the time between two plans, and for one batch;
    Spark plans some time after a pause. Sooner batches would cost more, later ones latency."""
    clock = SimpleNamespace(now=1_700_000_000.0)
    monkeypatch.setattr(tail, "time", SimpleNamespace(time=lambda: clock.now))
    PlainLog(4096).write(tmp_path / "store" / "commitlog")
    config = configured(tmp_path / "store", tmp_path / "output", latency_ms=LATENCY_MS)
    settings = read_store_settings(config.store)
    offsets = config.spark_directory / "offsets"
    offsets.mkdir(parents=True)
    spaced = tail.Tail(config, Indexes.of(config, settings), settings.open_log(), STORE_ID)
    plans = []
    for number in range(BATCHES):
        plans.append(clock.now)
        metadata = json.dumps({"batchTimestampMs": round(clock.now * 1000)})
        end = json.dumps(offset_json(STORE_ID, number))
        (offsets / str(number)).write_text(f"v1\n{metadata}\n{end}")
        planned = spaced.planned(number)
        assert planned is not None and planned.end == number
        clock.now += duration
        spaced.note_visible(planned)
        spaced.pause(planned, 1, _Waits(clock))
        clock.now += lead
    # the first pause knows of no lead
    for before, plan in pairwise(plans[2:]):
        latency = (plan - before) / 2 + lead + duration
        assert latency == pytest.approx(tail.AIMED_SHARE * LATENCY_MS / 1000, abs=0.01)
