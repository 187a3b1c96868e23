"""What can be done once for an installation, so that no start has to: kernels compiled, Spark's
classes archived. A small log is dispatched for it, as a run would."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from store.appender import Appender
from store.workload import Workload
from streaming import jvm
from streaming.config import DispatcherConfig
from streaming.dispatcher import run_dispatcher

MESSAGES = 20_000
"""Enough for two partitions of more than a megabyte."""
FILE_SIZE = 4 << 20
"""Several files, so that file ends are walked over too."""


def prepare() -> Path | None:
    """Fill the private cache; the class archive's path, None where this JVM makes none.

    Kept for this Python environment, this Java and this user. Harmless at any time: a run that
    starts meanwhile starts as before. Raises ReputError.
    """
    with tempfile.TemporaryDirectory(prefix="reput-prepare-") as place:
        store, output = Path(place) / "store", Path(place) / "output"
        workload = Workload(topic_count=4, queue_count=4, body_size=300, seed=1)
        with Appender(store, file_size=FILE_SIZE) as appender:
            appender.append_batch(workload.batch(0, MESSAGES, time.time_ns() // 1_000_000))
        config = DispatcherConfig(store, output, once=True)
        started = jvm.start(config.spark_conf, make_archive=True)
        try:
            run_dispatcher(config, threading.Event(), jvm=started)
        finally:
            if started is not None:
                started.end()
    return started.making.keep() if started is not None and started.making else None
