"""The runs whose power cuts, kills and failing writes are tried, on small logs.

The logs hold messages for every kind of index, gaps of queue offsets and a damaged record for the
ledger. Some starts find another log: the broker lost power too, and with it the end of its log.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import upkeep.checkpoints
import upkeep.expiry
import upkeep.rebuild
from checkpoints import STATE_DIRECTORY
from checkpoints.rewind import Target
from store.config import OnQueueGap, StoreSettings, read_store_settings
from store.log.cursor import LogTail
from store.queue import unsynced
from store.state.built import settings_of
from store.state.watermark import read_watermark
from streaming.config import DispatcherConfig
from streaming.followers import Followers
from streaming.progress import Progress
from tests.support.crash_images import (
    DELIVERED,
    DERIVED,
    DONE,
    WATERMARK,
    Case,
    Outcome,
    Told,
    outcome,
)
from tests.support.grown_log import SETTINGS, GrownLog
from tests.support.recorder import Recorder
from tests.support.sparkless import dispatch
from upkeep.expiry import Expiry
from upkeep.verify.run import Verification, verify

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


@contextmanager
def quick(directory: Path, seed: int | None = None) -> Iterator[Workloads]:
    """The workloads, as ``one_after_another``."""
    with one_after_another() as patch:
        yield Workloads(directory, patch, seed)


class Remote:
    """A follower and its target on another machine, which keeps every row that it was given."""

    name = description = "remote"
    local_path = None
    interval_seconds = 0.0

    def __init__(self) -> None:
        self.rows: list[tuple[int, bytes]] = []
        """(physical offset, body)."""
        self.end: int | None = None
        self.note: Callable[[int], None] = lambda _: None

    def open(self, _store_id: str, _settings: StoreSettings) -> Remote:
        """Return the follower of this target, which is itself."""
        return self

    def position(self) -> int | None:
        """Return the end of the log up to which the target has rows."""
        return self.end

    def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
        """Add rows, which must begin where the earlier ones end."""
        assert start == (self.end or 0)
        for batch in rows:
            offsets, bodies = (
                batch.column(name).to_pylist() for name in ("physicalOffset", "body")
            )
            self.rows += zip(offsets, bodies, strict=True)
        self.end = end
        self.note(end)

    def truncate(self, end: int) -> None:
        """Remove the rows beyond the end to which the log was cut."""
        self.rows = [row for row in self.rows if row[0] < end]
        if self.end is not None:
            self.end = min(self.end, end)
            self.note(self.end)

    def counts(self) -> Mapping[str, int]:
        """Return no counts."""
        return {}

    def close(self) -> None:
        """Nothing is open."""


Note = Callable[[str, object], None]
DELIVERED_AGAIN = "delivered again"
"""The note of a start that has changed its target, whose rows are of that start's log then."""
"""Somebody is told something: ``Recorder.note``."""


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


class Workloads:
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
        return DispatcherConfig(store or self.log.root, self.output, once=True, **options)

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

        def on_watermark(_runs: object) -> None:
            found = read_watermark(config.state_directory)
            note(WATERMARK, found and found.end_offset)

        cuts = [] if config.store.name == "alike" else self.cuts
        dispatch(
            config, cuts, on_watermark=on_watermark, open_followers=Told,
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

    def dispatch(self) -> Iterator[Work]:
        """A whole run: the first start, three batches and the end. Only the first start is given a
        flag; at the next one the log is the same, or has lost its end."""
        yield from self._first_run("dispatch", self._dispatch)

    def many_queues(self) -> Iterator[Work]:
        """The same with more files in a batch than are synced one by one."""

        def run(note: Note, config: DispatcherConfig) -> None:
            with self._patch.context() as patch:
                patch.setattr(unsynced, "MAX_OPEN_FILES", 4)
                self._dispatch(note, config)

        yield from self._first_run("many queues", run)

    def _first_run(
        self, name: str, run: Callable[[Note, DispatcherConfig], None]
    ) -> Iterator[Work]:
        flags = {"on_queue_gap": OnQueueGap.BLANK}
        for log in (self.log.root, self.shorter):

            def resume(told: Told, _note: Note, log: Path = log) -> None:
                # an output keeps its settings, so the flags are not needed again
                again = {} if WATERMARK in told else flags
                dispatch(self._config(log, **again))

            yield Work(
                f"{name}, {log.name}", log, self._clear,
                lambda note: run(note, self._config(**flags)), resume, self.outcome,
                [self._undisturbed(log, **flags)],
            )  # fmt: skip

    def followers(self) -> Iterator[Work]:
        """A target on another machine follows the queues, and has no power cut."""
        wanted = {}
        for log in (self.log.root, self.shorter):
            self._clear()
            remote = Remote()
            dispatch(self._config(log, followers=(remote,)))
            wanted[log] = {**self.outcome(), DELIVERED: (remote.end, remote.rows)}
        remote = Remote()

        def run(note: Note) -> None:
            remote.end, remote.rows = None, []
            remote.note = partial(note, DELIVERED)
            self._dispatch(note, self._config(followers=(remote,)))

        def result() -> Outcome:
            return {**self.outcome(), DELIVERED: (remote.end, remote.rows)}

        for log in (self.log.root, self.shorter):

            def resume(told: Told, note: Note, log: Path = log) -> None:
                is_again = DELIVERED_AGAIN in told
                end = told.get(DELIVERED_AGAIN if is_again else DELIVERED)
                assert end is None or isinstance(end, int)
                rows = wanted[log if is_again else self.log.root][DELIVERED][1]
                remote.end, remote.rows = end, [row for row in rows if row[0] < (end or 0)]
                remote.note = partial(note, DELIVERED_AGAIN)
                dispatch(self._config(log, followers=(remote,)))

            yield Work(
                f"followers, {log.name}", log, self._clear, run, resume, result, [wanted[log]]
            )

    def long_batch(self) -> Iterator[Work]:
        """One batch begins several files of one queue."""
        log = self._alike.root
        yield self._work("long batch", self._clear, log, log, self._undisturbed(log))

    def interrupted_starts(self, seed: int, number: int) -> Iterator[Case]:
        """A run that starts after a power cut is ended by another one."""
        rng = random.Random(seed)
        for case in (*self.cases("dispatch"), *self.cases("long_batch")):
            disks = len(case.recorder.operations) + 1
            chosen = {*rng.choices(range(disks), k=number)}
            images = [
                (count, disk.random_image(rng)) for count, disk in case.disks() if count in chosen
            ]
            for count, image in images:
                told = {kind: value for kind, value in case.told(count).items() if kind != DONE}
                if WATERMARK in told and case.name.endswith(self.shorter.name):
                    # the start lowers the watermark to where the log was cut
                    told[WATERMARK] = 0
                case.mount(image)
                with Recorder(self.disk) as recorder:
                    case.resume(told)
                ended = self.outcome()
                name = f"{case.name}, start after {count} operations"
                yield Case(name, recorder, case.resume, self.outcome, ended, case.accepted, told)

    def cut_log(self) -> Iterator[Work]:
        """The log has lost its end, and a start cuts what was built from it."""
        log, wanted = self.shorter, self._undisturbed(self.shorter)
        yield self._work("cut log", self._begin_with(self.log.root), log, log, wanted)

    def long_cut(self) -> Iterator[Work]:
        """The same with a cut that removes whole files of a queue and of the index."""
        half = self._grown("half", "alike", 18, alike=True)
        half.cut(9)
        log, wanted = half.root, self._undisturbed(half.root)
        yield self._work("long cut", self._begin_with(self._alike.root), log, log, wanted)

    def second_run(self) -> Iterator[Work]:
        """A run that goes on after one that has ended; the log may lose its end."""
        begun = self._grown("begun", "main", 2 * RECORDS)
        for log in (self.log.root, self.shorter):
            lay, wanted = self._begin_with(begun.root), self._undisturbed(log)
            yield self._work(f"second run, {log.name}", lay, self.log.root, log, wanted)

    def retention(self) -> Iterator[Work]:
        """The log has only its last file, and the run removes queue files of earlier messages."""
        whole, log, more = self._without_front("retained")
        lay = self._begin_with(whole, retention=True)
        config = self._config(log, retention=True)
        lay()
        dispatch(config)
        yield Work(
            "retention", log, lay, lambda note: self._dispatch(note, config),
            lambda *_: dispatch(config), self.outcome, [self.outcome()],
        )  # fmt: skip
        yield self._then_more("retention", lay, lambda note: self._dispatch(note, config), more)

    def expiry(self) -> Iterator[Work]:
        """The same, but these files, and queues without a message, are removed on request."""
        whole, log, more = self._without_front("expired")
        lay = self._begin_with(whole)

        def expire() -> Expiry:
            settings = settings_of(self.output, read_store_settings(log))
            return upkeep.expiry.expire(settings, self.output, apply=True, remove_unused=True)

        def run(note: Note) -> None:
            expire()
            note(DONE, True)

        def resume(told: Told, _note: Note) -> None:
            if DONE not in told:
                expire()
            dispatch(self._config(log))

        lay()
        expired = expire()
        assert expired.files and expired.unused_queues
        dispatch(self._config(log))
        yield Work("expiry", log, lay, run, resume, self.outcome, [self.outcome()])
        yield self._then_more("expiry", lay, run, more)

    def _without_front(self, name: str) -> tuple[Path, Path, Path]:
        """A long log, the same without all files but the last, and that one with more messages for
        each queue."""
        log = self._grown(name, "retained", 120)
        names = sorted(path.name for path in (log.root / "commitlog").iterdir())

        def rest(kind: str) -> Path:
            place = self._stores / kind / log.root.name
            shutil.copytree(log.root, place)
            for file in names[:-1]:
                (place / "commitlog" / file).unlink()
            return place

        whole = self._stores / "whole" / log.root.name
        shutil.copytree(log.root, whole)
        found = whole, rest("without front")
        log.grow(20)
        return *found, rest("without front, with more")

    def _then_more(
        self, name: str, lay: Callable[[], None], run: Callable[[Note], None], log: Path
    ) -> Work:
        """The next run has more messages, whatever was removed."""

        def differences() -> Outcome:
            return dict.fromkeys(DERIVED, ()) | {"differences": self.verify(log).differences}

        def resume(*_: object) -> None:
            dispatch(self._config(log))

        accepted = dict.fromkeys(DERIVED, ()) | {"differences": ()}
        return Work(f"{name}, then more", log, lay, run, resume, differences, [accepted])

    def repair(self) -> Iterator[Work]:
        """A repair cuts damaged units and entries, and the next run writes them again."""
        wanted = self._undisturbed(self.log.root)

        def lay() -> None:
            self._clear()
            dispatch(self._config(), self.cuts)
            queue = min((self.output / "consumequeue").glob("*/*/*"))
            index = min((self.output / "index").iterdir())
            for path, at in ((queue, 4), (index, 200)):
                data = bytearray(path.read_bytes())
                data[at : at + 8] = b"damaged!"
                path.write_bytes(data)

        def run(note: Note) -> None:
            self.verify(self.log.root, repair=True)
            note(DONE, True)

        def resume(told: Told, _note: Note) -> None:
            if DONE not in told:
                self.verify(self.log.root, repair=True)
            dispatch(self._config())

        yield Work("repair", self.log.root, lay, run, resume, self.outcome, [wanted])

    def rewind(self) -> Iterator[Work]:
        """An output is taken back to a record in its second batch, and the next run goes on."""
        start = self.log.plain.spans[RECORDS + 2][0]

        def lay() -> None:
            self._clear()
            dispatch(self._config(), self.cuts, with_spark_files=True)

        def run(note: Note) -> None:
            self._rewind(start)
            note(DONE, True)

        def resume(_told: Told, _note: Note) -> None:
            dispatch(self._config())

        wanted = self._undisturbed(self.log.root)
        yield Work("rewind", self.log.root, lay, run, resume, self.outcome, [wanted])

    def crashed_rewind(self) -> Iterator[Work]:
        """A run is cut short, and its output is taken back to a record of the first batch, where it
        is what a run leaves that ended there, before the next run goes on."""
        kept, spans = RECORDS - 1, self.log.plain.spans
        front = self._grown("front", "main", kept)
        wanted = {**self._undisturbed(self.log.root), "rewound": self._undisturbed(front.root)}
        rewound = wanted["rewound"]

        def resume(_told: Told, _note: Note) -> None:
            nonlocal rewound
            found, start = read_watermark(self.output / STATE_DIRECTORY), spans[kept][0]
            rewound = wanted["rewound"]
            if found is not None and found.end_offset > start:
                self._rewind(start)
                rewound = self.outcome()
            dispatch(self._config())

        yield Work(
            "crashed rewind", self.log.root, self._clear,
            lambda note: self._dispatch(note, self._config()), resume,
            lambda: {**self.outcome(), "rewound": rewound}, [wanted],
        )  # fmt: skip

    def _rewind(self, offset: int) -> None:
        settings = settings_of(self.output, read_store_settings(self.log.root))
        target = Target(offset=offset)
        upkeep.checkpoints.rewind(settings, self.output, None, target, apply=True)

    def verify(self, store: Path, *, repair: bool = False) -> Verification:
        """The output against a log."""
        settings = settings_of(self.output, read_store_settings(store))
        return verify(settings, self.output, repair=repair)

    def rebuild(self) -> Iterator[Work]:
        """Everything is built again with another setting and swapped in: a start finds either the
        old output or the new one, never a mixture."""
        flags = {"on_queue_gap": OnQueueGap.BLANK}
        old, new = self._undisturbed(self.log.root), self._undisturbed(self.log.root, **flags)

        def lay() -> None:
            self._clear()
            dispatch(self._config(), self.cuts)

        def build(config: DispatcherConfig, *_rest: object) -> Progress:
            dispatch(config)
            return Progress(0, 0)

        def run(note: Note) -> None:
            upkeep.rebuild.rebuild(self._config(**flags), threading.Event(), build=build)
            note(DONE, True)

        def resume(_told: Told, _note: Note) -> None:
            dispatch(self._config())

        yield Work("rebuild", self.log.root, lay, run, resume, self.outcome, [old, new])
