"""A process that has loaded what Spark's Python workers need, and forks each of them.

Spark starts the planner of every stream as a new interpreter, which spends half a second on
imports; the daemons of tasks and of sources take as long or longer. Here they are loaded once,
while the JVM starts. Spark's own settings choose no such process: it runs an interpreter, and the
one that a session names here is ``streaming.spark.workerstub``.
"""

from __future__ import annotations

import importlib
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from reput.sources.garbage import freeze_loaded
from reput.streaming.spark import workerstub
from reput.streaming.spark.withoutpandas import leave_out_pandas

LOADED = (
    "reput.sources.daemon",
    "reput.sources.commitlog",
    "reput.sources.consumequeue",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.python_streaming_source_runner",
)
SOCKET, STUB = "template", "python"
"""Its directory holds the socket, and the executable that connects to it."""


@dataclass(frozen=True, slots=True)
class WorkerTemplate:
    """A template process, which ends when ``end`` is called or its parent is gone."""

    process: subprocess.Popen[bytes]
    directory: tempfile.TemporaryDirectory[str]

    @property
    def python(self) -> str:
        """The path of the interpreter for Spark: the stub."""
        return f"{self.directory.name}/{STUB}"

    def end(self) -> None:
        """End the process; workers that still run end with Spark."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.directory.cleanup()


def start() -> WorkerTemplate:
    """Begin to start a template; return at once, since the stub waits for it."""
    directory = tempfile.TemporaryDirectory(prefix="reput-workers-", ignore_cleanup_errors=True)
    path = f"{directory.name}/{SOCKET}"
    stub = Path(directory.name, STUB)
    command = shlex.join([sys.executable, "-IS", workerstub.__file__, path])
    stub.write_text(f'#!/bin/sh\nexec {command} "$@"\n', "utf-8")
    stub.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        # Ctrl-C is for the driver; the hash seed is that of all of Spark's workers
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(listener.fileno()), directory.name],
            stdin=subprocess.PIPE, pass_fds=[listener.fileno()], process_group=0,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES"},
        )  # fmt: skip
    return WorkerTemplate(process, directory)


@dataclass(frozen=True, slots=True, eq=False)
class _Fork:
    pid: int
    end: int
    """The process's file descriptor (pidfd), readable once it has ended."""
    stub: socket.socket
    """The connection of the process that Spark has started, and kills to be rid of the worker."""


class _Server:
    """The template's loop: forks a worker for each stub, and tells the stub how it ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._events = selectors.DefaultSelector()
        self._events.register(sys.stdin, selectors.EVENT_READ)
        self._events.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the parent closes our stdin or is gone."""
        while True:
            for key, _ in self._events.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fd == key.data.end:
                    self._ended(key.data)
                elif key.data.stub.fileno() != -1:
                    # Spark has killed it, and means the worker
                    self._events.unregister(key.data.stub)
                    signal.pidfd_send_signal(key.data.end, signal.SIGTERM)

    def _accept(self) -> None:
        stub, _ = self._listener.accept()
        streams, request = _received(stub)
        # a stub that was killed meanwhile has sent less than a request
        pid = os.fork() if request else -1
        if pid == 0:
            self._events.close()
            self._listener.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            _become(*workerstub.decode(request))
        for stream in streams:
            os.close(stream)
        if pid == -1:
            stub.close()
            return
        fork = _Fork(pid, os.pidfd_open(pid), stub)
        self._events.register(fork.end, selectors.EVENT_READ, fork)
        self._events.register(stub, selectors.EVENT_READ, fork)

    def _ended(self, fork: _Fork) -> None:
        _, status = os.waitpid(fork.pid, 0)
        self._events.unregister(fork.end)
        os.close(fork.end)
        if fork.stub in self._events.get_map():
            self._events.unregister(fork.stub)
            with suppress(OSError):
                fork.stub.sendall(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
        fork.stub.close()


def _received(stub: socket.socket) -> tuple[list[int], bytes]:
    """Return a stub's three streams and its request, which is empty where the stub is gone."""
    header, streams, _, _ = socket.recv_fds(stub, workerstub.LENGTH_BYTES, 3)
    length = int.from_bytes(header)
    with stub.makefile("rb") as rest:
        request = rest.read(length)
    return streams, request if len(request) == length else b""


def _become(directory: str, arguments: Sequence[str], environment: dict[str, str]) -> NoReturn:
    """Be ``python -m MODULE ...`` in this process, and end with it."""
    code = 1
    try:
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        places = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path += [place for place in places if place and place not in sys.path]
        _, module, *rest = arguments
        sys.argv = [module, *rest]
        # runpy warns of a module that is imported already
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        match end.code:
            case int() | None:
                code = end.code or 0
            case text:
                print(text, file=sys.stderr)
    except BaseException as error:
        if not _has_no_socket(error):
            sys.excepthook(*sys.exc_info())
    finally:
        # the libraries' exit handlers are the template's
        os._exit(code)


def _has_no_socket(error: BaseException) -> bool:
    """Whether Spark does not wait for the worker any more: a query that is stopped removes the
    socket for its planner."""
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415  after ``leave_out_pandas``

    if not isinstance(error, PySparkRuntimeError):
        return False
    is_gone = isinstance(error.__context__, FileNotFoundError)
    return is_gone and error.getCondition() == "CANNOT_OPEN_SOCKET"


def main(listener: int, directory: str) -> None:
    """Load the modules and serve; at the end, remove the directory, since the parent may be gone.

    An error leaves the directory: there the stubs do without us.
    """
    server = _Server(socket.socket(fileno=listener))
    leave_out_pandas()
    for name in LOADED:
        importlib.import_module(name)
    sys.modules["reput.sources.daemon"].load()
    freeze_loaded()
    server.run()
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
