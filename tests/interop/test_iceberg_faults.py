"""Commits to a real REST catalog whose requests and answers get lost, late, doubled or torn: every
row is there once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reput.sinks.iceberg import restcatalog
from tests.interop.faultyproxy import FAULTS, FaultyProxy, faulty_proxy
from tests.interop.restcatalog import RestServer
from tests.support.filledtables import FilledTable, Filling
from tests.support.tableacts import fill_while_acting

HANG_SECONDS = 0.3
"""The limit of a request whose answer shall not come."""
COMMITS = 60
"""Commits of one table at most: each makes the next one slower."""


@pytest.fixture
def proxy(rest_server: RestServer) -> Iterator[FaultyProxy]:
    """One before it."""
    with faulty_proxy(rest_server.uri) as found:
        yield found


def harm_next(proxy: FaultyProxy, fault: str | None, patches: pytest.MonkeyPatch) -> None:
    """Harm the next change, or none; an answer that shall not come is waited for a short time."""
    proxy.harm_next(None if fault is None else FAULTS[fault])
    is_hang = fault is not None and FAULTS[fault].ending == "hang"
    patches.setattr(restcatalog, "REQUEST_SECONDS", HANG_SECONDS if is_hang else 60.0)


def fill_with_faults(
    root: Path, table: FilledTable, proxy: FaultyProxy, faults: Sequence[str], rng: random.Random
) -> Counter[str]:
    """Fill a table with these faults, one for a commit, and check it; the errors that were met, by
    kind."""
    # more messages than faults, and one of them in a commit
    filling, left = Filling.of(root, len(faults) + 2), iter(faults)
    with pytest.MonkeyPatch.context() as patches:
        errors = filling.fill(
            table, rng, lambda: harm_next(proxy, next(left, None), patches), most=1
        )
    assert next(left, None) is None
    filling.check(table)
    return Counter(error.partition(":")[0] for error in errors)


def fill_while_others_act(
    root: Path, table: FilledTable, proxy: FaultyProxy, messages: int, rng: random.Random
) -> Counter[str]:
    """Fill a table with faults while another process acts on it, and check it; the number of acts
    and of errors, by kind."""
    through = replace(table, catalog={**table.catalog, "uri": proxy.uri})

    def harm() -> None:
        harm_next(proxy, rng.choice([*FAULTS, None]), patches)

    with pytest.MonkeyPatch.context() as patches:
        return fill_while_acting(Filling.of(root, messages), through, rng, harm, table)


@pytest.mark.extended
def test_commits_with_every_fault(
    tmp_path: Path, rest_server: RestServer, proxy: FaultyProxy, seed: int
) -> None:
    """Each kind twice, in a random order."""
    rng = random.Random(seed)
    faults = [*FAULTS] * 2
    rng.shuffle(faults)
    table = FilledTable("faults", catalog=rest_server.properties(proxy.uri))
    errors = fill_with_faults(tmp_path, table, proxy, faults, rng)
    print(f"faults={len(faults)} taken={proxy.taken} refused={proxy.refused} errors={errors}")
    assert errors.total() > len(faults) // 2
    assert proxy.refused > 0


@pytest.mark.extended
def test_commits_with_faults_while_another_process_acts(
    tmp_path: Path, rest_server: RestServer, proxy: FaultyProxy, seed: int
) -> None:
    """It appends, compacts, expires and rolls back at random moments."""
    table = FilledTable("acts", catalog=rest_server.properties())
    print(fill_while_others_act(tmp_path, table, proxy, 10, random.Random(seed)))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_commits_with_faults_while_another_process_acts_on_ten_tables(
    tmp_path: Path, rest_server: RestServer, proxy: FaultyProxy, seed: int
) -> None:
    """The same, with longer logs."""
    rng, done = random.Random(seed), Counter[str]()
    for number in range(10):
        table = FilledTable(f"acts_{number}", catalog=rest_server.properties())
        done += fill_while_others_act(tmp_path / str(number), table, proxy, 40, rng)
    print(f"taken={proxy.taken} refused={proxy.refused} acts and errors: {dict(done)}")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_commits_with_three_hundred_faults_of_a_kind(
    tmp_path: Path, rest_server: RestServer, proxy: FaultyProxy, seed: int, fault: str
) -> None:
    """The same, in several tables."""
    rng, errors = random.Random(seed), Counter[str]()
    name = fault.replace(" ", "_")
    for number, start in enumerate(range(0, 300, COMMITS)):
        faults = [fault] * min(COMMITS, 300 - start)
        table = FilledTable(f"{name}_{number}", catalog=rest_server.properties(proxy.uri))
        errors += fill_with_faults(tmp_path / str(number), table, proxy, faults, rng)
    print(f"{fault}: taken={proxy.taken} refused={proxy.refused} errors={dict(errors)}")
