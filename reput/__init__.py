"""reput: RocketMQ's message dispatch as a Spark Structured Streaming job."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("reput")
except PackageNotFoundError:
    __version__ = "0+source"

INTERRUPTED = 130
"""Exit code of a process that Ctrl-C ended."""
