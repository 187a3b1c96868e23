"""Python workers on which Spark hangs up."""

from __future__ import annotations

import pickle
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pyspark.daemon
import pytest

from reput.sources import hangup
from reput.sources.commitlog import CommitLogDataSource
from reput.sources.plainspark import PLAIN_VARIABLE

READ_AND_LEFT = """
# what Spark's monitor calls after an idle minute, which is no setting
CLEANUP = "org$apache$spark$api$python$PythonWorkerFactory$$cleanupIdleWorkers"
import os, select, sys
from reput.sources.commitlog import CommitLogDataSource
from reput.sources.consumequeue import ConsumeQueueDataSource
from reput.streaming.spark.jvm import started
from reput.streaming.spark.session import session

with started({}) as java, session({}, java) as spark:
    for source in (CommitLogDataSource, ConsumeQueueDataSource):
        spark.dataSource.register(source)
        assert spark.read.format(source.name()).option("path", sys.argv[1]).load().count()
    template = spark._jvm.java.lang.ProcessHandle.of(java.workers.process.pid).get()
    daemons = {child.pid() for child in template.children().toList()}
    workers = {child.pid() for child in template.descendants().toList()} - daemons
    ends = [os.pidfd_open(pid) for pid in workers]
    def field(name, owner, of):
        # by name: to look for a method would load classes that our class path leaves out
        found = spark._jvm.java.lang.Class.forName(owner).getDeclaredField(name)
        found.setAccessible(True)
        return found.get(of)

    env = field("_env", "org.apache.spark.SparkContext", spark._jsc.sc())
    factories = field("pythonWorkers", "org.apache.spark.SparkEnv", env).valuesIterator()
    while factories.hasNext():
        getattr(factories.next(), CLEANUP)()
    for end in ends:
        assert select.select([end], [], [], 150)[0]
    print("ended" if workers else "there were none")
"""

LEFT_OR_NOT = (
    (BrokenPipeError(), False), (ConnectionResetError(), False), (ConnectionAbortedError(), True),
    (ValueError("other"), True),
)  # fmt: skip
"""Errors that a worker may meet, and whether they are printed: unread bytes reset a connection."""


def test_a_worker_that_spark_has_left_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """pyspark's own worker raises here, and its manager prints a traceback."""
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "right")
    theirs = pyspark.daemon.worker
    for worker, raises in ((theirs, True), (hangup.quiet(theirs), False)):
        ours, spark = socket.socketpair()
        with ours:
            spark.sendall(struct.pack("!i", 5) + b"wrong")
            spark.close()
            if raises:
                with pytest.raises(BrokenPipeError):
                    worker(ours, False)
            else:
                assert worker(ours, False) != 0
    assert capfd.readouterr() == ("", "")


def test_a_planner_that_spark_leaves_within_its_task_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its daemon prints for it; what else goes wrong in it is still shown."""
    daemon = ModuleType("daemon")
    exec(Path(pyspark.daemon.__file__).read_text("utf-8"), vars(daemon))
    daemon.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", daemon)
    source = CommitLogDataSource({})
    for error, printed in LEFT_OR_NOT:
        try:
            raise error
        except Exception:
            vars(daemon)["traceback"].print_exc()
        assert ("Traceback" in capfd.readouterr().err) is printed
    assert source


def test_a_source_that_a_planner_unpickles_keeps_it_quiet(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Spark makes a source in one worker and plans in another, which gets it pickled; with plain
    Spark nothing of either is changed."""
    pickled = pickle.dumps(CommitLogDataSource({"path": "/p"}))
    for is_plain in (True, False):
        monkeypatch.setenv(PLAIN_VARIABLE, str(int(is_plain)))
        daemon = ModuleType("daemon")
        daemon.__spec__ = ModuleSpec("pyspark.daemon", None)
        monkeypatch.setitem(sys.modules, "__main__", daemon)
        for made in (partial(pickle.loads, pickled), partial(CommitLogDataSource, {})):
            vars(daemon)["traceback"] = traceback
            source = made()
            try:
                raise BrokenPipeError
            except BrokenPipeError:
                vars(daemon)["traceback"].print_exc()
            assert ("BrokenPipeError" in capfd.readouterr().err) is is_plain
            assert isinstance(source, CommitLogDataSource)


@pytest.mark.extended
def test_workers_without_work_end_quietly(golden: Callable[[str], Path]) -> None:
    """Workers that made, planned and read our sources print nothing when Spark lets go of them."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", READ_AND_LEFT, str(golden("plain"))],
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    assert done.stdout == "ended\n"
    assert "Traceback" not in done.stderr


def test_a_streams_planner_that_spark_has_left_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is a program of its own, which a broken pipe ends; anything else is still shown."""
    runner = ModuleType("runner")
    runner.__spec__ = ModuleSpec("pyspark.sql.streaming.python_streaming_source_runner", None)
    monkeypatch.setitem(sys.modules, "__main__", runner)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    source = CommitLogDataSource({})
    for error, printed in LEFT_OR_NOT:
        sys.excepthook(type(error), error, None)
        assert ("Error" in capfd.readouterr().err) is printed
    assert source
