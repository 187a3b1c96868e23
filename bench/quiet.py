"""Logs to which little or nothing is appended: a message after a quiet spell, and idling."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

from bench.context import Context
from bench.live import BODY_SIZE, Follower, costs, evaluate_runs, follow, live_log
from bench.logs import log_writer
from bench.measures import Figures, Row
from bench.processes import child, cpu_seconds
from bench.reput import READY_SECONDS, run_command, run_several_command

FIRST = "latency-first"
FIRST_MESSAGES = 30
FIRST_GOAL_MS = 40.0
IDLE_ROWS = {"idle": (1, 0.012), "idle-20": (20, 0.05)}
"""Number of stores, and the goal in cores."""
IDLE_FILE_SIZE = 64 << 20
IDLE_SETTLE_SHARE = 0.25


def measure_first(context: Context) -> Iterator[Row]:
    """Append a message after each quiet spell, and wait for its entry."""
    quiet = context.quiet_seconds
    context.say(f"{FIRST}: {FIRST_MESSAGES} messages, each after {quiet:g} s")
    with live_log(context, 1 / quiet) as (producer, follower, trace):
        time.sleep(quiet)
        # half a spell less is the same number of messages, whatever 1 / quiet is rounded to
        run = follow(producer, follower, trace, (FIRST_MESSAGES - 0.5) * quiet)
    visible, durable = evaluate_runs([run], 1 / quiet)
    yield Row(
        name=FIRST,
        title=f"append to readable entry, {FIRST_MESSAGES} messages, each after {quiet:g} quiet s",
        goal=f"p99 <= {FIRST_GOAL_MS:g} ms",
        result=f"p50 {visible.p50_ms:.1f} ms, p99 {visible.p99_ms:.1f} ms",
        met=visible.p99_ms <= FIRST_GOAL_MS,
        figures={
            "p50": Figures("ms", (visible.p50_ms,)),
            "p99": Figures("ms", (visible.p99_ms,)),
            "durable p50": Figures("ms", (durable.p50_ms,)),
            "durable p99": Figures("ms", (durable.p99_ms,)),
            **costs([run]),
        },
        details={"quiet_seconds": quiet, "messages": visible.message_count},
        notes=[run.use.problem] if run.use.problem else [],
    )


def measure_idle(context: Context) -> Iterator[Row]:
    """Measure ``reput run`` that has caught up with logs to which nothing is appended."""
    for name, (count, goal) in IDLE_ROWS.items():
        if name in context.row_names:
            yield _idle_row(context, name, count, goal)


def _idle_row(context: Context, name: str, count: int, goal: float) -> Row:
    """Measure one process; the logs are held by their appenders, as by brokers."""
    context.say(f"{name}: {context.idle_seconds} s")
    with context.directory(name) as directory, ExitStack() as resources:
        stores, outputs = directory / "stores", directory / "outputs"
        writers = {
            f"{number:02d}": resources.enter_context(
                log_writer(stores / f"{number:02d}", BODY_SIZE, file_size=IDLE_FILE_SIZE)
            )
            for number in range(count)
        }
        logs = {key: writer.grow(1) for key, writer in writers.items()}
        if count == 1:
            command = run_command(stores / "00", outputs / "00")
        else:
            command = run_several_command(f"{stores}/*", outputs)
        running = resources.enter_context(child(command, silent=True))
        followers = {key: Follower(running, outputs / key) for key in logs}
        for key, follower in followers.items():
            follower.wait_for(logs[key].end_offset, READY_SECONDS)
        time.sleep(IDLE_SETTLE_SHARE * context.idle_seconds)
        pid = running.process.pid
        before, cpu_before = _state_size(followers), cpu_seconds(pid)
        time.sleep(context.idle_seconds)
        cpu = (cpu_seconds(pid) - cpu_before) / context.idle_seconds
        after = _state_size(followers)
        followers["00"].check()
    files, size = after[0] - before[0], after[1] - before[1]
    return Row(
        name=name,
        title="nothing to do" if count == 1 else f"nothing to do for {count} stores in one process",
        goal=f"<= {goal:.1%} of a core, no checkpoint growth",
        result=f"{cpu:.1%} of a core, {files:+d} files, {size:+d} bytes",
        met=cpu <= goal and files <= 0 and size <= 0,
        figures={"reput": Figures("% of a core", (100 * cpu,))},
        details={"seconds": context.idle_seconds, "files_grown": files, "bytes_grown": size},
    )


def _state_size(followers: dict[str, Follower]) -> tuple[int, int]:
    """Return (files, bytes) of all state directories."""
    sizes = [follower.state_size() for follower in followers.values()]
    return sum(files for files, _ in sizes), sum(size for _, size in sizes)
