"""The stages of a run's batches, read from the metrics that it serves (``upkeep.watch.metrics``).

Nothing else tells them: they are lost with the process, and no file holds them. prometheus_client,
whose parser reads the text, is imported late, because it is an extra.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from reput.store.errors import StoreError, UsageError
from reput.upkeep.watch.series import PREFIX

TIMEOUT_SECONDS = 2.0
RECENT_SECONDS = 10.0
MAX_BYTES = 1 << 20
"""A run's answer has about 20 KiB."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage since the run began."""

    name: str
    count: int
    """Number of its durations; one of each batch, or of each index in it."""
    seconds: float
    recent_ms: float | None
    """Mean of the last seconds, in ms; None where there was none."""


@dataclass(frozen=True, slots=True)
class RunStages:
    """The stages of one run."""

    store: str
    """The store as the run was given it."""
    batches: int | None
    """Durable batches of the run; None before its first positions are known."""
    stages: tuple[Stage, ...]


_Totals = Mapping[str, tuple[int, float]]
"""Stage -> number and sum of its durations."""
_NONE = (0, 0.0)


class StageReader:
    """Reads the stages of the run that serves metrics at one address, again and again."""

    def __init__(self, host: str, port: int, root: Path) -> None:
        """``root`` is the store's: a process may run several. Raises UsageError where
        prometheus_client is missing."""
        try:
            from prometheus_client import parser  # noqa: PLC0415
        except ImportError:
            raise UsageError(
                "`metrics=` needs the package prometheus_client: pip install 'reput[metrics]'"
            ) from None
        self._parse = parser.text_string_to_metric_families
        self._host, self._port, self._root = host, port, root.resolve()
        self._marks: deque[tuple[float, _Totals]] = deque()

    def read(self) -> RunStages:
        """Return the stages as of now. Raises StoreError where nobody answers, or no run."""
        place = f"no metrics of a run at {self._host} port {self._port}"
        try:
            runs = self._runs(self._text())
        except (OSError, HTTPException, ValueError) as error:
            raise StoreError(
                f"{place}: {error}; give the address that reput run --metrics-port has printed"
            ) from error
        if not runs:
            raise StoreError(f"{place}: what answers is another program")
        # one alone may have the store under another path, on another machine
        stores = [store for store in runs if len(runs) == 1 or Path(store).resolve() == self._root]
        if not stores:
            raise StoreError(f"{place}: it is of other stores: {', '.join(runs)}")
        batches, totals = runs[stores[0]]
        before = self._before(totals)
        stages = tuple(_stage(total, totals, before) for total in totals)
        return RunStages(stores[0], batches, stages)

    def _text(self) -> str:
        # no proxy stands between: the run is on this machine or beside it
        connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        with closing(connection):
            connection.request("GET", "/metrics")
            return connection.getresponse().read(MAX_BYTES).decode()

    def _runs(self, text: str) -> Mapping[str, tuple[int | None, _Totals]]:
        """Return store -> number of batches, totals of the stages."""
        runs: dict[str, tuple[int | None, dict[str, tuple[int, float]]]] = {}
        for sample in (sample for family in self._parse(text) for sample in family.samples):
            name, store = sample.name.removeprefix(PREFIX), sample.labels.get("store", "")
            if name == "build_info":
                runs[store] = None, {}
            if store not in runs:
                continue
            _, totals = runs[store]
            stage = sample.labels.get("stage", "")
            count, seconds = totals.get(stage, _NONE)
            match name:
                case "batches_total":
                    runs[store] = int(sample.value), totals
                case "stage_seconds_count":
                    totals[stage] = int(sample.value), seconds
                case "stage_seconds_sum":
                    totals[stage] = count, sample.value
        return runs

    def _before(self, totals: _Totals) -> _Totals:
        """Return the totals some seconds ago; those of another run do not count."""
        now = time.monotonic()
        last = self._marks[-1][1] if self._marks else {}
        if any(count > totals.get(stage, _NONE)[0] for stage, (count, _) in last.items()):
            self._marks.clear()
        self._marks.append((now, totals))
        while len(self._marks) > 2 and now - self._marks[1][0] >= RECENT_SECONDS:
            self._marks.popleft()
        return self._marks[0][1]


def _stage(name: str, totals: _Totals, before: _Totals) -> Stage:
    count, seconds = totals[name]
    count_before, seconds_before = before.get(name, _NONE)
    recent = count - count_before
    mean = 1000 * (seconds - seconds_before) / recent if recent else None
    return Stage(name, count, seconds, mean)
