"""Work done ahead by threads; neither reads nor kernels hold Python's lock."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MAX_THREADS = 4
"""Each thread holds a batch and the buffers that it is made from."""

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


def map_ahead(work: Callable[[_Item], _Done], items: Iterable[_Item]) -> Iterator[_Done]:
    """``map(work, items)``, computed ahead on as many cores as this process may use.

    The caller's thread computes the first result, so no thread starts if no more is wanted. It also
    takes ``items``, one more than there are threads ahead of the results. Errors come where ``map``
    raises them. Closing the iterator waits for running work.
    """
    source = iter(items)
    for item in source:
        yield work(item)
        break
    threads = min(len(os.sched_getaffinity(0)), MAX_THREADS)
    if threads == 1:
        yield from map(work, source)
        return
    waiting: deque[Future[_Done]] = deque()
    pool = ThreadPoolExecutor(threads, "reput-read-ahead")
    try:
        for future in _submitted(pool, work, source):
            waiting.append(future)
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _submitted(
    pool: ThreadPoolExecutor, work: Callable[[_Item], _Done], source: Iterator[_Item]
) -> Iterator[Future[_Done]]:
    """Submit every item's work and, if ``source`` fails, its error as the last result."""
    try:
        for item in source:
            yield pool.submit(work, item)
    except Exception as error:
        failed: Future[_Done] = Future()
        failed.set_exception(error)
        yield failed
