"""Spark data sources: the log, and built queues, as streaming and batch tables.

Spark finds both by name (``pyspark_rocketmq_*``); or register ``CommitLogDataSource`` and
``ConsumeQueueDataSource`` with a session.
"""
