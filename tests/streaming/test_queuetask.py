"""The task that writes whole queues, without Spark: attempts that lose, and answers that lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from reput.checkpoints.swap import clear_aside, epoch_of
from reput.sinks.index.executorqueues import ExecutorQueues
from reput.sources.bitmaps import BitMaps
from reput.store import fsops
from reput.store.config import read_store_settings
from reput.store.errors import StoreError, SyncError
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.queue.queuetype import find_batch_topics
from reput.store.runs.dispatch import DispatchBatch
from reput.store.runs.packed import read_runs
from reput.store.state.ledger import Ledger
from reput.streaming import queuetask
from reput.streaming.indexes import Indexes
from reput.streaming.queuetask import SORT_COLUMNS, QueueTask
from tests.support.golden import difference, log_records, tree
from tests.support.plain_queues import plain_units
from tests.support.power_cuts import Disk
from tests.support.recorder import Recorder

KINDS = ("consumequeue", "consumequeue_ext", "batchconsumequeue")


class Scene:
    """A golden store, an output to build, and the rows that Spark gives to one task."""

    def __init__(self, store: Path, output: Path, epoch: Path) -> None:
        settings = read_store_settings(store)
        indexes = Indexes(settings, find_batch_topics(store, output))
        self.store = store
        self.output = output
        self.task = QueueTask(indexes, epoch)
        output.mkdir(exist_ok=True)
        self._log = settings.open_log()
        self.rows = self._scan(self._log, indexes)

    def _scan(self, log: CommitLog, indexes: Indexes) -> Sequence[pa.RecordBatch]:
        end = LogTail(log).settled()
        bit_maps = BitMaps(log, indexes.settings) if indexes.extras.bit_maps else None
        cuts = [*(segment.start for segment in log.segments.listed if segment.start < end), end]
        parts = [
            rows
            for start, stop in reversed([*pairwise(cuts)])
            for rows in read_runs(
                log, start, stop, bit_maps.added_to if bit_maps else None, extras=indexes.extras,
                delay_levels_ms=indexes.settings.message_delay_levels_ms,
            )
        ]  # fmt: skip
        order = [(name, "ascending") for name in SORT_COLUMNS]
        return pa.Table.from_batches(parts).sort_by(order).to_batches(max_chunksize=10)

    def move_in(self, batch: DispatchBatch) -> None:
        """Do what the driver does with a batch."""
        writer = ExecutorQueues(self.output, Ledger(self.output / "reput"))
        writer.write(batch)
        writer.sync()

    def equals_rocketmq(self) -> bool:
        return not any(difference(self.output / kind, self.store / kind) for kind in KINDS)


@pytest.fixture
def over() -> Iterator[ExitStack]:
    """Ends the epoch when it is closed."""
    with ExitStack() as held:
        yield held


@pytest.fixture(params=["lmq", "queues-5.5.1"])
def scene(
    request: pytest.FixtureRequest, golden: Callable[[str], Path], tmp_path: Path, over: ExitStack
) -> Scene:
    output = tmp_path / "aside" / "new"
    return Scene(golden(request.param), output, over.enter_context(epoch_of(output)))


def batch_of(scene: Scene) -> DispatchBatch:
    batch = scene.task.batch_of(list(scene.task(iter(scene.rows))))
    assert batch is not None
    return batch


def test_an_attempt_that_loses_leaves_nothing(scene: Scene, over: ExitStack) -> None:
    """It stands in the middle of its queues while another one wins, the driver moves that one's
    queues in and ends the epoch; then it goes on, as after SIGSTOP and SIGCONT."""

    def slow_rows() -> Iterator[pa.RecordBatch]:
        half = len(scene.rows) // 2
        yield from scene.rows[:half]
        assert len([*scene.task.epoch.glob("attempt-*")]) == 1
        winner = batch_of(scene)
        assert len([*scene.task.epoch.glob("attempt-*")]) == 2
        scene.move_in(winner)
        over.close()
        yield from scene.rows[half:]

    with pytest.raises(StoreError, match="cannot"):
        list(scene.task(slow_rows()))
    assert scene.equals_rocketmq()
    assert [*scene.output.parent.iterdir()] == [scene.output]


def test_an_attempt_of_an_epoch_that_is_over_writes_nothing(scene: Scene, over: ExitStack) -> None:
    """So it is on a node that does not see the output; the error names the node."""
    over.close()
    with pytest.raises(StoreError, match=r"^node \S+ cannot write queues: .* epoch that is gone"):
        list(scene.task(iter(scene.rows)))
    assert [*scene.output.parent.iterdir()] == [scene.output]


def test_nothing_is_answered_that_is_not_durable(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sync of an attempt and of what was moved in fails: so does each."""

    def failing() -> None:
        monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints("sync:1=EIO"))

    failing()
    with pytest.raises(SyncError, match=r"attempt-\w+/consumequeue|attempt-\w+/batchconsumequeue"):
        list(scene.task(iter(scene.rows)))
    batch = batch_of(scene)
    failing()
    with pytest.raises(SyncError, match=str(scene.output)):
        scene.move_in(batch)


@pytest.mark.parametrize("name", ["batch", "ext"])
def test_what_is_answered_outlives_a_power_cut(
    golden: Callable[[str], Path], tmp_path: Path, over: ExitStack, name: str
) -> None:
    """Every file of every kind of queue, by its name and its bytes; that the attempt itself has its
    name, the driver sees."""
    output = tmp_path / "aside" / "new"
    scene = Scene(golden(name), output, over.enter_context(epoch_of(output)))
    with Recorder(scene.task.epoch) as recorder:
        batch = batch_of(scene)
        fsops.sync_directory(scene.task.epoch)
    recorder.check()
    durable = Disk.after(recorder).durable()
    files = {
        f"{Path(queue.attempt).name}/{file.path}" for queue in batch.queues for file in queue.files
    }
    kinds = {Path(file).parts[1] for file in files}
    assert len(kinds) == 2
    assert {file: (scene.task.epoch / file).read_bytes() for file in files} == {
        file: durable.get(file) for file in files
    }


def test_a_start_ends_the_epoch_of_a_killed_one(tmp_path: Path) -> None:
    """A task of the killed driver may still be writing."""
    aside = tmp_path / ".reput-rebuild"
    (aside / "epoch-1" / "attempt-1").mkdir(parents=True)
    (aside / "gone-epoch-0").mkdir()
    clear_aside(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_topics_that_became_others_meanwhile(scene: Scene) -> None:
    """A task finds all batch topics declared ordinary ones, or an ordinary one a batch topic."""
    indexes = scene.task.indexes
    for topics in (frozenset[bytes](), indexes.batch_topics | {b"x"}):
        later = replace(indexes, batch_topics=topics)
        answers = replace(scene.task, indexes=later)(iter(scene._scan(scene._log, later)))
        with pytest.raises(StoreError, match=r"topics\.json has other batch topics"):
            scene.task.batch_of(list(answers))


def test_wrong_answers_are_refused(scene: Scene) -> None:
    """A queue that no task has written or that two have, one with two owners, files that are not as
    they were written or that the driver does not see; nothing is moved."""
    answers = list(scene.task(iter(scene.rows)))
    for wrong in (answers[:-1], [*answers, answers[-1]]):
        with pytest.raises(StoreError, match=r"have scanned \d+ units and written"):
            scene.task.batch_of(wrong)
    other = replace(scene.task, indexes=replace(scene.task.indexes, batch_topics=frozenset({b"x"})))
    with pytest.raises(StoreError, match=r"topics\.json has other batch topics"):
        other.batch_of(answers)
    batch = scene.task.batch_of(answers)
    assert batch is not None
    first = batch.queues[0]
    with pytest.raises(StoreError, match="was written twice"):
        scene.move_in(replace(batch, queues=[*batch.queues, replace(first, attempt="elsewhere")]))
    path = Path(first.attempt) / first.files[-1].path
    sound = path.read_bytes()
    for damaged in (bytes(20) + sound[20:], sound[:-1], sound[:-1] + b"\1"):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="is not as an executor has written it"):
            scene.move_in(batch)
    path.unlink()
    with pytest.raises(StoreError, match="a file system that all nodes share"):
        scene.move_in(batch)
    assert not [*scene.output.rglob("consumequeue")]
    path.write_bytes(sound)
    scene.move_in(batch)
    assert scene.equals_rocketmq()
    assert len(tree(scene.output)) == sum(len(queue.files) for queue in batch.queues)


@pytest.mark.parametrize("units", [1, 30])
def test_a_manifest_says_what_the_queues_files_hold(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, units: int
) -> None:
    """However many writes a queue takes: its messages, their range, the time of the last one."""
    monkeypatch.setattr(queuetask, "UNITS_PER_WRITE", units)
    times = {one.physical_offset: one.store_timestamp for one in log_records(scene.store)}
    queues = batch_of(scene).queues
    assert len({queue.attempt for queue in queues}) == 1
    for queue in queues:
        kind = "batch" * (queue.topic in scene.task.indexes.batch_topics) + "consumequeue"
        place = Path(kind) / queue.topic.decode() / str(queue.queue_id)
        found = plain_units(scene.store / place)
        (_, first, _, _), (_, last, size, _) = found[0], found[-1]
        assert (queue.unit_count, queue.counts.messages) == (len(found), len(found))
        assert (queue.first_physical_offset, queue.end_physical_offset) == (first, last + size)
        assert queue.last_store_timestamp == times[last]
        assert {Path(file.path).parent for file in queue.files} >= {place}
    scene.move_in(batch_of(scene))
    assert scene.equals_rocketmq()
