"""Queues of another writer, copied at another moment than their log: what the log does not have is
cut when they are adopted, as a broker cuts it at its start.

The oracle is a fresh dispatch of the log as it is now. Logs are plain bytes of the tests' own.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from reput.store.errors import CommitLogError
from reput.store.state.watermark import read_watermark
from tests.support.derived_output import QUEUE_TREES, DerivedOutput
from tests.support.golden import difference, tree
from tests.support.grown_log import FILE_SIZE, GrownLog
from tests.support.seeds import seed
from tests.support.wire import PlainLog

__all__ = ["seed"]

MESSAGES, STEP = 40, 4
FEW = 16
"""Units that have to agree where others disagree."""


class Copied:
    """A log, and queues that were built from it at an earlier moment."""

    def __init__(self, directory: Path, rng: random.Random, *, ext: bool) -> None:
        self.log = GrownLog(directory / "store", rng, ext=ext)
        self.log.grow(MESSAGES)
        self.output = DerivedOutput(self.log.root, directory / "output")
        self._fresh = directory / "fresh"
        self.output.start()
        # nothing but this tells the queues from a broker's
        shutil.rmtree(self.output.state)
        self._kept = directory / "kept"
        self.output.keep(self._kept)
        plain = self.log.plain
        self._log = plain.spans.copy(), plain.image.copy(), self.log.queues.copy(), plain.end

    def restore(self) -> None:
        """As it was copied."""
        self.output.restore(self._kept)
        plain, (spans, image, queues, end) = self.log.plain, self._log
        plain.spans, plain.image, plain.end = spans.copy(), image.copy(), end
        self.log.queues = queues.copy()

    def adopt(self) -> str:
        """Take the queues over; the notes of the start."""
        return "; ".join(self.output.start(adopt=True))

    def check(self, case: object) -> None:
        """The output holds what a fresh one of the log holds."""
        shutil.rmtree(self._fresh, ignore_errors=True)
        fresh = DerivedOutput(self.output.store, self._fresh)
        fresh.start()
        for name in QUEUE_TREES:
            assert difference(self.output.root / name, self._fresh / name) == [], (case, name)
        index = [content for content in self.output.index() if content.entries]
        assert index == [content for content in fresh.index() if content.entries], case


@pytest.mark.parametrize(
    ("how", "ext"),
    [
        ("torn", True),
        ("cut", False),
        ("cut and grown", True),
        ("cut and grown beyond", True),
        ("cut and grown beyond", False),
    ],
)
def test_adopted_queues_are_cut_where_the_log_has_other_messages_or_none(
    ram_path: Path, seed: int, how: str, ext: bool
) -> None:
    """At places all over the log: what is adopted and then follows is what a fresh dispatch
    builds, and the counts say what was cut; where no unit is of this log, nothing is changed."""
    copied = Copied(ram_path, random.Random(seed), ext=ext)
    log = copied.log
    adopted = refused = 0
    for kept in (0, *range(1 + seed % STEP, MESSAGES, STEP)):
        copied.restore()
        cut = log.units_of(kept)
        stays = log.units_of(0) - cut
        log.break_off(how, kept)
        before = tree(copied.output.root / "consumequeue")
        try:
            notes = copied.adopt()
        except CommitLogError as error:
            assert "nothing was cut" in str(error)
            assert tree(copied.output.root / "consumequeue") == before
            assert not stays or ("grown" in how and stays < min(FEW, cut)), error
            refused += 1
            continue
        assert stays, notes
        ends = [
            end
            for (_, end), queues in zip(log.plain.spans[:kept], log.queues, strict=False)
            if queues
        ]
        # where the records in their place are beyond the new end, nothing says that they differ
        places = [ends[-1], log.plain.end] if "grown" in how else [log.plain.end]
        # and a hole up to a log file's end may hide a BLANK
        places += [-(-place // FILE_SIZE) * FILE_SIZE for place in places if how == "torn"]
        said = [f"from physical offset {place} on, {cut} units and " for place in places]
        if cut:
            assert any(text in notes for text in said), notes
            assert f"; {stays} units are kept" in notes, notes
        copied.check((how, kept))
        log.grow(5)
        copied.output.start()
        copied.check((how, kept, "grown"))
        adopted += 1
    assert adopted and refused


def test_a_unit_in_whose_place_a_log_file_ends_is_cut(tmp_path: Path) -> None:
    """The log lost its last message, and the next one did not fit into the file: a BLANK there is
    no damage."""
    plain, store = PlainLog(FILE_SIZE), tmp_path / "store"

    def put(topic: bytes, queue_offset: int, size: int) -> None:
        plain.append(topic=topic, queue_id=0, queue_offset=queue_offset, body=b"x" * size)

    while plain.end < FILE_SIZE - 600:
        put(b"Orders", len(plain.spans), 10)
    cut = plain.end
    put(b"Orders", len(plain.spans), 10)
    plain.write(store / "commitlog")
    (store / "broker.conf").write_text(
        f"mappedFileSizeCommitLog={FILE_SIZE}\nmappedFileSizeConsumeQueue=200\n"
    )
    output = DerivedOutput(store, tmp_path / "output")
    output.start()
    shutil.rmtree(output.state)
    plain.cut(cut)
    put(b"Other", 0, 700)
    plain.write(store / "commitlog")
    output.start(adopt=True)
    fresh = DerivedOutput(store, tmp_path / "fresh")
    fresh.start()
    assert difference(output.root / "consumequeue", fresh.root / "consumequeue") == []


def test_an_index_that_begins_where_the_queues_are_cut_is_no_index_yet(tmp_path: Path) -> None:
    """The log lost the only message with a key: the index then is complete from the log's first
    byte, as that of a fresh dispatch is."""
    plain, store = PlainLog(FILE_SIZE), tmp_path / "store"
    for number in range(20):
        plain.append(topic=b"Orders", queue_id=0, queue_offset=number)
    cut = plain.end
    plain.append(topic=b"Orders", queue_id=0, queue_offset=20, properties=b"KEYS\x01k\x02")
    plain.write(store / "commitlog")
    (store / "broker.conf").write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\n")
    output = DerivedOutput(store, tmp_path / "output")
    output.start()
    shutil.rmtree(output.state)
    plain.cut(cut)
    plain.write(store / "commitlog")
    assert f"from physical offset {cut} on" in "; ".join(output.start(adopt=True))
    found = read_watermark(output.state)
    assert found is not None and found.index_begin == 0
