"""The results: a table for people, JSON for programs."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench import rocketmq
from bench.context import Context
from bench.measures import Figures, Row
from bench.processes import ROOT
from bench.reput import core_count
from reput.store.errors import StoreError
from reput.streaming.spark.jvm import find_java


def about(context: Context) -> dict[str, Any]:
    """Describe the machine and the software, without anything that names the machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": core_count(),
        "cpu": _cpu_model(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30)),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "java": _java_version(),
        "versions": {name: _version(name) for name in ("pyspark", "pyarrow", "numba", "numpy")},
        "rocketmq": rocketmq.VERSION,
        "rocketmq_jvm": " ".join(rocketmq.JVM_OPTIONS),
        "commit": _commit(),
        "command": _command(sys.argv[1:]),
        "gib": context.gib,
        "rounds": context.rounds,
        "live_seconds": context.live_seconds,
        "idle_seconds": context.idle_seconds,
        "quiet_seconds": context.quiet_seconds,
    }


def write_json(path: Path, machine: dict[str, Any], rows: Sequence[Row]) -> None:
    """Add a run to the result file, or add its latest rows; paths are the project's own.

    A row appears once, under the run that measured it last.
    """
    names = {row.name for row in rows}
    runs = []
    for run in read_runs(path):
        kept = [row for row in run["rows"] if row["name"] not in names]
        if kept and run["about"] != machine:
            runs.append({"about": run["about"], "rows": kept})
    runs.append({"about": machine, "rows": [row.as_json() for row in rows]})
    text = json.dumps(runs, indent=1)
    path.write_text(text.replace(f"{Path(__file__).parent.parent}/", "") + "\n")


def read_rows(path: Path) -> list[Row]:
    """Return all rows of a result file, those of older runs first."""
    return [Row.from_json(row) for run in read_runs(path) for row in run["rows"]]


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a result file as they stand in it, oldest first."""
    if not path.is_file():
        return []
    runs: list[dict[str, Any]] = json.loads(path.read_text())
    return runs


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the table, and below it the notes and missed goals that do not fit."""
    table = Table(show_lines=True)
    for heading in ("measure", "system", "min", "median", "max", "result", "goal", "met"):
        table.add_column(
            heading, justify="right" if heading in ("min", "median", "max") else "left"
        )
    for row in rows:
        columns = list(zip(*map(_cells, row.figures.items()), strict=True)) or [()] * 4
        cells = ["\n".join(column) for column in columns]
        table.add_row(f"[bold]{row.name}[/]\n{row.title}", *cells, row.result, row.goal, _met(row))
    console.print(table)
    for row in rows:
        for note in row.notes:
            console.print(f"{row.name}: {note}", markup=False)
    missed = [row.name for row in rows if row.met is False]
    if missed:
        console.print(f"[bold red]missed: {', '.join(missed)}[/]")
    if any(row.met is None for row in rows):
        console.print(
            "met is '-' where there is no goal, or the sizes differ from those of the goals"
        )


def _cells(item: tuple[str, Figures]) -> tuple[str, str, str, str]:
    name, figures = item
    numbers = (figures.minimum, figures.median, figures.maximum)
    least, middle, most = (
        f"{number:,.4g}" if number < 1e4 else f"{number:,.0f}" for number in numbers
    )
    return f"{name}, {figures.unit}", least, middle, most


def _met(row: Row) -> str:
    return {True: "[green]yes[/]", False: "[bold red]NO[/]", None: "-"}[row.met]


def _command(arguments: Sequence[str]) -> str:
    """Return the command that repeats the run, without the paths of its results."""
    kept, skip = ["python", "-m", "bench"], False
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if not skip and option not in ("--json", "--plot"):
            kept.append(argument)
        skip = option in ("--json", "--plot") and not equals
    return " ".join(kept)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _java_version() -> str:
    try:
        printed = subprocess.run(
            [find_java(), "-version"], capture_output=True, text=True, check=True
        )
    except (StoreError, OSError, subprocess.CalledProcessError):
        return "none"
    return printed.stderr.partition("\n")[0]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
