"""Addresses in units of messages that the log has lost: a damaged one may lead anywhere.

Nothing tells them, so that they count only where such a message's ext unit may lie: before the ext
unit of the first message that is left, or in a file that is there or may follow.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree
from tests.support.grown_log import FILE_SIZE, SETTINGS, GrownLog
from tests.support.wire import UNIT

EXT_FILE_SIZE = int(SETTINGS["mappedFileSizeConsumeQueueExt"])
MIN_LONG = -(1 << 63)


@dataclass
class Place:
    """The unit of a queue's last message that the log has lost."""

    output: DerivedOutput
    path: Path
    position: int
    next_address: int
    """Where the ext unit after its own one is, or would be."""

    def lead_to(self, address: int) -> None:
        """Have the unit's address lead there."""
        data = bytearray(self.path.read_bytes())
        offset, size, _ = UNIT.unpack_from(data, self.position)
        UNIT.pack_into(data, self.position, offset, size, MIN_LONG + address)
        self.path.write_bytes(data)


def lost_front(directory: Path, seed: int, *, is_all: bool) -> Place:
    """A log without its first files: of one of queue A 0's messages, or all of them."""
    log = GrownLog(directory / "store", random.Random(seed), ext=True)
    log.grow(60)
    (topic_a, other) = ((b"A", 0), b"Other")
    log.plain.append(topic=other, store_timestamp=1_700_000_200_000, body=bytes(FILE_SIZE - 300))
    log.write()
    output = DerivedOutput(log.root, directory / "output")
    output.start()
    last = max(start for (start, _), found in zip(log.plain.spans, log.queues, strict=False)
               if topic_a in found)  # fmt: skip
    first = log.plain.spans[-1][0] if is_all else last - last % FILE_SIZE
    for path in sorted((log.root / "commitlog").iterdir()):
        if int(path.name) < first - first % FILE_SIZE:
            path.unlink()
    units = [
        (path, at, *UNIT.unpack_from(path.read_bytes(), at))
        for path in sorted((output.root / "consumequeue" / "A" / "0").iterdir())
        for at in range(0, len(path.read_bytes()), UNIT.size)
    ]
    gone = [unit for unit in units if unit[3] and unit[2] < first]
    path, position, _, _, code = gone[-1]
    return Place(output, path, position, code - MIN_LONG + 20)


@pytest.mark.parametrize("beyond", [7, 45, EXT_FILE_SIZE])
@pytest.mark.parametrize("is_all", [False, True])
def test_a_repair_leaves_the_ext_units_that_a_damaged_address_leads_into(
    ram_path: Path, seed: int, beyond: int, *, is_all: bool
) -> None:
    """Units of messages that the log has are as they were, and nothing is written after them."""
    place = lost_front(ram_path, seed, is_all=is_all)
    assert place.output.verify().differences == ()
    exts = tree(place.output.root / "consumequeue_ext")
    place.lead_to(place.next_address + beyond)
    place.output.verify(repair=True)
    assert place.output.verify().differences == ()
    if not is_all:
        assert tree(place.output.root / "consumequeue_ext") == exts


@pytest.mark.parametrize("is_all", [False, True])
def test_a_wild_address_of_a_message_that_is_gone_is_nothing_to_heal(
    ram_path: Path, seed: int, *, is_all: bool
) -> None:
    """To heal it, a terabyte of ext units would be written."""
    place = lost_front(ram_path, seed, is_all=is_all)
    for address in (1 << 40, (1 << 62) + 3, 7 * EXT_FILE_SIZE):
        place.lead_to(address)
        assert place.output.verify().differences == (), address
