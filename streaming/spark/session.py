"""The Spark session that the dispatcher runs in.

It is Spark's usual one under spark-submit; otherwise it connects to the JVM that ``jvm``
started early. Nothing of Spark outlives the block.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from reput.sources import interpreter
from reput.sources.plainspark import go_plain, is_plain
from reput.store.errors import StoreError
from reput.streaming.spark import internals
from reput.streaming.spark.errors import first_line
from reput.streaming.spark.jvm import (
    Jvm,
    cluster_settings,
    end_process,
    find_java,
    local_settings,
    started,
)

# between a JVM's last byte on a socket and its end
LOST_SECONDS = 2.0
DATA_SOURCES = "DataSourceManager$"
"""Spark's own object that knows the data sources, in its package ``datasources``."""


def _settings(extra: dict[str, str]) -> dict[str, str]:
    """Return the session's settings: ours, overridden by the submitter's, overridden by
    ``extra``."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # under spark-submit the JVM is already running, and SparkConf has the submitter's settings
        # from it once pyspark is connected, as it is to answer any question
        SparkContext.getSystemProperty("spark.master")
        conf, ours = SparkConf(), cluster_settings()
        return {**{key: value for key, value in ours.items() if not conf.contains(key)}, **extra}
    find_java()
    return local_settings(extra)


def _connect(jvm: Jvm) -> None:
    """Make pyspark use a JVM that it did not start."""
    port, secret = jvm.address()
    environment = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(environment)
    try:
        gateway = java_gateway.launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        for name in environment:
            del os.environ[name]
    SparkContext._ensure_initialized(gateway=gateway)


def _disconnect() -> None:
    """Disconnect from the JVM, and end it if pyspark started it: the next session takes a new
    one."""
    gateway = SparkContext._gateway
    if gateway is None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    process = gateway.proc
    server = gateway.get_callback_server()
    for connection in list(server.connections) if server is not None else ():
        # py4j closes its stream first, and would wait for ever for a thread that reads from it; one
        # that is closed has no socket
        with suppress(OSError, AttributeError):
            connection.socket.shutdown(socket.SHUT_RDWR)
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if process is not None:
        end_process(process)


def _open(settings: dict[str, str], jvm: Jvm | None) -> SparkSession:
    conf = SparkConf().setAll(list(settings.items()))
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        if jvm is not None:
            _connect(jvm)
        SparkContext.getOrCreate(conf)
        if threading.current_thread() is threading.main_thread():
            # pyspark installs its own handler, which would interrupt a batch on Ctrl-C
            signal.signal(signal.SIGINT, interrupt)
        opened = SparkSession.builder.config(conf=conf).getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise StoreError(f"Spark does not start: {first_line(error)}") from error
    if is_plain():
        return opened
    # it polls a socket of the JVM: the socket's end deserves no traceback, whoever closes it first
    opened.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    if jvm is not None and jvm.workers is not None:
        opened.sparkContext.pythonExec = jvm.workers.python
        interpreter.KNOWN.add(jvm.workers.python)
    _skip_lookup(opened)
    return opened


def _skip_lookup(opened: SparkSession) -> None:
    """Make Spark skip its search for Python data sources: ours are registered.

    Otherwise the first use of one starts a worker that imports every installed ``pyspark_*``
    module. The field that controls this is Spark's own, and another version may not have it.
    """
    jvm: Any = opened.sparkContext._jvm
    try:
        manager = getattr(jvm.org.apache.spark.sql.execution.datasources, DATA_SOURCES)
        nothing = getattr(jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
        set_found = getattr(getattr(manager, "MODULE$"), "dataSourceBuilders_$eq")
        set_found(jvm.scala.Option.apply(nothing))
    except (Py4JError, TypeError) as error:
        version = opened.version
        go_plain(f"spark {version} has another {DATA_SOURCES}, {first_line(error)}")


def _stop(opened: SparkSession) -> None:
    """Stop Spark without waiting for its accumulator server, which only polls and ends by itself:
    waiting takes up to a second."""
    context = opened.sparkContext
    if not is_plain():
        server = context._accumulatorServer
        context._accumulatorServer = None  # type: ignore[assignment]
        threading.Thread(target=server.shutdown, daemon=True).start()
    try:
        opened.stop()
    except (Py4JError, OSError):
        # the JVM is gone, and the context has noticed it now: it only clears itself
        context.stop()
        raise


@contextmanager
def _watched(process: subprocess.Popen[bytes] | None, opened: SparkSession) -> Iterator[None]:
    """Stop Spark after the block; say in one line that its JVM was lost, where that is the cause
    of an error. Raises StoreError."""
    try:
        try:
            yield
        finally:
            _stop(opened)
    except (Py4JError, PySparkException, OSError) as error:
        if process is None:
            raise
        try:
            code = process.wait(LOST_SECONDS)
        except subprocess.TimeoutExpired:
            raise error from None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        raise StoreError(
            f"Spark's java {how}; if the machine ran out of memory, its kernel's log says so. "
            "Start the command again: a run goes on at its watermark, and nothing is lost"
        ) from error


@contextmanager
def session(extra: dict[str, str], jvm: Jvm | None = None) -> Iterator[SparkSession]:
    """Yield a session with our settings, stopped with its block; a session that is already open is
    used. In plain mode its JVM ends with this process, and serves each of the process's sessions.

    ``extra`` overrides our settings. Under spark-submit the master is the submitter's, and the
    submitter's settings override ours too. ``jvm`` is one that the caller has started with the same
    ``extra`` and will end. Raises StoreError where Spark does not start, or its JVM is lost.
    """
    internals.check()
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    with ExitStack() as stack:
        if jvm is not None and is_plain():
            jvm.end()
            jvm = None
        jvm = jvm or stack.enter_context(started(extra))
        if not is_plain():
            stack.callback(_disconnect)
        opened = _open(_settings(extra), jvm)
        stack.enter_context(_watched(_process(opened, jvm), opened))
        yield opened


def _process(opened: SparkSession, jvm: Jvm | None) -> subprocess.Popen[bytes] | None:
    """Return the process of the JVM; None where it is not ours, or not known in plain mode."""
    if jvm is not None:
        return jvm.process
    gateway: Any = None if is_plain() else opened.sparkContext._gateway
    process: subprocess.Popen[bytes] | None = None if gateway is None else gateway.proc
    return process
