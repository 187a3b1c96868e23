"""Spark's checkpoint is replaceable: lost, cut or foreign, the result is the same and is said."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reput.store.files import SPARK_DIRECTORY, STATE_DIRECTORY
from reput.streaming.progress import Progress
from tests.streaming.test_golden import dispatch
from tests.support.golden import difference, unpack_golden

pytestmark = pytest.mark.usefixtures("spark")


@dataclass(frozen=True)
class HalfDone:
    """A log of which the first files were dispatched in several batches, then the rest came."""

    full: Path
    """The broker's store."""
    store: Path
    output: Path

    @property
    def directory(self) -> Path:
        """Spark's checkpoint."""
        return self.output / STATE_DIRECTORY / SPARK_DIRECTORY

    def finish(self) -> Progress:
        """Dispatch the rest: the queues are the broker's."""
        progress = dispatch(self.store, self.output)
        assert difference(self.output / "consumequeue", self.full / "consumequeue") == []
        return progress


@pytest.fixture(scope="module")
def dispatched(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> HalfDone:
    """It lies at one place for all tests, which a checkpoint may name."""
    assert spark is not None
    place = tmp_path_factory.mktemp("half")
    found = HalfDone(unpack_golden("plain", place), place / "store", place / "output")
    (found.store / "commitlog").mkdir(parents=True)
    shutil.copy(found.full / "broker.conf", found.store)
    files = sorted((found.full / "commitlog").iterdir())
    for file in files[:3]:
        shutil.copy(file, found.store / "commitlog")
    dispatch(found.store, found.output, max_bytes_per_trigger=200_000)
    found.output.rename(place / "kept")
    for file in files[3:]:
        shutil.copy(file, found.store / "commitlog")
    return found


@pytest.fixture
def half(dispatched: HalfDone) -> Iterator[HalfDone]:
    """The output as it was."""
    shutil.copytree(dispatched.output.with_name("kept"), dispatched.output)
    yield dispatched
    shutil.rmtree(dispatched.output)


def newest(directory: Path) -> Path:
    """The file of the last batch; hidden ones are checksums."""
    return max(directory.glob("[0-9]*"), key=lambda entry: int(entry.name))


def test_deleted_checkpoint(half: HalfDone, caplog: pytest.LogCaptureFixture) -> None:
    """The query begins anew at the watermark, not at the start."""
    caplog.set_level(logging.INFO, "reput")
    shutil.rmtree(half.directory)
    progress = half.finish()
    assert "no spark checkpoint: resuming at" in caplog.text
    assert progress.counts.duplicates == 0


@pytest.mark.parametrize("kept", [0.0, 0.6], ids=["emptied", "cut"])
@pytest.mark.parametrize("part", ["metadata", "offsets", "commits"])
def test_cut_checkpoint_file(
    half: HalfDone, caplog: pytest.LogCaptureFixture, part: str, kept: float
) -> None:
    """The newest file of each kind, emptied or cut short."""
    caplog.set_level(logging.INFO, "reput")
    path = half.directory / part
    if path.is_dir():
        path = newest(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    half.finish()
    assert "spark checkpoint is not usable" in caplog.text
    assert "moved aside" in caplog.text
    assert half.directory.with_name(f"{SPARK_DIRECTORY}.replaced-1").is_dir()


def test_changed_digit_in_an_offset_skips_nothing(
    half: HalfDone, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark itself would run from the changed offset without a word."""
    caplog.set_level(logging.INFO, "reput")
    path = newest(half.directory / "offsets")
    text = path.read_text("utf-8")
    head, found, rest = text.rpartition('"offset":')
    assert found
    digit = rest[0]
    path.write_text(f"{head}{found}{'9' if digit != '9' else '8'}{rest[1:]}", "utf-8")
    half.finish()
    assert "spark checkpoint is not usable" in caplog.text


def test_uncommitted_batch_is_repeated(half: HalfDone) -> None:
    """Without its last commit, Spark runs the batch again: all duplicates, no change."""
    newest(half.directory / "commits").unlink()
    progress = half.finish()
    assert 0 < progress.counts.duplicates < progress.counts.messages


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
