"""``python -m bench``: measure, print and write the results, then remove the generated data."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil
from rich.console import Console

from bench import picture, report, rocketmq, suite
from bench.context import (
    FULL_GIB,
    FULL_IDLE_SECONDS,
    FULL_LIVE_SECONDS,
    FULL_QUIET_SECONDS,
    Context,
)
from bench.logs import GIB
from bench.measures import Row

DATA = Path(__file__).parent / "data"
QUICK_GIB = 1.0
QUICK_LIVE_SECONDS = 20
QUICK_IDLE_SECONDS = 10
QUICK_QUIET_SECONDS = 2.0
BUSY_SAMPLE_SECONDS = 2.0
BUSY_PERCENT = 10.0
SPACE_FACTOR = 3.0
"""Free space needed, in sizes of the main log: the largest log is 1.5 of it, a live one 15 GiB."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; exit where it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true",
        help=f"logs of {QUICK_GIB:g} GiB and the rows {', '.join(suite.QUICK_ROWS)}",
    )  # fmt: skip
    parser.add_argument("--rows", help=f"separated by commas; any of {', '.join(suite.ROW_NAMES)}")
    parser.add_argument(
        "--half", type=int, choices=tuple(suite.HALVES),
        help=f"half of the rows, to measure all of them into one --json file in two runs of up to "
        f"an hour; 2 begins with {suite.HALVES[2][0]}",
    )  # fmt: skip
    parser.add_argument("--gib", type=float, help=f"size of the main logs ({FULL_GIB:g})")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--live-seconds", type=int, help=f"({FULL_LIVE_SECONDS})")
    parser.add_argument("--idle-seconds", type=int, help=f"({FULL_IDLE_SECONDS})")
    parser.add_argument(
        "--quiet-seconds", type=float,
        help=f"quiet time before each message that comes alone ({FULL_QUIET_SECONDS:g})",
    )  # fmt: skip
    parser.add_argument(
        "--json", type=Path,
        help="result file, written after every row; its rows of other runs stay",
    )  # fmt: skip
    parser.add_argument("--plot", type=Path, help="picture, .svg or .png; needs matplotlib")
    chosen = parser.parse_args(arguments)
    default = suite.QUICK_ROWS if chosen.quick else suite.HALVES.get(chosen.half, suite.ROW_NAMES)
    chosen.row_names = chosen.rows.split(",") if chosen.rows else list(default)
    unknown = sorted(set(chosen.row_names) - set(suite.ROW_NAMES))
    if unknown:
        parser.error(f"no such rows: {', '.join(unknown)}")
    if chosen.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if chosen.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install -c constraints.txt -e '.[bench]'")
    if set(chosen.row_names) & set(suite.NEED_MAVEN) and not rocketmq.available():
        parser.error(f"java and mvn are needed on PATH for {', '.join(suite.NEED_MAVEN)}")
    return chosen


def make_context(chosen: argparse.Namespace) -> Context:
    """Return the context for the chosen sizes; the data directory belongs to this process alone."""
    quick = chosen.quick
    return Context(
        data=DATA / str(os.getpid()),
        row_names=frozenset(chosen.row_names),
        gib=chosen.gib or (QUICK_GIB if quick else FULL_GIB),
        rounds=chosen.rounds,
        live_seconds=chosen.live_seconds or (QUICK_LIVE_SECONDS if quick else FULL_LIVE_SECONDS),
        idle_seconds=chosen.idle_seconds or (QUICK_IDLE_SECONDS if quick else FULL_IDLE_SECONDS),
        quiet_seconds=chosen.quiet_seconds
        or (QUICK_QUIET_SECONDS if quick else FULL_QUIET_SECONDS),
        started=time.monotonic(),
    )


def remove_leftovers() -> None:
    """Remove the data of killed runs; a running one keeps its own."""
    for path in DATA.glob("*"):
        if not (path.name.isdigit() and psutil.pid_exists(int(path.name))):
            shutil.rmtree(path, ignore_errors=True)


def check_space(context: Context) -> None:
    """Exit where the disk is too small for the data that will be generated."""
    free = shutil.disk_usage(DATA.parent).free
    needed = SPACE_FACTOR * context.gib * GIB
    if free < needed:
        sys.exit(f"needs {needed / GIB:.0f} GiB of free space, has {free / GIB:.0f}")


def _ended_by_signal(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def run(context: Context, chosen: argparse.Namespace, console: Console) -> list[Row]:
    """Measure; the results so far survive an error, Ctrl-C and SIGTERM."""
    rows: list[Row] = []
    busy = psutil.cpu_percent(BUSY_SAMPLE_SECONDS)
    if busy > BUSY_PERCENT:
        console.print(f"[bold red]the cores are {busy:.0f} % busy with something else[/]")
    machine = {**report.about(context), "busy_percent_before": busy}
    try:
        for row in suite.measure(context):
            rows.append(row)
            context.say(f"{row.name}: {row.result}; goal {row.goal}; met: {row.met}")
            if chosen.json:
                report.write_json(chosen.json, machine, rows)
    finally:
        if rows:
            report.show(rows, console)
            _draw(chosen, machine, rows, console)
    return rows


def _draw(
    chosen: argparse.Namespace, machine: dict[str, Any], rows: list[Row], console: Console
) -> None:
    drawn = report.read_rows(chosen.json) if chosen.json else rows
    if chosen.plot and not picture.plot(chosen.plot, machine, drawn):
        console.print("no plot: it draws only catch-up and latency rows")


def main() -> None:
    """Run the benchmarks. Exit codes: 0 measured, goals met or not; 1 a measured process failed; 2
    wrong arguments."""
    chosen = parse(sys.argv[1:])
    context = make_context(chosen)
    remove_leftovers()
    check_space(context)
    console = Console(width=None if sys.stdout.isatty() else 160)
    signal.signal(signal.SIGTERM, _ended_by_signal)
    console.print(
        f"plan: {', '.join(name for name in suite.ROW_NAMES if name in context.row_names)}"
    )
    try:
        rows = run(context, chosen, console)
        if any(row.result == suite.FAILED for row in rows):
            sys.exit("a measured process failed; see the notes below the table")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        shutil.rmtree(context.data, ignore_errors=True)
        with contextlib.suppress(OSError):
            DATA.rmdir()


if __name__ == "__main__":
    main()
