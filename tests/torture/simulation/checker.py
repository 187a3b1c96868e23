"""Checks a history by all rules."""

from __future__ import annotations

from tests.torture.simulation.answers import AnswersRule, BoundsRule, MembersRule, PullsRule
from tests.torture.simulation.history import History, Kind
from tests.torture.simulation.locks import LocksRule
from tests.torture.simulation.offsets import OffsetsRule
from tests.torture.simulation.state import Findings, Rule, State


def violations(history: History) -> list[str]:
    """All violations, in the order in which they show."""
    state, findings = State(), Findings(history)
    offsets = OffsetsRule(state, findings)
    rules: list[Rule] = [
        offsets, AnswersRule(state, findings), PullsRule(state, findings, offsets),
        BoundsRule(state, findings), MembersRule(state, findings), LocksRule(state, findings),
    ]  # fmt: skip
    for event in history.events:
        if event.kind is Kind.RECEIVED:
            # the trace has it, and no rule needs it
            continue
        state.see(event)
        for rule in rules:
            rule.see(event)
    return findings.all
