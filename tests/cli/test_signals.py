"""A command that is told to stop: by the first signal at its next pause, by the second at once."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from reput.cli import render
from tests.support.childruns import ChildRun

BUSY = """
import sys, time
from reput.cli import render
with render.stopped_by_signals(lambda: print("told", flush=True)) as stop:
    print("ready", flush=True)
    while not stop.is_set() or sys.argv[1] == "busy":
        time.sleep(0.01)
print("stopped", flush=True)
"""


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_command_at_once(
    tmp_path: Path, first: signal.Signals, second: signal.Signals
) -> None:
    """One that hangs in a batch could only be killed otherwise; the first one is said once."""
    with ChildRun(tmp_path / "log", [sys.executable, "-c", BUSY, "busy"]) as run:
        run.wait_until(lambda: "ready" in run.stdout)
        run.process.send_signal(first)
        run.wait_until(lambda: "told" in run.stdout)
        assert run.process.poll() is None
        run.process.send_signal(second)
        assert run.process.wait(60) == 130
        assert run.stdout.split() == ["ready", "told"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_a_command_end(tmp_path: Path, number: signal.Signals) -> None:
    """It does what it has to do."""
    with ChildRun(tmp_path / "log", [sys.executable, "-c", BUSY, "heeds"]) as run:
        run.wait_until(lambda: "ready" in run.stdout)
        run.process.send_signal(number)
        assert run.wait() == 0
        assert run.stdout.split() == ["ready", "told", "stopped"]


def test_signals_have_their_handlers_again() -> None:
    """A block that ends, by an error too, leaves them as they were."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    for error in (None, ValueError()):
        try:
            with render.stopped_by_signals():
                assert all(signal.getsignal(number) not in before for number in numbers)
                if error is not None:
                    raise error
        except ValueError as raised:
            assert raised is error
        assert [signal.getsignal(number) for number in numbers] == before
