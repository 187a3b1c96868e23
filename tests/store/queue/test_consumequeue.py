"""Consume queue files: where units are, where a queue ends and begins.

Held against golden queues (RocketMQ's own bytes) and against plain loops over the units of small
queues written here with struct (formats.md §5). The writer's rules are in ``tests/sinks``.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from reput.store import fsops
from reput.store.errors import NoSpaceError, QueueFileError
from reput.store.queue.consumequeue import (
    UNIT_DTYPE,
    BoundaryType,
    ConsumeQueueFiles,
    QueueKey,
    is_usual_topic,
    list_queues,
    rounded_file_size,
    topic_directory,
)
from reput.store.queue.cut import ends_by
from reput.store.queue.unsynced import UnsyncedFiles
from tests.support.golden import GOLDEN_NAMES
from tests.support.processes import open_files
from tests.support.wire import PRE_BLANK, UNIT, file_name

BLANK_SIZE = 2147483647
Unit = tuple[int, int, int]
BLANK: Unit = (0, BLANK_SIZE, 0)


def write_queue(directory: Path, file_size: int, units: Sequence[Unit], first: int = 0) -> None:
    """Units from index ``first`` on, in files of full length."""
    directory.mkdir(parents=True, exist_ok=True)
    data = bytes(first * 20 % file_size) + b"".join(UNIT.pack(*unit) for unit in units)
    for at in range(0, len(data), file_size):
        path = directory / file_name(first * 20 // file_size * file_size + at)
        path.write_bytes(data[at : at + file_size].ljust(file_size, b"\0"))


def golden_queues(root: Path) -> list[tuple[Path, list[Unit]]]:
    """Every queue of a golden store with its units, read plainly."""
    queues = []
    for directory in sorted((root / "consumequeue").glob("*/*")):
        data = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
        units = list(UNIT.iter_unpack(data))
        queues.append((directory, units[: next(i for i, u in enumerate(units) if not u[1])]))
    return queues


def golden_file_size(root: Path) -> int:
    return next((root / "consumequeue").glob("*/*/*")).stat().st_size


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_queues_are_read_as_they_stand(
    name: str, golden: Callable[[str], Path], seed: int
) -> None:
    """Every unit, the end, the last unit, and random parts of each queue."""
    root, rng = golden(name), random.Random(seed)
    queues = golden_queues(root)
    assert len(queues) > 3
    for directory, units in queues:
        files = ConsumeQueueFiles(directory, golden_file_size(root))
        end = files.find_end(None)
        assert end == len(units) * 20
        assert [tuple(unit) for unit in files.read(0, len(units)).tolist()] == units
        assert files.last_unit(end) == units[-1][:2]
        first, count = rng.randrange(len(units)), rng.randrange(1, len(units))
        part = files.read(first, count).tolist()
        assert [tuple(unit) for unit in part][: len(units) - first] == units[first : first + count]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_queues_end_at_a_watermark(
    name: str, golden: Callable[[str], Path], seed: int
) -> None:
    """find_end counts exactly the messages that end at or before the watermark; 0 finds none."""
    root, rng = golden(name), random.Random(seed)
    for directory, units in golden_queues(root):
        files = ConsumeQueueFiles(directory, golden_file_size(root))
        ends = [offset + size for offset, size, _ in units]
        for watermark in (
            0,
            1,
            ends[0],
            ends[-1],
            ends[-1] + 1,
            *rng.choices(range(ends[-1]), k=5),
        ):
            expected = sum(end <= watermark for end in ends)
            assert files.find_end(watermark) == expected * 20
            # files that are not sparse may be looked at more closely
            assert expected == len(units) or not ends_by(files, watermark, lambda *_: None)
            last = files.last_unit(expected * 20)
            assert last == (units[expected - 1][:2] if expected else None)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_queues_begin_where_the_log_begins(
    name: str, golden: Callable[[str], Path], seed: int
) -> None:
    """min_offset_in_queue is the first unit whose message is not removed (§5 correctMinOffset)."""
    root, rng = golden(name), random.Random(seed)
    for directory, units in golden_queues(root):
        files = ConsumeQueueFiles(directory, golden_file_size(root))
        last = units[-1][0]
        for log_min in (
            0,
            units[0][0],
            units[0][0] + 1,
            last,
            last + 1,
            *rng.choices(range(last), k=5),
        ):
            expected = sum(offset < log_min for offset, _, _ in units)
            assert files.min_offset_in_queue(len(units) * 20, log_min) == expected


def random_queue(rng: random.Random, *, gaps: bool) -> tuple[list[Unit], int]:
    """Units in ascending log order from some index on; with ``gaps``, blanks in between."""
    first = rng.choice((0, 0, 5, 7, 15))
    units: list[Unit] = [BLANK] * (first % 5)
    offset = rng.randrange(0, 500)
    for _ in range(rng.randrange(0, 25)):
        if gaps and rng.random() < 0.3:
            units += [BLANK] * rng.randrange(1, 9)
        offset += rng.choice((0, 0, 300))
        size = rng.randrange(91, 200)
        units.append((offset, size, rng.randrange(-5, 5)))
        offset += size
    return units, first - first % 5


def queue_files(tmp_path: Path, case: int, units: list[Unit], first: int) -> ConsumeQueueFiles:
    directory = tmp_path / str(case)
    write_queue(directory, 100, units, first)
    return ConsumeQueueFiles(directory, 100)


def check_find_end(tmp_path: Path, seed: int, case: int, *, gaps: bool) -> None:
    """No unit of a later message stays below the end, none of an earlier one is cut."""
    rng = random.Random(f"{seed}:{case}")
    units, first = random_queue(rng, gaps=gaps)
    files = queue_files(tmp_path, case, units, first)
    real = [(first + index, unit) for index, unit in enumerate(units) if unit[1] != BLANK_SIZE]
    borders = [unit[0] + unit[1] + by for _, unit in real for by in (-1, 0, 1)]
    for watermark in (0, 10_000, *rng.choices(borders or [0], k=8)):
        end = files.find_end(watermark) // 20
        durable = [index for index, unit in real if unit[0] + unit[1] <= watermark]
        beyond = [index for index, unit in real if unit[0] + unit[1] > watermark]
        place = f"seed={seed} case={case} watermark={watermark} first={first} units={units}"
        assert end > max(durable, default=-1), place
        assert end <= min(beyond, default=1 << 60), place
        # a queue of blanks alone may be looked at more closely
        assert ends_by(files, watermark, lambda *_: None) == (
            not beyond and (bool(real) or not units)
        ), place
        last = files.last_unit(end * 20)
        assert last == (units[durable[-1] - first][:2] if durable else None), place


def test_a_queue_ends_after_its_last_durable_message(tmp_path: Path, seed: int) -> None:
    """Queues of several files, pre-blank or not, at watermarks around every message."""
    for case in range(80):
        check_find_end(tmp_path, seed, case, gaps=False)


def test_blanked_gaps_do_not_hide_where_a_queue_ends(tmp_path: Path, seed: int) -> None:
    """onQueueGap=blank leaves blanks between messages, on both sides of the watermark."""
    for case in range(80):
        check_find_end(tmp_path, seed, case, gaps=True)


def test_an_end_is_followed_from_an_earlier_one(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While units and files come and the watermark moves, forth and back, and without one: what a
    search from nothing finds. Few units a read, so that ends and blanks lie across reads."""
    monkeypatch.setattr("reput.store.queue.consumequeue.UNITS_PER_READ", 4)
    rng = random.Random(seed)
    for case in range(40):
        units, first = random_queue(rng, gaps=case % 2 == 1)
        follower = queue_files(tmp_path, case, [], first)
        known: dict[bool, int] = {True: 0, False: 0}
        for count in sorted(rng.choices(range(len(units) + 1), k=4)):
            files = queue_files(tmp_path, case, units[:count], first)
            ends = [unit[0] + unit[1] for unit in units if unit[1] != BLANK_SIZE]
            for end_offset in (None, *rng.choices([*ends, 0, 1 << 40], k=3)):
                follows = end_offset is None
                known[follows] = follower.grown_end(known[follows], end_offset)
                place = f"case={case} count={count} end_offset={end_offset} units={units}"
                assert known[follows] == files.find_end(end_offset), place


def check_min_offset(tmp_path: Path, seed: int, case: int, *, gaps: bool) -> None:
    rng = random.Random(f"{seed}:{case}")
    units, first = random_queue(rng, gaps=gaps)
    files = queue_files(tmp_path, case, units, first)
    end = (first + len(units)) * 20
    real = [(first + index, unit[0]) for index, unit in enumerate(units) if unit[1] != BLANK_SIZE]
    borders = [offset + by for _, offset in real for by in (-1, 0, 1)]
    for log_min in (0, 1 << 40, *rng.choices(borders or [0], k=8)):
        expected = min((index for index, offset in real if offset >= log_min), default=end // 20)
        place = f"seed={seed} case={case} log_min={log_min} first={first} units={units}"
        assert files.min_offset_in_queue(end, log_min) == expected, place


def test_a_queue_begins_at_its_first_message_in_the_log(tmp_path: Path, seed: int) -> None:
    """Queues of several files, pre-blank or not, for log starts around every message."""
    for case in range(80):
        check_min_offset(tmp_path, seed, case, gaps=False)


def test_blanked_gaps_do_not_hide_where_a_queue_begins(tmp_path: Path, seed: int) -> None:
    """A message before a blanked gap is still readable, so the queue begins at it."""
    for case in range(80):
        check_min_offset(tmp_path, seed, case, gaps=True)


@pytest.mark.parametrize("file_size", [20, 100, 6000])
def test_written_units_are_found_again(tmp_path: Path, file_size: int, seed: int) -> None:
    """Random pieces, over file ends: full-length files, zeros past the end, bytes as given."""
    rng = random.Random(seed)
    first = rng.choice((0, 300))
    directory = tmp_path / "consumequeue" / "T" / "0"
    files = ConsumeQueueFiles(directory, file_size)
    position, whole, written = first * 20, b"", UnsyncedFiles()
    while len(whole) < 2000:
        count = rng.randrange(1, 30)
        data = b"".join(
            UNIT.pack(len(whole) + index, 100, rng.randrange(1 << 40)) for index in range(count)
        )
        files.write(position, data, tmp_path, written)
        position, whole = position + len(data), whole + data
    written.close()
    stored = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
    assert {path.stat().st_size for path in directory.iterdir()} == {file_size}
    start = first * 20 // file_size * file_size
    assert [path.name for path in sorted(directory.iterdir())] == [
        file_name(at) for at in range(start, position, file_size)
    ]
    lead = first * 20 - start
    assert stored[lead:].rstrip(b"\0") == whole.rstrip(b"\0")
    for found in (files, ConsumeQueueFiles(directory, file_size)):
        assert found.read(first, len(whole) // 20).dtype == UNIT_DTYPE
        assert found.read(first, len(whole) // 20).tobytes() == whole
        assert found.read(first + 3, 2).tobytes() == whole[60:100]
        assert found.read(position // 20, 5)["size"].sum() == 0


def test_a_cut_queue_holds_nothing_after_the_cut(tmp_path: Path) -> None:
    """clear_from at every unit: later files go, later units become zeros, earlier bytes stay."""
    units = [(index * 100, 100, index) for index in range(13)]
    whole = b"".join(UNIT.pack(*unit) for unit in units)
    for keep in range(len(units) + 1):
        directory = tmp_path / str(keep)
        write_queue(directory, 100, units)
        files = ConsumeQueueFiles(directory, 100)
        files.clear_from(keep * 20)
        assert open_files(tmp_path) == 0
        stored = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
        assert stored == whole[: keep * 20].ljust(-(-keep // 5) * 100, b"\0")
        assert files.starts == [int(path.name) for path in sorted(directory.iterdir())]


def test_a_cut_reaches_bytes_after_a_hole(tmp_path: Path) -> None:
    """A power cut leaves some pages of a sparse file, and not those between them."""
    size = 20 * 4096
    for pages in ([0, 5], [1, 5, 9], [9], [0, 1, 2, 19]):
        directory = tmp_path / "-".join(map(str, pages))
        directory.mkdir()
        path = directory / file_name(0)
        with path.open("wb") as file:
            file.truncate(size)
            for page in pages:
                os.pwrite(file.fileno(), UNIT.pack(7, 7, 7) * 100, page * 4096)
        before = path.read_bytes()
        ConsumeQueueFiles(directory, size).clear_from(40)
        assert path.read_bytes() == before[:40].ljust(size, b"\0")


def test_a_cut_removes_empty_files(tmp_path: Path) -> None:
    """A process that ended while it created a file leaves one, alone or after others. Nothing may
    lie beyond it, but a queue with it is never taken for one that ends in time."""
    for units in ([], [(0, 100, 0)]):
        directory = tmp_path / str(len(units))
        directory.mkdir()
        if units:
            write_queue(directory, 100, units)
        (directory / file_name(100)).touch()
        files = ConsumeQueueFiles(directory, 100)
        assert not ends_by(files, 1000, lambda *_: None)
        files.clear_from(20 * len(units))
        assert len(list(directory.iterdir())) == len(units)


def test_a_queue_of_blanks_alone_has_no_last_message(tmp_path: Path) -> None:
    """A kill between the pre-blank and the first unit leaves such a file."""
    write_queue(tmp_path / "q", 100, [BLANK] * 3, 5)
    assert (tmp_path / "q" / file_name(100)).read_bytes() == PRE_BLANK * 3 + bytes(40)
    files = ConsumeQueueFiles(tmp_path / "q", 100)
    assert files.last_unit(files.find_end(None)) is None
    assert files.last_unit(files.find_end(1 << 40)) is None


def test_a_files_last_message_may_be_before_blanks(tmp_path: Path) -> None:
    """A gap that is filled reaches over the end of a file, which retention asks for."""
    write_queue(tmp_path / "q", 100, [(0, 10, 1), (10, 20, 2), *[BLANK] * 5, (30, 40, 3)])
    files = ConsumeQueueFiles(tmp_path / "q", 100)
    assert files.last_unit(100) == (10, 20)
    assert files.last_unit(140) == (10, 20)
    assert files.last_unit(160) == (30, 40)


def test_a_queue_file_of_another_size_is_named(tmp_path: Path) -> None:
    """The path, the size found and the setting are in the error; an empty file is being made."""
    write_queue(tmp_path / "q", 100, [(0, 100, 0)])
    (tmp_path / "q" / file_name(100)).touch()
    assert ConsumeQueueFiles(tmp_path / "q", 100).starts == [0]
    with pytest.raises(QueueFileError) as caught:
        ConsumeQueueFiles(tmp_path / "q", 200)
    message = str(caught.value)
    assert str(tmp_path / "q" / file_name(0)) in message
    assert "100 bytes but mappedFileSizeConsumeQueue is 200" in message


def test_other_names_in_a_queue_directory_are_not_its_files(tmp_path: Path) -> None:
    """Directories, links and names that are no 20 digits."""
    write_queue(tmp_path / "q", 100, [(0, 100, 0)])
    (tmp_path / "q" / "notes").write_bytes(b"x")
    (tmp_path / "q" / file_name(100)).mkdir()
    (tmp_path / "q" / file_name(200)).symlink_to(tmp_path / "q" / file_name(0))
    assert ConsumeQueueFiles(tmp_path / "q", 100).starts == [0]
    assert ConsumeQueueFiles(tmp_path / "nowhere", 100).starts == []
    assert ConsumeQueueFiles(tmp_path / "nowhere", 100).find_end(None) == 0


def test_queues_of_an_output_are_listed(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Topic and queue directories, sorted; what is no queue is skipped, as RocketMQ does."""
    root = golden("mixed") / "consumequeue"
    expected = sorted(
        (topic.name, int(queue.name)) for topic in root.iterdir() for queue in topic.iterdir()
    )
    for odd in ("Topic_1/x", "Topic_1/-1", "Topic_1/01", "Topic_1/٣", "Empty"):
        (root / odd).mkdir(parents=True)
    (root / "Topic_1" / "77").write_bytes(b"")
    (root / "file").write_bytes(b"")
    listed = list(list_queues(root))
    assert [(key.topic, key.queue_id) for key in listed] == expected
    assert all((root / key.relative_path).is_dir() for key in listed)
    assert QueueKey("订单-主题", 3) in listed
    assert list(list_queues(tmp_path / "nowhere")) == []


@pytest.mark.parametrize(
    "topic",
    [b"T", b"%RETRY%group", b"a b", b"...", b".hidden", b"~", b"t" * 255, "订单-主题".encode(),
     "😀".encode(), "é".encode() * 127, b"a:b", b"*", b"-rf"],
)  # fmt: skip
def test_a_plain_path_component_is_a_topics_directory(topic: bytes) -> None:
    """Wider than a broker's alphabet: any valid UTF-8 that is one component."""
    name = topic_directory(topic)
    assert name is not None
    assert os.fsencode(name) == topic
    assert Path(name).parts == (name,)


@pytest.mark.parametrize(
    "topic",
    [b"", b".", b"..", b"/", b"a/b", b"../../x", b"/etc/passwd", b"a\\b", b"..\\x", b"a\0b", b"\0",
     b"a\nb", b"\x1b[31m", b"\x7f", "a\x85b".encode(), "\x9f".encode(), b"t" * 256, b"t" * 300,
     "订".encode() * 86, b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf0\x9f\x98"],
)  # fmt: skip
def test_other_names_are_no_directory(topic: bytes) -> None:
    """Traversal, separators, control characters, too long, not UTF-8 (ARCHITECTURE.md)."""
    assert topic_directory(topic) is None


def test_no_name_leaves_its_directory(tmp_path: Path, seed: int) -> None:
    """Random bytes as names: whatever is taken can be made, directly below the root."""
    rng = random.Random(seed)
    pieces = (b".", b"..", b"/", b"\\", b"\0", b"a", "订".encode(), b"\n", b"\xff", b" ", b"t" * 90)
    taken = set()
    for _ in range(2000):
        name = topic_directory(b"".join(rng.choices(pieces, k=rng.randrange(1, 5))))
        if name is not None and name not in taken:
            taken.add(name)
            (tmp_path / name).mkdir()
    assert {path.name for path in tmp_path.iterdir()} == taken
    assert len(taken) > 20


def test_usual_topics_are_those_a_broker_takes() -> None:
    """``TopicValidator``'s alphabet: every single byte, and a mixture."""
    usual = {byte for byte in range(256) if is_usual_topic(bytes([byte]))}
    letters = {*range(ord("a"), ord("z") + 1), *range(ord("A"), ord("Z") + 1)}
    assert usual == letters | {*range(ord("0"), ord("9") + 1)} | set(b"%|-_")
    assert is_usual_topic(b"%RETRY%a-b_c|9")
    assert not is_usual_topic("订单".encode())


@pytest.mark.parametrize(
    ("configured", "rounded"), [(1, 20), (20, 20), (21, 40), (6_000_000, 6_000_000), (99, 100)]
)
def test_file_sizes_are_rounded_up_to_whole_units(configured: int, rounded: int) -> None:
    """``ceil(size / 20.0) * 20`` (§1)."""
    assert rounded_file_size(configured) == rounded
    assert rounded_file_size(configured) == int(np.ceil(configured / 20.0) * 20)


def test_a_search_by_time_passes_over_blanks_and_what_the_log_lost(
    tmp_path: Path, seed: int
) -> None:
    """Wherever they are, also over files; against a plain loop over the real units."""
    rng = random.Random(seed)
    for turn in range(8):
        times = sorted(rng.choices(range(20), k=rng.randrange(1, 30)))
        units: list[Unit] = []
        for index in range(len(times)):
            units += [BLANK] * rng.choice((0, 0, 0, 1, 12))
            units.append((100 * index, 100, 0))
        directory = tmp_path / str(turn)
        write_queue(directory, 100, units)
        files = ConsumeQueueFiles(directory, 100)
        end, lost = len(units) * 20, rng.randrange(len(times))
        floor = files.min_offset_in_queue(end, lost * 100)
        real = [
            (i, times[offset // 100]) for i, (offset, size, _) in enumerate(units) if size == 100
        ]
        real = real[lost:]

        def store_time(
            offset: int, _size: int, times: Sequence[int] = times, lost: int = lost
        ) -> int:
            return times[offset // 100] if offset >= lost * 100 else -1

        for time in range(-1, 22):
            at = [
                files.offset_in_queue_by_time(time, side, end, floor, store_time)
                for side in (BoundaryType.LOWER, BoundaryType.UPPER)
            ]
            later = [index for index, stored in real if stored >= time]
            lower = max(at[0], floor)
            # a blank has the time of the next message
            assert {BLANK} >= set(units[lower : later[0]]) if later else lower == len(units)
            before = [index for index, stored in real if stored <= time]
            assert max(at[1], floor) == (before[-1] if before else floor)


@pytest.mark.parametrize("units", [2, 3], ids=["one file", "two files"])
@pytest.mark.parametrize("is_same", [True, False], ids=["same object", "another object"])
def test_names_that_a_failed_write_made_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same: bool, units: int
) -> None:
    """Whichever step fails, on the second file or the first: after a second try each directory was
    synced with all the names that it holds."""
    synced: dict[Path, set[str]] = {}
    sync_directory = fsops.sync_directory

    def recorded(path: Path) -> None:
        sync_directory(path)
        synced[path] = {entry.name for entry in path.iterdir()}

    monkeypatch.setattr(fsops, "sync_directory", recorded)
    for ordinal in itertools.count(1):
        root = tmp_path / str(ordinal)
        root.mkdir()
        directory = root / "consumequeue" / "Topic" / "0"
        files = ConsumeQueueFiles(directory, 40)
        failpoints = fsops._Failpoints(f"*:{ordinal}=ENOSPC")
        monkeypatch.setattr(fsops, "_failpoints", failpoints)
        data, done = UNIT.pack(1, 100, 0) * units, UnsyncedFiles()
        try:
            files.write(0, data, root, done)
        except NoSpaceError:
            again = files if is_same else ConsumeQueueFiles(directory, 40)
            again.write(0, data, root, done)
        else:
            done.close()
            break
        done.sync()
        for path in (root, *(parent for parent in directory.parents if root in parent.parents),
                     directory):  # fmt: skip
            assert synced[path] == {entry.name for entry in path.iterdir()}, (ordinal, path)
    assert ordinal > 6
