"""Runs whose writes find no space: they go on by themselves, and nothing is lost."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from reput.store import fsops
from reput.store.errors import NoSpaceError
from reput.streaming import space
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.foreachbatch import BatchFunction
from tests.streaming.test_golden import dispatch
from tests.support.golden import difference

pytestmark = pytest.mark.usefixtures("spark")
BATCH_BYTES = 256 << 10


def fail_at(patch: pytest.MonkeyPatch, text: str) -> None:
    """Make chosen operations of this process, which is the driver, fail."""
    patch.setattr(fsops, "_failpoints", fsops._Failpoints(text))
    patch.setattr(space, "FIRST_PAUSE_SECONDS", 0.0)


def test_operations_without_space_are_repeated(
    golden: Callable[[str], Path], tmp_path: Path, seed: int
) -> None:
    """From taking the output over to the last batch: directories, files, sizes, writes, renames."""
    store, output, rng = golden("plain"), tmp_path / "output", random.Random(seed)
    points = {"mkdir": 30, "open": 60, "pwrite": 60, "truncate": 40, "rename": 4, "allocate": 3}
    failing = [f"{name}:{rng.randint(1, most)}=ENOSPC" for name, most in points.items()]
    print(failing)
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, ",".join(failing))
        progress = dispatch(store, output, max_bytes_per_trigger=BATCH_BYTES)
    assert difference(output / "consumequeue", store / "consumequeue") == []
    again = dispatch(store, output, replay_from="earliest")
    assert again.counts.duplicates == progress.counts.messages == again.counts.messages
    assert not (output / "reput" / "abort").exists()


@pytest.mark.parametrize("is_replay", [False, True])
def test_a_batch_that_is_durable_counts(
    golden: Callable[[str], Path], tmp_path: Path, is_replay: bool
) -> None:
    """RocketMQ's checkpoint file finds no space right after it; it is not written again."""
    store, output = golden("plain"), tmp_path / "output"
    open_for_writing, failed = fsops.open_for_writing, list[str]()
    if is_replay:
        dispatch(store, output)

    def full(path: str, *rest: Any) -> int:
        if Path(path).name == "checkpoint" and not failed:
            failed.append(path)
            raise NoSpaceError(f"cannot size {path}: No space left on device")
        return open_for_writing(path, *rest)

    replay_from = "earliest" if is_replay else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space, "FIRST_PAUSE_SECONDS", 0.0)
        patch.setattr(fsops, "open_for_writing", full)
        progress = dispatch(
            store, output, replay_from=replay_from, max_bytes_per_trigger=BATCH_BYTES
        )
    again = dispatch(store, output, replay_from="earliest")
    assert failed
    assert progress.counts.messages == again.counts.messages


def test_a_replay_without_space_replays_all(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Positions do not tell how far it has come: Spark has a batch for done before it is written.

    The queues that it makes anew are RocketMQ's again.
    """
    store, output = golden("plain"), tmp_path / "output"
    dispatch(store, output)
    shutil.rmtree(output / "consumequeue")
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, ",".join(f"mkdir:{number}=ENOSPC" for number in (3, 12, 25)))
        dispatch(store, output, replay_from="earliest", max_bytes_per_trigger=BATCH_BYTES)
    assert difference(output / "consumequeue", store / "consumequeue") == []


def test_a_stop_ends_the_wait(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """The error is the one that was waited for; the next run does the rest."""
    store, output, stop = golden("plain"), tmp_path / "output", threading.Event()
    looks: list[Path] = []

    def full(directory: Path) -> bool:
        looks.append(directory)
        if len(looks) == 3:
            stop.set()
        return False

    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, "mkdir:12=ENOSPC")
        patch.setattr(fsops, "has_space", full)
        with pytest.raises(NoSpaceError, match="cannot create directory"):
            run_dispatcher(DispatcherConfig(store, output, once=True), stop)
    assert len(looks) == 3
    dispatch(store, output)
    assert difference(output / "consumequeue", store / "consumequeue") == []


def test_spark_may_find_the_disk_full_with_words_or_without(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its error names the cause where there is room again, and does not where there is none."""
    store, output = golden("plain"), tmp_path / "output"
    collect, errors = BatchFunction._collect, [OSError(28, "No space left on device"), OSError(5)]
    # both directories have room; the first has none when the cause is asked for, nor soon after
    looks = [True, True, False, False]

    def failing(batches: BatchFunction, frame: DataFrame) -> Any:
        if errors:
            raise errors.pop(0)
        return collect(batches, frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space, "FIRST_PAUSE_SECONDS", 0.0)
        patch.setattr(BatchFunction, "_collect", failing)
        patch.setattr(fsops, "has_space", lambda _: looks.pop(0) if looks else True)
        progress = dispatch(store, output)
    assert (errors, looks) == ([], [])
    assert progress.counts.duplicates == 0
    assert difference(output / "consumequeue", store / "consumequeue") == []
