"""A queue's view beside RocketMQ's own files: bounds, units, columns, search by time.

Expected values come from ``tests.support.plain_queues``, which reads a golden store's queues by
struct and its records by the plain decoder. RocketMQ's search by time with its odd results
(``offset_by_time``) is compared with RocketMQ's in ``tests/interop``.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import QueueFileError
from reput.store.log.commitlog import CommitLog
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.kinds import QueueKind
from reput.store.queue.view import ConsumeQueueView, QueueView, open_view
from tests.support.batch_queue import BATCH_UNIT
from tests.support.golden import GOLDEN_CASES, relaid_queues
from tests.support.plain_queues import PlainMessage, plain_queue, queue_directories
from tests.support.wire import PRE_BLANK, UNIT, PlainLog, file_name

Row = tuple[int, int, int, int]
"""Queue offset, physical offset, size, tagsCode."""


@dataclass(frozen=True)
class GoldenQueue:
    """One queue of a golden store, and what RocketMQ put into it."""

    settings: StoreSettings
    directory: Path
    messages: list[PlainMessage]

    @property
    def kind(self) -> QueueKind:
        return QueueKind(self.directory.parts[-3])

    @property
    def rows(self) -> list[Row]:
        return [
            (one.queue_offset, one.record.physical_offset, one.record.total_size, one.tags_code)
            for one in self.messages
        ]

    @property
    def ends(self) -> list[int]:
        """The queue offset after each message or inner batch."""
        if self.kind is QueueKind.CONSUME:
            return [one.queue_offset + 1 for one in self.messages]
        data = b"".join(path.read_bytes() for path in sorted(self.directory.iterdir()))
        units = BATCH_UNIT.iter_unpack(data[: len(data) // 46 * 46])
        return [base + count for _, size, _, _, base, count, _, _ in units if size]

    @contextmanager
    def opened(self, end_offset: int | None = None) -> Iterator[QueueView]:
        settings = self.settings
        with closing(settings.open_log()) as log:
            key = QueueKey(self.directory.parts[-2], int(self.directory.parts[-1]))
            view = open_view(settings.root, key, settings, log, self.kind)
            view.follow(end_offset)
            yield view


def queues_of(store: Path) -> list[GoldenQueue]:
    settings = read_store_settings(store)
    found = queue_directories(store)
    return [GoldenQueue(settings, path, [*plain_queue(store, path)]) for path in found]


def columns_of(view: QueueView, rng: random.Random, offset: int) -> list[Row]:
    """All rows from ``offset`` on, a few at a time."""
    found: list[Row] = []
    while (part := view.columns_from(offset, rng.choice((1, 2, 7, 40, 600)))) is not None:
        columns, after = part
        assert after > offset
        offset = after
        fields = columns.queue_offsets, columns.physical_offsets, columns.sizes, columns.tags_codes
        found += zip(*(field.tolist() for field in fields), strict=True)
    return found


def units_of(view: QueueView, rng: random.Random, offset: int) -> list[Row]:
    """The same rows, unit by unit."""
    found: list[Row] = []
    while (units := view.units_from(offset, rng.choice((1, 2, 40)))) is not None:
        for one in units:
            assert one.tags_code is not None
            found.append((one.queue_offset, one.physical_offset, one.size, one.tags_code))
            offset = one.queue_offset + one.batch_num
    return found


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_a_view_has_the_units_of_the_files(
    golden: Callable[[str], Path], name: str, seed: int
) -> None:
    """As columns and unit by unit, from the beginning and from any offset; an offset inside an
    inner batch leads to that batch."""
    rng = random.Random(seed)
    queues = queues_of(golden(name))
    assert sum(len(queue.messages) for queue in queues) > 100
    for queue in queues:
        rows, ends = queue.rows, queue.ends
        with queue.opened() as view:
            assert (view.min_offset, view.max_offset) == (rows[0][0], ends[-1])
            for offset in (view.min_offset, rng.randrange(view.min_offset, view.max_offset)):
                wanted = [row for row, end in zip(rows, ends, strict=True) if end > offset]
                assert columns_of(view, rng, offset) == wanted
                assert units_of(view, rng, offset) == wanted
                assert view.unit_start(offset) == wanted[0][0]
                assert not view.is_gone(offset)
            assert view.units_from(view.max_offset, 1) is None
            assert view.columns_from(view.max_offset, 1) is None


def test_units_read_ahead_serve_no_place_before_them(golden: Callable[[str], Path]) -> None:
    """Step by step backwards too, each read is of the offset that was asked for."""
    (queue, *_) = queues_of(golden("plain"))
    units = [UNIT.pack(*row[1:]) for row in queue.rows]
    with queue.opened() as view:
        assert isinstance(view, ConsumeQueueView)
        for offset in (40, 41, 39, 38, 37, 90, 0, 1):
            found = view.stored_units(offset, 2)
            assert found is not None
            data, first, count = found
            assert count == 2
            assert data.tobytes()[20 * first :][:40] == b"".join(units[offset : offset + 2])


@pytest.mark.parametrize("name", ["mixed", "ext", "batch"])
def test_a_view_ends_where_it_follows_to(
    golden: Callable[[str], Path], name: str, seed: int
) -> None:
    """The last message ends at or before a position of the log, whether that position grows or
    shrinks."""
    rng = random.Random(seed)
    for queue in queues_of(golden(name)):
        rows = queue.rows
        with queue.opened(0) as view:
            assert (columns_of(view, rng, 0), view.min_offset) == ([], 0)
            for _ in range(6):
                row = rng.choice(rows)
                end_offset = row[1] + row[2] - rng.choice((0, 1))
                count = sum(offset + size <= end_offset for _, offset, size, _ in rows)
                view.follow(end_offset)
                assert view.max_offset == (queue.ends[count - 1] if count else 0)
                assert columns_of(view, rng, rows[0][0]) == rows[:count]
                # so a pull states it, in RocketMQ, where a queue has no message
                empty = -1 if queue.kind is QueueKind.BATCH else 0
                assert view.stated_min_offset == (rows[0][0] if count else empty)


@pytest.mark.parametrize("name", ["plain", "batch"])
def test_messages_go_with_the_logs_front(golden: Callable[[str], Path], name: str) -> None:
    """The queue begins at the first message that the log still holds; those before it are gone."""
    store = golden(name)
    queues = queues_of(store)
    first, second, *_ = sorted((store / "commitlog").iterdir())
    first.unlink()
    lost = 0
    for queue in queues:
        rows = queue.rows
        gone = sum(physical_offset < int(second.name) for _, physical_offset, _, _ in rows)
        lost += gone
        with queue.opened() as view:
            assert view.min_offset == (queue.ends[gone - 1] if gone else rows[0][0])
            assert [view.is_gone(row[0]) for row in rows] == [at < gone for at in range(len(rows))]
    assert lost > 0


@pytest.mark.parametrize("name", ["plain", "batch"])
def test_the_first_message_from_a_time(golden: Callable[[str], Path], name: str, seed: int) -> None:
    """It is the first one in the log that was stored then or later, also after the log lost its
    front; there is none after the last time."""
    rng = random.Random(seed)
    store = golden(name)
    queues = queues_of(store)
    for log_start in sorted(int(path.name) for path in (store / "commitlog").iterdir())[:2]:
        for path in (store / "commitlog").iterdir():
            if int(path.name) < log_start:
                path.unlink()
        for queue in queues:
            stored = [
                (one.record.store_timestamp, one.queue_offset)
                for one in queue.messages
                if one.record.physical_offset >= log_start
            ]
            times = [time for time, _ in stored]
            assert times == sorted(times)
            with queue.opened() as view:
                for time in {0, *rng.choices(times or [0], k=5)}:
                    for wanted in (time - 1, time, time + 1):
                        later = [offset for at, offset in stored if at >= wanted]
                        assert view.first_from_time(wanted) == (later[0] if later else None)


def test_the_first_message_from_a_time_before_and_after_a_lost_file(
    golden: Callable[[str], Path],
) -> None:
    """A message of the lost file counts as stored when the first one after it was: those before it
    are found, and nothing but lost ones comes before a message that is found."""
    store = golden("plain")
    queues = queues_of(store)
    lost = sorted(int(path.name) for path in (store / "commitlog").iterdir())[1]
    file = store / "commitlog" / file_name(lost)
    file_size = file.stat().st_size
    file.unlink()
    sides = set()
    for queue in queues:
        kept = {
            one.queue_offset: one.record.store_timestamp
            for one in queue.messages
            if not lost <= one.record.physical_offset < lost + file_size
        }
        with queue.opened() as view:
            for one in queue.messages:
                time = one.record.store_timestamp
                found = view.first_from_time(time)
                first = min((offset for offset, at in kept.items() if at >= time), default=None)
                if one.queue_offset in kept:
                    assert found is not None
                    assert first is not None
                    assert found <= first
                    assert not kept.keys() & set(range(found, first))
                    sides.add(one.record.physical_offset < lost)
    assert sides == {True, False}


def test_an_inner_batch_holds_its_offsets(golden: Callable[[str], Path]) -> None:
    """Every offset inside it leads to it; a queue of single messages has none such."""
    inside = 0
    for queue in queues_of(golden("batch")):
        with queue.opened() as view:
            for row, end in zip(queue.rows, queue.ends, strict=True):
                for offset in range(row[0], end):
                    inside += offset > row[0]
                    assert view.unit_start(offset) == row[0]
                    units = view.units_from(offset, 1)
                    assert units is not None
                    (unit,) = units
                    assert (unit.queue_offset, unit.batch_num) == (row[0], end - row[0])
                    assert view.unit_from(offset) == view.unit_from(row[0]) + (offset > row[0])
    assert inside > 100


def small_files(queue: GoldenQueue, units: int) -> GoldenQueue:
    """The same queue in files of a few units each."""
    size = units * UNIT.size
    names = relaid_queues(queue.settings.root, size)
    prefix = "/".join(queue.directory.parts[-2:]) + "/"
    shutil.rmtree(queue.directory)
    queue.directory.mkdir()
    for name, data in names.items():
        if name.startswith(prefix):
            (queue.directory / name.removeprefix(prefix)).write_bytes(data)
    return replace(queue, settings=replace(queue.settings, mapped_file_size_consume_queue=size))


def test_files_are_read_one_by_one(golden: Callable[[str], Path], seed: int) -> None:
    """Units end with their file; after a lost file, a view says so instead of skipping."""
    queue = small_files(queues_of(golden("broker"))[0], 10)
    with queue.opened() as view:
        assert columns_of(view, random.Random(seed), 0) == queue.rows
        units = view.units_from(7, 100)
        assert units is not None
        assert [unit.queue_offset for unit in units] == [7, 8, 9]
        assert [view.roll_next_file(offset) for offset in (0, 9, 10)] == [10, 10, 20]
        middle = queue.directory / file_name(10 * UNIT.size)
        middle.unlink()
        with pytest.raises(FileNotFoundError):
            view.units_from(12, 1)
        with pytest.raises(FileNotFoundError):
            view.columns_from(12, 1)
        settings, log = queue.settings, view._log
        key = QueueKey(queue.directory.parent.name, int(queue.directory.name))
        with pytest.raises(QueueFileError, match=str(queue.directory)):
            open_view(settings.root, key, settings, log, QueueKind.CONSUME, whole=True)


def test_a_view_sees_what_is_appended(golden: Callable[[str], Path], seed: int) -> None:
    """It sees units in the part that it had read ahead, and in new files."""
    rng = random.Random(seed)
    queue = small_files(queues_of(golden("broker"))[0], 700)
    rows = queue.rows
    assert len(rows) > 1400
    whole = {path: path.read_bytes() for path in queue.directory.iterdir()}
    written = b"".join(data for _, data in sorted(whole.items()))
    for path in whole:
        path.unlink()

    def write(count: int) -> None:
        for path, data in whole.items():
            start = int(path.name)
            part = written[start : max(start, min(start + len(data), count * UNIT.size))]
            if part:
                path.write_bytes(part.ljust(len(data), b"\0"))

    with queue.opened() as view:
        assert view.columns_from(0, 1) is None
        for count in sorted(rng.sample(range(1, len(rows)), 5)):
            write(count)
            view.follow(None)
            offset = rng.randrange(count)
            assert columns_of(view, rng, offset) == rows[offset:count]


def test_blanks_are_no_messages(tmp_path: Path) -> None:
    """Neither before the first message nor in a filled gap, wherever a read begins or ends."""
    log = PlainLog(4096)
    offsets = [3, 4, 7, 8, 9]
    starts = [log.append(queue_offset=offset) for offset in offsets]
    log.write(tmp_path / "commitlog")
    size = log.spans[0][1]
    units = [PRE_BLANK] * 10
    for offset, start in zip(offsets, starts, strict=True):
        units[offset] = UNIT.pack(start, size, 5)
    queue = tmp_path / "consumequeue" / "Topic" / "0"
    queue.mkdir(parents=True)
    (queue / file_name(0)).write_bytes(b"".join(units).ljust(400, b"\0"))
    settings = replace(read_store_settings(tmp_path), mapped_file_size_consume_queue=400)
    with closing(CommitLog([tmp_path / "commitlog"], 4096)) as opened:
        view = open_view(tmp_path, QueueKey("Topic", 0), settings, opened, QueueKind.CONSUME)
        view.follow(None)
        assert (view.min_offset, view.max_offset) == (3, 10)
        for first in range(3, 10):
            for count in range(1, 8):
                found = view.columns_from(first, count)
                assert found is not None
                columns, after = found
                assert after == min(first + count, 10)
                wanted = [offset for offset in offsets if first <= offset < after]
                assert columns.queue_offsets.tolist() == wanted
        assert not view.is_gone(5)


def test_places_in_a_queue_are_those_of_a_plain_scan(tmp_path: Path, seed: int) -> None:
    """By physical offset, and before a queue offset: blanks are passed, at the queue's beginning
    and in gaps, and the first files may be gone. A message is gone with the log's file or with
    that of its unit."""
    rng = random.Random(seed)
    log, units, real = PlainLog(1024), [PRE_BLANK] * 2, dict[int, tuple[int, int]]()
    while len(units) < 60:
        if rng.random() < 0.3:
            units += [PRE_BLANK] * rng.randrange(1, 12)
        start = log.append(queue_offset=len(units))
        real[len(units)] = log.spans[-1][0], log.spans[-1][1] - start
        units.append(UNIT.pack(start, real[len(units)][1], 5))
    log.write(tmp_path / "commitlog")
    queue, file_size = tmp_path / "consumequeue" / "Topic" / "0", 9 * UNIT.size
    queue.mkdir(parents=True)
    data = b"".join(units)
    for start in range(0, len(data), file_size):
        part = data[start : start + file_size].ljust(file_size, b"\0")
        (queue / file_name(start)).write_bytes(part)
    settings = replace(read_store_settings(tmp_path), mapped_file_size_consume_queue=file_size)
    for gone in (0, 1, 3):
        for start in range(0, gone * file_size, file_size):
            (queue / file_name(start)).unlink(missing_ok=True)
        first = gone * 9
        left = {index: place for index, place in real.items() if index >= first}
        with closing(CommitLog([tmp_path / "commitlog"], 1024)) as opened:
            view = open_view(tmp_path, QueueKey("Topic", 0), settings, opened, QueueKind.CONSUME)
            view.follow(None)
            assert (view.first_unit, view.end_unit) == (first, len(units))
            for physical in (-1, 0, *(start + at for start, _ in log.spans for at in (0, 1))):
                later = [index for index, (start, _) in left.items() if start >= physical]
                assert view.first_at(physical) == min(later, default=len(units)), physical
            for offset in range(len(units) + 2):
                before = [place for index, place in left.items() if index < offset]
                assert view.unit_before(offset) == (before[-1] if before else None), offset
                assert view.is_gone(offset) == (offset < first), offset
    (tmp_path / "commitlog" / file_name(0)).unlink()
    with closing(CommitLog([tmp_path / "commitlog"], 1024)) as opened:
        view = open_view(tmp_path, QueueKey("Topic", 0), settings, opened, QueueKind.CONSUME)
        view.follow(None)
        for offset in range(len(units)):
            is_gone = offset < first or (offset in real and real[offset][0] < 1024)
            assert view.is_gone(offset) == is_gone, offset
