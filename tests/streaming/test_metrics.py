"""The metrics of a run: unknown values are absent, known ones equal the run's own."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import pytest

from store.config import StoreSettings, read_store_settings
from store.errors import UsageError
from store.runs.dispatch import DispatchCounts
from streaming.metrics import MetricsServer, RunCollector
from streaming.progress import Progress
from tests.support.golden import log_records, unpack_golden
from tests.support.wire import read_log


def _settings(into: Path) -> StoreSettings:
    return read_store_settings(unpack_golden("plain", into))


def _scraped(server: MetricsServer) -> dict[str, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_a_run_without_positions_has_no_series_of_them(tmp_path: Path) -> None:
    """Before the first positions are known nothing is said of lag; after them, a lag whose log end
    is unknown stays absent and the known position is there."""
    collector = RunCollector(_settings(tmp_path), tmp_path)
    with MetricsServer("127.0.0.1", 0, collector) as server:
        assert _scraped(server) == {}
        collector.progress = Progress(start_offset=7, end_offset=9)
        found = _scraped(server)
        assert found["reput_position_bytes"] == "7.0"
        assert found["reput_watermark_bytes"] == "9.0"
        assert not {name for name in found if "lag" in name or "log_end" in name}


def test_lag_is_the_age_of_the_first_message_that_is_not_dispatched(tmp_path: Path) -> None:
    """At the log's start the lag is the whole log and older than nothing; at its end it is 0."""
    settings = _settings(tmp_path)
    stored = log_records(settings.root)
    end = stored[-1].physical_offset + len(
        dict(read_log(settings.root / "commitlog"))[stored[-1].physical_offset]
    )
    collector = RunCollector(settings, tmp_path)
    with MetricsServer("127.0.0.1", 0, collector) as server:
        collector.progress = Progress(log_end=end)
        before = time.time()
        found = _scraped(server)
        assert float(found["reput_lag_bytes"]) == end
        oldest = stored[0].store_timestamp / 1000
        assert before - oldest <= float(found["reput_lag_seconds"]) <= time.time() - oldest
        collector.progress.advance(end, DispatchCounts(messages=len(stored)))
        found = _scraped(server)
        assert float(found["reput_lag_seconds"]) == float(found["reput_lag_bytes"]) == 0
        assert float(found["reput_messages_total"]) == len(stored)


def test_a_port_in_use_is_a_usage_error(tmp_path: Path) -> None:
    collector = RunCollector(_settings(tmp_path), tmp_path)
    with (
        MetricsServer("127.0.0.1", 0, collector) as server,
        pytest.raises(UsageError, match="--metrics cannot listen"),
    ):
        MetricsServer("127.0.0.1", server.port, collector)
