"""``reput``'s follower of an Iceberg table whose catalog is in a real PostgreSQL server."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.postgresql import running_postgresql
from tests.sinks.test_sql_commits import failing_commits
from tests.support.filledtables import FilledTable, Filling
from tests.support.killedfillers import kill_fillers
from tests.support.tableacts import fill_while_acting

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    """A server for all these tests."""
    with running_postgresql() as found:
        yield found


@pytest.fixture
def tables(uri: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FilledTable]:
    """Tables that do not exist yet."""
    properties = {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/lake"}
    name = request.node.name
    return (FilledTable(f"{name}_{number}", catalog=properties) for number in itertools.count())


def test_failing_commits(tmp_path: Path, tables: Iterator[FilledTable], seed: int) -> None:
    """A hundred at least were made, and as many were not."""
    rng, failed = random.Random(seed), Counter[bool]()
    for number, table in enumerate(tables):
        filling = Filling.of(tmp_path / str(number), 40)
        with failing_commits(rng) as some:
            filling.fill(table, rng, most=1)
        filling.check(table)
        failed += some
        if min(failed[True], failed[False]) >= 100:
            break
    print(f"made={failed[True]} not_made={failed[False]}")


def test_killed_fillers(tmp_path: Path, tables: Iterator[FilledTable], seed: int) -> None:
    """A hundred are killed at random moments."""
    assert kill_fillers(tmp_path, tables, messages=40, count=100, seed=seed) >= 100


def test_acts_of_another_process(tmp_path: Path, tables: Iterator[FilledTable], seed: int) -> None:
    """It appends, compacts, expires and rolls back at random moments."""
    rng, done = random.Random(seed), Counter[str]()
    for number, table in enumerate(itertools.islice(tables, 5)):
        done += fill_while_acting(Filling.of(tmp_path / str(number), 60), table, rng)
    print(f"acts and errors: {dict(done)}")
