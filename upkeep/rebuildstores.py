"""Rebuilds several stores side by side, in one Spark application.

Each store is rebuilt as it would be alone, in a thread of its own, and its jobs share Spark's cores
fairly with those of the others. One that fails changes nothing, and the others go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import POLL_SECONDS
from reput.streaming.logcontext import about
from reput.streaming.progress import Progress, TotalProgress
from reput.streaming.spark.errors import error_line
from reput.upkeep.rebuild import Rebuilt, rebuild


@dataclass(slots=True)
class StoreRebuild:
    """The rebuild of one store."""

    config: DispatcherConfig
    progress: Progress | None = None
    """None until it has begun."""
    done: Rebuilt | None = None
    """The result; None where it has failed."""
    error: str | None = None
    """The reason for which it has failed."""


def rebuild_stores(
    configs: Sequence[DispatcherConfig],
    at_once: int,
    stop: threading.Event,
    show: Callable[[TotalProgress], None],
    **choice: Any,
) -> Sequence[StoreRebuild]:
    """Rebuild all stores, up to ``at_once`` of them at a time.

    ``choice`` holds the options of ``rebuild``, whose ``build`` uses a session that is shared.
    ``show`` is called a few times a second with the progress of all. Failures are in the results.
    """
    stores = [StoreRebuild(config) for config in configs]
    with ThreadPoolExecutor(at_once, "reput-rebuild") as threads:
        left = {threads.submit(_rebuild, store, stop, choice) for store in stores}
        while left:
            left = wait(left, POLL_SECONDS).not_done
            show(TotalProgress([store.progress for store in stores if store.progress is not None]))
    return stores


def _rebuild(store: StoreRebuild, stop: threading.Event, choice: Mapping[str, Any]) -> None:
    """Rebuild one store, in its thread."""
    with about(store.config.output.name):
        try:
            noted = partial(setattr, store, "progress")
            store.done = rebuild(store.config, stop, noted, **choice)
        except Exception as error:
            # whatever it is, it is this store's alone
            store.error = error_line(error)
