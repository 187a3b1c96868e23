"""An event loop whose time is virtual: it passes only while nothing is left to do.

It uses private names of ``asyncio.BaseEventLoop`` and ``asyncio.Handle``; a new Python that has
others ends the first history with an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import closing
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop without files, sockets and threads."""

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """A heap by time, and in the order in which they were made."""
        self._serials = count()
        self.errors: list[BaseException | str] = []
        """Errors of callbacks and of tasks that nobody awaits."""
        self.set_exception_handler(self._keep_error)

    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self._now

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As asyncio says."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As asyncio says; the heap of pairs costs much less than its heap of timers."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._serials), timer))
        return timer

    def _run_once(self) -> None:
        """Do all that is left to do, and then let the time pass up to the next timer."""
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
        if self._stopping:
            return
        while self._timers:
            when, _, timer = heappop(self._timers)
            if not timer._cancelled:
                self._now = max(self._now, when)
                timer._run()
                return
        raise RuntimeError("everything waits, and nothing is to come")

    def _write_to_self(self) -> None:
        pass

    def _keep_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or context["message"])


def run(loop: VirtualLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end, and close the loop."""
    with closing(loop):
        return loop.run_until_complete(work)
