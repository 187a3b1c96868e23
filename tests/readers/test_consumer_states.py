"""A group member in states that are rare: queues lost and won back, positions moved back, a begin
by time that nobody states, members that read other topics."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reput.readers import consumer as consumer_module
from reput.readers.consumer import ConsumeFromWhere, Consumer
from reput.store import fsops
from reput.store.errors import NoSpaceError, UsageError
from reput.store.log.record import Record
from reput.store.state.consumeroffset import ConsumerOffsetFile, TopicGroup
from tests.readers.stores import SmallStore
from tests.readers.test_consumer import GROUP, queue_of
from tests.support.golden import tree
from tests.support.live_store import LiveStore

FIRST = ConsumeFromWhere.FIRST_OFFSET
NOW = 1_700_000_000


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members look for each other in every poll."""
    monkeypatch.setattr(consumer_module, "REBALANCE_SECONDS", 0.0)


def test_a_group_begins_half_an_hour_ago_where_no_time_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As RocketMQ's consumeTimestamp; a message of that very moment is among the first."""
    small = SmallStore(tmp_path / "store")
    for age_ms in (7_200_000, 1_800_001, 1_800_000, 60_000):
        small.append(store_timestamp=NOW * 1000 - age_ms)
    clock = SimpleNamespace(time=lambda: NOW, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(consumer_module, "time", clock)
    where = ConsumeFromWhere.TIMESTAMP
    with Consumer(small.write(), GROUP, {"Topic": None}, from_where=where) as consumer:
        assert [one.queue_offset for one in consumer.poll()] == [2, 3]


def test_what_is_no_offset_is_not_committed(tmp_path: Path) -> None:
    """The file is that of all groups, and of a broker, whose offsets are longs from 0 on: one
    fraction in it, and none of them can be read."""
    small = SmallStore(tmp_path)
    small.append()
    odd: list[Any] = [-1, 1 << 63, 0.5, "0", None]
    with Consumer(small.write(), GROUP, {"Topic": None}, from_where=FIRST) as consumer:
        consumer.poll()
        (queue,) = consumer.positions
        for offset in odd:
            with pytest.raises(UsageError, match="cannot be committed"):
                consumer.commit({queue: offset})
        assert consumer.committed("Topic", 0) == 0
        for offset in (np.int64(1), 0, (1 << 63) - 1):
            consumer.commit({queue: offset})
            assert consumer.committed("Topic", 0) == offset


def test_a_queue_that_was_paused_is_read_when_it_comes_back(tmp_path: Path) -> None:
    """Whoever has it anew has not paused it; nobody else would read it."""
    with LiveStore(tmp_path) as live:
        live.append(Record(topic=b"T", queue_id=n, body=b"x") for n in (0, 1))
        live.dispatch()
        opened = partial(
            Consumer, live.root, GROUP, {"T": None}, output=live.output, from_where=FIRST
        )
        with opened(client_id="a") as first:
            assert len(first.poll()) == 2
            first.pause([queue_of(1)])
            with opened(client_id="b") as second:
                assert first.poll() == []
                assert len(second.poll()) == 1
                assert first.positions.keys() == {queue_of(0)}
            assert [one.queue for one in first.poll()] == [queue_of(1)]


def test_a_position_that_was_moved_back_to_an_earlier_commit_is_committed(tmp_path: Path) -> None:
    """The member had begun there."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"a", b"b")
        live.dispatch()
        with Consumer(
            live.root, GROUP, {"T": None}, output=live.output, from_where=FIRST
        ) as consumer:
            assert len(consumer.poll()) == 2
            consumer.commit()
            assert consumer.committed("T", 0) == 2
            consumer.seek(queue_of(), 0)
            consumer.commit()
            assert consumer.committed("T", 0) == 0


def test_members_share_the_topics_that_they_read(tmp_path: Path) -> None:
    """One that does not read a topic gets none of its queues: nobody would consume them."""
    with LiveStore(tmp_path) as live:
        live.append(Record(topic=b"T", queue_id=n, body=b"x") for n in (0, 1))
        live.append([Record(topic=b"U", body=b"y")])
        live.dispatch()
        opened = partial(Consumer, live.root, GROUP, output=live.output, from_where=FIRST)
        with (
            opened({"T": None}, client_id="b") as reader,
            opened({"U": None}, client_id="a") as other,
        ):
            assert len(other.poll()) == 1
            assert len(reader.poll()) == 2
            assert reader.positions.keys() == {queue_of(0), queue_of(1)}


def test_a_queue_without_messages_keeps_a_position_that_is_not_dispatched(tmp_path: Path) -> None:
    """The group has consumed from a broker what is not in the queue yet: it gets only the rest."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"a")
        live.dispatch()
        (live.output / "consumequeue" / "T" / "1").mkdir()
        live.append(Record(topic=b"T", queue_id=1, body=b"%d" % n) for n in range(4))
        with ConsumerOffsetFile(live.output) as file:
            file.replace({TopicGroup("T", GROUP): {0: 1, 1: 3}}, 1)
        with Consumer(live.root, GROUP, {"T": None}, output=live.output) as consumer:
            assert consumer.poll() == []
            assert consumer.positions == {queue_of(0): 1, queue_of(1): 3}
            live.dispatch()
            assert [one.message.record.body for one in consumer.poll()] == [b"3"]


def test_a_log_that_goes_on_in_its_next_file_is_not_dispatched_whole(tmp_path: Path) -> None:
    """Messages that are not dispatched begin there, and the file before ends with a BLANK."""
    with LiveStore(tmp_path) as live:
        live.append([Record(topic=b"T", body=b"first")])
        live.dispatch()
        stored = live.append(Record(topic=b"T", body=bytes(40_000)) for _ in range(2))
        assert [one.physical_offset // (1 << 16) for one in stored] == [0, 1]
        with Consumer(live.root, GROUP, {"T": None}, output=live.output) as consumer:
            live._dispatcher.run(stored[0].physical_offset + stored[0].total_size)
            for is_whole in (False, True):
                consumer.store.refresh()
                assert consumer.store.log.is_dispatched_whole() is is_whole
                live.dispatch()


def test_every_queue_has_its_turn(tmp_path: Path) -> None:
    """However little is asked for, and however much the first queue has."""
    with LiveStore(tmp_path) as live:
        live.append(Record(topic=b"T", queue_id=n % 3, body=b"x") for n in range(9))
        live.dispatch()
        with Consumer(
            live.root, GROUP, {"T": None}, output=live.output, from_where=FIRST
        ) as consumer:
            polled = [consumer.poll(max_count=1) for _ in range(9)]
            assert [len(each) for each in polled] == [1] * 9
            turns = [each[0].queue.queue_id for each in polled]
            assert turns == turns[:3] * 3
            assert sorted(turns[:3]) == [0, 1, 2]


def test_queues_are_given_back_where_the_begin_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full; the next poll has them, in this member or in another one."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"a", b"b")
        live.dispatch()
        with Consumer(
            live.root, GROUP, {"T": None}, output=live.output, from_where=FIRST
        ) as consumer:
            with monkeypatch.context() as patch:
                patch.setattr(fsops, "_failpoints", fsops._Failpoints("pwrite:1=ENOSPC"))
                with pytest.raises(NoSpaceError):
                    consumer.poll()
            assert consumer.positions == {}
            assert len(consumer.poll()) == 2


def test_no_member_joins_in_a_store_s_data(tmp_path: Path) -> None:
    """An output below its log would be taken for a part of it."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"a")
        before, below = tree(live.root), live.root / "commitlog" / "output"
        with pytest.raises(UsageError, match="holds the data of a store"):
            Consumer(live.root, GROUP, {"T": None}, output=below)
        assert tree(live.root) == before
