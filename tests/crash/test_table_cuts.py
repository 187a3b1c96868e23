"""Power cuts while an Iceberg table on a local path is filled: the table can be read, and every row
is there once."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from reput.sinks.iceberg import localfiles
from tests.sinks.test_tables import rows_of
from tests.support.filledtables import FilledTable, Filling
from tests.support.tablecuts import CutDisk, PowerCutError

MESSAGES = 30
MOST_POINTS = 120
"""Moments until a cut; a commit has about thirty."""


def check_readable(filling: Filling, table: FilledTable) -> None:
    """The rows are those up to the position."""
    position = table.follower().position()
    if position is not None:
        expected = [r for r in rows_of(filling.source.store) if r["physicalOffset"] < position]
        assert table.rows() == expected


def fill_with_cuts(root: Path, rng: random.Random) -> int:
    """Fill one table, and check it after each cut; the number of cuts."""
    filling, table = Filling.of(root, MESSAGES), FilledTable.in_directory("iceberg", root)
    cuts = 0
    with CutDisk(root / "lake") as disk:
        while True:
            disk.cut_after(rng.randrange(1, MOST_POINTS), rng)
            with suppress(PowerCutError):
                assert filling.fill(table, rng) == []
            if not disk.is_cut:
                break
            cuts += 1
            disk.begin_again()
            disk.cut_after(0, rng)
            check_readable(filling, table)
        print(f"cuts={cuts} points={disk.points}")
    filling.check(table)
    return cuts


def test_a_power_cut_loses_no_row_and_doubles_none(tmp_path: Path, seed: int) -> None:
    """A few."""
    assert fill_with_cuts(tmp_path, random.Random(seed)) > 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_power_cuts_lose_no_row_and_double_none(tmp_path: Path, seed: int) -> None:
    """The same, in several tables."""
    rng, cuts, tables = random.Random(seed), 0, 0
    while cuts < 100:
        cuts += fill_with_cuts(tmp_path / str(tables), rng)
        tables += 1
    print(f"cuts={cuts} tables={tables}")


def test_without_syncs_a_power_cut_breaks_the_table(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary of the two tests above."""
    monkeypatch.setattr(localfiles._SyncedStream, "close", lambda self: self._stream.close())
    rng = random.Random(seed)

    def is_broken(root: Path) -> bool:
        try:
            fill_with_cuts(root, rng)
        # the libraries raise errors of many kinds
        except Exception as error:
            print(repr(error)[:200])
            return True
        return False

    assert any(is_broken(tmp_path / str(number)) for number in range(20))
