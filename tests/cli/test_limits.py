"""Numbers that an option does not take: one beyond its limits, and none at them."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from tests.cli.test_config import parsed
from tests.cli.test_errors import assert_one_line
from tests.support.cli import Call

LONGEST = (1 << 63) - 1
LIMITED = (
    (("produce", "DIR"), "--topics", 1, 999),
    (("produce", "DIR"), "--queues", 1, None),
    (("produce", "DIR"), "--rate", 0, None),
    (("produce", "DIR"), "--size", 12, 4 << 20),
    (("produce", "DIR"), "--count", 1, LONGEST),
    (("produce", "DIR"), "--seed", -LONGEST, LONGEST),
    (("demo", "--dir", "DIR"), "--topics", 1, 999),
    (("demo", "--dir", "DIR"), "--size", 12, None),
    (("run", "DIR"), "--metrics-queues", 1, 1000),
    (("tail", "DIR", "T"), "--count", 0, LONGEST),
    (("query", "DIR", "T", "--key", "k"), "--max", 1, LONGEST),
    (("inspect", "queue", "DIR", "T", "0"), "--count", 1, LONGEST),
    (("inspect", "queue", "DIR", "T", "0"), "--from", 0, LONGEST),
    (("dlq", "list", "DIR"), "--count", 1, LONGEST),
    (("dlq", "resend", "DIR", "g"), "--offset", 0, LONGEST),
    (("export", "DIR", "DIR"), "--from-offset", 0, LONGEST),
    (("export", "DIR", "DIR"), "--to-offset", 0, LONGEST),
    (("groups", "reset", "DIR", "g", "--topic", "T"), "--queue", 0, LONGEST),
    (("groups", "reset", "DIR", "g", "--topic", "T"), "--offset", 0, LONGEST),
    (("checkpoints", "rewind", "DIR"), "--to-batch", 0, LONGEST),
    (("checkpoints", "rewind", "DIR"), "--to-offset", 0, LONGEST),
    (("rebuild", "DIR"), "--from", 0, LONGEST),
    (("table", "expire", "t"), "--keep-snapshots", 1, None),
)


@pytest.mark.parametrize(
    ("words", "option", "least", "most"),
    LIMITED,
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else str(one),
)
def test_a_number_within_its_limits(
    tmp_path: Path,
    call: Call,
    words: tuple[str, ...],
    option: str,
    least: int,
    most: int | None,
) -> None:
    """Both limits are taken; what is one beyond them ends the call before anything is looked at or
    made, with a line that names the option."""
    place = tmp_path / "none"
    given = [str(place) if word == "DIR" else word for word in words]
    name = " ".join(given[: 2 if given[0] in ("inspect", "dlq", "groups", "checkpoints", "table")
                          else 1])  # fmt: skip
    for number in (least, most):
        if number is not None:
            found = parsed(name, [*given[len(name.split()) :], option, str(number)], None)
            assert number in found.values() or [number] in found.values()
    for number in (least - 1, None if most is None else most + 1):
        if number is not None:
            assert_one_line(call(*given, option, number), 2, option)
    assert not place.exists()


@pytest.mark.parametrize("numbers", [(7, LONGEST + 1), (LONGEST + 1, 7)])
def test_each_of_several_numbers_has_the_limit(
    tmp_path: Path, call: Call, numbers: tuple[int, ...]
) -> None:
    """Whichever is beyond it."""
    given = [word for number in numbers for word in ("--offset", number)]
    assert_one_line(call("dlq", "resend", tmp_path, "g", *given), 2, "--offset", str(LONGEST))


@pytest.mark.parametrize("text", ["\u0661", "\u00b2", "1_000", "+1", " 1", "1.0", "1e3", "0x1", ""])
def test_a_number_is_of_plain_digits(text: str) -> None:
    """Others are no number, or the number that they look like."""
    try:
        found = parsed("tail", ["/store", "T", "--count", text], None)
    except typer.TyperException:
        return
    assert found["count"] == {"1_000": 1000, "+1": 1, " 1": 1, "1.0": 1, "\u0661": 1}.get(text)
