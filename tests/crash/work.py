"""The common ground of all runs whose power cuts, kills and failing writes are tried: the logs, the
disk, and the recording of a run."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reput.store.config import read_store_settings
from reput.store.log.logtail import LogTail
from reput.store.queue import unsynced
from reput.store.state.built import settings_of
from reput.store.state.watermark import read_watermark
from reput.streaming.config import DispatcherConfig
from reput.streaming.followers import Followers
from reput.upkeep.verify.run import Verification, verify
from tests.support.configs import configured
from tests.support.crash_images import (
    DONE,
    WATERMARK,
    Case,
    Outcome,
    Told,
    outcome,
)
from tests.support.grown_log import SETTINGS, GrownLog
from tests.support.recorder import Recorder
from tests.support.sparkless import HOUR_MS, dispatch

SIZES = (SETTINGS["maxHashSlotNum"], SETTINGS["maxIndexNum"])
RECORDS = 5
"""Records of one batch."""
BATCHES = 3


SEEDS = {"main": 5, "alike": 3, "retained": 7}
"""The seeds of the logs."""


class InTurn:
    """A pool without threads, so that a run's operations have the same order each time."""

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
def one_after_another() -> Iterator[pytest.MonkeyPatch]:
    """Syncs one after another and no wait for the log's seal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unsynced, "ThreadPoolExecutor", InTurn)
        patch.setattr(LogTail, "SEAL_SECONDS", 0.0)
        yield patch


def _resume_whole(work: Work, told: Told) -> None:
    """Start and go on to the end, in one process."""
    work.resume(told, lambda *_: None)


Note = Callable[[str, object], None]
"""Somebody is told something: ``Recorder.note``."""
DELIVERED_AGAIN = "delivered again"
"""The note of a start that has changed its target, whose rows are of that start's log then."""


@dataclass(frozen=True)
class Work:
    """One run, what was there before it, and how the next process goes on."""

    name: str
    log: Path
    """The store whose log the last process reads."""
    lay: Callable[[], None]
    """Have the disk as it is before the run."""
    run: Callable[[Note], None]
    resume: Callable[[Told, Note], object]
    """Start on what is on the disk, and go on to the end; the notes are for a start that may be
    killed as well."""
    outcome: Callable[[], Outcome]
    accepted: list[Outcome]
    """The outcomes of undisturbed runs; once the run is done, only the last one is."""

    @property
    def cuts(self) -> bool:
        """Whether units are cut because the log has lost its end."""
        return "cut" in self.name or self.log.name == "shorter"


class WorkBench:
    """The logs, and a disk below ``directory``, which should be in a file system in memory."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch, seed: int | None = None) -> None:
        """``seed`` is of the logs; None for those of which the sample tests' shares are known."""
        self._patch = patch
        self.disk = directory / "disk"
        self.disk.mkdir()
        self.output = self.disk / "output"
        self._stores = directory
        shift = 0 if seed is None else 1000 * (seed + 1)
        self._seeds = {name: shift + base for name, base in SEEDS.items()}
        self.log = self._grown("store", "main", BATCHES * RECORDS)
        self.cuts = [self.log.plain.spans[at * RECORDS - 1][1] for at in range(1, BATCHES)]
        other = self._grown("shorter", "main", BATCHES * RECORDS)
        other.cut(BATCHES * RECORDS - 3)
        other.grow(4, alike=True)
        self.shorter = other.root
        self._alike = self._grown("alike", "alike", 18, alike=True)
        self._outcomes: dict[tuple[object, ...], Outcome] = {}

    def _grown(self, name: str, seed: str, messages: int, *, alike: bool = False) -> GrownLog:
        log = GrownLog(self._stores / name, random.Random(self._seeds[seed]), ext=True)
        log.grow(messages, alike=alike)
        return log

    def cases(self, name: str) -> Iterator[Case]:
        """The works of one name, each recorded."""
        for work in getattr(self, name)():
            work.lay()
            with Recorder(self.disk) as recorder:
                work.run(recorder.note)
            recorder.check()
            outcome = work.outcome()
            resume = partial(_resume_whole, work)
            yield Case(work.name, recorder, resume, work.outcome, outcome, work.accepted)

    def _config(self, store: Path | None = None, **options: Any) -> DispatcherConfig:
        # what is synced when, ``dispatch`` says
        options["durable_latency_ms"] = HOUR_MS
        return configured(store or self.log.root, self.output, **options)

    def outcome(self) -> Outcome:
        """The outcome of what is on the disk."""
        return outcome(self.output, SIZES)

    def _undisturbed(self, store: Path, **options: Any) -> Outcome:
        key = (store, *options.items())
        if key not in self._outcomes:
            self._clear()
            dispatch(self._config(store, **options))
            self._outcomes[key] = self.outcome()
            self._clear()
        return self._outcomes[key]

    def _clear(self) -> None:
        shutil.rmtree(self.output, ignore_errors=True)

    def _begin_with(self, store: Path, **options: Any) -> Callable[[], None]:
        """Have the disk hold the output of another log."""

        def lay() -> None:
            self._clear()
            dispatch(self._config(store, **options))

        return lay

    def _dispatch(self, note: Note, config: DispatcherConfig) -> None:
        """One run, with a note of each watermark that followers and readers learn of."""

        class Told(Followers):
            def start(self, watermark: int, log_end: int) -> None:
                note(WATERMARK, watermark)
                super().start(watermark, log_end)

            def truncate(self, end: int) -> None:
                note(WATERMARK, end)
                super().truncate(end)

            def advance(self, watermark: int) -> None:
                note(WATERMARK, watermark)
                super().advance(watermark)

        def on_visible(*_: object) -> None:
            found = read_watermark(config.state_directory)
            note(WATERMARK, found and found.end_offset)

        cuts = [] if config.store.name == "alike" else self.cuts
        dispatch(
            config, cuts, on_visible=on_visible, open_followers=Told,
            with_spark_files=True,
        )  # fmt: skip
        note(DONE, True)

    def _work(
        self, name: str, lay: Callable[[], None], before: Path, after: Path, wanted: Outcome
    ) -> Work:
        """A run over one log, and the next over that one or another."""
        return Work(
            name, after, lay, lambda note: self._dispatch(note, self._config(before)),
            lambda *_: dispatch(self._config(after)), self.outcome, [wanted],
        )  # fmt: skip

    def verify(self, store: Path, *, repair: bool = False) -> Verification:
        """The output against a log."""
        settings = settings_of(self.output, read_store_settings(store))
        return verify(settings, self.output, repair=repair)
