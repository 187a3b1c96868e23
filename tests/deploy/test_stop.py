"""SIGTERM, as service managers and container engines send it, to a real run that follows a log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import psutil

from reput.store.config import read_store_settings
from reput.store.files import STATE_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, walk
from reput.store.state.watermark import read_watermark
from reput.upkeep.verify.run import verify
from tests.support.cli import REPUT, ROOT, kill_tree, reput_json
from tests.support.processes import not_ended

START_TIMEOUT = 120.0
STOP_TIMEOUT = 120.0
GONE_TIMEOUT = 20.0
POLL_SECONDS = 0.05
SMALL_BATCHES = ("--max-bytes-per-trigger", "32k")
"""Hundreds of them: the last one comes long after a busy machine has seen the first one."""
MARK = "REPUT_TEST_RUN"


def _started_by(mark: str) -> list[psutil.Process]:
    """Every living process that inherited the mark, whoever its parent is by now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _wait_for_a_running_batch(process: subprocess.Popen[str]) -> None:
    """Wait until Spark has started a worker for tasks: then foreachBatch has been called."""
    deadline = time.monotonic() + START_TIMEOUT
    driver = psutil.Process(process.pid)
    while True:
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < deadline, "no batch came"
        for child in driver.children(recursive=True):
            try:
                if child.cmdline()[-1:] == ["pyspark.worker"]:
                    return
            except psutil.Error:
                continue
        time.sleep(POLL_SECONDS)  # processes of others can only be looked at


def test_sigterm_ends_a_run_after_its_batch_and_leaves_nothing(tmp_path: Path) -> None:
    """Sent among hundreds of batches, one after the other: exit code 0, the watermark at the end
    of the batch that was running, which is whole, and no process."""
    store, output = tmp_path / "store", tmp_path / "output"
    appended = reput_json(
        "produce", store, "--count", 60_000, "--rate", 0, "--commitlog-file-size", "8m"
    )
    mark = uuid.uuid4().hex
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(
            [*REPUT, "run", str(store), "--output", str(output), "--json", *SMALL_BATCHES],
            cwd=ROOT, env={**os.environ, MARK: mark}, text=True,
            stdout=subprocess.PIPE, stderr=errors,
        ) as process,
    ):  # fmt: skip
        try:
            _wait_for_a_running_batch(process)
            os.kill(process.pid, signal.SIGTERM)
            printed, _ = process.communicate(timeout=STOP_TIMEOUT)
        except BaseException:
            kill_tree(process.pid)
            raise
    assert process.returncode == 0, (tmp_path / "errors").read_text()
    summary = json.loads(printed.splitlines()[-1])
    after = read_watermark(output / STATE_DIRECTORY)
    assert after is not None
    assert 0 < after.end_offset == summary["end_offset"] < appended["end_offset"]
    log = CommitLog([store / "commitlog"])
    assert summary["messages"] == walk(log, Window(log), 0, after.end_offset).record_count > 0
    log.close()
    found = verify(read_store_settings(store), output)
    assert (found.log_end, found.units, found.differences) == (
        after.end_offset, summary["messages"], ()
    )  # fmt: skip
    # the JVM ends itself when the driver's end of a pipe is closed, a moment after the driver
    not_ended(_started_by(mark), GONE_TIMEOUT)
    assert _started_by(mark) == []
