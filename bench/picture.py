"""The results as a picture for the README: the first questions of a reader, one panel each.

Bars show how fast reput catches up beside RocketMQ, with small and with large messages, and how
long a message takes from the append to its durable entry. Curves show how the time to catch up
grows with the log, the number of queues and that of cores. All other rows are in the result file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.measures import Figures, Row
from bench.scaling import cores_name


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of the picture: rows whose figures have one unit, side by side."""

    title: str
    unit: str
    """The unit with its factor, which labels the axis."""
    groups: Mapping[str, str]
    """Name of a row -> its label."""
    series: Mapping[str, str]
    """Name of figures -> their label."""
    digits: int


PANELS = (
    Panel(
        "Catching up (more is better)",
        "million messages/s",
        {"catch-up-300": "300-byte bodies", "catch-up-1200": "1,200-byte bodies"},
        {"RocketMQ": "RocketMQ", "reput": "reput"},
        2,
    ),
    Panel(
        "From append to durable entry (less is better)",
        "ms",
        {"latency-1000": "1,000 messages/s", "latency-100000": "100,000 messages/s"},
        {"p50": "median", "p99": "99th percentile"},
        0,
    ),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """A part of the picture: the seconds to catch up over a quantity, both axes logarithmic."""

    title: str
    unit: str
    """The unit of the quantity."""
    series: Mapping[str, Mapping[float, tuple[str, str]]]
    """Label -> quantity -> (name of a row, name of its figures)."""


CURVES = (
    Curve(
        "Size of the log",
        "GiB",
        {"reput": {gib: ("log-size", f"{gib:.2f} GiB") for gib in (1, 4, 12)}},
    ),
    Curve(
        "Number of queues, 2 GiB",
        "queues",
        {
            "RocketMQ": {10_000: ("queues-10000", "RocketMQ, 10,000 queues")},
            "reput": {
                **{n: ("queues-10000", f"reput, {n:,} queues") for n in (10, 1_000, 10_000)},
                100_000: ("queues-100000", "reput"),
            },
        },
    ),
    Curve(
        "Number of cores, 4 GiB",
        "cores",
        {"reput": {n: ("cores", cores_name(n)) for n in (1, 2, 4, 8, 16, 32, 64)}},
    ),
)
_COLORS = {"RocketMQ": "#9aa5b1", "reput": "#d9480f", "p50": "#f2a98f", "p99": "#d9480f"}
_INK = "#333333"


def plot(path: Path, machine: Mapping[str, Any], rows: Sequence[Row]) -> bool:
    """Draw the panels and curves for which there are rows; bars and points are medians, whiskers
    span all rounds.

    It needs matplotlib, and returns False where there is nothing to draw.
    """
    from matplotlib import pyplot, rc_context  # noqa: PLC0415 - an extra

    figures = {row.name: row.figures for row in rows}
    panels = [
        partial(_draw_panel, panel=panel, rows=figures)
        for panel in PANELS
        if any(name in figures for name in panel.groups)
    ]
    curves = [
        partial(_draw_curve, curve=curve, points=points)
        for curve in CURVES
        if (points := _points(curve, figures))
    ]
    lines = [line for line in (panels, curves) if line]
    if not lines:
        return False
    # text stays text, so that it can be searched and is drawn in the reader's own fonts; the salt
    # makes the same file of the same results
    style = {"svg.fonttype": "none", "svg.hashsalt": "reput", "font.size": 9, "text.color": _INK}
    with rc_context(style):  # type: ignore[arg-type]
        figure = pyplot.figure(figsize=(9.6, 3.4 * len(lines)), layout="constrained")
        parts = figure.subfigures(len(lines), 1, squeeze=False)[:, 0]
        for part, line in zip(parts, lines, strict=True):
            for axis, draw in zip(part.subplots(1, len(line), squeeze=False)[0], line, strict=True):
                draw(axis)
        figure.supxlabel(
            f"{machine['cores']} cores, session up, page cache warm, {machine['date'][:10]}; "
            "median of all rounds, whiskers from the least to the most",
            fontsize=7,
        )
        undated = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, facecolor="white", metadata=undated)
        pyplot.close(figure)
    return True


def _points(
    curve: Curve, rows: Mapping[str, Mapping[str, Figures]]
) -> dict[str, dict[float, Figures]]:
    series = {
        label: {
            quantity: rows[row][name]
            for quantity, (row, name) in places.items()
            if name in rows.get(row, {})
        }
        for label, places in curve.series.items()
    }
    return {label: points for label, points in series.items() if points}


def _draw_curve(axis: Any, curve: Curve, points: Mapping[str, Mapping[float, Figures]]) -> None:
    for label, figures_at in points.items():
        medians = [figures.median for figures in figures_at.values()]
        axis.errorbar(
            list(figures_at),
            medians,
            yerr=_whiskers(list(figures_at.values())),
            color=_COLORS[label],
            ecolor=_INK,
            capsize=3,
            elinewidth=0.8,
            marker="o",
            label=label,
        )
        for quantity, figures in figures_at.items():
            # above the whisker, which would cross it
            axis.annotate(
                f"{figures.median:.1f}",
                (quantity, figures.maximum),
                (0, 6),
                textcoords="offset points",
                ha="center",
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    ticks = sorted({quantity for figures_at in points.values() for quantity in figures_at})
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.set_xlabel(curve.unit)
    axis.set_ylabel("seconds to catch up")
    axis.margins(0.15, 0.2)
    _finish(axis, curve.title)


def _draw_panel(axis: Any, panel: Panel, rows: Mapping[str, Mapping[str, Figures]]) -> None:
    groups = [name for name in panel.groups if name in rows]
    width = 0.8 / len(panel.series)
    for index, (name, label) in enumerate(panel.series.items()):
        places = [(place, rows[group].get(name)) for place, group in enumerate(groups)]
        bars = [(place, figures) for place, figures in places if figures is not None]
        if not bars:
            continue
        drawn = axis.bar(
            [place + (index - (len(panel.series) - 1) / 2) * width for place, _ in bars],
            [figures.median for _, figures in bars],
            width * 0.92,
            yerr=_whiskers([figures for _, figures in bars]),
            color=_COLORS[name],
            ecolor=_INK,
            capsize=3,
            error_kw={"elinewidth": 0.8},
            label=label,
        )
        axis.bar_label(
            drawn, [f"{figures.median:,.{panel.digits}f}" for _, figures in bars], padding=2
        )
    axis.set_xticks(range(len(groups)), [panel.groups[group] for group in groups])
    axis.set_ylabel(panel.unit)
    axis.margins(y=0.35)  # for the legend
    _finish(axis, panel.title)


def _finish(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="best")


def _whiskers(figures: Sequence[Figures]) -> list[list[float]] | None:
    if all(len(f.values) == 1 for f in figures):
        return None
    below = [f.median - f.minimum for f in figures]
    return [below, [f.maximum - f.median for f in figures]]
