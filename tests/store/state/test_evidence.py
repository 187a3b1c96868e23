"""Records that show whether a log is the one that was read, and up to where."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from reput.store.log.commitlog import CommitLog
from reput.store.state.evidence import (
    EDGE_BYTES,
    Evidence,
    PassedRecord,
    evidence_before,
    evidence_of,
    evidence_text,
    holds,
    parse_evidence,
    same_part,
)
from tests.support.wire import PlainLog

FILE_SIZE = 1 << 14


def filled(rng: random.Random, end: int, file_size: int = FILE_SIZE) -> PlainLog:
    """A log of random messages up to about ``end``."""
    plain = PlainLog(file_size)
    while plain.end < end:
        plain.append(body=rng.randbytes(rng.choice((0, 5, 100, 900))))
    return plain


def opened(plain: PlainLog, directory: Path) -> CommitLog:
    """The log on disk."""
    return CommitLog([plain.write(directory)])


def test_positions_in_small_steps_keep_records_at_every_distance(tmp_path: Path, seed: int) -> None:
    """The last record is the newest; of each distance that doubles there is one within four times
    of it, however small the batches are; and there are few. Sizes and checksums are the bytes'."""
    plain = filled(random.Random(seed), 200_000, 1 << 20)
    log, evidence, before = opened(plain, tmp_path), Evidence(), 0
    for _, end in plain.spans:
        evidence = evidence_before(log, before, end, evidence)
        before = end
        assert (evidence[0].offset, evidence[0].end) in plain.spans
        assert evidence[0].end == end
        assert len(evidence) < 2 * 20
        distance = 4096
        while distance * 4 < end:
            assert any(distance / 2 <= end - one.offset <= distance * 4 for one in evidence)
            distance *= 2
    for one in evidence:
        assert (one.offset, one.end) in plain.spans
        assert one.crc == zlib.crc32(plain.bytes_at((one.offset, one.end)))


@pytest.mark.parametrize("end", [9 * FILE_SIZE + 91, 9 * FILE_SIZE + 9000, 7 * FILE_SIZE])
def test_a_batch_gives_records_of_its_end_and_first_ones_of_files(tmp_path: Path, end: int) -> None:
    """At distances that double, also where its last file has just begun, or begins then."""
    plain = filled(random.Random(1), 9 * FILE_SIZE + 10_000)
    end = min(stop for _, stop in plain.spans if stop >= end) if end % FILE_SIZE else end
    evidence = evidence_before(opened(plain, tmp_path), 0, end)
    assert evidence[0].end == max(stop for _, stop in plain.spans if stop <= end)
    firsts = {at for at in range(0, 9 * FILE_SIZE, FILE_SIZE) if at < end}
    others = {one.offset for one in evidence if end - one.offset > 1.5 * FILE_SIZE}
    assert others <= firsts
    assert len(others) >= 2
    for distance in (2048, 4096):
        assert any(distance / 2 <= end - one.offset <= distance * 2 for one in evidence)


@pytest.mark.parametrize("lost", [1, 5, 40, 10_000])
def test_the_part_that_is_the_same_ends_near_the_cut(tmp_path: Path, lost: int) -> None:
    """At a record's end up to the cut, from which it is as far away as the position at most."""
    plain = filled(random.Random(3), 6 * FILE_SIZE)
    log = opened(plain, tmp_path / "whole")
    evidence = evidence_before(log, 0, plain.end)
    assert holds(log, evidence)
    end = plain.end
    cut = plain.spans[-lost][0] if lost < len(plain.spans) else 0
    plain.cut(cut)
    shorter = opened(plain, tmp_path / "shorter")
    assert not holds(shorter, evidence)
    while plain.end < end + 5000:
        plain.append(body=b"another one")
    for changed in (shorter, opened(plain, tmp_path / "grown")):
        assert not holds(changed, evidence)
        part = same_part(changed, evidence)
        assert part.end <= cut
        assert part.end == 0 or part.end in {stop for _, stop in plain.spans}
        assert cut - part.end <= max(end - cut, FILE_SIZE) * 2
        oldest = min(one.offset for one in evidence if one.end > cut)
        assert part.changed_from == max(oldest, part.end)


def test_what_retention_removed_shows_nothing(tmp_path: Path) -> None:
    """Nor does a missing file between others; a missing last file does."""
    plain = filled(random.Random(5), 4 * FILE_SIZE)
    log = opened(plain, tmp_path)
    evidence = evidence_before(log, 0, 2 * FILE_SIZE)
    paths = sorted(tmp_path.iterdir())
    paths[1].unlink()
    assert holds(CommitLog([tmp_path]), evidence)
    paths[0].unlink()
    assert holds(CommitLog([tmp_path]), evidence)
    evidence = evidence_before(log, 0, plain.end)
    for path in paths[3:]:
        path.unlink()
    left = CommitLog([tmp_path])
    assert not holds(left, evidence)
    assert same_part(left, evidence).end >= 2 * FILE_SIZE


def test_a_large_record_counts_at_both_ends(tmp_path: Path) -> None:
    """Its body in between has a CRC in the header."""
    plain = PlainLog(1 << 20)
    body = bytes(3 * EDGE_BYTES)
    plain.append(body=body, properties=b"KEYS\x01k\x02")
    (start, end), log = plain.spans[0], opened(plain, tmp_path)
    evidence = evidence_before(log, 0, end)
    record = plain.bytes_at((start, end))
    assert evidence[0].crc == zlib.crc32(record[:EDGE_BYTES] + record[-EDGE_BYTES:])
    for at in (start + 20, end - 2):
        plain.image[at] ^= 1
        assert not holds(opened(plain, tmp_path), evidence)
        plain.image[at] ^= 1


def test_places_that_the_log_does_not_have_are_left_out(tmp_path: Path) -> None:
    """A unit may point anywhere."""
    plain = filled(random.Random(7), 5000)
    log = opened(plain, tmp_path)
    (start, end), places = plain.spans[-1], [(1 << 50, 100), (FILE_SIZE - 10, 50)]
    evidence = evidence_of(log, [*places, (start, end - start)], end)
    assert [one.offset for one in evidence] == [start, 0]
    evidence = evidence_of(log, [(start, end - start)], start)
    assert [one.offset for one in evidence] == [0], "no record of those that were not read"


def test_what_the_log_no_longer_has_is_forgotten(tmp_path: Path) -> None:
    """The older one of two records at a distance is kept, which must be one that can be asked."""
    plain = filled(random.Random(9), 6 * FILE_SIZE)
    former = evidence_before(opened(plain, tmp_path), 0, 4 * FILE_SIZE)
    for path in sorted(tmp_path.iterdir())[:3]:
        path.unlink()
    log = CommitLog([tmp_path])
    assert min(one.offset for one in former) < log.min_offset == 3 * FILE_SIZE
    evidence = evidence_before(log, 4 * FILE_SIZE, plain.end, former)
    assert min(one.offset for one in evidence) == log.min_offset


def test_evidence_has_one_text() -> None:
    """The text is read back; anything else is none."""
    evidence = (PassedRecord(500, 91, 0xFF), PassedRecord(20, 1 << 20, 0))
    assert evidence_text(evidence) == "500:91:000000ff 20:1048576:00000000"
    assert parse_evidence(evidence_text(evidence)) == evidence
    assert parse_evidence("") == ()
    for text in (None, 5, " ", "5:5", "5:0:000000ff", "5:5:ff", "1:5:000000ff 2:5:000000ff",
                 "5:5:000000FF", "5:5:000000ff ", "\u0665:5:000000ff"):  # fmt: skip
        assert parse_evidence(text) is None
