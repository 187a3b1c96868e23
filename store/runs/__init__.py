"""Packed runs: what a scan of the log gathers for the indexes, and how it crosses Spark."""
