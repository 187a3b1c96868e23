"""The runs whose power cuts are tried: each does its work once, recorded, on small logs.

The logs hold messages for every kind of index, gaps of queue offsets and a damaged record for the
ledger. Some images are started on with another log: the broker lost power as well, and the end of
its log with it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from store.config import OnQueueGap
from store.log.cursor import LogTail
from store.queue import unsynced
from store.state.watermark import read_watermark
from streaming.config import DispatcherConfig
from streaming.followers import Followers
from tests.support.crash_images import DONE, WATERMARK, Case, Outcome, Told, outcome
from tests.support.grown_log import SETTINGS, GrownLog
from tests.support.recorder import Recorder
from tests.support.sparkless import dispatch

SIZES = (SETTINGS["maxHashSlotNum"], SETTINGS["maxIndexNum"])
RECORDS = 5
"""Of one batch."""
BATCHES = 3


class InTurn:
    """A pool without threads: the operations of a run are then in the same order each time."""

    def __init__(self, *_args: object) -> None:
        pass

    def __enter__(self) -> InTurn:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def map(self, work: Callable[[Any], object], items: Any) -> list[object]:
        """Do all of it."""
        return [work(item) for item in items]


@contextmanager
def quick(directory: Path) -> Iterator[Workloads]:
    """The workloads, where syncs are made in turn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unsynced, "ThreadPoolExecutor", InTurn)
        patch.setattr(LogTail, "SEAL_SECONDS", 0.0)
        yield Workloads(directory, patch)


class Workloads:
    """The logs, and a disk below ``directory``, which should be in memory."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._disk = directory / "disk"
        self._disk.mkdir()
        self._output = self._disk / "output"
        self._stores = directory
        self.log = GrownLog(directory / "store", random.Random(5), ext=True)
        self.log.grow(BATCHES * RECORDS)
        self.cuts = [self.log.plain.spans[at * RECORDS - 1][1] for at in range(1, BATCHES)]
        self.shorter = directory / "shorter"
        other = GrownLog(self.shorter, random.Random(5), ext=True)
        other.grow(BATCHES * RECORDS)
        other.cut(BATCHES * RECORDS - 3)
        other.grow(4, alike=True)
        self._outcomes: dict[tuple[object, ...], Outcome] = {}

    def _config(self, store: Path | None = None, **options: Any) -> DispatcherConfig:
        return DispatcherConfig(store or self.log.root, self._output, once=True, **options)

    def outcome(self) -> Outcome:
        """The outcome of what is on the disk."""
        return outcome(self._output, SIZES)

    def _undisturbed(self, store: Path, **options: Any) -> Outcome:
        key = (store, *options.items())
        if key not in self._outcomes:
            self._clear()
            dispatch(self._config(store, **options), self.cuts)
            self._outcomes[key] = self.outcome()
            self._clear()
        return self._outcomes[key]

    def _clear(self) -> None:
        shutil.rmtree(self._output, ignore_errors=True)

    def _dispatch(self, recorder: Recorder, config: DispatcherConfig) -> None:
        """One recorded run, and what it tells others."""

        class Told(Followers):
            def start(self, watermark: int, log_end: int) -> None:
                recorder.note(WATERMARK, watermark)
                super().start(watermark, log_end)

            def truncate(self, end: int) -> None:
                recorder.note(WATERMARK, end)
                super().truncate(end)

            def advance(self, watermark: int) -> None:
                recorder.note(WATERMARK, watermark)
                super().advance(watermark)

        def on_watermark(_queues: object) -> None:
            found = read_watermark(config.state_directory)
            recorder.note(WATERMARK, found and found.end_offset)

        dispatch(
            config, self.cuts, on_watermark=on_watermark, open_followers=Told,
            with_spark_files=True,
        )  # fmt: skip
        recorder.note(DONE, True)

    def dispatch(self, name: str = "dispatch") -> Iterator[Case]:
        """The first start, three batches and the end, with a flag that only the first start is
        given; the log is the same afterwards, or has lost its end."""
        self._clear()
        flags = {"on_queue_gap": OnQueueGap.BLANK}
        with Recorder(self._disk) as recorder:
            self._dispatch(recorder, self._config(**flags))
        recorder.check()
        ended = self.outcome()
        for log in (self.log.root, self.shorter):
            wanted = self._undisturbed(log, **flags)

            def resume(told: Told, log: Path = log) -> None:
                # what an output is built with need not be said again once it has begun
                again = {} if WATERMARK in told else flags
                dispatch(self._config(log, **again))

            yield Case(f"{name} {log.name}", recorder, resume, self.outcome, ended, [wanted])
