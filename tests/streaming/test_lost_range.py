"""The ledger lists all that retention takes undispatched, also where a start that had begun to list
it was cut short and more went meanwhile."""

from __future__ import annotations

import json
import random
from pathlib import Path

from reput.store.state.ledger import Ledger, LedgerEntry
from reput.store.state.watermark import read_watermark
from reput.streaming.config import DispatcherConfig
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
    lines = map(json.loads, (config.state_directory / "quarantine.jsonl").read_text().splitlines())
    lost = [
        (one["physical_offset"], one["end_physical_offset"])
        for one in lines
        if one["reason"] == "segment_deleted"
    ]
    assert lost == [(found.end_offset, 2 * FILE_SIZE)]
