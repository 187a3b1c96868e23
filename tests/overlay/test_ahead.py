"""Deliveries that are made ahead: which ones, how many, and for how long they are kept."""

from __future__ import annotations

import pytest

from reput.overlay.delivery import ahead
from reput.overlay.delivery.ahead import AHEAD_MS, AT_ONCE, MOST_BYTES, PAUSE_MS, DeliveriesAhead
from reput.overlay.delivery.waiting import WaitingRecords
from reput.overlay.records.sources import Source
from reput.store.log.properties import parse
from reput.store.log.record import Record

NOW = 1_700_000_000_000


def timers(waiting: WaitingRecords, count: int, due: int, first: int = 0) -> None:
    """Let timer messages wait that are due at one time."""
    for number in range(first, first + count):
        text = b"UNIQ_KEY\x01K%d\x02TIMER_OUT_MS\x01%d\x02" % (number, due - 1000)
        waiting.note(
            Record(
                topic=b"rmq_sys_wheel_timer", physical_offset=100 * number, properties=text,
                property_map=parse(text),
            )
        )  # fmt: skip


def recall(waiting: WaitingRecords, number: int, due: int) -> None:
    """Have its producer take one back."""
    text = b"TIMER_DEL_UNIQKEY\x01K%d\x02TIMER_OUT_MS\x01%d\x02" % (number, due - 1000)
    waiting.note(
        Record(
            topic=b"rmq_sys_wheel_timer", physical_offset=1 << 40, properties=text,
            property_map=parse(text),
        )
    )  # fmt: skip


def place(number: int) -> Source:
    return Source(is_base=False, physical_offset=100 * number)


def test_only_what_is_due_soon_is_made() -> None:
    waiting, made = WaitingRecords((1000,)), DeliveriesAhead()
    timers(waiting, 1, NOW + AHEAD_MS)
    timers(waiting, 1, NOW + AHEAD_MS + 1, first=1)
    assert made.missing(waiting, NOW) == [place(0)]
    made.put(place(0), Record(topic=b"T"))
    assert made.missing(waiting, NOW) == []
    assert made.missing(waiting, NOW + PAUSE_MS - 1) == []
    assert made.missing(waiting, NOW + PAUSE_MS) == [place(1)]


def test_a_clock_that_goes_back_ends_the_pause() -> None:
    waiting, made = WaitingRecords((1000,)), DeliveriesAhead()
    assert made.missing(waiting, NOW) == []
    timers(waiting, 1, NOW - 5000)
    assert made.missing(waiting, NOW - 5000) == [place(0)]


def test_each_is_taken_once() -> None:
    made = DeliveriesAhead()
    made.put(place(0), Record(topic=b"T"))
    made.put(place(1), None)
    assert made.take(place(0)) == Record(topic=b"T")
    assert made.take(place(0)) is None
    assert made.take(place(1)) is None


def test_no_more_are_made_than_fit() -> None:
    """A hundred in one go; none once their bodies are too many bytes, until one is taken."""
    waiting, made = WaitingRecords((1000,)), DeliveriesAhead()
    timers(waiting, AT_ONCE + 2, NOW)
    first = made.missing(waiting, NOW)
    assert len(first) == AT_ONCE
    made.put(first[0], Record(topic=b"T", body=bytes(MOST_BYTES - 1)))
    assert made.missing(waiting, NOW)
    made.put(first[1], Record(topic=b"T", body=b"x"))
    assert made.missing(waiting, NOW) == []
    made.take(first[1])
    assert made.missing(waiting, NOW)


@pytest.mark.extended
def test_no_more_records_are_made_than_fit() -> None:
    waiting, made = WaitingRecords((1000,)), DeliveriesAhead()
    timers(waiting, ahead.MOST_RECORDS + 1, NOW)
    while missing := made.missing(waiting, NOW):
        for one in missing:
            made.put(one, Record(topic=b"T"))
    kept = sum(made.take(place(number)) is not None for number in range(ahead.MOST_RECORDS + 1))
    assert kept == ahead.MOST_RECORDS


def test_what_was_recalled_is_forgotten() -> None:
    """Once nothing else is due soon; it counts no more, however large it was."""
    waiting, made = WaitingRecords((1000,)), DeliveriesAhead()
    timers(waiting, 1, NOW)
    (one,) = made.missing(waiting, NOW)
    made.put(one, Record(topic=b"T", body=bytes(MOST_BYTES)))
    recall(waiting, 0, NOW)
    assert made.missing(waiting, NOW) == []
    assert made.take(one) is None
    later = NOW + PAUSE_MS
    timers(waiting, 1, later, first=1)
    assert made.missing(waiting, later) == [place(1)]
