"""Following a live log, and idling: ``reput run`` as it is deployed."""

from __future__ import annotations

import contextlib
import math
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
from reput.store.files import STATE_DIRECTORY
from reput.store.state.visible import EndReader
from reput.store.state.watermark import Watermark, WatermarkReader

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
    """A goal for the time from the append of a message to an entry that may be read, in ms."""

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
    """A running ``reput run``, observed from outside by its files of positions."""

    def __init__(self, running: Child, output: Path) -> None:
        self.pid = running.process.pid
        self.output = output
        self._child = running
        self._state = output / STATE_DIRECTORY
        self._visible, self._durable = EndReader(self._state), WatermarkReader(self._state)

    def visible(self) -> int:
        """Return the physical offset up to which readers read; -1 where there is none yet."""
        return _offset(self._visible.read())

    def durable(self) -> int:
        """Return the watermark, which is written after the sync of the entries below it; -1 where
        there is none yet."""
        return _offset(self._durable.read())

    def wait_for(self, end_offset: int, seconds: float) -> None:
        """Return once the watermark is at ``end_offset``. Raises BenchError where it takes too
        long."""
        deadline = time.monotonic() + seconds
        while (reached := self.durable()) < end_offset:
            self.check()
            if time.monotonic() > deadline:
                raise BenchError(f"the watermark is {reached}, not {end_offset}")
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


def _offset(position: Watermark | None) -> int:
    return -1 if position is None else position.end_offset


@contextmanager
def following(store: Path, output: Path, *options: str) -> Iterator[Follower]:
    """Start ``reput run``, and stop it at the end of the block."""
    with child(run_command(store, output, *options), silent=True) as running:
        yield Follower(running, output)


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
    """Append at a steady rate for a while, and watch both ends."""
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
        np.concatenate([run.visible for run in runs]),
        rate, warm_up,
    )  # fmt: skip
    row = _latency_row(context, name, evaluation, runs)
    _add_durable(row, runs, rate, warm_up)
    if theirs:
        _add_rocketmq(row, np.concatenate(theirs)[int(warm_up * rate) :])
    return row


@dataclass(frozen=True, slots=True)
class Run:
    """Observations of a live log while it was written without a pause."""

    appends: NDArray[np.int64]
    visible: NDArray[np.int64]
    """(ns, offset) of each end that readers saw."""
    durable: NDArray[np.int64]
    """(ns, offset) of each watermark."""
    rate: float
    """Messages/s that were appended."""
    cores: float
    """Use of the dispatcher's processes."""


def _follow(producer: LineProcess, follower: Follower, trace: Path, seconds: float) -> Run:
    producer.send(str(seconds))
    cpu, began = cpu_seconds(follower.pid), time.monotonic()
    visible, durable, answer = _watch(follower, producer)
    cores = (cpu_seconds(follower.pid) - cpu) / (time.monotonic() - began)
    ends = np.array(visible, np.int64), np.array(durable, np.int64)
    return Run(np.load(trace), *ends, answer["rate"], cores)


def _add_durable(row: Row, runs: Sequence[Run], rate: int, warm_up: float) -> None:
    found = evaluate(
        np.concatenate([run.appends for run in runs]),
        np.concatenate([run.durable for run in runs]),
        rate, warm_up,
    )  # fmt: skip
    row.figures["durable p50"] = Figures("ms", (found.p50_ms,))
    row.figures["durable p99"] = Figures("ms", (found.p99_ms,))
    row.result += f"; durable p50 {found.p50_ms:.0f} ms, p99 {found.p99_ms:.0f} ms"


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
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], dict[str, Any]]:
    """Return (ns, offset) of every visible end and of every watermark, until all produced messages
    are covered, and the producer's answer."""
    visible: list[tuple[int, int]] = []
    durable: list[tuple[int, int]] = []
    answer: dict[str, Any] = {}
    deadline, looks = math.inf, 0
    while not answer or (follower.durable() < answer["end_offset"] and time.monotonic() < deadline):
        for seen, at in ((visible, follower.visible()), (durable, follower.durable())):
            if not seen or at != seen[-1][1]:
                seen.append((time.monotonic_ns(), at))
        if not answer and producer.answered():
            answer = producer.answer(1)
            deadline = time.monotonic() + DRAIN_SECONDS
        looks += 1
        if looks % LOOKS_PER_CHECK == 0:
            follower.check()
        time.sleep(POLL_SECONDS)
    visible.append((time.monotonic_ns(), follower.visible()))
    durable.append((time.monotonic_ns(), follower.durable()))
    return visible, durable, answer


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
            (f"append to readable entry, {rate:,} messages/s of {BODY_SIZE} bytes", *options)
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
