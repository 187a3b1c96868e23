"""``reput checkpoints`` on checkpoints that Spark wrote, from logs and queues that RocketMQ wrote.

What Spark's files say is read here with plain ``json``, as Spark writes them; what must come out of
a replay are RocketMQ's own queues.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.cli import Call, json_object, reput_on_terminal
from tests.support.golden import difference, log_records, tree
from tests.support.queue_units import queue_units

pytestmark = pytest.mark.usefixtures("spark")
DIRECTORIES = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index")
RETAINED = "spark.sql.streaming.minBatchesToRetain"


def planned(directory: Path) -> dict[int, tuple[int, int]]:
    """Batch -> (end, time of its plan), by Spark's files."""
    found = {}
    for path in (directory / "offsets").glob("[0-9]*"):
        _, metadata, offset = path.read_text().splitlines()
        found[int(path.name)] = (
            json.loads(offset)["offset"], json.loads(metadata)["batchTimestampMs"],
        )  # fmt: skip
    return found


def test_a_replay_from_a_batch_gives_rocketmqs_queues(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """The first batch, and a place inside the middle one, whose first messages are there already
    when Spark repeats it. What was listed and planned before is what then happens."""
    store, output = golden("mixed"), tmp_path / "output"
    spark = output / "reput" / "spark"
    places = (store, "--output", output)

    def run() -> dict[str, Any]:
        return json_object(
            call("run", *places, "--once", "--json", "--max-bytes-per-trigger", "1m")
        )

    def rewind(*target: object) -> dict[str, Any]:
        return json_object(call("checkpoints", "rewind", *places, *target, "--json", "--apply"))

    first_run = run()
    files = planned(spark)
    listed = json_object(call("checkpoints", "list", *places, "--json"))
    assert {one["batch"]: (one["to"], one["planned_ms"]) for one in listed["batches"]} == files
    borders = [0, *(end for _, (end, _) in sorted(files.items()))]
    assert [(one["from"], one["to"]) for one in listed["batches"]] == [*pairwise(borders)]
    assert len(files) >= 3
    assert all(one["durable"] and one["committed"] for one in listed["batches"])
    assert listed["watermark"] == borders[-1]
    records = log_records(store)
    inside = records[len(records) // 2]
    for number, first in enumerate(borders[:-1]):
        shown = json_object(
            call("checkpoints", "show", store, number, "--output", output, "--json")
        )
        end = borders[number + 1]
        assert shown["messages"] == sum(first <= one.physical_offset < end for one in records)
        found = json_object(call("checkpoints", "rewind", *places, "--to-batch", number, "--json"))
        assert (found["offset"], found["batches"]) == (first, sorted(files)[number:])
        since = f"batch:{number - 1}" if number else "offset:0"
        moments = ("--since", since, "--as-of", f"batch:{number}")
        grown = json.loads(call("diff", *places, *moments, "--json").stdout)
        assert (grown["from_end"], grown["to_end"]) == (first, end)
        units = [unit for unit in queue_units(store) if first <= unit.offset < end]
        assert sum(one["to_offset"] - one["from_offset"] for one in grown["queues"]) == len(units)
    done = rewind("--to-offset", inside.physical_offset + 1)
    assert done["offset"] == inside.physical_offset
    again = run()
    assert again["messages"] - again["duplicates"] == done["units"]
    assert again["duplicates"] > 0
    assert difference(output / "consumequeue", store / "consumequeue") == []
    rewind("--to-batch", max(files))
    done = rewind("--to-batch", 0)
    assert planned(spark) == {0: files[0]}
    kept = planned(Path(done["kept"]) / "spark")
    assert [end for _, (end, _) in sorted(kept.items())] == borders[1:]
    again = run()
    assert (again["messages"], again["duplicates"]) == (first_run["messages"], 0)
    assert [end for _, (end, _) in sorted(planned(spark).items())] == borders[1:]
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
@pytest.mark.parametrize("name", ["ext", "batch"])
def test_every_batch_of_fifty_can_be_replayed(
    golden: Callable[[str], Path], tmp_path: Path, call: Call, spark: SparkSession, seed: int,
    name: str,
) -> None:  # fmt: skip
    """From each of them, in any order: a rewind leaves RocketMQ's units of the batches before it,
    and the run after it all that was there, byte for byte."""
    store, output = golden(name), tmp_path / "output"
    places = (store, "--output", output)
    directories = [kind for kind in DIRECTORIES if (store / kind).exists()]
    units = queue_units(store)

    def run() -> None:
        spark.conf.set(RETAINED, "1000")
        try:
            json_object(call("run", *places, "--once", "--json", "--max-bytes-per-trigger", "30k"))
        finally:
            spark.conf.unset(RETAINED)

    def built() -> dict[str, dict[str, bytes]]:
        return {kind: tree(output / kind) for kind in directories}

    run()
    whole, files = built(), planned(output / "reput" / "spark")
    assert len(files) >= 50
    for kind in set(directories) - {"index"}:
        assert difference(output / kind, store / kind) == []
    starts = dict(zip(sorted(files), [0, *(files[at][0] for at in sorted(files))], strict=False))
    for number in random.Random(seed).sample(sorted(files), len(files)):
        found = json_object(
            call("checkpoints", "rewind", *places, "--to-batch", number, "--json", "--apply")
        )
        assert found["offset"] == starts[number], number
        left = [unit for unit in units if unit.offset < starts[number]]
        assert len(queue_units(output)) == len(left), number
        assert json_object(call("verify", *places, "--json"))["differences"] == [], number
        run()
        assert built() == whole, number
        assert planned(output / "reput" / "spark").keys() == files.keys(), number


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
