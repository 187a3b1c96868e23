"""An event loop whose time is virtual: it passes only while nothing is left to do.

It uses private names of ``asyncio.BaseEventLoop``; a new Python that has others ends the first
history with an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import closing
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop without files, sockets and threads."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self
        self.errors: list[BaseException | str] = []
        """Errors of callbacks and of tasks that nobody awaits."""
        self.set_exception_handler(self._keep_error)

    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self._now

    def select(self, timeout: float | None) -> list[object]:
        """Let the time pass that asyncio would wait."""
        if timeout is None:
            raise RuntimeError("everything waits, and nothing is to come")
        self._now += timeout
        return []

    def _process_events(self, _events: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _keep_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or context["message"])


def run(loop: VirtualLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end, and close the loop."""
    with closing(loop):
        return loop.run_until_complete(work)
