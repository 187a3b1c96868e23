"""``query`` and ``search-time`` within the bounds that their options set, over an index."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from reput.streaming.config import DispatcherConfig
from tests.cli.test_errors import assert_one_line
from tests.cli.test_read import places
from tests.support.cli import Call, json_lines
from tests.support.golden import destroy, log_records
from tests.support.sparkless import dispatch

COUNT, BEGAN, STEP_MS = 150, 1_700_000_000_000, 10_000
AT_ONCE = 64
"""A broker's ``maxMsgsNumBatch``, where its property file does not say another."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Messages with one key, ten seconds after each other, their queue and their index."""
    with LogAppender(tmp_path, file_size=1 << 20) as appender:
        for number in range(COUNT):
            stored = BEGAN + number * STEP_MS
            appender.append(Record(topic=b"T", properties=b"KEYS\x01k\x02", store_timestamp=stored))
    dispatch(DispatcherConfig(tmp_path, tmp_path, once=True))
    assert [*(tmp_path / "index").iterdir()]
    return tmp_path


def offsets(call: Call, store: Path, *words: object) -> list[int]:
    found = json_lines(call("query", store, "T", "--key", "k", *words))
    assert {queue for queue, _ in places(found)} == {0}
    return [offset for _, offset in places(found)]


def test_a_query_examines_as_many_entries_as_a_broker(store: Path, call: Call) -> None:
    """The newest ones; ``--max`` may be more than a broker allows, or fewer."""
    newest = [*range(COUNT)]
    assert offsets(call, store) == newest[-AT_ONCE:]
    assert "--max N examines more" in call("query", store, "T", "--key", "k").stderr
    for most in (1, AT_ONCE, AT_ONCE + 1, COUNT, COUNT + 1):
        assert offsets(call, store, "--max", most) == newest[-most:]


def test_a_query_takes_what_was_stored_between_two_times(store: Path, call: Call) -> None:
    """An index knows whole seconds; both bounds are of the messages."""
    middle = BEGAN + 100 * STEP_MS
    half = STEP_MS // 2
    assert offsets(call, store, "--begin", middle - half) == [*range(100, COUNT)]
    assert offsets(call, store, "--end", middle - half, "--max", COUNT) == [*range(100)]
    both = ("--begin", middle - half, "--end", middle + half)
    assert offsets(call, store, *both) == [100]
    late = ("--begin", BEGAN + COUNT * STEP_MS)
    assert_one_line(call("query", store, "T", "--key", "k", *late), 1, "no message of topic T")


def test_a_question_as_of_a_moment_is_answered_as_it_was_then(store: Path, call: Call) -> None:
    """By the index, and by the times of a queue."""
    end = log_records(store)[100].physical_offset
    then = ("--as-of", f"offset:{end}")
    assert offsets(call, store, "--max", COUNT, *then) == [*range(100)]
    beyond = BEGAN + COUNT * STEP_MS
    for words, wanted in ((then, 100), ((), COUNT)):
        (found,) = json_lines(call("search-time", store, "T", 0, beyond, *words))
        assert (found["queue_offset"], found["store_timestamp"]) == (wanted, None)
    last = ("search-time", store, "T", 0, beyond, "--upper")
    assert json_lines(call(*last, *then))[0]["queue_offset"] == 99


def test_damaged_messages_of_a_tail_are_counted(store: Path, call: Call) -> None:
    """The first one's place, and how many more; the others are printed."""
    victims = [log_records(store)[number] for number in (140, 143, 147)]
    for lost in (1, 3):
        destroy(store, victims[:lost])
        done = call("tail", store, "T", "-n", 20)
        kept = [number for number in range(130, COUNT) if number not in (140, 143, 147)[:lost]]
        assert [offset for _, offset in places(json_lines(done))] == kept
        (line,) = [one for one in done.stderr.splitlines() if "damaged record" in one]
        more = " and 2 more" if lost > 1 else ""
        first = victims[0].physical_offset
        assert line.endswith(f"at physical offset {first}, queue 0 offset 140{more}")
