"""The metrics of a run: unknown values are absent, known ones equal the run's own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints.followers import FollowerState, write_follower_state
from checkpoints.ownership import Ownership
from checkpoints.watermark import WatermarkFile, new_store_id
from sinks.delta import DeltaTarget
from store.config import read_store_settings
from store.runs.dispatch import DispatchCounts
from store.state.ledger import Ledger, LedgerEntry
from store.state.output import fingerprint
from store.state.watermark import Watermark
from streaming.config import DispatcherConfig
from streaming.measures import Measures
from streaming.progress import Progress
from tests.support.cli import REPUT, ROOT, Call, json_object, kill_tree, reput_json
from tests.support.golden import log_records, unpack_golden
from upkeep.metrics import MetricsServer, RunCollector
from upkeep.series import COUNTER, PREFIX, SERIES

Scraped = dict[str, float]


class Scene:
    """A store, an output of which the first ``done`` messages are dispatched, and a collector."""

    def __init__(self, directory: Path) -> None:
        self.store = unpack_golden("plain", directory)
        self.output = directory / "output"
        self.settings = read_store_settings(self.store)
        self.stored = log_records(self.store)
        self.measures = Measures()
        self.target = DeltaTarget(str(directory / "table"))
        self.config = DispatcherConfig(self.store, self.output, followers=(self.target,))
        collector = RunCollector(self.config, self.settings, self.measures, "1.2")
        self.server = MetricsServer("127.0.0.1", 0, collector)
        self._watermark: WatermarkFile | None = None

    def dispatch(self, done: int) -> None:
        """Move the watermark as a run does that has dispatched this many messages."""
        if self._watermark is None:
            self.config.state_directory.mkdir(parents=True, exist_ok=True)
            self._watermark = WatermarkFile(self.config.state_directory)
        last = self.stored[done - 1]
        with_log = self.settings.open_log()
        self._watermark.advance(
            Watermark(
                new_store_id(), last.physical_offset + last.total_size, epoch=3,
                last_record_offset=last.physical_offset,
                last_record_crc=fingerprint(with_log, last.physical_offset),
                last_store_timestamp=last.store_timestamp,
            )
        )  # fmt: skip
        with_log.close()

    def scrape(self) -> Scraped:
        """Return what the server answers, without the process's own series."""
        return scraped(f"http://127.0.0.1:{self.server.port}/metrics")


def scraped(url: str) -> Scraped:
    """Sample -> value; without the label of the store and without the process's own series."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith(PREFIX):
            name, _, value = line.rpartition(" ")
            found[re.sub(r'(,?)store="[^"]*"(,?)', _comma, name).replace("{}", "")] = float(value)
    return found


def _comma(found: re.Match[str]) -> str:
    return "," if found[1] and found[2] else ""


def names(found: Scraped) -> set[str]:
    """The series of samples, by the names of the table."""
    series = {name.partition("{")[0] for name in found}
    return {re.sub(r"_seconds_(sum|count|bucket)$", "_seconds", name) for name in series}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    with made.server:
        yield made


def test_before_a_run_has_positions_nothing_is_said_of_them(scene: Scene) -> None:
    """Nor of an output that is not there: it is named as unreadable, and the log is known."""
    found = scene.scrape()
    assert found['reput_unreadable{reason="output"}'] == 1
    assert found['reput_unreadable{reason="log"}'] == 0
    unknown = (
        "lag",
        "watermark",
        "position",
        "owner",
        "messages",
        "eta",
        "free",
        "ledger",
        "epoch",
    )
    assert not {name for name in names(found) if any(word in name for word in unknown)}
    assert found["reput_log_end_bytes"] > found["reput_log_start_bytes"] == 0


def test_lag_is_that_of_status(scene: Scene, call: Call) -> None:
    """In bytes, messages and seconds, also while a replay goes over what is durable already."""
    count = len(scene.stored)
    for done in (1, count // 2, count):
        scene.dispatch(done)
        scene.measures.progress = Progress(start_offset=0, end_offset=7)
        found = scene.scrape()
        said = json_object(call("status", scene.store, "--output", scene.output, "--json"))
        for name in ("log_end", "watermark", "lag"):
            bytes_said = said[name if name != "lag" else "lag_bytes"]
            assert found[f"reput_{name}_bytes"] == bytes_said
        assert found["reput_lag_messages"] == said["lag_messages"] == count - done
        age = 0.0 if done == count else time.time() - scene.stored[done].store_timestamp / 1000
        assert found["reput_lag_seconds"] <= said["lag_seconds"] <= age + 60
        assert age - 60 <= found["reput_lag_seconds"]
        assert found["reput_position_bytes"] == 0


def test_a_log_that_was_cut_has_no_lag(scene: Scene) -> None:
    """The dispatcher has yet to see the cut: 0 would look healthy."""
    scene.dispatch(len(scene.stored))
    assert scene.scrape()["reput_lag_bytes"] == 0
    segment, last = max((scene.store / "commitlog").iterdir()), scene.stored[-1]
    with segment.open("r+b") as file:
        file.seek(last.physical_offset - int(segment.name))
        file.write(bytes(last.total_size))
    found = scene.scrape()
    assert found["reput_watermark_bytes"] > last.physical_offset
    assert not {name for name in names(found) if "lag" in name}


def test_the_table_is_what_is_emitted(scene: Scene) -> None:
    """Every series of the table, and no other, with the label that it states."""
    scene.config.output.mkdir()
    with Ownership(scene.output):
        scene.dispatch(5)
        scene.config.spark_directory.with_name("spark.replaced-1").mkdir()
        ledger = Ledger(scene.config.state_directory)
        ledger.add(LedgerEntry(3, 10, "bad_magic"))
        ledger.sync()
        state = FollowerState(
            scene.target.name, "table", 4, 2, error="x", failing_since="2026-01-31T12:30:00+00:00"
        )
        write_follower_state(scene.config.state_directory, state)
        write_follower_state(scene.config.state_directory, replace(state, name="gone"))
        measures, progress = scene.measures, Progress(start_offset=10, log_end=20)
        progress.advance(15, DispatchCounts(messages=5, gaps=1))
        measures.progress, measures.queries = progress, 1
        measures.stage("sync").add(2.5)
        measures.note_durable(int(time.time() * 1000) - 1500)
        found = scene.scrape()
        owned = found["reput_owner"]
        owner = scene.config.state_directory / "owner.json"
        owner.write_text(json.dumps({**json.loads(owner.read_text()), "pid": os.getpid() + 1}))
        assert (owned, scene.scrape()["reput_owner"]) == (1, 0)
    assert names(found) == {PREFIX + series.name for series in SERIES}
    for series in SERIES:
        samples = {name for name in found if name.startswith(PREFIX + series.name)}
        labels = {label for name in samples for label in re.findall(r'(\w+)="', name)} - {"le"}
        assert labels == ({series.label} if series.label else set()), series
        assert (series.kind == COUNTER) == series.name.endswith("_total")
    for name, value in (
        ('build_info{version="1.2"}', 1), ("epoch", 3), ("queries_total", 1), ("batches_total", 1),
        ("messages_total", 5), ("dispatched_bytes_total", 5), ("checkpoints_replaced", 1),
        ('ledger_bytes{reason="bad_magic"}', 7), ('ledger_ranges{reason="bad_magic"}', 1),
        ('stage_seconds_sum{stage="sync"}', 2.5), ('stage_seconds_count{stage="sync"}', 1),
        ("append_to_durable_seconds_count", 1), ('append_to_durable_seconds_bucket{le="1.0"}', 0),
        ('append_to_durable_seconds_bucket{le="60.0"}', 1), ("waiting_for_space", 0),
        ('follower_failing{follower="delta"}', 1), ('follower_rows_total{follower="delta"}', 2),
        ('follower_failing_since_timestamp_seconds{follower="delta"}', 1769862600),
    ):  # fmt: skip
        assert found[PREFIX + name] == value, name
    assert 'reput_follower_failing{follower="gone"}' not in found


def test_ranges_that_follow_are_added(scene: Scene) -> None:
    """The ledger is read on from where the last scrape ended; another one in its place anew."""
    scene.dispatch(1)
    ledger = Ledger(scene.config.state_directory)
    for number in range(3):
        ledger.add(LedgerEntry(number * 10, number * 10 + 5, "bad_magic"))
        ledger.sync()
        assert scene.scrape()['reput_ledger_bytes{reason="bad_magic"}'] == 5 * (number + 1)
    ledger.truncate(10)
    for start in (50, 60, 70):
        ledger.add(LedgerEntry(start, start + 7, "bad_magic"))
    ledger.sync()
    assert scene.scrape()['reput_ledger_bytes{reason="bad_magic"}'] == 5 + 3 * 7


def test_a_server_that_is_left_is_gone(tmp_path: Path) -> None:
    """Its port can be bound by another listener, and none of its threads is left."""
    before, server = set(threading.enumerate()), Scene(tmp_path).server
    with server:
        scraped(f"http://127.0.0.1:{server.port}/metrics")
        assert set(threading.enumerate()) > before
    assert not [each for each in threading.enumerate() if each not in before]
    socket.create_server(("127.0.0.1", server.port)).close()


def test_a_port_in_use_is_a_usage_error_and_frees_the_other(scene: Scene, call: Call) -> None:
    """Before Java starts; the port of ``--serve``, which was bound first, can be bound again."""
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        free = other.getsockname()[1]
        other.close()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = call(
            "run", scene.store, "--output", scene.output, "--serve", f"127.0.0.1:{free}",
            "--metrics-port", address,
        )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert f"--metrics-port cannot listen at {address}" in done.stderr
    socket.create_server(("127.0.0.1", free)).close()
    assert not scene.output.exists()


def test_without_the_package_it_is_named(
    scene: Scene, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    done = call("run", scene.store, "--output", scene.output, "--metrics-port", 0)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "pip install 'reput[metrics]'" in done.stderr


@contextmanager
def running(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A run of the command: the process, the address of its metrics and the lines that it says, of
    which every batch is one."""
    command = [*REPUT, "run", *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"serving metrics at (http\S+)", line):
                # a pipe that nobody reads would stop the run
                threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True).start()
                yield process, found[1], lines
                break
        else:
            raise AssertionError("".join(lines))
    finally:
        kill_tree(process.pid)


def test_a_run_is_scraped_until_it_ends(tmp_path: Path) -> None:
    """By the command: it says which port it took, on 127.0.0.1 alone; its values are those of
    status; they stop with it."""
    store, output = tmp_path / "store", tmp_path / "output"
    reput_json("produce", store, "--count", 5000, "--topics", 3)
    options = (store, "--output", output)
    with running(*options, "--metrics-port", 0) as (process, url, lines):
        assert not any("warning" in line for line in lines)
        found = scraped(url)
        # Spark's own durations of the batch follow its commit
        while 'reput_stage_seconds_count{stage="spark_add_batch"}' not in found:
            assert process.poll() is None
            found = scraped(url)
        said = reput_json("status", *options)
        found = scraped(url)
        assert (found["reput_messages_total"], found["reput_owner"]) == (5000, 1)
        for name in ("log_end", "watermark"):
            assert found[f"reput_{name}_bytes"] == said[name] > 0
        for name in ("bytes", "messages", "seconds"):
            assert found[f"reput_lag_{name}"] == said[f"lag_{name}"] == 0
        assert found["reput_append_to_durable_seconds_count"] == found["reput_batches_total"]
        for stage in ("collect", "commit", "write", "sync", "ledger", "watermark"):
            assert found[f'reput_stage_seconds_count{{stage="{stage}"}}'] >= 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        with pytest.raises(OSError, match="refused"):
            scraped(url)


def test_an_open_address_is_warned_of(tmp_path: Path) -> None:
    reput_json("produce", tmp_path / "store", "--count", 1)
    options = (tmp_path / "store", "--output", tmp_path / "output", "--metrics-port", "0.0.0.0:0")
    with running(*options) as (_, _, lines):
        assert any("whoever reaches 0.0.0.0 can read the metrics" in line for line in lines)
