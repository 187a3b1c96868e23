"""kill -9 of a run of several stores: after the next run, each store's queues are whole."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reput.store.files import STATE_DIRECTORY
from reput.store.state.watermark import read_watermark
from reput.streaming.supervisor import Supervisor
from reput.workload.appender import Appender
from reput.workload.messages import Workload
from tests.support.cli import REPUT, ROOT, kill_tree
from tests.support.configs import configured
from tests.support.golden import difference, unpack_golden
from tests.support.processes import check_lost_jvm
from tests.support.tables import log_end

POLL_SECONDS = 0.02
LONGEST_SECONDS = 300.0
QUEUE_FILE_SIZE = 6000
STORES = 20
MESSAGES = 10
"""Messages that a store gets at a time."""
TURN_SECONDS = 0.25
"""Time in which each store gets them once."""


class GrowingStores:
    """Stores to which a thread appends in turn, while in a ``with`` block."""

    def __init__(self, directory: Path, number: int) -> None:
        self.roots = [directory / f"store-{index:02}" for index in range(number)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._append)
        self._held = ExitStack()

    def __enter__(self) -> GrowingStores:
        self._appenders = [
            self._held.enter_context(Appender(root, file_size=1 << 20)) for root in self.roots
        ]
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._held.close()

    def _append(self) -> None:
        workload, first = Workload(3, 2, 200, seed=7), 0
        while not self._stop.is_set():
            for appender in self._appenders:
                now = time.time_ns() // 1_000_000
                appender.append_batch(workload.batch(first, MESSAGES, now))
                self._stop.wait(TURN_SECONDS / len(self._appenders))
            first += MESSAGES


def _follow(pattern: Path, outputs: Path, **streams: int) -> subprocess.Popen[str]:
    """A run of its own that follows several stores in small batches."""
    options = {
        "--stores": pattern, "--outputs": outputs, "--max-bytes-per-trigger": "64k",
        "--consume-queue-file-size": QUEUE_FILE_SIZE,
    }  # fmt: skip
    words = [str(word) for option in options.items() for word in option]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **streams}
    return subprocess.Popen([*REPUT, "run", *words], cwd=ROOT, text=True, **silent)  # type: ignore[call-overload,no-any-return]


def _moves(outputs: Sequence[Path]) -> int:
    """How often the watermarks of all outputs were written."""
    found = [read_watermark(output / STATE_DIRECTORY) for output in outputs]
    return sum(watermark.sequence for watermark in found if watermark is not None)


def _wait_for_moves(process: subprocess.Popen[str], outputs: Sequence[Path], wanted: int) -> None:
    before, deadline = _moves(outputs), time.monotonic() + LONGEST_SECONDS
    while _moves(outputs) < before + wanted:
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < deadline, "no batch came"
        time.sleep(POLL_SECONDS)  # polls files of another process


def _dispatch(spark: SparkSession, outputs: Mapping[Path, Path]) -> None:
    """Catch up every store (root -> output) in this process."""
    found = {
        root.name: configured(
            root, output, once=True, mapped_file_size_consume_queue=QUEUE_FILE_SIZE
        )
        for root, output in outputs.items()
    }
    supervised = Supervisor(lambda: found, once=True)
    supervised.run(spark, threading.Event())
    assert [store.error for store in supervised.stores] == [None] * len(outputs)
    for root, output in outputs.items():
        watermark = read_watermark(output / STATE_DIRECTORY)
        assert watermark is not None
        assert watermark.end_offset == log_end(root)
        assert not (output / STATE_DIRECTORY / "quarantine.jsonl").exists()
        assert not (output / STATE_DIRECTORY / "abort").exists()
        assert list((output / STATE_DIRECTORY / "spool").iterdir()) == []


def test_a_killed_run_leaves_every_store_whole_after_the_next(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """The queues are RocketMQ's own."""
    rng = random.Random(seed)
    stores = [unpack_golden(name, tmp_path / "stores") for name in ("plain", "mixed", "wide")]
    outputs = {root: tmp_path / "outputs" / root.name for root in stores}
    process = _follow(tmp_path / "stores" / "*", tmp_path / "outputs")
    try:
        # two of each store's writes are its start's
        _wait_for_moves(process, [*outputs.values()], rng.randint(1, 4 * len(stores)))
    finally:
        kill_tree(process.pid)
        process.wait()
    _dispatch(spark, outputs)
    for root, output in outputs.items():
        assert difference(output / "consumequeue", root / "consumequeue") == []


def kill_rounds(spark: SparkSession, directory: Path, rounds: int, seed: int) -> None:
    """Kill runs that follow growing logs; then compare with undisturbed ones."""
    print(f"seed={seed}")
    rng = random.Random(seed)
    with GrowingStores(directory / "stores", STORES) as growing:
        outputs = {root: directory / "outputs" / root.name for root in growing.roots}
        for _ in range(rounds):
            process = _follow(directory / "stores" / "*", directory / "outputs")
            try:
                if rng.random() < 0.75:
                    _wait_for_moves(process, [*outputs.values()], rng.randint(1, 6 * STORES))
                    time.sleep(rng.random() * 0.5)  # the moment is random, not an event
                else:
                    time.sleep(rng.random() * 15)
            finally:
                kill_tree(process.pid)
                process.wait()
    undisturbed = {root: directory / "undisturbed" / root.name for root in growing.roots}
    _dispatch(spark, outputs)
    _dispatch(spark, undisturbed)
    for root, output in outputs.items():
        assert any((output / "consumequeue").rglob("0*"))
        wanted = undisturbed[root] / "consumequeue"
        assert difference(output / "consumequeue", wanted) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_hundred_killed_runs_of_twenty_stores_end_equal_to_undisturbed_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All logs grow meanwhile, and every queue has several files."""
    kill_rounds(spark, tmp_path, 100, int(os.environ.get("REPUT_TEST_SEED", "20260105")))


@pytest.mark.slow
def test_a_lost_jvm_ends_all_runs_with_one_line(tmp_path: Path) -> None:
    """No store can be started again without it."""
    stores = [unpack_golden(name, tmp_path / "stores") for name in ("plain", "mixed")]
    outputs = [tmp_path / "outputs" / root.name for root in stores]
    process = _follow(tmp_path / "stores" / "*", tmp_path / "outputs", stderr=subprocess.PIPE)
    try:
        _wait_for_moves(process, outputs, 3 * len(stores))
        check_lost_jvm(process, LONGEST_SECONDS)
    finally:
        kill_tree(process.pid)
