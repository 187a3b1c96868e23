"""One history: a server and its clients, and what happens to them, by one seed."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.power_cuts import Power
from tests.torture.simulation.clients import (
    BURST_SECONDS,
    LONGEST_SUSPEND_MS,
    QUEUES,
    TOPIC,
    Member,
    Net,
    Survey,
)
from tests.torture.simulation.history import History, Kind
from tests.torture.simulation.loop import VirtualLoop, run
from tests.torture.simulation.network import Weather
from tests.torture.simulation.offsets import KILL_SECONDS, POWER_CUT_SYNCS
from tests.torture.simulation.server import Place
from tests.torture.simulation.store import Queues

SECONDS = 30.0
GROUPS = ("g", "g", "g", "h")
"""The group of each member."""
LATEST_NOTICE = 30.0
"""The longest time until one side of a connection notices that it is cut."""
LATEST_RESTART = 2.0
LONGEST_FULL = 20.0
LONG = 0.06
"""The part of histories with silent minutes, in which locks end and members expire."""


@dataclass(frozen=True)
class Character:
    """The habits of one history."""

    slowest_sync: float
    pause: float
    """Mean time between two requests of a member."""
    fault: float
    """Mean time between two faults."""
    growth: float
    """Mean time between two arrivals of messages."""
    delay: float
    """The longest usual delay of a piece."""
    is_long: bool

    @classmethod
    def drawn(cls, rng: random.Random) -> Character:
        """By chance."""
        return cls(
            rng.choice((0.004, 0.1, 0.3)), rng.choice((0.2, 0.4, 0.8)), rng.choice((0.5, 1.5, 4.0)),
            rng.choice((0.1, 0.5, 2.0)), rng.choice((0.0005, 0.01, 0.2)), rng.random() < LONG,
        )  # fmt: skip


class World:
    """A server, its clients, and their faults."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, disk: Power, output: Path) -> None:
        self._loop, self._rng = loop, rng
        self._character = character = Character.drawn(rng)
        self.history = History(character.slowest_sync)
        queues = Queues((TOPIC, number) for number in range(QUEUES))
        own = random.Random(rng.random())
        self.place = Place(loop, own, disk, output, queues, self.history)
        self._net = Net(self.place, random.Random(rng.random()), Weather(character.delay))
        self._members = [
            Member(f"c{number}", group, self._net, random.Random(rng.random()), character.pause)
            for number, group in enumerate(GROUPS)
        ]
        self._survey = Survey("survey", self._net)
        self._until = SECONDS

    async def play(self) -> None:
        """The whole history."""
        self.place.start()
        self._arrive()
        faults = (
            (self._cut, 8), (self._slow, 2), (self._crash, 2), (self._stop, 1), (self._rest, 3),
            (self._expire, 1), (self._fill, 1),
            (self._silence, 1 if self._character.is_long else 0),
        )  # fmt: skip
        while self._loop.time() < self._until:
            await asyncio.sleep(self._rng.expovariate(1 / self._character.fault))
            (fault,) = self._rng.choices([f for f, _ in faults], [weight for _, weight in faults])
            await fault()
        await self._end()

    def _arrive(self) -> None:
        """Messages arrive, now and later."""
        if self._loop.time() >= self._until:
            return
        queue = TOPIC, self._rng.randrange(QUEUES)
        self.place.queues.grow(queue, self._rng.choice((1, 1, 1, 10, 100)))
        self.place.note(Kind.GREW, what=(queue, self.place.queues.bounds[queue]))
        if self.place.server is not None:
            self.place.server.arrivals.notify([queue])
        self._loop.call_later(self._rng.expovariate(1 / self._character.growth), self._arrive)

    async def _expire(self) -> None:
        queue = TOPIC, self._rng.randrange(QUEUES)
        self.place.queues.expire(queue, self._rng.randrange(50))
        self.place.note(Kind.GREW, what=(queue, self.place.queues.bounds[queue]))

    async def _cut(self) -> None:
        links = [member.link for member in self._members if member.link is not None]
        if links:
            soon, late = self._rng.random() * 0.1, self._rng.random() * LATEST_NOTICE
            times = self._rng.choice(((soon, soon), (soon, late), (late, soon), (late, late)))
            self._net.cut(self._rng.choice(links), *times)

    async def _slow(self) -> None:
        links = [member.link for member in self._members if member.link is not None]
        if links:
            link = self._rng.choice(links)
            link.up.slow_until = link.down.slow_until = self._loop.time() + 5 * self._rng.random()

    async def _fill(self) -> None:
        """Fill the disk, wholly or nearly, for a while or until the server's end. Without space no
        server starts."""
        if self.place.server is None or not self.place.server.is_listening:
            return
        self.place.fill(self._rng.choice((1.0, 1.0, 0.5)))
        self._loop.call_later(LONGEST_FULL * self._rng.random() ** 2, self.place.free)

    async def _crash(self) -> None:
        """Kill the server or cut the power, and start another one."""
        server = self.place.server
        assert server is not None
        server.kill(by_power_cut=self._rng.random() < 0.6)
        await self._start()

    async def _start(self) -> None:
        """Start a server; some are killed while they start. Mostly all offsets are asked for before
        members change them."""
        while True:
            await asyncio.sleep(LATEST_RESTART * self._rng.random() ** 2)
            self.place.free()
            server = self.place.start()
            if self._rng.random() < 0.2:
                await asyncio.sleep(self._rng.random() * self._character.slowest_sync * 4)
                if not server.started.is_set():
                    server.kill(by_power_cut=self._rng.random() < 0.6)
                    continue
            await server.started.wait()
            break
        if self._rng.random() < 0.8:
            silent = [member.silent_until for member in self._members]
            self._silence_all(float("inf"))
            await self._survey.ask(sorted({*GROUPS}))
            for member, until in zip(self._members, silent, strict=True):
                member.silent_until = until

    async def _stop(self) -> None:
        """Let the server end, and start another one; some are killed while they end."""
        server = self.place.server
        assert server is not None
        # without space it would end with an error
        self.place.free()
        ending = server.stop()
        if self._rng.random() < 0.3:
            await asyncio.sleep(self._rng.random() * self._character.slowest_sync * 4)
            server.kill(by_power_cut=self._rng.random() < 0.6)
        await asyncio.wait([ending])
        await self._start()

    async def _rest(self) -> None:
        """Let all members do nothing for a while, most after some commits; then the power may be
        cut: later commits would be synced with those that a sync has missed."""
        bound = KILL_SECONDS + POWER_CUT_SYNCS * self._character.slowest_sync
        seconds = BURST_SECONDS + bound * self._rng.random() * 2
        self._silence_all(self._loop.time() + seconds)
        if self._rng.random() < 0.7:
            for member in self._members:
                member.commit_soon()
        await asyncio.sleep(seconds)
        if self._rng.random() < 0.5:
            await self._crash()

    def _silence_all(self, until: float) -> None:
        for member in self._members:
            member.silent_until = max(member.silent_until, until)

    async def _silence(self) -> None:
        """Let some members do nothing for minutes, and others for a while."""
        now, seconds = self._loop.time(), 60 + 80 * self._rng.random()
        for member in self._members:
            member.silent_until = now + seconds * self._rng.choice((0.02, 0.9, 1.0))
        self._until += seconds
        await asyncio.sleep(seconds)

    async def _end(self) -> None:
        """Let everything come to rest, look at it, and look again after a restart."""
        self.place.free()
        self._silence_all(float("inf"))
        await asyncio.sleep(LONGEST_SUSPEND_MS / 1000 + 10)
        self.place.note(Kind.QUIET)
        for _ in range(2):
            await self._survey.ask(sorted({*GROUPS}))
            assert self.place.server is not None
            await asyncio.wait([self.place.server.stop()])
            server = self.place.start()
            await server.started.wait()
        await asyncio.wait([server.stop()])


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile: a history keeps what it makes, and the collector would look at
    all of it again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def play(directory: Path, rng: random.Random) -> World:
    """Play one history in an empty directory."""
    output = directory / "output"
    shutil.rmtree(directory, ignore_errors=True)
    output.mkdir(parents=True)
    (directory / "store").mkdir()
    loop = VirtualLoop()
    with uncollected(), Power(output) as disk:
        world = World(loop, rng, disk, output)
        with world.place.simulated():
            run(loop, world.play())
    world.place.failures.extend(
        error if isinstance(error, BaseException) else RuntimeError(error) for error in loop.errors
    )
    return world
