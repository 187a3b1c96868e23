"""``reput checkpoints`` on checkpoints that Spark wrote, from logs and queues that RocketMQ wrote.

What Spark's files say is read here with plain ``json``, as Spark writes them; what must come out of
a replay are RocketMQ's own queues.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reput.upkeep.compare import DIRECTORY_KINDS
from tests.support.cli import Call, json_object, reput_on_terminal
from tests.support.derived_output import DerivedOutput
from tests.support.golden import difference, log_records, tree
from tests.support.queue_units import queue_units

pytestmark = pytest.mark.usefixtures("spark")
Places = tuple[object, ...]
"""The arguments of a command that name a store and its output."""
RETAINED = "spark.sql.streaming.minBatchesToRetain"


@pytest.fixture
def all_batches_retained(spark: SparkSession) -> Iterator[None]:
    """Spark's checkpoint lists every batch of a run, however many there are."""
    before = spark.conf.get(RETAINED)
    spark.conf.set(RETAINED, "1000")
    yield
    spark.conf.set(RETAINED, before)


def planned(directory: Path) -> dict[int, tuple[int, int]]:
    """Batch -> (end, time of its plan), by Spark's files."""
    found = {}
    for path in (directory / "offsets").glob("[0-9]*"):
        _, metadata, offset = path.read_text().splitlines()
        found[int(path.name)] = (
            json.loads(offset)["offset"], json.loads(metadata)["batchTimestampMs"],
        )  # fmt: skip
    return found


def borders(files: dict[int, tuple[int, int]]) -> list[int]:
    """Where each batch begins, and where the last one ends, if all of them are listed."""
    return [0, *(end for _, (end, _) in sorted(files.items()))]


def run(call: Call, places: Places, size: str) -> dict[str, Any]:
    """Dispatch everything in batches of up to ``size``."""
    return json_object(call("run", *places, "--once", "--json", "--max-bytes-per-trigger", size))


def rewind(call: Call, places: Places, *target: object) -> dict[str, Any]:
    """Rewind the output to a place."""
    return json_object(call("checkpoints", "rewind", *places, *target, "--json", "--apply"))


@pytest.mark.extended
def test_a_replay_from_a_batch_gives_rocketmqs_queues(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """The first batch, and a place inside the middle one, whose first messages are there already
    when Spark repeats it. What was listed and planned before is what then happens."""
    store, output = golden("mixed"), tmp_path / "output"
    spark = output / "reput" / "spark"
    places = (store, "--output", output)
    first_run = run(call, places, "1m")
    files = planned(spark)
    listed = json_object(call("checkpoints", "list", *places, "--json"))
    assert {one["batch"]: (one["to"], one["planned_ms"]) for one in listed["batches"]} == files
    ends = borders(files)
    assert [(one["from"], one["to"]) for one in listed["batches"]] == [*pairwise(ends)]
    assert len(files) >= 3
    assert all(one["durable"] and one["committed"] for one in listed["batches"])
    assert listed["watermark"] == ends[-1]
    records, units = log_records(store), queue_units(store)
    inside = records[len(records) // 2]
    for number, first in enumerate(ends[:-1]):
        shown = json_object(
            call("checkpoints", "show", store, number, "--output", output, "--json")
        )
        end = ends[number + 1]
        assert shown["messages"] == sum(first <= one.physical_offset < end for one in records)
        found = json_object(call("checkpoints", "rewind", *places, "--to-batch", number, "--json"))
        assert (found["offset"], found["batches"]) == (first, sorted(files)[number:])
        since = f"batch:{number - 1}" if number else "offset:0"
        moments = ("--since", since, "--as-of", f"batch:{number}")
        grown = json.loads(call("diff", *places, *moments, "--json").stdout)
        assert (grown["from_end"], grown["to_end"]) == (first, end)
        between = [unit for unit in units if first <= unit.offset < end]
        assert sum(one["to_offset"] - one["from_offset"] for one in grown["queues"]) == len(between)
    done = rewind(call, places, "--to-offset", inside.physical_offset + 1)
    assert done["offset"] == inside.physical_offset
    again = run(call, places, "1m")
    assert again["messages"] - again["duplicates"] == done["units"]
    assert again["duplicates"] > 0
    assert difference(output / "consumequeue", store / "consumequeue") == []
    rewind(call, places, "--to-batch", max(files))
    done = rewind(call, places, "--to-batch", 0)
    assert planned(spark) == {0: files[0]}
    kept = planned(Path(done["kept"]) / "spark")
    assert [end for _, (end, _) in sorted(kept.items())] == ends[1:]
    again = run(call, places, "1m")
    assert (again["messages"], again["duplicates"]) == (first_run["messages"], 0)
    assert [end for _, (end, _) in sorted(planned(spark).items())] == ends[1:]
    assert difference(output / "consumequeue", store / "consumequeue") == []
    assert json_object(call("verify", *places, "--json"))["differences"] == []
    assert "no problems" in call("checkpoints", "verify", *places).stdout
    shutil.rmtree(spark / "commits")
    damaged = call("checkpoints", "verify", *places)
    assert damaged.returncode == 1
    assert "damaged: spark/" in damaged.stdout
    assert "next start: spark checkpoint is not usable" in damaged.stdout
    kept = call("checkpoints", "prune", *places)
    assert "3 states kept" in kept.stdout
    before = tree(output)
    rows = reput_on_terminal("checkpoints", store, "--output", output, columns=120)
    assert "batches of Spark's checkpoint" in rows
    assert tree(output) == before


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("all_batches_retained")
@pytest.mark.parametrize("name", ["ext", "batch"])
def test_every_batch_of_fifty_can_be_replayed(
    tmp_path: Path, call: Call, seed: int, name: str
) -> None:
    """From each of them, in any order: a rewind leaves RocketMQ's units of the batches before it,
    and the run after it all that was there, byte for byte."""
    output = DerivedOutput.unpack(name, tmp_path)
    places, spark = (output.store, "--output", output.root), output.state / "spark"
    units = queue_units(output.store)

    def built() -> dict[str, dict[str, bytes]]:
        return {kind: tree(output.root / kind) for kind in DIRECTORY_KINDS}

    run(call, places, "30k")
    whole, files = built(), planned(spark)
    assert len(files) >= 50
    assert output.unequal() == []
    starts = borders(files)
    for number in random.Random(seed).sample(sorted(files), len(files)):
        found = rewind(call, places, "--to-batch", number)
        assert found["offset"] == starts[number], number
        left = [unit for unit in units if unit.offset < starts[number]]
        assert queue_units(output.root) == left, number
        assert json_object(call("verify", *places, "--json"))["differences"] == [], number
        run(call, places, "30k")
        assert built() == whole, number
        assert planned(spark).keys() == files.keys(), number


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("rewind",), "give one of --to-batch, --to-offset, --to-file and --to-time"),
        (("rewind", "--to-batch", "1", "--to-time", "1"), "give one of"),
        (("rewind", "--to-batch", "0"), "has no watermark"),
        (("list",), "has no watermark"),
        (("prune", "--apply"), "has no watermark"),
    ],
)
def test_a_wrong_call_is_one_line_and_changes_nothing(
    golden: Callable[[str], Path], call: Call, words: tuple[str, ...], text: str
) -> None:
    """Exit code 2, as every wrong call has; the store's queues are a broker's."""
    store = golden("plain")
    before = tree(store)
    done = call("checkpoints", words[0], store, *words[1:])
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert tree(store) == before
