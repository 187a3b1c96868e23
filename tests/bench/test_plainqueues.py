"""The C program that makes an output's queues: it makes them, and is compared with what is
beyond."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench import scaling
from bench.context import Context
from bench.measures import Figures, Row
from bench.plainqueues import NAME, PlainQueues
from bench.processes import BenchError
from tests.support.jdk import require_tools


def tree(root: Path) -> dict[str, bytes | None]:
    """Every file's bytes by its path, None for a directory."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in (root / "consumequeue").rglob("*")
    }


def test_it_makes_the_files_that_a_broker_made(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Every directory, length and byte, each time in a new place."""
    require_tools(("cc",), "a C program")
    store = golden("plain")
    plain = PlainQueues(store, tmp_path)
    made = [plain.make() for _ in range(2)]
    assert made[0][0] != made[1][0]
    for root, seconds in made:
        assert tree(root) == tree(store) != {}
        assert seconds > 0
    assert len(plain.cpu_seconds) == 2


def test_without_a_compiler_there_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row has it among its notes."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="no C compiler on PATH"):
        PlainQueues(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("count", "before", "plain", "is_met"),
    [
        (10_000, None, (2.0, 2.0, 2.0), True),
        (10_000, None, (1.0, 1.0, 1.0), False),
        (100_000, True, (1.0, 1.0, 1.0), True),
        (100_000, False, (1.0, 1.0, 1.0), False),
        (100_000, True, None, None),
    ],
)
def test_the_goal_is_about_the_time_beyond_that_of_few_queues(
    count: int, before: bool | None, plain: tuple[float, ...] | None, is_met: bool | None
) -> None:
    """2 s beyond it; without the C program nothing is judged."""
    most, few = Figures("s", (3.0, 2.5, 3.5)), Figures("s", (1.0, 1.0, 1.0))
    row = Row("queues", "", "", "3.00 s", before)
    if plain is not None:
        row.figures[NAME] = Figures("s", plain)
        times = scaling.beyond(most, few, row.figures[NAME])
        assert times.values == tuple(beyond / plain[0] for beyond in (2.0, 1.5, 2.5))
    scaling._add_plain(row, Context(Path("data"), frozenset()), count, most, few)
    assert row.met is is_met
    assert ("a C program" in row.result) is (plain is not None)
    goal = {10_000: "1.5x", 100_000: "2x"}[count]
    assert row.goal == f"beyond 10 queues <= {goal} a C program that makes the files"


def test_cpu_seconds_are_those_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass before the rounds does not count."""
    used = iter([0.0, 100.0, 100.0, 101.0, 101.0, 103.0])
    monkeypatch.setattr(scaling, "cpu_seconds", lambda _pid: next(used))
    systems = scaling.Systems()
    systems.add("reput", lambda: 5.0, 1)
    systems.runs["reput"]()
    figures = systems.alternate(Context(Path("data"), frozenset()), 2)
    assert figures == {
        "reput": Figures("s", (5.0, 5.0)),
        "reput: CPU": Figures("s", (1.0, 2.0)),
    }
