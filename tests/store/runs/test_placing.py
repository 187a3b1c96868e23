"""The usual case of placing, against the rules for all cases, which the writers' tests hold against
a plain model of RocketMQ's."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.store.queue.consumequeue import CQ_STORE_UNIT_SIZE, UNIT_DTYPE
from reput.store.runs.dispatch import Run
from reput.store.runs.placing import (
    MAX_QUEUE_OFFSET,
    PlacingRules,
    QueueEnd,
    Step,
    _place_all,
    place,
)

SIZE = 100
PLACES = st.one_of(st.integers(-1, 3), st.integers(MAX_QUEUE_OFFSET - 4, MAX_QUEUE_OFFSET + 2))


def run_of(queue_offset: int, message: int, count: int) -> Run:
    """Messages of one queue, one after the other in the log."""
    units = np.zeros(count, UNIT_DTYPE)
    units["offset"] = (message + np.arange(count)) * SIZE
    units["size"] = SIZE
    return Run(b"T", 0, message * SIZE, queue_offset, None, units, 0)


def values(step: Step) -> dict[str, object]:
    """All of a step but its run."""
    return {
        field.name: getattr(step, field.name)
        for field in dataclasses.fields(step)
        if field.name != "run"
    }


@settings(max_examples=1_000, deadline=None)
@given(
    queue_offset=PLACES, count=st.integers(1, 4), message=st.integers(0, 3),
    first=st.integers(0, 1), position=PLACES, built=st.integers(-1, 4),
    follows=st.none() | st.integers(0, 3), is_gone=st.booleans(),
)  # fmt: skip
def test_the_usual_case_is_what_the_rules_say(
    queue_offset: int,
    count: int,
    message: int,
    first: int,
    position: int,
    built: int,
    follows: int | None,
    *,
    is_gone: bool,
) -> None:
    """Near the least and the greatest queue offset, before and after what has its units."""
    end = QueueEnd(
        max(position, 0) * CQ_STORE_UNIT_SIZE, built * SIZE if built >= 0 else -1, follows
    )
    run = run_of(queue_offset, message, count)
    rules = PlacingRules(20 * CQ_STORE_UNIT_SIZE, is_gone=lambda _: is_gone)
    steps = [*place(end, run, min(first, count), rules, lambda: None)]
    expected = [*_place_all(end, run, min(first, count), rules, lambda: None)]
    assert [(type(one), values(one)) for one in steps] == [
        (type(one), values(one)) for one in expected
    ]
