"""pyspark's worker daemon, with what tasks need loaded before it forks them.

A task's worker takes about a second for Arrow and numba, more than a small batch does; forked from
here all workers have them, and share the memory. ``spark.python.daemon.module`` names this module
where driver and workers are on one machine. Of the threads that the loaded libraries have by then
(OpenBLAS's, jemalloc's) each library looks after its own at a fork; none of ours exists.
"""

from __future__ import annotations

import gc
import os

import numpy as np
import pyspark.daemon
import pyspark.worker

import sources.runs
import store.rows.rows
from sources import hangup
from store.log import kernels
from store.log.cursor import NO_LIMIT

LOADED = (pyspark.worker, store.rows.rows, sources.runs)


def load() -> None:
    """Have numba do what it does at the first call of any kernel: half of a worker's start."""
    kernels.hop_records(np.zeros(8, np.uint8), 0, 0, 0, 0, NO_LIMIT, NO_LIMIT, NO_LIMIT)


pyspark.daemon.worker = hangup.worker  # where manager() looks it up

if __name__ == "__main__":
    load()
    # pyspark collects garbage after every task: 60 ms over what numba consists of, 1 ms without
    gc.collect()
    gc.freeze()
    try:
        pyspark.daemon.manager()
    finally:
        # Spark is gone: nobody waits for the libraries' own farewells
        os._exit(0)
