"""Counts the syncs of a process and its descendants, and the bytes that they write.

``perf`` counts the system calls in the kernel, which slows nothing down: a tracer that stops the
process at each call would change what is measured beside it. The bytes are those that the kernel
charges to the processes: whole pages, each once between two writes of it to the disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from bench.processes import STOP_SECONDS, Child, child, tree

SYNC_CALLS = ("fsync", "fdatasync", "msync", "sync_file_range", "syncfs", "sync")
LOOK_SECONDS = 0.05


@dataclass(slots=True)
class DiskUse:
    """Use of the disk during a block, known at its end."""

    seconds: float = 0.0
    syncs: int | None = None
    """Calls of SYNC_CALLS; None where they could not be counted."""
    written_bytes: int = 0
    problem: str = ""
    """Reason why syncs were not counted."""


@contextmanager
def disk_use(pid: int) -> Iterator[DiskUse]:
    """Observe a process and all its descendants in the block."""
    use = DiskUse()
    with _counting(pid, use):
        before, began = _written(pid), time.monotonic()
        yield use
        use.seconds = time.monotonic() - began
        after = _written(pid)
    use.written_bytes = sum(after[key] - before.get(key, 0) for key in after)


def _written(pid: int) -> dict[int, int]:
    """Return the bytes that each of the processes has written since it started."""
    written = {}
    for process in tree(psutil.Process(pid)):
        with contextlib.suppress(psutil.Error):
            written[process.pid] = process.io_counters().write_bytes
    return written


@contextmanager
def _counting(pid: int, use: DiskUse) -> Iterator[None]:
    """Set the number of syncs in the block, or the problem."""
    if shutil.which("perf") is None:
        use.problem = "syncs were not counted: perf is not installed"
        yield
        return
    events = ",".join(f"syscalls:sys_enter_{name}" for name in SYNC_CALLS)
    pids = ",".join(str(process.pid) for process in tree(psutil.Process(pid)))
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as directory:
        orders, answers = (f"{directory}/{name}" for name in ("orders", "answers"))
        command = ["perf", "stat", "-x,", "-e", events, "-p", pids, "--delay", "-1"]
        command += ["--control", f"fifo:{orders},{answers}"]
        os.mkfifo(orders)
        os.mkfifo(answers)
        with child(command, silent=True) as perf:
            _enable(perf, orders, answers)
            yield
            perf.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                perf.process.wait(STOP_SECONDS)
            use.syncs = _count(perf)
            if use.syncs is None:
                use.problem = f"syncs were not counted: {perf.last_words()}"


def _enable(perf: Child, orders: str, answers: str) -> None:
    """Return once perf counts, or has ended because it may not."""
    with open(orders, "r+b", 0) as order, open(answers, "r+b", 0) as answer:
        order.write(b"enable\n")
        while perf.process.poll() is None:
            if select.select([answer], [], [], LOOK_SECONDS)[0]:
                break


def _count(perf: Child) -> int | None:
    """Return the sum of the counts that perf wrote; None where one is missing."""
    perf.errors.seek(0)
    found = re.findall(r"^([0-9]+|<not counted>),[^,]*,syscalls:", perf.errors.read(), re.MULTILINE)
    if len(found) != len(SYNC_CALLS):
        return None
    # an event is not counted in threads that never ran
    return sum(int(count) for count in found if count.isdigit())
