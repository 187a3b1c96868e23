"""SIGTERM, as service managers and container engines send it, to a real run that follows a log."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from reput.store.config import read_store_settings
from reput.store.files import STATE_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, walk
from reput.store.state.watermark import read_watermark
from reput.upkeep.verify.run import verify
from tests.support.childruns import ChildRun, check_gone
from tests.support.cli import REPUT, reput_json

GONE_SECONDS = 20.0
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


def _is_worker(process: psutil.Process) -> bool:
    """Whether Spark has started it for tasks: then foreachBatch has been called."""
    with suppress(psutil.Error):
        return process.cmdline()[-1:] == ["pyspark.worker"]
    return False


@pytest.mark.extended
def test_sigterm_ends_a_run_after_its_batch_and_leaves_nothing(tmp_path: Path) -> None:
    """Sent among hundreds of batches, one after the other: exit code 0, the watermark at the end
    of the batch that was running, which is whole, and no process."""
    store, output = tmp_path / "store", tmp_path / "output"
    appended = reput_json(
        "produce", store, "--count", 60_000, "--rate", 0, "--commitlog-file-size", "8m"
    )
    mark = uuid.uuid4().hex
    command = [*REPUT, "run", store, "--output", output, "--json", *SMALL_BATCHES]
    with ChildRun(tmp_path / "log", command, environment={MARK: mark}) as run:
        run.wait_until(lambda: any(map(_is_worker, run.tree())))
        assert run.stop() == 0
    summary = json.loads(run.stdout.splitlines()[-1])
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
    check_gone(_started_by(mark), GONE_SECONDS)
    assert _started_by(mark) == []
