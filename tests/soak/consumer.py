"""The soak's consumer: one connection to the run that serves now, all queues, a group's offsets.

It pulls as a push consumer does, and commits with its pulls. When the server has gone it begins
again where the group is committed, so that it may get messages twice, each time with the same
bytes; it must never find that one is missing.
"""

from __future__ import annotations

import random
import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.soak.madelog import LIGHT_TOPIC, QUEUES
from tests.support.remoting import Answer, Client

PULL, QUERY_OFFSET = 11, 14
FOUND, NOT_FOUND, RETRY, NOT_EXIST, TOPIC_NOT_EXIST = 0, 19, 20, 22, 17
WAIT_FLAGS = 1 | 2 | 4
"""Commit, suspend, subscription."""
GROUP = "soak"
RETRY_SECONDS = 0.2
QUIET_SECONDS = 5.0
PLACES = 10_000
"""Places of one queue that are remembered; a commit lags by a fraction of a second."""
POSITION = 28
"""The place of the physical offset in a record."""
Queue = tuple[str, int]


@dataclass
class Consumed:
    """One queue so far."""

    next_offset: int = 0
    units: list[tuple[int, int]] = field(default_factory=list)
    """(physical offset, CRC-32 of the record) of each message, the first time."""
    places: dict[int, int] = field(default_factory=dict)
    """Offset of a pull -> how many units came before its messages."""
    at: int = 0
    """The units before ``next_offset``."""


class Consumer(threading.Thread):
    """Consumes until it is told to end."""

    def __init__(self, port: Callable[[], int], seed: int) -> None:
        super().__init__(name="soak-consumer", daemon=True)
        self._port = port
        self._rng = random.Random(f"consumer {seed}")
        self.queues: dict[Queue, Consumed] = {
            (topic, queue_id): Consumed()
            for topic in ("A", "B", LIGHT_TOPIC.decode())
            for queue_id in range(QUEUES)
        }
        self.connections = self.again = 0
        self.failure: str | None = None
        self._ending = threading.Event()

    def end(self) -> None:
        """Ask it to end, and wait."""
        self._ending.set()
        self.join()

    @property
    def safe_offset(self) -> int:
        """Everything of the log before it was consumed, in all queues but those without any."""
        lasts = [one.units[-1][0] if one.units else 0 for one in self.queues.values()]
        return min(lasts)

    def run(self) -> None:
        """Connect again and again."""
        while not self._ending.is_set() and self.failure is None:
            try:
                with Client(self._port()) as client:
                    self.connections += 1
                    self._consume(client)
            except (OSError, ConnectionError):
                self._ending.wait(RETRY_SECONDS)
            except Exception as error:
                self.failure = f"{type(error).__name__}: {error}"

    def _consume(self, client: Client) -> None:
        for queue, one in self.queues.items():
            if one.next_offset:
                self._begin_where_committed(client, queue, one)
        pulls = {self._pull(client, queue): queue for queue in self.queues}
        while not self._ending.is_set():
            try:
                answer = client.receive(QUIET_SECONDS)
            except TimeoutError:
                continue
            if answer.opaque not in pulls or not answer.header["flag"] & 1:
                continue
            queue = pulls.pop(answer.opaque)
            if not self._take(queue, answer):
                self._ending.wait(RETRY_SECONDS / 4)
            pulls[self._pull(client, queue)] = queue

    def _begin_where_committed(self, client: Client, queue: Queue, one: Consumed) -> None:
        answer = client.ask(
            QUERY_OFFSET, {"consumerGroup": GROUP, "topic": queue[0], "queueId": queue[1]}
        )
        # the first pull commits offset 0, which may not have come to the disk
        offset = int(answer.ext["offset"]) if answer.code == FOUND else 0
        if offset > one.next_offset:
            raise AssertionError(f"{queue} is committed at {offset}, beyond {one.next_offset}")
        if offset not in one.places:
            raise AssertionError(f"{queue} is committed at {offset}, where no pull began")
        one.next_offset, one.at = offset, one.places[offset]

    def _pull(self, client: Client, queue: Queue) -> int:
        one = self.queues[queue]
        one.places[one.next_offset] = one.at
        return client.send(
            PULL,
            {
                "consumerGroup": GROUP, "topic": queue[0], "queueId": queue[1],
                "queueOffset": one.next_offset, "maxMsgNums": 32, "sysFlag": WAIT_FLAGS,
                "commitOffset": one.next_offset, "suspendTimeoutMillis": 15000,
                "subscription": "*", "subVersion": 0,
            },
        )  # fmt: skip

    def _take(self, queue: Queue, answer: Answer) -> bool:
        """Check and keep messages; False where there are none."""
        if answer.code in (NOT_FOUND, RETRY, TOPIC_NOT_EXIST):
            return False
        if answer.code != FOUND:
            raise AssertionError(f"{queue}: a pull was answered with {answer.header}")
        one, at = self.queues[queue], 0
        while at < len(answer.body):
            (size,) = struct.unpack_from(">i", answer.body, at)
            data = answer.body[at : at + size]
            unit = struct.unpack_from(">q", data, POSITION)[0], zlib.crc32(data)
            if one.at < len(one.units):
                if one.units[one.at] != unit:
                    raise AssertionError(f"{queue}: {unit} came for {one.units[one.at]}")
                self.again += 1
            else:
                one.units.append(unit)
            one.at += 1
            at += size
        one.next_offset = int(answer.ext["nextBeginOffset"])
        if len(one.places) > PLACES:
            for old in [*one.places][: PLACES // 2]:
                del one.places[old]
        return True

    def has(self, wanted: dict[Queue, int]) -> bool:
        """Whether so many messages of each queue came."""
        return all(len(self.queues[queue].units) >= count for queue, count in wanted.items())
