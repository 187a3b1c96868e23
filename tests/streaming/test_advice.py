"""A run's error says what to do, most often to start it again: done where the run ends so."""

from __future__ import annotations

import errno
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from reput.checkpoints.ownership import Ownership
from reput.store.errors import OwnershipError, StoreError
from reput.store.runs.packedschema import PACKED_SCHEMA
from reput.streaming.config import DispatcherConfig
from reput.streaming.foreachbatch import BatchFunction
from reput.streaming.progress import Progress
from reput.streaming.sparkless import running
from tests.support.cli import ROOT, Call
from tests.support.derived_output import DerivedOutput
from tests.support.golden import log_records, tree
from tests.support.grown_log import GrownLog
from tests.support.operations import before_operations
from tests.support.processes import holder
from tests.upkeep.test_doctor import built, rebuild_killed

pytestmark = pytest.mark.usefixtures("spark")
STOPPED_MEANWHILE = """
import sys, threading, time
from pathlib import Path
from pyspark import SparkContext
from reput.cli import main

def stop_spark():
    while len([*Path(sys.argv[-1]).glob("*/reput/watermark")]) < 2:
        time.sleep(0.02)
    SparkContext._active_spark_context._jsc.sc().stop()

sys.argv[0] = "reput"
threading.Thread(target=stop_spark, daemon=True).start()
main()
"""
"""Runs a command whose last word is a directory of two outputs, and stops Spark alone once both are
written; its JVM goes on."""
COMMAND = re.compile(r"reput (?:rebuild|run) /\S+ --output /\S+(?: --[a-z-]+(?: [^\s-]\S*)?)*")


@pytest.fixture
def output(ram_path: Path, seed: int) -> DerivedOutput:
    """A log with messages for every kind of index; nothing is dispatched yet."""
    log = GrownLog(ram_path / "store", random.Random(seed), ext=True)
    log.grow(60)
    return DerivedOutput(log.root, ram_path / "output")


def is_sound(call: Call, output: DerivedOutput) -> bool:
    """Whether all that the log holds is in the output, and nothing else."""
    place = (output.store, "--output", output.root)
    return call("verify", *place).returncode == 0 == call("doctor", *place).returncode


@pytest.mark.extended
def test_spark_that_has_stopped_under_several_stores(output: DerivedOutput, call: Call) -> None:
    """The application of all stores ends with one line; the same command goes on."""
    stores, outputs = output.root.with_name("stores"), output.root.with_name("outputs")
    for name in ("a", "b"):
        shutil.copytree(output.store, stores / name)
    words = ["run", "--stores", f"{stores}/*", "--outputs", str(outputs)]
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_MEANWHILE, *words],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("reput: error: ")]
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "Spark has stopped; start the command again: every store goes on" in line
    assert call(*words, "--once").returncode == 0
    for name in ("a", "b"):
        assert is_sound(call, DerivedOutput(stores / name, outputs / name))


def test_a_batch_that_comes_without_its_range(
    output: DerivedOutput, call: Call, spark: SparkSession
) -> None:
    """Spark brings no row at all of it; the next run has them all."""
    config = DispatcherConfig(output.store, output.root)
    nothing = spark.createDataFrame([], from_arrow_schema(PACKED_SCHEMA))
    with running(config) as run:
        anything: Any = run.start.indexes
        batches = BatchFunction(None, 0, anything, run.log, run.committer, Progress(0, 0))
        with pytest.raises(StoreError, match="nothing was written; start the run again"):
            batches(nothing, 0)
        batches.close()
    assert not (output.root / "consumequeue").exists()
    assert call("run", output.store, "--output", output.root, "--once").returncode == 0
    assert is_sound(call, output)


def test_a_watermark_that_another_has_written(output: DerivedOutput, call: Call) -> None:
    """The run ends; another one is started, and then verify."""
    path = output.state / "watermark"
    records = log_records(output.store)
    with running(DispatcherConfig(output.store, output.root)) as run:
        run.commit(run.scan(records[len(records) // 2].physical_offset))
        earlier = path.read_bytes()
        run.commit(run.scan(run.start.log_end))
        latest = path.read_bytes()
        path.write_bytes(earlier)
        with pytest.raises(OwnershipError, match="start one again, then run reput verify"):
            run.committer.tend()
        # what ends the block would raise the same
        path.write_bytes(latest)
    path.write_bytes(earlier)
    assert call("run", output.store, "--output", output.root, "--once").returncode == 0
    assert is_sound(call, output)


def test_an_output_that_another_run_writes(output: DerivedOutput, call: Call) -> None:
    """This run writes elsewhere, or takes its turn when the other one is stopped."""
    other = DerivedOutput(output.store, output.root.with_name("other"))
    run = ("run", output.store, "--once", "--output")
    with holder(lambda: Ownership(output.root).__enter__()):
        done = call(*run, output.root)
        assert done.returncode == 1
        assert "stop it first, or write elsewhere with --output DIR" in done.stderr
        assert call(*run, other.root).returncode == 0
    assert call(*run, output.root).returncode == 0
    assert is_sound(call, output) and is_sound(call, other)


def test_a_queue_that_somebody_has_removed(output: DerivedOutput, call: Call) -> None:
    """A start is refused until the command that it names has built the queue again."""
    output.start()
    before = tree(output.root / "consumequeue")
    shutil.rmtree(next((output.root / "consumequeue").glob("*/0")))
    run = ("run", output.store, "--output", output.root, "--once")
    done = call(*run)
    assert (done.returncode, "builds them again from the log" in done.stderr) == (1, True)
    (command,) = COMMAND.findall(done.stderr)
    assert call(*shlex.split(command)[1:]).returncode == 0
    assert call(*run).returncode == 0
    assert tree(output.root / "consumequeue") == before
    assert is_sound(call, output)


def test_a_dry_run_after_a_rebuild_that_was_killed(tmp_path: Path, call: Call) -> None:
    """It cannot foretell; a start finishes the rebuild, and then it can."""
    site = built(tmp_path)
    rebuild_killed(site)
    run = ("run", site.output.store, "--output", site.output.root)
    done = call(*run, "--dry-run")
    assert (done.returncode, "start without a dry run" in done.stderr) == (1, True), done.stderr
    assert call(*run, "--once").returncode == 0
    assert call(*run, "--dry-run").returncode == 0
    assert is_sound(call, site.output)


def test_a_table_that_has_more_than_the_log(output: DerivedOutput, call: Call, seed: int) -> None:
    """The log was cut, and its output made anew: each of both ways gives a table of the log."""
    table, whole = output.root.with_name("table"), output.root.with_name("whole")
    name = ("--delta-store-id", "site")
    run = ("run", output.store, "--once", "--output")
    assert call(*run, output.root, "--delta", table, *name).returncode == 0
    shutil.copytree(output.store, whole)
    shutil.rmtree(output.root)
    log = GrownLog(output.root.with_name("cut"), random.Random(seed), ext=True)
    log.grow(20)
    run = ("run", log.root, "--once", "--output")
    done = call(*run, output.root, "--delta", table, *name)
    assert done.returncode == 1, done.stderr
    assert "give the log that was delivered, or another target" in done.stderr
    assert "; the next run goes on from there" in done.stderr
    cut = DerivedOutput(log.root, output.root)
    assert call(*run, cut.root, "--delta", table.with_name("other"), *name).returncode == 0
    assert is_sound(call, cut)
    delivered = DerivedOutput(whole, output.root.with_name("delivered"))
    run = ("run", whole, "--once", "--output", delivered.root)
    assert call(*run, "--delta", table, *name).returncode == 0
    assert is_sound(call, delivered)


@pytest.mark.extended
@pytest.mark.parametrize(
    "pattern",
    [
        r"consumequeue/A/0/\d+",
        "consumequeue/A/0",
        r"index/\d+",
        r"reput/quarantine\.jsonl",
        "reput/watermark",
    ],
)
def test_a_disk_that_loses_what_was_written(
    ram_path: Path, seed: int, call: Call, pattern: str
) -> None:
    """A sync fails, and the kernel drops the pages of the file: it is as it was at the last sync, a
    new one has zeros. With the disk in order again a start finds and writes what is missing."""
    log = GrownLog(ram_path / "store", random.Random(seed), ext=True)
    output = DerivedOutput(log.root, ram_path / "output")
    words = ("run", log.root, "--output", output.root, "--once")
    log.grow(40)
    assert call(*words).returncode == 0
    before = tree(output.root)
    log.grow(200)
    synced: list[str] = []
    lost: list[str] = []

    def fail(operation: str, path: str) -> None:
        name = path.removeprefix(f"{output.root}/")
        if operation != "sync" or lost:
            return
        # the watermark is synced before the batch, too
        synced.append(name.split("/")[0])
        if "consumequeue" not in synced or not re.fullmatch(pattern, name):
            return
        lost.append(name)
        if (file := Path(path)).is_file():
            kept = before.get(name, b"")
            with file.open("r+b") as written:
                written.write(kept.ljust(file.stat().st_size, b"\0"))
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with before_operations(fail):
        done = call(*words)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert f"cannot sync {output.root / lost[0]}: Input/output error; " in done.stderr
    assert done.stderr.endswith("; stop, check the disk, start again\n")
    assert call(*words).returncode == 0
    assert is_sound(call, output)
