"""``--stores``: several brokers' stores in one command."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from reput.cli import severalstores
from reput.cli.printer import Table
from reput.store.runs.dispatch import DispatchCounts
from reput.streaming.config import DispatcherConfig
from reput.streaming.progress import Progress, TotalProgress
from reput.upkeep import rebuildstores
from tests.cli.test_errors import assert_one_line
from tests.hostile.stores import log_with
from tests.readers.stores import SmallStore as BrokerStore
from tests.support.cli import Call, json_object
from tests.support.golden import difference, unpack_golden
from tests.support.small_store import SmallStore
from tests.support.sparkless import dispatch

NAMES = ("lmq", "mixed", "plain")
QUEUES = ("consumequeue", "consumequeue_ext", "batchconsumequeue")


@pytest.mark.usefixtures("spark")
def test_all_are_caught_up_and_the_one_that_fails_is_named(tmp_path: Path, call: Call) -> None:
    """Queues are RocketMQ's, byte for byte; the next run finds the repaired store and nothing new
    in others."""
    stores, outputs = tmp_path / "stores", tmp_path / "outputs"
    for name in NAMES:
        unpack_golden(name, stores)
    broken = unpack_golden("wide", stores)
    (stores / "no store").mkdir()
    segment = max((broken / "commitlog").iterdir())
    sound = segment.read_bytes()
    segment.write_bytes(sound[:1000])
    several = ("--stores", stores / "*", "--outputs", outputs)
    done = call("run", *several, "--once", "--json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, lines[-1]["level"]) == (1, "error")
    assert lines[-1]["event"].startswith(f"1 of 4 stores failed: {broken}: commitlog file")
    assert {line["store"] for line in lines[:-1] if "store" in line} == {*NAMES, "wide"}
    (failed,) = [line for line in lines[:-1] if line["level"] == "error"]
    assert failed["store"] == "wide"
    found = json.loads(done.stdout)["stores"]
    assert [one["store"] for one in found] == [str(stores / name) for name in (*NAMES, "wide")]
    assert [one["error"] is None for one in found] == [True, True, True, False]
    for name in NAMES:
        assert difference(outputs / name / "consumequeue", stores / name / "consumequeue") == []
    unknown = call("status", *several)
    assert (unknown.returncode, "unknown" in unknown.stdout) == (1, True)
    segment.write_bytes(sound)
    again = json_object(call("run", *several, "--once", "--json"))["stores"]
    assert [one["messages"] > 0 for one in again] == [False, False, False, True]
    assert difference(outputs / "wide" / "consumequeue", broken / "consumequeue") == []
    seen = json_object(call("status", *several, "--json"))["stores"]
    assert [one["watermark"] for one in seen] == [one["end_offset"] for one in again]
    assert all((one["lag_bytes"], one["writer_pid"]) == (0, None) for one in seen)
    check_verify(call, several, outputs, segment)


def check_verify(call: Call, several: tuple[object, ...], outputs: Path, segment: Path) -> None:
    """``verify --stores`` of sound outputs, then of one with a wrong unit beside one whose log file
    is short."""
    sound = json_object(call("verify", *several, "--json"))["stores"]
    assert [Path(one["output"]).name for one in sound] == [*NAMES, "wide"]
    assert all((one["units"] > 0, one["differences"]) == (True, []) for one in sound)
    path = min((outputs / NAMES[0] / "consumequeue").glob("*/*/*"))
    with path.open("r+b") as file:
        file.seek(11)
        file.write(b"\xff")
    segment.write_bytes(segment.read_bytes()[:1000])
    done = call("verify", *several, "--json")
    damaged, *others = json.loads(done.stdout)["stores"]
    assert (done.returncode, len(damaged["differences"])) == (1, 1)
    assert [one["error"] is None for one in others] == [True, True, False]
    assert "1 of 4 stores failed" in done.stderr
    shown = call("verify", *several)
    (row,) = [line for line in shown.stdout.splitlines() if NAMES[0] in line]
    assert (shown.returncode, row.split()[-1]) == (1, "1")
    refused = call("verify", *several, "--output", outputs)
    assert (refused.returncode, "--output is for one store" in refused.stderr) == (2, True)


@pytest.mark.parametrize("name", ["a", "b"])
def test_each_store_decides_the_exit_code(tmp_path: Path, call: Call, name: str) -> None:
    """Whether the first one differs or the last."""
    stores, outputs = tmp_path / "stores", tmp_path / "outputs"
    for each in ("a", "b"):
        small = BrokerStore(stores / each)
        small.append()
        dispatch(DispatcherConfig(small.write(), outputs / each, once=True))
    several = ("verify", "--stores", stores / "*", "--outputs", outputs)
    assert call(*several).returncode == 0
    path = min((outputs / name / "consumequeue").glob("*/*/*"))
    with path.open("r+b") as file:
        file.write(b"wrong")
    assert call(*several).returncode == 1


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("ways", [(), ("--executors",)], ids=["one writer", "executors"])
def test_all_are_rebuilt_and_the_one_that_fails_is_left(
    tmp_path: Path, call: Call, ways: tuple[str, ...]
) -> None:
    """Queues are RocketMQ's, byte for byte; a store whose log is cut has no output; what differs is
    found in the store that it is in."""
    stores, outputs = tmp_path / "stores", tmp_path / "outputs"
    for name in NAMES:
        unpack_golden(name, stores)
    broken = unpack_golden("wide", stores)
    segment = max((broken / "commitlog").iterdir())
    segment.write_bytes(segment.read_bytes()[:1000])
    several = ("--stores", stores / "*", "--outputs", outputs, *ways)
    done = call("rebuild", *several, "--json")
    assert done.returncode == 1
    last = json.loads(done.stderr.splitlines()[-1])["event"]
    assert last.startswith(f"1 of 4 stores failed: {broken}: commitlog file")
    found = json.loads(done.stdout)["stores"]
    assert [one["store"] for one in found] == [str(stores / name) for name in (*NAMES, "wide")]
    assert [one.get("replaced", False) for one in found] == [True, True, True, False]
    for name in NAMES:
        for kind in QUEUES:
            assert difference(outputs / name / kind, stores / name / kind) == []
    assert not [*(outputs / "wide").glob("consumequeue*")]
    shutil.rmtree(broken)
    damaged = max((outputs / "plain" / "consumequeue").rglob("0*0"))
    damaged.write_bytes(b"damaged!" + damaged.read_bytes()[8:])
    tried = call("rebuild", *several, "--dry-run", "--json")
    assert tried.returncode == 1, tried.stderr
    equal = [one["equal"] for one in json.loads(tried.stdout)["stores"]]
    assert equal == [True, True, False]
    mended = call("rebuild", *several)
    assert (mended.returncode, "failed" in mended.stdout) == (0, False)
    assert difference(outputs / "plain" / "consumequeue", stores / "plain" / "consumequeue") == []
    removed = json_object(call("rebuild", *several[:4], "--drop-old", "--json"))["removed"]
    assert {Path(path).parent.name for path in removed} == {*NAMES}


def test_what_is_shown_of_several_rebuilds_ends_with_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is until the display is due, it gets the counts of the last one."""
    stores = [SmallStore(tmp_path / str(number), log_with()).output for number in range(3)]

    def build(
        config: DispatcherConfig, _stop: object, show: Callable[[Progress], None], _jvm: object
    ) -> Progress:
        show(progress := Progress())
        dispatch(config)
        progress.advance(1, DispatchCounts(messages=1))
        return progress

    shown: list[int] = []

    def show(total: TotalProgress) -> None:
        shown.append(total.summary()["messages"])

    monkeypatch.setattr(rebuildstores, "POLL_SECONDS", 60.0)
    configs = [DispatcherConfig(one.store, one.root) for one in stores]
    done = rebuildstores.rebuild_stores(configs, 2, threading.Event(), show, build=build)
    assert [one.error for one in done] == [None] * 3
    assert shown == [3]


def test_wrong_calls_end_with_one_line(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """Options of one store are refused, and nothing is written."""
    store, outputs = golden("plain"), tmp_path / "outputs"
    for place in ("other", "another"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "plain").symlink_to(store)
    several = ["--stores", tmp_path / "plain", "--outputs", outputs]
    for arguments, words in (
        ([], "give either STORE or --stores GLOB"),
        ([store, *several], "give either STORE or --stores GLOB"),
        ([*several[:2]], "--stores GLOB and --outputs DIR need each other"),
        ([store, *several[2:]], "--stores GLOB and --outputs DIR need each other"),
        (["--stores", tmp_path / "none*", *several[2:]], "which no directory matches"),
        (["--stores", tmp_path / "oth*", *several[2:]], "nothing that matches has a commitlog"),
        (
            ["--stores", tmp_path / "*other" / "plain", *several[2:]],
            f"the output {outputs / 'plain'}",
        ),
        ([*several, "--output", outputs], "--output is for one store"),
        ([*several, "--checkpoint", outputs], "--checkpoint is for one store"),
        ([*several, "--replay-from", "earliest"], "--replay-from is for one store"),
        ([*several, "--broker-conf", store / "broker.conf"], "--broker-conf is for one store"),
        ([*several, "--serve", "127.0.0.1:0"], "--serve is for one store"),
        ([*several, "--advertise", "here"], "need --serve HOST:PORT"),
        ([*several, "--delta", outputs, "--delta-store-id", "a"], "--delta-store-id is for one"),
        ([*several, "--kafka", "x:1", "--kafka-store-id", "a"], "--kafka-store-id is for one"),
    ):
        code = 1 if "match" in words else 2
        assert_one_line(call("run", *arguments, "--once"), code, words)
    for arguments, words in (
        ([], "give either STORE or --stores GLOB"),
        ([*several, "--topic", "T"], "--topic is for one store"),
    ):
        assert_one_line(call("status", *arguments), 2, words)
        assert_one_line(call("rebuild", *arguments), 2, words)
    assert not outputs.exists()


def test_counts_stand_below_their_headings() -> None:
    """Messages that were there already are no gaps."""
    summary = {
        "store": "a", "messages": 1234, "duplicates": 5, "gaps": 6, "quarantined_bytes": 7,
        "end_offset": 89, "error": None,
    }  # fmt: skip
    supervised = SimpleNamespace(stores=[SimpleNamespace(summary=lambda: summary)])
    (result,) = severalstores.results(supervised)  # type: ignore[arg-type]
    (table,) = result.parts
    assert isinstance(table, Table)
    (row,) = table.rows
    assert dict(zip(table.columns, row, strict=True)) == {
        "store": "a", "messages": "1,234", "there already": "5", "gaps": "6",
        "quarantined": "7 bytes", "watermark": "89",
    }  # fmt: skip
