"""``reput shadow`` as it is called: what is printed, exit codes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.cli import shadow
from reput.cli.printer import Table
from reput.store.queue.kinds import QueueKind
from reput.upkeep.compare import PairReader
from reput.upkeep.shadow import KindCounts, ShadowResult
from tests.cli.test_errors import assert_one_line
from tests.support.cli import Call, json_object
from tests.support.golden import tree

Golden = Callable[[str], Path]
QUEUE = Path("consumequeue", "Topic_1", "0", "0" * 20)


@pytest.mark.usefixtures("spark")
def test_equal_then_a_planted_byte(golden: Golden, tmp_path: Path, call: Call) -> None:
    """Exit codes 0 and 1, the same in both forms; no byte of the store changes."""
    store = golden("plain")
    command = ("shadow", store, "--output", tmp_path / "output", "--once")
    before = tree(store)
    found = json_object(call(*command, "--json"))
    assert (found["equal"], found["differences"], found["messages"]) == (True, [], 3170)
    counts = {"queues": 24, "entries": 3170, "awaited": 0, "uncomparable": 0}
    assert found["compared"] == {"consumequeue": counts}
    assert tree(store) == before
    with (store / QUEUE).open("r+b") as file:
        file.seek(10 * 20 + 7)
        byte = file.read(1)[0]
        file.seek(10 * 20 + 7)
        file.write(bytes([byte ^ 1]))
    done = call(*command, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout.splitlines()[-1])
    (one,) = found["differences"]
    assert not found["equal"] and found["compared"]["consumequeue"]["entries"] < 3170
    assert (one["kind"], one["topic"], one["queue_id"]) == ("consumequeue", "Topic_1", 0)
    assert (one["unit"], one["file"], one["position"]) == (10, QUEUE.name, 207)
    assert one["reput"]["offset"] == one["broker"]["offset"] ^ 1
    shown = call(*command)
    assert shown.returncode == 1
    offsets = [f"offset {one[side]['offset']}, " for side in ("reput", "broker")]
    for part in (f"{QUEUE}, byte 207, unit 10", *offsets, "1 queue with a difference"):
        assert part in shown.stdout


def test_counts_stand_below_their_headings() -> None:
    """Entries that the broker has yet to write are no queues that cannot be compared."""
    result = ShadowResult({QueueKind.BATCH: KindCounts(2, 1234, 5, 6)})
    (table,) = (part for part in shadow._parts(result) if isinstance(part, Table))
    (row,) = table.rows
    assert dict(zip(table.columns, row, strict=True)) == {
        "kind": "batchconsumequeue", "queues": "2", "entries equal": "1,234", "awaited": "5",
        "queues not comparable": "6",
    }  # fmt: skip


@pytest.mark.usefixtures("spark")
def test_nothing_compared_is_not_equal(golden: Golden, tmp_path: Path, call: Call) -> None:
    """Exit code 1 and a line that says so, where the broker keeps its queues elsewhere."""
    store = golden("plain")
    (store / "consumequeue").rename(tmp_path / "elsewhere")
    command = ("shadow", store, "--output", tmp_path / "output", "--once")
    shown = call(*command)
    assert shown.returncode == 1
    assert "nothing was compared" in shown.stdout and "no differences" not in shown.stdout
    done = call(*command, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[-1])["equal"] is False


@pytest.mark.usefixtures("spark")
def test_errors_of_the_comparison(
    golden: Golden, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line and exit code 1, also for what nobody expects."""
    store, output = golden("plain"), tmp_path / "output"

    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError("made up")

    with monkeypatch.context() as patch:
        patch.setattr(PairReader, "first_difference", fail)
        done = call("shadow", store, "--output", output, "--once")
        assert_one_line(done, 1, "the comparison with the broker has failed", "made up")
    os.truncate(store / QUEUE, 100)
    done = call("shadow", store, "--output", output, "--once")
    assert_one_line(done, 1, str(QUEUE), "has 100 bytes", "mappedFileSizeConsumeQueue")


def test_wrong_calls(golden: Golden, tmp_path: Path, call: Call) -> None:
    """Exit code 2, and nothing is written."""
    store = golden("plain")
    before = tree(tmp_path)
    assert_one_line(call("shadow", store, "--output", store), 2, "--output is the store itself")
    assert_one_line(call("shadow", store), 2, "--output")
    file = store / "broker.conf"
    assert_one_line(call("shadow", file, "--output", tmp_path / "o"), 2, f"{file} is not a dir")
    assert tree(tmp_path) == before
