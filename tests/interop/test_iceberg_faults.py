"""Commits to a real REST catalog whose requests and answers get lost, late, doubled or torn: every
row is there once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from reput.sinks.iceberg import restcatalog
from tests.interop.faultyproxy import FAULTS, FaultyProxy, faulty_proxy
from tests.interop.restcatalog import RestServer
from tests.support.filledtables import FilledTable, Filling

HANG_SECONDS = 0.3
"""The limit of a request whose answer shall not come."""
COMMITS = 60
"""Commits of one table at most: each makes the next one slower."""


@pytest.fixture
def proxy(rest_server: RestServer) -> Iterator[FaultyProxy]:
    """One before it."""
    with faulty_proxy(rest_server.uri) as found:
        yield found


def fill_with_faults(
    root: Path, table: FilledTable, proxy: FaultyProxy, faults: Sequence[str], rng: random.Random
) -> Counter[str]:
    """Fill a table with these faults, one for a commit, and check it; the errors that were met, by
    kind."""
    filling, left = Filling.of(root, len(faults) + 2), iter(faults)

    def harm() -> None:
        fault = next(left, None)
        proxy.harm_next(None if fault is None else FAULTS[fault])
        is_hang = fault is not None and FAULTS[fault].ending == "hang"
        patches.setattr(restcatalog, "REQUEST_SECONDS", HANG_SECONDS if is_hang else 60.0)

    with pytest.MonkeyPatch.context() as patches:
        # more messages than faults, and one of them in a commit
        errors = filling.fill(table, rng, harm, most=1)
    assert next(left, None) is None
    filling.check(table)
    return Counter(error.partition(":")[0] for error in errors)


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
