"""``run_dispatcher`` without Spark: the product's own start and commits, and between them the files
of Spark's checkpoint, which Spark does not sync (``checkpoints.spark_checkpoint``)."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from checkpoints.ownership import Ownership
from checkpoints.swap import finish_swap
from store import fsops
from store.runs.dispatch import BatchSettings, DispatchBatch, Run
from store.state.built import settings_of
from store.state.logoffset import offset_json
from streaming.commit import Committer
from streaming.config import DispatcherConfig
from streaming.followers import Followers
from streaming.startup import Start, plan_start, take_over


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


def dispatch(
    config: DispatcherConfig,
    cuts: Sequence[int] = (),
    *,
    part: Callable[[DispatchBatch], int] | None = None,
    on_watermark: Callable[[Sequence[Run] | None], None] = lambda _: None,
    open_followers: type[Followers] = Followers,
    with_spark_files: bool = False,
) -> Sequence[str]:
    """Dispatch the whole log, in batches that end at ``cuts``, and return the notes of the start.

    ``part`` is called with the first batch; if it returns a physical offset within that batch, only
    the messages up to there are committed, and nothing after them.
    """
    settings, log = config.open_store()
    with closing(log):
        finish_swap(config.output)
        settings = settings_of(config.output, settings, config.flags)
        with Ownership(config.output), ExitStack() as opened:
            start = plan_start(config, settings, log)
            plan, indexes = start.plan, start.indexes
            followers = open_followers(config, settings, plan.watermark.store_id)
            opened.callback(followers.close)
            committer = Committer(config, indexes, log, followers, on_watermark)
            opened.callback(committer.close)
            take_over(config, start, committer, followers)
            on_watermark(None)
            spark = SparkFiles(config, start) if with_spark_files else None
            live = BatchSettings(indexes.batch_topics, settings.message_delay_levels_ms)
            position = plan.start
            while position < start.log_end:
                end = next((cut for cut in sorted(cuts) if cut > position), start.log_end)
                end = min(end, start.log_end)
                if spark is not None:
                    end = spark.planned_end or end
                    spark.plan(end)
                batch = indexes.scan(log, position, end, live)
                assert batch is not None
                if part is not None and part(batch) > position:
                    # the rest is left for another run
                    batch = indexes.scan(log, position, part(batch), live)
                    assert batch is not None
                    committer.commit(batch)
                    break
                committer.commit(batch)
                position = batch.end
            committer.tend()
            committer.end()
            followers.catch_up(threading.Event())
    return plan.notes
