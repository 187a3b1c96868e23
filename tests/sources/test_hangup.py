"""Python workers on which Spark hangs up."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sources import hangup

READ_AND_LEFT = """
import os, select, sys
from sources.commitlog import CommitLogDataSource
from sources.consumequeue import ConsumeQueueDataSource
from streaming.session import session

with session({"spark.master": "local[1]"}) as spark:
    for source in (CommitLogDataSource, ConsumeQueueDataSource):
        spark.dataSource.register(source)
        assert spark.read.format(source.name()).option("path", sys.argv[1]).load().count()
    jvm = spark._jvm.java.lang.ProcessHandle.current()
    daemons = {child.pid() for child in jvm.children().toList()}
    workers = {child.pid() for child in jvm.descendants().toList()} - daemons
    ends = [os.pidfd_open(pid) for pid in workers]
    for end in ends:
        assert select.select([end], [], [], 150)[0]
    print(len(daemons), "daemons,", len(workers), "workers ended")
"""


def test_a_worker_that_spark_has_left_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """pyspark's own worker raises here, and its manager prints a traceback."""
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "right")
    for worker, raises in ((hangup.spark_worker, True), (hangup.worker, False)):
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


def test_workers_without_work_end_quietly(golden: Callable[[str], Path]) -> None:
    """Those that made our sources, planned and read them, a minute after it."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", READ_AND_LEFT, str(golden("plain"))],
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    # one for making, one for planning, one for reading; each has forked a worker or more
    assert re.fullmatch(r"3 daemons, [3-9] workers ended\n", done.stdout), done.stdout
    assert "Traceback" not in done.stderr
