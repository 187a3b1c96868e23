"""Queues of another writer beside a log that was damaged since: what may have been dispatched of it
is kept, in queues and in the index."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree
from tests.support.grown_log import GrownLog

MESSAGES = 40


@pytest.mark.parametrize("number", [MESSAGES // 2, MESSAGES - 1])
@pytest.mark.parametrize("ext", [False, True])
def test_entries_of_a_message_that_is_damaged_now_are_kept(
    ram_path: Path, seed: int, number: int, *, ext: bool
) -> None:
    """It was sound when its writer dispatched it: nothing is cut, neither queues nor index. One of
    them is the last one with keys."""
    log = GrownLog(ram_path / "store", random.Random(seed), ext=ext)
    log.grow(MESSAGES)
    for queue_offset in range(3):
        log.plain.append(topic=b"Keyless", queue_offset=queue_offset)
    log.write()
    output = DerivedOutput(log.root, ram_path / "output")
    output.start()
    shutil.rmtree(output.state)
    queues, index = tree(output.root / "consumequeue"), output.index()
    start, end = log.plain.spans[number]
    log.plain.put(start, bytes(end - start))
    log.write()
    notes = "; ".join(output.start(adopt=True))
    assert "cutting" not in notes, notes
    assert tree(output.root / "consumequeue") == queues
    assert output.index() == index
