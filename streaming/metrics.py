"""The metrics of a run, served over HTTP in Prometheus's text format.

The collector adds no state to a run and nothing to its commits: at a scrape it reads the run's
Progress, the ledger and the followers' files. A value that is unknown is absent, never 0 (a zero
lag looks healthy). prometheus_client is imported late, because it is an extra.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from checkpoints import STATE_DIRECTORY
from checkpoints.followers import read_follower_states
from store.config import StoreSettings
from store.errors import ReputError, UsageError
from store.filetimes import Watched
from store.state.ledger import FILE_NAME as LEDGER
from store.state.ledger import read_counts
from streaming.progress import Progress
from upkeep.status import lag_seconds

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PREFIX = "reput_"

logger = logging.getLogger("reput")


class RunCollector:
    """Prometheus's collector of one run; it may be called in any thread."""

    def __init__(self, settings: StoreSettings, output: Path) -> None:
        self._settings = settings
        self._state = output / STATE_DIRECTORY
        self._ledger = Watched(self._state / LEDGER, lambda: read_counts(self._state))
        self.progress: Progress | None = None
        """The run's progress; None before its first positions are known."""

    def collect(self) -> Iterator[Metric]:
        """Yield every series whose value is known."""
        progress = self.progress
        if progress is not None:
            yield from _of_progress(progress)
        # what cannot be read now is unknown, and hides nothing else
        for part in (lambda: self._lag(progress), self._of_ledger, self._of_followers):
            try:
                yield from [*part()]
            except (ReputError, OSError) as error:
                logger.warning("metrics are missing: %s", error)

    def _lag(self, progress: Progress | None) -> Iterator[Metric]:
        if progress is None or progress.log_end is None:
            return
        log = self._settings.open_log()
        try:
            seconds = lag_seconds(log, progress.position, progress.log_end)
        finally:
            log.close()
        if seconds is not None:
            help_text = "Age of the first message that is not dispatched, by its store time."
            yield _gauge("lag_seconds", help_text, seconds)

    def _of_ledger(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

        ranges = GaugeMetricFamily(
            f"{PREFIX}ledger_ranges", "Ranges in the ledger, by reason.", labels=["reason"]
        )
        size = GaugeMetricFamily(
            f"{PREFIX}ledger_bytes", "Bytes of log in the ledger, by reason.", labels=["reason"]
        )
        for count in self._ledger.value():
            ranges.add_metric([count.reason], count.ranges)
            size.add_metric([count.reason], count.bytes)
        yield from (ranges, size)

    def _of_followers(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

        failing = GaugeMetricFamily(
            f"{PREFIX}follower_failing", "1 if the follower's last attempt failed.",
            labels=["follower"],
        )  # fmt: skip
        position = GaugeMetricFamily(
            f"{PREFIX}follower_position_bytes", "End of the log that the follower's target holds.",
            labels=["follower"],
        )  # fmt: skip
        for state in read_follower_states(self._state):
            failing.add_metric([state.name], int(state.error is not None))
            if state.position is not None:
                position.add_metric([state.name], state.position)
        yield from (failing, position)


def _of_progress(progress: Progress) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415

    counts = progress.counts
    for name, help_text, value in (
        ("batches", "Batches that are durable.", progress.batches),
        ("messages", "Messages dispatched, duplicates included.", counts.messages),
        ("duplicates", "Messages that were built before.", counts.duplicates),
        ("gaps", "Places where queue offsets jump forward.", counts.gaps),
        ("quarantined_messages", "Sound messages without entry.", counts.quarantined_messages),
        ("quarantined_bytes", "Bytes of log without entry.", counts.quarantined_bytes),
    ):
        yield CounterMetricFamily(PREFIX + name, f"{help_text} Since the run began.", value=value)
    yield _gauge("watermark_bytes", "Physical offset of the watermark.", progress.end_offset)
    yield _gauge("position_bytes", "End of what this run has dispatched.", progress.position)
    yield _gauge("ahead_bytes", "Bytes scanned and not durable yet.", progress.ahead_bytes)
    log_end, lag = progress.log_end, progress.lag_bytes
    if log_end is not None and lag is not None:
        yield _gauge("log_end_bytes", "End of the log as last seen.", log_end)
        yield _gauge("lag_bytes", "Bytes of log that are not dispatched.", lag)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

    return GaugeMetricFamily(PREFIX + name, help_text, value=value)


class MetricsServer:
    """An HTTP server of one run's metrics, for a ``with`` block."""

    def __init__(self, host: str, port: int, collector: RunCollector) -> None:
        """Bind the port; ``self.port`` is the one bound. Raises UsageError."""
        try:
            from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415
        except ImportError:
            raise UsageError(
                "--metrics needs the package prometheus_client: pip install 'reput[metrics]'"
            ) from None
        registry = CollectorRegistry()
        registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UsageError(f"--metrics cannot listen at {host}:{port}: {error}") from None
        self.collector = collector
        self.port = self._server.server_port

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
