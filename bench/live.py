"""Following a live log: ``reput run`` as it is deployed."""

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
from bench.diskuse import DiskUse, disk_use
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
PEER_SHARE = 0.25
"""RocketMQ's share of our time: its latency does not change after its first seconds."""
RATE_SHARE = 0.99
"""Share of its rate that the producer must reach for the run to count."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for the time from the append of a message to an entry that may be read, and for what
    that costs; infinity where there is none."""

    p50_ms: float
    p99_ms: float
    cores: float = math.inf
    """Use of the dispatcher's processes."""
    durable_p99_ms: float = math.inf
    syncs: float = math.inf
    """Syncs a second."""
    bounded: bool = False
    """Whether the lag must not grow."""

    def __str__(self) -> str:
        words = [f"p50 <= {self.p50_ms:g} ms, p99 <= {self.p99_ms:g} ms"]
        if self.cores < math.inf:
            words.append(f"<= {self.cores:.0%} of a core")
        if self.durable_p99_ms < math.inf:
            words.append(f"durable p99 <= {self.durable_p99_ms:,.0f} ms")
        if self.syncs < math.inf:
            words.append(f"<= {self.syncs:g} syncs/s")
        return ", ".join([*words, *["lag bounded"] * self.bounded])

    def met(self, visible: Latencies, durable: Latencies, runs: Sequence[Run]) -> bool:
        """Return whether the runs together meet it; what could not be counted misses nothing."""
        return (
            visible.p50_ms <= self.p50_ms
            and visible.p99_ms <= self.p99_ms
            and durable.p99_ms <= self.durable_p99_ms
            and statistics.fmean(run.cores for run in runs) <= self.cores
            and max((run.use.syncs or 0) / run.use.seconds for run in runs) <= self.syncs
            and (visible.lag_bounded or not self.bounded)
        )


BESIDE_ROCKETMQ = "latency-1000"
LATENCY_ROWS: dict[str, tuple[int, Goal, tuple[str, ...]]] = {
    BESIDE_ROCKETMQ: (1_000, Goal(8, 20, cores=0.10, durable_p99_ms=1200, syncs=20), ()),
    "latency-1000-asked": (1_000, Goal(80, 400), ("--latency", "80ms")),
    "latency-100000": (100_000, Goal(15, 40, cores=0.30, bounded=True), ()),
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
def live_log(
    context: Context, rate: float, *options: str
) -> Iterator[tuple[LineProcess, Follower, Path]]:
    """Start a producer that waits, and a dispatcher that has caught up with the initial log."""
    with context.directory("live") as directory:
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
        producer, follower, trace = resources.enter_context(live_log(context, rate, *options))
        # a JVM compiles itself in its first seconds
        follow(producer, follower, trace, WARM_UP_SECONDS)
        if name != BESIDE_ROCKETMQ:
            runs.append(follow(producer, follower, trace, context.live_seconds))
        else:
            peer = resources.enter_context(rocketmq.live(trace.parent / "rocketmq"))
            rocketmq.latencies(peer, rate, WARM_UP_SECONDS, BODY_SIZE)
            for number in range(1, context.rounds + 1):
                seconds = context.live_seconds / context.rounds
                runs.append(follow(producer, follower, trace, seconds))
                theirs.append(rocketmq.latencies(peer, rate, PEER_SHARE * seconds, BODY_SIZE))
                context.say(
                    f"round {number}/{context.rounds} RocketMQ: p50 {np.median(theirs[-1]):.2f} ms"
                )
    row = _latency_row(context, name, runs)
    if theirs:
        _add_rocketmq(row, np.concatenate(theirs))
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
    use: DiskUse
    """Their use of the disk."""


def follow(producer: LineProcess, follower: Follower, trace: Path, seconds: float) -> Run:
    """Have the producer append for so long, and observe until all of it is durable."""
    with disk_use(follower.pid) as use:
        producer.send(str(seconds))
        cpu, began = cpu_seconds(follower.pid), time.monotonic()
        visible, durable, answer = _watch(follower, producer)
        cores = (cpu_seconds(follower.pid) - cpu) / (time.monotonic() - began)
    ends = np.array(visible, np.int64), np.array(durable, np.int64)
    return Run(np.load(trace), *ends, answer["rate"], cores, use)


def evaluate_runs(runs: Sequence[Run], rate: float) -> tuple[Latencies, Latencies]:
    """Return the latencies of the runs together: until visible, and until durable."""
    appends = np.concatenate([run.appends for run in runs])
    visible = np.concatenate([run.visible for run in runs])
    durable = np.concatenate([run.durable for run in runs])
    return evaluate(appends, visible, rate), evaluate(appends, durable, rate)


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


def _latency_row(context: Context, name: str, runs: Sequence[Run]) -> Row:
    rate, goal, options = LATENCY_ROWS[name]
    visible, durable = evaluate_runs(runs, rate)
    reached = min(run.rate for run in runs)
    paced = reached >= RATE_SHARE * rate
    bounded = "bounded" if visible.lag_bounded else "GROWING"
    row = Row(
        name=name,
        title=" ".join(
            (f"append to readable entry, {rate:,} messages/s of {BODY_SIZE} bytes", *options)
        ),
        goal=str(goal),
        result=(
            f"p50 {visible.p50_ms:.0f} ms, p99 {visible.p99_ms:.0f} ms, lag {bounded}, "
            f"up to {visible.lag_max_messages:,} messages; "
            f"durable p50 {durable.p50_ms:.0f} ms, p99 {durable.p99_ms:.0f} ms"
        ),
        met=paced and goal.met(visible, durable, runs),
        figures={
            "p50": Figures("ms", (visible.p50_ms,)),
            "p99": Figures("ms", (visible.p99_ms,)),
            "max": Figures("ms", (visible.max_ms,)),
            "durable p50": Figures("ms", (durable.p50_ms,)),
            "durable p99": Figures("ms", (durable.p99_ms,)),
            **costs(runs),
        },
        details={**asdict(visible), "rate_reached": reached},
        notes=[
            f"{context.live_seconds} s after the first {WARM_UP_SECONDS:g}; "
            f"{reached:,.0f} messages/s appended",
            *dict.fromkeys(run.use.problem for run in runs if run.use.problem),
        ],
    )
    if not paced:
        row.notes.append("MISSED: the producer did not reach its rate beside the dispatcher")
    return row


def costs(runs: Sequence[Run]) -> dict[str, Figures]:
    """Return the figures of the dispatcher's CPU time and of its use of the disk, a value for each
    run."""
    uses = [run.use for run in runs]
    syncs = [use.syncs / use.seconds for use in uses if use.syncs is not None]
    return {
        "CPU": Figures("% of a core", tuple(100 * run.cores for run in runs)),
        **({"syncs": Figures("syncs/s", tuple(syncs))} if syncs else {}),
        "written": Figures("KiB/s", tuple(use.written_bytes / 1024 / use.seconds for use in uses)),
    }
