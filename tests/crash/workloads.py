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
from functools import partial
from pathlib import Path

import pyarrow as pa

import reput.upkeep.checkpoints
import reput.upkeep.expiry
import reput.upkeep.rebuild
from reput.checkpoints.rewind import Target
from reput.store.config import OnQueueGap, StoreSettings, read_store_settings
from reput.store.files import STATE_DIRECTORY
from reput.store.queue import unsynced
from reput.store.rows.rowform import AS_STORED, RowForm
from reput.store.state.built import settings_of
from reput.store.state.watermark import read_watermark
from reput.streaming.config import DispatcherConfig
from reput.streaming.progress import Progress
from reput.upkeep.expiry import Expiry
from tests.crash.work import (
    DELIVERED_AGAIN,
    RECORDS,
    Note,
    Work,
    WorkBench,
    one_after_another,
)
from tests.support.crash_images import (
    DELIVERED,
    DONE,
    WATERMARK,
    Case,
    Outcome,
    Told,
)
from tests.support.recorder import Recorder
from tests.support.sparkless import dispatch

NAMES = (
    "dispatch", "long_batch", "second_run", "many_queues", "followers", "cut_log", "long_cut",
    "retention", "expiry", "begun_anew", "then_more", "repair", "rebuild", "rewind",
    "crashed_rewind",
)  # fmt: skip
"""The methods of ``Workloads``."""


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
    position_is_apart = False

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

    def row_form(self) -> RowForm:
        """Take every record as stored."""
        return AS_STORED

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


class Workloads(WorkBench):
    """The runs, by name."""

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
        whole, log, _ = self._without_front("retained")
        lay = self._begin_with(whole, retention=True)
        config = self._config(log, retention=True)
        lay()
        dispatch(config)
        yield Work(
            "retention", log, lay, lambda note: self._dispatch(note, config),
            lambda *_: dispatch(config), self.outcome, [self.outcome()],
        )  # fmt: skip

    def expiry(self) -> Iterator[Work]:
        """The same, but these files, and queues without a message, are removed on request."""
        whole, log, _ = self._without_front("expired")
        lay = self._begin_with(whole)

        def run(note: Note) -> None:
            self._expire(log)
            note(DONE, True)

        def resume(told: Told, _note: Note) -> None:
            if DONE not in told:
                self._expire(log)
            dispatch(self._config(log))

        lay()
        expired = self._expire(log)
        assert expired.files
        dispatch(self._config(log))
        yield Work("expiry", log, lay, run, resume, self.outcome, [self.outcome()])

    def begun_anew(self) -> Iterator[Work]:
        """The log has lost every message that has an entry but one, and queue offsets begin
        again."""
        log = self._grown("again", "retained", 40)
        old = sorted(path.name for path in (log.root / "commitlog").iterdir())
        log.begin_again()
        whole = self._stores / "before" / log.root.name
        shutil.copytree(log.root, whole)
        log.grow(20)
        for file in old:
            (log.root / "commitlog" / file).unlink()
        lay = self._begin_with(whole)
        lay()
        dispatch(self._config(log.root))
        assert self.verify(log.root).differences == ()
        yield self._work("begun anew", lay, log.root, log.root, self.outcome())

    def then_more(self) -> Iterator[Work]:
        """After either of them the next run has more messages, whatever was removed."""
        whole, log, more = self._without_front("removed")
        config = self._config(log, retention=True)

        def differences() -> Outcome:
            return {"differences": self.verify(more).differences}

        def retain(note: Note) -> None:
            # nothing that a run has built is compared before the next one
            self._dispatch(lambda kind, value: None if kind == DONE else note(kind, value), config)

        def dispatch_more(*_: object) -> None:
            dispatch(self._config(more))

        def ask_again(*_: object) -> None:
            dispatch_more()
            # only a request that has ended without an error is durable
            self._expire(more)

        runs: dict[str, Callable[[Note], object]] = {
            "retention": retain,
            "expiry": lambda _: self._expire(log),
        }
        for name, run in runs.items():
            options = {"retention": True} if name == "retention" else {}
            yield Work(
                f"{name}, then more", more, self._begin_with(whole, **options), run,
                ask_again if name == "expiry" else dispatch_more, differences,
                [{"differences": ()}],
            )  # fmt: skip

    def _expire(self, log: Path) -> Expiry:
        settings = settings_of(self.output, read_store_settings(log))
        return reput.upkeep.expiry.expire(settings, self.output, apply=True, remove_unused=True)

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
        """An output is taken back to a record in its second batch, and the next run goes on; the
        log may have lost its end by then."""
        start = self.log.plain.spans[RECORDS + 2][0]

        def lay() -> None:
            self._clear()
            dispatch(self._config(), self.cuts, with_spark_files=True)

        def run(note: Note) -> None:
            self._rewind(start)
            note(DONE, True)

        for log in (self.log.root, self.shorter):

            def resume(_told: Told, _note: Note, log: Path = log) -> None:
                dispatch(self._config(log))

            wanted = self._undisturbed(log)
            yield Work(f"rewind, {log.name}", log, lay, run, resume, self.outcome, [wanted])

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
        reput.upkeep.checkpoints.rewind(settings, self.output, None, target, apply=True)

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
            reput.upkeep.rebuild.rebuild(self._config(**flags), threading.Event(), build=build)
            note(DONE, True)

        def resume(_told: Told, _note: Note) -> None:
            dispatch(self._config())

        yield Work("rebuild", self.log.root, lay, run, resume, self.outcome, [old, new])
