"""A base whose queues tell of a part of what its log had: its first files have expired, or its
broker has noted what came before as done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reput.overlay.base.debts import find_debts
from reput.overlay.base.halves import find_halves
from reput.store.config import read_store_settings
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from reput.streaming.config import DispatcherConfig
from tests.overlay.test_debts import delayed, timed, write_notes
from tests.overlay.test_halves import half, note
from tests.support.sparkless import dispatch

FILE_SIZE = 4096


def dispatched(base: Path, records: Sequence[Record], settings: str = "") -> list[Record]:
    """Write a base that is dispatched; its records as they are stored."""
    (base / "config").mkdir(parents=True)
    (base / "broker.conf").write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\n{settings}")
    with LogAppender(base) as appender:
        stored = [appender.append(record) for record in records]
        appender.sync()
    dispatch(DispatcherConfig(base, base))
    return stored


def left_of(base: Path, records: Sequence[Record]) -> list[Record]:
    """Write a base, and remove the first file of its log; what it still has."""
    stored = dispatched(base, records)
    (base / "commitlog" / f"{0:020}").unlink()
    left = [record for record in stored if record.physical_offset >= FILE_SIZE]
    assert 0 < len(left) < len(stored)
    return left


def test_notes_of_messages_that_have_expired(tmp_path: Path) -> None:
    """All that is left of the level and of the timer messages is owed, and in this order."""
    base = tmp_path / "base"
    left = left_of(base, [
        one
        for number in range(40)
        for one in (delayed(b"%d" % number, 10_000 + number),
                    timed(90_000, 10_000 + number, key=b"%d" % number))
    ])  # fmt: skip
    write_notes(base, {1: 0}, next_time=9000, enqueued=0)
    levels, timers = ([r for r in left if r.body != b"t"], [r for r in left if r.body == b"t"])
    found = find_debts(read_store_settings(base), base)
    assert found.places == tuple(record.physical_offset for record in (*levels, *timers))


def test_a_note_of_halves_that_have_expired(tmp_path: Path) -> None:
    """The transactions of all halves that are left are open."""
    base = tmp_path / "base"
    left = left_of(base, [half(b"%d" % number) for number in range(60)])
    note(base, 0)
    found = find_halves(read_store_settings(base), base)
    assert [one.last.physical_offset for one in found.open] == [r.physical_offset for r in left]


def test_halves_of_three_intervals_are_looked_at(tmp_path: Path) -> None:
    """The broker's note does not count there: a power cut may have taken what it appended for them.
    Those before are done."""
    base, last = tmp_path / "base", 10_000_000
    ages = (300_001, 300_000, 180_001, 0)
    halves = [replace(half(b"%d" % age), store_timestamp=last - age) for age in ages]
    stored = dispatched(base, halves, "transactionCheckInterval=100000\n")
    note(base, len(halves))
    found = find_halves(read_store_settings(base), base)
    expected = [record.physical_offset for record in stored[1:]]
    assert [one.last.physical_offset for one in found.open] == expected


def test_a_commit_between_the_records_of_a_half_ends_it(tmp_path: Path) -> None:
    """The broker was killed before it wrote the op record, and has noted the first record as done;
    only the log tells of the commit, from the time on at which the half was sent."""
    base, sent = tmp_path / "base", 10_000_000
    again = half(b"k", born=sent, more=b"TRANSACTION_CHECK_TIMES\x011\x02")
    commit = replace(half(b"k", born=sent), topic=b"T", sys_flag=8)
    later = sent + 1_000_000
    records = [half(b"k", born=sent), commit, again, half(b"l", born=later)]
    times = (sent, sent + 1, sent + 2, later)
    pairs = zip(records, times, strict=True)
    dispatched(base, [replace(one, store_timestamp=time) for one, time in pairs])
    note(base, 1)
    found = find_halves(read_store_settings(base), base)
    assert [[place.queue_offset for place in one.places] for one in found.open] == [[2]]
