"""What the dispatcher's Spark session is set to. Imports nothing heavy: the JVM starts with it."""

from __future__ import annotations

from pathlib import Path

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
SETTINGS: dict[str, str] = {
    "spark.app.name": "reput",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    # the JVM carries bytes and plans: the first compiler alone starts in two thirds of the time
    JAVA_OPTIONS: (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    ),
    # Spark's checkpoint files: 12 ms a batch instead of 65 (decision 0003); they are a cache here
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    # a tenth of what an idle query costs; a busy one does not wait
    "spark.sql.streaming.pollingDelay": "40ms",
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
    # over TCP the last small write of a task waits 40 ms for the acknowledgement of the one before
    "spark.python.unix.domain.socket.enabled": "true",
    # workers are forked with kernels and Arrow loaded
    "spark.python.daemon.module": "sources.daemon",
}


def local_settings(extra: dict[str, str]) -> dict[str, str]:
    """Settings of a run on this machine; ``extra`` stands above ours."""
    ours = {**SETTINGS, **_LOCAL}
    if "spark.driver.memory" not in extra:
        ours[JAVA_OPTIONS] += f" {_HEAP_OPTIONS}"
    return {**ours, **extra}
