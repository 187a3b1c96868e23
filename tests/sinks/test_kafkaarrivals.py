"""Records that a mirror and notices of arrival send to which partition, without a Kafka.

Expected values are written by hand, by the documented form (docs, formats.md §5 for light queues).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from reput.sinks.kafka import mirror
from reput.sinks.kafka.mirror import (
    KafkaArrivals,
    KafkaArrivalsTarget,
    KafkaFollower,
    KafkaMirror,
    KafkaMirrorTarget,
)
from reput.sinks.kafka.records import Arena, KafkaRecords
from reput.sinks.kafka.topics import TopicNames, TopicSelection
from reput.sinks.kafka.transactions import KafkaSettings, KafkaTransactions
from reput.store.config import StoreSettings
from reput.store.errors import StoreError, UsageError
from reput.store.follower import FollowerTarget
from reput.store.rows.rowform import RowForm
from reput.store.rows.rowschema import ROWS_SCHEMA

STORED_MS = 1_700_000_000_123
Sent = tuple[str, int, bytes, bytes, int]
"""Topic and partition on Kafka, key, value, physical offset."""


def rows_of(*rows: Mapping[str, Any]) -> pa.RecordBatch:
    """Rows of topic T, unless they say more."""
    whole = [
        {
            "topic": "T", "queueId": 3, "queueOffset": number, "physicalOffset": 100 * number,
            "storeSize": 100, "sysFlag": 0, "tagsCode": 40 + number, "transactionType": "none",
            "storeTimestamp": 1000 * STORED_MS, "body": b"%d" % number, **row,
        }
        for number, row in enumerate(rows)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(whole, schema=ROWS_SCHEMA)


def values_of(arena: Arena) -> list[bytes]:
    return [arena.data[low:high].tobytes() for low, high in pairwise(arena.bounds)]


def sent(follower: KafkaFollower, batch: pa.RecordBatch) -> list[Sent]:
    """Records in the order in which they are sent."""
    found: list[Sent] = []
    for records in follower._records(follower._messages(batch)):
        places = [records.places[code] for code in records.codes.tolist()]
        keys, values = values_of(records.keys), values_of(records.values)
        offsets = records.physical_offsets.tolist()
        for (topic, partition), *rest in zip(places, keys, values, offsets, strict=True):
            found.append((topic, partition, *rest))
        assert len({*records.places}) == len(records.places)
    return found


def partition_of(_topic: str, key: bytes) -> int:
    """Stands in for Kafka's hash; several keys have one partition."""
    return len(key) % 3


def arrivals(enable_lmq: bool | None, patterns: Sequence[str] = ()) -> KafkaArrivals:
    to = cast(KafkaTransactions, SimpleNamespace(partition_for=partition_of))
    return KafkaArrivals(to, TopicSelection(tuple(patterns)), "arrivals", enable_lmq)


def notice(topic: str, queue_id: int, offset: int, number: int) -> Sent:
    """The record about the message ``number`` in a queue."""
    key = f"{topic}-{queue_id}".encode()
    value = {
        "topic": topic, "queueId": queue_id, "maxOffset": offset + 1, "tagsCode": 40 + number,
        "storeTimestamp": STORED_MS,
    }  # fmt: skip
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return "arrivals", partition_of("", key), key, text.encode(), 100 * number


def light(names: str, offsets: str) -> dict[str, Any]:
    pairs = [("INNER_MULTI_DISPATCH", names), ("INNER_MULTI_QUEUE_OFFSET", offsets)]
    return {"properties": pairs}


def test_a_notice_is_of_what_a_queue_has_got() -> None:
    """A message of a transaction once it is committed; nothing of damage."""
    batch = rows_of(
        {}, {"topic": "订单", "queueId": 12}, {"transactionType": "prepared"},
        {"transactionType": "commit"}, {"transactionType": "rollback"},
        {"corruptReason": "bad_magic", "topic": None, "queueId": None, "transactionType": None},
        {"queueId": 0, "queueOffset": 1 << 40},
    )  # fmt: skip
    assert sent(arrivals(None), batch) == [
        notice("T", 3, 0, 0), notice("订单", 12, 1, 1), notice("T", 3, 3, 3),
        notice("T", 0, 1 << 40, 6),
    ]  # fmt: skip
    assert sent(arrivals(None, ["订*"]), batch) == [notice("订单", 12, 1, 1)]
    assert sent(arrivals(None), batch.slice(0, 0)) == []


def test_light_queues_have_notices_of_their_own_where_they_are_built() -> None:
    """After that of the message's queue; %LMQ% has one queue if the broker says so."""
    batch = rows_of(
        {}, light("%LMQ%a,Plain,%LMQ%b", "5,6,7"), light("a,b", "1"), light("a/b,c", "1,2")
    )
    own = [notice("T", 3, number, number) for number in range(4)]
    for enable_lmq, queue_id in ((True, 0), (False, 3)):
        assert sent(arrivals(enable_lmq), batch) == [
            *own[:2], notice("%LMQ%a", queue_id, 5, 1), notice("Plain", 3, 6, 1),
            notice("%LMQ%b", queue_id, 7, 1), *own[2:], notice("c", 3, 2, 3),
        ]  # fmt: skip
    assert sent(arrivals(None), batch) == own
    found = sent(arrivals(True, ["%LMQ%*", "c"]), batch)
    wanted = [notice("%LMQ%a", 0, 5, 1), notice("%LMQ%b", 0, 7, 1), notice("c", 3, 2, 3)]
    assert found == wanted


@pytest.mark.parametrize(
    ("multi", "lmq", "built"),
    [(False, True, None), (False, False, None), (True, False, False), (True, True, True)],
)
def test_a_broker_says_whether_it_builds_light_queues(
    tmp_path: Path, multi: bool, lmq: bool, built: bool | None
) -> None:
    """enableLmq alone builds none."""
    settings = StoreSettings(tmp_path, (), enable_multi_dispatch=multi, enable_lmq=lmq)
    target = KafkaArrivalsTarget(KafkaSettings("a:1"))
    assert target.open("0" * 32, settings)._enable_lmq is built
    assert replace(target, topic="own").open("0" * 32, settings)._topic == "own"


def test_a_message_is_mirrored_to_the_partition_of_its_queue() -> None:
    """A damaged id makes no more than 1,024 partitions; topics have as many as their greatest
    queue needs, wherever it comes."""
    ids = [5, 0, 1023, 1024 + 2, -1, 3]
    batch = rows_of(
        *({"queueId": number} for number in ids),
        *({"topic": "U", "queueId": number} for number in (7, 1, 7, 2)),
        {"topic": "V", "queueId": 0},
        {"corruptReason": "bad_magic", "topic": None, "queueId": None},
    )
    to = cast(KafkaTransactions, SimpleNamespace())
    follower = KafkaMirror(to, TopicSelection(("T", "U")), TopicNames("m-{topic}"))
    partitions = [5, 0, 1023, 2, 1023, 3]
    wanted = [("m-T", at) for at in partitions] + [("m-U", at) for at in (7, 1, 7, 2)]
    found = sent(follower, batch)
    assert [place[:2] for place in found] == wanted
    assert [value for *_, value, _ in found] == [b"%d" % number for number in range(10)]
    messages = follower._messages(batch)
    assert follower._partitions(messages) == {"m-T": 1024, "m-U": 8}
    assert follower._partitions(messages.slice(5, 1)) == {"m-T": 4}
    assert arrivals(None)._partitions(messages) == {"arrivals": 1}
    assert arrivals(None)._partitions(messages.slice(0, 0)) == {}


class Positions:
    """Stands in for the transactions of a writer, each of which is due once it has a record."""

    in_transaction = True
    lacks = staticmethod(lambda _partitions: False)
    partition_for = staticmethod(partition_of)

    position_topic = "positions"

    def __init__(self, position: int | None = None) -> None:
        self.position = position
        """The one that was committed before."""
        self.is_open = True
        self.sent: list[int] = []
        """Physical offsets of all records."""
        self.committed: list[tuple[int, int]] = []
        """The position of each transaction, and how many records had been sent."""

    @property
    def commit_is_due(self) -> bool:
        return len(self.sent) > (self.committed[-1][1] if self.committed else 0)

    def send(self, records: KafkaRecords) -> None:
        self.sent += records.physical_offsets.tolist()

    def commit(self, end: int) -> None:
        self.committed.append((end, len(self.sent)))

    def recover(self) -> int | None:
        return self.position

    def explained(self, error: BaseException) -> BaseException:
        """Only an open one knows what Kafka has refused."""
        return StoreError("refused") if self.is_open and isinstance(error, KeyError) else error

    def close(self) -> None:
        self.is_open = False


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
def test_a_position_never_lies_within_a_message(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """It has a notice for each of its queues, and slices may end between them: after a restart at
    such a position some would be sent again, or not at all."""
    monkeypatch.setattr(mirror, "SLICE_ROWS", rows)
    batch = rows_of(
        *(light(",".join("abcd"[: number % 4 + 1]), "1,2,3,4"[: number % 4 * 2 + 1])
          for number in range(9))
    )  # fmt: skip
    to = Positions()
    chosen = TopicSelection(())
    KafkaArrivals(cast(KafkaTransactions, to), chosen, "arrivals", True).write(
        0, 1000, iter([batch.slice(0, 5), batch.slice(5)])
    )
    assert sorted(to.sent) == to.sent
    assert {to.sent.count(100 * number) for number in range(9)} == {2, 3, 4, 5}
    assert len(to.committed) > 2
    for position, count in to.committed:
        assert max(to.sent[:count]) < position
        assert min(to.sent[count:], default=position) >= position


def mirror_of(to: Positions, selection: TopicSelection | None = None) -> KafkaMirror:
    chosen = TopicSelection() if selection is None else selection
    return KafkaMirror(cast(KafkaTransactions, to), chosen, TopicNames())


@pytest.mark.parametrize(
    ("position", "cut", "moved"),
    [(None, 100, []), (99, 100, []), (100, 100, []), (101, 100, [(100, 0)])],
)
def test_a_cut_moves_only_a_position_beyond_it(
    caplog: pytest.LogCaptureFixture, position: int | None, cut: int, moved: list[tuple[int, int]]
) -> None:
    """A line says once up to where Kafka keeps messages that the log has lost."""
    to = Positions(position)
    with caplog.at_level(logging.WARNING, "reput"):
        mirror_of(to).truncate(cut)
    assert to.committed == moved
    assert [record.getMessage() for record in caplog.records] == [
        "the log was cut at 100, but Kafka keeps the messages up to 101 (positions)"
    ] * len(moved)


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError("gone"), OSError), (KeyError(), StoreError)]
)
def test_a_write_that_fails_leaves_no_transaction_open(
    error: Exception, raised: type[Exception]
) -> None:
    """Readers of Kafka would wait for its end; a refusal by Kafka is looked for before."""

    class Failing(Positions):
        def send(self, records: KafkaRecords) -> None:  # noqa: ARG002
            raise error

    to = Failing()
    with pytest.raises(raised) as found:
        mirror_of(to).write(0, 100, iter([rows_of({})]))
    assert not to.is_open
    assert to.committed == []
    assert found.value is error or found.value.__cause__ is error


def test_rows_have_the_form_that_is_configured() -> None:
    """Kafka keeps none."""
    form = RowForm(include_internal=True, max_inflated_bytes=4096)
    assert mirror_of(Positions(), TopicSelection(("T",), form)).row_form() == replace(
        form, named_topics=("T",)
    )


def test_targets_on_kafka_are_told_apart() -> None:
    """A follower's file keeps the position of one of them, and Kafka may lose it."""
    settings = KafkaSettings("a:1")
    targets: list[FollowerTarget] = [
        KafkaArrivalsTarget(settings), KafkaArrivalsTarget(settings, topic="own"),
        KafkaMirrorTarget(settings), KafkaMirrorTarget(settings, names=TopicNames("m.{topic}")),
        KafkaArrivalsTarget(KafkaSettings("b:1")), KafkaMirrorTarget(KafkaSettings("b:1")),
    ]  # fmt: skip
    assert len({target.description for target in targets}) == len(targets)
    assert all(target.position_is_apart for target in targets)
    with pytest.raises(UsageError, match="a topic's name on Kafka has 1 to 249"):
        KafkaArrivalsTarget(settings, topic="a b")
