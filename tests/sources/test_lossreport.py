"""Losses that a read reports."""

from __future__ import annotations

import pytest

from reput.sources.lossreport import LossReport
from reput.store.errors import CommitLogDataLossError


def test_a_loss_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """With where the read goes on; another one of the same case has a line of its own, and so has
    the same one in another read."""
    report = LossReport(False)
    for detail in ("queue 1", "queue 2", "queue 1", "queue 1"):
        report.report("QUEUE_DELETED", detail)
    report.report("OTHER", "queue 3", "at 7")
    LossReport(False).report("QUEUE_DELETED", "queue 1")
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", f"COMMITLOG_DATA_LOSS.{text}")
        for text in (
            "QUEUE_DELETED: queue 1; going on with the remaining messages",
            "QUEUE_DELETED: queue 2; going on with the remaining messages",
            "OTHER: queue 3; going on at 7",
            "QUEUE_DELETED: queue 1; going on with the remaining messages",
        )
    ]


def test_a_loss_that_is_an_error_is_one_each_time(caplog: pytest.LogCaptureFixture) -> None:
    """A task that is repeated fails again."""
    report = LossReport(True)
    for _ in range(2):
        with pytest.raises(CommitLogDataLossError, match=r"QUEUE_DELETED: queue 1\b"):
            report.report("QUEUE_DELETED", "queue 1")
    assert caplog.text == ""
