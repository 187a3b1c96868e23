"""The runs whose power cuts are tried: each does its work once, recorded, on small logs.

The logs hold messages for every kind of index, gaps of queue offsets and a damaged record for the
ledger. Some starts find another log: the broker lost power too, and with it the end of its log.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import upkeep.rebuild
from store.config import OnQueueGap, StoreSettings, read_store_settings
from store.log.cursor import LogTail
from store.queue import unsynced
from store.state.built import settings_of
from store.state.watermark import read_watermark
from streaming.config import DispatcherConfig
from streaming.followers import Followers
from streaming.progress import Progress
from tests.support.crash_images import DELIVERED, DONE, WATERMARK, Case, Outcome, Told, outcome
from tests.support.grown_log import SETTINGS, GrownLog
from tests.support.recorder import Recorder
from tests.support.sparkless import dispatch
from upkeep.verify.run import verify

SIZES = (SETTINGS["maxHashSlotNum"], SETTINGS["maxIndexNum"])
RECORDS = 5
"""Records of one batch."""
BATCHES = 3


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
def quick(directory: Path) -> Iterator[Workloads]:
    """The workloads, with syncs one after another and no wait for the log's seal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unsynced, "ThreadPoolExecutor", InTurn)
        patch.setattr(LogTail, "SEAL_SECONDS", 0.0)
        yield Workloads(directory, patch)


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
        self.end = None if self.end is None else min(self.end, end)

    def counts(self) -> Mapping[str, int]:
        """Return no counts."""
        return {}

    def close(self) -> None:
        """Nothing is open."""


class Workloads:
    """The logs, and a disk below ``directory``, which should be in a file system in memory."""

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
        self._alike = GrownLog(directory / "alike", random.Random(3), ext=True)
        self._alike.grow(18, alike=True)
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
            dispatch(self._config(store, **options))
            self._outcomes[key] = self.outcome()
            self._clear()
        return self._outcomes[key]

    def _clear(self) -> None:
        shutil.rmtree(self._output, ignore_errors=True)

    def _dispatch(self, recorder: Recorder, config: DispatcherConfig) -> None:
        """One run, with a note of each watermark that followers and readers learn of."""

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

        def on_watermark(_runs: object) -> None:
            found = read_watermark(config.state_directory)
            recorder.note(WATERMARK, found and found.end_offset)

        cuts = [] if config.store.name == "alike" else self.cuts
        dispatch(
            config, cuts, on_watermark=on_watermark, open_followers=Told,
            with_spark_files=True,
        )  # fmt: skip
        recorder.note(DONE, True)

    def _recorded(self, config: DispatcherConfig) -> Recorder:
        """The recording of one run."""
        with Recorder(self._disk) as recorder:
            self._dispatch(recorder, config)
        recorder.check()
        return recorder

    def _case(
        self,
        name: str,
        recorder: Recorder,
        config: DispatcherConfig,
        ended: Outcome,
        wanted: Outcome,
    ) -> Case:
        """A case in which each further start is a run with this configuration."""
        return Case(name, recorder, lambda _: dispatch(config), self.outcome, ended, [wanted])

    def dispatch(self) -> Iterator[Case]:
        """A whole run: the first start, three batches and the end. Only the first start is given a
        flag; at the next one the log is the same, or has lost its end."""
        yield from self._first_run("dispatch")

    def many_queues(self) -> Iterator[Case]:
        """The same with more files in a batch than are synced one by one."""
        with self._patch.context() as patch:
            patch.setattr(unsynced, "MAX_OPEN_FILES", 4)
            cases = list(self._first_run("many queues"))
        yield from cases

    def _first_run(self, name: str) -> Iterator[Case]:
        self._clear()
        flags = {"on_queue_gap": OnQueueGap.BLANK}
        recorder = self._recorded(self._config(**flags))
        ended = self.outcome()
        for log in (self.log.root, self.shorter):
            wanted = self._undisturbed(log, **flags)

            def resume(told: Told, log: Path = log) -> None:
                # an output keeps its settings, so the flags are not needed again
                again = {} if WATERMARK in told else flags
                dispatch(self._config(log, **again))

            yield Case(f"{name}, {log.name}", recorder, resume, self.outcome, ended, [wanted])

    def followers(self) -> Iterator[Case]:
        """A target on another machine follows the queues, and has no power cut."""
        wanted = {}
        for log in (self.log.root, self.shorter):
            self._clear()
            remote = Remote()
            dispatch(self._config(log, followers=(remote,)))
            wanted[log] = {**self.outcome(), DELIVERED: (remote.end, remote.rows)}
        self._clear()
        remote = Remote()
        with Recorder(self._disk) as recorder:
            remote.note = lambda end: recorder.note(DELIVERED, end)
            self._dispatch(recorder, self._config(followers=(remote,)))
        recorder.check()
        remote.note = lambda _: None
        rows = remote.rows

        def result() -> Outcome:
            return {**self.outcome(), DELIVERED: (remote.end, remote.rows)}

        ended = result()
        for log in (self.log.root, self.shorter):

            def resume(told: Told, log: Path = log) -> None:
                end = told.get(DELIVERED)
                assert end is None or isinstance(end, int)
                remote.end, remote.rows = end, [row for row in rows if row[0] < (end or 0)]
                dispatch(self._config(log, followers=(remote,)))

            yield Case(f"followers, {log.name}", recorder, resume, result, ended, [wanted[log]])

    def long_batch(self) -> Iterator[Case]:
        """One batch begins several files of one queue."""
        wanted = self._undisturbed(self._alike.root)
        self._clear()
        config = self._config(self._alike.root)
        yield self._case("long batch", self._recorded(config), config, self.outcome(), wanted)

    def interrupted_starts(self, seed: int, number: int) -> Iterator[Case]:
        """A run that starts after a power cut is ended by another one."""
        rng = random.Random(seed)
        for case in (*self.dispatch(), *self.long_batch()):
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
                with Recorder(self._disk) as recorder:
                    case.resume(told)
                ended = self.outcome()
                name = f"{case.name}, start after {count} operations"
                yield Case(name, recorder, case.resume, self.outcome, ended, case.accepted, told)

    def cut_log(self) -> Iterator[Case]:
        """The log has lost its end, and a start cuts what was built from it."""
        wanted = self._undisturbed(self.shorter)
        self._clear()
        dispatch(self._config())
        config = self._config(self.shorter)
        yield self._case("cut log", self._recorded(config), config, self.outcome(), wanted)

    def long_cut(self) -> Iterator[Case]:
        """The same with a cut that removes whole files of a queue and of the index."""
        half = GrownLog(self._stores / "half", random.Random(3), ext=True)
        half.grow(18, alike=True)
        half.cut(9)
        wanted = self._undisturbed(half.root)
        self._clear()
        dispatch(self._config(self._alike.root))
        config = self._config(half.root)
        yield self._case("long cut", self._recorded(config), config, self.outcome(), wanted)

    def second_run(self) -> Iterator[Case]:
        """A run that goes on after one that has ended; the log may lose its end."""
        begun = GrownLog(self._stores / "begun", random.Random(5), ext=True)
        begun.grow(2 * RECORDS)
        outcomes = [(log, self._undisturbed(log)) for log in (self.log.root, self.shorter)]
        self._clear()
        dispatch(self._config(begun.root), with_spark_files=True)
        recorder, ended = self._recorded(self._config()), self.outcome()
        for log, wanted in outcomes:
            name = f"second run, {log.name}"
            yield self._case(name, recorder, self._config(log), ended, wanted)

    def retention(self) -> Iterator[Case]:
        """The log has lost its first file, and the run removes the queue files of its messages."""
        log = GrownLog(self._stores / "retained", random.Random(7), ext=True)
        log.grow(60)
        self._clear()
        config = self._config(log.root, retention=True)
        dispatch(config)
        first, *_ = sorted((log.root / "commitlog").iterdir())
        first.unlink()
        recorder, ended = self._recorded(config), self.outcome()
        yield self._case("retention", recorder, config, ended, ended)

    def repair(self) -> Iterator[Case]:
        """A repair cuts damaged units and entries, and the next run writes them again."""
        wanted = self._undisturbed(self.log.root)
        self._clear()
        dispatch(self._config(), self.cuts)
        queue = self._output / "consumequeue" / "A" / "1" / ("0" * 20)
        index = min((self._output / "index").iterdir())
        for path, at in ((queue, 24), (index, 200)):
            data = bytearray(path.read_bytes())
            data[at : at + 8] = b"damaged!"
            path.write_bytes(data)
        with Recorder(self._disk) as recorder:
            self._repair()
            recorder.note(DONE, True)
        recorder.check()

        def resume(told: Told) -> None:
            if DONE not in told:
                self._repair()
            dispatch(self._config())

        yield Case("repair", recorder, resume, self.outcome, self.outcome(), [wanted])

    def _repair(self) -> None:
        settings = settings_of(self._output, read_store_settings(self.log.root))
        verify(settings, self._output, repair=True)

    def rebuild(self) -> Iterator[Case]:
        """Everything is built again with another setting and swapped in: a start finds either the
        old output or the new one, never a mixture."""
        flags = {"on_queue_gap": OnQueueGap.BLANK}
        old, new = self._undisturbed(self.log.root), self._undisturbed(self.log.root, **flags)
        assert old != new
        self._clear()
        dispatch(self._config(), self.cuts)

        def run(config: DispatcherConfig, *_rest: object) -> Progress:
            dispatch(config)
            return Progress(0, 0)

        with self._patch.context() as patch, Recorder(self._disk) as recorder:
            patch.setattr(upkeep.rebuild, "run_dispatcher", run)
            upkeep.rebuild.rebuild(self._config(**flags), threading.Event())
            recorder.note(DONE, True)
        recorder.check()

        def resume(_told: Told) -> None:
            dispatch(self._config())

        yield Case("rebuild", recorder, resume, self.outcome, self.outcome(), [old, new])
