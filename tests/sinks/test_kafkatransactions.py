"""Transactions of a follower on Kafka without one: their names, and the topics that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors

from reput.sinks.kafka import transactions as to_kafka
from reput.sinks.kafka.positions import Position
from reput.sinks.kafka.transactions import KafkaSettings, KafkaTransactions
from reput.store.errors import StoreError


def opened(name: str = "kafka", store_id: str | None = None) -> KafkaTransactions:
    """Transactions of a follower of an output whose identity is ``own``."""
    return KafkaTransactions(KafkaSettings("127.0.0.1:9", store_id), "own", name)


def test_each_follower_of_each_store_has_names_of_its_own() -> None:
    """As docs/kafka.md has them: that of the output stands for a store without a name. Under one
    name two followers would fence each other, or go on from each other's position."""
    assert opened().position_topic == "reput-position-kafka-own"
    assert opened(store_id="site").position_topic == "reput-position-kafka-site"
    several = [
        opened(name, store_id) for name in ("kafka", "kafka-arrivals") for store_id in (None, "b")
    ]
    for names in (
        {each.position_topic for each in several}, {each._transactional_id for each in several},
    ):  # fmt: skip
        assert len(names) == len(several)
        assert all(name.startswith("reput-") for name in names)


class Cluster:
    """Stands in for Kafka's brokers and the client of their administrator."""

    def __init__(self, topics: Mapping[str, int], code: int = 0) -> None:
        self.topics = dict(topics)
        """The number of partitions of each topic."""
        self.code = code
        """The answer to what shall change; with an error nothing does."""
        self.changes: list[tuple[str, int]] = []
        self.leaders = [0] * 100
        """The leaders of each topic's partitions; -1 where a broker is down."""

    def close(self) -> None:
        """There is no connection."""

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        """As Kafka's metadata; 3 is the code of a topic that is unknown."""
        return [
            {
                "name": name,
                "error_code": 0 if name in self.topics else 3,
                "partitions": [
                    {"leader_id": one} for one in self.leaders[: self.topics.get(name, 0)]
                ],
            }
            for name in names
        ]

    def _change(self, topics: Mapping[str, int]) -> list[dict[str, Any]]:
        self.changes += topics.items()
        if self.code == 0:
            self.topics |= topics
        answer = {"error_code": self.code, "error_message": None}
        return [{"name": name, **answer} for name in topics]

    def create_topics(
        self, topics: Mapping[str, Mapping[str, Any]], raise_errors: bool
    ) -> dict[str, Any]:
        """An answer for each of them."""
        assert not raise_errors
        counts = {name: one["num_partitions"] for name, one in topics.items()}
        return {"topics": self._change(counts)}

    def create_partitions(self, topics: Mapping[str, int], raise_errors: bool) -> SimpleNamespace:
        """The same."""
        assert not raise_errors
        answer = {"results": self._change(topics)}
        return SimpleNamespace(to_dict=lambda: answer)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cluster], KafkaTransactions]:
    """Makes transactions on a cluster, which wait for nothing."""

    def made(cluster: Cluster) -> KafkaTransactions:
        monkeypatch.setattr(to_kafka, "WAIT_SECONDS", 0.0)
        ours = opened()
        monkeypatch.setattr(ours, "_admin", lambda: cluster)
        return ours

    return made


def test_topics_are_made_and_extended_once(
    connected: Callable[[Cluster], KafkaTransactions],
) -> None:
    """No topic is asked for again that has what it needs, and none gets fewer partitions."""
    cluster = Cluster({"wide": 8, "narrow": 2})
    ours = connected(cluster)
    assert ours.lacks({"wide": 1})
    ours.add_partitions({"wide": 5, "narrow": 3, "new": 4})
    assert cluster.changes == [("new", 4), ("narrow", 3)]
    ours.add_partitions({"other": 1, "narrow": 2})
    assert cluster.topics == {"wide": 8, "narrow": 3, "new": 4, "other": 1}
    for topic, count in cluster.topics.items():
        assert not ours.lacks({topic: count})
        assert ours.lacks({topic: count + 1})
    assert not ours.lacks({})


@pytest.mark.parametrize("topic", ["narrow", "new"])
def test_a_topic_that_kafka_refuses_is_an_error_at_once(
    connected: Callable[[Cluster], KafkaTransactions], topic: str
) -> None:
    """Whether it is to be made or extended, with Kafka's reason."""
    cluster = Cluster({"narrow": 2}, errors.PolicyViolationError.errno)
    ours = connected(cluster)
    with pytest.raises(StoreError, match=f"create or extend the topic {topic}: PolicyViolation"):
        ours.add_partitions({topic: 3})
    assert ours.lacks({topic: 3})


def test_every_topic_is_waited_for(connected: Callable[[Cluster], KafkaTransactions]) -> None:
    """One that is not there yet is named."""
    cluster = Cluster({"a": 1}, errors.TopicAlreadyExistsError.errno)
    with pytest.raises(errors.KafkaTimeoutError, match="topics are not ready: a, b"):
        connected(cluster).add_partitions({"a": 1, "b": 1})


def test_partitions_whose_broker_is_down_are_waited_for(
    connected: Callable[[Cluster], KafkaTransactions],
) -> None:
    """They are there: Kafka would refuse to extend the topic to as many as it has."""
    cluster = Cluster({"a": 3}, errors.InvalidPartitionsError.errno)
    cluster.leaders[1] = -1
    ours = connected(cluster)
    with pytest.raises(errors.KafkaTimeoutError, match="topics are not ready: a"):
        ours.add_partitions({"a": 3})
    assert cluster.changes == []
    cluster.leaders[1] = 2
    ours.add_partitions({"a": 3})
    assert not ours.lacks({"a": 3})


def test_topics_that_are_gone_are_made_anew_after_an_error(
    connected: Callable[[Cluster], KafkaTransactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has deleted them while the follower runs: it would wait for them without end."""
    cluster = Cluster({})
    ours = connected(cluster)
    ours.add_partitions({"a": 2, ours.position_topic: 1})
    cluster.topics.clear()
    monkeypatch.setattr(ours, "_start_producer", lambda: None)
    monkeypatch.setattr(ours, "_last_position", Position)
    monkeypatch.setattr(to_kafka, "check_no_transaction", lambda *_: None)
    monkeypatch.setattr(ours, "commit", lambda _: None)
    assert ours.recover() is None
    assert cluster.topics == {ours.position_topic: 1}
    assert ours.lacks({"a": 2})
