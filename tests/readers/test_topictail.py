"""A topic's messages as they come: the last ones, and each later one once, in the store's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from reput.readers import tail
from reput.readers.messagefilter import MessageFilter
from reput.readers.messagestore import MessageStore
from reput.readers.tail import QueueMessage, TopicTail
from reput.store.log.record import Record
from tests.readers.stores import SmallStore
from tests.support.batch_queue import BatchMessage
from tests.support.live_store import LiveStore
from tests.support.wire import TWO_MESSAGES, file_name


def places(found: Iterable[QueueMessage]) -> list[tuple[int, int]]:
    """Queue and queue offset of each message."""
    return [(one.queue_id, one.queue_offset) for one in found]


def test_the_last_messages_are_as_many_as_were_asked_for(golden: Callable[[str], Path]) -> None:
    """An inner batch is several messages, of which the first may be too many."""
    root, topic = golden("queues-5.5.0"), "Lots"
    with MessageStore(root) as store:
        ends = {
            queue_id: store.queue(topic, queue_id).bounds() for queue_id in store.queue_ids(topic)
        }
        every = places(TopicTail(store, topic).last(1 << 20))
        assert sorted(every) == [
            (queue_id, offset) for queue_id, bounds in ends.items() for offset in range(*bounds)
        ]
        for count in range(9):
            assert places(TopicTail(store, topic).last(count)) == every[len(every) - count :]


def test_the_last_messages_of_a_filter_may_be_the_first_of_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for in steps from the end, and texts are compared where hashes are equal."""
    monkeypatch.setattr(tail, "_FIRST_STEP", 2)
    with LiveStore(tmp_path) as live:
        live.append_tags(b"Aa", b"BB", b"Aa", b"BB", b"Aa", *(30 * [b"C"]))
        live.dispatch()
        with MessageStore(live.root, output=live.output) as store:
            wanted = MessageFilter.by_tags("Aa")
            assert places(TopicTail(store, "T", wanted).last(2)) == [(0, 2), (0, 4)]
            assert places(TopicTail(store, "T", wanted).since(0)) == [(0, 0), (0, 2), (0, 4)]


def test_what_comes_is_told_once_in_the_stores_order(tmp_path: Path) -> None:
    """From all queues together, and from a queue that is new from its beginning."""
    with LiveStore(tmp_path) as live:

        def come(*queue_ids: int) -> None:
            live.append(Record(topic=b"T", queue_id=number, body=b"x") for number in queue_ids)
            live.dispatch()

        come(1, 0, 1)
        with MessageStore(live.root, output=live.output) as store:
            followed = TopicTail(store, "T")
            assert places(followed.last(2)) == [(0, 0), (1, 1)]
            assert places(followed.new()) == []
            come(1, 2, 0, 2, 1)
            assert places(followed.new()) == [(1, 2), (2, 0), (0, 1), (2, 1), (1, 3)]
            assert places(followed.new()) == []


def test_a_message_that_is_lost_has_a_place(tmp_path: Path) -> None:
    """In the last messages as in those that come, between the others: without it, a reader would
    not know that one is missing."""
    small = SmallStore(tmp_path)
    for number in range(8):
        small.append(queue_id=number % 2, store_timestamp=number)
    small.log.put(small.log.spans[5][0] + 4, bytes(4))
    small.write()
    with MessageStore(tmp_path) as store:
        for found in (TopicTail(store, "Topic").last(4), TopicTail(store, "Topic").since(4)):
            listed = list(found)
            assert places(listed) == [(0, 2), (1, 2), (0, 3), (1, 3)]
            assert [one.message is None for one in listed] == [False, True, False, False]
            assert listed[1].physical_offset == small.log.spans[5][0]


def test_each_message_of_an_inner_batch_has_its_offset(tmp_path: Path) -> None:
    """The last one alone, too."""
    small = SmallStore(tmp_path)
    offset = small.log.append(topic=b"Topic", queue_offset=3, body=TWO_MESSAGES, sys_flag=0xC0)
    unit = BatchMessage(offset, small.log.end - offset, base=3, batch_size=2).unit
    small.log.append(topic=b"Other")
    small.write()
    directory = tmp_path / "batchconsumequeue" / "Topic" / "0"
    directory.mkdir(parents=True)
    (directory / file_name(0)).write_bytes(unit.ljust(138, b"\0"))
    with (tmp_path / "broker.conf").open("a") as conf:
        conf.write("mapperFileSizeBatchConsumeQueue=138\n")
    with MessageStore(tmp_path) as store:
        found = list(TopicTail(store, "Topic").since(0))
        assert [(one.queue_offset, one.message and one.message.body()) for one in found] == [
            (3, b"first"), (4, b"")
        ]  # fmt: skip
        assert places(TopicTail(store, "Topic").last(1)) == [(0, 4)]
