"""A standalone Spark cluster of a test's own, and the spark-submit recipe on it."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.support.cli import ROOT, kill_tree

RECIPE = ROOT / "deploy" / "spark_submit"
SPARK_HOME = Path(pyspark.__file__).parent
START_TIMEOUT = 90.0
JOB_TIMEOUT = 240.0
END_TIMEOUT = 30.0
# several JVMs of a few seconds each: compiling little is what makes them start fast
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_PACKAGE = "org.apache.spark.deploy"
_PORTS = ("--port", "0", "--webui-port", "0")


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

    def kill(self) -> None:
        """Kill -9 for this process and what it started: a worker's executors and their Python."""
        kill_tree(self.process.pid)
        self._reap()

    def end(self) -> None:
        """End this process and what it started."""
        self.process.terminate()
        try:
            self.process.wait(END_TIMEOUT)
        finally:
            kill_tree(self.process.pid)
            self._reap()

    def _reap(self) -> None:
        self.process.wait(END_TIMEOUT)
        self._reader.join(END_TIMEOUT)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Cluster:
    """A master on a free port, and workers that have registered with it or are about to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.workers: list[Daemon] = []
        self._started = 0
        host = ("--host", "127.0.0.1")
        self.master = Daemon(directory, f"{_PACKAGE}.master.Master", *host, *_PORTS)
        self.url = ""

    def add_worker(self, cores: int) -> Daemon:
        """Start a worker; wait for its registration with ``wait_for`` of the master."""
        work = self._directory / "work"
        size = ("--cores", str(cores), "--memory", "1g", "--work-dir", str(work))
        # Spark starts no second attempt of a task on a host that has the first one
        self._started += 1
        host = ("--host", f"127.0.0.{self._started}")
        worker = Daemon(
            self._directory, f"{_PACKAGE}.worker.Worker", *host, *_PORTS, *size, self.url
        )
        self.workers.append(worker)
        return worker

    def kill_worker(self, number: int) -> None:
        """Kill -9 for one worker with everything that it runs."""
        self.workers.pop(number).kill()


@contextmanager
def standalone_cluster(directory: Path, cores: tuple[int, ...]) -> Iterator[Cluster]:
    """Yield a cluster with a worker for each of ``cores``, its cores; all end with the block."""
    with ExitStack() as held:
        cluster = Cluster(directory)
        held.callback(cluster.master.end)
        cluster.url = cluster.master.wait_for(r"spark://127\.0\.0\.1:\d+")[0]
        held.callback(lambda: [worker.end() for worker in cluster.workers])
        for count in cores:
            cluster.add_worker(count)
        yield cluster


def submission(
    directory: Path, master: str, *arguments: object, settings: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start in client deploy mode, with the recipe's own settings but for paths and sizes of this
    machine.

    Standard error is merged into standard output by spark-submit itself.
    """
    log = directory / "events"
    log.mkdir(exist_ok=True)
    all_settings = {
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
        **(settings or {}),
    }
    command = [
        str(SPARK_HOME / "bin" / "spark-submit"),
        "--properties-file", str(RECIPE / "spark-defaults.conf"),
        "--master", master, "--deploy-mode", "client",
        *(part for key, value in all_settings.items() for part in ("--conf", f"{key}={value}")),
        str(RECIPE / "reput_job.py"), *map(str, arguments),
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=directory, env=_environment(directory), text=True, stdout=subprocess.PIPE
    )


def finished(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for a submission's end."""
    with process:
        try:
            output, _ = process.communicate(timeout=JOB_TIMEOUT)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output)
