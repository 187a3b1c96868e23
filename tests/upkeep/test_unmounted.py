"""A log over several directories of which one is not mounted: its files look gone, and nothing is
removed, cut or skipped for it.

An unmounted disk leaves an empty directory. RocketMQ's own queues, in small files, say what must be
there before and after. A run is driven without Spark.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.errors import CommitLogError
from reput.store.state.built import settings_of
from reput.streaming import commit
from reput.streaming.config import DispatcherConfig
from reput.streaming.sparkless import running
from reput.upkeep.expiry import expire
from reput.upkeep.rebuild import rebuild
from tests.support.derived_output import DerivedOutput
from tests.support.golden import relaid_queues, tree, unpack_golden
from tests.support.several_paths import state_paths

FILE_SIZE = 200


@contextmanager
def unmounted(directory: Path) -> Iterator[None]:
    aside = directory.with_name("aside")
    directory.rename(aside)
    directory.mkdir()
    yield
    directory.rmdir()
    aside.rename(directory)


@pytest.fixture
def output(ram_path: Path) -> DerivedOutput:
    """A store with the front, the middle and the end of its log in three directories; nothing is
    dispatched yet."""
    store = unpack_golden("plain", ram_path)
    files = sorted((store / "commitlog").iterdir())
    parts = {"front": files[:2], "commitlog": files[2:4], "end": files[4:]}
    for name, paths in parts.items():
        (store / name).mkdir(exist_ok=True)
        for path in paths:
            path.rename(store / name / path.name)
    state_paths(store, [store / name for name in parts])
    return DerivedOutput(store, ram_path / "output")


def queues(output: DerivedOutput) -> dict[str, bytes]:
    return tree(output.root / "consumequeue")


def whole(output: DerivedOutput) -> dict[str, bytes]:
    """RocketMQ's queues, in files of the size of this output's."""
    return relaid_queues(output.store, FILE_SIZE)


@pytest.mark.parametrize("name", ["front", "commitlog", "end"])
def test_nothing_is_removed_or_cut(output: DerivedOutput, name: str) -> None:
    """Neither by expire nor by a repair, a rebuild or a start; mounted again, all is sound."""
    output.start(mapped_file_size_consume_queue=FILE_SIZE)
    settings = settings_of(output.root, read_store_settings(output.store))
    assert queues(output) == whole(output)
    with unmounted(output.store / name):
        for apply in (False, True):
            with pytest.raises(CommitLogError, match=f"{name} has no file .* nothing is removed"):
                expire(settings, output.root, apply=apply)
        with pytest.raises(CommitLogError, match=f"{name} has no file .* nothing is cut"):
            output.verify(repair=True)
        with pytest.raises(CommitLogError, match=f"{name} has no file .* nothing is replaced"):
            rebuild(DispatcherConfig(output.store, output.root), threading.Event())
        if name == "end":
            with pytest.raises(CommitLogError, match=r"before the watermark .* nothing is cut"):
                output.start(retention=True)
        else:
            output.start(retention=True)
        assert queues(output) == whole(output)
    output.start(retention=True)
    assert queues(output) == whole(output)
    assert output.verify().differences == ()
    assert expire(settings, output.root, apply=False).files == ()


def test_queues_that_are_gone_are_not_built_from_what_is_left(output: DerivedOutput) -> None:
    """Messages of the missing part would be without units; mounted again, all have theirs."""
    output.start(mapped_file_size_consume_queue=FILE_SIZE)
    expected = whole(output)
    for path in (output.root / "consumequeue", output.root / "index"):
        shutil.rmtree(path)
    with (
        unmounted(output.store / "front"),
        pytest.raises(CommitLogError, match=r"not be mounted: the queues are not built again"),
    ):
        output.start()
    assert queues(output) == {}
    output.start()
    assert queues(output) == expected
    assert output.verify().differences == ()


def test_retention_waits_and_dispatching_goes_on(
    output: DerivedOutput, caplog: pytest.LogCaptureFixture
) -> None:
    """The missing files were dispatched before."""
    later = int(sorted((output.store / "end").iterdir())[0].name)
    output.start(part=lambda _: later, mapped_file_size_consume_queue=FILE_SIZE)
    with unmounted(output.store / "front"):
        output.start(retention=True)
    assert queues(output) == whole(output)
    assert "no queue files are removed" in caplog.text


@pytest.mark.parametrize("name", ["front", "commitlog"])
def test_nothing_is_skipped(output: DerivedOutput, name: str) -> None:
    """A run stops where it finds the part missing, and goes on there when it is mounted."""
    start = int(sorted((output.store / "front").iterdir())[1].name)
    output.start(part=lambda _: start, mapped_file_size_consume_queue=FILE_SIZE)
    with (
        unmounted(output.store / name),
        pytest.raises(CommitLogError, match=r"may not be mounted: nothing of .* is skipped"),
    ):
        output.start()
    output.start()
    assert queues(output) == whole(output)
    assert output.verify().differences == ()
    assert not (output.state / "quarantine.jsonl").exists()


def test_a_live_run_removes_what_expired_once_the_disk_is_there_again(
    output: DerivedOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had waited for the disk. The log has lost its first file, and loses no other one."""
    monkeypatch.setattr(commit, "RETENTION_SECONDS", 0.0)
    output.start(mapped_file_size_consume_queue=FILE_SIZE)
    before = queues(output)
    with running(DispatcherConfig(output.store, output.root, retention=True)) as run:
        min((output.store / "front").iterdir()).unlink()
        with unmounted(output.store / "commitlog"):
            run.committer.tend()
            assert queues(output) == before
        run.committer.tend()
        after = queues(output)
    settings = settings_of(output.root, read_store_settings(output.store))
    assert expire(settings, output.root, apply=False).files == ()
    assert after == queues(output)
    assert after.keys() < before.keys()
