"""Does something again and again in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Periodic:
    """Calls ``act`` with a pause of some seconds in between, while in a ``with`` block; once the
    block has ended it is called no more. ``act`` raises nothing."""

    def __init__(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        self._seconds = seconds
        self._act = act
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Periodic:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self._seconds):
            self._act()
