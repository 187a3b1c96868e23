"""Executors of a simulated server: jobs stop before each file operation, and within each sync.

Each executor is a lane, which does one job at a time, in their order. A job is a greenlet, so that
the loop and the jobs of other lanes go on where it stops.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from greenlet import getcurrent, greenlet

from reput.store import fsops

OPERATION_SECONDS = 0.0005
"""The longest time before a file operation, or a job."""


class Dead(Exception):  # noqa: N818
    """The server is dead: it does nothing any more."""


class Lanes:
    """The lanes of one server, from its start to its end."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: random.Random, slowest_sync: float
    ) -> None:
        """``slowest_sync`` in seconds."""
        self.loop = loop
        self.is_dead = False
        self._rng = rng
        self._slowest_sync = slowest_sync
        self._lanes: list[Lane] = []

    def executor(self, _max_workers: int, _name: str) -> Lane:
        """In place of ``ThreadPoolExecutor``."""
        self._lanes.append(Lane(self))
        return self._lanes[-1]

    def reach(self, operation: str) -> None:
        """Stop before an operation; a sync takes its own time."""
        if operation != "sync":
            self.pause(self.short())

    def sync(self, fd: int, path: str | Path) -> None:
        """In place of ``fsops.sync``: the disk does it at some moment of the time that it takes."""
        whole = self._slowest_sync * self._rng.random()
        before = whole * self._rng.choice((0.0, self._rng.random(), 1.0))
        self.pause(before)
        SYNC(fd, path)
        self.pause(whole - before)

    def short(self) -> float:
        """The time before an operation or a job."""
        return OPERATION_SECONDS * self._rng.random()

    def pause(self, seconds: float) -> None:
        """Let others go on meanwhile; what is no job, does not stop."""
        current = getcurrent()
        for lane in self._lanes:
            if lane.job is current:
                lane.timer = self.loop.call_later(seconds, current.switch)
                current.parent.switch()
                lane.timer = None

    def kill(self) -> None:
        """End all jobs where they are; those to come never begin."""
        self.is_dead = True
        for lane in self._lanes:
            lane.kill()


SYNC = fsops.sync


class Lane(Executor):
    """One executor."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.job: greenlet | None = None
        self.timer: asyncio.TimerHandle | None = None
        """It makes the job, or the next one, go on."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Do it after all that was submitted before."""
        future: Future[Any] = Future()
        if self._lanes.is_dead:
            future.set_exception(Dead())
            return future
        self._waiting.append((future, lambda: work(*args, **options)))
        if self.timer is None:
            self._schedule()
        return future

    def _schedule(self) -> None:
        self.timer = self._lanes.loop.call_later(self._lanes.short(), self._begin)

    def _begin(self) -> None:
        self.timer = None
        future, work = self._waiting.popleft()
        if future.set_running_or_notify_cancel():
            self.job = greenlet(lambda: self._do(future, work))
            self.job.switch()
        elif self._waiting:
            self._schedule()

    def _do(self, future: Future[Any], work: Callable[[], Any]) -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        self.job = None
        if self._waiting:
            self._schedule()

    def shutdown(self, *_wait: bool, **_options: bool) -> None:
        """Do all that was submitted, now."""
        while self.timer is not None:
            self.timer.cancel()
            self.timer = None
            if self.job is None:
                self._begin()
            else:
                self.job.switch()

    def kill(self) -> None:
        """End the job where it is."""
        self._waiting.clear()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.job is not None:
            job, self.job = self.job, None
            job.throw()
