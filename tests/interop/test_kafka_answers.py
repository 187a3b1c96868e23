"""Requests to Kafka that were carried out, and whose answer was lost: every message is there once,
and counted once."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from kafka.errors import KafkaError, KafkaTimeoutError

from reput.sinks.kafka import transactions
from reput.streaming import followers
from tests.interop.kafka import Kafka
from tests.interop.lossyproxy import lossy_proxy
from tests.interop.mirroring import boundaries, mirror_target, rows
from tests.interop.test_kafka import assert_mirrored, make_store
from tests.support.following import follow, follower_state
from tests.support.settings import ANY_SETTINGS

MESSAGES = 24
OFTEN = [
    ("InitProducerId", 1), ("AddPartitionsToTxn", 2), ("Produce", 2), ("EndTxn", 2),
    ("FindCoordinator", 1),
]  # fmt: skip


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower tries again at once."""
    monkeypatch.setattr(followers, "FIRST_RETRY_SECONDS", 0.0)


def mirror_with_loss(kafka: Kafka, root: Path, kind: str, number: int) -> bool:
    """Mirror a store in two writes through a proxy that loses an answer; whether there was one."""
    identity = f"answer-{os.urandom(4).hex()}"
    store, output = root / "store", root / identity
    ends = boundaries(store)
    with lossy_proxy(kafka, kind, number) as proxy:
        target = mirror_target(kafka.proxy, identity)
        follow(store, output, target, [ends[MESSAGES // 3], ends[-1]])
    assert_mirrored(kafka, identity, store)
    state = follower_state(output)
    assert (state.position, state.error) == (ends[-1], None)
    assert (state.rows, dict(state.counts)) == (MESSAGES, {"messages": MESSAGES})
    return proxy.was_lost


@pytest.mark.parametrize(("kind", "number"), OFTEN)
def test_an_answer_of_kafka_is_lost(kafka: Kafka, tmp_path: Path, kind: str, number: int) -> None:
    """One of the requests that begin and end transactions."""
    make_store(tmp_path / "store", MESSAGES)
    assert mirror_with_loss(kafka, tmp_path, kind, number)


def test_a_commit_whose_answer_never_comes_is_counted(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write fails, since Kafka is away afterwards; the position says that it was made. It is
    counted once, also where the position cannot be written anew at first."""
    monkeypatch.setattr(transactions, "WAIT_SECONDS", 1.0)
    monkeypatch.setattr(transactions, "_REQUEST_MS", 1000)

    def lost() -> None:
        raise KafkaTimeoutError

    identity = f"answer-{os.urandom(4).hex()}"
    store = make_store(tmp_path / "store", MESSAGES)
    end = boundaries(store)[-1]
    with (
        lossy_proxy(kafka, "EndTxn", 2) as proxy,
        closing(mirror_target(kafka.proxy, identity).open("", ANY_SETTINGS)) as follower,
    ):
        proxy.ends_with_it = True
        assert follower.position() is None
        with pytest.raises(KafkaError):
            follower.write(0, end, rows(store, 0, end))
        assert proxy.is_down
        assert follower.counts() == {"messages": 0}
        proxy.ends_with_it = False
        with monkeypatch.context() as patch:
            patch.setattr(follower._transactions, "flush", lost)
            with pytest.raises(KafkaError):
                follower.position()
        for _ in range(2):
            assert follower.position() == end
            assert follower.counts() == {"messages": MESSAGES}
    assert_mirrored(kafka, identity, store)


@pytest.mark.slow
def test_any_answer_of_kafka_is_lost(kafka: Kafka, tmp_path: Path) -> None:
    """Every answer of every kind in turn."""
    store = make_store(tmp_path / "store", MESSAGES)
    with lossy_proxy(kafka) as proxy:
        ends = boundaries(store)
        target = mirror_target(kafka.proxy, f"answers-{os.urandom(4).hex()}")
        follow(store, tmp_path / "plain", target, [ends[MESSAGES // 3], ends[-1]])
    kinds = sorted(proxy.answers)
    assert {kind for kind, _ in OFTEN} <= set(kinds)
    lost = 0
    for kind in kinds:
        number = 1
        while mirror_with_loss(kafka, tmp_path, kind, number):
            number += 1
        lost += number - 1
        print(f"{kind}: {number - 1}")
    print(f"lost={lost}")
