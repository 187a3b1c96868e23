"""Settings of the dispatcher's Spark session. It imports nothing heavy, as the JVM starts with
it."""

from __future__ import annotations

from pathlib import Path

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
SETTINGS: dict[str, str] = {
    "spark.app.name": "reput",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    # the JVM only carries bytes and plans: with the first compiler alone it starts in two thirds of
    # the time
    JAVA_OPTIONS: (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    ),
    # Spark's checkpoint files cost 12 ms a batch instead of 65 (decision 0003); here they are a
    # cache
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    # this takes a tenth of the cost of an idle query; a busy one does not wait
    "spark.sql.streaming.pollingDelay": "40ms",
    "spark.sql.shuffle.partitions": "1",
    # packed runs are megabytes per task: they go straight to the driver, not through the block
    # manager
    "spark.task.maxDirectResultSize": "256m",
    "spark.python.worker.reuse": "true",
    "spark.sql.session.timeZone": "UTC",
}
# a young generation that holds a batch saves five sixths of the collector's pauses; its share of
# this heap is larger than of a heap that the user chose
_HEAP_OPTIONS = "-Xms1g -Xmn680m"
_LOCAL = {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # over TCP the last small write of a task waits 40 ms for the acknowledgement of the previous
    # one
    "spark.python.unix.domain.socket.enabled": "true",
    # workers are forked with kernels and Arrow already loaded
    "spark.python.daemon.module": "sources.daemon",
}


def local_settings(extra: dict[str, str]) -> dict[str, str]:
    """Return the settings of a run on this machine; ``extra`` overrides ours."""
    ours = {**SETTINGS, **_LOCAL}
    if "spark.driver.memory" not in extra:
        ours[JAVA_OPTIONS] += f" {_HEAP_OPTIONS}"
    return {**ours, **extra}
