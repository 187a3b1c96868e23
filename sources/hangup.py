"""Keeps pyspark's workers from printing a traceback when Spark closes their connection.

Spark does so to cancel the tasks of a query, and where a worker was idle for a minute. Then
``pyspark.daemon`` prints a traceback of the broken pipe, over Unix sockets always. The traceback
looks like a failure, or hides a real one whose reason Spark reports. Nothing is changed in plain
mode (``sources.plainspark``).
"""

from __future__ import annotations

import socket
import sys
import traceback
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any

from pyspark.sql.datasource import DataSource

from reput.sources.plainspark import is_plain

_DAEMON = "pyspark.daemon"
_HUNG_UP = (BrokenPipeError, ConnectionResetError)
_STREAM_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
Worker = Callable[[socket.socket, bool], int]


def quiet(worker: Worker) -> Worker:
    """Return a function that runs a worker's tasks as ``pyspark.daemon.worker`` does, but quietly
    where Spark has hung up on it."""

    def quiet_worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except _HUNG_UP:
            return 1

    return quiet_worker


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
    if is_plain():
        return
    main = sys.modules["__main__"]
    name = getattr(main.__spec__, "name", None)
    if name == _DAEMON:
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
