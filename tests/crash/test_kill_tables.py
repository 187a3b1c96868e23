"""kill -9 of processes that fill a table, at random moments: every row is there once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.filledtables import FilledTable
from tests.support.killedfillers import kill_fillers

KINDS = "delta", "iceberg"
LAYOUTS = "hour,queue(2):queueId,keys", ":topic", "topic:storeTimestamp"
"""Layouts that tables of each kind also have."""


def tables(root: Path, kinds: Iterator[str]) -> Iterator[FilledTable]:
    """Make a table of each kind."""
    for number, kind in enumerate(kinds):
        yield FilledTable.in_directory(kind, root / str(number))


@pytest.mark.extended
def test_killed_fillers_leave_every_row_once(tmp_path: Path, seed: int) -> None:
    """Both formats are met until a few were killed."""
    kinds = itertools.cycle(KINDS)
    kills = kill_fillers(tmp_path, tables(tmp_path, kinds), messages=25, count=8, seed=seed)
    assert kills >= 8


@pytest.mark.extended
@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_fillers_of_a_layout_leave_every_row_once(
    tmp_path: Path, seed: int, layout: str
) -> None:
    """The same holds for other partitions and orders than the default."""
    kinds = itertools.cycle(f"{kind}:{layout}" for kind in KINDS)
    kills = kill_fillers(tmp_path, tables(tmp_path, kinds), messages=15, count=4, seed=seed)
    assert kills >= 4


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_three_hundred_killed_fillers_leave_every_row_once(
    tmp_path: Path, seed: int, kind: str
) -> None:
    """The same, more often."""
    kinds = itertools.repeat(kind)
    kills = kill_fillers(tmp_path, tables(tmp_path, kinds), messages=40, count=300, seed=seed)
    assert kills >= 300
