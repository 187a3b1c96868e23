"""Work done once per installation to shorten every start: it compiles kernels and archives Spark's
classes. For this it dispatches and reads a small log, as a run and a reader would."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from reput.store.files import COMMIT_LOG_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.log.record import DEFAULT_DELAY_LEVELS_MS
from reput.store.rows.rowform import DEFAULT_FORM
from reput.store.rows.rows import message_rows, rows_at
from reput.store.rows.rowschema import ROWS_SCHEMA
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.spark import jvm
from reput.workload.appender import Appender
from reput.workload.messages import Workload

MESSAGES = 20_000
"""Enough for two partitions of more than a megabyte."""
FILE_SIZE = 4 << 20
"""Small enough for several files, so that file ends are walked over too."""


def prepare() -> Path | None:
    """Fill the private cache; return the class archive's path, None where this JVM makes none.

    The cache belongs to this Python environment, this Java and this user. Preparing is harmless at
    any time: a run that starts meanwhile starts as before. Raises ReputError.
    """
    with tempfile.TemporaryDirectory(prefix="reput-prepare-") as place:
        store, output = Path(place) / "store", Path(place) / "output"
        workload = Workload(topic_count=4, queue_count=4, body_size=300, seed=1)
        with Appender(store, file_size=FILE_SIZE) as appender:
            appender.append_batch(workload.batch(0, MESSAGES, time.time_ns() // 1_000_000))
        _read(store)
        config = DispatcherConfig(store, output, once=True)
        started = jvm.start(config.spark_conf, make_archive=True)
        try:
            run_dispatcher(config, threading.Event(), jvm=started)
        finally:
            if started is not None:
                started.end()
    return None if started is None else started.kept_archive()


def _read(store: Path) -> None:
    """Read every message as a row, by its place in the log and through its queue's unit."""
    log = CommitLog([store / COMMIT_LOG_DIRECTORY])
    levels = DEFAULT_DELAY_LEVELS_MS
    for batch in message_rows(
        log, 0, LogTail(log).settled(), ROWS_SCHEMA, DEFAULT_FORM,
        delay_levels_ms=levels, fail_on_corrupt=True,
    ):  # fmt: skip
        offsets = batch.column("physicalOffset").to_numpy()
        sizes = batch.column("storeSize").to_numpy().astype(np.int32)
        for _ in rows_at(log, offsets, sizes, ROWS_SCHEMA, delay_levels_ms=levels):
            pass
    log.close()
