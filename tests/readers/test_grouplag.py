"""Lags of consumer groups, beside plain sums over RocketMQ's own queues and log."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from reput.readers.grouplag import CommittedOffsets, Lag, QueueLag, queue_lags, total
from reput.readers.messagestore import MessageStore
from reput.store.errors import NotFoundError, StoreError
from reput.store.state.consumeroffset import TopicGroup
from tests.readers.stores import SmallStore
from tests.support.golden import ALL_GOLDEN_NAMES
from tests.support.live_store import LiveStore
from tests.support.plain_queues import PlainMessage, plain_queue, queue_directories

NOW_MS = 1_800_000_000_000
GROUPS = ("g1", "g-2", "CID%|x", "g1@broadcast")
UNKNOWN = Lag(None, None, None, None)
Offsets = Mapping[tuple[str, str], Mapping[int, int]]


@pytest.mark.parametrize("name", [*ALL_GOLDEN_NAMES, "plain without its first file"])
def test_lags_are_those_of_a_plain_sum(name: str, golden: Callable[[str], Path], seed: int) -> None:
    """Random groups over every queue of a broker's store, committed anywhere or nowhere."""
    rng = random.Random(seed)
    root = golden(name.split(maxsplit=1)[0])
    queues = {
        (directory.parent.name, int(directory.name)): list(plain_queue(root, directory))
        for directory in queue_directories(root)
    }
    first = 0
    if " " in name:
        removed, kept, *_ = sorted((root / "commitlog").iterdir())
        removed.unlink()
        first = int(kept.name)
    written = random_offsets(rng, queues)
    write_offsets(root, written)
    found = list(lags(root))
    assert {TopicGroup(one.topic, one.group) for one in found} == set(written)
    for one in found:
        stored = [
            message
            for message in queues[one.topic, one.queue_id]
            if message.record.physical_offset >= first
        ]
        committed = written[one.topic, one.group].get(one.queue_id)
        assert one.committed == committed
        assert one.lag == plain_lag(stored, committed), one
    assert {one.lag == UNKNOWN for one in found} == {True, False}


def test_what_is_unknown_in_one_queue_is_unknown_in_the_sum(tmp_path: Path) -> None:
    """The sum has what is known in all of them; the age is the oldest message's."""
    small = SmallStore(tmp_path)
    for number in range(6):
        small.append(queue_id=number % 2, store_timestamp=NOW_MS - 1000 * (10 - number))
    size = small.log.spans[0][1]
    small.write()
    offsets = {("Topic", "both"): {0: 1, 1: 2}, ("Topic", "one"): {0: 3}}
    write_offsets(tmp_path, offsets)
    found = list(lags(tmp_path))
    both = total(one.lag for one in found if one.group == "both")
    assert both == Lag(3, 3 * size, NOW_MS - 8000, 8.0)
    assert [one.lag for one in found if one.group == "one"] == [Lag(0, 0, None, 0.0), UNKNOWN]
    assert total(one.lag for one in found if one.group == "one") == UNKNOWN
    assert total([]) == Lag(0, 0, None, 0.0)
    # a time that is known in one of two is that of neither
    assert total([Lag(1, 9, NOW_MS, 1.0), UNKNOWN]) == UNKNOWN


def test_a_message_of_a_clock_that_is_ahead_has_no_age(tmp_path: Path) -> None:
    """The broker's clock is before ours by a second; no alert shall see a lag below zero."""
    small = SmallStore(tmp_path)
    small.append(store_timestamp=NOW_MS + 1000)
    small.write()
    write_offsets(tmp_path, {("Topic", "g"): {0: 0}})
    size = small.log.spans[0][1]
    assert [one.lag for one in lags(tmp_path)] == [Lag(1, size, NOW_MS + 1000, 0.0)]
    # a queue without a lag takes nothing from the sum, and each figure is unknown for itself
    known = Lag(3, 300, NOW_MS - 8000, 8.0)
    assert total([Lag(0, 0, None, 0.0), known]) == known
    assert total([Lag(2, 200, None, None), known]) == Lag(5, 500, None, None)
    assert total([Lag(2, None, None, None), known]) == Lag(5, None, None, None)


def test_a_lag_without_its_first_record_has_no_age(tmp_path: Path) -> None:
    """The record is damaged; the units still say how many messages and bytes there are."""
    small = SmallStore(tmp_path)
    offsets = [small.append() for _ in range(4)]
    small.log.put(offsets[1] + 4, b"\0\0\0\0")
    small.write()
    write_offsets(tmp_path, {("Topic", "g"): {0: 1}})
    assert [one.lag for one in lags(tmp_path)] == [Lag(3, 3 * small.log.spans[0][1], None, None)]


def test_a_lag_across_a_missing_file_of_the_queue_has_its_messages_alone(tmp_path: Path) -> None:
    """The bytes before the hole would be a sum that looks whole."""
    small = SmallStore(tmp_path)
    for _ in range(35):
        small.append()
    small.write()
    (tmp_path / "consumequeue" / "Topic" / "0" / f"{10 * 20:020d}").unlink()
    write_offsets(tmp_path, {("Topic", "g"): {0: 5}, ("Topic", "h"): {0: 20}})
    size = small.log.spans[0][1]
    assert [(one.lag.messages, one.lag.bytes) for one in lags(tmp_path)] == [
        (30, None), (15, 15 * size)
    ]  # fmt: skip


def test_a_message_of_the_future_is_not_older_than_now(tmp_path: Path) -> None:
    """The broker's clock is ahead of this one; an age below zero would lessen no sum."""
    small = SmallStore(tmp_path)
    small.append(store_timestamp=NOW_MS + 5000)
    small.write()
    write_offsets(tmp_path, {("Topic", "g"): {0: 0}})
    (lag,) = [one.lag for one in lags(tmp_path)]
    assert (lag.first_store_timestamp, lag.seconds) == (NOW_MS + 5000, 0.0)


def test_queues_that_are_not_there(tmp_path: Path) -> None:
    """Their groups stay visible. Nothing waits at offset 0; what a group consumed beyond it came
    from messages that this store does not have."""
    SmallStore(tmp_path).write()
    write_offsets(tmp_path, {("Topic", "g"): {3: 0, 4: 7}, ("../Topic", "g"): {0: 1}})
    found = {(one.topic, one.queue_id): one.lag for one in lags(tmp_path)}
    assert found == {
        ("../Topic", 0): UNKNOWN, ("Topic", 3): Lag(0, 0, None, 0.0), ("Topic", 4): UNKNOWN
    }  # fmt: skip


def test_a_group_beyond_the_watermark(tmp_path: Path) -> None:
    """Its consumers read from the broker, which is ahead of the dispatcher: their lag is unknown
    until the dispatcher is there, never negative and never 0."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"a", b"b", b"c")
        live.dispatch()
        live.append_tags(b"d", b"e")
        write_offsets(live.root, {("T", "g"): {0: 4}})
        assert [one.lag for one in lags(live.root, live.output)] == [UNKNOWN]
        live.dispatch()
        assert [one.lag.messages for one in lags(live.root, live.output)] == [1]


def test_offsets_below_the_output_count(tmp_path: Path) -> None:
    """They are the newer ones where both are there."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"a", b"b", b"c")
        live.dispatch()
        write_offsets(live.root, {("T", "g"): {0: 1}})
        assert [one.committed for one in lags(live.root, live.output)] == [1]
        write_offsets(live.output, {("T", "g"): {0: 2}})
        assert [one.committed for one in lags(live.root, live.output)] == [2]
        assert [one.committed for one in lags(live.root)] == [1]


def test_offsets_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    """Never a store without groups."""
    with pytest.raises(NotFoundError, match=r"there is no .*/config/consumerOffset\.json"):
        CommittedOffsets.read(tmp_path)
    config = tmp_path / "config"
    config.mkdir()
    for text, problem in (
        ('{"offsetTable":{"T@g":{0:"x"}}}', "the offset of T@g in queue 0 is 'x'"),
        ('{"offsetTable":{"T@g":{"q":1}}}', "invalid literal"),
        ('{"offsetTable":{"T@g":{0:true}}}', "is True"),
        ('{"offsetTable":{"T":{0:1}}}', "'T' of offsetTable is not TOPIC@GROUP"),
        ('{"offsetTable":{"@g":{0:1}}}', "is not TOPIC@GROUP"),
        ('{"offsetTable":[1]}', "expected an object"),
        ("[]", "expected an object"),
        ('{"offsetTable":{"T@g":{0:', "is not whole"),
    ):
        (config / "consumerOffset.json").write_text(text)
        with pytest.raises(StoreError, match=problem):
            CommittedOffsets.read(tmp_path)
    (config / "consumerOffset.json.bak").write_text('{"offsetTable":{"T@g":{0:7}}}')
    assert CommittedOffsets.read(tmp_path).table == {("T", "g"): {0: 7}}


def lags(root: Path, output: Path | None = None) -> Iterator[QueueLag]:
    committed = CommittedOffsets.read(root, output)
    with MessageStore(root, output=output) as store:
        yield from queue_lags(store, committed, NOW_MS)


def random_offsets(
    rng: random.Random, queues: Mapping[tuple[str, int], list[PlainMessage]]
) -> Offsets:
    topics = sorted({topic for topic, _ in queues})
    offsets: dict[tuple[str, str], dict[int, int]] = {}
    for topic in topics:
        for group in GROUPS:
            taken = offsets[topic, group] = {}
            for (of, queue_id), messages in queues.items():
                end = messages[-1].queue_offset + count_of(messages[-1])
                places = (-1, 0, end - 1, end, end + 1, rng.randrange(end + 1))
                if of == topic and rng.random() < 0.8:
                    taken[queue_id] = rng.choice((*places, rng.randrange(end + 1)))
    return offsets


def count_of(message: PlainMessage) -> int:
    return int(message.values.get("INNER_NUM", "1"))


def plain_lag(stored: list[PlainMessage], committed: int | None) -> Lag:
    """By the definition, message by message."""
    end = stored[-1].queue_offset + count_of(stored[-1])
    if committed is None or committed > end:
        return UNKNOWN
    waiting = [one for one in stored if one.queue_offset + count_of(one) > committed]
    if not waiting:
        return Lag(0, 0, None, 0.0)
    covered = {
        offset
        for one in waiting
        for offset in range(one.queue_offset, one.queue_offset + count_of(one))
        if offset >= committed
    }
    first = waiting[0].record.store_timestamp
    size = sum(one.record.total_size for one in waiting)
    return Lag(len(covered), size, first, max(0, NOW_MS - first) / 1000)


def write_offsets(root: Path, offsets: Offsets) -> None:
    """As fastjson writes the file."""
    entries = [
        f'\t\t"{topic}@{group}":{{{",".join(f"{q}:{o}" for q, o in queues.items())}\n\t\t}}'
        for (topic, group), queues in offsets.items()
    ]
    table = ",\n".join(entries)
    (root / "config").mkdir(parents=True, exist_ok=True)
    text = f'{{\n\t"dataVersion":{{\n\t\t"counter":1\n\t}},\n\t"offsetTable":{{\n{table}\n\t}}\n}}'
    (root / "config" / "consumerOffset.json").write_text(text)
