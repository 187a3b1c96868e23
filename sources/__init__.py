"""Spark data sources for the log and for built queues, as streaming and batch tables.

Spark finds both by name (``pyspark_rocketmq_*``) where PYSPARK_PYTHON names an interpreter that has
this project installed. Elsewhere a program registers ``CommitLogDataSource`` and
``ConsumeQueueDataSource`` with its session.
"""
