"""A start prepares Spark's directory before the query begins, and lets followers begin; without
Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from reput.checkpoints.reconcile import Plan
from reput.checkpoints.spark_checkpoint import SparkPosition, read_position
from reput.store.state.watermark import Watermark, read_watermark
from reput.streaming.config import DispatcherConfig
from reput.streaming.followers import Followers
from reput.streaming.startup import _prepare_spark_directory
from tests.checkpoints.test_spark_checkpoint import STORE, Case
from tests.support.sparkless import dispatch
from tests.support.wire import PlainLog

PLAN = Plan(Watermark(STORE, 700), 700, None, None, None, ())


def planned(directory: Path, end: int) -> None:
    """Spark writes the end of batch 0 down and no more."""
    (directory / "offsets").mkdir()
    (directory / "commits").mkdir()
    (directory / "metadata").write_text('{"id":"7d0e6f44"}')
    found = json.loads((directory / "reput-start").read_text("utf-8"))
    assert (found["offset"], found["store"]) == (700, STORE)
    case = Case("", 0, (end,), 0, SparkPosition(700, 0, False, end))
    made = case.make(directory.with_name("made")) / "offsets" / "0"
    made.rename(directory / "offsets" / "0")


@pytest.mark.parametrize("name", ["reput/spark", "../elsewhere"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_new_query_has_an_empty_directory_and_a_pinned_start(
    tmp_path: Path, is_there: bool, name: str
) -> None:
    """Batch 0 can be repeated from where it began; what was there before is kept aside."""
    output = tmp_path / "output"
    (output / "reput").mkdir(parents=True)
    directory = (output / name).resolve()
    if is_there:
        Case("old", 0, (900, 1900), 1, SparkPosition(900, 1, False, 1900)).make(directory)
    _prepare_spark_directory(DispatcherConfig(tmp_path, output, checkpoint=directory), PLAN)
    assert [path.name for path in directory.iterdir()] == ["reput-start"]
    aside = directory.with_name(f"{directory.name}.replaced-1")
    assert aside.exists() is is_there
    if is_there:
        assert read_position(aside, STORE) == SparkPosition(900, 1, False, 1900)
    planned(directory, 1900)
    assert read_position(directory, STORE) == SparkPosition(700, 0, False, 1900)


def test_a_start_from_which_no_query_began_is_pinned_anew(tmp_path: Path) -> None:
    """A run that waits for its log starts again and again: nothing is there to be kept aside."""
    output, directory = tmp_path / "output", tmp_path / "spark"
    (output / "reput").mkdir(parents=True)
    config = DispatcherConfig(tmp_path, output, checkpoint=directory)
    for start in (300, 500, 700):
        _prepare_spark_directory(config, replace(PLAN, start=start))
    assert {path.name for path in tmp_path.iterdir()} == {"output", "spark"}
    planned(directory, 1900)


def test_a_kept_checkpoint_is_brought_to_its_position(tmp_path: Path) -> None:
    """Batches beyond it are repeated; the others stay."""
    output, directory = tmp_path / "output", tmp_path / "spark"
    (output / "reput").mkdir(parents=True)
    Case("", 0, (600, 900, 1900), 3, SparkPosition(1900, 2, True, 1900)).make(directory)
    wanted = SparkPosition(600, 1, False, 900)
    plan = replace(PLAN, spark=wanted)
    _prepare_spark_directory(DispatcherConfig(tmp_path, output, checkpoint=directory), plan)
    assert read_position(directory, STORE) == wanted
    assert sorted(path.name for path in (directory / "offsets").glob("[0-9]*")) == ["0", "1"]
    assert not directory.with_name("spark.replaced-1").exists()


def test_followers_begin_at_the_durable_watermark(tmp_path: Path) -> None:
    """They are told of it once the output is taken over, and of the log's end: what lies between
    the two is not in the queues yet."""
    told, log = list[tuple[int, int, int]](), PlainLog(1 << 16)

    class Told(Followers):
        def start(self, watermark: int, log_end: int) -> None:
            durable = read_watermark(tmp_path / "reput")
            told.append((watermark, -1 if durable is None else durable.end_offset, log_end))

    ends = [0]
    for _ in range(3):
        log.append(topic=b"T", queue_offset=len(ends) - 1)
        ends.append(log.end)
        log.write(tmp_path / "commitlog")
        dispatch(DispatcherConfig(tmp_path, tmp_path, once=True), open_followers=Told)
    assert told == [(before, before, end) for before, end in pairwise(ends)]
