"""How fast a backlog is dispatched: ``python -m bench.catch_up [--gib 8] [--size 300]``.

Over one log, read once beforehand so that the page cache is warm: the whole process (exec to exit),
then passes in one Spark session, of which all but the first are warm. Each pass goes into a fresh
output and ends with a durable watermark. Memory is the sum over all processes of their proportional
set size, sampled; the page cache is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from store.appender import Appender
from store.workload import Workload
from streaming.config import DispatcherConfig
from streaming.dispatcher import run_dispatcher
from streaming.session import session

DATA = Path(__file__).parent / "data"
SAMPLE_SECONDS = 0.2
BATCH = 10_000


class PeakMemory:
    """Samples the memory of a process and everything below it while in a ``with`` block."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._root = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            total = 0
            try:
                tree = [self._root, *self._root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for process in tree:
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak_bytes = max(self.peak_bytes, total)


def make_log(store: Path, gib: float, size: int) -> int:
    """Write the log; the number of messages in it."""
    workload, done = Workload(8, 4, size, 1), 0
    with Appender(store) as appender:
        while appender.end_offset < gib * (1 << 30):
            appender.append_batch(workload.batch(done, BATCH, time.time_ns() // 1_000_000))
            done += BATCH
    return done


def warm_page_cache(store: Path) -> None:
    """Read the whole log once."""
    buffer = bytearray(1 << 20)
    for path in sorted((store / "commitlog").iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def whole_process(store: Path, output: Path) -> dict[str, float]:
    """``reput run --once`` from exec to exit."""
    command = [sys.executable, "-m", "reput", "run", str(store), "--output", str(output)]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, "--once", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with process, PeakMemory(process.pid) as memory:
        told, _ = process.communicate()
    seconds = time.monotonic() - began
    summary: dict[str, Any] = json.loads(told.splitlines()[-1])
    return _figures(summary["messages"], summary["end_offset"], seconds, memory.peak_bytes)


def passes(store: Path, outputs: list[Path]) -> list[dict[str, float]]:
    """One pass for each output, all in one session; from query start to durable watermark."""
    figures = []
    with session({}), PeakMemory(os.getpid()) as memory:
        for output in outputs:
            began = time.monotonic()
            config = DispatcherConfig(store, output, once=True)
            progress = run_dispatcher(config, threading.Event())
            seconds = time.monotonic() - began
            figures.append(
                _figures(progress.counts.messages, progress.end_offset, seconds, memory.peak_bytes)
            )
    return figures


def _figures(messages: int, size: int, seconds: float, memory: int) -> dict[str, float]:
    return {
        "messages": messages,
        "seconds": round(seconds, 2),
        "messages_per_second": round(messages / seconds),
        "gb_per_second": round(size / seconds / 1e9, 3),
        "peak_memory_mib": round(memory / (1 << 20)),
    }


def main() -> None:
    """Generate, measure, print, remove."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=8.0, help="size of the log")
    parser.add_argument("--size", type=int, default=300, help="bytes of a body")
    chosen = parser.parse_args()
    shutil.rmtree(DATA, ignore_errors=True)
    store = DATA / "store"
    try:
        messages = make_log(store, chosen.gib, chosen.size)
        print(f"log: {messages:,} messages, {chosen.gib} GiB, bodies of {chosen.size} bytes")
        warm_page_cache(store)
        results = {"whole process": whole_process(store, DATA / "whole")}
        first, second, third = passes(store, [DATA / name for name in ("one", "two", "three")])
        results |= {"first pass": first, "second pass": second, "third pass": third}
        for name, figures in results.items():
            print(f"{name:14} {json.dumps(figures)}")
        about = {
            "date": datetime.now(UTC).date().isoformat(),
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / (1 << 30)),
            "python": platform.python_version(),
        }
        print(json.dumps(about))
    finally:
        shutil.rmtree(DATA, ignore_errors=True)


if __name__ == "__main__":
    main()
