"""Walking the log: over damage, over holes, with bounds.

Held against ``tests.support.plain_walk``, which tries every position of whole files in memory, and
against logs made by ``tests.support.wire``. The live end is in ``test_logtail``.
"""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from reput.store.errors import CommitLogDataLossError
from reput.store.log import cursor
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange, Window
from reput.store.log.record import Record
from reput.store.log.status import Status
from tests.support import wire
from tests.support.damage import damage
from tests.support.plain_walk import PlainItems, PlainWalk

FILE_SIZE = 2048
TINY, SMALL, LARGE = 64, 700, 1 << 20


def small_log(rng: random.Random, *, numbers: bool = False) -> wire.PlainLog:
    """Three files of messages; without ``numbers`` no property can be BAD_PROPERTY."""
    log = wire.PlainLog(FILE_SIZE, rng.choice((0, FILE_SIZE * 3)))
    while log.end - log.start < 2 * FILE_SIZE + 900:
        fields = wire.random_fields(rng)
        if not numbers:
            fields["properties"] = rng.choice((b"", b"TAGS\x01TagA\x02", b"odd\x02\x01"))
        log.append(**fields)
    return log


def found_items(log: CommitLog, start: int, end: int) -> PlainItems:
    records, bad, at = [], [], start
    for item in cursor.records(log, start, end, fail_on_data_loss=False):
        if isinstance(item, BadRange):
            bad.append(item)
            at = item.end
        else:
            records.append(item.physical_offset)
            at = item.physical_offset + item.total_size
    return PlainItems(records, bad, at)


@pytest.fixture(params=[TINY, SMALL, LARGE])
def window_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The smallest takes every record by kernels, the largest none."""
    size: int = request.param
    monkeypatch.setattr(cursor, "Window", lambda log, _=0: Window(log, size))
    plain_records = {TINY: 0, SMALL: 3, LARGE: 1000}[size]
    monkeypatch.setattr(cursor, "_plain_records", lambda: plain_records)
    return size


def check_damaged_log(directory: Path, seed: int, case: int) -> int:
    rng = random.Random(f"{seed}:{case}")
    plain = small_log(rng)
    damage(rng, plain)
    log = CommitLog([plain.write(directory / str(plain.start))])
    end = plain.start + len(plain.image)
    expected = PlainWalk(plain).items(plain.start, end)
    found = found_items(log, plain.start, end)
    log.close()
    assert (found.records, found.bad) == (expected.records, expected.bad), f"{seed=} {case=}"
    return len(found.bad)


@pytest.mark.usefixtures("window_size")
def test_damage_ends_at_the_first_boundary(tmp_path: Path, seed: int) -> None:
    """Records and bad ranges do not depend on how much of the log is in the buffer."""
    assert sum(check_damaged_log(tmp_path, seed, case) for case in range(60)) > 60


@pytest.fixture
def sound(tmp_path: Path, seed: int) -> Iterator[tuple[wire.PlainLog, CommitLog]]:
    plain = small_log(random.Random(seed), numbers=False)
    log = CommitLog([plain.write(tmp_path / "log")])
    yield plain, log
    log.close()


Sound = tuple[wire.PlainLog, CommitLog]


def test_the_next_record_is_found_wherever_a_read_ends(tmp_path: Path) -> None:
    """The only one after the damage, at every place of a window, its first and last among them."""
    plain = wire.PlainLog(4096)
    for _ in range(5):
        plain.append()
    (damaged, _), (start, _) = plain.spans[2], plain.spans[-1]
    plain.put(damaged, b"x" * (start - damaged))
    log = CommitLog([plain.write(tmp_path / "commitlog")])
    for size in range(16, start - damaged + 20):
        assert cursor.resync(log, Window(log, size), damaged) == start, size
    log.close()


def test_a_record_forged_in_a_body_is_not_taken(tmp_path: Path) -> None:
    """Where the damaged record's own length leads to a boundary, nothing inside it counts."""
    for follower in ("record", "blank"):
        plain = wire.PlainLog(FILE_SIZE)
        plain.append()
        inside = plain.end + 100
        body = bytes(100 - 88) + wire.message(inside, topic=b"Forged") + bytes(50)
        victim = plain.append(body=body)
        end = plain.end
        if follower == "record":
            plain.append()
        else:
            plain.put(end, struct.pack(">iI", FILE_SIZE - end, wire.BLANK_MAGIC))
        assert plain.image[inside:].startswith(wire.message(inside, topic=b"Forged"))
        for at, layout, value, status in (
            (28, ">q", victim + 1, Status.BAD_PHYSICAL_OFFSET),
            (4, ">i", 7, Status.BAD_MAGIC),
            (84, ">i", -1, Status.BAD_LENGTH),
        ):
            changed = wire.PlainLog(FILE_SIZE, image=bytearray(plain.image))
            changed.put(victim + at, struct.pack(layout, value))
            log = CommitLog([changed.write(tmp_path / f"{follower}{at}")])
            bad = [one for one in cursor.records(log, 0, FILE_SIZE) if isinstance(one, BadRange)]
            assert bad[0] == BadRange(victim, end, status)
            log.close()


@pytest.mark.parametrize("length", [7, 90])
def test_a_blank_forged_in_a_body_ends_no_file(tmp_path: Path, length: int) -> None:
    """Eight bytes that are right for their position, in a record whose length is damaged: what
    follows is dispatched, even if that length, which no record has, leads to them."""
    plain = wire.PlainLog(FILE_SIZE)
    plain.append()
    inside = plain.end + 90
    victim = plain.append(body=b"xx" + struct.pack(">iI", FILE_SIZE - inside, wire.BLANK_MAGIC))
    assert plain.image.index(struct.pack(">I", wire.BLANK_MAGIC)) == inside + 4
    later = [plain.append() for _ in range(3)]
    plain.put(victim, struct.pack(">i", length))
    log = CommitLog([plain.write(tmp_path / "log")])
    found = found_items(log, 0, plain.end)
    assert found.records == [0, *later]
    assert found.bad == [BadRange(victim, later[0], Status.BAD_SIZE)]
    log.close()


@pytest.mark.usefixtures("window_size")
def test_the_first_of_several_blanks_ends_the_file(tmp_path: Path) -> None:
    """After damage, where no record follows: the others are in a body, or what is left of it."""
    plain = wire.PlainLog(FILE_SIZE)
    plain.append(body=b"sound")
    victim = plain.append(body=bytes(1000))
    for at in (victim + 200, victim + 500, victim + 900):
        plain.put(at, struct.pack(">iI", FILE_SIZE - at, wire.BLANK_MAGIC))
    plain.put(victim, bytes(4))
    plain.append(body=bytes(1000))
    log = CommitLog([plain.write(tmp_path / "commitlog")])
    found = found_items(log, 0, plain.end)
    assert found == PlainWalk(plain).items(0, plain.end)
    assert [(bad.start, bad.end) for bad in found.bad] == [(victim, victim + 200)]
    log.close()


def test_a_forged_record_is_not_taken_before_an_undispatchable_one(tmp_path: Path) -> None:
    """A record whose DELAY is no number is a boundary like any other whole record."""
    plain = wire.PlainLog(FILE_SIZE)
    forged_at = 100
    body = bytes(forged_at - 88) + wire.message(forged_at, topic=b"Forged")
    victim = plain.append(body=body)
    end = plain.end
    plain.append(topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01x\x02")
    resumed = plain.end
    plain.append()
    plain.put(victim + 28, struct.pack(">q", 1))
    log = CommitLog([plain.write(tmp_path / "log")])
    found = found_items(log, 0, plain.end)
    assert found.bad == [
        BadRange(victim, end, Status.BAD_PHYSICAL_OFFSET),
        BadRange(end, resumed, Status.BAD_PROPERTY),
    ]
    log.close()


def test_an_undispatchable_record_at_the_logs_end_is_listed_alone(tmp_path: Path) -> None:
    """Nothing follows it yet, and the messages that come are not of its range."""
    plain = wire.PlainLog(FILE_SIZE)
    plain.append()
    victim = plain.append(topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01x\x02")
    log = CommitLog([plain.write(tmp_path / "log")])
    assert found_items(log, 0, plain.end).bad == [BadRange(victim, plain.end, Status.BAD_PROPERTY)]
    log.close()


def test_an_undispatchable_record_ends_damage_in_any_window(
    tmp_path: Path, window_size: int
) -> None:
    """The range after which scanning resumes does not depend on the buffer's size."""
    plain = wire.PlainLog(FILE_SIZE)
    victim = plain.append(body=bytes(200))
    end = plain.end
    plain.append(topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01x\x02")
    resumed = plain.end
    plain.append()
    plain.put(victim, bytes(8))  # no length that leads on
    log = CommitLog([plain.write(tmp_path / "log")])
    assert found_items(log, 0, plain.end).bad == [
        BadRange(victim, end, Status.ZERO_HOLE),
        BadRange(end, resumed, Status.BAD_PROPERTY),
    ], window_size
    log.close()


@pytest.mark.parametrize("hidden", [0, 1, 2, 3])
def test_holes_of_sparse_files_hide_no_record(tmp_path: Path, hidden: int) -> None:
    """A record whose first, zero bytes lie in the hole before it is found after 256 MiB."""
    file_size, start = 1 << 28, (1 << 28) - (1 << 20) - hidden
    first, last = wire.message(0), wire.message(start)
    assert last[:3] == bytes(3)
    (tmp_path / "log").mkdir()
    with (tmp_path / "log" / wire.file_name(0)).open("wb") as file:
        file.truncate(file_size)
        os.pwrite(file.fileno(), first, 0)
        os.pwrite(file.fileno(), last[hidden:], start + hidden)
    log = CommitLog([tmp_path / "log"])
    found = found_items(log, 0, start + len(last))
    assert found.records == [0, start]
    assert found.bad == [BadRange(len(first), start, Status.ZERO_HOLE)]
    log.close()


def test_a_file_cut_under_us_is_a_hole_up_to_its_end(sound: Sound) -> None:
    """Reading goes on with the next file; nothing is passed over unsaid."""
    plain, log = sound
    span = [one for one in plain.spans if one[0] < plain.start + FILE_SIZE][-2]
    log.read(plain.start, 1)
    os.truncate(log.segments.listed[0].path, span[0] - plain.start + 50)
    found = found_items(log, plain.start, plain.end)
    assert found.bad == [BadRange(span[0], plain.start + FILE_SIZE, Status.ZERO_HOLE)]
    assert found.records == [
        one[0] for one in plain.spans if one[0] < span[0] or one[0] >= plain.start + FILE_SIZE
    ]


def test_a_missing_file_is_data_loss(sound: Sound) -> None:
    """An error that names the range, or the range itself where that is asked for."""
    plain, log = sound
    log.segments.listed[1].path.unlink()
    log.refresh()
    low, high = plain.start + FILE_SIZE, plain.start + 2 * FILE_SIZE
    with pytest.raises(CommitLogDataLossError, match="SEGMENT_DELETED") as caught:
        list(cursor.records(log, plain.start, plain.end))
    assert f"[{low}, {high})" in str(caught.value)
    found = found_items(log, plain.start, plain.end)
    assert found.bad == [BadRange(low, high, Status.SEGMENT_DELETED)]
    assert found.records == [one[0] for one in plain.spans if not low <= one[0] < high]
    # the range is cut at the end that was asked for
    assert found_items(log, low + 5, low + 9).bad == [
        BadRange(low + 5, low + 9, Status.SEGMENT_DELETED)
    ]
    # and never beyond the next file's begin
    found = found_items(log, low + 5, plain.end)
    assert found.bad == [BadRange(low + 5, high, Status.SEGMENT_DELETED)]
    assert found.records == [one[0] for one in plain.spans if one[0] >= high]


def test_a_walk_stops_after_so_many_records(sound: Sound, window_size: int) -> None:
    """At the end of the last record passed (where a BLANK stands the next file begins there)."""
    plain, log = sound
    window = Window(log, window_size)
    for count in range(1, len(plain.spans) + 3):
        hop = cursor.walk(log, window, plain.start, plain.end, max_records=count)
        passed = plain.spans[:count]
        assert hop.record_count == len(passed)
        assert hop.last_record_offset == passed[-1][0]
        assert hop.offset == passed[-1][1]
        assert hop.status is Status.OK
    hop = cursor.walk(log, window, plain.spans[2][0], plain.end, max_records=0)
    assert (hop.offset, hop.record_count, hop.last_record_offset) == (plain.spans[2][0], 0, -1)


def test_a_walk_stops_before_a_record_that_crosses_its_end(sound: Sound, window_size: int) -> None:
    """Every byte of the log as the end: no record is cut, none before the end is left out."""
    plain, log = sound
    window = Window(log, window_size)
    for end in range(plain.start, plain.end, 7):
        hop = cursor.walk(log, window, plain.start, end)
        whole = [span for span in plain.spans if span[1] <= end]
        assert hop.record_count == len(whole)
        expected = whole[-1][1] if whole else plain.start
        if whole and end > expected and PlainWalk(plain).at(expected) is Status.BLANK:
            expected = PlainWalk(plain).file_end(expected)
        assert hop.offset == expected


def test_a_walk_stops_at_the_first_record_of_a_time(tmp_path: Path, window_size: int) -> None:
    """max_timestamp: the first with a later storeTimestamp, in log order."""
    plain = wire.PlainLog(FILE_SIZE)
    times = [100, 100, 103, 102, 110, 110, 250] * 8
    for time in times:
        plain.append(store_timestamp=time)
    log = CommitLog([plain.write(tmp_path / "log")])
    window = Window(log, window_size)
    for asked in (0, 100, 101, 103, 104, 110, 111, 250, 251):
        hop = cursor.walk(log, window, 0, plain.end, max_timestamp=asked - 1)
        first = next((index for index, time in enumerate(times) if time >= asked), len(times))
        assert hop.record_count == first
        expected = plain.spans[first][0] if first < len(times) else plain.end
        assert hop.offset == expected
    log.close()


def test_a_walk_passes_damage_and_missing_files(tmp_path: Path, seed: int) -> None:
    """It ends where the scan of the same range ends, and counts the same sound records."""
    for case in range(40):
        rng = random.Random(f"{seed}:{case}")
        plain = small_log(rng)
        damage(rng, plain)
        log = CommitLog([plain.write(tmp_path / f"{plain.start}")])
        end = plain.start + len(plain.image)
        items = PlainWalk(plain).items(plain.start, end)
        hop = cursor.walk(log, Window(log), plain.start, end)
        assert (hop.offset, hop.record_count) == (items.end, len(items.records)), f"{seed=} {case=}"
        assert hop.last_record_offset == max(items.records, default=-1)
        log.close()


def test_a_walk_steps_over_a_missing_file(sound: Sound) -> None:
    """To the next file's start, or to the end where no file follows."""
    plain, log = sound
    for segment in log.segments.listed[1:]:
        segment.path.unlink()
    log.refresh()
    hop = cursor.walk(log, Window(log), plain.start, plain.end)
    assert hop.offset == plain.end
    assert hop.record_count == sum(one[1] <= plain.start + FILE_SIZE for one in plain.spans)


def test_splits_fall_on_records(sound: Sound) -> None:
    """record_starts: at or after each given offset, a start that the walk from the left meets."""
    plain, log = sound
    walked = {start for start, _ in plain.spans}
    file_ends = {plain.start + index * FILE_SIZE for index in (1, 2, 3)}
    blanks = {end for (_, end), (start, _) in pairwise(plain.spans) if end != start}
    asked = list(range(plain.start + 1, plain.end, 13))
    for offset, found in zip(asked, cursor.record_starts(log, asked), strict=True):
        assert found >= offset
        assert found in walked | blanks | file_ends
        assert found <= PlainWalk(plain).file_end(offset - 1)


def test_a_forged_length_costs_no_memory(tmp_path: Path) -> None:
    """Damage that leads to bytes which claim to be a record of 60 MiB, in a file of 2 KiB."""
    plain = wire.PlainLog(FILE_SIZE)
    for _ in range(4):
        plain.append(body=b"b" * 50)
    plain.put(plain.spans[1][0] + 4, bytes(4))
    plain.put(plain.spans[2][0], struct.pack(">i", 60 << 20))
    log = CommitLog([plain.write(tmp_path / "log")])
    # the first search of a process imports and compiles kernels, which costs megabytes
    found = cursor.resync(log, Window(log, SMALL), plain.spans[1][0])
    window = Window(log, SMALL)
    tracemalloc.start()
    again = cursor.resync(log, window, plain.spans[1][0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == again == plain.spans[3][0]
    assert peak < 1 << 20
    log.close()


def test_records_of_any_size_pass_a_small_window(tmp_path: Path) -> None:
    """A record larger than the buffer is read whole; its neighbours too."""
    plain = wire.PlainLog(1 << 22)
    bodies = [b"a", os.urandom(3_000_000), b"b", os.urandom(100_000), b""]
    for body in bodies:
        plain.append(body=body)
    log = CommitLog([plain.write(tmp_path / "log")])
    hop = cursor.hop_file(log, Window(log, TINY), 0)
    assert (hop.status, hop.offset, hop.record_count) == (Status.EMPTY, plain.end, len(bodies))
    found = [one.body for one in cursor.records(log, 0, plain.end) if isinstance(one, Record)]
    assert found == bodies
    log.close()
