"""Parts of a batch between tasks and commits: in the order of the log, whatever they come as.

Logs are random and sound; what each queue must get is decoded the plain way.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from reput.sources import logparts
from reput.sources.commitlog import CommitLogStreamReader
from reput.sources.commitlogoptions import CommitLogOptions
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import DEFAULT_DELAY_LEVELS_MS
from reput.store.runs.dispatch import BatchSettings, DispatchBatch, ScannedRange, Wanted
from reput.store.runs.packed import read_runs, unpack
from reput.store.runs.packedschema import PACKED_SCHEMA
from reput.store.runs.scan import assemble, scan_in_one_piece
from reput.store.runs.spool import close_spool, open_spool, take_part, write_part
from reput.store.state.logoffset import offset_json
from reput.streaming import parts
from reput.streaming.config import DispatcherConfig
from reput.streaming.foreachbatch import BatchFunction
from reput.streaming.parts import Parts, joined
from reput.streaming.progress import Progress
from reput.streaming.sparkless import running
from tests.store.runs.test_assemble import check_whole
from tests.support.small_store import SmallStore
from tests.support.wire import PlainLog

LONGEST_SECONDS = 60.0
WANTED = Wanted(index=True)
SETTINGS = BatchSettings(frozenset(), DEFAULT_DELAY_LEVELS_MS)


class Batch:
    """One batch, the whole of a plain log, whose tasks are the test."""

    def __init__(self, root: Path, plain: PlainLog) -> None:
        self.plain = plain
        self.log = CommitLog([plain.write(root / "commitlog")])
        self.spool = open_spool(root / "spool", root)
        self.whole = ScannedRange(plain.start, plain.end, plain.end, 0, -1, SETTINGS, 0)
        self.scanned: list[int] = []
        """Where the driver has scanned by itself."""
        self.parts = Parts(self.spool, plain.start, self._scan)

    def _scan(self, start: int, whole: ScannedRange) -> DispatchBatch:
        self.scanned.append(start)
        segment = self.log.segments.at(start)
        assert segment is not None
        end = min(segment.start + self.log.file_size, whole.end)
        found = scan_in_one_piece(
            self.log, start, end,
            delay_levels_ms=DEFAULT_DELAY_LEVELS_MS, verify_crc=False, extras=WANTED,
        )  # fmt: skip
        assert found is not None
        return found

    def hand_over(self, start: int, end: int) -> None:
        """Leave a part in the spool, as the task does that has claimed it."""
        write_part(self.spool, start, read_runs(self.log, start, end, extras=WANTED))

    def check(self, commits: Sequence[DispatchBatch]) -> None:
        """Together they are the whole log, and each begins where the one before has ended."""
        assert all(before.end == after.start for before, after in pairwise(commits))
        check_whole(joined(commits), self.plain)
        assert self.parts.are_whole


@pytest.fixture
def batch(tmp_path: Path, seed: int) -> Batch:
    """120 messages in four queues, in files of 4 KiB."""
    plain, rng = PlainLog(4096), random.Random(seed)
    following = [0] * 4
    for number in range(120):
        queue = rng.randrange(4)
        plain.append(
            topic=b"T%d" % (queue // 2), queue_id=queue, queue_offset=following[queue],
            store_timestamp=1_700_000_000_000 + number, properties=b"KEYS\1k%d\2" % number,
        )  # fmt: skip
        following[queue] += 1
    return Batch(tmp_path, plain)


def ranges(batch: Batch, rng: random.Random, count: int) -> list[tuple[int, int]]:
    """So many parts, cut at records."""
    cuts = rng.sample([start for start, _ in batch.plain.spans[1:]], count - 1)
    return list(pairwise([batch.plain.start, *sorted(cuts), batch.plain.end]))


def test_parts_are_committed_in_order_while_others_are_scanned(batch: Batch, seed: int) -> None:
    """They come in any order; the first commit needs no more than the first part."""
    rng, commits = random.Random(seed), list[DispatchBatch]()
    planned = ranges(batch, rng, 9)
    first = threading.Event()

    def take() -> None:
        for commit in batch.parts.commits():
            commits.append(commit)
            first.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "UNITS_PER_QUEUE", 0)
        thread = threading.Thread(target=take)
        thread.start()
        later = rng.sample(planned[1:], 8)
        for part in later[:4]:
            batch.hand_over(*part)
        assert not first.is_set()
        batch.hand_over(*planned[0])
        assert first.wait(LONGEST_SECONDS)
        for part in later[4:]:
            batch.hand_over(*part)
        batch.parts.end(batch.whole)
        thread.join(LONGEST_SECONDS)
    batch.check(commits)
    assert batch.scanned == []
    assert [path.name for path in batch.spool.iterdir()] == ["open"]


def test_few_units_wait_for_more_and_much_of_the_log_does_not(batch: Batch, seed: int) -> None:
    """A commit syncs each file that it touches, and memory is bounded."""
    planned = ranges(batch, random.Random(seed), 10)
    for part in planned:
        batch.hand_over(*part)
    batch.parts.end(batch.whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "COMMIT_BYTES", 6000)
        commits = list(batch.parts.commits())
    batch.check(commits)
    bounds = {end for _, end in planned}
    for commit in commits[:-1]:
        assert commit.end - commit.start >= 6000
        assert max(b for b in bounds if b < commit.end) - commit.start < 6000


@pytest.mark.parametrize("missing", ["none came", "some were lost", "a cut was forged"])
def test_what_no_part_covers_is_scanned_here(batch: Batch, missing: str, seed: int) -> None:
    """No entry may be lost with a task, a full disk, or a cut that is no record's start."""
    rng = random.Random(seed)
    planned = ranges(batch, rng, 8)
    if missing == "some were lost":
        planned = rng.sample(planned, 5)
    elif missing == "a cut was forged":
        (start, middle), (_, end) = planned[3:5]
        planned[3:5] = [(start, middle - 1), (middle - 1, end)]
    for part in planned if missing != "none came" else ():
        batch.hand_over(*part)
    batch.parts.end(batch.whole)
    batch.check(list(batch.parts.commits()))
    assert batch.scanned


def test_nothing_follows_a_job_that_failed_or_was_stopped(batch: Batch, seed: int) -> None:
    """Everything before it is committed; the next start goes on there."""
    planned = ranges(batch, random.Random(seed), 6)
    for part in (*planned[:2], planned[4]):
        batch.hand_over(*part)
    close_spool(batch.spool)
    batch.parts.end(batch.whole)
    (commit,) = batch.parts.commits()
    assert (commit.start, commit.end) == (planned[0][0], planned[1][1])
    assert not batch.parts.are_whole
    failed = Parts(batch.spool, planned[4][0], batch._scan)
    failed.end(None)
    (commit,) = failed.commits()
    assert (commit.start, commit.end) == planned[4]
    assert batch.scanned == []


def test_a_part_of_the_next_batch_is_left_there(batch: Batch, seed: int) -> None:
    """It comes while the last one of this batch is still being committed."""
    planned = ranges(batch, random.Random(seed), 4)
    for part in planned:
        batch.hand_over(*part)
    middle = planned[2][0]
    batch.parts.end(replace(batch.whole, end=middle))
    (commit,) = batch.parts.commits()
    assert (commit.start, commit.end) == (0, middle)
    following = Parts(batch.spool, middle, batch._scan)
    following.end(batch.whole)
    (commit,) = following.commits()
    assert (commit.start, commit.end) == (middle, batch.plain.end)
    assert batch.scanned == []


def test_a_lost_part_is_scanned_up_to_the_end_of_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond that end the log is the next batch's, and may be written while it is read."""
    plain = PlainLog(4096)
    for number in range(3):
        plain.append(queue_offset=number)
    store, end = SmallStore(tmp_path, plain), plain.spans[1][1]
    whole = ScannedRange(0, end, end, 0, -1, SETTINGS, 0)
    monkeypatch.setattr(BatchFunction, "_collect", lambda *_: [whole])
    frame: Any = None
    with running(DispatcherConfig(store.output.store, store.output.root)) as run:
        spool, progress = open_spool(tmp_path / "spool", tmp_path), Progress(0, 0)
        batches = BatchFunction(spool, 0, run.start.indexes, run.log, run.committer, progress)
        batches(frame, 0)
        batches.commits.wait()
        batches.close()
    assert progress.position == end
    store.check(is_all=False)


def test_joined_parts_have_the_last_record_of_all(batch: Batch) -> None:
    """The last of them may hold a BLANK alone."""
    first, last = [span for span in batch.plain.spans if span[1] <= 4096][-2:]
    ranges_of_parts = [first, last, (last[1], 4096)]
    found = [
        scan_in_one_piece(
            batch.log,
            start,
            end,
            delay_levels_ms=DEFAULT_DELAY_LEVELS_MS,
            verify_crc=False,
            extras=WANTED,
        )
        for start, end in ranges_of_parts
    ]
    assert joined([part for part in found if part]).last_record_offset == last[0]
    assert len([part for part in found if part]) == 3


@pytest.fixture
def reader(
    golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., CommitLogStreamReader]:
    """Readers of the same log, as the planner and the tasks have them; parts may be small."""
    monkeypatch.setattr(logparts, "MIN_PARTITION_BYTES", 1 << 14)
    store = golden("mixed")

    def opened(**options: str) -> CommitLogStreamReader:
        given = {"path": str(store), "mode": "runs", "storeId": "0" * 32, **options}
        return CommitLogStreamReader(CommitLogOptions(given), from_arrow_schema(PACKED_SCHEMA))

    return opened


def test_tasks_share_the_parts_of_a_batch(
    reader: Callable[..., CommitLogStreamReader], tmp_path: Path
) -> None:
    """Each part is scanned once, also where a task is repeated; the rows are those of a query
    without a spool."""
    spool = open_spool(tmp_path / "spool", tmp_path)
    shared = reader(spool=str(spool), minPartitions="3")
    shared.prepareForTriggerAvailableNow()
    start = offset_json("0" * 32, 0)
    end = shared.latestOffset(start, ReadAllAvailable())
    planned = [pickle.dumps(one) for one in shared.partitions(start, end)]
    assert len(planned) == 3
    ends = []

    def task(partition: bytes) -> Iterable[pa.RecordBatch]:
        return pickle.loads(pickle.dumps(shared)).read(pickle.loads(partition))

    threads = [threading.Thread(target=lambda one=one: ends.extend(task(one))) for one in planned]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_SECONDS)
    parts_before = {path: path.stat().st_ino for path in spool.glob("*.part")}
    assert len(parts_before) == len(ranges_of(planned)) > 3
    ends.extend(task(planned[0]))
    assert {path: path.stat().st_ino for path in spool.glob("*.part")} == parts_before
    (whole,) = {(item.start, item.end) for item in unpack(ends) if isinstance(item, ScannedRange)}
    alone = reader(minPartitions="1")
    rows = [row for one in alone.partitions(start, end) for row in alone.read(one)]
    expected = assemble(unpack(rows))
    assert expected is not None
    assert whole == (expected.start, expected.end)
    found = joined([assemble(unpack(take_part(spool, at) or ())) for at, _ in ranges_of(planned)])
    assert units_of(found) == units_of(expected)
    assert (found.message_count, found.end) == (expected.message_count, expected.end)


def test_tasks_begin_no_further_part_once_a_run_is_stopped(
    reader: Callable[..., CommitLogStreamReader], tmp_path: Path
) -> None:
    """But for the first one, so that a batch of one part ends as it would have."""
    spool = open_spool(tmp_path / "spool", tmp_path)
    stopped = reader(spool=str(spool))
    stopped.prepareForTriggerAvailableNow()
    start = offset_json("0" * 32, 0)
    (planned,) = stopped.partitions(start, stopped.latestOffset(start, ReadAllAvailable()))
    close_spool(spool)
    list(stopped.read(planned))
    assert [path.name for path in spool.glob("*.part")] == ["0.part"]


def ranges_of(planned: list[bytes]) -> tuple[tuple[int, int], ...]:
    """The parts that the tasks share."""
    (found,) = {pickle.loads(one).ranges for one in planned}
    return found


def units_of(batch: DispatchBatch) -> dict[tuple[bytes, int], bytes]:
    """The bytes of each queue, in the order in which they are written."""
    return {
        queue: b"".join(run.units.tobytes() for run in runs)
        for queue, runs in batch.runs_by_queue().items()
    }


def test_a_job_that_fails_ends_the_wait_for_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody writes them any more: else the run would wait forever, and not say why it failed."""

    def failed(_batches: BatchFunction, _frame: Any) -> list[Any]:
        raise OSError("the job has failed")

    monkeypatch.setattr(BatchFunction, "_collect", failed)
    nothing: Any = None
    spool = open_spool(tmp_path / "spool", tmp_path)
    batches = BatchFunction(spool, 0, nothing, nothing, nothing, Progress(0, 0))
    with pytest.raises(OSError, match="the job has failed"):
        batches(nothing, 0)
    closing = threading.Thread(target=batches.close, daemon=True)
    closing.start()
    closing.join(LONGEST_SECONDS)
    assert not closing.is_alive()
