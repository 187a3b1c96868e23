"""The debts of a base at rest whose log is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.overlay.base.debts import find_debts
from reput.store.config import read_store_settings
from tests.overlay.test_debts import delayed, made, timed


@pytest.mark.parametrize("is_timed", [False, True])
def test_what_follows_a_damaged_message_in_its_queue_is_owed(
    tmp_path: Path, is_timed: bool
) -> None:
    """Where the queue has neither: its next offset is not that of the last one that is known."""
    base = tmp_path / "base"
    waiting = [
        timed(90_000, 10_000, key=body) if is_timed else delayed(body, 10_000)
        for body in (b"x", b"y", b"z")
    ]
    first, second, third = made(base, *waiting)
    assert [record.queue_offset for record in (first, second, third)] == [0, 1, 2]
    (path, *_) = sorted((base / "commitlog").iterdir())
    with path.open("r+b") as log:
        log.seek(second.physical_offset + 4)
        log.write(bytes(4))
    expected = (first.physical_offset, third.physical_offset)
    assert find_debts(read_store_settings(base), base).places == expected
