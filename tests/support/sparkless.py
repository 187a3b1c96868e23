"""``run_dispatcher`` without Spark: the product's own start and commits, and between them the files
of Spark's checkpoint, which Spark does not sync (``checkpoints.spark_checkpoint``)."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from reput.checkpoints.ownership import Ownership
from reput.checkpoints.swap import finish_swap
from reput.store import fsops
from reput.store.config import StoreSettings
from reput.store.errors import StoreError
from reput.store.log.commitlog import CommitLog
from reput.store.runs.dispatch import BatchSettings, DispatchBatch
from reput.store.state.built import settings_of
from reput.store.state.logoffset import offset_json
from reput.streaming.commit import Committer, OnWatermark
from reput.streaming.config import DispatcherConfig
from reput.streaming.followers import Followers
from reput.streaming.startup import Start, plan_start, take_over


class SparkFiles:
    """The files of a query's checkpoint, written as by Spark: never synced."""

    def __init__(self, config: DispatcherConfig, start: Start) -> None:
        self._directory = config.spark_directory
        self._store_id = start.plan.watermark.store_id
        position = start.plan.spark
        self._batch_id = -1 if position is None else position.batch_id
        self.planned_end: int | None = None
        """The end of the planned batch that Spark repeats first; None if there is none."""
        if position is not None and not position.committed:
            self._batch_id -= 1
            self.planned_end = position.planned_end
        if not (self._directory / "metadata").exists():
            self._write("metadata", json.dumps({"id": self._store_id}))

    def plan(self, end: int) -> None:
        """Write the commit of the last batch, and the plan of the next one."""
        self._batch_id += 1
        if self._batch_id and self.planned_end is None:
            self._write(f"commits/{self._batch_id - 1}", 'v1\n{"nextBatchWatermarkMs":0}')
        if self.planned_end is None:
            offset = json.dumps(offset_json(self._store_id, end))
            self._write(f"offsets/{self._batch_id}", f"v1\n{{}}\n{offset}")
        self.planned_end = None

    def _write(self, name: str, text: str) -> None:
        path, fd = self._directory / name, -1
        try:
            if not path.parent.is_dir():
                path.parent.mkdir()
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(fd, text.encode(), 0)
        except OSError as error:
            # as the dispatcher tells of Spark's failure
            raise fsops.output_error(error, "write", path) from error
        finally:
            if fd >= 0:
                os.close(fd)


class Running:
    """A run that has taken its output over; batches are scanned and committed on demand."""

    def __init__(
        self, log: CommitLog, start: Start, committer: Committer, settings: StoreSettings
    ) -> None:
        self.log = log
        self.start = start
        self.committer = committer
        self.position = start.plan.start
        batch_topics = start.indexes.batch_topics
        self._live = BatchSettings(batch_topics, settings.message_delay_levels_ms)

    def scan(self, end: int) -> DispatchBatch:
        """The batch from the position up to ``end``. Raises StoreError as ``foreachbatch``."""
        batch = self.start.indexes.scan(self.log, self.position, end, self._live)
        if batch is None:
            raise StoreError(f"the log between {self.position} and {end} changed")
        return batch

    def commit(self, batch: DispatchBatch) -> None:
        """Make a batch durable; the next one follows it."""
        self.committer.commit(batch)
        self.committer.publish(batch)
        self.position = batch.end


@contextmanager
def running(
    config: DispatcherConfig,
    *,
    on_watermark: OnWatermark = lambda *_: None,
    open_followers: type[Followers] = Followers,
) -> Iterator[Running]:
    """Start as ``run_dispatcher`` does; within the block, batches; at its end the run ends."""
    settings, log = config.open_store()
    with closing(log):
        finish_swap(config.output)
        settings = settings_of(config.output, settings, config.flags)
        with Ownership(config.output), ExitStack() as opened:
            replay = log.min_offset if config.replay_from == "earliest" else config.replay_from
            start = plan_start(config, settings, log, None if replay is None else int(replay))
            plan, indexes = start.plan, start.indexes
            followers = open_followers(config, settings, plan.watermark.store_id)
            opened.callback(followers.close)
            committer = Committer(config, indexes, log, followers, on_watermark)
            opened.callback(committer.close)
            take_over(config, start, committer, followers)
            on_watermark(settings, None)
            yield Running(log, start, committer, settings)
            committer.tend()
            committer.end()
            followers.catch_up(threading.Event())


def dispatch(
    config: DispatcherConfig,
    cuts: Sequence[int] = (),
    *,
    part: Callable[[DispatchBatch], int] | None = None,
    on_watermark: OnWatermark = lambda *_: None,
    open_followers: type[Followers] = Followers,
    with_spark_files: bool = False,
) -> Sequence[str]:
    """Dispatch all that is there, in batches that end at ``cuts`` of the log; the notes of the
    start. ``part`` is given the first batch and chooses where it ends instead."""
    with running(config, on_watermark=on_watermark, open_followers=open_followers) as run:
        log_end = run.start.log_end
        spark = SparkFiles(config, run.start) if with_spark_files else None
        while run.position < log_end:
            end = next((cut for cut in sorted(cuts) if cut > run.position), log_end)
            end = min(end, log_end)
            if spark is not None:
                end = spark.planned_end or end
                spark.plan(end)
            batch = run.scan(end)
            if part is not None and part(batch) > run.position:
                # the rest is left for another run
                run.commit(run.scan(part(batch)))
                break
            run.commit(batch)
        return run.start.plan.notes
