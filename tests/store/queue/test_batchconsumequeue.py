"""Batch consume queue files: their units, where a queue ends, what a search finds.

Held against the golden store (RocketMQ's own bytes) and against plain scans of small queues that
are written here with struct; the searches' rules are those of RocketMQ 5.3.3's
``BatchConsumeQueue`` (formats.md §7), written once more over lists. The writer's rules are in
``tests/sinks``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.brokerconf import parse_properties
from reput.store.errors import QueueFileError, UsageError
from reput.store.files import BATCH_CONSUME_QUEUE_DIRECTORY
from reput.store.queue.batchconsumequeue import (
    BATCH_UNIT_DTYPE,
    DEFAULT_FILE_SIZE,
    BatchConsumeQueueFiles,
    BoundaryType,
    checked_file_size,
)
from reput.store.queue.consumequeue import ConsumeQueueFiles, QueueFiles
from reput.store.queue.cut import ends_by
from reput.store.queue.unsynced import UnsyncedFiles
from tests.interop import rocketmq
from tests.support.batch_queue import (
    BATCH_UNIT,
    PAGE,
    BatchMessage,
    ModelBatchQueue,
    lose_pages,
    messages_of,
)
from tests.support.golden import difference
from tests.support.wire import UNIT, file_name

FILE_SIZE = 5 * 46


def written(directory: Path, units: list[BatchMessage], first: int = 0) -> BatchConsumeQueueFiles:
    """Units from file number ``first`` on, five to a file."""
    directory.mkdir(parents=True)
    model = ModelBatchQueue(FILE_SIZE)
    model.units = [unit.unit for unit in units]
    for name, data in model.files().items():
        (directory / file_name(int(name) + first * FILE_SIZE)).write_bytes(data)
    return BatchConsumeQueueFiles(directory, FILE_SIZE)


def random_units(rng: random.Random, number: int) -> list[BatchMessage]:
    """Ascending in all that is searched; queue offsets may jump, times stand still."""
    found, offset, base, time = [], rng.randrange(500), rng.choice((0, 40)), rng.randrange(5)
    for _ in range(number):
        size, batch_size = rng.randrange(91, 200), rng.choice((1, 1, 2, 9))
        found.append(BatchMessage(offset, size, 5, time, base, batch_size))
        offset += size + rng.choice((0, 0, 300))
        base += batch_size + rng.choice((0, 0, 0, 3))
        time += rng.choice((0, 0, 1, 6))
    return found


def test_golden_queues_are_read_as_they_stand(golden: Callable[[str], Path]) -> None:
    """Units, ends, bounds: what the log says about the topic, and RocketMQ's file size."""
    root = golden("batch")
    conf = parse_properties((root / "broker.conf").read_bytes())
    file_size = checked_file_size(int(conf["mapperFileSizeBatchConsumeQueue"]))
    messages, queues = messages_of(root, ()), 0
    for key, files in BatchConsumeQueueFiles.each(root / BATCH_CONSUME_QUEUE_DIRECTORY, file_size):
        own = [m for m in messages if (m.topic.decode(), m.queue_id) == (key.topic, key.queue_id)]
        end = files.find_end(None)
        assert files.units(0).dtype == BATCH_UNIT_DTYPE
        assert files.read(0, end // 46).tobytes() == b"".join(message.unit for message in own)
        assert files.read(len(own), 1).tobytes() == bytes(46)
        assert files.last_unit(end) == (own[-1].offset, own[-1].size)
        assert files.min_offset_in_queue(end, 0) == own[0].base == 0
        # a queue's messages are numbered without a gap
        total = sum(message.batch_size for message in own)
        assert files.max_offset_in_queue(end) == total > len(own) > 200
        for index, message in enumerate(own):
            for queue_offset in (message.base, message.base + message.batch_size - 1):
                assert files.find_unit(queue_offset, end) == index
        queues += 1
    assert queues == 2


def test_a_queue_ends_after_its_last_durable_message(tmp_path: Path, seed: int) -> None:
    """Over several files, at watermarks around every message; None takes every unit."""
    rng = random.Random(seed)
    for case in range(30):
        units = random_units(rng, rng.randrange(1, 23))
        first = rng.choice((0, 2))
        files = written(tmp_path / str(case), units, first)
        start = first * FILE_SIZE
        assert files.find_end(None) == start + len(units) * 46
        for watermark in {0, *(unit.end + by for unit in units for by in (-1, 0, 1))}:
            count = sum(unit.end <= watermark for unit in units)
            end = files.find_end(watermark)
            assert end == start + count * 46, (seed, case, watermark)
            last = files.last_unit(end)
            assert last == ((units[count - 1].offset, units[count - 1].size) if count else None)


@pytest.mark.parametrize(
    "damage",
    [
        {"offset": -1},
        {"size": 0},
        {"size": -5},
        {"base": -1},
        {"batch_size": 0},
        {"batch_size": -1},
    ],
)
def test_without_a_watermark_a_queue_ends_where_recovery_stops(
    tmp_path: Path, damage: dict[str, int]
) -> None:
    """``BatchConsumeQueue.recover``: offset and base 0 or more, size and batch size above 0."""
    units = [BatchMessage(index * 100, 100, base=index) for index in range(12)]
    units[8] = BatchMessage(**{"offset": 800, "size": 100, "base": 8, **damage})
    files = written(tmp_path / "q", units)
    (files.directory / file_name(2 * FILE_SIZE)).unlink()
    files.refresh()
    assert files.find_end(None) == 8 * 46


def random_bytes_of_queue(
    rng: random.Random, kind: type[QueueFiles], durable: int, number: int
) -> list[tuple[int, int, bytes]]:
    """(offset, size, unit) of messages, from low physical offsets or from above 4 GiB."""
    offset, found = rng.choice((0, (1 << 32) - durable * 100, 1 << 36)), []
    for index in range(number):
        size = rng.randrange(91, 110)
        if kind is ConsumeQueueFiles:
            data = UNIT.pack(offset, size, rng.randrange(1 << 40))
        else:
            data = BATCH_UNIT.pack(offset, size, 7, index, index, 1, -1, 0)
        found.append((offset, size, data))
        offset += size
    return found


@pytest.mark.parametrize("kind", [ConsumeQueueFiles, BatchConsumeQueueFiles])
def test_lost_pages_do_not_move_a_queues_end(
    tmp_path: Path, seed: int, kind: type[QueueFiles]
) -> None:
    """A power cut keeps some of the pages that were written since the last sync: the end is still
    after the last durable unit, also where half of a unit is left after it."""
    rng, unit_size = random.Random(seed), kind.UNIT_DTYPE.itemsize
    file_size = unit_size * 1000
    for case in range(300):
        # mostly right before a unit that lies on two pages
        durable = rng.randrange(1, 4) * PAGE // unit_size - rng.choice((0, 1, 2, 5, 50))
        number = min(durable + rng.choice((3, 300, 1500)), 2000)
        units = random_bytes_of_queue(rng, kind, durable, number)
        before = b"".join(data for _, _, data in units[:durable]).ljust(2 * file_size, b"\0")
        after = b"".join(data for _, _, data in units).ljust(2 * file_size, b"\0")
        left = lose_pages(rng, before[:file_size], after[:file_size])
        left += lose_pages(rng, before[file_size:], after[file_size:])
        directory = tmp_path / "q"
        directory.mkdir(exist_ok=True)
        for at in (0, file_size):
            (directory / file_name(at)).write_bytes(left[at : at + file_size])
        watermark = units[durable - 1][0] + units[durable - 1][1]
        end = kind(directory, file_size).find_end(watermark)
        assert end == durable * unit_size, f"seed={seed} case={case}"


@pytest.mark.parametrize("kind", [ConsumeQueueFiles, BatchConsumeQueueFiles])
def test_the_rest_of_a_unit_is_beyond_every_end(
    tmp_path: Path, seed: int, kind: type[QueueFiles]
) -> None:
    """A power cut during a cut may keep the zeros of one page and lose those of the next: what is
    left of a unit on both must be cut again, however small its offset looks."""
    units = random_bytes_of_queue(random.Random(seed), kind, 3, 4)
    data = b"".join(unit for _, _, unit in units)
    (tmp_path / file_name(0)).write_bytes(data)
    files = kind(tmp_path, len(data))
    end = units[2][0] + units[2][1]
    assert ends_by(files, units[3][0] + units[3][1], lambda *_: None)
    for zeros in range(1, 9):
        torn = data[: -len(units[3][2])] + bytes(zeros) + units[3][2][zeros:]
        (tmp_path / file_name(0)).write_bytes(torn)
        assert not ends_by(files, end, lambda *_: None)


def test_a_queue_begins_at_its_first_message_in_the_log(tmp_path: Path, seed: int) -> None:
    """RocketMQ's rule: after the last message that is gone; -1 without a unit."""
    rng = random.Random(seed)
    for case in range(30):
        units = random_units(rng, rng.randrange(1, 23))
        files = written(tmp_path / str(case), units, rng.choice((0, 2)))
        for count in (len(units), rng.randrange(1, len(units) + 1)):
            end, some = files.starts[0] + count * 46, units[:count]
            assert files.max_offset_in_queue(end) == some[-1].base + some[-1].batch_size
            for log_min in (0, 1 << 40, *(unit.offset + by for unit in some for by in (0, 1))):
                expected = units[0].base
                for unit in some:
                    if unit.offset < log_min:
                        expected = unit.base + unit.batch_size
                assert files.min_offset_in_queue(end, log_min) == expected, (seed, case)
        assert files.min_offset_in_queue(files.starts[0], 0) == -1
        assert files.max_offset_in_queue(files.starts[0]) == 0
    empty = BatchConsumeQueueFiles(tmp_path / "nowhere", FILE_SIZE)
    assert (empty.find_end(None), empty.find_end(5)) == (0, 0)
    assert (empty.min_offset_in_queue(0, 0), empty.max_offset_in_queue(0)) == (-1, 0)
    assert empty.find_unit(0, 0) is None
    assert empty.offset_in_queue_by_time(0, BoundaryType.LOWER, 0) == -1


def in_files(units: list[BatchMessage]) -> list[list[BatchMessage]]:
    return [units[at : at + 5] for at in range(0, len(units), 5)]


def unit_by_offset(units: list[BatchMessage], queue_offset: int) -> int | None:
    """``getBatchMsgIndexBuffer``: find the newest file whose first base is not past the
    offset, and in it the greatest base that is not."""
    if queue_offset >= units[-1].base + units[-1].batch_size:
        return None
    for file in reversed(in_files(units)):
        if file[0].base <= queue_offset:
            return units.index([unit for unit in file if unit.base <= queue_offset][-1])
    return None


def lower_by_time(units: list[BatchMessage], timestamp: int) -> int:
    """``getOffsetInQueueByTime`` with LOWER."""
    files = in_files(units)
    file = next((f for f in reversed(files) if f[0].store_time <= timestamp), files[0])
    if timestamp >= file[-1].store_time:
        return file[-1].base
    return next(unit.base for unit in file if unit.store_time >= timestamp)


def test_searches_find_what_a_plain_scan_finds(tmp_path: Path, seed: int) -> None:
    """Every queue offset and every time, around all units, in queues of several files, also with
    units past the end."""
    rng = random.Random(seed)
    for case in range(15):
        units = random_units(rng, rng.randrange(1, 23))
        files = written(tmp_path / str(case), units, rng.choice((0, 2)))
        some = units[: rng.randrange(1, len(units) + 1)]
        start, place = files.starts[0], f"seed={seed} case={case} units={some}"
        end = start + len(some) * 46
        for queue_offset in range(-1, some[-1].base + some[-1].batch_size + 2):
            index, found = unit_by_offset(some, queue_offset), files.find_unit(queue_offset, end)
            assert found == (None if index is None else start // 46 + index), place
            if found is not None:
                assert files.unit_at(found).tobytes() == some[found - start // 46].unit
            first = sum(unit.base < queue_offset for unit in some)
            assert files.first_unit_from(queue_offset, end) == start // 46 + first, place
        for time in range(-1, some[-1].store_time + 3):
            lower = files.offset_in_queue_by_time(time, BoundaryType.LOWER, end)
            assert lower == lower_by_time(some, time), (place, time)
            before = [unit.base for unit in some if unit.store_time <= time]
            upper = files.offset_in_queue_by_time(time, BoundaryType.UPPER, end)
            assert upper == (before[-1] if before else -1), (place, time)


@pytest.mark.usefixtures("release")
def test_bytes_searches_and_cuts_are_those_of_rocketmq(tmp_path: Path, seed: int) -> None:
    """RocketMQ's own BatchConsumeQueue, given the same units over many files: what it answers and
    leaves. Not compared: UPPER, and stale bytes past a cut, which it leaves and we clear."""
    units = random_units(random.Random(seed), 83)
    ours = tmp_path / "ours" / BATCH_CONSUME_QUEUE_DIRECTORY
    files = written(ours / "topic" / "0", units)
    end = files.find_end(None)
    asked: list[tuple[str, int]] = []
    for unit in units:
        text = f"{unit.offset} {unit.size} {unit.tags_code} {unit.store_time}"
        asked.append((f"put {text} {unit.base} {unit.batch_size}", unit.offset))
    asked.append(("max", files.max_offset_in_queue(end)))
    # its search by time knows the files once this has been asked; it looks at the first file only
    for log_min in [unit.offset + by for by in (1, 0) for unit in units[4::-1]]:
        asked.append((f"min {log_min}", files.min_offset_in_queue(end, log_min)))
    for queue_offset in range(-1, units[-1].base + 12):
        index = files.find_unit(queue_offset, end)
        found = -1 if index is None else units[index].offset
        asked.append((f"unit {queue_offset}", found))
    for time in range(-1, units[-1].store_time + 3):
        lower = files.offset_in_queue_by_time(time, BoundaryType.LOWER, end)
        asked.append((f"lower {time}", lower))
    asked.append(("recover", units[-1].offset))
    theirs = tmp_path / "theirs"
    answers = rocketmq.ask_batch(theirs, FILE_SIZE, [line for line, _ in asked])
    assert [(line, answer) for (line, _), answer in zip(asked, answers, strict=True)] == asked
    assert difference(ours, theirs / BATCH_CONSUME_QUEUE_DIRECTORY) == []
    cuts: list[tuple[str, int]] = []
    for unit in reversed(units):
        files.clear_from(files.find_end(unit.end))
        end = files.find_end(None)
        cuts += [(f"truncate {unit.end}", unit.offset), ("max", files.max_offset_in_queue(end))]
        assert files.last_unit(end) == (unit.offset, unit.size)
    answers = rocketmq.ask_batch(theirs, FILE_SIZE, [line for line, _ in cuts])
    assert [(line, answer) for (line, _), answer in zip(cuts, answers, strict=True)] == cuts


def test_an_upper_search_is_right_where_rocketmqs_is_not(tmp_path: Path) -> None:
    """Store times 0, 0, 1, 1, 1: the last one at 0 is the second (formats.md §7)."""
    times = (0, 0, 1, 1, 1)
    units = [BatchMessage(i * 100, 100, 0, time, i) for i, time in enumerate(times)]
    files = written(tmp_path / "q", units)
    assert files.offset_in_queue_by_time(0, BoundaryType.UPPER, 230) == 1
    assert files.offset_in_queue_by_time(0, BoundaryType.LOWER, 230) == 0
    assert files.offset_in_queue_by_time(9, BoundaryType.UPPER, 230) == 4


@pytest.mark.parametrize("number", [1, 5, 13])
def test_a_cut_queue_holds_nothing_after_the_cut(tmp_path: Path, seed: int, number: int) -> None:
    """clear_from at every unit, also where half a unit is left after the last one."""
    units = random_units(random.Random(seed), number)
    whole = b"".join(unit.unit for unit in units)
    for keep in range(number + 1):
        files = written(tmp_path / str(keep), units)
        last = files.path(files.starts[-1])
        data = bytearray(last.read_bytes())
        data[-10:] = b"\0" * 9 + b"\7" if data[-46:] == bytes(46) else data[-10:]
        last.write_bytes(data)
        files.clear_from(keep * 46)
        stored = b"".join(path.read_bytes() for path in sorted(files.directory.iterdir()))
        assert stored == whole[: keep * 46].ljust(-(-keep // 5) * FILE_SIZE, b"\0")
        assert files.find_end(None) == keep * 46


def test_written_units_are_found_again(tmp_path: Path, seed: int) -> None:
    """Random pieces, over file ends: full-length files, zeros past the end."""
    rng = random.Random(seed)
    units = random_units(rng, 60)
    files, done = BatchConsumeQueueFiles(tmp_path / "T" / "0", FILE_SIZE), 0
    model, unsynced = ModelBatchQueue(FILE_SIZE), UnsyncedFiles()
    while done < len(units):
        piece = units[done : done + rng.randrange(1, 20)]
        data = b"".join(unit.unit for unit in piece)
        files.write(done * 46, data, tmp_path, unsynced)
        done += len(piece)
        for unit in piece:
            model.put(unit)
        stored = {path.name: path.read_bytes() for path in files.directory.iterdir()}
        assert stored == model.files()
    unsynced.close()


def test_sizes_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """A file of another size than the setting says; a setting that splits units."""
    written(tmp_path / BATCH_CONSUME_QUEUE_DIRECTORY / "T" / "0", [BatchMessage(0, 100)])
    with pytest.raises(
        QueueFileError, match="230 bytes but mapperFileSizeBatchConsumeQueue is 460"
    ):
        list(BatchConsumeQueueFiles.each(tmp_path / BATCH_CONSUME_QUEUE_DIRECTORY, 460))
    assert checked_file_size(DEFAULT_FILE_SIZE) == 300_000 * 46
    for size in (0, -46, 45, 47, 6_000_000):
        with pytest.raises(UsageError, match="multiple of 46"):
            checked_file_size(size)
