"""Rules of one pull at their borders, for both ways to pull: ``DefaultMessageStore.getMessage``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reput.readers.getmessage import GetMessageResult, PullLimits, clamped_max_bytes
from reput.readers.messagefilter import MessageFilter
from reput.readers.messagestore import MessageStore
from reput.store.config import read_store_settings
from tests.readers.stores import LOG_FILE_SIZE, SmallStore, StoreByRanges, java_hash
from tests.support.wire import TWO_MESSAGES, UNIT, file_name

INNER_BATCH = 0x40 | 0x80
"""Flags of a message that holds several, in RocketMQ 5."""


@pytest.fixture(params=[MessageStore, StoreByRanges], ids=["decoded", "as-stored"])
def reader(request: pytest.FixtureRequest) -> Iterator[type[MessageStore]]:
    """Messages, and records as they are in the log."""
    yield request.param


def found(result: GetMessageResult) -> list[bytes]:
    """The bodies of what a broker sends."""
    return [message.body() for message in result.found]


def test_limits_of_memory_end_at_the_byte(tmp_path: Path, reader: type[MessageStore]) -> None:
    """A message whose distance from the log's end is as many bytes as a broker caches is in memory
    (``estimateInMemByCommitOffset``)."""
    small = SmallStore(tmp_path)
    offsets = [small.append(body=b"x" * 20) for _ in range(10)]
    plain = PullLimits.of(read_store_settings(small.write()))
    limits = replace(plain, max_transfer_count_on_disk=2, max_transfer_count_in_memory=5)
    for distance, count in ((small.log.end - offsets[2], 5), (small.log.end - offsets[2] - 1, 2)):
        given = replace(limits, in_memory_bytes=distance)
        with reader(tmp_path, limits=given) as store:
            assert len(store.queue("Topic", 0).get_message(0).found) == count


def test_a_lost_file_hides_its_own_messages_alone(
    tmp_path: Path, reader: type[MessageStore]
) -> None:
    """Where offsets go back after a message was found, what they lead to is looked at."""
    small = SmallStore(tmp_path)
    offsets = [small.append(body=b"%03d" % number + bytes(400)) for number in range(20)]
    files = [at // LOG_FILE_SIZE for at in offsets]
    early, lost, late = (files.index(number) for number in range(3))
    units = small.units[0]
    for order, expected in (
        ((lost, late, early, late), [late, early, late]),
        ((lost, late, lost, early, late), [late, late]),
        ((early, lost, late), [early, late]),
        ((lost, late, lost + 1, late), [late, late]),
    ):
        small.units[0] = [units[number] for number in order]
        small.write()
        (tmp_path / "commitlog" / file_name(LOG_FILE_SIZE)).unlink(missing_ok=True)
        with reader(tmp_path) as store:
            result = store.queue("Topic", 0).get_message(0)
            assert [int(body[:3]) for body in found(result)] == expected
            assert result.next_begin_offset == len(order)
            assert result.damaged == (LOG_FILE_SIZE,)


@pytest.mark.parametrize(("stated", "looked_at"), [(0, 1), (19, 1), (20, 1), (21, 2), (60, 3)])
def test_a_filter_looks_at_as_many_units_as_their_bytes_allow(
    tmp_path: Path, reader: type[MessageStore], stated: int, looked_at: int
) -> None:
    """maxFilterMessageSize, rounded up to whole units, and at least as many as were asked for."""
    small, other = SmallStore(tmp_path), java_hash("other")
    for _ in range(10):
        small.append(other, properties=b"TAGS\x01other\x02")
    small.write()
    with (tmp_path / "broker.conf").open("a") as conf:
        conf.write(f"maxFilterMessageSize={stated}\n")
    for message_filter in (MessageFilter.by_tags("x"), MessageFilter.by_sql("TAGS = 'x'")):
        with reader(tmp_path) as store:
            for count in (1, 2, 4):
                result = store.queue("Topic", 0).get_message(
                    0, count, message_filter=message_filter
                )
                assert result.next_begin_offset == max(looked_at, count)
                assert result.status == "NO_MATCHED_MESSAGE"


def test_the_first_outcome_of_a_pull_stays_once_a_message_was_found(
    tmp_path: Path, reader: type[MessageStore]
) -> None:
    """Units after it that lead to nothing change no status."""
    small, tag = SmallStore(tmp_path), java_hash("x")
    offsets = [
        small.append(code, properties=b"TAGS\x01x\x02" if code == tag else b"")
        for code in (0, tag, 0, tag)
    ]
    small.log.put(offsets[3] + 4, bytes(4))
    small.append(queue_id=1)
    small.write()
    with reader(tmp_path) as store:
        queue, by_tag = store.queue("Topic", 0), MessageFilter.by_tags("x")
        statuses = [queue.get_message(at, 1, message_filter=by_tag).status for at in (2, 3)]
        result = queue.get_message(0, message_filter=by_tag)
    assert (result.status, [one.queue_offset for one in result.found]) == ("FOUND", [1])
    assert statuses == ["MESSAGE_WAS_REMOVING"] * 2


@pytest.mark.parametrize("body", [TWO_MESSAGES, TWO_MESSAGES[:-1], b"\xff" * 40])
def test_a_batch_that_cannot_be_unwrapped_is_handed_over_whole(tmp_path: Path, body: bytes) -> None:
    """As RocketMQ's client does, which has logged it."""
    small = SmallStore(tmp_path)
    small.append(body=body, sys_flag=INNER_BATCH)
    small.append(body=b"after")
    with MessageStore(small.write()) as store:
        result = store.queue("Topic", 0).get_message(0)
    assert found(result) == [body, b"after"]
    bodies = [message.body() for message in result.messages]
    assert bodies == ([b"first", b"", b"after"] if body == TWO_MESSAGES else [body, b"after"])


def test_an_answers_bytes_are_bounded() -> None:
    """Between 100 bytes and 128 MiB (``MAX_PULL_MSG_SIZE``), whatever a client asks for."""
    sizes = {-1: 100, 0: 100, 100: 100, 101: 101, 1 << 27: 1 << 27, (1 << 27) + 1: 1 << 27}
    assert {size: clamped_max_bytes(size) for size in sizes} == sizes


def test_a_record_that_ends_where_the_readable_part_does_has_a_time(tmp_path: Path) -> None:
    """One that ends a byte beyond has none."""
    small = SmallStore(tmp_path)
    for _ in range(3):
        small.append(store_timestamp=5)
    small.write()
    start, end = small.log.spans[-1]
    with MessageStore(tmp_path) as store:
        view = store.log.view
        for cut, time in ((end, 5), (end - 1, -1), (start + 1, -1), (start, -1)):
            assert replace(view, end=cut).store_time(start, end - start) == time
    assert UNIT.unpack(small.units[0][-1])[0] == start
