"""The row about messages on their way to listeners of a broker and of ``reput run --serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import fresh
from bench.context import Context
from bench.processes import BenchError
from tests.interop.rocketmq import require_maven

CORES = {"reput": 0.25, "RocketMQ": 0.5, "clients": 0.125}


def answer(**changes: Any) -> dict[str, Any]:
    served, broker = [float(number) for number in range(1, 101)], [1.0] * 98 + [2.0, 7.0]
    return {"rate": 1000.0, "served": served, "broker": broker, **changes}


def test_the_row_has_both_listeners_and_what_they_cost() -> None:
    """Median and 99th percentile of each, and CPU time of all processes."""
    row = fresh.row(answer(), CORES, 20)
    assert {name: (f.unit, f.median) for name, f in row.figures.items()} == {
        "reput p50": ("ms", 50.0),
        "reput p99": ("ms", 99.0),
        "RocketMQ p50": ("ms", 1.0),
        "RocketMQ p99": ("ms", 2.0),
        "reput CPU": ("% of a core", 25.0),
        "RocketMQ CPU": ("% of a core", 50.0),
        "clients CPU": ("% of a core", 12.5),
    }
    assert row.met is False
    assert fresh.row(answer(served=[20.0] * 98 + [60.0] * 2), CORES, 20).met is True


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"served": [1.0, -1.0]}, "1 of 2 messages did not come from reput"),
        ({"broker": [-1.0, -1.0, 3.0]}, "2 of 3 messages did not come from RocketMQ"),
        ({"rate": 985.0}, "at 985 messages/s"),
    ],
)
def test_messages_that_did_not_come_are_no_time(changes: dict[str, Any], words: str) -> None:
    """Nor is a rate that was not reached."""
    with pytest.raises(BenchError, match=words):
        fresh.row(answer(**changes), CORES, 20)


@pytest.mark.slow
def test_every_message_comes_to_both_listeners(tmp_path: Path) -> None:
    """A broker, a run that serves its log, and the clients of both."""
    require_maven()
    context = Context(tmp_path, frozenset({fresh.NAME}), live_seconds=2)
    (row,) = fresh.measure(context)
    assert all(figures.minimum > 0 for figures in row.figures.values())
    assert list(tmp_path.iterdir()) == []
