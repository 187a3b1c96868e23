"""Another process changes tables at random moments while a follower fills them, or fills them
itself: every row is there once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.support.filledtables import FilledTable, Filling
from tests.support.tableacts import fill_while_acting

KINDS = "delta", "iceberg", "delta:hour,queue(2):topic,keys"


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_there_once_whatever_another_process_does(
    tmp_path: Path, seed: int, kind: str
) -> None:
    """It appends, compacts, expires and rolls back."""
    table = FilledTable.in_directory(kind, tmp_path)
    print(fill_while_acting(Filling.of(tmp_path, 20), table, random.Random(seed)))


@pytest.mark.parametrize("kind", KINDS)
def test_two_followers_with_one_identity_write_every_row_once(
    tmp_path: Path, seed: int, kind: str
) -> None:
    """Each of them begins where the other one has ended."""
    filling, table = Filling.of(tmp_path, 20), FilledTable.in_directory(kind, tmp_path)
    errors = filling.race(table, random.Random(seed))
    filling.check(table)
    print(f"errors={len(errors)}")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_two_followers_with_one_identity_write_every_row_of_a_hundred_tables_once(
    tmp_path: Path, seed: int, kind: str
) -> None:
    """The same, more often: a moment of a few milliseconds counts, as when both make the table."""
    rng, errors = random.Random(seed), 0
    for number in range(100):
        root = tmp_path / str(number)
        filling, table = Filling.of(root, 20), FilledTable.in_directory(kind, root)
        errors += len(filling.race(table, rng))
        filling.check(table)
    print(f"{kind}: errors={errors}")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_there_once_whatever_another_process_does_to_thirty_tables(
    tmp_path: Path, seed: int, kind: str
) -> None:
    """The same, with longer logs."""
    rng, done = random.Random(seed), Counter[str]()
    for number in range(30):
        root = tmp_path / str(number)
        table = FilledTable.in_directory(kind, root)
        done += fill_while_acting(Filling.of(root, 60), table, rng)
    print(f"{kind}: {dict(done)}")
    assert done["roll_back"] > 0
