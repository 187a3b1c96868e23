"""Waiting for a store: what follows one goes on by itself once all that it needs is there.

A broker may be younger than what follows it: its directories come with its first start, a disk with
its mount, and a file of its configuration is torn while it is written over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from reput.store.errors import NotReadyError

POLL_SECONDS = 0.5

_Result = TypeVar("_Result")
logger = logging.getLogger("reput")


def until_ready(work: Callable[[], _Result], stop: threading.Event) -> _Result | None:
    """Repeat ``work``, which is short, until it finds all that it needs; None where ``stop`` is set
    before. What is missing is logged once, and that it has come."""
    began, missing = time.monotonic(), ""
    while not stop.is_set():
        try:
            result = work()
        except NotReadyError as error:
            if str(error) != missing:
                missing = str(error)
                logger.warning("waiting: %s", missing)
            stop.wait(POLL_SECONDS)
            continue
        if missing:
            logger.info("going on: all is there after %.0f s", time.monotonic() - began)
        return result
    return None
