"""Child processes: ended by their own id in every case, and watched while they run."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import psutil

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_SECONDS = 0.2
STOP_SECONDS = 60.0
ERROR_TAIL_LINES = 15


class BenchError(RuntimeError):
    """A measured process failed, or gave a result that must not be timed; the text ends with its
    last output."""


def python_command(*arguments: str) -> list[str]:
    """Return the command of a child that runs this interpreter."""
    return [sys.executable, *arguments]


def environment() -> dict[str, str]:
    """Return an environment in which a child, and Spark's workers in it, import this tree from any
    directory."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "LC_ALL": "C.UTF-8",
    }


def tree(root: psutil.Process) -> list[psutil.Process]:
    """Return a process and all its descendants; nothing once it has ended."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@dataclass(frozen=True, slots=True)
class Child:
    """A running child process, and the file that gets its stderr."""

    process: subprocess.Popen[str]
    errors: IO[str]
    """Its stderr, an unnamed file."""

    def last_words(self) -> str:
        """Return the end of its stderr."""
        self.errors.seek(0)
        return "\n".join(self.errors.read().splitlines()[-ERROR_TAIL_LINES:])


@contextmanager
def child(command: Sequence[str], *, silent: bool = False) -> Iterator[Child]:
    """Run a process in the block; afterwards it and all its descendants are gone.

    With ``silent`` its stdout is dropped; a pipe that nobody reads would stop it. It is asked to
    stop, by the end of its stdin and SIGTERM, and has a minute to do so. A session of its own keeps
    Ctrl-C from it, so that it is ended once and in order.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if silent else subprocess.PIPE, stderr=errors,
            text=True, env=environment(), cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        try:
            yield Child(process, errors)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    members = tree(psutil.Process(process.pid)) if process.poll() is None else []
    with contextlib.suppress(OSError):
        cast(IO[str], process.stdin).close()
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            if member.is_running():
                member.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


class LineProcess:
    """A resident child that answers each line with a line of JSON."""

    def __init__(self, running: Child, name: str) -> None:
        self.process = running.process
        self._child = running
        self._name = name
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError, OSError):  # closed with the child
            for line in cast(IO[str], self.process.stdout):
                self._lines.put(line)
        self._lines.put(None)

    def send(self, line: str) -> None:
        """Write a line; ``answer`` waits for the reply."""
        stdin = cast(IO[str], self.process.stdin)
        try:
            stdin.write(f"{line}\n")
            stdin.flush()
        except OSError:
            raise self._error("ended") from None

    def answer(self, timeout: float) -> dict[str, Any]:
        """Return the next line. Raises BenchError where none comes in ``timeout`` seconds."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise self._error(f"gave no answer in {timeout:.0f} s") from None
        if line is None:
            self.process.wait()
            raise self._error(f"ended with exit {self.process.returncode}")
        try:
            return cast(dict[str, Any], json.loads(line))
        except ValueError:
            raise self._error(f"said {line!r}") from None

    def answered(self) -> bool:
        """Return whether ``answer`` would return at once."""
        return not self._lines.empty()

    def ask(self, line: str, timeout: float) -> dict[str, Any]:
        """Send a line and return the answer. Raises BenchError where none comes in ``timeout``
        seconds."""
        self.send(line)
        return self.answer(timeout)

    def _error(self, problem: str) -> BenchError:
        return BenchError(f"{self._name} {problem}\n{self._child.last_words()}".rstrip())


@contextmanager
def line_process(command: Sequence[str], name: str) -> Iterator[LineProcess]:
    """Run a resident child in the block; ``name`` stands for it in errors."""
    with child(command) as running:
        yield LineProcess(running, name)


def run_to_exit(command: Sequence[str], name: str, timeout: float) -> tuple[float, dict[str, Any]]:
    """Return (seconds from exec to exit, the JSON of its last line). Raises BenchError for a
    failure."""
    began = time.monotonic()
    with child(command) as running:
        process = running.process
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{name} did not end in {timeout:.0f} s") from None
        seconds = time.monotonic() - began
        if process.returncode or not output.strip():
            words = running.last_words()
            raise BenchError(f"{name} ended with exit {process.returncode}\n{words}")
    return seconds, json.loads(output.splitlines()[-1])


class PeakUse:
    """Peak use of a process and all its descendants, sampled while in a ``with`` block."""

    def __init__(self, pid: int) -> None:
        self.memory_bytes = 0
        """Proportional set size in bytes, without the page cache."""
        self.open_files = 0
        self._root = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakUse:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            memory = files = 0
            for process in tree(self._root):
                with contextlib.suppress(psutil.Error):
                    memory += process.memory_full_info().pss
                    files += process.num_fds()
            self.memory_bytes = max(self.memory_bytes, memory)
            self.open_files = max(self.open_files, files)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and all its descendants, ended ones included."""
    total = 0.0
    for process in tree(psutil.Process(pid)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
