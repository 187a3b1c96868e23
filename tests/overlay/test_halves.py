"""Transactions of a base at rest that have no end: by the golden stores' own records, cut after
each that counts, with the offset that their brokers noted as it was, late, early, torn or gone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import pytest

from reput.overlay.base.halves import OpenTransaction, find_halves
from reput.store.config import read_store_settings
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from tests.support.delivering import (
    HALF_TOPIC,
    IN_TURN,
    STORES,
    UNIT,
    cut,
    lose_queue_ends,
    named_by,
)
from tests.support.golden import log_records, unpack_golden

OP_TOPIC, DISCARDED_TOPIC = b"RMQ_SYS_TRANS_OP_HALF_TOPIC", b"TRANS_CHECK_MAX_TIME_TOPIC"
OFFSETS = ("consumerOffset.json", "consumerOffset.json.bak")
OPEN = {"g497": [(17,), (18,)], "g533": [(17, 19), (18, 20)], "g551": []}
"""The queue offsets of what was open when the brokers stopped."""
ENTRY = "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"


@pytest.fixture(params=STORES)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Every golden store with what brokers wrote."""
    root = unpack_golden(request.param, tmp_path)
    (root / "broker.conf").write_text("mappedFileSizeConsumeQueue=20000\n")
    return root


def found(root: Path) -> tuple[OpenTransaction, ...]:
    return find_halves(read_store_settings(root), root).open


def offsets(root: Path) -> list[tuple[int, ...]]:
    return [tuple(place.queue_offset for place in one.places) for one in found(root)]


def note(root: Path, done: int | None) -> None:
    """Write what the broker noted of halves that are done."""
    for name in OFFSETS:
        (root / "config" / name).unlink(missing_ok=True)
    if done is not None:
        text = json.dumps({"offsetTable": {ENTRY: {"0": done}}})
        (root / "config" / OFFSETS[0]).write_text(text)


def test_what_a_stopped_broker_left_open(base: Path) -> None:
    halves = find_halves(read_store_settings(base), base)
    assert offsets(base) == OPEN[base.name]
    assert {(one.group, one.topic) for one in halves.open} <= {(b"tpg", b"Tx")}
    assert halves.queue_end == sum(record.topic == HALF_TOPIC for record in log_records(base))
    assert not halves.are_in_rocksdb


@pytest.mark.parametrize("length", [None, 0, 1, 30])
def test_torn_and_missing_notes(base: Path, length: int | None) -> None:
    for name in OFFSETS:
        path = base / "config" / name
        data = path.read_bytes()
        path.unlink()
        if length is not None:
            path.write_bytes(data[:length])
    assert offsets(base) == OPEN[base.name]


def message_of(record: Record) -> bytes:
    """In these stores a body names a message."""
    return record.body


def open_at(records: list[Record], end: int) -> list[tuple[int, ...]]:
    """Find what is open by the records before ``end``, from what they say alone."""
    before = [record for record in records if record.physical_offset < end]
    named = {n for record in before if record.topic == OP_TOPIC for n in named_by(record)}
    committed = {message_of(record) for record in before if record.sys_flag & 8}
    discarded = {message_of(record) for record in before if record.topic == DISCARDED_TOPIC}
    halves: dict[bytes, list[Record]] = {}
    for record in before:
        if record.topic == HALF_TOPIC:
            halves.setdefault(message_of(record), []).append(record)
    still = [
        of_one
        for message, of_one in halves.items()
        if message not in committed | discarded
        and not named & {record.queue_offset for record in of_one}
    ]
    still.sort(key=lambda of_one: of_one[-1].physical_offset)
    return [tuple(record.queue_offset for record in of_one) for of_one in still]


@IN_TURN
def test_a_crash_after_each_record_of_a_transaction(base: Path, first: int) -> None:
    """The broker's note is missing, late, right, or newer than the log's end: each of these in
    turn, and in the slow cases each after each record."""
    records = log_records(base)
    counts = set()
    turns = islice(cycle((None, 0, "now", 1 << 40)), first, None)
    for last in reversed(records):
        names = last.property_map
        if b"TRAN_MSG" not in names and last.topic != OP_TOPIC:
            continue
        end = last.physical_offset + last.total_size
        cut(base, end)
        expected = open_at(records, end)
        done = next(turns)
        noted = min((one[-1] for one in expected), default=0) if done == "now" else done
        note(base, noted if isinstance(noted, int) else None)
        assert offsets(base) == expected, last
        counts.add(len(expected))
    assert max(counts) >= 2


def test_halves_that_are_in_no_queue_yet(base: Path) -> None:
    """The queues end early, or were never built: the log has the rest."""
    lose_queue_ends(base)
    assert offsets(base) == OPEN[base.name]
    shutil.rmtree(base / "consumequeue")
    assert offsets(base) == OPEN[base.name]


def made(root: Path, *records: Record) -> tuple[OpenTransaction, ...]:
    """Write a base's log, whose queues are missing; what is open in it."""
    root.mkdir()
    with LogAppender(root) as appender:
        appender.append_all(records)
        appender.sync()
    return found(root)


def half(key: bytes, born: int = 1, more: bytes = b"") -> Record:
    text = b"TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01%s\x02REAL_TOPIC\x01T\x02" % key
    return Record(topic=HALF_TOPIC, body=b"x", properties=text + more, born_timestamp=born)


def test_a_message_that_is_sent_anew_is_another_transaction(tmp_path: Path) -> None:
    """A producer may send the object again after a rollback; then the key is the same."""
    op = Record(topic=OP_TOPIC, body=b"0,", properties=b"WAIT\x01true\x02TAGS\x01d\x02")
    (one,) = made(tmp_path / "base", half(b"k"), op, half(b"k", born=2))
    assert [place.queue_offset for place in one.places] == [1]


def test_a_half_that_an_administrator_takes_up_again_is_open(tmp_path: Path) -> None:
    """``resumeCheckHalf`` appends it once more after it was discarded."""
    discarded = replace(half(b"k"), topic=DISCARDED_TOPIC)
    (one,) = made(tmp_path / "base", half(b"k"), discarded, half(b"k"), half(b"l"), discarded)[:1]
    assert [place.queue_offset for place in one.places] == [2]
    (one,) = made(tmp_path / "other", half(b"k"), discarded, half(b"k"))
    assert [place.queue_offset for place in one.places] == [0, 1]


def test_a_late_end_of_the_first_record_ends_it(tmp_path: Path) -> None:
    """A producer that answers late names the record that it sent, although the broker has appended
    another one for a check, and has noted the first as done."""
    again = half(b"k", more=b"TRANSACTION_CHECK_TIMES\x011\x02")
    op = Record(topic=OP_TOPIC, body=b"0,", properties=b"WAIT\x01true\x02TAGS\x01d\x02")
    assert made(tmp_path / "base", half(b"k"), again, op) == ()


def test_a_commit_is_known_by_its_message(tmp_path: Path) -> None:
    """The op record comes up to 3 s later, or never; the first half of a log is at 0."""
    commit = replace(half(b"k"), topic=b"T", sys_flag=8)
    (one,) = made(tmp_path / "base", half(b"k"), half(b"l"), commit)
    assert [place.queue_offset for place in one.places] == [1]
    places = [one.last.physical_offset for one in made(tmp_path / "other", half(b"k"), half(b"l"))]
    by_place = replace(commit, properties=half(b"x").properties)
    by_place = replace(by_place, prepared_transaction_offset=places[1])
    (one,) = made(tmp_path / "third", half(b"k"), half(b"l"), by_place)
    assert [place.queue_offset for place in one.places] == [0]


def test_copies_of_committed_messages_end_nothing_else(tmp_path: Path) -> None:
    """A retry of one has its sysFlag and no place of a half; the first half of a log is at 0."""
    retry = replace(half(b"l"), topic=b"%RETRY%g", sys_flag=8)
    (one,) = made(tmp_path / "base", half(b"k"), retry)
    assert one.last.physical_offset == 0


def test_halves_in_rocksdb_are_told(tmp_path: Path) -> None:
    root = tmp_path / "base"
    made(root, half(b"k"))
    assert not find_halves(read_store_settings(root), root).are_in_rocksdb
    queue = root / "consumequeue/RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC/0"
    queue.mkdir(parents=True)
    (queue / f"{0:020}").write_bytes(UNIT.pack(0, 100, 0).ljust(6_000_000, b"\0"))
    assert find_halves(read_store_settings(root), root).are_in_rocksdb
