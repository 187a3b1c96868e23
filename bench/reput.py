"""This project's side: the dispatcher and its kernels, in processes as they run in production."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import logs
from bench.logs import Log
from bench.processes import (
    BenchError,
    LineProcess,
    PeakUse,
    child,
    line_process,
    python_command,
    run_to_exit,
)

READY_SECONDS = 180.0
SLOWEST_RATE = 20_000
"""Messages/s; a slower system counts as halted."""


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Session:
    """A resident process with an open Spark session."""

    def __init__(self, process: LineProcess, outputs: Path) -> None:
        self._process = process
        self._outputs = outputs
        self.pid = process.process.pid
        self.last_output = outputs
        """The output of the last pass."""

    def catch_up(self, log: Log, patience: float = 0.0, *, index: bool = False) -> dict[str, Any]:
        """Make one pass over the log into a fresh output; return the answer of ``bench.worker``.

        ``patience`` is the number of seconds that it may take beyond those that the number of
        messages allows; with ``index`` it builds the index of keys beside the consume queue, as a
        store does by default. Raises BenchError where a message has no entry. The output stays,
        because ext4 takes half a millisecond for a new inode after thousands were just freed.
        """
        output = self.last_output = Path(tempfile.mkdtemp(prefix="session-", dir=self._outputs))
        os.sync()  # writes that earlier passes left pending must not count in this one
        request = json.dumps({"store": str(log.store), "output": str(output), "index": index})
        answer = self._process.ask(request, _limit(log) + patience)
        logs.check_queues(output, log)
        if index:
            logs.check_index(output, log)
        return _checked(answer, log)

    def peaks(self) -> PeakUse:
        """Return a sampler of the session's processes, for a ``with`` block."""
        return PeakUse(self.pid)


@contextmanager
def open_session(outputs: Path, cores: int | None = None) -> Iterator[Session]:
    """Start a session, on so many of the cores or on all; on entry it is up, but nothing has run in
    it."""
    with ExitStack() as resources:
        with _only(cores):
            process = resources.enter_context(
                line_process(python_command("-m", "bench.worker"), "the reput session")
            )
        process.answer(READY_SECONDS)
        yield Session(process, outputs)


@contextmanager
def _only(cores: int | None) -> Iterator[None]:
    """Use so many of the cores; a process that is started meanwhile keeps to them."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(own)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def run_command(store: Path, output: Path, *options: str) -> list[str]:
    """Return the command of this tree's ``reput run``."""
    return _run(str(store), "--output", str(output), *options)


def run_several_command(stores: str, outputs: Path) -> list[str]:
    """Return the command that follows all stores that match ``stores`` in one process."""
    return _run("--stores", stores, "--outputs", str(outputs))


def _run(*arguments: str) -> list[str]:
    return python_command("-m", "reput", "run", *arguments, "--no-index", "--json")


def whole_process(log: Log, output: Path) -> float:
    """Return the seconds of ``reput run --once`` from exec to exit, into a fresh output."""
    os.sync()
    try:
        return build(log, output)
    finally:
        shutil.rmtree(output, ignore_errors=True)


def build(log: Log, output: Path) -> float:
    """Dispatch the whole log into ``output``, where the queues stay; return the seconds."""
    command = run_command(log.store, output, "--once")
    seconds, answer = run_to_exit(command, "reput run", _limit(log))
    _checked(answer, log)
    logs.check_queues(output, log)
    return seconds


def peak_memory(log: Log, output: Path) -> int:
    """Return the peak memory (PSS), in bytes, of all processes of a ``reput run --once``."""
    try:
        with child(run_command(log.store, output, "--once")) as running:
            with PeakUse(running.process.pid) as peak:
                printed, _ = running.process.communicate(timeout=_limit(log))
            if running.process.returncode:
                raise BenchError(f"reput run failed\n{running.last_words()}")
    finally:
        shutil.rmtree(output, ignore_errors=True)
    _checked(json.loads(printed.splitlines()[-1]), log)
    return peak.memory_bytes


class Kernels:
    """A scanning process for each core, which has compiled its kernels and waits."""

    def __init__(self, processes: list[LineProcess], log: Log) -> None:
        self._processes = processes
        self._log = log

    def scan(self) -> float:
        """Return the seconds until the slowest process has scanned its part of the log."""
        return self._pass("scan")

    def hop(self) -> float:
        """The same for ``hop_pass`` of ``bench.kernel_worker``."""
        return self._pass("hop")

    def _pass(self, name: str) -> float:
        began = time.monotonic()
        for process in self._processes:
            process.send(name)
        answers = [process.answer(_limit(self._log)) for process in self._processes]
        seconds = time.monotonic() - began
        message_count = sum(answer["messages"] for answer in answers)
        if message_count != self._log.message_count:
            raise BenchError(
                f"the kernels found {message_count:,} of {self._log.message_count:,} messages"
            )
        return seconds


@contextmanager
def open_kernels(log: Log) -> Iterator[Kernels]:
    """Start the processes on equal parts of the log."""
    with ExitStack() as resources:
        processes = []
        for start, end in log.parts(core_count()):
            command = python_command(
                "-m", "bench.kernel_worker", str(log.store), str(start), str(end)
            )
            processes.append(resources.enter_context(line_process(command, "the kernel process")))
        for process in processes:
            process.answer(READY_SECONDS)
        yield Kernels(processes, log)


def _checked(answer: dict[str, Any], log: Log) -> dict[str, Any]:
    """Check that a pass is complete: otherwise it is an error, never a time."""
    if (answer["messages"], answer["end_offset"]) != (log.message_count, log.end_offset):
        raise BenchError(
            f"reput dispatched {answer['messages']:,} of {log.message_count:,} messages, "
            f"up to {answer['end_offset']:,} of {log.end_offset:,}"
        )
    return answer


def _limit(log: Log) -> float:
    return READY_SECONDS + log.message_count / SLOWEST_RATE
