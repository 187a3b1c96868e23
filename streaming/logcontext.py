"""Names the store that a line of the log is about, where one process dispatches several.

The lines come from many modules, which know of one store only. So the name goes with the threads:
``store_name`` is set where a store's dispatcher begins, and in each thread that works for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

store_name: ContextVar[str | None] = ContextVar("store_name", default=None)
"""The name of the store that the current thread works for; None where there is only one."""


@contextmanager
def about(name: str) -> Iterator[None]:
    """Let the lines of a ``with`` block be about a store."""
    before = store_name.set(name)
    try:
        yield
    finally:
        store_name.reset(before)
