"""How a server learns that messages may have arrived.

A waiting pull is to be answered at once, and to cost nothing until then. So the dispatcher tells
the server if both are one process, else the kernel does; it polls only where neither can tell.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from store.state.watermark import FILE_NAME, STATE_DIRECTORY

POLL_SECONDS = 0.01
"""Time between two looks at a store where nobody tells of writes: they cost 2 % of a core."""
TOLD_POLL_SECONDS = 0.1
"""The same where the kernel tells of them: it does not see what another machine writes."""

QueueName = tuple[str, int]
"""(topic, queue id)."""

_IN_MODIFY = 2
_EVENT_BYTES = 4096


class Arrivals(Protocol):
    """Whoever waits looks at the store afterwards."""

    async def wait(self) -> Collection[QueueName] | None:
        """Return when messages may have arrived since the last call: the queues that may have got
        some; None for any queue."""


class PolledArrivals:
    """Another process writes the queues.

    If it moves a watermark, the kernel tells of that at once (inotify), and a server that only
    waits costs next to nothing. A broker writes by memory mapping, of which the kernel does not
    tell.
    """

    def __init__(self, output: Path) -> None:
        """``output`` is the root of the queues."""
        self._path = os.fsencode(output / STATE_DIRECTORY / FILE_NAME)
        self._libc = ctypes.CDLL(None)
        self._moved = asyncio.Event()
        self._watch = -1
        self._fd = -1
        """Events are read from it; -1 where there are none."""

    async def wait(self) -> None:
        """Return when the watermark was written, or a little later."""
        if self._is_new_watch():
            # it may have been written before
            return
        if self._watch < 0:
            await asyncio.sleep(POLL_SECONDS)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(TOLD_POLL_SECONDS):
                await self._moved.wait()
        self._moved.clear()

    def _is_new_watch(self) -> bool:
        """Ask the kernel to tell of writes; whether the file is another one than that of the last
        call."""
        if self._fd < 0 and hasattr(self._libc, "inotify_init1"):
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd >= 0:
                asyncio.get_running_loop().add_reader(self._fd, self._read)
        before = self._watch
        if self._fd >= 0:
            self._watch = self._libc.inotify_add_watch(self._fd, self._path, _IN_MODIFY)
        return self._watch >= 0 and self._watch != before

    def _read(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._fd, _EVENT_BYTES)
        self._moved.set()

    def close(self) -> None:
        """Let the kernel tell no more."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = self._watch = -1


class ToldArrivals:
    """A dispatcher in this process says when the watermark has moved."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """``loop`` is the server's."""
        self._loop = loop
        self._moved = asyncio.Event()
        self._queues: set[QueueName] | None = set()

    def tell(self, queues: Collection[QueueName] | None) -> None:
        """The watermark has moved past messages of these queues, None for any; any thread may say
        so, also when the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._add, queues)

    def _add(self, queues: Collection[QueueName] | None) -> None:
        if queues is None or self._queues is None:
            self._queues = None
        else:
            self._queues.update(queues)
        self._moved.set()

    async def wait(self) -> Collection[QueueName] | None:
        """Return when the watermark has moved since the last call."""
        await self._moved.wait()
        self._moved.clear()
        queues, self._queues = self._queues, set()
        return queues
