"""The Spark session that the dispatcher runs in."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from store.errors import StoreError

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
SETTINGS: dict[str, str] = {
    "spark.app.name": "reput",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    # the JVM carries bytes and plans: the first compiler alone starts in two thirds of the time
    _JAVA_OPTIONS: (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    ),
    # Spark's checkpoint files: 12 ms a batch instead of 65 (design.md §3); they are a cache here
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    # a fifth of what an idle query costs; append to entry stays far above it
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.shuffle.partitions": "1",
    # packed runs are megabytes a task: straight to the driver, not through the block manager
    "spark.task.maxDirectResultSize": "256m",
    "spark.python.worker.reuse": "true",
    "spark.sql.session.timeZone": "UTC",
}
# a young generation that holds a batch saves five sixths of the collector's pauses; a larger part
# of this heap than of one that the user chose
_HEAP_OPTIONS = "-Xms1g -Xmn680m"
_LOCAL = {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def check_java() -> None:
    """Raises StoreError where no Java can be found: Spark's own message says nothing."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        raise StoreError(
            f"no java in {'JAVA_HOME ' + home if home else 'PATH'}; "
            "install a JDK 17 or later ('make install' does) or set JAVA_HOME"
        )


def _settings(extra: dict[str, str]) -> dict[str, str]:
    """What the session is made with: ours, above that the submitter's, above that ``extra``."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # under spark-submit the JVM is there already, and knows what it was told
        SparkContext._ensure_initialized()
        told = SparkConf()
        ours = {key: value for key, value in SETTINGS.items() if not told.contains(key)}
        return {**ours, **extra}
    check_java()
    ours = {**SETTINGS, **_LOCAL}
    if "spark.driver.memory" not in extra:
        ours[_JAVA_OPTIONS] += f" {_HEAP_OPTIONS}"
    return {**ours, **extra}


def _open(settings: dict[str, str]) -> SparkSession:
    conf = SparkConf().setAll(list(settings.items()))
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        SparkContext.getOrCreate(conf)
        if threading.current_thread() is threading.main_thread():
            # pyspark puts its own handler in, which would break into a batch on Ctrl-C
            signal.signal(signal.SIGINT, interrupt)
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise StoreError(f"Spark does not start: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What Spark says, without its stack and without Py4J's line that something was said."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return lines[1].lstrip(": ") if isinstance(error, Py4JError) and lines[1:] else lines[0]


@contextmanager
def session(extra: dict[str, str]) -> Iterator[SparkSession]:
    """A session with our settings, stopped with its block; one that is open already is used.

    ``extra`` stands above our settings. Under spark-submit the master is the submitter's, and what
    the submitter has set stands above ours too. Raises StoreError where Spark does not start.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    # workers must be this interpreter, which has our packages
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # nor may a directory of the working directory stand before a package: `store` is a usual name
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    opened = _open(_settings(extra))
    try:
        yield opened
    finally:
        opened.stop()
