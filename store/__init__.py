"""Bytes on disk: RocketMQ's store formats, read and written without Spark or a JVM.

This package is a leaf: it imports only numpy, numba, pyarrow and the standard library, so every
other part of reput (and a downstream reader) can use it anywhere.
"""
