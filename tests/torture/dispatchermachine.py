"""A rule machine of the dispatcher: its log does all that ``logmachine`` has it do, while it is
started, dispatches, stops, is killed and loses power at any operation, and files of its output rot.

The model is the log's image in memory; ``small_store`` says what must stand in an output of it. The
output is compared after each step that ends, and in the end; after each crash the disk must hold
what was acknowledged. Spark is not needed: its files are written as it writes them, never synced.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from reput.store.errors import (
    CommitLogError,
    IndexFileError,
    QueueFileError,
    ReputError,
    StoreError,
    UsageError,
)
from reput.store.index.indexfile import entry_position, index_key_hash, index_keys
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record, body_crc_is_right
from reput.store.state.visible import read_end
from reput.store.state.watermark import read_watermark
from reput.streaming import commit
from reput.streaming.config import DispatcherConfig
from reput.streaming.sparkless import Running, running
from tests.support.file_damage import damage_file
from tests.support.golden import tree
from tests.support.plain_walk import PlainWalk
from tests.support.power_cuts import Disk, mount
from tests.support.queue_units import queue_units
from tests.support.recorder import Recorder, Tree
from tests.support.small_store import ENTRIES, SLOTS, of_messages
from tests.support.sparkless import HOUR_MS, SparkFiles
from tests.support.wire import PlainLog
from tests.torture.cases import Case, Kind
from tests.torture.logmachine import SEEDS, LogRules, polled, run_machine
from tests.torture.outputhistory import OutputHistory

WATERMARK, VISIBLE = "watermark", "visible"
INDEX_ENTRY = struct.Struct(">iqii")
SUFFICIENT = 16
"""Units that must agree with a log that was cut, where more do not (ARCHITECTURE.md)."""


class DispatcherMachine(LogRules):
    """One output, on a disk whose operations are recorded."""

    def open(self) -> None:
        """An empty output; no dispatcher runs."""
        self._held = ExitStack()
        self._running: Running | None = None
        self._tail: LogTail
        self._spark: SparkFiles
        self._root = self.store.output.root
        self._root.mkdir()
        self._begin_disk()
        self._begin_output()

    def _begin_disk(self) -> None:
        """All that is there is durable."""
        self._recorder = Recorder(self._root)
        self._recorder.__enter__()
        self._began = 0
        """The number of operations before the last step."""

    def _begin_output(self) -> None:
        """Nothing is derived from the log as it is now."""
        self._acknowledged = -1
        """The watermark that somebody was told before the recording."""
        self._shown = -1
        """The end that readers were shown in this boot, of the log as it is."""
        self._history = OutputHistory(self._root)
        self._cut_at: int | None = None
        """The lowest end below the watermark to which the log was cut, until a start has healed
        the output and nothing can undo that any more."""
        self._is_healed = False
        self._seen = 0
        """The end of the log as the dispatcher that runs has seen it."""
        self._changed: list[tuple[int, int]] = []
        """Ranges of the log that were cut or damaged after the dispatcher that runs had seen them.
        A batch of them may end with an error; the next run goes on."""

    @property
    def _mark(self) -> int | None:
        found = read_watermark(self.store.output.state)
        return None if found is None else found.end_offset

    @property
    def _visible(self) -> int:
        found = read_end(self.store.output.state)
        return -1 if found is None else found.end_offset

    @property
    def _is_cut(self) -> bool:
        """Whether the log has lost what was dispatched, and no start has seen it."""
        return self._cut_at is not None and (self._mark or 0) > self._cut_at

    @property
    def read_end(self) -> int:
        """The watermark: what lies below it is not read again."""
        return max(self._mark or 0, self.first)

    @property
    def may_retire(self) -> bool:
        """As above; where nothing is left of a cut, nobody can see that there was one, and a power
        cut may undo the start that healed it."""
        return super().may_retire and self._cut_at is None

    def may_lose(self, end: int) -> bool:
        """As above; a watermark without a last record does not show a cut."""
        found = read_watermark(self.store.output.state)
        is_seen = found is None or end >= found.end_offset or found.last_record_offset >= self.first
        return super().may_lose(end) and is_seen

    def lose(self, end: int) -> None:
        """Nothing is acknowledged until the next start tells everybody of the cut."""
        self._history.cut(self.plain, self._seen, end)
        self.spoil(end, self._seen)
        if end < (self._mark or 0):
            self._cut_at = end if self._cut_at is None else min(end, self._cut_at)
            self._is_healed = False
            self._recorder.notes.clear()
            self._acknowledged = self._shown = -1

    def spoil(self, start: int, end: int) -> None:
        """A change counts where the run has seen the log already. One before the end that readers
        were shown may bring them back to the watermark: its last record may be another one."""
        if start < self._shown:
            self._shown = -1
            # another crash before the next start must not find it again
            notes = self._recorder.notes
            notes[:] = [note for note in notes if note[1] != VISIBLE]
        if self._running is not None and start < self._seen:
            self._changed.append((start, end))

    def _may_fail(self, start: int, end: int) -> bool:
        """Whether the batch from ``start`` to ``end`` has bytes that are not as they were seen."""
        return any(low < end and start < high for low, high in self._changed)

    def _told(self, count: int) -> int:
        """The last acknowledged watermark after ``count`` operations."""
        notes = self._recorder.notes
        told = [value for at, kind, value in notes if at <= count and kind == WATERMARK]
        last = told[-1] if told else self._acknowledged
        assert isinstance(last, int)
        return last

    def _check_shown(self) -> None:
        """Readers see no end go back, nor a unit before it."""
        assert self._shown <= self._visible, "taken back"
        if not self._is_cut and self._shown > (self._mark or 0):
            self._check_below(self._shown)

    def _step(self, work: Callable[[], object]) -> None:
        """One step of a process, within which a crash may come."""
        if self._is_healed:
            self._cut_at = None
        self._began = len(self._recorder.operations)
        work()
        self._history.note_durable(len(self._recorder.operations))

    def _let_go(self) -> None:
        """Close what a process has open, as its end does."""
        with suppress(KeyboardInterrupt):
            self._held.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        self._held, self._running = ExitStack(), None

    def _check(self, *, is_all: bool = False) -> None:
        """The output is what the log stands for, up to the watermark; units beyond it, which
        readers were shown before a kill, stay until they are written again."""
        if self._visible > (self._mark or 0):
            self._check_below(self._mark)
            return
        listed = self.store.listed()
        # a file that is open can be read after it was removed
        history = self._history
        history.gone = [lost for lost in history.gone if (*lost, "segment_deleted") in listed]
        self.store.check(
            verify=is_all, front=self.first, gone=history.gone, shown=history.shown,
            fronts=history.fronts, emptied=history.emptied_here(), repeats=history.all_repeats,
            is_all=is_all,
        )  # fmt: skip

    @precondition(lambda self: self._running is None)
    @rule()
    def start(self) -> None:
        """Start a dispatcher; where too little of the log is left, it refuses, and the operator
        gives it an empty output."""
        mark, is_cut = self._mark, self._is_cut
        if not is_cut:
            self._cut_at = None
        if not PlainWalk(self.plain).items(self.first, max(self._shown, self.first)).records:
            # nothing shows that the log is the one of which the end was shown
            self._shown = -1
        if mark is None:
            self._begin_model_anew()
        elif mark < self.first and not is_cut:
            self._history.lose(mark, self.first, shown_end=self._shown)
        before = tree(self._root / "consumequeue")
        try:
            self._step(self._enter)
        except CommitLogError as error:
            assert "nothing was cut" in str(error), error
            # a last record whose body's CRC is wrong waits for what follows it
            waits = self.plain.spans[-1][0] if self.plain.spans else 0
            last = PlainWalk(self.plain).at(waits)
            assert is_cut or (isinstance(last, Record) and not body_crc_is_right(last)), error
            cut_at = self.plain.end if self._cut_at is None else self._cut_at
            assert not all(map(self._is_enough, (cut_at, min(waits, cut_at)))), error
            assert tree(self._root / "consumequeue") == before
            self._give_up()
            return
        self._is_healed = True
        self._changed.clear()
        self._check_shown()
        self._check()

    def _enter(self) -> None:
        config = DispatcherConfig(self.store.output.store, self._root, durable_latency_ms=HOUR_MS)
        self._running = self._held.enter_context(running(config, on_visible=self._learn))
        self._spark = SparkFiles(config, self._running.start)
        self._tail = LogTail(self._running.log)
        self._seen = self._running.start.log_end

    def _learn(self, *_: object) -> None:
        self._recorder.note(WATERMARK, self._mark)
        self._recorder.note(VISIBLE, self._visible)

    def _begin_model_anew(self) -> None:
        """The model of an output that begins where the log begins now."""
        plain = self.plain
        image = plain.image[self.first - plain.start :]
        self.store.plain = PlainLog(plain.file_size, self.first, image, self._whole())
        self.store.plain.end = plain.end
        self._begin_output()

    def _is_enough(self, cut_at: int) -> bool:
        """Whether enough units agree with a log that was cut there."""
        kept, lost = 0, 0
        for unit in queue_units(self._root):
            end = unit.offset + unit.size
            kept += self.first <= unit.offset and end <= cut_at
            lost += cut_at < end <= (self._mark or 0)
        return kept >= max(min(lost, SUFFICIENT), 1)

    def _give_up(self) -> None:
        self._recorder.__exit__()
        self._let_go()
        mount({}, self._root)
        self._begin_disk()
        self._begin_model_anew()

    @precondition(lambda self: self._running is not None)
    @rule(share=st.integers(1, 100))
    def dispatch(self, share: int) -> None:
        """Dispatch a batch of a share of what is there, in percent, or see that the log was
        cut."""
        run = self._running
        assert run is not None
        if self._is_cut and not self._is_healed:
            self._step(lambda: self._see_the_cut(run))
            self._end_by_error()
            return
        position = run.position
        sealed_end = polled(self._tail, position)
        self._seen = max(self._seen, sealed_end)
        end = self._spark.planned_end or self._batch_end(sealed_end, share)
        if end > (self.plain.end if self.torn is None else self.torn[0]):
            # beyond the watermark a run need not see a cut before the log has grown again
            assert self._may_fail(position, end), "a torn record was taken for a whole one"
            self._end_by_error()
            return
        if (self._mark or 0) < min(self.first, self._visible):
            with pytest.raises(CommitLogError, match="killed run has dispatched; start it again"):
                self._step(lambda: self._commit(run, end))
            self._end_by_error()
            return
        self._history.begin_batch(position, self._mark or 0, end, self.first)
        try:
            if end > position:
                self._step(lambda: self._commit(run, end))
        except StoreError as error:
            assert "changed" in str(error) and self._may_fail(position, end), error
            self._end_by_error()
            return
        self._check()

    def _see_the_cut(self, run: Running) -> None:
        found = read_watermark(self.store.output.state)
        assert found is not None and self._cut_at is not None
        # a run need not see that damage or a BLANK has gone before a record is in its place
        place = max((end for _, end in self.plain.spans if end <= found.end_offset), default=0)
        is_there = isinstance(PlainWalk(self.plain).at(place), Record)
        if found.last_record_offset >= self._cut_at or (place < found.end_offset and is_there):
            with pytest.raises(CommitLogError, match="start it again"):
                run.committer.tend()

    def _batch_end(self, end: int, share: int) -> int:
        """A record start up to the sealed end, or that."""
        assert self._running is not None
        position = self._running.position
        items = PlainWalk(self.plain).items(max(position, self.first), end)
        ends = [*(at for at in items.records if at > position), end]
        return ends[(len(ends) - 1) * share // 100]

    def _commit(self, run: Running, end: int) -> None:
        self._spark.plan(end)
        middle = self._batch_end(end, 50)
        if run.position < middle < end:
            self._commit_part(run, middle, durable=False)
        self._commit_part(run, end, durable=True)

    def _commit_part(self, run: Running, end: int, *, durable: bool) -> None:
        operations, mark = self._recorder.operations, self._mark or 0
        count = len(operations)
        again = self._history.begin_part(run.position, end, mark, self.first, count)
        run.commit(run.scan(end), durable=durable)
        if again is not None:
            again.written = len(operations)

    def _end_by_error(self) -> None:
        """The process ends, and its cleaning up is its own."""
        error = CommitLogError("the log was cut")
        with suppress(CommitLogError):
            self._held.__exit__(CommitLogError, error, None)
        self._held, self._running = ExitStack(), None

    @precondition(lambda self: self._running is not None and not self._is_cut)
    @rule()
    def stop(self) -> None:
        """End the run."""
        self._step(self._held.close)
        self._running = None
        self._check()

    @rule(share=st.integers(0, 100), is_kill=st.booleans(), seed=SEEDS)
    def crash(self, share: int, is_kill: bool, seed: int) -> None:
        """Kill the process, or cut the power, within the last step or after it."""
        operations = len(self._recorder.operations)
        count = self._began + (operations - self._began) * share // 100
        told = self._told(count)
        notes = self._recorder.notes if is_kill else []
        shown = [value for at, kind, value in notes if at <= count and kind == VISIBLE]
        self._is_healed = False
        self._recorder.__exit__()
        self._let_go()
        self._came_back(self._recorder.rewind(count), None if is_kill else random.Random(seed))
        self._history.crash(self.plain, count, is_kill=is_kill)
        mark = self._mark
        assert told <= (-1 if mark is None else mark), "acknowledged, and not on the disk"
        self._shown = int(str(shown[-1])) if shown else -1
        if not self._is_cut:
            self._check_below(mark)
        self._check_shown()

    def _came_back(self, everything: Tree, rng: random.Random | None) -> None:
        """Lay the disk: after a kill everything, which may be lost still."""
        if rng is None:
            mount(self._whole_entries(everything), self._root, same_boot=True)
            self._recorder.__enter__()
            self._began = len(self._recorder.operations)
            return
        told = self._told(len(self._recorder.operations))
        image = Disk.after(self._recorder).random_image(rng).tree
        mount(self._whole_entries(image), self._root)
        self._begin_disk()
        self._acknowledged = told

    def _whole_entries(self, image: Tree) -> Tree:
        """The image; where the log has lost its front, without entries of the index that were
        written in part. Their offsets may be 0, and nothing tells such an entry from one of a
        message that is gone."""
        if self.first == 0:
            return image
        walk, found = PlainWalk(self.plain), {}
        for name, data in image.items():
            kept = bytearray(data or b"")
            for number in range(1, ENTRIES) if data and name.startswith("index/") else ():
                at = entry_position(SLOTS, number)
                key_hash, offset, _, _ = INDEX_ENTRY.unpack_from(kept, at)
                record = walk.at(offset) if offset < self.plain.end else None
                keys = index_keys(record) if isinstance(record, Record) else []
                if key_hash not in map(index_key_hash, keys):
                    kept[at : at + INDEX_ENTRY.size] = bytes(INDEX_ENTRY.size)
            found[name] = None if data is None else bytes(kept)
        return found

    def _check_below(self, mark: int | None) -> None:
        """Readers trust the units below the watermark, at any time; those of a queue of which the
        log has nothing are removed before it begins anew."""
        here = tree(self._root / "consumequeue")
        self._history.forget_from(max(mark or 0, self._shown))
        expected = self._history.expected(self.plain, mark or 0)
        # readers that know the watermark alone must find them
        moving = self._history.moving(expected, self._mark or 0) if mark != self._mark else ()
        for name, data in of_messages(expected.queues.tree(), self.first).items():
            if Path(name).parent in moving:
                continue
            units = data.rstrip(b"\0")
            assert here.get(name, b"")[: len(units)] == units, f"{name} lacks units"

    @precondition(
        lambda self: self._running is None and self._mark is not None and not self._is_cut
        and self.first == 0
    )  # fmt: skip
    @rule(seed=SEEDS, is_started=st.booleans())
    def rot(self, seed: int, is_started: bool) -> None:
        """Damage a derived file; a start or a verification heals it. Where the log has lost its
        front, nothing can build the entries of its messages again."""
        rng, output = random.Random(seed), self.store.output
        paths = [path for _, paths in sorted(output.files().items()) for path in paths]
        paths = [path for path in paths if path.exists() and path.stat().st_size]
        path, self._cut_at = rng.choice(paths), None
        self._recorder.__exit__()
        try:
            damage_file(rng, path)
            if is_started:
                with suppress(ReputError):
                    output.start()
            try:
                output.verify(repair=True)
            except (QueueFileError, IndexFileError):
                # the only file of its kind has another size now, as if a setting were wrong
                path.unlink()
                output.verify(repair=True)
            except (UsageError, CommitLogError) as error:
                # without a watermark, nobody knows that damage was there before
                is_damaged = "log damaged" in str(error) and self._mark is None
                assert is_damaged or "reput rebuild" in str(error), error
                empty = self._empty_queues()
                output.start(adopt=True)
                for queue in empty & self._empty_queues():
                    shutil.rmtree(queue.parent)
            output.start()
        finally:
            self._begin_disk()
            self._history.settle()
        self._acknowledged = self._mark or 0
        self._check()
        assert output.verify().differences == ()

    def _empty_queues(self) -> set[Path]:
        """The files of queues without a unit. A batch that was killed leaves them, and the log may
        lose its messages; a broker leaves such files too. Without a watermark nothing tells them
        apart: an adopted one stays. Where a queue had a unit, it must have it again."""
        paths = (self._root / "consumequeue").glob("*/*/*")
        return {
            path
            for path in paths
            if not any(path.read_bytes()) and len(list(path.parent.iterdir())) == 1
        }

    def finish(self) -> None:
        """All that is whole is dispatched in the end, and durable."""
        if self._running is None or self._is_cut or self._changed:
            self._end_by_error()
            self.start()
        if self._running is None:
            self.start()
        self.dispatch(100)
        if self._running is None:
            # retention had taken what readers were shown, and the next start goes on
            self.start()
            self.dispatch(100)
        # the first one may have been the batch that Spark repeats
        self.dispatch(100)
        self.stop()
        self._check(is_all=True)
        self._recorder.check()
        self._recorder.__exit__()
        mount(Disk.after(self._recorder).durable(), self._root)
        self._check(is_all=True)

    def close(self) -> None:
        """Let go of the output."""
        if hasattr(self, "_recorder"):
            self._recorder.__exit__()
            self._let_go()


def _run(case: Case) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "STORE_CHECKPOINT_SECONDS", 0.0)
        return run_machine(DispatcherMachine, case)


KIND = Kind("dispatcher machine", _run, 2_000, sample=6, sample_seed=4104)
