"""``reput status --check``: one line and an exit code, as Nagios and its kin call a plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reput.cli import render, texts
from reput.cli.printer import Result
from reput.store.errors import ReputError
from reput.upkeep.watch.check import Problem, State, Thresholds, problems, worst
from reput.upkeep.watch.status import OutputStatus

_MOST_SHOWN = 3
"""Problems that the line names; it counts the others."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One output, or the error that says why it cannot be read."""

    name: str
    """Stands before its problems and measures, if there are several outputs; else empty."""
    status: OutputStatus | ReputError


def check(look: Callable[[], Sequence[Checked]], limits: Thresholds) -> Result:
    """Return the line and the state's exit code. An error that concerns the whole call is the
    state UNKNOWN as well."""
    try:
        outputs = look()
    except (ReputError, OSError) as error:
        outputs = [Checked("", render.error_of_store(error))]
    every = [(output, problem) for output in outputs for problem in _problems(output, limits)]
    state = worst([problem.state for _, problem in every])
    every.sort(key=lambda pair: pair[1].state is not state)
    texts = [f"{_prefix(output, ': ')}{problem.text}" for output, problem in every[:_MOST_SHOWN]]
    if len(every) > _MOST_SHOWN:
        texts.append(f"and {len(every) - _MOST_SHOWN} more")
    measures = [
        _measures(output, limits) for output in outputs if isinstance(output.status, OutputStatus)
    ]
    line = f"REPUT {state.name} - {'; '.join(texts) or _summary(outputs)}"
    # what stands after a bar is read as measures
    line = " ".join(line.replace("|", "/").split())
    line = " | ".join([line, *([" ".join(measures)] if measures else [])])
    return Result(None, [line], int(state), has_settings=True)


def _problems(output: Checked, limits: Thresholds) -> list[Problem]:
    if isinstance(output.status, OutputStatus):
        return problems(output.status, limits)
    return [Problem(State.UNKNOWN, str(output.status))]


def _summary(outputs: Sequence[Checked]) -> str:
    if len(outputs) > 1:
        return f"{len(outputs)} stores"
    (status,) = (output.status for output in outputs)
    if not isinstance(status, OutputStatus) or status.lag_seconds is None:
        return "lag unknown"
    return f"lag {status.lag_seconds:.1f} s, {texts.human_bytes(status.lag_bytes)}"


def _prefix(output: Checked, between: str) -> str:
    return output.name and f"{output.name}{between}"


def _measures(output: Checked, limits: Thresholds) -> str:
    """Return the measures of an output: ``'label'=value[unit];warning;critical;minimum``."""
    status = output.status
    assert isinstance(status, OutputStatus)
    bounds = ";".join("" if limit is None else f"{limit:g}"
                      for limit in (limits.warning, limits.critical))  # fmt: skip
    values: Mapping[str, str | None] = {
        "lag": None if status.lag_seconds is None else f"{status.lag_seconds:.3f}s;{bounds};0",
        "lag_bytes": None if status.lag_bytes is None else f"{status.lag_bytes}B;;;0",
        "unqueued": f"{status.unqueued_bytes}B;;;0",
        "quarantine": f"{sum(each.bytes for each in status.quarantine)}B;;;0",
        "gaps": f"{status.gaps};;;0",
    }
    label = "".join("_" if c in "'=|" or not c.isprintable() else c for c in _prefix(output, " "))
    return " ".join(f"'{label}{name}'={text}" for name, text in values.items() if text is not None)
