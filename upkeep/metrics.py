"""The metrics of a run, served over HTTP in Prometheus's text format (``upkeep.series``).

A scrape reads what exists already: the run's measures, its positions, the ledger and the followers'
files, and nothing of any queue. A value that is unknown is absent, never 0 (a zero lag looks
healthy). prometheus_client is imported late, because it is an extra.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from checkpoints.followers import read_follower_states
from checkpoints.keptstate import replaced_checkpoints
from checkpoints.ownership import is_owner
from store.errors import ReputError, UsageError, error_text
from store.log.commitlog import CommitLog
from store.log.cursor import LogTail
from store.state.ledger import LedgerCounter
from store.state.watermark import FILE_NAME as WATERMARK
from store.state.watermark import Watermark, WatermarkReader
from streaming.config import DispatcherConfig
from streaming.measures import Durations, Measures
from upkeep.series import COUNTER, HISTOGRAM, PREFIX, SERIES, Series
from upkeep.status import read_lag

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

COUNTED_LAG_BYTES = 32 << 20
"""Bytes of lag up to which a scrape counts its messages, which takes some milliseconds."""

_Value = float | Durations | None
_Sample = tuple[str, _Value] | tuple[str, _Value, str]
"""A series' name, its value, None where it is unknown, and the value of its label."""

logger = logging.getLogger("reput")


class RunCollector:
    """The samples of one run; any thread may ask."""

    def __init__(self, config: DispatcherConfig, measures: Measures, version: str) -> None:
        self._config = config
        self._measures = measures
        self._version = version
        self._watermark = WatermarkReader(config.state_directory)
        self._ledger = LedgerCounter(config.state_directory)
        self._opened: tuple[CommitLog, LogTail] | None = None
        self._opened_for = 0
        """The number of queries that were begun when the log was opened."""
        self._log_end: int | None = None
        self._said: dict[str, str] = {}
        self._one_at_a_time = threading.Lock()

    def samples(self) -> list[_Sample]:
        """Return the samples of every series, also those whose value is not known."""
        with self._one_at_a_time:
            return list(self._samples())

    def close(self) -> None:
        """Close the log."""
        with self._one_at_a_time:
            self._close_log()

    def _close_log(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def _samples(self) -> Iterator[_Sample]:
        began = time.monotonic()
        yield "build_info", 1, self._version
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
        yield from self._of_run()
        yield "scrape_seconds", time.monotonic() - began

    def _of_log(self) -> Iterator[_Sample]:
        self._log_end = None
        # before the log: a dispatcher may be moving it
        watermark = self._watermark.read()
        begun = self._measures.queries
        if self._opened is None or self._opened_for != begun:
            # a run that was started again may have found other directories
            self._close_log()
            log = self._config.given_settings().open_log()
            self._opened, self._opened_for = (log, LogTail(log)), begun
        log, tail = self._opened
        # as the dispatcher does: a search in what is being written takes long
        self._log_end = log_end = tail.settled(patient=True)
        yield "log_start_bytes", log.min_offset
        yield "log_end_bytes", log_end
        lag = read_lag(log, log_end, watermark, COUNTED_LAG_BYTES)
        yield "lag_bytes", lag.bytes
        yield "lag_messages", lag.messages
        yield "lag_seconds", lag.seconds

    def _of_output(self) -> Iterator[_Sample]:
        watermark, output = self._watermark.read(), self._config.output
        if watermark is not None:
            yield from _of_watermark(watermark)
            written = (self._config.state_directory / WATERMARK).stat()
            yield "watermark_timestamp_seconds", written.st_mtime
        if self._measures.progress is not None:
            # the run holds the output by now
            yield "owner", is_owner(output)
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
        for state in read_follower_states(self._config.state_directory):
            if state.name not in names:
                continue  # of an earlier run
            lag = None
            if self._log_end is not None and state.position is not None:
                lag = max(0, self._log_end - state.position)
            since = state.failing_since and datetime.fromisoformat(state.failing_since).timestamp()
            for name, value in (
                ("position_bytes", state.position), ("lag_bytes", lag), ("rows_total", state.rows),
                ("lost_bytes_total", state.lost_bytes), ("failing", state.error is not None),
                ("failing_since_timestamp_seconds", since or None),
                ("truncating", state.truncate_to is not None),
            ):  # fmt: skip
                yield f"follower_{name}", value, state.name

    def _of_run(self) -> Iterator[_Sample]:
        measures = self._measures
        for stage, durations in sorted(measures.stages.items()):
            yield "stage_seconds", durations, stage
        yield "append_to_durable_seconds", measures.append_to_durable
        yield "queries_total", measures.queries
        yield "failing", measures.is_failing
        yield "waiting_for_space", measures.is_waiting
        yield "space_waits_total", measures.space_waits.cumulative[-1]
        yield "space_wait_seconds_total", measures.space_waits.sum
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
    """Prometheus's collector of all runs of this process; any thread may call it."""

    def __init__(
        self, runs: Callable[[], Sequence[tuple[DispatcherConfig, Measures]]], version: str
    ) -> None:
        """``runs`` returns the runs as of now: of several stores, some may come and go."""
        self._runs = runs
        self._version = version
        self._collectors: dict[tuple[Path, int], RunCollector] = {}
        self._one_at_a_time = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """Yield every series of which a value is known."""
        with self._one_at_a_time:
            # one that has gone and come again has other measures
            runs = {
                (config.store, id(measures)): (config, measures)
                for config, measures in self._runs()
            }
            for gone in self._collectors.keys() - runs.keys():
                self._collectors.pop(gone).close()
            for key in runs.keys() - self._collectors.keys():
                self._collectors[key] = RunCollector(*runs[key], self._version)
            found = [(str(key[0]), self._collectors[key].samples()) for key in runs]
        for series in SERIES:
            metric = _metric(series, found)
            if metric.samples:
                yield metric

    def close(self) -> None:
        """Close the logs."""
        with self._one_at_a_time:
            for collector in self._collectors.values():
                collector.close()


def _metric(series: Series, found: Sequence[tuple[str, Sequence[_Sample]]]) -> Metric:
    """Return one series of all stores; without samples where no value is known."""
    from prometheus_client.metrics_core import Metric  # noqa: PLC0415

    metric = Metric(PREFIX + series.name.removesuffix("_total"), series.meaning, series.kind)
    for store, samples in found:
        for name, value, *label in samples:
            if name != series.name:
                continue
            labels = {"store": store}
            if series.label is not None:
                labels[series.label] = label[0]
            if isinstance(value, Durations):
                _add_durations(metric, series, labels, value)
            elif value is not None:
                suffix = "_total" if series.kind == COUNTER else ""
                metric.add_sample(metric.name + suffix, labels, float(value))
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


class MetricsServer:
    """An HTTP server of the runs' metrics for a ``with`` block, and of this process's own."""

    def __init__(self, host: str, port: int, collector: RunsCollector) -> None:
        """Nothing listens yet. Raises UsageError where prometheus_client is missing."""
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415
        except ImportError:
            raise UsageError(
                "--metrics-port needs the package prometheus_client: pip install 'reput[metrics]'"
            ) from None
        self._address = host, port
        self._collector = collector
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)

    def __enter__(self) -> Self:
        """Listen; ``self.port`` is the port that is bound. Raises UsageError."""
        from prometheus_client import start_http_server  # noqa: PLC0415

        host, port = self._address
        try:
            self._server, self._thread = start_http_server(port, host, self._registry)
        except OSError as error:
            raise UsageError(f"--metrics-port cannot listen at {host}:{port}: {error}") from error
        self.port = self._server.server_port
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._collector.close()
