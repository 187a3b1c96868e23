"""A SQL catalog whose COMMIT fails, before it was made or after that: every row is there once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tests.support.filledtables import FilledTable, Filling

SHARE = 0.6
"""The share of commits that fail."""


@contextmanager
def failing_commits(rng: random.Random) -> Iterator[Counter[bool]]:
    """Fail commits at random, as the loss of a connection does; the number of failures by whether
    the commit was made."""
    failed, commit = Counter[bool](), Session.commit

    def failing(session: Session) -> None:
        fails, is_made = rng.random() < SHARE, rng.random() < 0.5
        if is_made or not fails:
            commit(session)
        if fails:
            failed[is_made] += 1
            raise OperationalError("COMMIT", {}, ConnectionError("the connection was lost"))

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(Session, "commit", failing)
        yield failed


def fill_with_failures(root: Path, messages: int, rng: random.Random) -> Counter[bool]:
    """Fill and check one table; the number of failures by whether the commit was made."""
    table, filling = FilledTable.in_directory("iceberg", root), Filling.of(root, messages)
    with failing_commits(rng) as failed:
        errors = filling.fill(table, rng, most=1)
    filling.check(table)
    assert 0 < len(errors) <= failed.total()
    return failed


def test_failing_commits_leave_every_row_once(tmp_path: Path, seed: int) -> None:
    """A few dozen of them."""
    print(fill_with_failures(tmp_path, 18, random.Random(seed)))


def tallies(root: Path, rng: random.Random) -> Iterator[Counter[bool]]:
    """Fill tables without end."""
    number = 0
    while True:
        yield fill_with_failures(root / str(number), 40, rng)
        number += 1


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_three_hundred_failing_commits_of_each_kind(tmp_path: Path, seed: int) -> None:
    """Some were made, and some were not."""
    failed = Counter[bool]()
    for some in tallies(tmp_path, random.Random(seed)):
        failed += some
        if min(failed[True], failed[False]) >= 300:
            break
    print(f"made={failed[True]} not_made={failed[False]}")
