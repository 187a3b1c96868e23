"""A poll of a group member and the queues that it has, in states that seldom come."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from reput.checkpoints.watermark import WatermarkFile
from reput.readers import consumer as consumer_module
from reput.readers.allocation import AllocateByConfig, MessageQueue
from reput.readers.consumer import ConsumeFromWhere, Consumer
from reput.readers.messagefilter import MessageFilter
from reput.store import fsops
from reput.store.errors import NoSpaceError, OutputError
from reput.store.log.record import Record
from reput.store.state.consumeroffset import ConsumerOffsetFile, TopicGroup
from reput.store.state.watermark import Watermark
from tests.readers.stores import SmallStore
from tests.support.golden import log_records
from tests.support.live_store import LiveStore

GROUP = "g"
FIRST = ConsumeFromWhere.FIRST_OFFSET
MINUTE_MS = 60_000


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members look for each other in every poll."""
    monkeypatch.setattr(consumer_module, "REBALANCE_SECONDS", 0.0)


def queue_of(queue_id: int = 0, topic: str = "T") -> MessageQueue:
    """A queue of a broker without a name, which has that of the store's folder."""
    return MessageQueue(topic, "store", queue_id)


def opener(live: LiveStore, **options: object) -> Callable[..., Consumer]:
    """Members of one group that begin with the first message."""
    given = {"subscription": {"T": None}, "output": live.output, "from_where": FIRST, **options}
    return partial(Consumer, live.root, GROUP, **given)  # type: ignore[arg-type]


def in_queues(*queue_ids: int, topic: bytes = b"T") -> list[Record]:
    return [Record(topic=topic, queue_id=queue_id, body=b"x") for queue_id in queue_ids]


def test_a_group_by_time_begins_half_an_hour_ago(tmp_path: Path) -> None:
    """As RocketMQ's client does where nobody names a time."""
    small, now_ms = SmallStore(tmp_path / "store"), int(time.time() * 1000)
    for minutes in (90, 45, 15, 1):
        small.append(store_timestamp=now_ms - minutes * MINUTE_MS)
    with Consumer(
        small.write(), GROUP, {"Topic": None}, from_where=ConsumeFromWhere.TIMESTAMP
    ) as consumer:
        assert [one.queue_offset for one in consumer.poll()] == [2, 3]


def test_a_poll_takes_as_many_as_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are the poll's, for all queues together, and none of a broker's, which would be
    32 messages of a queue that is on disk or in memory."""
    with LiveStore(tmp_path) as live:
        messages = live.append(in_queues(*(50 * [0, 1])))
        live.dispatch()
        with opener(live)() as consumer:
            assert len(consumer.poll(0, 7)) == 7
            assert len(consumer.poll(0, 60)) == 60
            assert len(consumer.poll()) == 33
            consumer.seek(queue_of(0), 0)
            # a record has its bytes, and a poll has few
            monkeypatch.setattr(consumer_module, "MAX_POLL_BYTES", 3 * messages[0].total_size)
            assert [one.queue_offset for one in consumer.poll()] == [0, 1, 2]


def test_a_queue_that_is_lost_and_taken_again_is_not_paused(tmp_path: Path) -> None:
    """A pause ends with the queue: nobody knows that it would have to be resumed."""
    with LiveStore(tmp_path) as live:
        live.append(in_queues(0, 1))
        live.dispatch()
        opened = opener(live)
        with opened(client_id="a") as first:
            assert len(first.poll()) == 2
            first.pause([queue_of(0), queue_of(1)])
            with opened(client_id="b"):
                first.poll()
                assert first.positions.keys() == {queue_of(0)}
            live.append(in_queues(0, 1))
            live.dispatch()
            # nothing was committed in queue 1, so it comes again, and queue 0 still pauses
            assert [(one.queue.queue_id, one.queue_offset) for one in first.poll()] == [
                (1, 0), (1, 1)
            ]  # fmt: skip
            first.pause([queue_of(1)])
            first.resume([queue_of(1), queue_of(7)])
            live.append(in_queues(0, 1))
            live.dispatch()
            assert [(one.queue.queue_id, one.queue_offset) for one in first.poll()] == [(1, 2)]


def test_a_skipped_record_is_on_disk_before_a_commit_can_pass_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the list of it cannot be made durable, the poll fails, and does not go on beyond it."""
    small = SmallStore(tmp_path / "store")
    offsets = [small.append() for _ in range(5)]
    small.log.put(offsets[2] + 4, b"\0\0\0\0")
    with Consumer(small.write(), GROUP, {"Topic": None}, from_where=FIRST) as consumer:
        assert [one.queue_offset for one in consumer.poll(0, 2)] == [0, 1]
        with monkeypatch.context() as patch:
            patch.setattr(fsops, "_failpoints", fsops._Failpoints("sync:1=EIO"))
            with pytest.raises(OutputError):
                consumer.poll()
        assert list(consumer.positions.values()) == [2]
        assert [one.queue_offset for one in consumer.poll()] == [3, 4]


def test_a_poll_that_fails_has_consumed_nothing_of_other_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody got what it had read of them, so the next poll returns that: a commit would otherwise
    pass messages that no poll has returned."""
    small = SmallStore(tmp_path / "store")
    offsets = [small.append(queue_id=number % 2) for number in range(6)]
    small.log.put(offsets[4] + 4, b"\0\0\0\0")
    with Consumer(small.write(), GROUP, {"Topic": None}, from_where=FIRST) as consumer:
        found = consumer.poll(0, 2)
        with monkeypatch.context() as patch:
            patch.setattr(fsops, "_failpoints", fsops._Failpoints("sync:1=EIO"))
            # queue 1 has its turn, and then queue 0, whose next record is damaged
            with pytest.raises(OutputError):
                consumer.poll()
        found += consumer.poll()
        places = [(one.queue.queue_id, one.queue_offset) for one in found]
        assert places == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


def test_an_empty_queue_may_have_all_of_a_groups_messages_yet(golden: Callable[..., Path]) -> None:
    """Nothing is dispatched yet of what the group consumed from a broker: nothing comes twice."""
    root = golden("plain")
    messages = log_records(root)
    topic, queue_id = messages[0].topic.decode(), messages[0].queue_id
    end = messages[-1].physical_offset + messages[-1].total_size
    (root / "reput").mkdir()
    file = WatermarkFile(root / "reput")
    file.advance(Watermark("0" * 32, 0))
    with ConsumerOffsetFile(root) as offsets:
        offsets.replace({TopicGroup(topic, GROUP): {queue_id: 4}}, 1)
    with Consumer(root, GROUP, {topic: None}) as consumer:
        assert consumer.poll() == []
        (queue,) = (queue for queue in consumer.positions if queue.queue_id == queue_id)
        assert consumer.positions[queue] == 4
        file.advance(Watermark("0" * 32, end))
        found = [one.queue_offset for one in consumer.poll() if one.queue == queue]
        assert found[:3] == [4, 5, 6]
    file.close()


def test_a_start_that_found_no_room_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queues whose first offsets could not be written are free, and this member takes them."""
    with LiveStore(tmp_path) as live:
        live.append(in_queues(0, 1))
        live.dispatch()
        with opener(live)() as consumer:
            with monkeypatch.context() as patch:
                patch.setattr(fsops, "_failpoints", fsops._Failpoints("pwrite:1=ENOSPC"))
                with pytest.raises(NoSpaceError):
                    consumer.poll()
            assert consumer.positions == {}
            assert len(consumer.poll()) == 2


def test_only_queues_that_are_there_are_taken(tmp_path: Path) -> None:
    """A strategy may name others: of another topic, of another broker, or ones yet to come."""
    named = [queue_of(0), queue_of(5), queue_of(0, "Other"), MessageQueue("T", "elsewhere", 1)]
    with LiveStore(tmp_path) as live:
        live.append([*in_queues(0, 1), *in_queues(0, topic=b"Other")])
        live.dispatch()
        with opener(live)(strategy=AllocateByConfig(named)) as consumer:
            assert len(consumer.poll()) == 1
            assert consumer.positions.keys() == {queue_of(0)}


def test_a_topics_queues_are_those_of_the_members_that_want_it(tmp_path: Path) -> None:
    """A member that has not subscribed to it would get a share that nobody consumes."""
    with LiveStore(tmp_path) as live:
        live.append([*in_queues(0, 1, 2), *in_queues(0, 1, topic=b"Other")])
        live.dispatch()
        opened = opener(live)
        with opened(client_id="a") as first, opened(subscription={"Other": None}) as second:
            first.poll()
            second.poll()
            assert first.positions.keys() == {queue_of(number) for number in range(3)}
            assert second.positions.keys() == {queue_of(number, "Other") for number in range(2)}


def test_another_tag_with_the_same_hash_is_not_consumed(tmp_path: Path) -> None:
    """A queue holds no more than the hash, and a client compares the texts (``"Aa"``, ``"BB"``)."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"Aa", b"BB", b"C", b"Aa", b"BB")
        live.dispatch()
        wanted = MessageFilter.by_tags("BB")
        with opener(live)(subscription={"T": wanted}) as consumer:
            assert [one.message.tags for one in consumer.poll()] == ["BB", "BB"]
            assert consumer.positions == {queue_of(): 5}


def test_a_seek_knows_what_came_since_the_last_poll(tmp_path: Path) -> None:
    """Its limits are those of the queue as it is now."""
    with LiveStore(tmp_path) as live:
        live.append(in_queues(0))
        live.dispatch()
        with opener(live)() as consumer:
            consumer.poll()
            live.append(in_queues(0, 0, 0))
            live.dispatch()
            consumer.seek(queue_of(), 3)
            assert [one.queue_offset for one in consumer.poll()] == [3]
