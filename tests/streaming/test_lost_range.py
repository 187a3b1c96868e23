"""The ledger lists all that retention takes undispatched: also while a run starts, and where a
start that had begun to list it was cut short and more went meanwhile."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput.store.state.ledger import Ledger, LedgerEntry
from reput.store.state.watermark import read_watermark
from reput.streaming import dispatcher
from reput.streaming.config import DispatcherConfig
from tests.support.configs import configured
from tests.support.golden import difference
from tests.support.grown_log import FILE_SIZE, GrownLog
from tests.support.sparkless import dispatch


def test_a_lost_range_is_listed_up_to_where_the_log_begins(tmp_path: Path) -> None:
    """The ledger has one entry for a place and reason, and the earlier one is too short."""
    log = GrownLog(tmp_path / "store", random.Random(1), ext=False)
    log.grow(3)
    config = DispatcherConfig(log.root, tmp_path / "output", once=True)
    dispatch(config)
    found = read_watermark(config.state_directory)
    assert found is not None
    log.grow(60)
    commitlog = log.root / "commitlog"
    first, second, *_ = sorted(commitlog.iterdir())
    first.unlink()
    ledger = Ledger(config.state_directory)
    ledger.add(LedgerEntry(found.end_offset, FILE_SIZE, "segment_deleted"))
    ledger.sync()
    config.abort_file.touch()
    second.unlink()
    dispatch(config)
    assert _lost_ranges(config) == [(found.end_offset, 2 * FILE_SIZE)]


@pytest.mark.usefixtures("spark")
def test_files_that_go_while_spark_starts_are_a_lost_range(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on, and its queues are those of a run that begins after the loss."""
    store, start = golden("plain"), dispatcher._start
    config, later = (configured(store, tmp_path / name, once=True) for name in ("a", "b"))

    def after_the_loss(*given: Any) -> Any:
        for path in sorted((store / "commitlog").iterdir())[:3]:
            path.unlink()
        return start(*given)

    with monkeypatch.context() as patched:
        patched.setattr(dispatcher, "_start", after_the_loss)
        progress = dispatcher.run_dispatcher(config, threading.Event())
    expected = dispatcher.run_dispatcher(later, threading.Event())
    log_min = min(int(path.name) for path in (store / "commitlog").iterdir())
    assert log_min > 0
    assert progress.end_offset == expected.end_offset
    queues = (one.output / "consumequeue" for one in (config, later))
    assert difference(*queues) == []
    assert _lost_ranges(config) == [(0, log_min)]


def _lost_ranges(config: DispatcherConfig) -> list[tuple[int, int]]:
    lines = map(json.loads, (config.state_directory / "quarantine.jsonl").read_text().splitlines())
    return [
        (one["physical_offset"], one["end_physical_offset"])
        for one in lines
        if one["reason"] == "segment_deleted"
    ]
