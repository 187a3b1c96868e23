"""Consume queues, their ext and batch queues: files, units, retention."""
