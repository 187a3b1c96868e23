"""The tables of the documents that show the result file, written by ``make docs``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import measures, report, suite
from bench.catch_up import CONCURRENT
from bench.measures import Figures, Row
from bench.processes import ROOT

RESULTS = ROOT / "docs" / "bench.json"
COMMIT_DIGITS = 7


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the README's table: a row's figures of both systems."""

    label: str
    row: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...] = ()
    has_ratio: bool = False


LINES = (
    Line("catch-up, 300-byte bodies", "catch-up-300", ("reput",), ("RocketMQ",), True),
    Line("catch-up, 1,200-byte bodies", "catch-up-1200", ("reput",), ("RocketMQ",), True),
    Line("1,200 bytes, its concurrent build", "catch-up-1200", ("reput",), (CONCURRENT,), True),
    Line("with the index, two keys a message", "all-dispatchers-300", ("reput",), ("RocketMQ",),
         True),
    Line("whole process, exec to exit", "whole-process-300", ("reput",), ("RocketMQ",), True),
    Line("time from append to entry at 1,000 messages/s, median and 99th percentile",
         "latency-1000", ("p50", "p99"), ("RocketMQ p50", "RocketMQ p99")),
    Line("idle", "idle", ("reput",)),
    Line("peak memory of all processes, 12 GiB of log", "peak-memory", ("12.00 GiB",)),
)  # fmt: skip


def readme_table(path: Path = RESULTS) -> str:
    """Return the README's table of what a user asks first, in Markdown, without the lines that were
    not measured yet."""
    rows = {row.name: (about, row) for about, row in _rows(path)}
    lines = ["| what | reput | RocketMQ | ratio |", "|---|---|---|---|"]
    sessions = []
    for line in LINES:
        about, row = rows.get(line.row, ({}, None))
        needed = {*line.ours, *line.theirs} if line.has_ratio else line.ours
        if row is None or not row.figures.keys() >= set(needed):
            continue
        ratio = _ratio(row, *line.ours, *line.theirs) if line.has_ratio else ""
        cells = (line.label, _shown(row, line.ours), _shown(row, line.theirs), ratio)
        lines.append(f"| {' | '.join(cells)} |")
        sessions.append(about)
    return "\n".join([*lines, "", _where(sessions)])


def all_rows(path: Path = RESULTS) -> str:
    """Return a Markdown table of every row with its goal, session and commit."""
    lines = [
        "| row | medians | result (rounds) | goal | session | commit |",
        "|---|---|---|---|---|---|",
    ]
    rows = {row.name: (about, row) for about, row in _rows(path)}
    shown = [rows[name] for name in suite.ROW_NAMES if name in rows]
    for about, row in shown:
        met = {True: ": met", False: ": **missed**", None: ""}[row.met]
        lines.append(
            f"| `{row.name}`: {row.title} | {_medians(row)} | {row.result} | {row.goal}{met} | "
            f"{_session(about)} | {_commit(about)} |"
        )
    return "\n".join([*lines, "", _where([about for about, _ in shown])])


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], Row]]:
    for run in report.read_runs(path):
        for row in run["rows"]:
            yield run["about"], Row.from_json(row)


def _ratio(row: Row, ours: str, theirs: str) -> str:
    mine, other = row.figures[ours], row.figures[theirs]
    faster = (other, mine) if mine.unit == "s" else (mine, other)
    return f"**{measures.ratio_text(measures.ratios(*faster))}**"


def _shown(row: Row, names: tuple[str, ...]) -> str:
    figures = [row.figures[name] for name in names if name in row.figures]
    return f"{', '.join(map(_number, figures))} {figures[0].unit}" if figures else ""


def _medians(row: Row) -> str:
    """Return the medians by system, with the unit once for those that share it."""
    by_unit: dict[str, list[str]] = {}
    for name, figures in row.figures.items():
        by_unit.setdefault(figures.unit, []).append(f"{name}: {_number(figures)}")
    return "; ".join(f"{'; '.join(shown)} {unit}" for unit, shown in by_unit.items())


def _number(figures: Figures) -> str:
    median = figures.median
    return f"{median:,.0f}" if median >= 1000 else f"{median:.3g}"


def _session(about: dict[str, Any]) -> str:
    return str(about["date"])[:16].replace("T", " ")


def _commit(about: dict[str, Any]) -> str:
    commit, dirty, _ = str(about["commit"]).partition("-dirty")
    return commit[:COMMIT_DIGITS] + ("+" if dirty else "")


def _where(abouts: Sequence[dict[str, Any]]) -> str:
    """Return a sentence for each machine and sizes."""
    sentences = (
        f"Measured on {about['cores']} cores ({about['cpu']}), {about['memory_gib']} GiB of "
        f"memory, Python {about['python']}, RocketMQ {about['rocketmq']}; main logs of "
        f"{about['gib']:g} GiB; rounds: {about['rounds']}."
        for about in abouts
    )
    return "\n".join(dict.fromkeys(sentences))
