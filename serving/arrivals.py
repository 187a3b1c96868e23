"""How a server learns that messages may have arrived.

A waiting pull should be answered as soon as messages arrive, and cost nothing until then. A
dispatcher in the same process therefore notifies the server of each commit; otherwise the kernel
reports writes of the positions. The server polls only where neither does.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from reput.serving.queues import QueueName
from reput.store.files import STATE_DIRECTORY, VISIBLE_FILE, WATERMARK_FILE

if TYPE_CHECKING:
    from reput.store.config import StoreSettings
    from reput.store.runs.dispatch import Run  # brings numpy's parts along

POLL_SECONDS = 0.01
"""Interval of polling a store whose writes nobody reports; it costs 2 % of a core."""
WATCHED_POLL_SECONDS = 0.1
"""Interval of polling while the kernel reports writes: it does not see those of other machines."""

_IN_MODIFY = 2
_EVENT_BYTES = 4096


class Arrivals(Protocol):
    """Says when it is worth looking at the store again."""

    async def wait(self) -> Collection[QueueName] | None:
        """Wait until messages may have arrived since the last call. Return the queues that may
        have received some, or None if any queue may."""


class PolledArrivals:
    """Arrivals in queues that another process writes.

    A dispatcher writes its positions, which the kernel reports at once (inotify), so that waiting
    costs next to nothing. A broker writes through a memory mapping, which the kernel does not
    report; its queues are polled.
    """

    def __init__(self, output: Path) -> None:
        """``output`` is the root of the queues."""
        state = output / STATE_DIRECTORY
        self._paths = [os.fsencode(state / name) for name in (WATERMARK_FILE, VISIBLE_FILE)]
        self._libc = ctypes.CDLL(None)
        self._moved = asyncio.Event()
        self._watches = [-1]
        """The watch of each path; -1 for one that is not watched."""
        self._fd = -1
        """Descriptor of inotify; -1 where there is none."""

    async def wait(self) -> None:
        """Return when a position was written, or a little later."""
        if self._is_new_watch():
            # a file may have been written before the watch began
            return
        if max(self._watches) < 0:
            await asyncio.sleep(POLL_SECONDS)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCHED_POLL_SECONDS):
                await self._moved.wait()
        self._moved.clear()

    def _is_new_watch(self) -> bool:
        """Watch the files of positions. Return whether there is another file than at the last
        call."""
        if self._fd < 0 and hasattr(self._libc, "inotify_init1"):
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd >= 0:
                asyncio.get_running_loop().add_reader(self._fd, self._read)
        before = self._watches
        if self._fd >= 0:
            add = self._libc.inotify_add_watch
            self._watches = [add(self._fd, path, _IN_MODIFY) for path in self._paths]
        return not {*self._watches} <= {-1, *before}

    def _read(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._fd, _EVENT_BYTES)
        self._moved.set()

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd, self._watches = -1, [-1]


class NotifiedArrivals:
    """Arrivals that a dispatcher in this process reports when its watermark has moved."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """``loop`` is the server's."""
        self._loop = loop
        self._moved = asyncio.Event()
        self._queues: dict[QueueName, None] | None = {}
        """In the order in which they were named; None for any queue."""

    def notify(self, queues: Collection[QueueName] | None) -> None:
        """Wake the server: the watermark has moved beyond messages of these queues (None: of any).
        Any thread may call it, also after the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._add, queues)

    def end_moved(self, _settings: StoreSettings, runs: Sequence[Run] | None) -> None:
        """Wake the server: the watermark covers these runs now (None: any messages)."""
        queues = None
        if runs is not None:
            # no client asks for a topic that is not UTF-8
            queues = [(run.topic.decode(errors="replace"), run.queue_id) for run in runs]
        self.notify(queues)

    def _add(self, queues: Collection[QueueName] | None) -> None:
        if queues is None or self._queues is None:
            self._queues = None
        else:
            self._queues |= dict.fromkeys(queues)
        self._moved.set()

    async def wait(self) -> Collection[QueueName] | None:
        """Return when the watermark has moved since the last call."""
        await self._moved.wait()
        self._moved.clear()
        queues, self._queues = self._queues, {}
        return None if queues is None else queues.keys()
