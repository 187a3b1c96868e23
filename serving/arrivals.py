"""How a server learns that messages may have arrived."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

POLL_SECONDS = 0.01
"""A look reads the watermark: at twice the rate, waiting pulls would cost 2 % of a core."""


class Arrivals(Protocol):
    """Whoever waits looks at the store afterwards."""

    async def wait(self) -> None:
        """Return when messages may have arrived since the last call."""


class PolledArrivals:
    """Another process writes the queues: the watermark is read again and again."""

    async def wait(self) -> None:
        """Return a little later."""
        await asyncio.sleep(POLL_SECONDS)


class ToldArrivals:
    """A dispatcher in this process says when the watermark has moved."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """``loop`` is the server's."""
        self._loop = loop
        self._moved = asyncio.Event()

    def tell(self) -> None:
        """The watermark has moved; any thread may say so, also when the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._moved.set)

    async def wait(self) -> None:
        """Return when the watermark has moved since the last call."""
        await self._moved.wait()
        self._moved.clear()
