"""Whole runs without Spark, and between their commits the files of Spark's checkpoint, which Spark
does not sync (``checkpoints.spark_checkpoint``)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence

from reput.store import fsops
from reput.store.runs.dispatch import DispatchBatch
from reput.store.state.logoffset import offset_json
from reput.streaming.commit import OnVisible
from reput.streaming.config import DispatcherConfig
from reput.streaming.followers import Followers
from reput.streaming.sparkless import running
from reput.streaming.startup import Start

HOUR_MS = 3_600_000


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
    on_visible: OnVisible = lambda *_: None,
    open_followers: type[Followers] = Followers,
    with_spark_files: bool = False,
) -> Sequence[str]:
    """Dispatch all that is there, in batches that end at ``cuts`` of the log; the notes of the
    start. ``part`` is given the first batch and chooses where it ends instead."""
    with running(config, on_visible=on_visible, open_followers=open_followers) as run:
        log_end = run.start.log_end
        spark = SparkFiles(config, run.start) if with_spark_files else None
        committed = list[int]()
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
            # what is not synced here waits for the next batch, or for the end of the run
            run.commit(batch, durable=len(committed) % 2 == 0)
            committed.append(batch.end)
        return run.start.plan.notes
