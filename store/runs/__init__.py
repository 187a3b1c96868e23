"""Packed runs: the data that a scan of the log gathers for the indexes, and its way over Spark."""
