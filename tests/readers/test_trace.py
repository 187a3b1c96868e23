"""Events of traces that no client of RocketMQ writes: whoever may send a message may send them."""

from __future__ import annotations

import pytest

from reput.readers.trace import TYPES, decode

FIELDS = ["Pub", "5", "r", "g", "T", "id", "tag", "k", "host", "7", "3", "0", "offset id", "true"]
TIME, LENGTH, COST, TYPE = 1, 9, 10, 11


@pytest.mark.parametrize("place", [TIME, LENGTH, COST])
@pytest.mark.parametrize(
    ("text", "value"),
    [("-5", -5), ("9223372036854775807", (1 << 63) - 1), ("--5", None), ("-", None), ("", None),
     ("5-", None), ("1_0", None), (" 5", None), ("9" * 5000, None)],
)  # fmt: skip
def test_what_is_no_number_is_none(place: int, text: str, value: int | None) -> None:
    """The other fields of the event are as they were."""
    parts = [*FIELDS]
    parts[place] = text
    (whole,), (found,) = decode("\x01".join(FIELDS)), decode("\x01".join(parts))
    name = {TIME: "time", LENGTH: "body_length", COST: "cost_ms"}[place]
    assert found == {**whole, name: value}


@pytest.mark.parametrize("text", ["-1", str(len(TYPES)), "9" * 5000, "x", ""])
def test_a_type_that_is_none_stays_as_it_is(text: str) -> None:
    parts = [*FIELDS]
    parts[TYPE] = text
    (found,) = decode("\x01".join(parts))
    assert found["message_type"] == text
