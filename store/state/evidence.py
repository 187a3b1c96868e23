"""Evidence that a log still is the one that was read: records before a reader's position.

A position is a number, which a changed log has as well: a broker that loses the unsynced end of its
log writes other messages there. So a position carries the place, size and checksum of some records
before it. The last one shows whether the log has changed. The others, at distances from the
position that double, show up to where it is the same (decision 0017).

The checksum is the CRC-32 of the whole record, or of its first and last 64 KiB: header, topic and
properties count, and the header has the body's own CRC.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, walk
from reput.store.log.record import Record

EDGE_BYTES = 64 << 10
NEAREST_BITS = 10
"""Records nearer than 1 KiB to a position are not told apart by their distance."""
_RECORD = re.compile(r"([0-9]{1,19}):([1-9][0-9]{0,9}):([0-9a-f]{8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class PassedRecord:
    """A record that a reader has passed."""

    offset: int
    """Physical offset."""
    size: int
    crc: int

    @property
    def end(self) -> int:
        """Physical offset after its last byte."""
        return self.offset + self.size


Evidence = tuple[PassedRecord, ...]
"""Records before a position, the newest first."""


def evidence_text(evidence: Evidence) -> str:
    """Return ``OFFSET:SIZE:CRC`` of each record, with blanks between: the form in JSON."""
    return " ".join(f"{each.offset}:{each.size}:{each.crc:08x}" for each in evidence)


def parse_evidence(text: object) -> Evidence | None:
    """Parse what ``evidence_text`` wrote; return None for anything else."""
    if not isinstance(text, str):
        return None
    matches = [_RECORD.fullmatch(part) for part in text.split(" ")] if text else []
    records = tuple(PassedRecord(int(m[1]), int(m[2]), int(m[3], 16)) for m in matches if m)
    offsets = [each.offset for each in records]
    is_whole = len(records) == len(matches) and offsets == sorted(set(offsets), reverse=True)
    return records if is_whole else None


def _checksum(log: CommitLog, offset: int, size: int) -> int | None:
    """Return the checksum of a record's bytes; None where the log does not have all of them."""
    edge = min(size, EDGE_BYTES)
    data = log.read(offset, edge)
    if size > edge:
        data += log.read(offset + size - edge, edge)
    return zlib.crc32(data) if len(data) == min(size, 2 * edge) else None


def evidence_before(
    log: CommitLog, begin: int, end: int, former_evidence: Evidence = ()
) -> Evidence:
    """Return the evidence for the position ``end``, which is a record or file start.

    ``former_evidence`` is that of ``begin``, an earlier position. No more than the last file and a
    half of [begin, end) is walked.
    """
    places: list[tuple[int, int]] = []
    segment = log.segments.at(end - log.file_size // 2) or log.segments.at(end - 1)
    if segment is not None:
        window, at = Window(log), max(begin, segment.start)
        distances = (1 << bits for bits in range((end - at).bit_length(), NEAREST_BITS - 1, -1))
        for target in (*(end - distance for distance in distances if at < end - distance), end):
            hop = walk(log, window, at, target)
            at = hop.offset
            if hop.last_record_offset >= 0:
                places += _record_at(log, hop.last_record_offset)
    return evidence_of(log, places, end, former_evidence)


def evidence_of(
    log: CommitLog, places: Iterable[tuple[int, int]], end: int, former_evidence: Evidence = ()
) -> Evidence:
    """Return the evidence for the position ``end``: records at ``places`` (physical offset, size),
    those of ``former_evidence`` that the log still has, and the first ones of earlier files, which
    are found without a walk."""
    records = [each for each in former_evidence if each.offset >= log.min_offset]
    for offset, size in (*places, *_first_records(log, end)):
        crc = _checksum(log, offset, size)
        if crc is not None and offset + size <= end:
            records.append(PassedRecord(offset, size, crc))
    return _thinned(records, end)


def _first_records(log: CommitLog, end: int) -> Iterator[tuple[int, int]]:
    """Yield the places of the first records of files before ``end``: of one file for each
    distance."""
    seen: set[int] = set()
    for segment in reversed(log.segments.listed):
        distance = (end - segment.start).bit_length()
        if segment.start < end and distance not in seen:
            seen.add(distance)
            yield from _record_at(log, segment.start)


def _record_at(log: CommitLog, offset: int) -> Iterator[tuple[int, int]]:
    record = log.record_starting_at(offset)
    if isinstance(record, Record):
        yield offset, record.total_size


def _thinned(records: Iterable[PassedRecord], end: int) -> Evidence:
    """Return the last of ``records``, and two for each distance from ``end`` that doubles.

    The older of the two reaches the next distance as positions move on, so that none of them stays
    without a record.
    """
    ordered = sorted(set(records), key=lambda each: each.offset, reverse=True)
    by_distance: dict[int, list[PassedRecord]] = {}
    for each in ordered:
        distance = max((end - each.offset).bit_length(), NEAREST_BITS)
        by_distance[distance] = [*by_distance.get(distance, [])[:1], each]
    return tuple(each for kept in by_distance.values() for each in kept)


def is_beyond_check(log: CommitLog, record: PassedRecord) -> bool:
    """Whether retention has removed a record's file, or the file is missing among others: the log
    then shows nothing about it."""
    if record.offset < log.min_offset:
        return True
    return not log.segments.at(record.offset) and log.segments.after(record.offset) is not None


def holds(log: CommitLog, evidence: Evidence) -> bool:
    """Whether nothing in the log contradicts the last record of the evidence."""
    if not evidence or is_beyond_check(log, evidence[0]):
        return True
    last = evidence[0]
    return _checksum(log, last.offset, last.size) == last.crc


@dataclass(frozen=True, slots=True)
class SamePart:
    """The part of a changed log that is surely the one that was read."""

    end: int
    """Physical offset (exclusive): a record of the log ends there, or the log begins there."""
    changed_from: int
    """Physical offset up to which it may be the same: the oldest record that is another one."""


def same_part(log: CommitLog, evidence: Evidence) -> SamePart:
    """Return how far a log agrees with evidence that does not hold."""
    changed_from = evidence[0].offset
    for each in evidence:
        if each.offset < log.min_offset:
            break
        if not is_beyond_check(log, each):
            if _checksum(log, each.offset, each.size) == each.crc:
                return SamePart(each.end, max(changed_from, each.end))
            changed_from = each.offset
    return SamePart(log.min_offset, max(changed_from, log.min_offset))
