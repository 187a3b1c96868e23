"""Keeps pyspark's workers from printing a traceback when Spark closes their connection.

Spark does so to cancel the tasks of a query, and where a worker was idle for a minute. Then
``pyspark.daemon`` prints a traceback of the broken pipe, over Unix sockets always. The traceback
looks like a failure, or hides a real one whose reason Spark reports.
"""

from __future__ import annotations

import socket
import sys
import traceback
from types import SimpleNamespace, TracebackType
from typing import Any

import pyspark.daemon
from pyspark.sql.datasource import DataSource

_HUNG_UP = (BrokenPipeError, ConnectionResetError)
_STREAM_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
spark_worker = pyspark.daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run a worker's tasks as ``pyspark.daemon.worker`` does, but quietly where Spark has hung up
    on it."""
    try:
        return spark_worker(sock, authenticated)
    except _HUNG_UP:
        return 1


class QuietDataSource(DataSource):
    """A source that Spark creates and plans in workers of ``pyspark.daemon``, whose module cannot
    be chosen (the module of tasks' workers can: ``sources.daemon``). Such a worker stays quiet."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        _quieten()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _quieten()


def _quieten() -> None:
    """Replace, in such a worker and nowhere else, the function with which manager() prints
    tracebacks. The worker runs its task by now, which for a stream lasts until the query ends."""
    main = sys.modules["__main__"]
    name = getattr(main.__spec__, "name", None)
    if name == pyspark.daemon.__name__:
        vars(main)["traceback"] = SimpleNamespace(
            print_exc=_print_exc, format_exc=traceback.format_exc
        )
    elif name == _STREAM_PLANNER:
        # what Spark's hanging up raises there ends the process
        sys.excepthook = _excepthook


def _print_exc() -> None:
    if not isinstance(sys.exc_info()[1], _HUNG_UP):
        traceback.print_exc()


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not isinstance(error, _HUNG_UP):
        sys.__excepthook__(kind, error, trace)
