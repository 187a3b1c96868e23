"""Lines about connections that are refused before their first request, and refused requests.

A client tries again every few seconds, from another port each time, so that each reason is logged
once a minute for each address.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("reput")

SILENT_SECONDS = 60.0
MAX_LINES = 1000
"""Limit of the lines in this time, whatever the addresses."""


class Refusals:
    """The reasons that were logged in the last minute."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``what`` is refused: a connection or a request."""
        self._what = what
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}
        """Time by host and reason, the oldest first."""

    def note(self, peer: object, reason: str) -> None:
        """Log why something of ``peer``, a socket's address, is refused."""
        host = str(peer[0]) if isinstance(peer, tuple) else "unknown"
        now = self._clock()
        while self._said and now - next(iter(self._said.values())) >= SILENT_SECONDS:
            del self._said[next(iter(self._said))]
        if (host, reason) not in self._said and len(self._said) < MAX_LINES:
            self._said[host, reason] = now
            logger.warning(
                "%s of %s refused: %s; logged once a minute for each address",
                self._what, host, reason,
            )  # fmt: skip
