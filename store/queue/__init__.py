"""Consume queues, their ext, batch queues: files, units, retention."""
