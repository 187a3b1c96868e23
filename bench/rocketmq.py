"""RocketMQ's own reput on a log, timed by the Maven project in ``harness/``.

The harness names its settings. The JVM gets the collector and flags of RocketMQ's ``runbroker.sh``,
with a heap that leaves this machine its page cache. Only dispatch is timed: flushing the queues,
which this project does within its time, is reported separately.
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

import numpy as np
from numpy.typing import NDArray

from bench import logs
from bench.logs import Log
from bench.processes import BenchError, LineProcess, line_process, run_to_exit
from reput.store.files import CONSUME_QUEUE_DIRECTORY

VERSION = "5.3.3"
HARNESS = Path(__file__).parent / "harness"
MAIN_CLASS = "reput.bench.Harness"
JVM_OPTIONS = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m")
BUILD_SECONDS = 900.0
CONCURRENT = "enableBuildConsumeQueueConcurrently=true"
"""RocketMQ's setting for a build of queues by several threads."""
START_SECONDS = 60.0
LIVE_LIMIT_SECONDS = 120.0
LIVE_RATE_SHARE = 0.99
SLOWEST_RATE = 50_000
"""Messages/s; RocketMQ does over ten times that, so a slower one counts as halted."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """The outcome of one rebuild of a log's consume queues by RocketMQ."""

    entries: int
    dispatch_seconds: float
    flush_seconds: float

    @property
    def flushed_seconds(self) -> float:
        """Seconds until the queues are on disk too, as this project's are when its time ends."""
        return self.dispatch_seconds + self.flush_seconds


def available() -> bool:
    """Return whether Java and Maven are installed."""
    return all(shutil.which(tool) for tool in ("java", "mvn"))


def build() -> Path:
    """Return the harness's jar, built anew where a source is newer."""
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
        self.pid = process.process.pid

    def rebuild(self) -> Rebuild:
        """Make one pass from the log's start. Raises BenchError for an incomplete one."""
        rebuild = _checked(self._ask("pass"), self._log)
        logs.check_queues(self.view, self._log)
        return rebuild

    def keep_queues(self) -> None:
        """Set the queues of the last pass aside: the next one would remove them first, and ext4
        takes half a millisecond for a new inode after thousands were just freed."""
        kept = Path(tempfile.mkdtemp(prefix="kept-", dir=self.view))
        (self.view / CONSUME_QUEUE_DIRECTORY).rename(kept / CONSUME_QUEUE_DIRECTORY)

    def rebuild_concurrently(self) -> Rebuild:
        """Make one pass, with CONCURRENT among the settings, until entries come no more; it may be
        incomplete."""
        return Rebuild(**self._ask("pass"))

    def _ask(self, line: str | None) -> dict[str, Any]:
        if line is not None:
            self._process.send(line)
        try:
            return self._process.answer(_limit(self._log))
        except BenchError as error:
            raise BenchError(f"{error}\n{_logged_errors(self._home)}".rstrip()) from None


@contextmanager
def warm(log: Log, view: Path, settings: Sequence[str] = ()) -> Iterator[Warm]:
    """Run RocketMQ on a view of the log, loaded and rebuilt once; the log is unchanged afterwards.

    ``settings`` are RocketMQ's, ``key=value``.
    """
    with _home() as home, unchanged(log):
        logs.link_view(log, view)
        command = _command("warm", view, home, log.message_count, *_settings(log, settings))
        try:
            with line_process(command, "RocketMQ") as process:
                resident = Warm(process, log, home, view)
                _checked(resident._ask(None), log)
                yield resident
        finally:
            shutil.rmtree(view, ignore_errors=True)


def cold(log: Log, view: Path, settings: Sequence[str] = ()) -> float:
    """Return the seconds from exec to exit of a JVM that loads the log and dispatches all of it."""
    with _home() as home, unchanged(log):
        logs.link_view(log, view)
        try:
            command = _command("cold", view, home, log.message_count, *_settings(log, settings))
            seconds, answer = run_to_exit(command, "RocketMQ", _limit(log))
            _checked(answer, log)
        finally:
            shutil.rmtree(view, ignore_errors=True)
    return seconds


@contextmanager
def live(store: Path) -> Iterator[LineProcess]:
    """Run RocketMQ on a new store, to which it appends for each line ``RATE SECONDS SIZE``."""
    with _home() as home, line_process(_command("live", store, home, 0), "RocketMQ") as process:
        process.answer(START_SECONDS)
        yield process


def latencies(
    process: LineProcess, rate: int, seconds: float, body_size: int
) -> NDArray[np.float64]:
    """Return the milliseconds from each message's put to its queue entry, in the order of puts.

    Raises BenchError where entries are missing, or the rate was not reached.
    """
    answer = process.ask(f"{rate} {seconds} {body_size}", seconds + LIVE_LIMIT_SECONDS)
    latencies_ms = np.array(answer["latencies_ns"], np.float64) / 1e6
    if latencies_ms.min() < 0 or answer["rate"] < LIVE_RATE_SHARE * rate:
        raise BenchError(
            f"RocketMQ gave {int((latencies_ms < 0).sum()):,} of {len(latencies_ms):,} messages "
            f"no entry, at {answer['rate']:,.0f} messages/s"
        )
    return latencies_ms


def _settings(log: Log, settings: Sequence[str]) -> list[str]:
    return [f"mappedFileSizeCommitLog={log.file_size}", *settings]


def _command(mode: str, store: Path, home: Path, message_count: int, *settings: str) -> list[str]:
    jar = build()
    private = ("user.home", "java.io.tmpdir", "rocketmq.log.root.dir")
    return [
        "java", *JVM_OPTIONS, "-XX:-UsePerfData", *(f"-D{name}={home}" for name in private),
        "-cp", f"{jar}{os.pathsep}{jar.parent}/lib/*", MAIN_CLASS, mode, str(store),
        str(message_count), *settings,
    ]  # fmt: skip


def _checked(answer: dict[str, Any], log: Log) -> Rebuild:
    """Check that a rebuild is complete: otherwise it is an error, never a time."""
    if answer["entries"] != log.message_count:
        raise BenchError(
            f"RocketMQ built {answer['entries']:,} entries of {log.message_count:,} messages"
        )
    return Rebuild(**answer)


def _limit(log: Log) -> float:
    return START_SECONDS + log.message_count / SLOWEST_RATE


@contextmanager
def _home() -> Iterator[Path]:
    """Make a directory for the JVM's files outside the store."""
    with tempfile.TemporaryDirectory(prefix="reput-bench-", ignore_cleanup_errors=True) as home:
        yield Path(home)


@contextmanager
def unchanged(log: Log) -> Iterator[None]:
    """Check that RocketMQ, which works on the very files, does not write to them."""
    before = logs.digest(log)
    yield
    if logs.digest(log) != before:
        raise BenchError("RocketMQ changed the log that it shares with the other measurements")


def _logged_errors(home: Path) -> str:
    """Return three different complaints in RocketMQ's log: it logs and retries where others
    raise."""
    path = home / "rocketmq.log"
    if not path.is_file():
        return ""
    text = path.read_text(errors="replace")
    exceptions = re.findall(r"^\S+(?:Exception|Error): .*$", text, re.MULTILINE)
    complaints = exceptions + re.findall(r"^\S+ ERROR (.*)$", text, re.MULTILINE)
    different = {re.sub(r"[0-9]+", "", line): line for line in complaints}
    return "\n".join(list(different.values())[:3])[:500]
