"""Copies that clients send after the answer to their sending back was lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reput.overlay.lostanswers import KEPT_MS, LostAnswers
from reput.store.log import properties
from reput.store.log.record import SCHEDULE_TOPIC, Record

NOW = 1_700_000_000_000


def made(topic: bytes, place: int = 0, source: int = -1, **values: str) -> Record:
    """A record of group g, for its second attempt, of topic T."""
    named = {"REAL_TOPIC": "%RETRY%g", "RETRY_TOPIC": "T", "UNIQ_KEY": "K", **values}
    text = "".join(f"{name}\x01{value}\x02" for name, value in named.items()).encode()
    return Record(
        topic=topic, body=b"body", properties=text, property_map=properties.parse(text),
        physical_offset=place, prepared_transaction_offset=source, reconsume_times=2,
        store_timestamp=NOW,
    )  # fmt: skip


WAITING, DEAD = made(SCHEDULE_TOPIC), made(b"%DLQ%g")
SENT = made(SCHEDULE_TOPIC, source=0)


def find(record: Record, sent: Record, now: int = NOW) -> int | None:
    """Return the place that is found when ``record`` was written last."""
    answers = LostAnswers()
    answers.note(record, NOW)
    return answers.take(sent, now)


@pytest.mark.parametrize("record", [WAITING, DEAD], ids=["waiting", "dead"])
def test_the_same_message_is_found(record: Record) -> None:
    """Whether it would wait, be dead, or come at once; with one attempt more too."""
    at_once = made(b"%RETRY%g", source=0)
    for sent in (SENT, replace(DEAD, prepared_transaction_offset=0), at_once):
        assert find(record, sent) == 0
    assert find(record, replace(SENT, reconsume_times=3)) == 0


@pytest.mark.parametrize(
    "other",
    [
        replace(SENT, reconsume_times=4), replace(SENT, reconsume_times=1),
        replace(SENT, body=b"other"), made(SCHEDULE_TOPIC, UNIQ_KEY="other"),
        made(SCHEDULE_TOPIC, RETRY_TOPIC="other"), made(SCHEDULE_TOPIC, REAL_TOPIC="%RETRY%h"),
        made(b"%DLQ%h"), made(b"%RETRY%h", REAL_TOPIC="%RETRY%h"),
    ],
)  # fmt: skip
def test_others_are_not(other: Record) -> None:
    """Another attempt, body, key, topic or group."""
    assert find(WAITING, other) is None


def test_a_minute_is_too_long() -> None:
    """When it is looked for, and when it is noted."""
    assert find(WAITING, SENT, NOW + KEPT_MS - 1) == 0
    assert find(WAITING, SENT, NOW + KEPT_MS) is None
    answers = LostAnswers()
    answers.note(WAITING, NOW + KEPT_MS)
    assert answers.take(SENT, NOW) is None


def test_a_second_try_has_no_attempts() -> None:
    """The producer in a client has cleared them; what it tried first was sent back, or sent."""
    for record in (WAITING, DEAD, SENT, replace(DEAD, prepared_transaction_offset=0)):
        assert find(record, replace(SENT, reconsume_times=0)) == 0


def test_what_is_no_retry_is_never_found() -> None:
    """A delayed message of any topic, and what came back at once, may be sent again."""
    delayed = made(SCHEDULE_TOPIC, REAL_TOPIC="T")
    assert find(delayed, delayed) is None
    at_once = made(b"%RETRY%g", source=0)
    assert find(at_once, at_once) is None


def test_each_is_found_once() -> None:
    """Two with equal values are found one after the other."""
    answers = LostAnswers()
    for place in (0, 100):
        answers.note(made(SCHEDULE_TOPIC, place), NOW)
    assert {answers.take(SENT, NOW) for _ in range(2)} == {0, 100}
    assert answers.take(SENT, NOW) is None


def test_each_attempt_is_looked_at() -> None:
    """One alone of several records with equal values has the attempts."""
    answers = LostAnswers()
    answers.note(replace(WAITING, reconsume_times=7), NOW)
    answers.note(made(SCHEDULE_TOPIC, 100), NOW)
    assert answers.take(SENT, NOW) == 100


def test_an_answer_ends_it() -> None:
    """It ends that record alone."""
    answers = LostAnswers()
    for place in (0, 100):
        answers.note(made(SCHEDULE_TOPIC, place), NOW)
    answers.answered(0)
    answers.answered(0)
    assert answers.take(SENT, NOW) == 100


def test_a_delivery_ends_it() -> None:
    """A message that came again may fail again."""
    answers = LostAnswers()
    answers.note(WAITING, NOW)
    answers.note(made(b"%RETRY%g", 100, source=-1), NOW)  # of the base's record at 0
    answers.note(made(b"%RETRY%g", 200, source=1), NOW)
    assert answers.take(SENT, NOW) is None


def test_a_delivery_of_what_waited_in_the_base_ends_nothing() -> None:
    """Although a record of the overlay may have the same position in its log."""
    answers = LostAnswers()
    answers.note(WAITING, NOW)
    answers.note(made(b"%RETRY%g", 100, source=-1), NOW)
    assert answers.take(SENT, NOW) == 0
