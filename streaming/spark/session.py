"""The Spark session that the dispatcher runs in.

It is Spark's usual one under spark-submit; otherwise it connects to the JVM that ``jvm``
started early. Nothing of Spark outlives the block.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from reput.sources import interpreter
from reput.store.errors import StoreError
from reput.streaming.spark.errors import first_line
from reput.streaming.spark.jvm import SETTINGS, Jvm, end_process, find_java, local_settings, started

# between a JVM's last byte on a socket and its end
LOST_SECONDS = 2.0

logger = logging.getLogger("reput")


def _settings(extra: dict[str, str]) -> dict[str, str]:
    """Return the session's settings: ours, overridden by the submitter's, overridden by
    ``extra``."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # under spark-submit the JVM is already running, and knows the submitter's settings
        SparkContext._ensure_initialized()
        conf = SparkConf()
        ours = {key: value for key, value in SETTINGS.items() if not conf.contains(key)}
        return {**ours, **extra}
    find_java()
    return local_settings(extra)


def _connect(jvm: Jvm) -> None:
    """Make pyspark use a JVM that it did not start."""
    port, secret = jvm.address()
    environment = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(environment)
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
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
    module. The field that controls this is internal to Spark, and another version may not have it.
    """
    jvm: Any = opened.sparkContext._jvm
    try:
        manager = getattr(jvm.org.apache.spark.sql.execution.datasources, "DataSourceManager$")
        nothing = getattr(jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
        set_found = getattr(getattr(manager, "MODULE$"), "dataSourceBuilders_$eq")
        set_found(jvm.scala.Option.apply(nothing))
    except (Py4JError, TypeError) as error:
        logger.debug("spark looks for data sources: %s", first_line(error))


def _stop(opened: SparkSession) -> None:
    """Stop Spark without waiting for its accumulator server, which only polls and ends by itself:
    waiting takes up to a second."""
    context = opened.sparkContext
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
    used.

    ``extra`` overrides our settings. Under spark-submit the master is the submitter's, and the
    submitter's settings override ours too. ``jvm`` is one that the caller has started with the same
    ``extra`` and will end. Raises StoreError where Spark does not start, or its JVM is lost.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    with ExitStack() as stack:
        jvm = jvm or stack.enter_context(started(extra))
        stack.callback(_disconnect)
        opened = _open(_settings(extra), jvm)
        process = opened.sparkContext._gateway.proc if jvm is None else jvm.process  # type: ignore[union-attr]
        stack.enter_context(_watched(process, opened))
        yield opened
