"""Spark data sources for the log and for built queues, as streaming and batch tables.

Spark finds both by name (``pyspark_rocketmq_*``) where PYSPARK_PYTHON names an interpreter that has
this project installed. Elsewhere, and for filters that limit what is read, a program calls
``register``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register both sources with a session, and let Spark push filters into them, and into each
    Python source of the session that takes any.

    Raises UsageError if the interpreter of Spark's workers lacks this project.
    """
    from reput.sources.commitlog import CommitLogDataSource  # noqa: PLC0415
    from reput.sources.consumequeue import ConsumeQueueDataSource  # noqa: PLC0415
    from reput.sources.pushdown import SETTING  # noqa: PLC0415

    spark.dataSource.register(CommitLogDataSource)
    spark.dataSource.register(ConsumeQueueDataSource)
    spark.conf.set(SETTING, "true")
