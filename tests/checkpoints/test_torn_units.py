"""A power cut may leave the last unit of a queue without the first bytes of its offset, so that it
looks like one of an earlier message. Only the log tells such a unit from a sound one, and only as
far as the log is sound itself.
"""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from itertools import chain, pairwise
from pathlib import Path

import pytest

from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.streaming.sparkless import running
from tests.support.golden import tree
from tests.support.queue_units import queue_units
from tests.support.sparkless import dispatch
from tests.support.wire import UNIT, file_name
from tests.upkeep.test_checkpoints import DAMAGED, Place

MAGIC_AT = 4
SHORT = 256
"""Offsets below it have one byte, where the log's have two: they may be torn ones."""


@pytest.fixture
def place(ram_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(LogTail, "SEAL_SECONDS", 0.0)
    return Place(ram_path, random.Random(seed))


def test_a_unit_of_a_damaged_record_is_not_torn(place: Place, ram_path: Path, seed: int) -> None:
    """A bit of a magic code flips after the message was dispatched, and the next start, after a
    kill, still has the unit; all later messages keep their places."""
    rng, number = random.Random(seed), 0
    while not _flip_magic_codes(place, rng):
        number += 1  # no queue of this log had such a message
        place = Place(ram_path / str(number), random.Random(seed + number))


def _flip_magic_codes(place: Place, rng: random.Random) -> int:
    """Return the number of messages that were tried."""
    whole = tree(place.root / "consumequeue")
    queues: dict[tuple[str, int], list[int]] = {}
    for unit in queue_units(place.root):
        queues.setdefault((unit.topic, unit.queue_id), []).append(unit.offset)
    starts, tried = [start for start, _ in place.spans], 0
    for offset, following in chain.from_iterable(map(pairwise, queues.values())):
        # of the last record below a watermark a start remembers the bytes
        is_last = starts.index(following) - starts.index(offset) < 2
        if offset >= SHORT or is_last:
            continue
        shutil.rmtree(place.root)
        with running(place.config) as run:
            run.commit(run.scan(following))
        place.config.abort_file.write_bytes(b"")
        at = offset + MAGIC_AT + rng.randrange(4)
        sound = place.log.plain.image[at]
        place.write(at, bytes([sound ^ 1 << rng.randrange(8)]))
        dispatch(place.config)
        place.write(at, bytes([sound]))
        assert tree(place.root / "consumequeue") == whole
        tried += 1
    return tried


def test_a_torn_unit_does_not_decide_where_a_cut_log_agrees(place: Place) -> None:
    """A power cut has torn a unit, and the broker has lost the end of its log and gone on."""
    start, end = place.spans[0]
    path = place.root / "consumequeue" / "torn" / "0" / file_name(0)
    path.parent.mkdir(parents=True)
    unit = UNIT.pack(start + 1, end - start - 1, 0)
    path.write_bytes(unit.ljust(100, b"\0"))
    place.config.abort_file.write_bytes(b"")
    place.log.cut(35)
    place.log.grow(5)
    place.destroy(DAMAGED)
    place.dispatch()
    assert place.output.verify().differences == ()
    assert not path.exists()


@pytest.mark.parametrize(
    ("end", "torn"),
    [(0x80, 0), (0x100, 0), (0x180, 0xFF), (0x4000, 0xFF), (0x8000, 0xFF), (0xFF80, 0xFF),
     (0x10000, 0xFF), (0x10080, 0xFFFF)],
)  # fmt: skip
def test_an_offset_of_as_many_bytes_as_the_logs_last_is_not_torn(
    tmp_path: Path, end: int, torn: int
) -> None:
    """The first bytes of a longer one may be lost, whatever bits the last offset has; ``torn`` is
    the largest that may be one of these."""
    for start in range(0, end, 0x80):
        (tmp_path / file_name(start)).write_bytes(bytes(0x80))
    with closing(CommitLog([tmp_path])) as log:
        found = {at for at in (0, 1, torn, torn + 1, end - 1, end) if log.may_be_torn(at)}
    assert found == {0, min(torn, 1), torn}
