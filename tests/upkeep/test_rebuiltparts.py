"""Parts of a rebuild, without a build: what it keeps of the output, and what of the new files."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from reput.checkpoints.watermark import WatermarkFile
from reput.store.config import OnQueueGap, StoreSettings
from reput.store.errors import NoSpaceError
from reput.store.state.built import record_build
from reput.store.state.ledger import LedgerEntry
from reput.store.state.storecheckpoint import StoreCheckpoint
from reput.store.state.watermark import Watermark, read_watermark
from reput.streaming.config import DispatcherConfig
from reput.upkeep import rebuild
from tests.support.outputs import STORE_ID
from tests.support.processes import open_files

LEDGER = "reput/quarantine.jsonl"


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """An output and what is built beside it."""
    for name in ("output", "built"):
        (tmp_path / name / "reput").mkdir(parents=True)
    return tmp_path / "output", tmp_path / "built"


def stand(root: Path, watermark: Watermark) -> None:
    """The position of an output."""
    file = WatermarkFile(root / "reput")
    file.advance(watermark)
    file.close()


def test_as_much_space_as_the_old_parts_take_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On disk, as du says; what is kept for root is not free."""
    paths = [tmp_path / name for name in ("consumequeue/T/0/0", "index/1", "commitlog/0")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_bytes(os.urandom(100_000))
        os.sync()
    sizes = subprocess.run(
        ["du", "--block-size=1", *paths[:2]], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    needed = sum(int(line.split()[0]) for line in sizes)
    assert needed >= 200_000
    system = list(os.statvfs(tmp_path))
    system[1], system[3] = 1, 1 << 50
    for free in (needed, needed - 1):
        system[4] = free
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", lambda _: os.statvfs_result(system))
            if free >= needed:
                rebuild._check_space(tmp_path)
                continue
            with pytest.raises(NoSpaceError, match=f"about {needed} bytes .* {free} are free"):
                rebuild._check_space(tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "has_index", "kept"),
    [
        ((1, 2, 3, 4, 5, 6), (11, 12, 13, 0, 15, 0), True, (11, 12, 13, 4, 15, 15)),
        ((1, 2, 3, 4, 5, 6), (11, 12, 13, 0, 15, 16), True, (11, 12, 13, 4, 15, 16)),
        ((1, 2, 3, 4, 5, 0), (11, 12, 13, 0, 15, 0), True, (11, 12, 13, 4, 15, 0)),
        ((1, 2, 3, 4, 5, 0), (11, 12, 0, 0, 15, 0), False, (11, 12, 3, 4, 15, 0)),
    ],
)
def test_what_the_new_checkpoint_takes_over(
    roots: tuple[Path, Path],
    before: tuple[int, ...],
    after: tuple[int, ...],
    has_index: bool,
    kept: tuple[int, ...],
) -> None:
    """The offset that the master has flushed; a logicsPhysicalOffset where a broker keeps one; the
    time of an index that stays."""
    output, built = roots
    StoreCheckpoint(*before).write(output)
    StoreCheckpoint(*after).write(built)
    if has_index:
        (built / "index").mkdir()
    rebuild._take_over_checkpoint(output, built)
    assert StoreCheckpoint.read(built) == StoreCheckpoint(*kept)
    assert StoreCheckpoint.read(output) == StoreCheckpoint(*before)


def test_an_index_alone_moves_what_belongs_to_it(roots: tuple[Path, Path]) -> None:
    """Where it begins, and the time of its full files; the position stays."""
    output, built = roots
    stood = Watermark(STORE_ID, 500, last_store_timestamp=7, index_begin=300)
    stand(output, stood)
    stand(built, Watermark(STORE_ID, 900, last_store_timestamp=9, index_begin=100))
    StoreCheckpoint(1, 2, 3, 4, 5, 6).write(output)
    StoreCheckpoint(11, 12, 13, 14, 15, 16).write(built)
    rebuild._note_index(DispatcherConfig(output.parent, output), built)
    found = read_watermark(output / "reput")
    assert found is not None
    assert replace(found, sequence=0) == replace(stood, index_begin=100)
    assert StoreCheckpoint.read(output) == StoreCheckpoint(1, 2, 13, 4, 5, 6)


def lines(*entries: LedgerEntry) -> str:
    return "".join(entry.to_json() + "\n" for entry in entries)


OLD = LedgerEntry(10, 20, "old", "A", 0), LedgerEntry(30, 40, "old", "B", 0)
NEW = (
    LedgerEntry(50, 100, "new", "A", 0), LedgerEntry(90, 101, "new", "A", 1),
    LedgerEntry(60, 70, "new", "B", 0),
)  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lines(*OLD), lines(OLD[1], NEW[0])),
        (lines(OLD[1]) + "{damaged\n", None),
        (lines(OLD[1], NEW[0]), None),
    ],
)
def test_lines_of_the_topics_that_are_rebuilt(
    roots: tuple[Path, Path], before: str, after: str | None
) -> None:
    """Lines of others stay, and none is beyond the watermark, which stays: the next run would add
    it. A ledger with a damaged line, and one that would not change, are left as they are."""
    output, built = roots
    stand(output, Watermark(STORE_ID, 100))
    (output / LEDGER).write_text(before)
    (built / LEDGER).write_text(lines(*NEW))
    config = DispatcherConfig(output.parent, output)
    parts = rebuild._ledger(config, built, ["A"])
    assert list(parts) == ([] if after is None else [LEDGER])
    assert (built / LEDGER).read_text() == (lines(*NEW) if after is None else after)
    assert (output / LEDGER).read_text() == before


@pytest.mark.parametrize(("slots", "is_compared"), [(None, True), (10, True), (11, False)])
def test_an_index_of_other_slots_is_not_compared(
    tmp_path: Path, slots: int | None, is_compared: bool
) -> None:
    """Its entries are elsewhere; queues are compared all the same."""
    settings = StoreSettings(tmp_path, (tmp_path / "commitlog",), max_hash_slot_num=10)
    if slots is not None:
        (tmp_path / "reput").mkdir()
        record_build(tmp_path, replace(settings, max_hash_slot_num=slots))
    kinds = ["consumequeue", "index"]
    found = rebuild._comparable(tmp_path, settings, kinds)
    assert list(found) == (kinds if is_compared else kinds[:1])


def test_a_copy_of_a_file_has_its_bytes_and_its_size(tmp_path: Path) -> None:
    """However large it is; bytes beyond the size are not the file's. No file stays open."""
    source, target = tmp_path / "source", tmp_path / "target"
    path, used = "consumequeue/T/0/0", os.urandom((2 << 20) + 4097)
    (source / path).parent.mkdir(parents=True)
    (source / path).write_bytes(used + bytes(1 << 20))
    for size in (3 << 20, len(used) - 1):
        target.mkdir()
        rebuild._copy(source, target, path, size)
        copied = (target / path).read_bytes()
        assert copied == used[:size].ljust(size, b"\0")
        assert open_files(tmp_path) == 0
        shutil.rmtree(target)


@pytest.mark.parametrize(
    ("topics", "gap", "moved"),
    [
        (None, OnQueueGap.ROCKETMQ, ["A", "B"]), (["B"], OnQueueGap.ROCKETMQ, ["B"]),
        (None, OnQueueGap.BLANK, []),
    ],
)  # fmt: skip
def test_queues_in_which_gaps_were_closed_up(
    roots: tuple[Path, Path], topics: list[str] | None, gap: OnQueueGap, moved: list[str]
) -> None:
    """The topics that were rebuilt count; blank units move nothing."""
    output, built = roots
    detail = "queue offset 7 at position 5"
    gaps = (LedgerEntry(10, 20, "queue_offset_gap", topic, 0, 7, detail) for topic in "AB")
    (built / LEDGER).write_text(lines(*gaps))
    settings = StoreSettings(output, (output / "commitlog",), on_queue_gap=gap)
    found = rebuild._moved(DispatcherConfig(output, output), settings, built, topics)
    assert [(one.topic, one.position) for one in found] == [(topic, 5) for topic in moved]
