"""RocketMQ's own reput on a log, timed by the Maven project in ``harness/``.

Its settings are named there. The JVM gets the collector and flags of RocketMQ's ``runbroker.sh``
with a heap that leaves this machine its page cache. What is timed is dispatch alone: flushing the
queues, which this project does within its time, is told apart and left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import logs
from bench.logs import Log
from bench.processes import BenchError, LineProcess, line_process, run_to_exit

VERSION = "5.3.3"
HARNESS = Path(__file__).parent / "harness"
MAIN_CLASS = "reput.bench.Harness"
JVM_OPTIONS = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m")
BUILD_SECONDS = 900.0
START_SECONDS = 60.0
SLOWEST_RATE = 50_000
"""Messages/s; RocketMQ does over ten times that, so what is slower has come to a halt."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """One complete rebuild of a log's consume queues."""

    dispatch_seconds: float
    flush_seconds: float

    @property
    def flushed_seconds(self) -> float:
        """Until its queues are on disk, as this project's are at the end of its time."""
        return self.dispatch_seconds + self.flush_seconds


def available() -> bool:
    """Whether Java and Maven are there."""
    return all(shutil.which(tool) for tool in ("java", "mvn"))


def build() -> Path:
    """The harness's jar, built where a source is newer."""
    jar = HARNESS / "target" / "harness.jar"
    sources = [HARNESS / "pom.xml", *(HARNESS / "src").rglob("*.*")]
    if jar.is_file() and jar.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return jar
    command = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(HARNESS / "pom.xml"), "package"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=BUILD_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"maven failed, exit {done.returncode}\n{done.stdout[-2000:]}")
    return jar


class Warm:
    """A resident RocketMQ store that rebuilds its queues again and again."""

    def __init__(self, process: LineProcess, log: Log, home: Path, view: Path) -> None:
        self._process = process
        self._log = log
        self._home = home
        self.view = view

    def rebuild(self) -> Rebuild:
        """One pass from the log's start. Raises BenchError for an incomplete one."""
        return _checked(self._ask("pass"), self._log)

    def _ask(self, line: str | None) -> dict[str, Any]:
        if line is not None:
            self._process.send(line)
        try:
            return self._process.answer(_limit(self._log))
        except BenchError as error:
            raise BenchError(f"{error}\n{_logged_errors(self._home)}".rstrip()) from None


@contextmanager
def warm(log: Log, view: Path, settings: Sequence[str] = ()) -> Iterator[Warm]:
    """RocketMQ on a view of the log, loaded, its first rebuild done; the log is unchanged after.

    ``settings`` are RocketMQ's, ``key=value``.
    """
    with _home() as home, _unchanged(log):
        logs.link_view(log, view)
        command = _command("warm", log, view, home, settings)
        try:
            with line_process(command, "RocketMQ") as process:
                resident = Warm(process, log, home, view)
                _checked(resident._ask(None), log)
                yield resident
        finally:
            shutil.rmtree(view, ignore_errors=True)


def cold(log: Log, view: Path, settings: Sequence[str] = ()) -> float:
    """Seconds from exec to exit of a JVM that loads the log and dispatches all of it."""
    with _home() as home, _unchanged(log):
        logs.link_view(log, view)
        try:
            command = _command("cold", log, view, home, settings)
            seconds, told = run_to_exit(command, "RocketMQ", _limit(log))
            _checked(told, log)
        finally:
            shutil.rmtree(view, ignore_errors=True)
    return seconds


def _command(mode: str, log: Log, view: Path, home: Path, settings: Sequence[str]) -> list[str]:
    jar = build()
    private = ("user.home", "java.io.tmpdir", "rocketmq.log.root.dir")
    return [
        "java", *JVM_OPTIONS, "-XX:-UsePerfData", *(f"-D{name}={home}" for name in private),
        "-cp", f"{jar}{os.pathsep}{jar.parent}/lib/*", MAIN_CLASS, mode, str(view),
        f"mappedFileSizeCommitLog={log.file_size}", *settings,
    ]  # fmt: skip


def _checked(told: dict[str, Any], log: Log) -> Rebuild:
    """An incomplete rebuild is an error, never a time."""
    if told["entries"] != log.message_count:
        raise BenchError(
            f"RocketMQ built {told['entries']:,} entries of {log.message_count:,} messages"
        )
    return Rebuild(told["dispatch_seconds"], told["flush_seconds"])


def _limit(log: Log) -> float:
    return START_SECONDS + log.message_count / SLOWEST_RATE


@contextmanager
def _home() -> Iterator[Path]:
    """Where the JVM writes what is no store."""
    with tempfile.TemporaryDirectory(prefix="reput-bench-", ignore_cleanup_errors=True) as home:
        yield Path(home)


@contextmanager
def _unchanged(log: Log) -> Iterator[None]:
    """RocketMQ works on the very files: hold it to not writing them."""
    before = logs.digest(log)
    yield
    if logs.digest(log) != before:
        raise BenchError("RocketMQ changed the log that it shares with the other measurements")


def _logged_errors(home: Path) -> str:
    """Three different complaints of RocketMQ's log: it logs and retries what others raise."""
    path = home / "rocketmq.log"
    if not path.is_file():
        return ""
    text = path.read_text(errors="replace")
    exceptions = re.findall(r"^\S+(?:Exception|Error): .*$", text, re.MULTILINE)
    complaints = exceptions + re.findall(r"^\S+ ERROR (.*)$", text, re.MULTILINE)
    different = {re.sub(r"[0-9]+", "", line): line for line in complaints}
    return "\n".join(list(different.values())[:3])[:500]
