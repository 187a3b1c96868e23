"""The Spark session that the dispatcher runs in."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading

from pyspark.sql import SparkSession

from store.errors import StoreError

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
SETTINGS: dict[str, str] = {
    "spark.app.name": "reput",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
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
    "spark.python.worker.reuse": "true",
    "spark.sql.session.timeZone": "UTC",
}
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


def open_session(extra: dict[str, str]) -> SparkSession:
    """A session with our settings; ``extra`` stands above them, as spark-submit's own do.

    Under spark-submit the master is the submitter's.
    """
    # workers must be this interpreter, which has our packages
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        check_java()
    settings = {**SETTINGS, **({} if submitted else _LOCAL), **extra}
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    interrupt = signal.getsignal(signal.SIGINT)
    session = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        # pyspark puts its own handler in, which would break into a batch on Ctrl-C
        signal.signal(signal.SIGINT, interrupt)
    return session
