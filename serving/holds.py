"""The bound of waiting pulls, of all brokers of a server together.

A client whose pull is not held must keep its place and come back later. It does so after
SYSTEM_BUSY: Java's push consumers after 3 s, Go's after 3 s, C++'s after 1 s. After FLOW_CONTROL
Java's come back after 20 ms, all at once and again and again. Source: RocketMQ 5.3.3 and 4.9.7
``DefaultMQPushConsumerImpl``, ``MQClientAPIImpl.processPullResponse``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from reput.readers.messagefilter import MessageFilter
from reput.serving.codes import ResponseCode
from reput.serving.connection import Refused

logger = logging.getLogger("reput")

MAX_HOLDS = 1 << 17
MAX_HOLDS_PER_CONNECTION = 1 << 16
MAX_BYTES = 256 << 20
"""Limit of the memory that waiting pulls and their filters take."""
HOLD_BYTES = 1 << 10
"""An upper bound of what one waiting pull takes besides its filter."""
SILENT_SECONDS = 60.0


class Holds:
    """How many pulls wait, and what they take."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self.bytes = 0
        self._filters: dict[int, int] = {}
        """By the identity of each filter, which its pulls keep alive: how many of them use it."""
        self._clock = clock
        self._said_at = float("-inf")
        self._unsaid = 0
        """Refused pulls since the last line."""

    def add(self, message_filter: MessageFilter | None, filter_bytes: int, of_client: int) -> None:
        """Count one more pull, whose filter takes so many bytes unless another pull has it too, and
        whose connection has ``of_client`` others waiting. Raises Refused beyond a limit."""
        key = id(message_filter)
        size = HOLD_BYTES + (0 if key in self._filters else filter_bytes)
        if of_client >= MAX_HOLDS_PER_CONNECTION:
            self._refuse(f"{MAX_HOLDS_PER_CONNECTION} pulls of this connection wait")
        if self.count >= MAX_HOLDS:
            self._refuse(f"{MAX_HOLDS} pulls wait")
        if self.bytes + size > MAX_BYTES:
            self._refuse(f"the pulls that wait take {MAX_BYTES >> 20} MiB")
        self.count += 1
        self.bytes += size
        self._filters[key] = self._filters.get(key, 0) + 1

    def remove(self, message_filter: MessageFilter | None, filter_bytes: int) -> None:
        """Count a pull no longer."""
        key = id(message_filter)
        self.count -= 1
        self.bytes -= HOLD_BYTES
        self._filters[key] -= 1
        if not self._filters[key]:
            del self._filters[key]
            self.bytes -= filter_bytes

    def _refuse(self, reason: str) -> None:
        reason = f"{reason}, which is the limit"
        self._unsaid += 1
        now = self._clock()
        if now - self._said_at >= SILENT_SECONDS:
            logger.warning(
                "a pull is not held: %s; clients are answered with 2 (SYSTEM_BUSY), and ask again "
                "after 1 to 3 s; refused since the last such line: %d; logged once a minute",
                reason, self._unsaid,
            )  # fmt: skip
            self._said_at, self._unsaid = now, 0
        raise Refused(ResponseCode.SYSTEM_BUSY, f"{reason}; ask again later")
