"""The metrics of a run: unknown values are absent, known ones equal the run's own."""

from __future__ import annotations

import ctypes
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from reput.checkpoints.followers import FollowerState, write_follower_state
from reput.checkpoints.ownership import Ownership
from reput.checkpoints.watermark import WatermarkFile, new_store_id
from reput.sinks.delta.table import DeltaTarget
from reput.store.config import read_store_settings
from reput.store.queue.consumequeue import UNIT_DTYPE
from reput.store.runs.dispatch import DispatchCounts, Run
from reput.store.state.ledger import Ledger, LedgerEntry
from reput.store.state.output import fingerprint
from reput.store.state.watermark import Watermark
from reput.streaming.config import DispatcherConfig
from reput.streaming.measures import Measures, QueueMeasures
from reput.streaming.progress import Progress
from reput.upkeep.watch import pageserver
from reput.upkeep.watch.metrics import RunsCollector
from reput.upkeep.watch.metricsserver import MetricsServer
from reput.upkeep.watch.series import COUNTER, PREFIX, SERIES
from tests.support.childruns import ChildRun
from tests.support.cli import REPUT, Call, json_object, reput_json
from tests.support.golden import log_records, unpack_golden
from tests.support.prometheus import free_port

Scraped = dict[str, float]
SERVING = re.compile(r"serving metrics at (http\S+)\s")


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
        self.collector = RunsCollector(lambda: [(self.config, self.measures)], "1.2")
        self.server = MetricsServer("127.0.0.1", 0, self.collector)
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
        """Return what a scrape is answered after a look, without the process's own series."""
        self.collector.look()
        return samples(self.server.page())


def scraped(url: str) -> Scraped:
    """Return the samples of a run's answer."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return samples(answer.read())


def samples(page: bytes) -> Scraped:
    """Sample -> value; without the label of the store and without the process's own series."""
    found = {}
    for line in page.decode().splitlines():
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
    yield made
    made.collector.close()


def test_before_a_run_has_positions_nothing_is_said_of_them(scene: Scene) -> None:
    """Nor of an output that the run has yet to make, while the log is known; one that is gone later
    is named as unreadable."""
    found = scene.scrape()
    for part in ("log", "output", "ledger", "followers"):
        assert found[f'reput_unreadable{{reason="{part}"}}'] == 0
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
    scene.measures.progress = Progress()
    assert scene.scrape()['reput_unreadable{reason="output"}'] == 1


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
            scene.target.name, "table", 4, 2, error="x", failing_since="2026-01-31T12:30:00+00:00",
            counts={"bad bodies": 8, "messages left out": 6},
        )  # fmt: skip
        write_follower_state(scene.config.state_directory, state)
        write_follower_state(scene.config.state_directory, replace(state, name="gone"))
        measures, progress = scene.measures, Progress(start_offset=10, log_end=20)
        progress.advance(15, DispatchCounts(messages=5, gaps=1))
        measures.progress, measures.queries = progress, 1
        measures.stage("sync").add(2.5)
        measures.note_durable(int(time.time() * 1000) - 1500)
        measures.queues = QueueMeasures(1)
        measures.queues.note([_run(b"a", 2, 5000), _run(b"b", 9, 1)])
        found = scene.scrape()
        owned = found["reput_owner"]
        owner = scene.config.state_directory / "owner.json"
        owner.write_text(json.dumps({**json.loads(owner.read_text()), "pid": os.getpid() + 1}))
        assert (owned, scene.scrape()["reput_owner"]) == (1, 0)
    assert names(found) == {PREFIX + series.name for series in SERIES}
    for series in SERIES:
        its = {name for name in found if name.startswith(PREFIX + series.name)}
        labels = {label for name in its for label in re.findall(r'(\w+)="', name)} - {"le"}
        assert labels == {*series.labels}, series
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
        ('follower_bad_bodies_total{follower="delta"}', 8),
        ('follower_messages_left_out_total{follower="delta"}', 6),
    ):  # fmt: skip
        assert found[PREFIX + name] == value, name
    assert 'reput_follower_failing{follower="gone"}' not in found


def test_a_follower_that_has_taken_nothing_lags_by_the_whole_log(scene: Scene) -> None:
    scene.dispatch(1)
    state = FollowerState(scene.target.name, "table", 0, 0)
    write_follower_state(scene.config.state_directory, state)
    found = scene.scrape()
    assert found['reput_follower_lag_bytes{follower="delta"}'] == found["reput_log_end_bytes"] > 0


def test_what_is_measured_by_the_logs_end_is_unknown_without_it(scene: Scene) -> None:
    """A former end would look healthy: a follower's lag and a run's progress are absent until the
    log can be read again."""
    scene.dispatch(1)
    scene.measures.progress = Progress(start_offset=0, log_end=20)
    state = FollowerState(scene.target.name, "table", 0, 0)
    write_follower_state(scene.config.state_directory, state)
    measured = {'reput_follower_lag_bytes{follower="delta"}', "reput_recovery_ratio"}
    log, away = scene.store / "commitlog", scene.store / "away"
    for is_there in (True, False, True):
        if is_there == away.exists():
            (away if is_there else log).rename(log if is_there else away)
        # as a run that Spark starts again
        scene.measures.queries += 1
        found = scene.scrape()
        assert found['reput_unreadable{reason="log"}'] == (not is_there)
        assert measured & found.keys() == (measured if is_there else set())


def test_labels_are_few() -> None:
    """Nothing that grows with the log, but for series of single queues, which are asked for."""
    of_queues = {series for series in SERIES if series.name.startswith("queue_")}
    named = {label for series in {*SERIES} - of_queues for label in series.labels}
    assert named == {"version", "stage", "reason", "follower"}
    assert {series.labels for series in of_queues} == {("topic", "queue_id")}


def _run(topic: bytes, messages: int, stored: int) -> Run:
    return Run(topic, 3, 0, 0, None, np.zeros(messages, UNIT_DTYPE), stored)


def test_queues_up_to_the_limit_have_series_and_the_others_are_counted(scene: Scene) -> None:
    """Each once, however often it comes; without being asked, no queue is named. A name with any
    characters is a label."""
    assert not {name for name in scene.scrape() if "queue" in name}
    odd = b'quote" slash\\ line\n'
    queues = scene.measures.queues = QueueMeasures(2)
    for stored, batch in ((5000, (b"a", odd)), (6000, (b"b", b"a", b"c", b"b"))):
        queues.note([_run(topic, 2, stored) for topic in batch])
    shown = r'queue_id="3",topic="quote\" slash\\ line\n"'
    assert {name: value for name, value in scene.scrape().items() if "queue" in name} == {
        'reput_queue_messages_total{queue_id="3",topic="a"}': 4,
        f"reput_queue_messages_total{{{shown}}}": 2,
        'reput_queue_last_message_timestamp_seconds{queue_id="3",topic="a"}': 6,
        f"reput_queue_last_message_timestamp_seconds{{{shown}}}": 5,
        "reput_queues_dropped_total": 2,
    }


def test_a_look_does_not_walk_what_is_dispatched(scene: Scene) -> None:
    """It begins at the watermark: the log's last file may have a gigabyte."""
    scene.dispatch(len(scene.stored) - 1)
    segment, damaged = max((scene.store / "commitlog").iterdir()), scene.stored[-3]
    before = scene.scrape()
    assert damaged.physical_offset > int(segment.name)
    with segment.open("r+b") as file:
        file.seek(damaged.physical_offset - int(segment.name))
        file.write(bytes(damaged.total_size))
    scene.collector.close()
    found = scene.scrape()
    for name in ("log_end_bytes", "lag_bytes", "lag_messages"):
        assert found[PREFIX + name] == before[PREFIX + name]


def test_each_series_has_a_sample_for_every_store_as_they_come_and_go(tmp_path: Path) -> None:
    """A series is described once, as Prometheus wants it; a store that is gone has none left."""
    scenes = [Scene(tmp_path / name) for name in ("a", "b")]
    runs = [(scene.config, scene.measures) for scene in scenes]
    scenes[1].measures.is_failing = True
    collector = RunsCollector(lambda: runs, "1")
    server = MetricsServer("127.0.0.1", 0, collector)
    for stores in (scenes, scenes[:1], scenes):
        runs[:] = [(scene.config, scene.measures) for scene in stores]
        text = server.page().decode()
        assert text.count("# TYPE reput_failing gauge") == 1
        found = re.findall(r'^reput_failing\{store="(.*)"\} (.*)$', text, re.M)
        wanted = [(str(one.store), f"{one.measures.is_failing:.1f}") for one in stores]
        assert found == wanted
    collector.close()


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
    """Its port can be bound by another listener, and neither a thread nor a process is left."""
    before, server = set(threading.enumerate()), Scene(tmp_path).server
    others = psutil.Process().children()
    with server:
        scraped(f"http://127.0.0.1:{server.port}/metrics")
        assert set(threading.enumerate()) > before
        (serving,) = (each for each in psutil.Process().children() if each not in others)
    assert not [each for each in threading.enumerate() if each not in before]
    assert not serving.is_running()
    socket.create_server(("127.0.0.1", server.port)).close()


def test_a_scrape_does_not_wait_for_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for Python's lock nor for a look that hangs: what is known is answered,
    and what is not yet is absent."""
    scene, hangs = Scene(tmp_path), threading.Event()
    monkeypatch.setattr(RunsCollector, "look", lambda _: hangs.wait(60) and None)
    with scene.server:
        url = f"http://127.0.0.1:{scene.server.port}/metrics"
        # a thread of this process could not answer while this one does not let go of the lock
        fetch = f"import urllib.request as r; print(r.urlopen({url!r}, timeout=20).status)"
        held = ctypes.PyDLL(None)
        with subprocess.Popen([sys.executable, "-Ic", fetch], stdout=subprocess.PIPE) as client:
            status = ctypes.c_int()
            held.waitpid(client.pid, ctypes.byref(status), 0)
            assert (client.stdout.read() if client.stdout else b"", status.value) == (b"200\n", 0)
        found = scraped(url)
        assert names(found) >= {"reput_build_info", "reput_queries_total"}
        assert not {name for name in names(found) if "lag" in name or "log" in name}
        with socket.create_connection(("127.0.0.1", scene.server.port)) as silent:
            assert scraped(url) and silent
        hangs.set()


def test_a_run_that_hangs_is_no_longer_answered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert of a run that is down would not fire otherwise; it is answered for again once it
    says something."""
    page = pageserver.Page()
    pages = io.BytesIO((2).to_bytes(8, "big") + b"ab" + (3).to_bytes(8, "big") + b"cde")
    assert page.read_one(pages) and page.read_one(pages) and not page.read_one(pages)
    assert page.fresh() == b"cde"
    monkeypatch.setattr(page, "came", page.came - pageserver.STALE_SECONDS - 1)
    assert page.fresh() is None
    pages = io.BytesIO((1).to_bytes(8, "big") + b"f")
    assert page.read_one(pages)
    assert page.fresh() == b"f"


def test_a_serving_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    """At the same port, while the run goes on."""
    others = psutil.Process().children()
    with Scene(tmp_path).server as server:
        (serving,) = (each for each in psutil.Process().children() if each not in others)
        serving.kill()
        # nobody accepts this connection until another one does
        assert "reput_log_end_bytes" in scraped(f"http://127.0.0.1:{server.port}/metrics")
        assert serving not in psutil.Process().children()


def test_a_port_in_use_ends_the_run_and_frees_the_other(scene: Scene, call: Call) -> None:
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
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert f"--metrics-port cannot listen at {address}" in done.stderr
    socket.create_server(("127.0.0.1", free)).close()
    assert not scene.output.exists()


def test_an_address_that_cannot_be_one(scene: Scene, call: Call) -> None:
    """An empty part of a name is none for IDNA."""
    done = call(
        "run", scene.store, "--output", scene.output, "--once", "--metrics-port", "a..b:9000"
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "--metrics-port cannot listen at a..b:9000" in done.stderr


@contextmanager
def running(
    store: Path,
    *arguments: object,
    reput: Sequence[str] = REPUT,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[ChildRun, str]]:
    """A run of the command, and the address of its metrics."""
    command = [*reput, "run", store, *arguments]
    with ChildRun(store.with_name("run"), command, environment=environment) as run:
        run.wait_until(lambda: SERVING.search(run.stderr))
        yield run, SERVING.findall(run.stderr)[0]


def test_a_run_is_scraped_until_it_ends(tmp_path: Path) -> None:
    """By the command: it says which port it took, on 127.0.0.1 alone; its values are those of
    status; they stop with it. Spark counts every batch, and shows our lag among its own metrics."""
    store, output, ui_port = tmp_path / "store", tmp_path / "output", free_port()
    reput_json("produce", store, "--count", 5000, "--topics", 3)
    options = (store, "--output", output)
    servlet = "spark.metrics.conf.*.sink.prometheusServlet"
    settings = (
        "spark.ui.enabled=true", f"spark.ui.port={ui_port}",
        f"{servlet}.class=org.apache.spark.metrics.sink.PrometheusServlet",
        f"{servlet}.path=/metrics/prometheus",
    )  # fmt: skip
    confs = [word for setting in settings for word in ("--conf", setting)]
    # a backlog, which Spark's tasks collect
    asked = ("--metrics-port", 0, "--metrics-queues", 5, "--max-bytes-per-trigger", "256k")
    with running(*options, *asked, *confs) as (run, url):
        assert "warning" not in run.stderr
        # Spark's own durations of the batch follow its commit
        run.wait_until(lambda: 'reput_stage_seconds_count{stage="spark_add_batch"}' in scraped(url))
        run.wait_until(lambda: _has_caught_up(scraped(url), 5000))
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
        counts = [value for name, value in found.items() if "queue_messages_total" in name]
        assert (len(counts), found["reput_queues_dropped_total"]) == (5, 3 * 4 - 5)
        assert 0 < sum(counts) < 5000
        with urllib.request.urlopen(f"http://127.0.0.1:{ui_port}/metrics/prometheus") as answer:
            gauge = rb"driver_AccumulatorSource_reput_lag_bytes_Value.* 0\n"
            assert re.search(gauge, answer.read())
        assert run.stop(60) == 0
        with pytest.raises(OSError, match="refused"):
            scraped(url)


def _has_caught_up(found: Scraped, messages: int) -> bool:
    return (
        found.get("reput_messages_total") == messages
        and not found["reput_lag_bytes"]
        and found["reput_watermark_bytes"] >= found["reput_log_end_bytes"]
    )


@pytest.mark.usefixtures("spark")
def test_an_open_address_is_warned_of(tmp_path: Path, call: Call) -> None:
    call("produce", tmp_path / "store", "--count", 1)
    options = ("--output", tmp_path / "output", "--once", "--metrics-port", "0.0.0.0:0")
    done = call("run", tmp_path / "store", *options)
    assert "whoever reaches 0.0.0.0 can read the metrics" in done.stderr
