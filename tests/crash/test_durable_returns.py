"""Commands that have returned have nothing left to sync: a power cut right after one changes
nothing. ``test_power_loss`` cuts the power at every other moment."""

from __future__ import annotations

import errno
import random
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reput.store.config import OnQueueGap
from reput.store.errors import NoSpaceError
from reput.store.files import LEDGER_FILE, STATE_DIRECTORY, SWAP_JOURNAL_FILE, WATERMARK_FILE
from reput.store.log.logtail import LogTail
from reput.streaming.followers import Followers
from reput.streaming.progress import Progress
from reput.streaming.sparkless import running
from reput.upkeep.expiry import expire
from reput.upkeep.rebuild import rebuild
from tests.crash.workloads import Remote
from tests.support.configs import configured
from tests.support.operations import before_operations, killed_before
from tests.support.power_cuts import Disk
from tests.support.recorder import Recorder, read_tree
from tests.support.sparkless import HOUR_MS, dispatch
from tests.upkeep.test_checkpoints import DAMAGED, Place

MAY_COME_BACK = (
    # the next start clears again what is cleared
    f"{STATE_DIRECTORY}/abort",
    # a position beyond the watermark does not count
    f"{STATE_DIRECTORY}/spark/",
    # and in another boot nor does the visible end
    f"{STATE_DIRECTORY}/visible",
    # parts that nobody swaps in without the journal
    ".reput-rebuild/",
)
KILLED_EVERY = 9
LEDGER, WATERMARK = (f"{STATE_DIRECTORY}/{name}" for name in (LEDGER_FILE, WATERMARK_FILE))


class _CutShortError(Exception):
    """A run ends here as a killed one does."""


@pytest.fixture
def place(ram_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A store with everything, and its output."""
    monkeypatch.setattr(LogTail, "SEAL_SECONDS", 0.0)
    return Place(ram_path, random.Random(seed))


def run(place: Place, **options: Any) -> None:
    """A run in two or more batches."""
    dispatch(configured(place.log.root, place.root, once=True, **options), place.cuts)


def clear(place: Place) -> None:
    """The output is not there yet."""
    shutil.rmtree(place.root)
    place.root.mkdir()


def grow(place: Place) -> None:
    """The log has more messages, and more damage."""
    place.log.grow(30)
    place.destroy(DAMAGED)
    place.destroy(DAMAGED + 30)


def cut(place: Place) -> None:
    """A target is filled; then the log loses its end and goes on."""
    run(place, followers=(Remote(),))
    place.log.cut(20)
    place.log.grow(3)
    place.destroy(DAMAGED)


def keep_last_file(place: Place) -> None:
    """The log has lost all files but one."""
    for path in sorted((place.log.root / "commitlog").iterdir())[:-1]:
        path.unlink()


def begin_again(place: Place) -> None:
    """The log has lost what is dispatched but for one message, and queue offsets begin again."""
    place.log.begin_again()
    run(place)
    place.log.grow(20)
    keep_last_file(place)


def kill_and_run(place: Place) -> None:
    """A run is cut short before its syncs, and another one goes on."""
    place.log.grow(10)
    place.destroy(DAMAGED)
    with suppress(_CutShortError), running(place.config) as begun:
        batch = begun.scan(begun.start.log_end)
        for writer in begun.committer._writers:
            writer.write(batch)
        raise _CutShortError
    run(place)


def build_again(place: Place, **which: Any) -> None:
    """A part is built, or all with another setting, and swapped in."""

    def build(config: Any, *_rest: object) -> Progress:
        dispatch(config)
        return Progress(0, 0)

    other = {} if which else {"on_queue_gap": OnQueueGap.BLANK}
    config = configured(place.log.root, place.root, once=True, **other)
    rebuild(config, threading.Event(), build=build, **which)


CASES: dict[str, tuple[Callable[[Place], object], Callable[[Place], object]]] = {
    "first run": (clear, run),
    "second run": (grow, run),
    "cut log": (cut, run),
    "retention": (keep_last_file, lambda place: run(place, retention=True)),
    "begun anew": (begin_again, run),
    "killed run": (lambda _: None, kill_and_run),
    "rewind": (lambda _: None, lambda place: place.rewind(place.spans[12][0])),
    "rewind to the beginning": (lambda _: None, lambda place: place.rewind(0)),
    "expire": (
        keep_last_file,
        lambda place: expire(place.output.settings(), place.root, apply=True, remove_unused=True),
    ),
    "rebuild": (lambda _: None, build_again),
    "rebuild of a topic": (lambda _: None, partial(build_again, topics=["B"])),
}
"""Command -> what was there before it, and the command."""


def check_durable(place: Place, recorder: Recorder) -> None:
    """All is on the disk as it is below the output, but for what may come back."""
    recorder.check()
    here, disk = read_tree(place.root), Disk.after(recorder).durable()
    assert not any(path.endswith(SWAP_JOURNAL_FILE) for path in disk)
    differing = {path for path, _ in here.items() ^ disk.items()}
    assert {path for path in differing if not f"{path}/".startswith(MAY_COME_BACK)} == set()


@pytest.mark.parametrize("name", CASES)
def test_what_a_command_has_done_is_durable_when_it_returns(place: Place, name: str) -> None:
    """Every file and every name below the output, and what is gone."""
    lay, command = CASES[name]
    lay(place)
    before = read_tree(place.root)
    with Recorder(place.root) as recorder:
        command(place)
    assert read_tree(place.root) != before
    check_durable(place, recorder)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_a_killed_command_has_left_is_durable_when_the_next_one_returns(
    ram_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The kernel has what a killed process wrote and named, and the next one builds on that. It is
    killed before every ninth operation."""
    monkeypatch.setattr(LogTail, "SEAL_SECONDS", 0.0)
    lay, command = CASES[name]
    number, is_killed = random.Random(seed).randrange(1, KILLED_EVERY), True
    while is_killed:
        place = Place(ram_path / str(number), random.Random(seed))
        lay(place)
        with Recorder(place.root) as recorder:
            with killed_before(number):
                command(place)
                is_killed = False
            command(place)
            if place.config.abort_file.exists():
                # a rewind whose watermark was lowered: the next start does the rest
                run(place)
        check_durable(place, recorder)
        number += KILLED_EVERY
    assert number > 3 * KILLED_EVERY


def test_units_and_ledger_are_durable_when_a_watermark_is_told(place: Place) -> None:
    """By bytes and by names, at each watermark; the index has its own test."""
    grow(place)
    clear(place)
    kinds = ("consumequeue", "consumequeue_ext", "batchconsumequeue", LEDGER, WATERMARK)
    told = list[int]()

    class Told(Followers):
        def start(self, watermark: int, log_end: int) -> None:
            self.advance(watermark)
            super().start(watermark, log_end)

        def advance(self, watermark: int) -> None:
            disk = Disk.after(recorder).durable()
            differing = {path for path, _ in read_tree(place.root).items() ^ disk.items()}
            assert {path for path in differing if path.startswith(kinds)} == set()
            assert place.watermark() == watermark
            told.append(watermark)
            super().advance(watermark)

    with Recorder(place.root) as recorder:
        ends = [*(start for start, _ in place.spans[5::5]), place.spans[-1][1]]
        config = replace(place.config, once=False, durable_latency_ms=HOUR_MS)
        dispatch(config, ends, open_followers=Told)
    assert told == [0, *sorted({*ends[::2], ends[-1]})]


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_batch_that_fails_again_and_again_is_whole_and_durable(
    place: Place, is_begun: bool
) -> None:
    """Each operation on each file finds no space the first time, and each try goes on with what the
    others have left."""
    grow(place)
    run(place)
    whole = place.outcome()
    clear(place)
    if is_begun:
        with running(place.config) as begun:
            begun.commit(begun.scan(place.cuts[0]))
    failed = set[tuple[str, str]]()

    def fail_once(operation: str, path: str) -> None:
        # files of the index are named by the time of the try
        name = Path(path).parent.name if "/index/" in path else path
        if operation != "sync" and (operation, name) not in failed:
            failed.add((operation, name))
            raise OSError(errno.ENOSPC, "no space", path)

    with Recorder(place.root) as recorder, running(place.config) as begun:
        batch, is_done = begun.scan(begun.start.log_end), False
        while not is_done:
            with before_operations(fail_once), suppress(NoSpaceError):
                begun.committer.commit(batch)
                begun.committer.make_durable()
                is_done = True
    assert len(failed) > 30
    assert place.outcome() == whole
    check_durable(place, recorder)
