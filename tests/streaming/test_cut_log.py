"""A log that lost its end and grew again: what was built from it is cut where the two agree.

The oracle is a fresh dispatch of the log as it is now. Logs are plain bytes of the tests' own, laid
as a broker does: cut at a record, later files removed, other messages in their place.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from reput.checkpoints.followers import read_follower_states
from reput.sinks.delta.table import DeltaTarget
from reput.store import fsops
from reput.store.config import read_store_settings
from reput.store.errors import CommitLogError, OutputError, StoreError, SyncError, UsageError
from reput.store.rows.rowform import AS_STORED
from reput.store.state.watermark import read_watermark
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.progress import Progress
from reput.upkeep.watch.status import read_status
from tests.support.derived_output import QUEUE_TREES, DerivedOutput
from tests.support.golden import difference, tree
from tests.support.grown_log import FILE_SIZE, GrownLog
from tests.support.seeds import seed
from tests.support.tables import plain_columns, plain_rows
from tests.support.wire import file_name

__all__ = ["seed"]

MESSAGES = 40
FEW = 16
"""Units that have to agree, in a log of more."""
LONGEST_SECONDS = 60.0


class Place:
    """A store, an output of it, and a Delta table that follows."""

    def __init__(self, directory: Path, rng: random.Random, *, ext: bool = True) -> None:
        self.log = GrownLog(directory / "store", rng, ext=ext)
        self.output = DerivedOutput(self.log.root, directory / "output")
        self.table = directory / "table"
        self._fresh = directory / "fresh"

    def dispatch(self, *, table: bool = False, retention: bool = False) -> str:
        """One run; what it noted."""
        target = (
            (DeltaTarget(str(self.table), interval_seconds=0.0, form=AS_STORED),) if table else ()
        )
        return "; ".join(self.output.start(followers=target, retention=retention))

    def check(self, case: object = None) -> None:
        """The output is what a fresh dispatch of the log makes."""
        shutil.rmtree(self._fresh, ignore_errors=True)
        fresh = DerivedOutput(self.output.store, self._fresh)
        fresh.start()
        for name in QUEUE_TREES:
            assert difference(self.output.root / name, self._fresh / name) == [], (case, name)
        index, wanted = self.output.index(), fresh.index()
        assert wanted, "nothing is indexed"
        if len(index) > len(wanted):
            # one that follows a full one may be there, a message without keys asks for it
            assert not index.pop().entries
        else:
            checkpoints = [root / "checkpoint" for root in (self.output.root, self._fresh)]
            assert checkpoints[0].read_bytes() == checkpoints[1].read_bytes(), case
        assert index == wanted, case
        assert listed(self.output.root) == listed(self._fresh), case
        ours, theirs = (read_watermark(root / "reput") for root in (self.output.root, self._fresh))
        assert ours is not None and theirs is not None
        fields = ("end_offset", "last_record_offset", "last_record_crc", "last_store_timestamp")
        for field in (*fields, "index_begin"):
            assert getattr(ours, field) == getattr(theirs, field), (case, field)


def listed(output: Path) -> list[str]:
    """The entries of the ledger; those of a batch are in the order of the queues."""
    path = output / "reput" / "quarantine.jsonl"
    return sorted(path.read_text("utf-8").splitlines()) if path.exists() else []


@pytest.fixture
def place(ram_path: Path, seed: int) -> Place:
    return Place(ram_path, random.Random(seed))


@pytest.fixture
def place_without_ext(ram_path: Path, seed: int) -> Place:
    """Nothing but the index knows of a message what its units do not say."""
    return Place(ram_path, random.Random(seed), ext=False)


def is_enough(kept: int, cut: int) -> bool:
    """The rule: as many units agree as do not, or some number of them."""
    return kept >= min(FEW, cut) and (kept > 0 or cut == 0)


@pytest.mark.extended
@pytest.mark.parametrize("how", ["torn", "cut", "cut and grown", "cut and grown beyond"])
def test_every_length_of_cut(place: Place, how: str) -> None:
    """At every record, and in the middle of it: what is built is what a fresh dispatch builds, or,
    where hardly anything is left to go by, nothing is changed."""
    log, output = place.log, place.output
    log.grow(MESSAGES)
    place.dispatch()
    first, before = output.root.with_name("kept"), read_watermark(output.state)
    output.keep(first)
    assert before is not None
    saved = log.plain.spans.copy(), log.plain.image.copy(), log.queues.copy(), log.plain.end
    healed, refused = 0, 0
    for kept in range(MESSAGES):
        log.plain.spans, log.plain.image, log.queues, log.plain.end = (
            saved[0].copy(), saved[1].copy(), saved[2].copy(), saved[3],
        )  # fmt: skip
        cut = log.units_of(kept)
        stays = log.units_of(0) - cut
        log.break_off(how, kept)
        if is_enough(stays, cut):
            place.dispatch()
            place.check((how, kept))
            found = read_watermark(output.state)
            assert found is not None and found.epoch == before.epoch + 2
            healed += 1
        else:
            unchanged = tree(output.root)
            with pytest.raises(CommitLogError, match="nothing was cut"):
                place.dispatch()
            assert relevant(tree(output.root)) == relevant(unchanged), kept
            refused += 1
        output.restore(first)
    assert healed > MESSAGES // 4 and refused > 0


def relevant(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without who wrote last."""
    return {name: data for name, data in found.items() if not name.startswith("reput/owner")}


def test_messages_alike_are_told_apart_by_their_keys(place_without_ext: Place) -> None:
    """The same queue, sizes and offsets again: the units agree, the index does not. The clock of
    the broker stood back, so that times tell nothing."""
    place, log = place_without_ext, place_without_ext.log
    log.grow(30, alike=True)
    place.dispatch()
    log.cut(20)
    log.back(3600)
    log.grow(10, alike=True)
    place.dispatch()
    place.check()
    log.cut(25)
    log.grow(40, alike=True)
    place.dispatch()
    place.check()


def test_the_cut_that_is_made_is_said(place: Place) -> None:
    """From where to where, how many units; and until then status and verify say who heals it."""
    log, output = place.log, place.output
    log.grow(MESSAGES)
    place.dispatch()
    end = log.plain.end
    stays = log.units_of(0) - log.units_of(30)
    cut = log.units_of(30)
    log.cut(30)
    log.grow(30)
    settings = read_store_settings(log.root)
    with pytest.raises(UsageError, match="run the dispatcher, which cuts"):
        read_status(settings, output.root)
    before = tree(output.root)
    with pytest.raises(CommitLogError, match="run the dispatcher first") as caught:
        output.verify()
    assert f"cuts {cut} units" in str(caught.value)
    assert tree(output.root) == before
    assert f"to {end}, {cut} units, {stays} agree" in place.dispatch()
    assert output.verify().differences == ()
    assert read_status(settings, output.root).lag_bytes == 0


@pytest.mark.parametrize("length", [20, 2 * MESSAGES])
def test_another_log_is_refused(ram_path: Path, seed: int, length: int) -> None:
    """Shorter or longer, of the same topics and queues: not a byte is changed. By chance one of the
    units may agree."""
    rng = random.Random(seed)
    place, other = Place(ram_path / "ours", rng), Place(ram_path / "other", rng)
    place.log.grow(MESSAGES)
    place.dispatch()
    other.log.grow(length)
    before = tree(place.output.root)
    mistaken = DerivedOutput(other.log.root, place.output.root)
    with pytest.raises(CommitLogError, match="nothing was cut"):
        mistaken.start()
    with pytest.raises(CommitLogError, match="nothing was cut"):
        mistaken.verify()
    assert relevant(tree(place.output.root)) == relevant(before)
    place.log.grow(3)
    place.dispatch()
    place.check()


def test_a_log_that_differs_in_the_middle_is_refused(place: Place) -> None:
    """Entries must agree as far back as the log goes."""
    log = place.log
    log.grow(MESSAGES)
    place.dispatch()
    log.cut(30)
    first = next(index for index, queues in enumerate(log.queues) if queues)
    log.plain.put(log.plain.spans[first][0] + 12, b"\0\0\0\x07")
    log.grow(10)
    before = tree(place.output.root)
    with pytest.raises(CommitLogError, match="nothing was cut"):
        place.dispatch()
    assert relevant(tree(place.output.root)) == relevant(before)


def test_index_entries_of_messages_before_the_log_tell_nothing(place_without_ext: Place) -> None:
    """Retention has removed all but the last two messages, and the newer one is lost. The search in
    the index goes back by more entries than both have; they neither agree nor differ. A message
    with another key in the place of the log's first one differs all the same."""
    place, log = place_without_ext, place_without_ext.log
    with (log.root / "broker.conf").open("a") as conf:
        conf.write("maxIndexNum=1000\n")
    while log.plain.end <= FILE_SIZE:
        log.grow(1, alike=True)
    start, end = log.plain.spans[-1]
    assert start == FILE_SIZE
    log.grow(1, alike=True, keys=2)
    place.dispatch()
    before = log.plain.end
    log.cut(len(log.plain.spans) - 1)
    (log.root / "commitlog" / file_name(0)).unlink()
    assert f"from {end} to {before}, 1 units, 1 agree" in place.dispatch()
    log.cut(len(log.plain.spans) - 1)
    log.back(1)
    log.grow(1, alike=True)
    (log.root / "commitlog" / file_name(0)).unlink()
    assert log.plain.spans[-1] == (start, end)
    with pytest.raises(CommitLogError, match="none of the 1 units"):
        place.dispatch()


def test_a_table_follows_the_cut(place: Place) -> None:
    """Rows of messages that the log lost go, those of the others come."""
    log = place.log
    log.grow(MESSAGES)
    place.dispatch(table=True)
    assert plain_columns(place.table) == plain_rows(log.root)
    for kept, more in ((30, 3), (25, 30), (54, 0)):
        log.cut(kept)
        log.grow(more)
        place.dispatch(table=True)
        assert plain_columns(place.table) == plain_rows(log.root)
        (state,) = read_follower_states(place.output.state)
        assert (state.position, state.truncate_to) == (log.plain.end, None)
    place.check()


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("more", [0, 5, 60])
def test_a_run_that_goes_on_meanwhile_stops(place: Place, more: int) -> None:
    """The log is cut below what was dispatched, and may have grown beyond it: the run says so, the
    next one heals it."""
    log = place.log
    log.grow(MESSAGES)
    deadline = time.monotonic() + LONGEST_SECONDS
    begun, dispatched = log.plain.end, 0

    def watch(progress: Progress) -> None:
        nonlocal dispatched
        assert time.monotonic() < deadline
        if progress.end_offset == begun and not dispatched:
            dispatched = progress.end_offset
            log.cut(25)
            log.grow(more)

    config = DispatcherConfig(log.root, place.output.root)
    advice = "the broker has cut the log while the dispatcher ran; start it again, which cuts the q"
    with pytest.raises(CommitLogError, match=advice):
        run_dispatcher(config, threading.Event(), watch)
    found = read_watermark(place.output.state)
    assert found is not None and found.end_offset == dispatched == begun
    run_dispatcher(replace(config, once=True), threading.Event())
    place.check()


def failing_everywhere(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A cut that is stopped at each of its operations in turn; yields after each."""
    kept = place.output.root.with_name("kept")
    place.output.keep(kept)
    for ordinal in count(1):
        monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(f"*:{ordinal}=EIO"))
        try:
            place.dispatch()
        except (OutputError, SyncError, StoreError):
            monkeypatch.undo()
            yield f"operation {ordinal}"
            place.output.restore(kept)
            continue
        monkeypatch.undo()
        assert ordinal > 40
        return


@pytest.mark.extended
def test_a_cut_that_is_stopped_anywhere_ends_the_same(
    place_without_ext: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a kill: the next start goes on. All messages are alike, so that half of a cut would
    look like agreement if it were searched for again."""
    place = place_without_ext
    place.log.grow(30, alike=True)
    place.dispatch()
    place.log.cut(20)
    place.log.back(3600)
    place.log.grow(12, alike=True)
    for case in failing_everywhere(place, monkeypatch):
        place.dispatch()
        place.check(case)
