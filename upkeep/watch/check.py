"""The answer of ``reput status --check`` to a monitoring system: one state, by Nagios's rules.

    critical  a run ended without stopping; messages are in no queue that none will bring there;
              the log is not the one that was dispatched; the lag is beyond the critical threshold
    warning   a follower fails; units lie beyond the log's end; the lag is beyond the threshold of a
              warning
    unknown   the output cannot be read; thresholds are given, but the lag is not known

The lag is the age of the first message that is not dispatched. Quarantined bytes and gaps are
history that stays: they are measures, and no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from reput.upkeep.watch.status import OutputStatus


class State(IntEnum):
    """States with their exit codes."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


WORST_FIRST = (State.CRITICAL, State.UNKNOWN, State.WARNING, State.OK)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Seconds of lag beyond which a state is reported; None for no threshold."""

    warning: float | None = None
    critical: float | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason for a state other than OK."""

    state: State
    text: str


def problems(status: OutputStatus, limits: Thresholds) -> list[Problem]:
    """Return the problems of an output, the worst first."""
    all_of = [
        (State.CRITICAL, status.unstopped_run),
        (State.CRITICAL, status.unqueued if status.coverage.is_loss else None),
        *((State.WARNING, f"follower {follower.name} fails: {follower.error}")
          for follower in status.followers if follower.error),
        (State.WARNING, _beyond(status)),
        _of_lag(status, limits),
    ]  # fmt: skip
    all_problems = [Problem(state, text) for state, text in all_of if text is not None]
    return sorted(all_problems, key=lambda problem: WORST_FIRST.index(problem.state))


def worst(states: list[State]) -> State:
    """Return the state that counts among several; OK of none."""
    return min(states, key=WORST_FIRST.index, default=State.OK)


def _beyond(status: OutputStatus) -> str | None:
    if not status.queues_beyond_log:
        return None
    return f"units of {status.queues_beyond_log[0]} lie beyond the log's end"


def _of_lag(status: OutputStatus, limits: Thresholds) -> tuple[State, str | None]:
    lag = status.lag_seconds
    if lag is None and status.watermark is not None:
        return State.CRITICAL, "the log is not the one that was dispatched: run the dispatcher"
    for limit, state in ((limits.critical, State.CRITICAL), (limits.warning, State.WARNING)):
        if limit is None:
            continue
        if lag is None:
            return State.UNKNOWN, "the lag is unknown without a watermark"
        if lag > limit:
            return state, f"the lag of {lag:.1f} s is beyond {limit:g} s"
    return State.OK, None
