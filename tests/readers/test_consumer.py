"""A group member in this process, beside plain decodings of real brokers' stores and a model."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from reput.readers import consumer as consumer_module
from reput.readers.allocation import (
    AllocateAveragely,
    AllocateAveragelyByCircle,
    AllocateConsistentHash,
    MessageQueue,
)
from reput.readers.consumer import ConsumedMessage, ConsumeFromWhere, Consumer
from reput.readers.messagefilter import MessageFilter
from reput.readers.messagestore import MessageStore
from reput.readers.offsetreset import change_offsets, reset_to_earliest, skip
from reput.store import fsops
from reput.store.brokerlock import BrokerLock
from reput.store.errors import NoSpaceError, OwnershipError, UsageError
from reput.store.files import LEDGER_FILE, SERVE_DIRECTORY
from reput.store.log.record import Record
from reput.store.state.consumeroffset import ConsumerOffsetFile, TopicGroup, read_committed
from reput.store.state.groupmembers import lock_group_alone
from tests.support.golden import destroy, log_records, tree, unpack_golden
from tests.support.live_store import LiveStore
from tests.support.plain_queues import PlainMessage, plain_queue, queue_directories
from tests.support.processes import holder

FIRST, LAST, BY_TIME = ConsumeFromWhere
GROUP = "g"
SEEKS = 8
Place = tuple[str, int, int]


@pytest.fixture
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members look for each other in every poll."""
    monkeypatch.setattr(consumer_module, "REBALANCE_SECONDS", 0.0)


def queue_of(queue_id: int = 0, topic: str = "T") -> MessageQueue:
    # a broker without a name has that of the store's folder
    return MessageQueue(topic, "store", queue_id)


def plain_messages(store: Path) -> dict[Place, PlainMessage]:
    """Every message of every queue, decoded plainly, by its place."""
    return {
        (directory.parent.name, int(directory.name), message.queue_offset): message
        for directory in queue_directories(store)
        for message in plain_queue(store, directory)
    }


def place_of(found: ConsumedMessage) -> Place:
    return found.queue.topic, found.queue.queue_id, found.queue_offset


def drained(consumer: Consumer, max_count: int = 100) -> list[ConsumedMessage]:
    """Everything up to the first poll that finds nothing and moves nowhere, each commit done."""
    found: list[ConsumedMessage] = []
    before: dict[MessageQueue, int] | None = None
    while before != consumer.positions:
        before = consumer.positions
        found += consumer.poll(0, max_count)
        consumer.commit()
    return found


@pytest.mark.parametrize("name", ["plain", "mixed", "lmq", "killed"])
def test_one_member_consumes_a_brokers_queues(golden: Callable[[str], Path], name: str) -> None:
    """Each message of each queue once, in the queue's order, with the stored body."""
    root = golden(name)
    expected = plain_messages(root)
    topics = sorted({topic for topic, _, _ in expected})
    with Consumer(root, GROUP, dict.fromkeys(topics), from_where=FIRST) as consumer:
        found = drained(consumer, 37)
    assert {place_of(one): one.message.record for one in found} == {
        place: message.record for place, message in expected.items()
    }
    assert len(found) == len(expected)
    by_queue: dict[MessageQueue, list[int]] = {}
    for one in found:
        by_queue.setdefault(one.queue, []).append(one.queue_offset)
    assert all(offsets == sorted(offsets) for offsets in by_queue.values())
    # members gone and the journal written into the file
    assert list((root / "reput" / "groups" / GROUP / "members").iterdir()) == []
    committed = read_committed(root) or {}
    assert {
        (key.topic, queue_id): offset
        for key, queues in committed.items()
        if key.group == GROUP
        for queue_id, offset in queues.items()
    } == {(topic, queue_id): offset + 1 for topic, queue_id, offset in sorted(expected)}


def test_an_inner_batch_is_its_messages(golden: Callable[[str], Path], seed: int) -> None:
    """Queue offsets go on by one from message to message, and a seek leads into a batch."""
    rng = random.Random(seed)
    with Consumer(golden("queues-5.5.0"), GROUP, {"Lots": None}, from_where=FIRST) as consumer:
        found = drained(consumer)
        queues = consumer.positions
        assert len(found) == sum(queues.values()) > len(queues)
        assert len({place_of(one) for one in found}) == len(found)
        for queue, end in queues.items():
            for offset in rng.sample(range(end), min(end, SEEKS)):
                consumer.seek(queue, offset)
                again = [one for one in drained(consumer) if one.queue == queue]
                assert [one.queue_offset for one in again] == list(range(offset, end))


@pytest.mark.parametrize("kind", ["tags", "sql"])
def test_only_what_a_filter_lets_through(golden: Callable[[str], Path], kind: str) -> None:
    """The rest counts as consumed, up to each queue's end."""
    root = golden("plain")
    topic = min(plain_messages(root))[0]
    expected = {place: m for place, m in plain_messages(root).items() if place[0] == topic}
    tags = sorted({m.values["TAGS"] for m in expected.values() if "TAGS" in m.values})[:2]
    wanted = {
        "tags": MessageFilter.by_tags(" || ".join(tags)),
        "sql": MessageFilter.by_sql(f"TAGS in ({', '.join(map(repr, tags))})"),
    }[kind]
    with Consumer(root, GROUP, {topic: wanted}, from_where=FIRST) as consumer:
        found = drained(consumer)
        ends = {
            q: consumer.store.queue(topic, q).max_offset() for q in consumer.store.queue_ids(topic)
        }
    assert sorted(map(place_of, found)) == sorted(
        place for place, message in expected.items() if message.values.get("TAGS") in tags
    )
    assert 0 < len(found) < len(expected) == sum(ends.values())
    assert (read_committed(root) or {})[TopicGroup(topic, GROUP)] == ends


class Model:
    """The group's committed offsets, and what each member must get next, kept plainly."""

    def __init__(self, live: LiveStore, rng: random.Random) -> None:
        self.live = live
        self.rng = rng
        self.committed: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.members: dict[Consumer, dict[int, int]] = {}
        """Each with its position in each of its queues."""
        self.consumed: set[tuple[int, int]] = set()

    def step(self) -> None:
        steps = [self.join, self.leave, self.grow, *(3 * [self.commit]), *(6 * [self.poll])]
        self.rng.choice(steps)()
        held = [queue_id for queues in self.members.values() for queue_id in queues]
        assert len(held) == len(set(held))

    def join(self) -> None:
        if len(self.members) < 4:
            member = Consumer(
                self.live.root, GROUP, {"T": None}, output=self.live.output,
                strategy=AllocateConsistentHash(), from_where=FIRST,
            )  # fmt: skip
            self.members[member] = {}

    def leave(self) -> None:
        if self.members:
            member = self.rng.choice(list(self.members))
            member.close()
            del self.members[member]

    def grow(self) -> None:
        ids = [self.rng.randrange(len(self.ends) + 1) for _ in range(self.rng.randrange(9))]
        self.live.append(Record(topic=b"T", queue_id=min(n, 5), body=b"x") for n in ids)
        for n in ids:
            self.ends[min(n, 5)] = self.ends.get(min(n, 5), 0) + 1
        self.live.dispatch()

    def poll(self) -> None:
        if not self.members:
            return
        member = self.rng.choice(list(self.members))
        found = member.poll(0, self.rng.randrange(1, 9))
        before, after = self.members[member], member.positions
        positions = {
            queue.queue_id: before.get(queue.queue_id, self.committed.get(queue.queue_id, 0))
            for queue in after
        }
        for one in found:
            queue_id = one.queue.queue_id
            assert one.queue_offset == positions[queue_id]
            positions[queue_id] += 1
        assert positions == {queue.queue_id: offset for queue, offset in after.items()}
        self.members[member] = positions

    def commit(self) -> None:
        if not self.members:
            return
        member = self.rng.choice(list(self.members))
        member.commit()
        for queue_id, offset in self.members[member].items():
            self.consumed |= {(queue_id, n) for n in range(offset)}
            self.committed[queue_id] = offset
            assert member.committed("T", queue_id) == offset

    def finish(self) -> None:
        """Let one member commit everything that is there."""
        while self.members:
            self.leave()
        self.join()
        (member,) = self.members
        while self.committed != self.ends:
            self.poll()
            self.commit()
        member.close()
        assert self.consumed == {(q, n) for q, end in self.ends.items() for n in range(end)}


@pytest.mark.usefixtures("_eager")
def test_random_members_of_a_growing_store(tmp_path: Path, seed: int) -> None:
    """Positions, commits and shares of members that come and go are the model's."""
    with LiveStore(tmp_path) as live:
        live.dispatch()
        model = Model(live, random.Random(seed))
        for _ in range(150):
            model.step()
        model.finish()


@pytest.mark.usefixtures("_eager")
def test_a_revoked_queue_can_be_committed(tmp_path: Path) -> None:
    """In the callback it is still this member's, and afterwards it is not."""
    with LiveStore(tmp_path) as live:
        live.append(Record(topic=b"T", queue_id=n, body=b"x") for n in (0, 0, 1, 1))
        live.dispatch()
        revoked: list[MessageQueue] = []

        def on_revoked(queues: object) -> None:
            assert isinstance(queues, frozenset)
            revoked.extend(queues)
            first.commit(dict.fromkeys(queues, 2))

        opened = partial(
            Consumer, live.root, GROUP, {"T": None}, output=live.output, from_where=FIRST
        )
        with opened(client_id="a", on_revoked=on_revoked) as first:
            assert len(first.poll()) == 4
            with opened(client_id="b") as second:
                assert second.poll() == []
                assert second.positions == {}
                assert first.poll() == []
                assert revoked == [queue_of(1)]
                assert second.poll() == []
                assert second.positions == {queue_of(1): 2}
                assert (first.committed("T", 0), first.committed("T", 1)) == (0, 2)
                for ask in (
                    partial(first.commit, {queue_of(1): 1}), partial(first.seek, queue_of(1), 0),
                    partial(first.pause, [queue_of(1)]),
                ):  # fmt: skip
                    with pytest.raises(OwnershipError, match="queue 1 of topic T is not among"):
                        ask()


def test_a_commit_that_failed_is_made_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full; without the second one the messages would come again."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"a", b"b")
        live.dispatch()
        with Consumer(
            live.root, GROUP, {"T": None}, output=live.output, from_where=FIRST
        ) as consumer:
            assert len(consumer.poll()) == 2
            with monkeypatch.context() as patch:
                patch.setattr(fsops, "_failpoints", fsops._Failpoints("pwrite:1=ENOSPC"))
                with pytest.raises(NoSpaceError):
                    consumer.commit()
            assert consumer.committed("T", 0) == 0
            consumer.commit()
            assert consumer.committed("T", 0) == 2


def test_where_a_group_begins(golden: Callable[[str], Path], seed: int) -> None:
    """As it was asked, in all queues at once; a retry topic as RocketMQ's client has it."""
    root = golden("plain")
    times: dict[tuple[str, int], list[int]] = {}
    for (topic, queue_id, _), message in sorted(plain_messages(root).items()):
        times.setdefault((topic, queue_id), []).append(message.record.store_timestamp)
    topic = min(times)[0]
    retry = f"%RETRY%{GROUP}"
    (root / "consumequeue" / topic).rename(root / "consumequeue" / retry)
    other = max(times)[0]
    time_ms = random.Random(seed).choice(times[other, 0])
    whole = {name: {q: len(times[name, q]) for q in range(4)} for name in (topic, other)}
    zero = dict.fromkeys(range(4), 0)
    by_time = {q: sum(time < time_ms for time in times[other, q]) for q in range(4)}
    for number, (where, expected, expected_retry) in enumerate((
        (FIRST, zero, zero), (LAST, whole[other], zero), (BY_TIME, by_time, whole[topic]),
    )):  # fmt: skip
        group = f"g{number}"
        with Consumer(
            root, group, {other: None, retry: None}, from_where=where, from_time_ms=time_ms
        ) as consumer:
            consumer.poll(0, 1)
            found = read_committed(root) or {}
            assert found[TopicGroup(other, group)] == expected
            assert found[TopicGroup(retry, group)] == expected_retry


@pytest.mark.usefixtures("_eager")
def test_members_that_come_one_after_the_other_begin_at_the_same_end(tmp_path: Path) -> None:
    """The first one chooses for the whole topic, also for queues that it does not get: a queue
    without an offset in a topic that the group knows is one that came later."""
    with LiveStore(tmp_path) as live:
        live.append(Record(topic=b"T", queue_id=n, body=b"x") for n in (0, 0, 1, 1, 1))
        live.dispatch()
        opened = partial(Consumer, live.root, GROUP, {"T": None}, output=live.output)
        with opened(client_id="a") as first, opened(client_id="b") as second:
            assert first.poll() == second.poll() == []
            assert first.positions == {queue_of(0): 2}
            assert second.positions == {queue_of(1): 3}


@pytest.mark.usefixtures("_eager")
def test_nothing_is_missed_where_a_group_begins_at_the_end(tmp_path: Path) -> None:
    """Neither what comes before the first commit, nor in a queue or topic that comes later."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"old")
        live.dispatch()
        opened = partial(Consumer, live.root, GROUP, {"T": None, "New": None}, output=live.output)
        with opened() as consumer:
            assert consumer.poll() == []
        live.append_tags(b"a")
        live.append([Record(topic=b"T", queue_id=1, body=b"b")])
        live.dispatch()
        with opened() as consumer:
            assert sorted(map(place_of, consumer.poll())) == [("T", 0, 1), ("T", 1, 0)]
            live.append([Record(topic=b"New", body=b"c")])
            assert consumer.poll() == []
            live.dispatch()
            assert [place_of(one) for one in consumer.poll(60)] == [("New", 0, 0)]


@pytest.mark.usefixtures("_eager")
def test_seek_pause_and_reset(tmp_path: Path) -> None:
    """A seek moves one queue of a member, a reset the group while it has none."""
    with LiveStore(tmp_path) as live:
        live.append_tags(*(b"%d" % n for n in range(10)))
        live.append([Record(topic=b"T", queue_id=1, body=b"x")])
        live.dispatch()
        opened = partial(
            Consumer, live.root, GROUP, {"T": None}, output=live.output, from_where=FIRST
        )
        with opened() as consumer:
            consumer.poll()
            consumer.commit()
            consumer.seek(queue_of(), 7)
            assert [one.queue_offset for one in consumer.poll()] == [7, 8, 9]
            for offset in (-1, 11):
                with pytest.raises(UsageError, match="choose one from 0 to 10"):
                    consumer.seek(queue_of(), offset)
            consumer.seek(queue_of(), 5)
            consumer.pause([queue_of()])
            assert consumer.poll() == []
            consumer.resume([queue_of()])
            assert [one.message.tags for one in consumer.poll(max_count=2)] == ["5", "6"]
            consumer.commit({queue_of(): 6})
            plan = partial(skip, consumer.store, group=GROUP, topics=None)
            with pytest.raises(OwnershipError, match="written by another process"):
                change_offsets(live.root, live.output, plan, apply=True)
        with opened() as consumer:
            assert [one.message.tags for one in consumer.poll(max_count=2)] == ["6", "7"]
        with MessageStore(live.root, output=live.output) as store:
            back = partial(reset_to_earliest, store, group=GROUP, topic="T")
            change_offsets(live.root, live.output, back, apply=True)
        with opened() as consumer:
            assert len(consumer.poll()) == 11


@pytest.mark.usefixtures("_eager")
def test_an_offset_beyond_the_end_waits_for_the_dispatcher(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The group consumed from a broker what is not in these queues yet; once all is, it ends."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"0", b"1")
        live.dispatch()
        live.append_tags(b"2", b"3", b"4")
        with ConsumerOffsetFile(live.output) as file:
            file.replace({TopicGroup("T", GROUP): {0: 4}, TopicGroup("T", "h"): {0: 9}}, 1)
        opened = partial(Consumer, live.root, subscription={"T": None}, output=live.output)
        with opened(GROUP) as right, opened("h") as wrong:
            for consumer, position in ((right, 4), (wrong, 9)):
                assert consumer.poll() == []
                assert consumer.positions == {queue_of(): position}
            live.dispatch()
            assert [one.message.tags for one in right.poll()] == ["4"]
            assert wrong.poll() == []
            assert wrong.positions == {queue_of(): 5}
    assert "goes on at offset 5 in place of 9 in queue 0 of topic T" in caplog.text


def test_removed_and_damaged_messages_are_told(
    golden: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """The others are consumed, and the log names each loss."""
    root = golden("plain")
    expected = plain_messages(root)
    topic = min(expected)[0]
    with Consumer(root, GROUP, {topic: None}, from_where=FIRST) as consumer:
        consumer.poll(max_count=1)
    sorted((root / "commitlog").iterdir())[0].unlink()
    kept = {
        p: m for p, m in expected.items() if p[0] == topic and m.record.physical_offset >= 1 << 18
    }
    lost = random.Random(0).choice(sorted(kept))
    destroy(root, [kept.pop(lost).record])
    with Consumer(root, GROUP, {topic: None}) as consumer:
        assert sorted(map(place_of, drained(consumer))) == sorted(kept)
    damaged = expected[lost].record.physical_offset
    assert f"skips what is lost or damaged at physical offset {damaged}" in caplog.text
    # it is listed once, whoever skips it
    with Consumer(root, "other", {topic: None}, from_where=FIRST) as consumer:
        drained(consumer)
    (line,) = (root / SERVE_DIRECTORY / LEDGER_FILE).read_text().splitlines()
    assert json.loads(line) == {
        "physical_offset": damaged, "end_physical_offset": damaged, "reason": "damaged_record",
        "topic": topic,
    }  # fmt: skip
    assert caplog.text.count("the messages before it were removed") == 4


def test_members_must_fit_together(tmp_path: Path) -> None:
    """One id is one member, one strategy shares the queues, and offsets have one kind of writer."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"a")
        live.dispatch()
        opened = partial(Consumer, live.root, subscription={"T": None}, output=live.output)
        with opened("g", client_id="a", strategy=AllocateAveragely()) as consumer:
            with pytest.raises(OwnershipError, match="has a member a already"):
                opened("g", client_id="a")
            with pytest.raises(
                UsageError, match="member a of group g allocates queues by Allocate"
            ):
                opened("g", strategy=AllocateAveragelyByCircle())
            with pytest.raises(OwnershipError, match="cannot consume for group g: others consume"):
                lock_group_alone(live.output, "g", 0.0)
            assert [one.message.tags for one in consumer.poll()] == []
            opened("other", strategy=AllocateAveragelyByCircle()).close()
        with (
            lock_group_alone(live.output, "g", 0.0),
            pytest.raises(OwnershipError, match="reads all"),
        ):
            opened("g")
        with (
            holder(lambda: ConsumerOffsetFile(live.output).__enter__()),
            pytest.raises(OwnershipError, match="stop that server, command or consumer"),
        ):
            opened("g")
        for group, client_id in (("a b", None), ("", None), ("g", "a/b"), ("g", "..")):
            with pytest.raises(UsageError, match="cannot be"):
                opened(group, client_id=client_id)
        with pytest.raises(UsageError, match="subscription is empty"):
            Consumer(live.root, "g", {}, output=live.output)


def test_no_offset_is_written_beside_a_broker(tmp_path: Path) -> None:
    """Neither when a member joins, nor when the broker starts afterwards."""
    root = unpack_golden("broker", tmp_path)
    opened = partial(Consumer, root, GROUP, {"Orders": None}, from_where=FIRST)
    with holder(lambda: BrokerLock(root).__enter__()) as pid:
        before = tree(root / "config")
        with pytest.raises(OwnershipError, match=f"process {pid}\\) writes"):
            opened()
        assert tree(root / "config") == before
    consumer = opened()
    consumer.poll(max_count=1)
    with holder(lambda: BrokerLock(root).__enter__()):
        before = tree(root / "config")
        with pytest.raises(OwnershipError, match="a broker or dispatcher"):
            consumer.commit()
        with pytest.raises(OwnershipError, match="a broker or dispatcher"):
            consumer.close()
        assert tree(root / "config") == before
    assert log_records(root)
