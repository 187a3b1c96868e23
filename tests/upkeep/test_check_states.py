"""The states of ``status --check`` and its one line, at the borders of the thresholds.

``cli/test_status_check`` has real outputs. The rules are Nagios's: one state, the worst, whose
number is the exit code, and measures after a bar.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reput.cli.statuscheck import Checked, check
from reput.store.errors import StoreError
from reput.store.state.ledger import LedgerCount
from reput.upkeep.watch.check import State, Thresholds, problems, worst
from reput.upkeep.watch.status import FollowerStatus, OutputStatus, read_status
from tests.streaming.test_begin_again import Site
from tests.support.processes import open_files

LIMITS = Thresholds(50, 600)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> OutputStatus:
    """The status of an output with which nothing is wrong."""
    site = Site(Path(tmp_path_factory.mktemp("site")))
    site.put("Orders", range(3))
    site.write()
    site.output.start()
    return read_status(site.output.settings(), site.output.root)


@pytest.mark.parametrize(
    ("lag", "limits", "state"),
    [
        (50.0, LIMITS, None),
        (50.1, LIMITS, State.WARNING),
        (600.0, LIMITS, State.WARNING),
        (600.1, LIMITS, State.CRITICAL),
        (600.1, Thresholds(50, None), State.WARNING),
        (600.1, Thresholds(None, 600), State.CRITICAL),
        (100.0, Thresholds(None, 600), None),
        (1e9, Thresholds(), None),
        (None, Thresholds(), State.CRITICAL),
    ],
)
def test_a_lag_is_a_problem_beyond_its_threshold(
    sound: OutputStatus, lag: float | None, limits: Thresholds, state: State | None
) -> None:
    """At the threshold it is none. With a watermark a lag is unknown where the log is another."""
    found = problems(replace(sound, lag_seconds=lag), limits)
    assert [problem.state for problem in found] == ([] if state is None else [state])


@pytest.mark.parametrize(
    ("limits", "states"),
    [
        (Thresholds(), []),
        (Thresholds(50, None), [State.UNKNOWN]),
        (Thresholds(None, 600), [State.UNKNOWN]),
    ],
)
def test_a_lag_that_nobody_asked_for_may_be_unknown(
    sound: OutputStatus, limits: Thresholds, states: list[State]
) -> None:
    """The queues of a broker have no watermark."""
    unknown = replace(sound, lag_seconds=None, watermark=None)
    assert [problem.state for problem in problems(unknown, limits)] == states


def test_the_worst_state_counts() -> None:
    """An error that hides a state is worse than a warning, and a state that is critical is worse
    than what is not known."""
    order = [State.OK, State.WARNING, State.UNKNOWN, State.CRITICAL]
    for count in range(len(order) + 1):
        assert worst(order[:count]) is (order[count - 1] if count else State.OK)
    assert [state.value for state in order] == [0, 1, 3, 2]


@pytest.mark.parametrize(
    ("count", "more"), [(2, ""), (3, ""), (4, "; and 1 more"), (5, "; and 2 more")]
)
def test_three_problems_are_named(count: int, more: str) -> None:
    """The line says how many there are besides."""
    outputs = [Checked(f"s{number}", StoreError("is gone")) for number in range(count)]
    done = check(lambda: outputs, Thresholds())
    named = "; ".join(f"s{number}: is gone" for number in range(min(count, 3)))
    assert (done.exit_code, [*done.parts]) == (3, [f"REPUT UNKNOWN - {named}{more}"])


def test_the_line_begins_with_what_its_state_is_for(sound: OutputStatus) -> None:
    """The problems of other states come after it, whichever store they are of, and the measures
    are those of the outputs that could be read."""
    follower = FollowerStatus("table", "", error="is full")
    status = replace(
        sound, unstopped_run="it ended", followers=(follower,), unqueued_bytes=7, gaps=4,
        quarantine=(LedgerCount("a", 1, 10), LedgerCount("b", 2, 5)),
    )  # fmt: skip
    unread = [Checked(name, StoreError("is gone")) for name in "ab"]
    done = check(lambda: [*unread, Checked("c=1", status)], LIMITS)
    (line,) = done.parts
    assert done.exit_code == 2
    text, _, measures = str(line).partition(" | ")
    assert text == "REPUT CRITICAL - c=1: it ended; a: is gone; b: is gone; and 1 more"
    assert measures == (
        "'c_1 lag'=0.000s;50;600;0 'c_1 lag_bytes'=0B;;;0 'c_1 unqueued'=7B;;;0 "
        "'c_1 quarantine'=15B;;;0 'c_1 gaps'=4;;;0"
    )


def test_a_status_that_cannot_be_read_leaves_nothing_open(tmp_path: Path) -> None:
    """A program that asks again and again would run out of descriptors."""
    site = Site(tmp_path)
    site.put("Orders", range(3))
    site.write()
    site.output.start()
    (site.output.state / "followers").mkdir()
    (site.output.state / "followers" / "torn.json").write_text("{")
    with pytest.raises(StoreError, match="remove it") as caught:
        read_status(site.output.settings(), site.output.root)
    assert caught.tb is not None
    assert open_files(tmp_path) == 0
