"""Logs over several directories, dispatched while files move from one to another: RocketMQ's
bytes all the same."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.errors import StoreError
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.upkeep.expiry import expire
from reput.upkeep.rebuild import rebuild
from reput.upkeep.verify.run import verify
from tests.support.cli import Call
from tests.support.golden import difference
from tests.support.several_paths import spread, state_paths

pytestmark = pytest.mark.usefixtures("spark")

Golden = Callable[[str], Path]
MOVE_SECONDS = 0.005


def test_verify_rebuild_and_expire_go_by_the_same_directories(
    golden: Golden, tmp_path: Path
) -> None:
    """All find the log whole: nothing differs, nothing is gone."""
    store, output = golden("plain"), tmp_path / "output"
    spread(store, [tmp_path / "second", tmp_path / "old"], read_only=1)
    config = DispatcherConfig(store, output, once=True)
    progress = run_dispatcher(config, threading.Event())
    assert progress.counts.quarantined_bytes == 0
    assert difference(output / "consumequeue", store / "consumequeue") == []
    settings = read_store_settings(store)
    assert verify(settings, output).differences == ()
    assert expire(settings, output, apply=False).files == ()
    assert rebuild(config, threading.Event(), dry_run=True).comparison.differences == []


@pytest.mark.parametrize("reverse", [False, True])
def test_files_that_moved_between_two_runs(golden: Golden, tmp_path: Path, reverse: bool) -> None:
    """Each one to another directory, whose order in the settings changes as well; a copy that was
    given up lies there too."""
    full, store, output = golden("plain"), tmp_path / "growing", tmp_path / "output"
    files = sorted((full / "commitlog").iterdir())
    (store / "commitlog").mkdir(parents=True)
    shutil.copy(full / "broker.conf", store)
    for path in files[:4]:
        shutil.copy(path, store / "commitlog")
    config = DispatcherConfig(store, output, once=True)
    run_dispatcher(config, threading.Event())
    directories = spread(store, [tmp_path / "second"])
    for path in files[4:]:
        shutil.copy(path, tmp_path / "second")
    run_dispatcher(config, threading.Event())
    assert difference(output / "consumequeue", full / "consumequeue") == []
    here, there = directories
    for path in list(here.iterdir()):
        shutil.move(path, tmp_path)
    for path in list(there.iterdir()):
        shutil.move(path, here)
    for path in tmp_path.glob("0*"):
        shutil.move(path, there)
    state_paths(store, directories[::-1] if reverse else directories)
    (there / files[-1].name).write_bytes(files[-1].read_bytes()[:1000])
    again = run_dispatcher(
        DispatcherConfig(store, output, once=True, replay_from="earliest"), threading.Event()
    )
    assert again.counts.messages == again.counts.duplicates > 0
    assert again.counts.quarantined_bytes == 0
    assert difference(output / "consumequeue", full / "consumequeue") == []


def test_files_move_while_they_are_read(golden: Golden, tmp_path: Path, seed: int) -> None:
    """By renames and by copies, during a run of many small batches."""
    rng = random.Random(seed)
    store, output = golden("plain"), tmp_path / "output"
    directories = spread(store, [tmp_path / "second"])
    ended, moved = threading.Event(), 0

    def move() -> None:
        nonlocal moved
        while not ended.wait(MOVE_SECONDS):
            here, there = rng.sample(directories, 2)
            path = rng.choice([*here.iterdir(), None])
            if path is None:
                continue
            if rng.random() < 0.5:
                path.rename(there / path.name)
            else:
                with (there / path.name).open("wb") as copy:
                    for at in range(0, path.stat().st_size, 1 << 16):
                        copy.write(path.read_bytes()[at : at + (1 << 16)])
                        copy.flush()
                path.unlink()
            moved += 1

    mover = threading.Thread(target=move)
    mover.start()
    try:
        config = DispatcherConfig(store, output, once=True, max_bytes_per_trigger=128 << 10)
        progress = run_dispatcher(config, threading.Event())
    finally:
        ended.set()
        mover.join()
    assert moved > 10
    assert progress.counts.quarantined_bytes == 0
    assert difference(output / "consumequeue", store / "consumequeue") == []


def test_two_files_of_one_name_with_other_bytes_end_a_run(golden: Golden, tmp_path: Path) -> None:
    """Where the second one is read, and not before; what is dispatched stays."""
    store, output = golden("plain"), tmp_path / "output"
    spread(store, [tmp_path / "second"])
    name = sorted((store / "commitlog").iterdir())[1].name
    data = bytearray((store / "commitlog" / name).read_bytes())
    data[-100_000:] = bytes(100_000)
    (tmp_path / "second" / name).write_bytes(data)
    config = DispatcherConfig(store, output, once=True, max_bytes_per_trigger=256 << 10)
    with pytest.raises(StoreError, match=f"commitlog/{name} and .*second/{name} have the same"):
        run_dispatcher(config, threading.Event())
    (tmp_path / "second" / name).unlink()
    run_dispatcher(config, threading.Event())
    assert difference(output / "consumequeue", store / "consumequeue") == []


def test_a_run_ends_when_its_broker_gets_another_directory(
    golden: Golden, tmp_path: Path, call: Call
) -> None:
    """Else it would wait at the last file that it knows; started again, it goes on from there."""
    store, output = golden("plain"), tmp_path / "output"
    files = sorted((store / "commitlog").iterdir())
    (tmp_path / "later").mkdir()
    for path in files[3:]:
        shutil.move(path, tmp_path / "later")
    kept = (store / "broker.conf").read_text()
    stop, second, conf = threading.Event(), tmp_path / "second", tmp_path / "broker.conf"

    def follow(progress: object) -> None:
        if progress.end_offset == 3 * 262144:  # type: ignore[attr-defined]
            # a file that cannot be read; then the file, and as the broker starts, the directory
            calls.append(None)
            if len(calls) == 1:
                (store / "broker.conf").rename(conf)
                (store / "broker.conf").mkdir()
            elif len(calls) == 2:
                (store / "broker.conf").rmdir()
                conf.rename(store / "broker.conf")
                state_paths(store, [store / "commitlog", second])
            elif len(calls) == 4:
                shutil.move(tmp_path / "later", second)

    calls: list[None] = []
    advice = (
        r"have changed since this run began.*/second.*; start it again, it goes on where it was$"
    )
    with pytest.raises(StoreError, match=advice):
        run_dispatcher(DispatcherConfig(store, output), stop, follow)
    assert len(calls) >= 4
    assert kept != (store / "broker.conf").read_text()
    done = call("run", store, "--output", output, "--once", "--log-level", "debug")
    assert done.returncode == 0, done.stderr
    assert f"batch: batch_id=1 start={3 * 262144} " in done.stderr
    assert difference(output / "consumequeue", store / "consumequeue") == []


@pytest.mark.extended
@pytest.mark.parametrize("order", [(1, 0), (0,), (0, 1, 2)])
def test_a_run_goes_on_where_only_the_order_of_its_directories_changes(
    golden: Golden, tmp_path: Path, order: tuple[int, ...]
) -> None:
    """One that is gone from the settings ends it, as a further one does."""
    store, output = golden("plain"), tmp_path / "output"
    directories = [*spread(store, [tmp_path / "second"]), tmp_path / "third"]
    directories[2].mkdir()
    stop, looks = threading.Event(), 0

    def follow(_progress: object) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            state_paths(store, [directories[number] for number in order])
        elif looks == 6:
            stop.set()

    def run() -> None:
        run_dispatcher(DispatcherConfig(store, output), stop, follow)

    if len(order) == 2:
        run()
        assert looks >= 6
    else:
        with pytest.raises(StoreError, match="have changed since this run began"):
            run()
