"""The results as a picture for the README: the first questions of a reader, one panel per unit.

One panel shows how fast reput catches up beside RocketMQ, with small and with large messages.
Another shows how long a message takes from the append to its durable entry. All other rows are in
the result file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measures import Figures, Row


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
_COLORS = (("#9aa5b1", "#d9480f"), ("#f2a98f", "#d9480f"))
_INK = "#333333"


def plot(path: Path, machine: Mapping[str, Any], rows: Sequence[Row]) -> bool:
    """Draw the panels for which there are rows; bars are medians, whiskers span all rounds.

    It needs matplotlib, and returns False where there is nothing to draw.
    """
    from matplotlib import pyplot, rc_context  # noqa: PLC0415 - an extra

    figures = {row.name: row.figures for row in rows}
    panels = [
        (panel, colors)
        for panel, colors in zip(PANELS, _COLORS, strict=True)
        if any(name in figures for name in panel.groups)
    ]
    if not panels:
        return False
    # text stays text, so that it can be searched and is drawn in the reader's own fonts
    with rc_context({"svg.fonttype": "none", "font.size": 9, "text.color": _INK}):
        figure, axes = pyplot.subplots(
            1, len(panels), figsize=(4.8 * len(panels), 3.4), layout="constrained", squeeze=False
        )
        for axis, (panel, colors) in zip(axes[0], panels, strict=True):
            _draw(axis, panel, colors, figures)
        figure.supxlabel(
            f"{machine['cores']} cores, session up, page cache warm, {machine['date'][:10]}; "
            "median of all rounds, whiskers from the least to the most",
            fontsize=7,
        )
        figure.savefig(path, facecolor="white")
        pyplot.close(figure)
    return True


def _draw(
    axis: Any, panel: Panel, colors: Sequence[str], rows: Mapping[str, Mapping[str, Figures]]
) -> None:
    groups = [name for name in panel.groups if name in rows]
    width = 0.8 / len(panel.series)
    for index, (name, color) in enumerate(zip(panel.series, colors, strict=True)):
        found = [(place, rows[group].get(name)) for place, group in enumerate(groups)]
        bars = [(place, one) for place, one in found if one is not None]
        if not bars:
            continue
        drawn = axis.bar(
            [place + (index - (len(panel.series) - 1) / 2) * width for place, _ in bars],
            [one.median for _, one in bars],
            width * 0.92,
            yerr=_whiskers([one for _, one in bars]),
            color=color,
            ecolor=_INK,
            capsize=3,
            error_kw={"elinewidth": 0.8},
            label=panel.series[name],
        )
        axis.bar_label(drawn, [f"{one.median:,.{panel.digits}f}" for _, one in bars], padding=2)
    axis.set_xticks(range(len(groups)), [panel.groups[group] for group in groups])
    axis.set_ylabel(panel.unit)
    axis.set_title(panel.title, fontsize=10)
    axis.margins(y=0.2)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="best")


def _whiskers(figures: Sequence[Figures]) -> list[list[float]] | None:
    if all(len(one.values) == 1 for one in figures):
        return None
    below = [one.median - one.minimum for one in figures]
    return [below, [one.maximum - one.median for one in figures]]
