"""A rebuild whose queues executors write ends with an error: its advice is followed.

Nothing is replaced by it, and the same command, started again, builds what one writer builds.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from reput.store.errors import StoreError
from reput.store.runs.dispatch import DispatchBatch
from reput.store.runs.packedschema import RowKind
from reput.streaming.config import DispatcherConfig
from reput.streaming.executors import build_on_executors
from reput.streaming.queuetask import QueueTask
from reput.upkeep.rebuild import rebuild
from tests.streaming.test_advice import is_sound
from tests.support.cli import Call
from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree
from tests.support.grown_log import GrownLog
from tests.support.operations import once_before

pytestmark = pytest.mark.usefixtures("spark")
ATTEMPTS = ".reput-rebuild/epoch-*/attempt-*"
QUEUES = ("consumequeue", "consumequeue_ext", "batchconsumequeue")


@pytest.fixture
def output(ram_path: Path, seed: int) -> DerivedOutput:
    """All of a log is dispatched."""
    log = GrownLog(ram_path / "store", random.Random(seed), ext=True)
    log.grow(60)
    output = DerivedOutput(log.root, ram_path / "output")
    output.start()
    return output


def queues(output: DerivedOutput) -> list[dict[str, bytes]]:
    return [tree(output.root / kind) for kind in QUEUES]


def words(output: DerivedOutput) -> tuple[object, ...]:
    return ("rebuild", output.store, "--output", output.root, "--executors")


def left_by_rebuilds(output: DerivedOutput) -> list[str]:
    """The names of parts that rebuilds have kept, or left unfinished."""
    names = [path.name for path in output.root.iterdir()]
    return [name for name in names if ".replaced" in name or name.startswith(".reput")]


def check_nothing_replaced(output: DerivedOutput, before: list[dict[str, bytes]]) -> None:
    assert (queues(output), left_by_rebuilds(output)) == (before, [])


def check_line(said: str, advice: str) -> None:
    """The last line is an error with this end, and nothing else comes with it."""
    assert said.splitlines()[-1].startswith("reput: error: "), said
    assert said.endswith(f"{advice}\n"), said
    assert "Traceback" not in said


def check_started_again(output: DerivedOutput, before: list[dict[str, bytes]], call: Call) -> None:
    assert call(*words(output)).returncode == 0
    assert "consumequeue.replaced-1" in left_by_rebuilds(output)
    assert queues(output) == before
    assert is_sound(call, output)


def after_the_tasks(output: DerivedOutput) -> bool:
    """Whether the driver has the tasks' answers: it changes no file while they run."""
    return bool([*output.root.glob(ATTEMPTS)])


def test_a_file_that_changes_under_way(output: DerivedOutput, call: Call) -> None:
    """It is looked at, and is sound the next time."""
    before = queues(output)

    def change() -> None:
        path = min(output.root.glob(f"{ATTEMPTS}/consumequeue/*/*/*"))
        path.write_bytes(bytes(20) + path.read_bytes()[20:])

    with once_before(lambda *_: after_the_tasks(output), change):
        done = call(*words(output))
    check_line(done.stderr, "nothing is replaced, look at the file system and start again")
    check_nothing_replaced(output, before)
    check_started_again(output, before, call)


def test_files_that_the_driver_does_not_see(output: DerivedOutput, call: Call) -> None:
    """The files of executors stay on their nodes; an output that all nodes share is built."""
    before = queues(output)

    def hide() -> None:
        for attempt in output.root.glob(ATTEMPTS):
            shutil.rmtree(attempt)

    with once_before(lambda *_: after_the_tasks(output), hide):
        done = call(*words(output))
    check_line(done.stderr, "the output must lie on a file system that all nodes share")
    check_nothing_replaced(output, before)
    shared = DerivedOutput(output.store, output.root.with_name("shared"))
    assert call(*words(shared)).returncode == 0
    assert queues(shared) == before
    assert is_sound(call, shared)


def test_an_answer_that_is_lost(output: DerivedOutput, call: Call) -> None:
    """Between an executor and the driver, as only a fault of Spark or of ours would have it."""
    before, batch_of = queues(output), QueueTask.batch_of

    def losing(task: QueueTask, answers: Iterable[pa.RecordBatch]) -> DispatchBatch | None:
        rows = pa.Table.from_batches(list(answers))
        lost = rows["kind"].to_pylist().index(int(RowKind.QUEUE))
        kept = pa.concat_tables([rows.slice(0, lost), rows.slice(lost + 1)])
        return batch_of(task, kept.to_batches())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QueueTask, "batch_of", losing)
        done = call(*words(output))
    check_line(done.stderr, "nothing is replaced; start again, and report it")
    check_nothing_replaced(output, before)
    check_started_again(output, before, call)


def test_a_topic_that_gets_batch_queues_meanwhile(output: DerivedOutput, call: Call) -> None:
    """The broker writes its topics after the rebuild has read them, and before its job does."""
    before, path = queues(output), output.store / "config" / "topics.json"

    def declare() -> None:
        topics = json.loads(path.read_text())
        attributes = {"attributes": {"queue.type": "BatchCQ"}}
        topics["topicConfigTable"]["NewBatch"] = attributes
        path.write_text(json.dumps(topics))

    with once_before(lambda *at: "epoch-" in at[1], declare):
        done = call(*words(output))
    check_line(done.stderr, "when the rebuild began: nothing is replaced; start again")
    assert f"{path} has other batch topics" in done.stderr
    check_nothing_replaced(output, before)
    check_started_again(output, before, call)


@contextmanager
def no_core_is_free(spark: SparkSession, directory: Path) -> Iterator[None]:
    """Tasks of another job hold all cores of a session until the block ends."""
    count = spark.sparkContext.defaultParallelism
    begun, ended = str(directory / "begun"), str(directory / "ended")

    def hold(_: Iterable[int]) -> None:
        with open(begun, "wb", 0) as told:
            told.write(b"1")
        with open(ended, "rb", 0) as waited_for:
            waited_for.read(1)

    def run() -> None:
        spark.sparkContext.parallelize(range(count), count).foreachPartition(hold)

    thread = threading.Thread(target=run)
    with ExitStack() as held:
        pipes = []
        for name in (begun, ended):
            os.mkfifo(name)
            # a pipe that is open for both waits for nobody, and keeps what is written
            pipes.append(os.open(name, os.O_RDWR))
            held.callback(os.close, pipes[-1])
        thread.start()
        held.callback(thread.join)
        held.callback(os.write, pipes[1], b"1" * count)
        for _ in range(count):
            os.read(pipes[0], 1)
        yield


def test_a_job_that_somebody_else_cancels(
    output: DerivedOutput, call: Call, spark: SparkSession, tmp_path: Path
) -> None:
    """As Spark's page for jobs does it, before a task of the rebuild finds a core."""
    before, config = queues(output), DispatcherConfig(output.store, output.root)
    context = spark.sparkContext
    tracker, cancelled = context.statusTracker(), set[int]()

    def cancel(_: object) -> None:
        for job in {*tracker.getActiveJobsIds()} - others - cancelled:
            context._jsc.sc().cancelJob(job)  # type: ignore[union-attr]
            cancelled.add(job)

    with no_core_is_free(spark, tmp_path):
        others = {*tracker.getActiveJobsIds()}
        with pytest.raises(StoreError, match="the rebuild failed") as raised:
            rebuild(config, threading.Event(), cancel, build=build_on_executors)
    assert len(cancelled) == 1
    check_line(f"reput: error: {raised.value}\n", "; nothing is replaced, start it again")
    check_nothing_replaced(output, before)
    check_started_again(output, before, call)
