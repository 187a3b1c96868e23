"""Lines of the log and of the progress, as a user's file and a program get them."""

from __future__ import annotations

import json
import logging
import re

import pytest

from reput.cli import render
from reput.store.runs.dispatch import DispatchCounts
from reput.streaming.logcontext import store_name
from reput.streaming.progress import Progress


@pytest.mark.parametrize("as_json", [True, False])
def test_a_line_of_one_of_several_stores_names_it(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """Before the event, harmless on a terminal; in JSON as a field of its own."""
    render.set_up(as_json)
    logger = logging.getLogger("reput.test")
    token = store_name.set("broker\x1b[2J")
    try:
        logger.warning("begins", extra={"fields": {"start": 5, "why": "a b", "none": None}})
    finally:
        store_name.reset(token)
    logger.warning("ended")
    first, second = capsys.readouterr().err.splitlines()
    render.set_up(as_json=False)
    if not as_json:
        assert first.partition(" warning ")[2] == (
            'broker\\x1b[2J: begins: start=5 why="a b" none=unknown'
        )
        assert second.endswith(" warning ended")
        return
    found = json.loads(first)
    del found["time"]
    assert found == {
        "level": "warning", "store": "broker\x1b[2J", "event": "begins", "start": 5, "why": "a b",
        "none": None,
    }  # fmt: skip
    assert "store" not in json.loads(second)


def test_progress_in_json_has_each_figure_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run began at 1,000, has dispatched up to 1,600, and scanned 300 more of 2,000."""
    monkeypatch.setattr(render, "PLAIN_SECONDS", -1.0)
    progress = Progress(start_offset=1000, end_offset=1000, log_end=2000)
    progress.advance(1600, DispatchCounts(messages=7, duplicates=2))
    progress.ahead_bytes = 300
    render.set_up(as_json=True)
    display = render.ProgressDisplay("dispatching")
    display(progress)
    found = json.loads(capsys.readouterr().err)
    render.set_up(as_json=False)
    assert found["event"] == "dispatching"
    assert (found["messages"], found["duplicates"]) == (7, 2)
    assert (found["lag_bytes"], found["scanned_ahead_bytes"]) == (400, 300)
    display(progress)
    assert capsys.readouterr().err == "", "nothing has changed"
    progress.advance(2000, DispatchCounts(messages=3))
    display(progress)
    line = capsys.readouterr().err.rstrip()
    assert re.search(r" info    dispatching: 10 messages, .*/s, lag 0 B, ETA 0\.0 s$", line), line
