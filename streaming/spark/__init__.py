"""Spark itself: its JVM, session, workers, errors and metrics."""
