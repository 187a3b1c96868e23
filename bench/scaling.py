"""Measures of how time, memory and open files grow with the log, the number of queues and that of
cores."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench import logs, measures, plainqueues, reput, rocketmq
from bench.context import Context
from bench.logs import GIB, Log
from bench.measures import Figures, Row
from bench.plainqueues import PlainQueues
from bench.processes import BenchError, cpu_seconds

BODY_SIZE = 300
SIZE_SHARES = (0.125, 0.5, 1.5)
"""Shares of the main log's size: 1, 4 and 12 GiB of 8."""
LINEAR_GOAL = 1.10
FIRST_BATCH_GOAL_SECONDS = 1.0
SLOPE_GOAL = 0.85
MEMORY_GOAL_BYTES = 2.5 * GIB
MEMORY_GROWTH_GOAL = 1.10

CORES_LOG_SHARE = 0.5

QUEUES = {10: (10, 1), 1_000: (100, 10), 10_000: (500, 20), 100_000: (500, 200)}
"""(topics, queues of each) by number of queues."""
QUEUE_LOG_SHARE = 0.25
MANY_QUEUES, MOST_QUEUES = 10_000, 100_000
BEYOND_GOALS = {MANY_QUEUES: 1.5, MOST_QUEUES: 2.0}
"""Multiples of the C program's time, for the time beyond that of 10 queues."""
PATIENCE_SECONDS = 3600.0
"""Seconds that a pass may take additionally for its many queues."""
LONG_PASS_SECONDS = 30.0
OPEN_FILES_GOAL = 1024
"""Open files of all processes together: the usual limit of a single one."""


def measure_sizes(context: Context) -> Iterator[Row]:
    """Measure one log that grows: at each size passes in a session, and whole processes for their
    memory.

    The page cache is warm as far as memory allows.
    """
    if not context.row_names & {"log-size", "peak-memory"}:
        return
    passes: dict[float, list[dict[str, Any]]] = {}
    memory: dict[float, int] = {}
    with (
        context.directory("sizes") as directory,
        logs.log_writer(directory / "store", BODY_SIZE) as writer,
    ):
        for share in SIZE_SHARES:
            log = writer.grow(int(share * context.gib * GIB))
            gib = log.end_offset / GIB
            context.say(f"log: {log.title}")
            logs.warm(log)
            if "log-size" in context.row_names:
                passes[gib] = _passes(context, directory, log, context.rounds)
            # the smallest log is less than a batch, so it shows nothing about growth
            if "peak-memory" in context.row_names and share != SIZE_SHARES[0]:
                memory[gib] = reput.peak_memory(log, directory / "memory")
                context.say(f"{gib:.2f} GiB, peak memory: {memory[gib] / (1 << 20):,.0f} MiB")
    if passes:
        yield _size_row(context, passes)
    if memory:
        yield _memory_row(context, memory)


def _passes(context: Context, directory: Path, log: Log, rounds: int) -> list[dict[str, Any]]:
    """Run passes in a session of their own, in turn with the kernels alone; the first one is not
    counted."""
    with reput.open_session(directory) as session, reput.open_kernels(log) as kernels:
        session.catch_up(log, PATIENCE_SECONDS)
        answers = []
        for number in range(1, rounds + 1):
            answer = session.catch_up(log, PATIENCE_SECONDS)
            answers.append({**answer, "kernel_seconds": kernels.scan()})
            context.say(f"round {number}/{rounds}: {answer['seconds']:.3f} s")
    return answers


def _pass(session: reput.Session, log: Log) -> Callable[[], float]:
    """A pass over a log, whose seconds are returned."""
    return lambda: float(session.catch_up(log, PATIENCE_SECONDS)["seconds"])


def _figures(passes: list[dict[str, Any]], key: str = "seconds") -> Figures:
    return Figures("s", tuple(float(answer[key]) for answer in passes))


def steepness(seconds: dict[float, float]) -> float:
    """Return how much faster than size time grows, at the worst pair; 1 is linear, less is
    better."""
    sizes = sorted(seconds)
    return max(
        (seconds[large] / seconds[small]) / (large / small)
        for index, small in enumerate(sizes)
        for large in sizes[index + 1 :]
    )


def _size_row(context: Context, passes: dict[float, list[dict[str, Any]]]) -> Row:
    figures = {f"{gib:.2f} GiB": _figures(answers) for gib, answers in passes.items()}
    worst = steepness({gib: _figures(answers).median for gib, answers in passes.items()})
    first = [_figures(answers, "first_batch_seconds").median for answers in passes.values()]
    later = max(first[1:]) - first[0]
    middle, large = list(passes.values())[-2:]
    kernels = [_figures(answers, "kernel_seconds").median for answers in (middle, large)]
    slope = (kernels[1] - kernels[0]) / (_figures(large).median - _figures(middle).median)
    return Row(
        name="log-size",
        title=f"log size, {BODY_SIZE} bytes, session up, page cache warm",
        goal=(
            f"time linear (<= {LINEAR_GOAL:g}), first batch within "
            f"{FIRST_BATCH_GOAL_SECONDS:g} s of the smallest's, slope >= {SLOPE_GOAL:.0%} of the "
            "kernels'"
        ),
        result=(
            f"{worst:.2f} of linear, first batch {later:+.2f} s, slope {slope:.1%} of the kernels'"
        ),
        met=context.judged(
            worst <= LINEAR_GOAL and later <= FIRST_BATCH_GOAL_SECONDS and slope >= SLOPE_GOAL
        ),
        figures=figures,
        details={"first_batch_seconds": first, "passes": list(passes.values())},
        notes=[
            "linear: the worst of (time per byte of a size) / (that of a smaller size)",
            "slope: rate of what the largest log has beyond the one before it, medians",
        ],
    )


def _memory_row(context: Context, memory: dict[float, int]) -> Row:
    small, large = memory.values()
    return Row(
        name="peak-memory",
        title="peak memory of all processes, reput run --once (PSS)",
        goal=f"<= {MEMORY_GOAL_BYTES / GIB:g} GiB, not growing with the log (<= 10 %)",
        result=f"{large / GIB:.2f} GiB, {large / small:.2f} of the smaller log's",
        met=context.judged(large <= MEMORY_GOAL_BYTES and large <= MEMORY_GROWTH_GOAL * small),
        figures={
            f"{gib:.2f} GiB": Figures("MiB", (size / (1 << 20),)) for gib, size in memory.items()
        },
    )


def measure_cores(context: Context) -> Iterator[Row]:
    """Measure the same log on one core, two, four and so on, in turns."""
    if "cores" not in context.row_names:
        return
    counts = [1 << power for power in range(reput.core_count().bit_length())]
    with context.directory("cores") as directory, ExitStack() as resources:
        writer = resources.enter_context(logs.log_writer(directory / "store", BODY_SIZE))
        log = writer.grow(int(CORES_LOG_SHARE * context.gib * GIB))
        context.say(f"log: {log.title}")
        logs.warm(log)
        sessions = {
            count: resources.enter_context(reput.open_session(directory, count)) for count in counts
        }
        systems = {cores_name(count): _pass(session, log) for count, session in sessions.items()}
        for run_pass in systems.values():
            run_pass()  # the first pass starts workers and compiles plans
        figures = measures.alternate(context.rounds, systems, context.say)
    gain = measures.ratios(figures[cores_name(1)], figures[cores_name(counts[-1])])
    yield Row(
        name="cores",
        title=f"number of cores, {BODY_SIZE} bytes, session up, page cache warm",
        goal="none",
        result=f"{cores_name(counts[-1])}: {measures.ratio_text(gain)} one",
        met=None,
        figures=figures,
        details={"log": log.title},
    )


def cores_name(count: int) -> str:
    """Return the name of the figures for so many cores."""
    return f"{count} core{'s' * (count > 1)}"


def measure_queues(context: Context) -> Iterator[Row]:
    """Measure the same bytes over more and more queues.

    Nothing is removed before the run's end, for the reason in ``reput.Session.catch_up``, and
    because hundreds of thousands of files are removed slowly.
    """
    queue_logs = {10: _queue_log(context, 10)}
    if "queues-10000" in context.row_names:
        queue_logs |= {count: _queue_log(context, count) for count in (1_000, MANY_QUEUES)}
        yield _many_queues_row(context, queue_logs)
    if "queues-100000" in context.row_names:
        few = queue_logs[10][1]
        yield _most_queues_row(context, few, *_queue_log(context, MOST_QUEUES))


def _queue_log(context: Context, count: int) -> tuple[Path, Log]:
    topic_count, queue_count = QUEUES[count]
    directory = context.data / f"queues-{count}"
    directory.mkdir(parents=True)
    with logs.log_writer(
        directory / "store", BODY_SIZE, topic_count=topic_count, queue_count=queue_count
    ) as writer:
        log = writer.grow(int(QUEUE_LOG_SHARE * context.gib * GIB))
    context.say(f"log: {log.title}, {count:,} queues")
    logs.warm(log)
    return directory, log


class Systems:
    """Passes that take turns, and the CPU seconds of each."""

    def __init__(self) -> None:
        self.runs: dict[str, Callable[[], float]] = {}
        self._cpu_seconds: dict[str, list[float]] = {}

    def add(self, name: str, run: Callable[[], float], pid: int) -> None:
        """Add passes by a process."""
        used = self._cpu_seconds.setdefault(name, [])

        def watched() -> float:
            before = cpu_seconds(pid)
            seconds = run()
            used.append(cpu_seconds(pid) - before)
            return seconds

        self.runs[name] = watched

    def add_plain(self, session: reput.Session, log: Log, directory: Path) -> str:
        """Add passes of the C program that makes what the session made last; return why there are
        none."""
        try:
            plain = PlainQueues(session.last_output, directory)
        except BenchError as error:
            return f"no C program makes the same files: {error}"
        self._cpu_seconds[plainqueues.NAME] = plain.cpu_seconds
        self.runs[plainqueues.NAME] = partial(plain.timed, log)
        return ""

    def alternate(self, context: Context, rounds: int) -> dict[str, Figures]:
        """Return the seconds by system, and then the CPU seconds."""
        seconds = measures.alternate(rounds, self.runs, context.say)
        used = {
            f"{name}: CPU": Figures("s", tuple(values[-rounds:]))
            for name, values in self._cpu_seconds.items()
        }
        return {**seconds, **used}


def beyond(most: Figures, few: Figures, plain: Figures) -> Figures:
    """Return the time beyond that of few queues as a multiple of the C program's, round by
    round."""
    rounds = zip(most.values, few.values, plain.values, strict=True)
    return Figures("x", tuple((long - short) / least for long, short, least in rounds))


def _add_plain(row: Row, context: Context, count: int, most: Figures, few: Figures) -> None:
    """Add the ratio to the C program, and its goal; without one, that is not judged."""
    row.goal += f"beyond 10 queues <= {BEYOND_GOALS[count]:g}x a C program that makes the files"
    if plainqueues.NAME not in row.figures:
        row.met = None
        return
    times = beyond(most, few, row.figures[plainqueues.NAME])
    row.result += f"; beyond 10 queues {measures.ratio_text(times)} a C program"
    row.met = context.judged(row.met is not False and times.median <= BEYOND_GOALS[count])


def _many_queues_row(context: Context, queue_logs: dict[int, tuple[Path, Log]]) -> Row:
    """Measure in turns: ours over each log in one session, RocketMQ and a C program over the log
    with the most queues."""
    notes: list[str] = []
    flushed: list[float] = []
    directory, log = queue_logs[MANY_QUEUES]
    systems = Systems()
    with ExitStack() as resources:
        session = resources.enter_context(reput.open_session(directory))
        for count, (_, queue_log) in queue_logs.items():
            name = f"reput, {count:,} queues"
            systems.add(name, _pass(session, queue_log), session.pid)
            systems.runs[name]()  # the first pass starts workers and compiles plans
        notes.append(systems.add_plain(session, log, directory))
        try:
            resident = resources.enter_context(rocketmq.warm(log, directory / "rocketmq"))
        except BenchError as error:
            notes.append(f"RocketMQ did not rebuild {MANY_QUEUES:,} queues: {error}")
        else:

            def theirs() -> float:
                resident.keep_queues()
                os.sync()
                rebuild = resident.rebuild()
                flushed.append(rebuild.flushed_seconds)
                return rebuild.dispatch_seconds

            systems.add(f"RocketMQ, {MANY_QUEUES:,} queues", theirs, resident.pid)
        figures = systems.alternate(context, context.rounds)
    most, few = (figures[f"reput, {count:,} queues"] for count in (MANY_QUEUES, 10))
    result = measures.ratio_text(measures.ratios(most, few))
    if flushed:
        figures[f"RocketMQ, flushed, {MANY_QUEUES:,} queues"] = Figures("s", tuple(flushed))
        against = measures.ratios(figures[f"RocketMQ, {MANY_QUEUES:,} queues"], most)
        result += f"; {measures.ratio_text(against)} RocketMQ"
    row = Row(
        name="queues-10000",
        title=f"10 to 10,000 queues, {BODY_SIZE} bytes, session up, page cache warm",
        goal="",
        result=result,
        met=None,
        figures=figures,
        notes=[note for note in notes if note],
    )
    _add_plain(row, context, MANY_QUEUES, most, few)
    return row


def _rocketmq(context: Context, directory: Path, log: Log) -> dict[str, Figures] | str:
    """Return the seconds of RocketMQ's rebuilds, without flush and with it, or the reason why there
    are none.

    It keeps every queue mapped and open, so that the machine's limits may stop it.
    """
    seconds, flushed = [], []
    try:
        with rocketmq.warm(log, directory / "rocketmq") as resident:
            for number in range(1, context.rounds + 1):
                resident.keep_queues()
                os.sync()
                rebuild = resident.rebuild()
                seconds.append(rebuild.dispatch_seconds)
                flushed.append(rebuild.flushed_seconds)
                context.say(f"round {number}/{context.rounds} RocketMQ: {seconds[-1]:.3f} s")
    except BenchError as error:
        context.say(f"RocketMQ: {error}")
        return str(error)
    return {
        "RocketMQ": Figures("s", tuple(seconds)),
        "RocketMQ, flushed": Figures("s", tuple(flushed)),
    }


def _most_queues_row(context: Context, few_log: Log, directory: Path, log: Log) -> Row:
    systems = Systems()
    with reput.open_session(directory) as session:
        few_pass = _pass(session, few_log)
        few_pass()  # it starts workers and compiles plans
        with session.peaks() as peak:
            first = session.catch_up(log, PATIENCE_SECONDS)
        context.say(f"first pass: {first['seconds']:.1f} s, {peak.open_files} open files")
        problem = systems.add_plain(session, log, directory)
        systems.add("reput, 10 queues", few_pass, session.pid)
        systems.add("reput", _pass(session, log), session.pid)
        rounds = context.rounds if first["seconds"] < LONG_PASS_SECONDS else 1
        figures = systems.alternate(context, rounds)
    ours, theirs = figures["reput"], _rocketmq(context, directory, log)
    met = peak.open_files <= OPEN_FILES_GOAL
    row = Row(
        name="queues-100000",
        title=f"100,000 queues, {BODY_SIZE} bytes, session up, page cache warm",
        goal=f"completes, faster than RocketMQ, <= {OPEN_FILES_GOAL:,} open files, ",
        result=f"{ours.median:.1f} s, {peak.open_files:,} open files",
        met=None,
        figures=figures,
        details={"first_pass": first, "rocketmq": theirs if isinstance(theirs, str) else None},
        notes=[problem] if problem else [],
    )
    if isinstance(theirs, dict):
        row.figures |= theirs
        other = theirs["RocketMQ"].median
        row.result += f", {other / ours.median:.2f}x RocketMQ"
        met = met and ours.median < other
    else:
        row.result += "; RocketMQ does not complete"
        row.notes.append(f"RocketMQ under this machine's limits ({_limits()}): {theirs}")
    row.met = met
    _add_plain(row, context, MOST_QUEUES, ours, figures["reput, 10 queues"])
    return row


def _limits() -> str:
    """Describe the limits of a process that keeps every queue mapped and open."""
    maps = Path("/proc/sys/vm/max_map_count").read_text().strip()
    return f"{resource.getrlimit(resource.RLIMIT_NOFILE)[1]} open files, {maps} mappings"
