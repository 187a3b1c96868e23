"""The handover of an overlay to a base's broker, which would go on from it."""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import compress
from pathlib import Path

import pytest

from reput.overlay.base.debts import find_debts, read_delay_offsets, read_timer_checkpoint
from reput.overlay.base.handover import Done, Handover, hand_over
from reput.overlay.checks import End
from reput.overlay.overlay import Overlay, overlay_root
from reput.store import configjson
from reput.store.config import read_store_settings
from reput.store.errors import OwnershipError, UsageError
from reput.store.log.appender import LogAppender
from reput.store.log.record import SCHEDULE_TOPIC, Record
from tests.overlay.test_debts import plain_lock
from tests.support.delivering import HALF_TOPIC, STORES
from tests.support.golden import log_records, tree, unpack_golden
from tests.support.processes import holder

LATER = 1 << 42
WAIT_SECONDS = 60.0
HALVES = "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A stopped broker's store that owes a message of level 18 and one of the wheel, and has two
    open transactions, whose halves to be asked about are at the queue offsets 19 and 20."""
    root = unpack_golden("g533", tmp_path)
    (root / "broker.conf").write_text("mappedFileSizeConsumeQueue=20000\nbrokerName=b\n")
    return root


def last_time(base: Path) -> int:
    """A time at which nothing is due."""
    return max(record.store_timestamp for record in log_records(base))


def serve(base: Path, now: int, *ends: tuple[int, bool]) -> None:
    """Open the overlay until all that is due is delivered, and end transactions."""
    settings = read_store_settings(base)
    with Overlay(settings, base, STORES["g533"], now_ms=lambda: now) as overlay:
        for queue_offset, is_commit in ends:
            (place,) = (
                p for p in overlay.transactions.open_places if p.queue_offset == queue_offset
            )
            overlay.transactions.end(End(b"tpg", place, is_commit)).result(WAIT_SECONDS)  # type: ignore[union-attr]
        with overlay._lock:
            assert overlay._lock.wait_for(lambda: not overlay._waiting.due(now), WAIT_SECONDS)


def handed(base: Path) -> tuple[Handover, Path]:
    """Hand over; the base stays as it is."""
    directory = base.parent / "handover"
    before = tree(base)
    found = hand_over(read_store_settings(base), base, overlay_root(base), directory)
    assert tree(base) == before
    for name, data in found.files.items():
        assert (directory / name).read_bytes() == data
    assert json.loads((directory / "delivered.json").read_text()) == [
        {field: getattr(one, field) for field in Done.__slots__} for one in found.done
    ]
    return found, directory


def half_offset(root: Path) -> int:
    document = configjson.read(root / "config/consumerOffset.json")
    return int(document["offsetTable"][HALVES]["0"])  # type: ignore[index]


def outcomes(found: Handover) -> list[tuple[str, str, bool]]:
    return [(one.kind, one.outcome, one.is_repeated) for one in found.done]


def test_all_is_done(base: Path) -> None:
    serve(base, LATER, (19, True), (20, False))
    found, directory = handed(base)
    assert outcomes(found) == [
        ("level", "delivered", False), ("timer", "delivered", False),
        ("transaction", "committed", False), ("transaction", "rolled back", False),
    ]  # fmt: skip
    before = read_delay_offsets(base)
    after = read_delay_offsets(directory)
    assert after == before | {18: before[18] + 1}
    noted, moved = read_timer_checkpoint(base), read_timer_checkpoint(directory)
    assert noted is not None and moved is not None
    assert moved.next_time > noted.next_time
    assert moved.enqueued == noted.enqueued
    name = "config/timercheck"
    assert (directory / name).read_bytes()[8:] == (base / name).read_bytes()[8:]
    assert (half_offset(base), half_offset(directory)) == (19, 21)
    committed = configjson.read(base / "config/consumerOffset.json")["offsetTable"]  # type: ignore[index,call-overload]
    others = configjson.read(directory / "config/consumerOffset.json")["offsetTable"]  # type: ignore[index,call-overload]
    assert {**others, HALVES: None} == {**committed, HALVES: None}
    text = (directory / "README.txt").read_text()
    assert "repeats none of them" in text
    assert all(f"Copy {name} to {base / name}." in text for name in found.files)


def test_what_is_not_done_is_left_to_the_broker(base: Path) -> None:
    """A broker has one position for all halves: the end of the second alone is not noted."""
    serve(base, last_time(base), (20, True))
    found, directory = handed(base)
    assert outcomes(found) == [("transaction", "committed", True)]
    assert read_delay_offsets(directory) == read_delay_offsets(base)
    assert set(found.files) == {"config/delayOffset.json"}
    text = (directory / "README.txt").read_text()
    assert "repeats 1 of them nevertheless" in text


def test_the_first_of_the_halves_is_done(base: Path) -> None:
    serve(base, last_time(base), (19, False))
    found, directory = handed(base)
    assert outcomes(found) == [("transaction", "rolled back", False)]
    assert half_offset(directory) == 20


def test_a_message_that_the_wheel_had_not_taken_up(base: Path) -> None:
    """Every start of the broker takes it up, and finds that it is due."""
    path = base / "config/timercheck"
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 16, 0)
    path.write_bytes(data)
    serve(base, LATER)
    found, _ = handed(base)
    assert ("timer", "delivered", True) in outcomes(found)
    assert "config/timercheck" not in found.files


def out_ms(record: Record) -> int:
    return int(record.property_map[b"TIMER_OUT_MS"])


def waiting_in(base: Path) -> tuple[list[Record], list[Record]]:
    """The base owes two messages more of its level and of its wheel each, which has taken all of
    them up: one in the second of that which is there. Return all that waits in each."""
    path, settings = base / "config/timercheck", read_store_settings(base)
    head = bytearray(path.read_bytes())
    struct.pack_into(">q", head, 16, 1 << 30)
    path.write_bytes(head)

    def owed() -> list[Record]:
        places = find_debts(settings, base).places
        return [one for one in log_records(base) if one.physical_offset in places]

    level, timer = owed()
    out, key = timer.property_map[b"TIMER_OUT_MS"], timer.property_map[b"UNIQ_KEY"]
    with LogAppender(base) as appender:
        for number in range(2):
            later = b"%d" % (int(out) + 1000 * number)
            text = timer.properties.replace(out, later).replace(key, key[:-1] + b"%d" % number)
            for made in (level, replace(timer, properties=text)):
                appender.append(made)
    both = [[one for one in owed() if one.topic == kind.topic] for kind in (level, timer)]
    assert [len(kind) for kind in both] == [3, 3]
    return both[0], both[1]


def deliver(base: Path, delivered: list[Record]) -> None:
    """Write an overlay that has delivered these alone."""
    shutil.rmtree(overlay_root(base), ignore_errors=True)
    with LogAppender(overlay_root(base), file_size=1 << 16) as appender:
        for one in delivered:
            source = -(one.physical_offset + 1)
            appender.append(replace(one, topic=b"T", prepared_transaction_offset=source))


def test_the_last_of_three_halves_is_done(base: Path) -> None:
    """The broker goes over them from the first of the two that are left on, as it did before."""
    (half,) = (
        one for one in log_records(base) if one.topic == HALF_TOPIC and one.queue_offset == 20
    )
    key = half.property_map[b"UNIQ_KEY"]
    text = half.properties.replace(key, key[:-1] + bytes([key[-1] ^ 1]))
    with LogAppender(base) as appender:
        last = appender.append(replace(half, properties=text))
    assert last.queue_offset == 21
    deliver(base, [last])
    found, _ = handed(base)
    assert outcomes(found) == [("transaction", "committed", True)]
    assert "config/consumerOffset.json" not in found.files


def test_any_part_of_what_waited_is_delivered(base: Path) -> None:
    """A broker goes on at the first message of a level that is left, and in the first second of the
    wheel of which one is left: from there on it repeats what is delivered, and nothing before."""
    levels, timers = waiting_in(base)
    noted = read_timer_checkpoint(base)
    assert noted is not None
    for which in ((1, 0, 0), (1, 1, 0), (0, 0, 1), (1, 1, 1)):
        delivered = [*compress(levels, which), *compress(timers, which)]
        deliver(base, delivered)
        found, directory = handed(base)
        left = [one for one in levels if one not in delivered]
        next_offset = left[0].queue_offset if left else levels[-1].queue_offset + 1
        assert read_delay_offsets(directory)[18] == next_offset
        next_time = min((out_ms(one) for one in timers if one not in delivered), default=LATER)
        expected = {one.physical_offset: one.queue_offset >= next_offset for one in levels}
        expected |= {one.physical_offset: out_ms(one) >= next_time for one in timers}
        assert {one.physical_offset: one.is_repeated for one in found.done} == {
            one.physical_offset: expected[one.physical_offset] for one in delivered
        }
        moved = read_timer_checkpoint(directory) or noted
        passed = [out_ms(one) for one in delivered if one in timers and out_ms(one) < next_time]
        assert max(passed, default=0) < moved.next_time <= next_time
        shutil.rmtree(directory)


def test_the_wheel_does_not_go_back(base: Path) -> None:
    """It had passed the second of a message that it has not delivered, as after a power cut."""
    path = base / "config/timercheck"
    places = find_debts(read_store_settings(base), base).places
    (timer,) = (
        one for one in log_records(base) if one.physical_offset in places and one.body[:1] == b"t"
    )
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 0, out_ms(timer) + 10_000)
    path.write_bytes(data)
    serve(base, LATER)
    found, directory = handed(base)
    assert ("timer", "delivered", False) in outcomes(found)
    moved = read_timer_checkpoint(directory)
    assert moved is not None
    assert moved.next_time == out_ms(timer) + 10_000


def test_a_broker_that_keeps_its_offsets_in_rocksdb(base: Path) -> None:
    (base / "config/rdb").mkdir()
    serve(base, last_time(base), (19, True), (20, True))
    found, _ = handed(base)
    assert outcomes(found) == [("transaction", "committed", True)] * 2
    assert "config/consumerOffset.json" not in found.files


def test_notes_that_are_gone(base: Path) -> None:
    """The log and the overlay say enough."""
    for name in ("delayOffset.json", "delayOffset.json.bak", "timercheck"):
        (base / "config" / name).unlink(missing_ok=True)
    waits = [r.queue_id + 1 for r in log_records(base) if r.topic == SCHEDULE_TOPIC]
    serve(base, LATER)
    found, directory = handed(base)
    assert read_delay_offsets(directory) == Counter(waits)
    assert outcomes(found) == [("level", "delivered", False), ("timer", "delivered", True)]


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("lock", "has begun by its own notes: stop it first$"),
        ("overlay/lock", "stop that `reput serve --overlay` first$"),
    ],
)
def test_whoever_runs_is_in_the_way(base: Path, place: str, line: str) -> None:
    serve(base, last_time(base))
    path = base / place
    path.touch()
    with holder(lambda: plain_lock(path)), pytest.raises(OwnershipError, match=line):
        handed(base)
    handed(base)


def test_directories_that_do_not_fit(base: Path) -> None:
    settings = read_store_settings(base)

    def hand(directory: Path) -> Callable[[], object]:
        return lambda: hand_over(settings, base, overlay_root(base), directory)

    with pytest.raises(UsageError, match="has no overlay"):
        hand(base.parent / "new")()
    serve(base, last_time(base))
    with pytest.raises(UsageError, match="is not empty"):
        hand(base)()
    with pytest.raises(UsageError, match="holds the data of a store"):
        hand(base / "config/new")()
