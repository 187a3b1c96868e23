"""pyspark's worker daemon, which loads the libraries of the tasks before it forks them.

Loading Arrow and numba takes a task's worker about a second, more than a small batch needs; all
workers that are forked from here have them, and share the memory. ``spark.python.daemon.module``
names this module where driver and workers are on one machine. The loaded libraries have threads by
then (OpenBLAS, jemalloc), and each library handles its own at a fork; we have none.
"""

from __future__ import annotations

import os

import numpy as np
import pyspark.daemon
import pyspark.worker

import reput.sources.bitmaps
import reput.store.rows.rows
import reput.store.runs.packed
from reput.sources import hangup
from reput.sources.garbage import freeze_loaded
from reput.store.log import kernels
from reput.store.log.cursor import NO_LIMIT

LOADED = (pyspark.worker, reput.sources.bitmaps, reput.store.rows.rows, reput.store.runs.packed)


def load() -> None:
    """Trigger numba's work for the first call of any kernel, which is half of a worker's start."""
    kernels.hop_records(np.zeros(8, np.uint8), 0, 0, 0, 0, NO_LIMIT, NO_LIMIT, NO_LIMIT)


if __name__ == "__main__":
    pyspark.daemon.worker = hangup.quiet(pyspark.daemon.worker)  # type: ignore[assignment]
    load()
    freeze_loaded()
    try:
        pyspark.daemon.manager()
    finally:
        # Spark is gone: nobody waits for the libraries' exit handlers
        os._exit(0)
