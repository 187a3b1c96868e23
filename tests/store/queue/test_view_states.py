"""A view of a queue whose files or whose log change under it, and queues with rare places.

Expected values are the units that the test wrote, by struct.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from reput.store.config import StoreSettings
from reput.store.log.commitlog import CommitLog
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.consumequeueext import ConsumeQueueExtFiles, place
from reput.store.queue.kinds import QueueKind
from reput.store.queue.unsynced import UnsyncedFiles
from reput.store.queue.view import ConsumeQueueView, QueueView, open_view
from tests.support.batch_queue import BATCH_UNIT
from tests.support.wire import UNIT, PlainLog, file_name

KEY = QueueKey("Topic", 0)


def write_units(root: Path, units: list[bytes], kind: str = "consumequeue") -> Path:
    """One file, with room for some more units."""
    path = root / kind / KEY.relative_path / file_name(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    size = len(units[0])
    path.write_bytes(b"".join(units) + bytes(10 * size))
    return path


@contextmanager
def opened(root: Path, path: Path, kind: QueueKind = QueueKind.CONSUME) -> Iterator[QueueView]:
    """The view of the queue with that file, beside a log in files of 1024 bytes."""
    size = path.stat().st_size
    settings = replace(
        StoreSettings(root, ()),
        mapped_file_size_consume_queue=size,
        mapper_file_size_batch_consume_queue=size,
        mapped_file_size_consume_queue_ext=1000,
    )
    (root / "commitlog").mkdir(exist_ok=True)
    with closing(CommitLog([root / "commitlog"], 1024)) as log:
        view = open_view(root, KEY, settings, log, kind)
        view.follow(None)
        yield view


def stored(view: QueueView, offset: int, count: int) -> list[tuple[int, ...]]:
    """The units that a pull gets."""
    assert isinstance(view, ConsumeQueueView)
    found = view.stored_units(offset, count)
    assert found is not None
    data, first, number = found
    return [*UNIT.iter_unpack(data.tobytes()[20 * first : 20 * (first + number)])]


def test_a_small_read_beyond_what_was_read_ahead_has_all_its_units(tmp_path: Path) -> None:
    """Wherever it begins: as many as were asked for, or as there are."""
    units = [(100 * at, 100, at) for at in range(1100)]
    path = write_units(tmp_path, [UNIT.pack(*unit) for unit in units])
    with opened(tmp_path, path) as view:
        for offset, count in ((0, 2), (505, 3), (508, 9), (511, 1), (600, 8), (1098, 32)):
            assert stored(view, offset, count) == units[offset : offset + count], offset


def test_units_that_were_written_anew_are_read_anew(tmp_path: Path) -> None:
    """A dispatcher has cut the queue after a log that was cut, and has gone on."""
    before, after = [(100 * at, 100, 1) for at in range(5)], [(90 * at, 90, 2) for at in range(5)]
    path = write_units(tmp_path, [UNIT.pack(*unit) for unit in before])
    with opened(tmp_path, path) as view:
        assert stored(view, 1, 2) == before[1:3]
        write_units(tmp_path, [UNIT.pack(*unit) for unit in (*before[:1], *after[1:])])
        view.follow(None)
        assert stored(view, 1, 2) == after[1:3]


def test_a_queue_loses_its_front_while_it_is_read(tmp_path: Path) -> None:
    """The log's first file goes between two looks at the queue's end; the end itself never goes."""
    log, units = PlainLog(1024), []
    for number in range(30):
        start = log.append(queue_offset=number)
        units.append(UNIT.pack(start, log.spans[-1][1] - start, 5))
    log.write(tmp_path / "commitlog")
    path = write_units(tmp_path, units)
    with opened(tmp_path, path) as view:
        assert (view.min_offset, view.stated_min_offset) == (0, 0)
        assert not view.is_gone(0)
        (tmp_path / "commitlog" / file_name(0)).unlink()
        view._log.refresh()
        left = sum(start >= 1024 for start, _ in log.spans)
        assert 0 < left < 30
        assert (view.min_offset, view.stated_min_offset) == (30 - left, 30 - left)
        assert [view.is_gone(at) for at in range(32)] == [at < 30 - left for at in range(32)]


def test_an_offset_between_two_batches_is_in_none(tmp_path: Path) -> None:
    """Where queue offsets jump, the messages go on with the next batch, as RocketMQ's client takes
    them, and the batch before is not given once more."""
    bases = {0: 5, 10: 3, 13: 1}
    units = [
        BATCH_UNIT.pack(100 * at, 100, 7, at, base, count, -1, 0)
        for at, (base, count) in enumerate(bases.items())
    ]
    path = write_units(tmp_path, units, "batchconsumequeue")
    with opened(tmp_path, path, QueueKind.BATCH) as view:
        starts = [0] * 5 + [5, 6, 7, 8, 9] + [10] * 3 + [13, 14]
        assert [view.unit_start(offset) for offset in range(15)] == starts
        for offset in range(14):
            found = view.columns_from(offset, 9)
            assert found is not None
            wanted = [base for base, count in bases.items() if base + count > offset]
            assert (found[0].queue_offsets.tolist(), found[1]) == (wanted, 14)


def test_a_selection_of_units_has_their_own_ext_units(tmp_path: Path) -> None:
    """By a mask or a slice, and as many of them as of the other columns."""
    codes = np.arange(10, 15, dtype=np.int64)
    bit_maps = np.array([[at, 0] for at in range(5)], np.uint8)
    placed = place(0, 1000, codes, codes * 1000, bit_maps)
    written = UnsyncedFiles()
    ext = ConsumeQueueExtFiles(tmp_path / "consumequeue_ext" / KEY.relative_path, 1000)
    ext.write(placed, tmp_path, written)
    written.sync()
    units = [UNIT.pack(100 * at, 100, code) for at, code in enumerate(placed.addresses.tolist())]
    with opened(tmp_path, write_units(tmp_path, units)) as view:
        found = view.columns_from(0, 9)
        assert found is not None
        for which in (slice(1, 4), np.array([False, True, False, True, True])):
            part = found[0].select(which)
            assert part.ext is not None
            maps = [unit.bit_map for unit in part.ext]
            assert maps == [bytes([at, 0]) for at in part.queue_offsets.tolist()]
            assert part.tags_codes.tolist() == [10 + at for at in part.queue_offsets.tolist()]
            assert len(part) == len(maps) == 3
