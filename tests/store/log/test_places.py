"""Places in damaged logs, held against the walk that decodes every record."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange, records
from reput.store.log.logtail import LogTail
from reput.store.log.places import (
    before_loss,
    first_at_or_after,
    last_record_before,
    pass_over,
    record_start,
)
from reput.store.log.status import Status
from tests.support.damage import damage
from tests.support.wire import PlainLog, file_name
from tests.torture.logrot import random_log

LOGS, PLACES = 20, 12


def test_a_passage_is_what_the_plain_walk_finds(tmp_path: Path, seed: int) -> None:
    """Up to any byte: the records and damaged ranges that end there or before, and the start of
    what contains the byte. A record whose properties cannot be read counts as one."""
    rng = random.Random(seed)
    damaged = 0
    for number in range(LOGS):
        plain = random_log(rng)
        if number % 2:
            damage(rng, plain)
        log = CommitLog([plain.write(tmp_path / str(number))], plain.file_size)
        end = LogTail(log).settled(plain.start)
        found = list(records(log, plain.start, end, fail_on_data_loss=False))
        spans = [
            (one.start, one.end) if isinstance(one, BadRange)
            else (one.physical_offset, one.physical_offset + one.total_size)
            for one in found
        ]  # fmt: skip
        for _ in range(PLACES):
            place = rng.randrange(plain.start, end + 1)
            passed = pass_over(log, plain.start, place)
            before = [one for one, span in zip(found, spans, strict=True) if span[1] <= passed.end]
            bad = [
                one
                for one in before
                if isinstance(one, BadRange) and one.status is not Status.BAD_PROPERTY
            ]
            starts = [
                one.start if isinstance(one, BadRange) else one.physical_offset
                for one in before
                if one not in bad
            ]
            if any(start < place < stop for start, stop in spans):
                assert passed.end == max(start for start, _ in spans if start <= place)
            assert passed.messages == len(starts), (number, place)
            assert list(passed.bad) == bad, (number, place)
            assert passed.first_record_offset == min(starts, default=-1)
            assert passed.last_record_offset == max(starts, default=-1)
            assert last_record_before(log, passed.end) == max(starts, default=-1)
            damaged += len(bad)
        log.close()
    assert damaged


def log_of_three_files(directory: Path, rng: random.Random) -> tuple[PlainLog, list[int]]:
    """Some messages a file, with the times at which they were stored; the last ones of a file and
    the first of the next one have the same."""
    plain, times, time = PlainLog(1024, 1024), list[int](), 1_000
    while len(plain.image) < 3 * 1024:
        time += rng.randrange(3) if plain.end % 1024 < 400 else 0
        plain.append(body=b"x" * rng.randrange(40), store_timestamp=time)
        times.append(time)
    plain.write(directory)
    return plain, times


def test_the_first_record_from_a_time_is_that_of_a_plain_search(tmp_path: Path, seed: int) -> None:
    """At, before and after each time, the first of several of one time; none beyond the end."""
    plain, times = log_of_three_files(tmp_path, random.Random(seed))
    starts = [start for start, _ in plain.spans]
    with closing(CommitLog([tmp_path])) as log:
        for end in (plain.end, plain.spans[-1][0], plain.spans[2][0]):
            for time in range(times[0] - 1, times[-1] + 2):
                later = [
                    start
                    for start, stored in zip(starts, times, strict=True)
                    if stored >= time and start < end
                ]
                found = first_at_or_after(log, time, end)
                assert found == min(later, default=None), (time, end)


def test_a_clock_that_was_set_back_hides_no_earlier_file(tmp_path: Path) -> None:
    """The file before the first one that begins too late is walked, whatever comes after that."""
    plain = PlainLog(1024)
    for stored in (10, 20, 50, 30):
        file = len(plain.image) // 1024
        while len(plain.image) // 1024 == file:
            plain.append(body=bytes(300), store_timestamp=stored)
    plain.write(tmp_path)
    times = [int.from_bytes(plain.image[start + 56 : start + 64]) for start, _ in plain.spans]
    with closing(CommitLog([tmp_path])) as log:
        for time in (10, 20, 40, 50):
            first = next(at for at, stored in enumerate(times) if stored >= time)
            assert first_at_or_after(log, time, plain.end) == plain.spans[first][0]


def test_a_loss_begins_where_the_last_record_before_it_ends(tmp_path: Path, seed: int) -> None:
    """A lost file, damage within a file and up to its end; a record has no loss before it."""
    plain, _ = log_of_three_files(tmp_path, random.Random(seed))
    second, third = 2048, 3072
    in_last = [span for span in plain.spans if span[0] >= third]
    damaged = [span for span in plain.spans if span[0] < second][1]
    with (tmp_path / file_name(1024)).open("r+b") as file:
        file.seek(damaged[0] - 1024)
        file.write(b"\1" * (damaged[1] - damaged[0]))
    (tmp_path / file_name(second)).unlink()
    with closing(CommitLog([tmp_path])) as log:
        assert before_loss(log, third) == second
        assert before_loss(log, damaged[1]) == damaged[0]
        for _, end in (plain.spans[0], plain.spans[2], plain.spans[3], in_last[0]):
            assert before_loss(log, end) == end
        assert last_record_before(log, third) == max(
            start for start, _ in plain.spans if start < second
        )
        assert last_record_before(log, damaged[1]) == plain.spans[0][0]
        assert last_record_before(log, 1024) == -1
    (tmp_path / file_name(third)).write_bytes(b"\1" * 1024)
    with closing(CommitLog([tmp_path])) as log:
        assert last_record_before(log, third + 1000) == max(
            start for start, _ in plain.spans if start < second
        )


def test_a_place_leads_to_the_record_that_holds_it(tmp_path: Path, seed: int) -> None:
    """From the file's start, or from a record that is known to be before it."""
    plain, _ = log_of_three_files(tmp_path, random.Random(seed))
    with closing(CommitLog([tmp_path])) as log:
        for number, (start, end) in enumerate(plain.spans[1:], 1):
            for earlier in (0, plain.spans[number - 1][0], start):
                assert record_start(log, start, earlier) == start
                assert record_start(log, end - 1, earlier) == start


def test_a_passage_up_to_within_a_blank_ends_where_it_begins(tmp_path: Path, seed: int) -> None:
    """A bound at its first byte or at its file's end is passed to; nothing of a BLANK is a record
    or damage."""
    plain, _ = log_of_three_files(tmp_path, random.Random(seed))
    ends = [1024 * (1 + number) for number in range(1, 3)]
    with closing(CommitLog([tmp_path])) as log:
        for file_end in ends:
            blank = max(end for _, end in plain.spans if end <= file_end)
            assert blank < file_end
            before = [start for start, end in plain.spans if end <= blank]
            for place in {blank, blank + 1, file_end - 1, file_end}:
                passed = pass_over(log, plain.start, place)
                assert passed.end == (file_end if place == file_end else blank), place
                assert (passed.messages, passed.bad) == (len(before), ())
                assert passed.last_record_offset == before[-1]
