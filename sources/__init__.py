"""Spark data sources: the log as a streaming and batch table.

Import ``sources.commitlog.CommitLogDataSource`` and register it with a session.
"""
