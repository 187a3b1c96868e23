"""Clients of a simulated server: members of groups that do at random what members do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.remoting import framed, heartbeat, take_frames
from tests.torture.simulation.history import Kind, Reply, Request
from tests.torture.simulation.network import Link, Weather
from tests.torture.simulation.server import BROKER_NAME, Place, reply_of

PULL, QUERY_OFFSET, UPDATE_OFFSET, MIN_OFFSET = 11, 14, 15, 31
HEART_BEAT, UNREGISTER, MEMBERS, NOTICE = 34, 35, 38, 40
LOCK, UNLOCK, RESET = 41, 42, 222
COMMITS, SUSPENDS, SUBSCRIBES = 1, 2, 4
"""Flags of a pull."""
ONE_WAY = 2
TOPIC = "T"
QUEUES = 4
FOUND, MOVED = 0, 21
PATIENCE_SECONDS = 3.0
"""A client closes the connection if an answer takes longer, as Java's do."""
LONGEST_SUSPEND_MS = 8000
BURST_SECONDS = 0.15


@dataclass
class Net:
    """Makes connections to the server that runs."""

    place: Place
    rng: random.Random
    weather: Weather
    links: list[Link] = field(default_factory=list)
    """All of them; a connection's number is its place here."""
    commits: int = 0

    def next_commit(self) -> int:
        """An offset that nobody has committed."""
        self.commits += 1
        return self.commits

    def connect(
        self, on_received: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Link | None:
        """A new connection; None if it is refused."""
        server = self.place.server
        if server is None or not server.is_listening:
            return None
        number = len(self.links)
        link = Link(self.place.loop, self.rng, self.weather, number, on_received, on_end)
        self.links.append(link)
        server.connect(link)
        return link

    def cut(self, link: Link, server_seconds: float, client_seconds: float) -> None:
        """Cut one; each side notices after so many seconds."""
        if link.is_open and not link.is_cut:
            self.place.note(Kind.CUT, link.number)
            link.cut(server_seconds, client_seconds)


class Wired:
    """Something that sends requests over one connection at a time."""

    def __init__(self, name: str, net: Net) -> None:
        self.name, self._net, self._place = name, net, net.place
        self._loop = net.place.loop
        self.link: Link | None = None
        self._buffer = bytearray()
        self._opaque = 0
        self.asked: dict[int, tuple[float, Request]] = {}
        """Requests without an answer over this connection, by opaque, with the end of patience."""

    def connect(self) -> bool:
        """Whether there is a connection now."""
        if self.link is None:
            self._buffer.clear()
            self.asked.clear()
            self.link = self._net.connect(self._received, self._ended)
        return self.link is not None

    def close(self) -> None:
        """Give the connection up."""
        if self.link is not None:
            self.link.close()
            self.link = None

    def _ended(self) -> None:
        self.link = None

    def send(
        self, code: int, ext: dict[str, object], body: Any = b"", *, is_one_way: bool = False,
        patience: float = PATIENCE_SECONDS,
    ) -> int:  # fmt: skip
        """Send a request; its opaque."""
        assert self.link is not None
        self._opaque += 1
        request = Request(self.name, code, ext, body, is_one_way)
        self._place.note(Kind.SENT, self.link.number, self._opaque, request)
        if not is_one_way:
            self.asked[self._opaque] = self._loop.time() + patience, request
        flag = ONE_WAY if is_one_way else 0
        self.link.send(framed(code, self._opaque, ext, body, flag))
        return self._opaque

    def _received(self, data: bytes) -> None:
        assert self.link is not None
        self._buffer += data
        for frame in take_frames(self._buffer):
            reply = reply_of(frame)
            self._place.note(Kind.RECEIVED, self.link.number, frame.opaque, reply)
            if reply.is_answer and frame.opaque in self.asked:
                self.answered(self.asked.pop(frame.opaque)[1], reply)

    def answered(self, request: Request, reply: Reply) -> None:
        """An answer has come."""


class Member(Wired):
    """A member of a group."""

    def __init__(self, name: str, group: str, net: Net, rng: random.Random, pause: float) -> None:
        """``pause`` is the mean time between two requests, in seconds."""
        super().__init__(name, net)
        self.group, self._rng, self._pause = group, rng, pause
        self.silent_until = 0.0
        """It does nothing before that time."""
        self._positions = [0] * QUEUES
        acts = (
            (self.beat, 14), (self._pull, 30), (self._commit, 20), (self._lock, 14),
            (self._unlock, 4), (self._query, 8), (self._members, 4), (self._min_offset, 2),
            (self._unregister, 1), (self._reset, 2), (self._leave, 1), (self._stall, 2),
        )  # fmt: skip
        self._acts = [act for act, _ in acts]
        self._weights = [weight for _, weight in acts]
        self._next()

    def _next(self) -> None:
        self._loop.call_later(self._rng.expovariate(1 / self._pause), self._act)

    def _act(self) -> None:
        now = self._loop.time()
        if now >= self.silent_until:
            if any(patience < now for patience, _ in self.asked.values()):
                self.close()
            if self.connect():
                (act,) = self._rng.choices(self._acts, self._weights)
                act()
        self._next()

    def beat(self) -> None:
        """Send a heartbeat."""
        self.send(HEART_BEAT, {}, heartbeat(self.name, self.group, TOPIC))

    def _queue(self) -> int:
        return self._rng.randrange(QUEUES)

    def _of_queue(self, queue_id: int) -> dict[str, object]:
        return {"consumerGroup": self.group, "topic": TOPIC, "queueId": queue_id}

    def _pull(self) -> None:
        rng, queue_id = self._rng, self._queue()
        flags = rng.choice((0, SUSPENDS, SUSPENDS)) | rng.choice((0, SUBSCRIBES))
        if rng.random() < 0.3:
            flags |= COMMITS
        offset = self._positions[queue_id]
        if rng.random() < 0.1:
            offset = max(offset + rng.randrange(-30, 30), 0)
        suspend_ms = rng.randrange(1, LONGEST_SUSPEND_MS)
        ext = self._of_queue(queue_id) | {
            "queueOffset": offset, "maxMsgNums": rng.choice((1, 32, 200)), "sysFlag": flags,
            "commitOffset": self._net.next_commit(), "suspendTimeoutMillis": suspend_ms,
            "subscription": "*", "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        self.send(PULL, ext, patience=PATIENCE_SECONDS + suspend_ms / 1000)

    def answered(self, request: Request, reply: Reply) -> None:
        """Go on where an answer says."""
        if request.code == PULL and reply.code in (FOUND, MOVED):
            queue_id = request.ext["queueId"]
            assert isinstance(queue_id, int)
            self._positions[queue_id] = int(reply.ext["nextBeginOffset"])

    def commit_soon(self) -> None:
        """Commit some offsets within a moment, if there is a connection."""
        for _ in range(self._rng.randrange(4)):
            self._loop.call_later(self._rng.random() * BURST_SECONDS, self._commit)

    def _commit(self) -> None:
        if self.link is None:
            return
        offset = self._net.next_commit()
        if self._rng.random() < 0.1:
            offset = max(offset - self._rng.randrange(9), 0)
        ext = self._of_queue(self._queue()) | {"commitOffset": offset}
        self.send(UPDATE_OFFSET, ext, is_one_way=self._rng.random() < 0.7)

    def _some_queues(self) -> dict[str, object]:
        ids = self._rng.sample(range(QUEUES), self._rng.randrange(1, QUEUES + 1))
        queues = [{"brokerName": BROKER_NAME, "queueId": n, "topic": TOPIC} for n in ids]
        return {"consumerGroup": self.group, "clientId": self.name, "mqSet": queues}

    def _lock(self) -> None:
        self.send(LOCK, {}, self._some_queues())

    def _unlock(self) -> None:
        self.send(UNLOCK, {}, self._some_queues(), is_one_way=self._rng.random() < 0.5)

    def _query(self) -> None:
        self.send(QUERY_OFFSET, self._of_queue(self._queue()))

    def _members(self) -> None:
        self.send(MEMBERS, {"consumerGroup": self.group})

    def _min_offset(self) -> None:
        self.send(MIN_OFFSET, {"topic": TOPIC, "queueId": self._queue()})

    def _unregister(self) -> None:
        self.send(UNREGISTER, {"clientID": self.name, "consumerGroup": self.group})

    def _reset(self) -> None:
        queue_id = self._queue()
        low, high = self._place.queues.bounds[TOPIC, queue_id]
        ext = {
            "topic": TOPIC, "group": self.group, "timestamp": 0, "isForce": "true",
            "queueId": queue_id, "offset": self._rng.randint(low, high),
        }  # fmt: skip
        self.send(RESET, ext)

    def _leave(self) -> None:
        self.close()

    def _stall(self) -> None:
        """Read nothing for a while."""
        assert self.link is not None
        self.link.down.read(False)
        seconds = self._rng.random() * 4
        self._loop.call_later(seconds, self.link.down.read, True)


class Survey(Wired):
    """Asks for all committed offsets and members; over another connection where one is lost."""

    async def ask(self, groups: list[str]) -> None:
        """Return when everything is answered."""
        left = [
            (QUERY_OFFSET, {"consumerGroup": group, "topic": TOPIC, "queueId": queue_id})
            for group in groups
            for queue_id in range(QUEUES)
        ] + [(MEMBERS, {"consumerGroup": group}) for group in groups]
        while left:
            while not self.connect():
                await asyncio.sleep(0.1)
            asked = {self.send(code, dict(ext)): (code, ext) for code, ext in left}
            until = self._loop.time() + PATIENCE_SECONDS
            while self.link is not None and self.asked and self._loop.time() < until:
                await asyncio.sleep(0.01)
            left = [query for opaque, query in asked.items() if opaque in self.asked]
            self.close()
