"""The spark-submit recipe on a real standalone cluster: a master, a worker, its executor."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from streaming.jvm import local_settings
from tests.support.cli import ROOT, kill_tree
from tests.support.golden import difference

RECIPE = ROOT / "deploy" / "spark_submit"
SPARK_HOME = Path(pyspark.__file__).parent
START_TIMEOUT = 90.0
JOB_TIMEOUT = 240.0
END_TIMEOUT = 30.0
# four JVMs of a few seconds each: compiling little is what makes them start fast
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def _environment(directory: Path) -> dict[str, str]:
    """Nothing of this machine's Spark, this pytest's session or this directory counts."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    kept.pop("PYTHONPATH", None)
    configuration = directory / "conf"
    configuration.mkdir(exist_ok=True)
    return kept | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
    }


class Daemon:
    """A Spark daemon of the test's own; its log is read until a wanted line comes."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
            cwd=directory, env=_environment(directory), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first log line that holds the pattern."""
        seen, deadline = [], time.monotonic() + START_TIMEOUT
        while (left := deadline - time.monotonic()) > 0:
            try:
                seen.append(self.lines.get(timeout=left))
            except queue.Empty:
                break
            if found := re.search(pattern, seen[-1]):
                return found
        raise AssertionError(f"no line with {pattern!r} in:\n{''.join(seen)}")

    def end(self) -> None:
        """End this process and what it started."""
        self.process.terminate()
        try:
            self.process.wait(END_TIMEOUT)
        finally:
            kill_tree(self.process.pid)
            self._reader.join(END_TIMEOUT)
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextmanager
def _daemon(directory: Path, *arguments: str) -> Iterator[Daemon]:
    daemon = Daemon(directory, *arguments)
    try:
        yield daemon
    finally:
        daemon.end()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, Daemon]]:
    """A master on a free port and a worker that has registered with it or is about to."""
    address = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    package = "org.apache.spark.deploy"
    with _daemon(tmp_path, f"{package}.master.Master", *address) as master:
        url = master.wait_for(r"spark://127\.0\.0\.1:\d+")[0]
        worker = (*address, "--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work"))
        with _daemon(tmp_path, f"{package}.worker.Worker", *worker, url):
            yield url, master


def _submit(directory: Path, master: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Client deploy mode, with the recipe's own settings but for paths and sizes of this machine.

    Standard error is merged into standard output by spark-submit itself.
    """
    log = directory / "events"
    log.mkdir()
    settings = {
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    command = [
        str(SPARK_HOME / "bin" / "spark-submit"),
        "--properties-file", str(RECIPE / "spark-defaults.conf"),
        "--master", master, "--deploy-mode", "client",
        *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
        str(RECIPE / "reput_job.py"), *map(str, arguments),
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=directory, env=_environment(directory), text=True, stdout=subprocess.PIPE
    ) as process:
        try:
            output, _ = process.communicate(timeout=JOB_TIMEOUT)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output)


def _events(directory: Path) -> list[dict[str, Any]]:
    (path,) = (directory / "events").iterdir()
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_submitted_job_builds_the_golden_queues_on_executors(
    cluster: tuple[str, Daemon], golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Byte for byte; every task ran on the worker's executor, none in the driver."""
    url, master = cluster
    store, output = golden("mixed"), tmp_path / "output"
    done = _submit(tmp_path, url, "run", store, "--output", output, "--once", "--json")
    assert done.returncode == 0, done.stdout
    summary = json.loads(done.stdout.splitlines()[-1])
    assert difference(output / "consumequeue", store / "consumequeue") == []
    assert summary["messages"] > 0
    assert summary["quarantined_bytes"] == 0
    application = master.wait_for(r"Registered app (\S+) with ID (\S+)")
    events = _events(tmp_path)
    (environment,) = (e for e in events if e["Event"] == "SparkListenerEnvironmentUpdate")
    properties = environment["Spark Properties"]
    assert properties["spark.master"] == url
    assert properties["spark.app.id"] == application[2]
    assert properties["spark.app.name"] == application[1] == "reput"
    # what the submitter says stands above the job's own settings
    assert properties["spark.driver.memory"] == "512m"
    tasks = [e for e in events if e["Event"] == "SparkListenerTaskEnd"]
    assert tasks
    assert all(e["Task End Reason"]["Reason"] == "Success" for e in tasks)
    executors = {e["Executor ID"] for e in events if e["Event"] == "SparkListenerExecutorAdded"}
    assert {e["Task Info"]["Executor ID"] for e in tasks} <= executors
    assert "driver" not in executors


def test_recipe_contradicts_no_setting_of_the_job() -> None:
    """Where both state a setting, its words are the job's own; nothing is stated twice."""
    lines = (RECIPE / "spark-defaults.conf").read_text("utf-8").splitlines()
    pairs = [line.split(None, 1) for line in lines if line.strip() and not line.startswith("#")]
    stated = dict(pairs)
    assert len(stated) == len(pairs)
    assert all(key.startswith("spark.") for key in stated)
    ours = local_settings({})
    for key in stated.keys() & ours.keys():
        assert set(stated[key].split()) <= set(ours[key].split()), key
