"""The example of the README runs as it is shown, and draws what the log holds."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import pytest
from pyspark.sql import SparkSession

from docs.examples import made_up_store
from store import java
from store.commitlog import CommitLog
from store.config import read_store_settings
from store.cursor import LogTail, records
from store.record import Record

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
MINUTE_MS = 60_000


@pytest.mark.usefixtures("spark")
def test_messages_per_minute(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts equal a loop over the plain decoder's records; the picture is one."""
    mpl.use("Agg")
    made_up = tmp_path / "made-up"
    monkeypatch.setattr(sys, "argv", ["made_up_store", str(made_up)])
    made_up_store.main()
    for store in (golden("broker"), made_up):
        picture = tmp_path / f"{store.name}.svg"
        monkeypatch.setattr(sys, "argv", ["messages_per_minute", str(store), str(picture)])
        told = runpy.run_path(str(EXAMPLES / "messages_per_minute.py"))
        drawn = {
            (int(minute.timestamp() * 1000), topic): int(count)
            for topic, column in told["table"].set_index("minute").items()
            for minute, count in column.items()
            if count
        }
        log = CommitLog(read_store_settings(store).commit_log_directories)
        found = records(log, log.min_offset, LogTail(log).settled())
        wanted = Counter(
            (one.store_timestamp // MINUTE_MS * MINUTE_MS, java.decode(one.topic))
            for one in found
            if isinstance(one, Record)
        )
        assert drawn == dict(wanted)
        assert picture.read_text().startswith("<?xml")
    assert SparkSession.getActiveSession() is not None
