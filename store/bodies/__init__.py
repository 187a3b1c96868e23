"""Columns of message bodies, as a file declares them by topic."""
