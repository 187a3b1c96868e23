"""The metrics of a run, or of several, as Prometheus's collector of series (``series``).

A look reads what exists already: the positions, the ledger and the followers' files, and nothing of
any queue; the run's measures need none. A value that is unknown is absent, never 0 (a zero lag
looks healthy). prometheus_client is imported late, because it is an extra.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from reput.checkpoints.agreement import what_differs
from reput.checkpoints.keptstate import replaced_checkpoints
from reput.checkpoints.ownership import is_owner
from reput.store.errors import ReputError, error_text
from reput.store.files import WATERMARK_FILE
from reput.store.follower import BAD_BODIES, MESSAGES_LEFT_OUT
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.state.ledger import LedgerCounter
from reput.store.state.visible import EndReader
from reput.store.state.watermark import Watermark, WatermarkReader
from reput.streaming.config import DispatcherConfig
from reput.streaming.measures import Durations, Measures
from reput.upkeep.watch.series import COUNTER, HISTOGRAM, PREFIX, SERIES, Series
from reput.upkeep.watch.status import LIVE_COUNTED_LAG, follower_statuses, read_lag

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_Value = float | Durations | None
_Sample = tuple[str, _Value, *tuple[str, ...]]
"""A series' name, its value, None where it is unknown, and the values of its labels."""

logger = logging.getLogger("reput")


class RunCollector:
    """The samples of one run; one thread at a time may ask."""

    def __init__(self, config: DispatcherConfig, measures: Measures, version: str) -> None:
        self._config = config
        self._measures = measures
        self._version = version
        self._watermark = WatermarkReader(config.state_directory)
        self._end = EndReader(config.state_directory)
        self._ledger = LedgerCounter(config.state_directory)
        self._opened: tuple[CommitLog, LogTail] | None = None
        self._opened_for = 0
        """The number of queries that were begun when the log was opened."""
        self._log_end: int | None = None
        self._said: dict[str, str] = {}
        self._looked: Sequence[_Sample] = ()

    def samples(self) -> Iterator[_Sample]:
        """Yield every series, also where its value is unknown: the run's measures as they are now,
        everything else as of the last ``look``."""
        yield from self._looked
        yield from self._of_run()

    def look(self) -> None:
        """Read the positions of log, output and followers, and the ledger."""
        self._looked = tuple(self._samples())

    def close(self) -> None:
        """Close the log."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def _samples(self) -> Iterator[_Sample]:
        began = time.monotonic()
        for name, part in (
            ("log", self._of_log), ("output", self._of_output), ("ledger", self._of_ledger),
            ("followers", self._of_followers),
        ):  # fmt: skip
            said = ""
            try:
                yield from [*part()]
            except (ReputError, OSError) as error:
                # it is unknown now, and hides nothing else
                said = error_text(error)
            if said and said != self._said.get(name):
                logger.warning("metrics of the %s are missing: %s", name, said)
            self._said[name] = said
            yield "unreadable", bool(said), name
        yield "look_seconds", time.monotonic() - began
        yield "look_timestamp_seconds", time.time()

    def _of_log(self) -> Iterator[_Sample]:
        self._log_end = None
        # before the log: a dispatcher may be moving it
        end = self._end.read()
        begun = self._measures.queries
        if self._opened is None or self._opened_for != begun:
            # a run that was started again may have found other directories
            self.close()
            log = self._config.given_settings().open_log()
            self._opened, self._opened_for = (log, LogTail(log)), begun
        log, tail = self._opened
        # nothing that is dispatched is walked again, unless it may not be what was dispatched
        is_known = end is not None and what_differs(log, None, end) is None
        known_end = end.end_offset if end is not None and is_known else 0
        # as the dispatcher does: a search in what is being written takes long
        self._log_end = log_end = tail.settled(known_end, patient=True)
        yield "log_start_bytes", log.min_offset
        yield "log_end_bytes", log_end
        lag = read_lag(log, log_end, end, LIVE_COUNTED_LAG)
        yield "lag_bytes", lag.bytes
        yield "lag_messages", lag.messages
        yield "lag_seconds", lag.seconds

    def _of_output(self) -> Iterator[_Sample]:
        watermark, output = self._watermark.read(), self._config.output
        if watermark is not None:
            yield from _of_watermark(watermark)
            written = (self._config.state_directory / WATERMARK_FILE).stat()
            yield "watermark_timestamp_seconds", written.st_mtime
        if self._measures.progress is not None:
            # the run holds the output by now
            yield "owner", is_owner(output)
        elif not output.exists():
            return  # it is made by the run
        replaced = replaced_checkpoints(self._config.spark_directory)
        yield "checkpoints_replaced", len(replaced)
        space = os.statvfs(output)
        yield "output_free_bytes", space.f_bavail * space.f_frsize

    def _of_ledger(self) -> Iterator[_Sample]:
        for count in self._ledger.counts():
            yield "ledger_ranges", count.ranges, count.reason
            yield "ledger_bytes", count.bytes, count.reason

    def _of_followers(self) -> Iterator[_Sample]:
        names = {target.name for target in self._config.followers}
        for state in follower_statuses(self._config.output, self._log_end):
            if state.name not in names:
                continue  # of an earlier run
            since = state.failing_since and datetime.fromisoformat(state.failing_since).timestamp()
            for name, value in (
                ("position_bytes", state.position), ("lag_bytes", state.lag_bytes),
                ("rows_total", state.rows), ("lost_bytes_total", state.lost_bytes),
                ("internal_left_out_total", state.internal_left_out),
                ("bad_bodies_total", state.counts.get(BAD_BODIES, 0)),
                ("messages_left_out_total", state.counts.get(MESSAGES_LEFT_OUT, 0)),
                ("failing", state.error is not None),
                ("failing_since_timestamp_seconds", since or None),
                ("truncating", state.truncate_to is not None),
            ):  # fmt: skip
                yield f"follower_{name}", value, state.name

    def _of_run(self) -> Iterator[_Sample]:
        measures = self._measures
        yield "build_info", 1, self._version
        for stage, durations in sorted(measures.stages.items()):
            yield "stage_seconds", durations, stage
        yield "append_to_visible_seconds", measures.append_to_visible
        yield "append_to_durable_seconds", measures.append_to_durable
        yield "queries_total", measures.queries
        yield "failing", measures.is_failing
        yield "waiting_for_space", measures.is_waiting
        yield "space_waits_total", measures.space_waits.cumulative[-1]
        yield "space_wait_seconds_total", measures.space_waits.sum
        if measures.queues is not None:
            for queue in measures.queues.measured():
                labels = queue.topic, str(queue.queue_id)
                yield "queue_messages_total", queue.messages, *labels
                stored = queue.last_store_timestamp_ms / 1000
                yield "queue_last_message_timestamp_seconds", stored or None, *labels
            yield "queues_dropped_total", measures.queues.dropped
        progress = measures.progress
        if progress is None:
            return
        begin, position = progress.start_offset, progress.position
        yield "start_position_bytes", begin
        yield "position_bytes", position
        yield "ahead_bytes", progress.ahead_bytes
        if self._log_end is not None:
            whole = self._log_end - begin
            yield "recovery_ratio", min(1.0, (position - begin) / whole) if whole > 0 else 1.0
        yield "eta_seconds", progress.eta_seconds()
        yield "batches_total", progress.batches
        yield "dispatched_bytes_total", max(0, position - begin)
        counts = progress.counts
        for name in counts.__slots__:
            yield f"{name}_total", getattr(counts, name)


class RunsCollector:
    """Prometheus's collector of all runs of this process; one thread at a time may call it."""

    def __init__(
        self, runs: Callable[[], Sequence[tuple[DispatcherConfig, Measures]]], version: str
    ) -> None:
        """``runs`` returns the runs as of now: of several stores, some may come and go."""
        self._runs = runs
        self._version = version
        self._collectors: dict[tuple[Path, int], RunCollector] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield every series of which a value is known, as of the last ``look``."""
        samples: dict[str, list[tuple[str, _Sample]]] = {}
        for store, collector in self._current():
            for sample in collector.samples():
                if sample[1] is not None:
                    samples.setdefault(sample[0], []).append((store, sample))
        for series in SERIES:
            if series.name in samples:
                yield _metric(series, samples[series.name])

    def look(self) -> None:
        """Read what the runs keep in files."""
        for _, collector in self._current():
            collector.look()

    def close(self) -> None:
        """Close the logs."""
        for collector in self._collectors.values():
            collector.close()

    def _current(self) -> Sequence[tuple[str, RunCollector]]:
        """Return the store and the collector of each run that there is, in the order of ``runs``;
        one that has gone and come again has other measures."""
        runs = {
            (config.store, id(measures)): (config, measures) for config, measures in self._runs()
        }
        for gone in self._collectors.keys() - runs.keys():
            self._collectors.pop(gone).close()
        for key in runs.keys() - self._collectors.keys():
            self._collectors[key] = RunCollector(*runs[key], self._version)
        return [(str(key[0]), self._collectors[key]) for key in runs]


def _metric(series: Series, samples: Sequence[tuple[str, _Sample]]) -> Metric:
    """Return one series of all stores."""
    from prometheus_client.metrics_core import Metric  # noqa: PLC0415

    metric = Metric(PREFIX + series.name.removesuffix("_total"), series.meaning, series.kind)
    for store, (_, value, *values) in samples:
        labels = dict(zip(("store", *series.labels), (store, *values), strict=True))
        if isinstance(value, Durations):
            _add_durations(metric, series, labels, value)
        elif value is not None:
            name = metric.name + ("_total" if series.kind == COUNTER else "")
            metric.add_sample(name, labels, float(value))
    return metric


def _of_watermark(watermark: Watermark) -> Iterator[_Sample]:
    yield "watermark_bytes", watermark.end_offset
    yield "epoch", watermark.epoch
    stored = watermark.last_store_timestamp
    yield "last_message_timestamp_seconds", stored / 1000 if stored else None


def _add_durations(
    metric: Metric, series: Series, labels: dict[str, str], value: Durations
) -> None:
    counts = value.cumulative
    if series.kind == HISTOGRAM:
        for bound, count in zip((*map(str, value.bounds), "+Inf"), counts, strict=True):
            metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{metric.name}_count", labels, counts[-1])
    metric.add_sample(f"{metric.name}_sum", labels, value.sum)
