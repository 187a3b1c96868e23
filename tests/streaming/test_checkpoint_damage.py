"""Spark's checkpoint is replaceable: lost, cut or foreign, the result is the same and is said."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints import SPARK_DIRECTORY, STATE_DIRECTORY
from tests.streaming.test_golden import dispatch
from tests.support.golden import difference

pytestmark = pytest.mark.usefixtures("spark")


def _half_done(full: Path, store: Path, output: Path) -> Path:
    """Dispatch the first files of a log in several batches, then lay down the rest."""
    (store / "commitlog").mkdir(parents=True)
    shutil.copy(full / "broker.conf", store)
    files = sorted((full / "commitlog").iterdir())
    for file in files[:3]:
        shutil.copy(file, store / "commitlog")
    dispatch(store, output, max_bytes_per_trigger=200_000)
    for file in files[3:]:
        shutil.copy(file, store / "commitlog")
    return output / STATE_DIRECTORY / SPARK_DIRECTORY


def _finish(full: Path, store: Path, output: Path) -> None:
    dispatch(store, output)
    assert difference(output / "consumequeue", full / "consumequeue") == []


def test_deleted_checkpoint(
    golden: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The query begins anew at the watermark, not at the start."""
    caplog.set_level(logging.INFO, "reput")
    full, store, output = golden("plain"), tmp_path / "half", tmp_path / "output"
    shutil.rmtree(_half_done(full, store, output))
    progress = dispatch(store, output)
    assert "no spark checkpoint: resuming at" in caplog.text
    assert progress.counts.duplicates == 0
    assert difference(output / "consumequeue", full / "consumequeue") == []


@pytest.mark.parametrize("kept", [0.0, 0.6], ids=["emptied", "cut"])
@pytest.mark.parametrize("part", ["metadata", "offsets", "commits"])
def test_cut_checkpoint_file(
    golden: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    part: str,
    kept: float,
) -> None:
    """The newest file of each kind, emptied or cut short."""
    caplog.set_level(logging.INFO, "reput")
    full, store, output = golden("plain"), tmp_path / "half", tmp_path / "output"
    directory = _half_done(full, store, output)
    path = directory / part
    if path.is_dir():
        path = max((entry for entry in path.iterdir()), key=lambda entry: int(entry.name))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    _finish(full, store, output)
    assert "spark checkpoint is not usable" in caplog.text
    assert "moved aside" in caplog.text
    assert directory.with_name(f"{SPARK_DIRECTORY}.replaced-1").is_dir()


def test_changed_digit_in_an_offset_skips_nothing(
    golden: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark itself would run from the changed offset without a word."""
    caplog.set_level(logging.INFO, "reput")
    full, store, output = golden("plain"), tmp_path / "half", tmp_path / "output"
    offsets = _half_done(full, store, output) / "offsets"
    path = max(offsets.iterdir(), key=lambda entry: int(entry.name))
    text = path.read_text("utf-8")
    head, found, rest = text.rpartition('"offset":')
    assert found
    digit = rest[0]
    path.write_text(f"{head}{found}{'9' if digit != '9' else '8'}{rest[1:]}", "utf-8")
    _finish(full, store, output)
    assert "spark checkpoint is not usable" in caplog.text


def test_uncommitted_batch_is_repeated(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Without its last commit, Spark runs the batch again: all duplicates, no change."""
    full, store, output = golden("plain"), tmp_path / "half", tmp_path / "output"
    commits = _half_done(full, store, output) / "commits"
    max(commits.iterdir(), key=lambda entry: int(entry.name)).unlink()
    progress = dispatch(store, output)
    assert 0 < progress.counts.duplicates < progress.counts.messages
    assert difference(output / "consumequeue", full / "consumequeue") == []


def test_another_stores_checkpoint_is_moved_aside(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """A checkpoint that belongs to another output is not believed."""
    store, output = golden("plain"), tmp_path / "output"
    other_output = tmp_path / "other"
    dispatch(golden("wide"), other_output)
    foreign = other_output / STATE_DIRECTORY / SPARK_DIRECTORY
    dispatch(store, output, checkpoint=foreign)
    assert difference(output / "consumequeue", store / "consumequeue") == []
    assert foreign.with_name(f"{SPARK_DIRECTORY}.replaced-1").is_dir()
