"""Allocation asked the same as RocketMQ's own strategies, in random cases.

Aim: the same queues in the same order for every member, or a refusal where RocketMQ refuses. The
texts of refusals are not compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from reput.readers.allocation import (
    AllocateAveragely,
    AllocateAveragelyByCircle,
    AllocateByConfig,
    AllocateByMachineRoom,
    AllocateConsistentHash,
    AllocateMachineRoomNearby,
    AllocateMessageQueueStrategy,
    MessageQueue,
    assigned_queues,
)
from reput.store.errors import UsageError
from tests.interop.rocketmq import PARITY, ask_allocation

NAMES = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "CONFIG")
ALPHABET = ("a", "b", "-", "@", "\ue000", "\U0001f600", "é", "7")
"""The fifth sorts after the sixth as UTF-16 units, before it as characters."""
pytestmark = [
    pytest.mark.usefixtures("release"),
    pytest.mark.parametrize("release", [PARITY], indirect=True),
]
"""The client decides, and no newer one than 5.5.0's is published, whose strategies are the same."""
ROOMS = ("r1", "r2", "\U0001f600", "\ue000")


def test_a_share_of_the_random_cases(seed: int) -> None:
    """500 of each strategy."""
    compare(seed, 500)


@pytest.mark.slow
def test_many_random_cases(seed: int) -> None:
    """10,000 of each strategy."""
    compare(seed, 10_000)


def test_every_queue_has_one_owner(seed: int) -> None:
    """Members together own each queue once, by the strategies that promise it; half of the answers
    are RocketMQ's, so that members of both kinds may be mixed."""
    rng = random.Random(seed)
    clients = [f"192.0.2.{number}@{rng.randrange(9999)}" for number in range(7)]
    queues = [MessageQueue("Orders", broker, q) for broker in ("b0", "b1") for q in range(16)]
    for name in ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH|10"):
        theirs = ask_allocation(
            [Case(name, True, one, clients, queues).line() for one in clients[::2]]
        )
        ours = [Case(name, True, one, clients, queues).answer() for one in clients[1::2]]
        owned = [queue for share in theirs + ours for queue in filter(None, share.split(","))]
        assert sorted(owned) == sorted(map(text_of, queues))


def compare(seed: int, count: int) -> None:
    rng = random.Random(seed)
    cases = [case for name in NAMES for case in random_cases(rng, name, count)]
    answers = ask_allocation([case.line() for case in cases])
    refused = answers.count("REFUSED")
    assert 0 < refused < len(answers) / 3
    assert len(set(answers)) > len(answers) / 4
    for case, answer in zip(cases, answers, strict=True):
        assert case.answer() == answer, case


@dataclass(frozen=True)
class Case:
    """One question."""

    strategy: str
    """As AllocateCommand has it, with its argument after a bar."""
    is_sorted: bool
    client_id: str
    client_ids: list[str]
    queues: list[MessageQueue]

    def line(self) -> str:
        queues = ",".join(map(text_of, self.queues))
        words = (self.strategy, str(self.is_sorted), self.client_id, ",".join(self.client_ids))
        return "\t".join((*words, queues))

    def answer(self) -> str:
        """Ours, in the words of the harness."""
        try:
            strategy = strategy_of(self.strategy)
            if self.is_sorted:
                found = assigned_queues(strategy, self.client_id, self.queues, self.client_ids)
            else:
                found = strategy.allocate(self.client_id, self.queues, self.client_ids)
        except UsageError:
            return "REFUSED"
        return ",".join(map(text_of, found))


class BeforeHyphen:
    """A room is what stands before the first hyphen."""

    def broker_room(self, queue: MessageQueue, /) -> str:
        return self.client_room(queue.broker_name)

    def client_room(self, client_id: str, /) -> str:
        return client_id.partition("-")[0] if "-" in client_id else ""


def strategy_of(text: str) -> AllocateMessageQueueStrategy:
    name, _, argument = text.partition("|")
    made: dict[str, Callable[[], AllocateMessageQueueStrategy]] = {
        "AVG": AllocateAveragely,
        "AVG_BY_CIRCLE": AllocateAveragelyByCircle,
        "CONSISTENT_HASH": lambda: AllocateConsistentHash(int(argument)),
        "MACHINE_ROOM": lambda: AllocateByMachineRoom(argument.split(",")),
        "MACHINE_ROOM_NEARBY": lambda: AllocateMachineRoomNearby(
            strategy_of(argument), BeforeHyphen()
        ),
        "CONFIG": lambda: AllocateByConfig(queues_of(argument)),
    }
    return made[name]()


def queues_of(text: str) -> list[MessageQueue]:
    parts = (item.split(":") for item in text.split(",") if item)
    return [MessageQueue(topic, broker, int(queue_id)) for topic, broker, queue_id in parts]


def text_of(queue: MessageQueue) -> str:
    return ":".join(map(str, queue))


def random_cases(rng: random.Random, name: str, count: int) -> Iterator[Case]:
    for _ in range(count):
        clients = [random_client(rng, name) for _ in range(rng.choice((0, 1, 2, 3, 5, 9, 30)))]
        if clients and rng.random() < 0.1:
            clients.append(rng.choice(clients))
        queues = random_queues(rng, name)
        one = rng.choice([*clients, *clients, *clients, "stranger", ""])
        yield Case(random_strategy(rng, name, queues), rng.random() < 0.6, one, clients, queues)


def random_strategy(rng: random.Random, name: str, queues: list[MessageQueue]) -> str:
    if name == "CONSISTENT_HASH":
        return f"{name}|{rng.choice((-1, 0, 1, 3, 10, 10, 10, 50))}"
    if name == "MACHINE_ROOM":
        return f"{name}|{','.join(rng.sample(ROOMS, rng.randint(1, 3)))}"
    if name == "MACHINE_ROOM_NEARBY":
        inner = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH|10")
        return f"{name}|{rng.choice(inner)}"
    if name == "CONFIG":
        return f"{name}|{','.join(map(text_of, rng.sample(queues, rng.randint(0, len(queues)))))}"
    return name


def random_client(rng: random.Random, name: str) -> str:
    client = "".join(rng.choices(ALPHABET, k=rng.randint(1, 8)))
    if name == "MACHINE_ROOM_NEARBY" and rng.random() < 0.995:
        return f"{rng.choice(ROOMS)}-{client}"
    return client


def random_queues(rng: random.Random, name: str) -> list[MessageQueue]:
    """Queues of a few brokers, in any order."""
    brokers = ["".join(rng.choices(ALPHABET, k=rng.randint(1, 6))) for _ in range(3)]
    if name == "MACHINE_ROOM":
        brokers = [f"{rng.choice(ROOMS)}@{broker}" for broker in brokers]
        brokers += rng.sample(("r1@", "@r1", "r1@b@", "r1@@b", "@", "r1"), 2)
    if name == "MACHINE_ROOM_NEARBY":
        brokers = [f"{rng.choice(ROOMS)}-{broker}" for broker in brokers]
        brokers += ["nowhere"] if rng.random() < 0.02 else []
    count = rng.choice((0, 1, 2, 3, 4, 8, 16, 33))
    topics = ("Orders", "O\U0001f600", "O\ue000")
    found = [
        MessageQueue(rng.choice(topics), rng.choice(brokers), rng.randrange(64))
        for _ in range(count)
    ]
    return list(dict.fromkeys(found))
