"""The live end of the log: the seal rule (ARCHITECTURE.md).

A broker writes while we read, so bytes of the last record may come in any order. Held against the
rule as it is stated, on files that the test writes byte by byte. No test waits: the seal time and
the grace time are set to nothing or to for ever.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from reput.store.log import logtail, record
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange, records
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from tests.support import wire

FILE_SIZE = 4096
NEVER = 1e9


class LiveLog:
    """Files of a running broker: full length from creation, one more ready after the last."""

    def __init__(self, directory: Path, plain: wire.PlainLog) -> None:
        self.plain = plain
        self.directory = plain.write(directory)
        self._extend()
        self.log = CommitLog([directory])
        self.tail = LogTail(self.log)

    def _extend(self) -> None:
        missing = self.plain.start + len(self.plain.image)
        for start in (missing, missing + FILE_SIZE):
            path = self.directory / wire.file_name(start)
            if not path.exists():
                with path.open("wb") as file:
                    file.truncate(FILE_SIZE)

    def store(self, offset: int, data: bytes) -> None:
        """Put bytes into the files, as a broker's mapping does."""
        start = offset - (offset - self.plain.start) % FILE_SIZE
        with (self.directory / wire.file_name(start)).open("r+b") as file:
            os.pwrite(file.fileno(), data, offset - start)

    def append(self, **fields: object) -> tuple[int, bytes]:
        """The next record, not stored yet: its offset and bytes. A roll's BLANK is stored."""
        end = self.plain.end
        offset = self.plain.append(**fields)
        if offset != end:
            self.store(end, self.plain.bytes_at((end, end + 8)))
            self._extend()
        return offset, self.plain.bytes_at(self.plain.spans[-1])

    def seal_after(self, seconds: float) -> None:
        self.tail.SEAL_SECONDS = seconds


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveLog]:
    """Three records stored and sealed."""
    plain = wire.PlainLog(FILE_SIZE)
    for _ in range(3):
        plain.append()
    made = LiveLog(tmp_path / "commitlog", plain)
    assert made.tail.settled() == plain.end
    yield made
    made.log.close()


def test_a_record_is_not_sealed_while_bytes_of_it_are_missing(live: LiveLog, seed: int) -> None:
    """Stored byte by byte in random order: no look passes it before its body and lengths are in.

    Not covered: its properties and header fields, which have no checksum; two equal looks and a
    right body are all that the rule asks.
    """
    rng = random.Random(seed)
    for case in range(12):
        sealed = live.plain.end
        body = rng.randbytes(40)
        offset, data = live.append(body=body, properties=b"TAGS\x01TagA\x02", topic=b"Live")
        live.seal_after(0)
        present = bytearray(len(data))
        order = [at for at in range(len(data)) if data[at]]
        rng.shuffle(order)
        for at in order:
            live.store(offset + at, data[at : at + 1])
            present[at] = data[at]
            found = record.decode(bytes(present), offset, 1 << 40, verify_crc=True)
            whole = isinstance(found, Record) and found.body == body
            ends = (live.tail.poll(), live.tail.poll())
            assert ends[0] == sealed, f"seed={seed} case={case} at={at}"
            assert ends[1] in ({sealed, live.plain.end} if whole else {sealed})
        live.tail.poll()
        assert live.tail.poll() == live.plain.end


def test_a_delayed_record_is_not_sealed_while_its_level_is_missing(live: LiveLog) -> None:
    """DELAY that is no number yet looks like a record that can never be dispatched."""
    sealed = live.plain.end
    offset, data = live.append(topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x013\x02")
    level_at = data.index(b"\x013\x02") + 1
    live.seal_after(NEVER)
    live.store(offset, data[:level_at] + b"\0" + data[level_at + 1 :])
    assert [live.tail.poll(), live.tail.poll()] == [sealed, sealed]
    live.store(offset + level_at, b"3")
    live.seal_after(0)
    live.tail.poll()
    assert live.tail.poll() == live.plain.end
    found = list(records(live.log, offset, live.plain.end))
    assert [one for one in found if isinstance(one, BadRange)] == []


@pytest.mark.parametrize("where", [b"Topic", b"TagAB"])
def test_a_record_with_a_hole_in_its_texts_waits_for_a_second(
    live: LiveLog, monkeypatch: pytest.MonkeyPatch, where: bytes
) -> None:
    """A writer that stores pieces in any order may be interrupted for longer than the usual seal
    time, and what it stores later is what is dispatched."""
    clock = SimpleNamespace(now=time.monotonic())
    monkeypatch.setattr(logtail, "time", SimpleNamespace(monotonic=lambda: clock.now))
    sealed = live.plain.end
    offset, data = live.append(topic=b"Topic", properties=b"TAGS\x01TagAB\x02")
    at = data.index(where) + 1
    live.store(offset, data[:at] + bytes(2) + data[at + 2 :])
    for _ in range(4):
        assert live.tail.poll() == sealed
        clock.now += 0.2
    live.store(offset, data)
    live.tail.poll()
    clock.now += LogTail.SEAL_SECONDS
    assert live.tail.poll() == live.plain.end


def test_a_record_whose_texts_have_zeros_is_sealed_in_the_end(
    live: LiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Properties are bytes of a client; one look at a log that does not grow waits for it too."""
    clock, slept = SimpleNamespace(now=time.monotonic()), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds

    virtual = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(logtail, "time", virtual)
    for properties in (b"KEYS\x01plain\x02", b"KEYS\x01a\0b\x02"):
        slept.clear()
        live.store(*live.append(properties=properties))
        assert live.tail.settled() == live.plain.end
    assert slept == [LogTail.SEAL_SECONDS, LogTail.ZEROS_SECONDS]
    live.store(*live.append(properties=b"KEYS\x01plain\x02"))
    assert live.tail.settled() == live.plain.end
    assert slept[2:] == [LogTail.SEAL_SECONDS]


def test_one_look_waits_for_just_the_time_that_it_needs(
    live: LiveLog, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The log's end includes its last record, whatever a clock shows that stands still but for the
    waits, so that a difference of two of its times may be rounded down."""
    clock, rng = SimpleNamespace(now=0.0), random.Random(seed)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    virtual = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(logtail, "time", virtual)
    for properties in (b"KEYS\x01plain\x02", b"KEYS\x01a\0b\x02"):
        live.store(*live.append(properties=properties))
        for _ in range(100):
            clock.now = rng.uniform(0.0, 1e6)
            assert LogTail(live.log).settled() == live.plain.end


def test_an_undispatchable_record_is_sealed_by_its_successor(live: LiveLog) -> None:
    """It stays in the log for good; the scan lists it, and the tail must not wait at it."""
    live.seal_after(NEVER)
    live.store(*live.append(topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01x\x02"))
    offset, data = live.append()
    live.store(offset, data)
    assert live.tail.poll() == offset


def test_a_successor_seals(live: LiveLog) -> None:
    """However long the clock says: everything before the last record is sealed at once."""
    live.seal_after(NEVER)
    for _ in range(5):
        offset, data = live.append()
        live.store(offset, data)
        assert live.tail.poll() == offset
        assert live.tail.poll() == offset


def test_a_blank_seals_and_leads_to_the_next_file(live: LiveLog) -> None:
    """The broker rolled: all of the file is sealed, the next record is waited for in the next."""
    live.seal_after(NEVER)
    live.store(*live.append())
    end = live.plain.end
    assert live.tail.poll() < end
    live.store(end, struct.pack(">iI", FILE_SIZE - end, wire.BLANK_MAGIC))
    assert live.tail.poll() == FILE_SIZE
    assert live.tail.poll() == FILE_SIZE
    live.plain.end = FILE_SIZE
    live.plain.put(FILE_SIZE, b"")
    offset, data = live.append()
    assert offset == FILE_SIZE
    live.store(offset, data)
    assert live.tail.poll() == FILE_SIZE
    live.seal_after(0)
    assert live.tail.poll() == live.plain.end


def test_the_last_record_is_sealed_by_two_equal_looks(live: LiveLog) -> None:
    """A right body CRC, seen twice with the seal time between; a change starts over."""
    live.seal_after(0)
    offset, data = live.append(properties=b"TAGS\x01TagA\x02")
    live.store(offset, data)
    assert live.tail.poll() == offset
    live.store(offset + len(data) - 2, b"B")
    assert live.tail.poll() == offset
    live.seal_after(NEVER)
    assert live.tail.poll() == offset
    live.seal_after(0)
    assert live.tail.poll() == live.plain.end
    assert live.tail.poll() == live.plain.end


@pytest.mark.parametrize("timestamp", [-1, 1 << 62, (1 << 63) - 1])
def test_no_store_timestamp_stops_a_walk(live: LiveLog, timestamp: int) -> None:
    """It has no CRC: a damaged one is still a number, which RocketMQ would take as well."""
    live.seal_after(0)
    live.store(*live.append())
    live.store(*live.append(store_timestamp=timestamp))
    live.store(*live.append())
    live.tail.poll()
    assert live.tail.poll() == live.plain.end


def test_a_wrong_body_crc_is_never_sealed_by_looks(live: LiveLog) -> None:
    """Only a successor makes it part of the log; reput dispatches it then, as RocketMQ does."""
    live.seal_after(0)
    offset, data = live.append(body=b"body")
    live.store(offset, data[:88] + b"B" + data[89:])
    assert {live.tail.poll() for _ in range(4)} == {offset}
    live.store(*live.append())
    assert live.tail.poll() == offset + len(data)


PROPERTIES = b"UNIQ_KEY\x01A1B2C3\x02TAGS\x01TagA\x02"


def torn_ends(
    tmp_path: Path, cuts: range, properties: bytes = PROPERTIES
) -> Iterator[tuple[int, int]]:
    """The last three records cut at bytes ``cuts`` of each: (start of the torn one, sealed end)."""
    plain = wire.PlainLog(FILE_SIZE)
    for index in range(5):
        plain.append(body=b"\x81" * (3 * index + 1), properties=properties, topic=b"Torn")
    live = LiveLog(tmp_path / "commitlog", plain)
    first = plain.spans[-3][0]
    whole = plain.bytes_at((first, plain.end))
    for start, end in plain.spans[-3:]:
        for cut in range(end - start)[cuts.start : cuts.stop]:
            kept = start - first + cut
            live.store(first, whole[:kept] + bytes(len(whole) - kept))
            yield start, LogTail(live.log).settled()
    live.store(first, whole)
    assert LogTail(live.log).settled() == plain.end
    live.log.close()


def test_a_torn_tail_is_waited_for_at_every_byte(tmp_path: Path) -> None:
    """The last three records cut anywhere before their properties: the sealed end is before."""
    ends = list(torn_ends(tmp_path, range(0, -len(PROPERTIES))))
    assert len(ends) > 250
    assert [sealed for _, sealed in ends] == [start for start, _ in ends]


def test_a_tail_torn_in_its_properties_is_waited_for(tmp_path: Path) -> None:
    """Properties have no checksum, but text with zeros at its end is not all there.

    A broker's copy can stall for long at the page fault in the middle of a record.
    """
    ends = list(torn_ends(tmp_path, range(-len(PROPERTIES), 1 << 30)))
    assert len(ends) == 3 * len(PROPERTIES)
    assert [sealed for _, sealed in ends] == [start for start, _ in ends]


def test_a_tail_torn_in_its_topic_is_waited_for(tmp_path: Path) -> None:
    """Without properties the lengths add up as soon as the topic's length is there."""
    ends = list(torn_ends(tmp_path, range(-len(b"Torn") - 2, -2), properties=b""))
    assert len(ends) == 3 * len(b"Torn")
    assert [sealed for _, sealed in ends] == [start for start, _ in ends]


def test_a_torn_tail_that_is_completed_goes_on(live: LiveLog, seed: int) -> None:
    """A live reader met half a record; when the rest comes, it and all that follow are sealed."""
    rng = random.Random(seed)
    live.seal_after(0)
    for _ in range(40):
        sealed = live.plain.end
        body = rng.randbytes(rng.randrange(1, 300))
        offset, data = live.append(body=body, properties=PROPERTIES)
        live.store(offset, data[: rng.randrange(1, len(data) - len(PROPERTIES))])
        assert {live.tail.poll(), live.tail.poll()} <= {sealed, offset}
        live.store(offset, data)
        live.tail.poll()
        assert live.tail.poll() == live.plain.end
    assert live.plain.end > 2 * FILE_SIZE


def damage_middle(live: LiveLog, count: int) -> tuple[int, int]:
    """Four more records, the second one's first bytes zeroed; its span."""
    for _ in range(4):
        live.store(*live.append(body=b"b" * 30))
    span = live.plain.spans[-3]
    live.store(span[0], bytes(count))
    return span


@pytest.mark.parametrize("count", [4, 8, 60, 150])
def test_damage_in_the_middle_is_waited_at_and_then_passed(live: LiveLog, count: int) -> None:
    """A broker may still be writing there: the grace time passes first, unless nobody writes."""
    span = damage_middle(live, count)
    live.seal_after(0)
    live.tail.poll()  # the record before the damage is the last that is whole
    assert {live.tail.poll() for _ in range(3)} == {span[0]}
    live.tail.DAMAGE_GRACE_SECONDS = 0
    live.tail.poll()
    assert live.tail.poll() == live.plain.end
    assert LogTail(live.log).settled() == live.plain.end


def test_damage_after_damage_is_waited_at_no_longer(live: LiveLog) -> None:
    """The time between two searches at one place does not hold up another place."""
    live.seal_after(0)
    live.tail.HOLE_CHECK_SECONDS = NEVER
    live.tail.DAMAGE_GRACE_SECONDS = 0
    for _ in range(2):
        damage_middle(live, 60)
        live.tail.poll()
        assert live.tail.poll() == live.plain.end


@pytest.mark.parametrize("hole", [(0, 1), (1, 3), (0, 3)])
def test_zeros_in_the_middle_are_passed_and_listed(live: LiveLog, hole: tuple[int, int]) -> None:
    """Whole records zeroed, the log's very first included."""
    for _ in range(4):
        live.store(*live.append())
    start, end = live.plain.spans[hole[0]][0], live.plain.spans[hole[1]][0]
    live.store(start, bytes(end - start))
    assert LogTail(live.log).settled() == live.plain.end
    found = list(records(live.log, 0, live.plain.end))
    bad = [(one.start, one.end) for one in found if isinstance(one, BadRange)]
    assert bad == [(start, end)]


def test_zeros_at_the_start_of_the_last_file_are_passed(tmp_path: Path) -> None:
    """The file begins like a pre-allocated one, yet it holds sound records."""
    plain = wire.PlainLog(FILE_SIZE)
    while plain.end < FILE_SIZE + 800:
        plain.append()
    live = LiveLog(tmp_path / "commitlog", plain)
    first = next(span for span in plain.spans if span[0] == FILE_SIZE)
    live.store(first[0], bytes(first[1] - first[0]))
    assert LogTail(live.log).settled() == plain.end
    live.log.close()


@pytest.mark.parametrize("byte", [b"\0", b"x"])
def test_damage_over_the_border_of_the_last_files_is_passed(tmp_path: Path, byte: bytes) -> None:
    """One file has lost its last records and its BLANK, the last one its first records."""
    plain = wire.PlainLog(FILE_SIZE)
    while plain.end < FILE_SIZE + 800:
        plain.append()
    spans = plain.spans
    border = next(index for index, span in enumerate(spans) if span[0] == FILE_SIZE)
    lost, found = spans[border - 2][0], spans[border + 2][0]
    plain.put(lost, byte * (found - lost))
    log = CommitLog([plain.write(tmp_path / "commitlog")])
    assert LogTail(log).settled() == plain.end
    bad = [one for one in records(log, 0, plain.end) if isinstance(one, BadRange)]
    assert [(one.start, one.end) for one in bad] == [(lost, FILE_SIZE), (FILE_SIZE, found)]
    log.close()


def test_an_idle_tail_sees_what_comes_next(live: LiveLog) -> None:
    """The cheap look at an idle end finds the first byte of the next record, whoever asks."""
    live.seal_after(0)
    for start in (0, live.plain.end, live.plain.spans[1][0]):
        assert live.tail.poll(start) == live.plain.end
        assert live.tail.is_idle
    offset, data = live.append()
    for stored in (data[:60], data):
        live.store(offset, stored)
        assert live.tail.poll() == offset
        assert not live.tail.is_idle
    assert live.tail.poll() == live.plain.end
    assert live.tail.is_idle


def test_an_idle_tail_looks_beyond_a_hole_once_a_minute(
    live: LiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros may be all that a power cut has left of a record before later ones."""
    clock, tail, ends = SimpleNamespace(now=0.0), LogTail(live.log), [live.plain.end]
    monkeypatch.setattr(logtail, "time", SimpleNamespace(monotonic=lambda: clock.now))
    for seconds in (0, LogTail.DAMAGE_GRACE_SECONDS, LogTail.HOLE_CHECK_SECONDS - 1, 1, 1):
        clock.now += seconds
        ends.append(tail.poll())
        if seconds == LogTail.DAMAGE_GRACE_SECONDS:
            live.append()
            live.store(*live.append())
    assert ends[2:] == [ends[0], ends[0], live.plain.spans[-1][0], live.plain.end]


def test_one_look_passes_damage_that_was_looked_at_in_vain(live: LiveLog) -> None:
    """However long a reader that follows the log would wait until it looks there again."""
    live.tail.HOLE_CHECK_SECONDS = NEVER
    live.tail.DAMAGE_GRACE_SECONDS = 0
    offset, data = live.append()
    live.store(offset, b"\xff" * len(data))
    assert live.tail.poll() == offset
    live.store(*live.append())
    assert live.tail.settled(patient=True) == offset
    assert live.tail.settled() == live.plain.end


def test_a_log_that_lost_its_last_files_ends_before_them(live: LiveLog) -> None:
    """Nothing is sealed beyond it, wherever a reader was, or says that it was."""
    assert live.tail.poll(5 * FILE_SIZE) == live.plain.end
    while live.plain.end < FILE_SIZE + 500:
        live.store(*live.append())
    assert live.tail.settled() == live.plain.end
    for path in sorted(live.directory.iterdir())[1:]:
        path.unlink()
    for start in (0, live.plain.end):
        assert live.tail.poll(start) == FILE_SIZE
        assert LogTail(live.log).settled(start) == FILE_SIZE


def test_a_known_start_is_taken_and_nothing_after_it_missed(live: LiveLog) -> None:
    """A fresh tail told of a record start gives the same end as one that walks from the left."""
    for _ in range(6):
        live.store(*live.append())
    ends = set()
    for start, _ in live.plain.spans:
        tail = LogTail(live.log)
        tail.SEAL_SECONDS = 0
        tail.poll(start)
        ends.add(tail.poll(start))
    assert ends == {live.plain.end}


def test_a_log_that_begins_empty_is_followed(tmp_path: Path) -> None:
    """No file, then a first file, then records over several files."""
    directory = tmp_path / "commitlog"
    directory.mkdir()
    empty = CommitLog([directory])
    assert LogTail(empty).settled() == 0
    live = LiveLog(directory, wire.PlainLog(FILE_SIZE))
    tail = LogTail(empty)
    tail.SEAL_SECONDS = 0
    assert tail.poll() == 0
    end = 0
    for _ in range(100):
        live.plain.append(body=bytes(100))
        live.plain.write(directory)
        tail.poll()
        now = tail.poll()
        assert now == live.plain.end
        assert now > end
        end = now
    assert len(live.plain.image) > 3 * FILE_SIZE
    empty.close()
    live.log.close()
