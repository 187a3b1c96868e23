"""Following a live log, and idling: ``reput run`` as it is deployed."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import measures, rocketmq
from bench.context import Context
from bench.latency import Latencies, evaluate
from bench.measures import Figures, Row
from bench.processes import (
    BenchError,
    Child,
    LineProcess,
    child,
    cpu_seconds,
    line_process,
    python_command,
)
from bench.reput import READY_SECONDS, run_command
from reput.store.files import STATE_DIRECTORY, WATERMARK_FILE
from reput.store.state import watermark

POLL_SECONDS = 0.001
LOOKS_PER_CHECK = 1_000
BODY_SIZE = 300
DRAIN_SECONDS = 60.0
WARM_UP_SECONDS = 10.0
WARM_UP_SHARE_MAX = 0.5
IDLE_SETTLE_SHARE = 0.25
PEER_SHARE = 0.25
"""RocketMQ's share of our time: its latency does not change after its first seconds."""
RATE_SHARE = 0.99
"""Share of its rate that the producer must reach for the run to count."""
IDLE_CPU_GOAL = 0.03


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for the time from the append of a message to its durable entry, in ms."""

    p50_ms: float
    p99_ms: float
    bounded: bool = False

    def __str__(self) -> str:
        words = f"p50 <= {self.p50_ms:g} ms, p99 <= {self.p99_ms:g} ms"
        return words + (", lag bounded" if self.bounded else "")


BESIDE_ROCKETMQ = "latency-1000"
LATENCY_ROWS: dict[str, tuple[int, Goal, tuple[str, ...]]] = {
    BESIDE_ROCKETMQ: (1_000, Goal(150, 400), ()),
    "latency-1000-asked": (1_000, Goal(80, 400), ("--latency", "80ms")),
    "latency-100000": (100_000, Goal(250, 700, bounded=True), ()),
}
"""Messages/s, the goal, and the options of ``reput run`` that ask for it."""


class Follower:
    """A running ``reput run``, observed from outside by its watermark file."""

    def __init__(self, running: Child, output: Path) -> None:
        self.pid = running.process.pid
        self.output = output
        self._child = running
        self._state = output / STATE_DIRECTORY
        self._fd = -1
        self._slots = b""
        self._seen = -1

    def poll(self) -> int:
        """Return the watermark's physical offset; -1 where there is none yet.

        A poll costs one read of an open file, and parses it only after a change. A watermark is
        written after the sync of the entries below it, so everything before an observed watermark
        is durable.
        """
        if self._fd < 0:
            try:
                self._fd = os.open(self._state / WATERMARK_FILE, os.O_RDONLY)
            except FileNotFoundError:
                self.check()
                return -1
        slots = os.pread(self._fd, 2 * watermark.SLOT_SIZE, 0)
        if slots != self._slots:
            stored_watermark = watermark.read_watermark(self._state)
            if stored_watermark is not None:
                self._slots, self._seen = slots, max(self._seen, stored_watermark.end_offset)
        return self._seen

    def wait_for(self, end_offset: int, seconds: float) -> None:
        """Return once the watermark is at ``end_offset``. Raises BenchError where it takes too
        long."""
        deadline = time.monotonic() + seconds
        while self.poll() < end_offset:
            self.check()
            if time.monotonic() > deadline:
                raise BenchError(f"the watermark is {self._seen}, not {end_offset}")
            time.sleep(0.05)

    def check(self) -> None:
        """Raise BenchError if the process has ended."""
        code = self._child.process.poll()
        if code is not None:
            raise BenchError(f"reput run ended with {code}\n{self._child.last_words()}")

    def state_size(self) -> tuple[int, int]:
        """Return (files, bytes) of the state directory, Spark's checkpoint included."""
        sizes = []
        for path in self._state.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        return len(sizes), sum(sizes)

    def close(self) -> None:
        """Close the watermark's file."""
        if self._fd >= 0:
            os.close(self._fd)


@contextmanager
def following(store: Path, output: Path, *options: str) -> Iterator[Follower]:
    """Start ``reput run``, and stop it at the end of the block."""
    with child(run_command(store, output, *options), silent=True) as running:
        follower = Follower(running, output)
        try:
            yield follower
        finally:
            follower.close()


@contextmanager
def _live(
    context: Context, rate: int, *options: str
) -> Iterator[tuple[LineProcess, Follower, Path]]:
    """Start a producer that waits, and a dispatcher that has caught up with the initial log."""
    with context.directory(f"live-{rate}") as directory:
        store, trace = directory / "store", directory / "trace.npy"
        command = python_command(
            "-m", "bench.producer", str(store), str(trace), str(rate), str(BODY_SIZE)
        )
        with line_process(command, "the producer") as producer:
            end_offset = producer.answer(READY_SECONDS)["end_offset"]
            with following(store, directory / "output", *options) as follower:
                follower.wait_for(end_offset, READY_SECONDS)
                yield producer, follower, trace


def measure_latency(context: Context) -> Iterator[Row]:
    """Append at a steady rate for a while, and watch the watermark."""
    for name in LATENCY_ROWS:
        if name in context.row_names:
            yield _measure_latency(context, name)


def _measure_latency(context: Context, name: str) -> Row:
    """Follow a live log in one piece, or in turns with RocketMQ on a log of its own; both run all
    the time."""
    rate, _, options = LATENCY_ROWS[name]
    context.say(f"{name}: a live log for {context.live_seconds} s")
    runs: list[Run] = []
    theirs: list[NDArray[np.float64]] = []
    with ExitStack() as resources:
        producer, follower, trace = resources.enter_context(_live(context, rate, *options))
        if name != BESIDE_ROCKETMQ:
            runs.append(_follow(producer, follower, trace, context.live_seconds))
        else:
            peer = resources.enter_context(rocketmq.live(trace.parent / "rocketmq"))
            for number in range(1, context.rounds + 1):
                seconds = context.live_seconds / context.rounds
                runs.append(_follow(producer, follower, trace, seconds))
                theirs.append(rocketmq.latencies(peer, rate, PEER_SHARE * seconds, BODY_SIZE))
                context.say(
                    f"round {number}/{context.rounds} RocketMQ: p50 {np.median(theirs[-1]):.2f} ms"
                )
    warm_up = min(WARM_UP_SECONDS, WARM_UP_SHARE_MAX * context.live_seconds / len(runs))
    evaluation = evaluate(
        np.concatenate([run.appends for run in runs]),
        np.concatenate([run.watermarks for run in runs]),
        rate, warm_up,
    )  # fmt: skip
    row = _latency_row(context, name, evaluation, runs)
    if theirs:
        _add_rocketmq(row, np.concatenate(theirs)[int(warm_up * rate) :])
    return row


@dataclass(frozen=True, slots=True)
class Run:
    """Observations of a live log while it was written without a pause."""

    appends: NDArray[np.int64]
    watermarks: NDArray[np.int64]
    rate: float
    """Messages/s that were appended."""
    cores: float
    """Use of the dispatcher's processes."""


def _follow(producer: LineProcess, follower: Follower, trace: Path, seconds: float) -> Run:
    producer.send(str(seconds))
    cpu, began = cpu_seconds(follower.pid), time.monotonic()
    watermarks, answer = _watch(follower, producer)
    cores = (cpu_seconds(follower.pid) - cpu) / (time.monotonic() - began)
    return Run(np.load(trace), np.array(watermarks, np.int64), answer["rate"], cores)


def _add_rocketmq(row: Row, milliseconds: NDArray[np.float64]) -> None:
    weights = np.ones(len(milliseconds), np.int64)
    p50, p99 = (measures.percentile(milliseconds, weights, share) for share in (0.50, 0.99))
    row.figures["RocketMQ p50"] = Figures("ms", (p50,))
    row.figures["RocketMQ p99"] = Figures("ms", (p99,))
    row.result += f"; RocketMQ p50 {p50:.1f} ms, p99 {p99:.1f} ms"
    row.notes.append(
        f"RocketMQ: from putMessage's return until the queue has the entry, not durable; "
        f"{len(milliseconds):,} messages in turns with reput"
    )


def _watch(
    follower: Follower, producer: LineProcess
) -> tuple[list[tuple[int, int]], dict[str, Any]]:
    """Return (ns, offset) of every watermark until all produced messages are covered, and the
    producer's answer."""
    seen: list[tuple[int, int]] = []
    answer: dict[str, Any] = {}
    deadline, looks = math.inf, 0
    while not answer or (follower.poll() < answer["end_offset"] and time.monotonic() < deadline):
        at = follower.poll()
        if not seen or at != seen[-1][1]:
            seen.append((time.monotonic_ns(), at))
        if not answer and producer.answered():
            answer = producer.answer(1)
            deadline = time.monotonic() + DRAIN_SECONDS
        looks += 1
        if looks % LOOKS_PER_CHECK == 0:
            follower.check()
        time.sleep(POLL_SECONDS)
    seen.append((time.monotonic_ns(), follower.poll()))
    return seen, answer


def _latency_row(context: Context, name: str, latencies: Latencies, runs: Sequence[Run]) -> Row:
    rate, goal, options = LATENCY_ROWS[name]
    reached = min(run.rate for run in runs)
    cpu = statistics.fmean(run.cores for run in runs)
    paced = reached >= RATE_SHARE * rate
    met = latencies.p50_ms <= goal.p50_ms and latencies.p99_ms <= goal.p99_ms and paced
    if goal.bounded:
        met = met and latencies.lag_bounded
    bounded = "bounded" if latencies.lag_bounded else "GROWING"
    row = Row(
        name=name,
        title=" ".join(
            (f"append to durable entry, {rate:,} messages/s of {BODY_SIZE} bytes", *options)
        ),
        goal=str(goal),
        result=(
            f"p50 {latencies.p50_ms:.0f} ms, p99 {latencies.p99_ms:.0f} ms, lag {bounded}, "
            f"up to {latencies.lag_max_messages:,} messages"
        ),
        met=met,
        figures={
            "p50": Figures("ms", (latencies.p50_ms,)),
            "p99": Figures("ms", (latencies.p99_ms,)),
            "max": Figures("ms", (latencies.max_ms,)),
        },
        details={**asdict(latencies), "rate_reached": reached, "dispatcher_cores": cpu},
        notes=[
            f"{context.live_seconds} s, the first {WARM_UP_SECONDS:g} left out (worst there "
            f"{latencies.warm_up_max_ms:.0f} ms); {reached:,.0f} messages/s appended, "
            f"dispatcher used {cpu:.0%} of a core"
        ],
    )
    if not paced:
        row.notes.append("MISSED: the producer did not reach its rate beside the dispatcher")
    return row


def measure_idle(context: Context) -> Iterator[Row]:
    """Measure ``reput run`` that has caught up with a log to which nothing is appended."""
    context.say(f"idle: {context.idle_seconds} s")
    with _live(context, 1_000) as (_, follower, _trace):
        time.sleep(IDLE_SETTLE_SHARE * context.idle_seconds)
        before, cpu_before = follower.state_size(), cpu_seconds(follower.pid)
        time.sleep(context.idle_seconds)
        cpu = (cpu_seconds(follower.pid) - cpu_before) / context.idle_seconds
        after = follower.state_size()
    files, size = after[0] - before[0], after[1] - before[1]
    yield Row(
        name="idle",
        title="nothing to do",
        goal=f"< {IDLE_CPU_GOAL:.0%} of a core, no checkpoint growth",
        result=f"{cpu:.1%} of a core, {files:+d} files, {size:+d} bytes",
        met=cpu < IDLE_CPU_GOAL and files <= 0 and size <= 0,
        figures={"reput": Figures("% of a core", (100 * cpu,))},
        details={"seconds": context.idle_seconds, "files_grown": files, "bytes_grown": size},
    )
