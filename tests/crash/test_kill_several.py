"""kill -9 of a run of several stores: after the next run, each store's queues are whole."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reput.store.files import STATE_DIRECTORY
from reput.store.state.watermark import read_watermark
from reput.streaming.supervisor import Supervisor
from reput.workload.appender import Appender
from reput.workload.messages import Workload
from tests.support.childruns import ChildRun, check_whole, kill_runs
from tests.support.cli import REPUT
from tests.support.configs import configured
from tests.support.golden import unpack_golden
from tests.support.tables import log_end

QUEUE_FILE_SIZE = 6000
STORES = 20
MESSAGES = 10
"""Messages that a store gets at a time."""
TURN_SECONDS = 0.25
"""Time in which each store gets them once."""
LONGEST_START_SECONDS = 15.0


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


def _run(directory: Path, outputs: Iterable[Path]) -> ChildRun:
    """A run that follows several stores in small batches."""
    command = [
        *REPUT, "run", "--stores", directory / "stores" / "*", "--outputs", directory / "outputs",
        "--max-bytes-per-trigger", "64k", "--consume-queue-file-size", QUEUE_FILE_SIZE,
    ]  # fmt: skip
    return ChildRun(directory / "log", command, *outputs)


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


@pytest.mark.extended
def test_a_killed_run_leaves_every_store_whole_after_the_next(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """The queues are RocketMQ's own."""
    rng = random.Random(seed)
    stores = [unpack_golden(name, tmp_path / "stores") for name in ("plain", "mixed", "wide")]
    outputs = {root: tmp_path / "outputs" / root.name for root in stores}
    with _run(tmp_path, outputs.values()) as run:
        # two of each store's writes are its start's
        run.wait_for_moves(rng.randint(1, 4 * len(stores)))
    _dispatch(spark, outputs)
    for root, output in outputs.items():
        check_whole(output, root)


def kill_rounds(spark: SparkSession, directory: Path, rounds: int, seed: int) -> None:
    """Kill runs that follow growing logs; then compare with undisturbed ones."""
    print(f"seed={seed}")
    rng = random.Random(seed)
    with GrowingStores(directory / "stores", STORES) as growing:
        outputs = {root: directory / "outputs" / root.name for root in growing.roots}
        kill_runs(
            lambda: _run(directory, outputs.values()), rng, rounds,
            lambda run: run.wait_for_moves(rng.randint(1, 6 * STORES)), LONGEST_START_SECONDS,
        )  # fmt: skip
    undisturbed = {root: directory / "undisturbed" / root.name for root in growing.roots}
    _dispatch(spark, outputs)
    _dispatch(spark, undisturbed)
    for root, output in outputs.items():
        assert any((output / "consumequeue").rglob("0*"))
        check_whole(undisturbed[root], undisturbed[root])
        check_whole(output, undisturbed[root])


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
    with _run(tmp_path, outputs) as run:
        run.wait_for_moves(3 * len(stores))
        run.lose_jvm()
