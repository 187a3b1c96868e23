"""The results of a benchmark: figures of several rounds, and a row that compares them with a
goal."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.__main__ import YOUNG_OBJECTS

RATE_UNIT = "M messages/s"


@dataclass(frozen=True, slots=True)
class Figures:
    """One quantity of one system, with one value per round."""

    unit: str
    values: tuple[float, ...]

    @property
    def minimum(self) -> float:
        """The lowest value of the rounds."""
        return min(self.values)

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)

    @property
    def maximum(self) -> float:
        """The highest value of the rounds."""
        return max(self.values)

    def as_rate(self, count: float, unit: str) -> Figures:
        """Return ``count`` per second, where the values are seconds."""
        return Figures(unit, tuple(count / seconds for seconds in self.values))

    def as_json(self) -> dict[str, Any]:
        """Return unit, values, and their minimum, median and maximum, for the result file."""
        return {
            "unit": self.unit,
            "min": self.minimum,
            "median": self.median,
            "max": self.maximum,
            "values": list(self.values),
        }


@dataclass(slots=True)
class Row:
    """One row of the results: a measure with its goal, and the figures of each system."""

    name: str
    title: str
    goal: str
    """The goal, in words and figures."""
    result: str
    """The figure that the goal is about."""
    met: bool | None
    """Whether the goal is met; None where there is no goal, or the sizes are not those of the
    goal."""
    figures: dict[str, Figures] = field(default_factory=dict)
    """Figures by system."""
    details: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return all fields for the result file, from which ``from_json`` makes the row again."""
        return {
            "name": self.name,
            "title": self.title,
            "goal": self.goal,
            "result": self.result,
            "met": self.met,
            "figures": {name: figures.as_json() for name, figures in self.figures.items()},
            "details": self.details,
            "notes": self.notes,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Row:
        """Return the row from which ``as_json`` made ``fields``."""
        figures = {
            name: Figures(entry["unit"], tuple(entry["values"]))
            for name, entry in fields["figures"].items()
        }
        return cls(**{**fields, "figures": figures})


def ratios(ours: Figures, other: Figures) -> Figures:
    """Return our rate as a multiple of the other's, round by round of one ``alternate``; a machine
    that changes its speed between rounds does not change these ratios."""
    pairs = zip(ours.values, other.values, strict=True)
    return Figures("x", tuple(mine / theirs for mine, theirs in pairs))


def ratio_text(figures: Figures) -> str:
    """Return the median of the rounds' ratios, and their range."""
    return f"{figures.median:.2f}x ({figures.minimum:.2f} to {figures.maximum:.2f})"


def share_text(figures: Figures) -> str:
    """Return the median of the rounds' ratios in percent, and their range."""
    return f"{figures.median:.1%} ({figures.minimum:.1%} to {figures.maximum:.1%})"


def freeze_as_reput() -> None:
    """Look for garbage as seldom as the command ``reput`` does. For a process that measures a part
    of it itself, once all is loaded."""
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    gc.freeze()


def alternate(
    rounds: int, systems: Mapping[str, Callable[[], float]], say: Callable[[str], None]
) -> dict[str, Figures]:
    """Return seconds by system; every round runs each system once, so that a slow minute affects
    all."""
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(1, rounds + 1):
        for name, run in systems.items():
            seconds[name].append(run())
            say(f"round {number}/{rounds} {name}: {seconds[name][-1]:.3f} s")
    return {name: Figures("s", tuple(values)) for name, values in seconds.items()}


def percentile(values: NDArray[np.float64], weights: NDArray[np.int64], share: float) -> float:
    """Return the least value such that the values up to it have at least ``share`` (0 to 1) of the
    total weight; both arrays have the same length, at least 1."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1], side="left")])
