"""Keeps the metrics of runs fresh, and hands them to a process that answers scrapes.

A thread looks at the log and the output every second, so that a scrape waits neither for a disk nor
for Python's lock (``pageserver``). prometheus_client is imported late, because it is an
extra.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import BinaryIO, Self

from reput.store.errors import PASSING_ERRORS, StoreError, UsageError
from reput.upkeep.watch import pageserver
from reput.upkeep.watch.metrics import RunsCollector

LOOK_SECONDS = 1.0
"""Time between two looks; each takes some milliseconds of CPU."""

logger = logging.getLogger("reput")


class MetricsServer:
    """A server of the runs' metrics for a ``with`` block, and of this process's own."""

    def __init__(self, host: str, port: int, collector: RunsCollector) -> None:
        """Nothing listens yet. Raises UsageError where prometheus_client is missing."""
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415
        except ImportError:
            raise UsageError(
                "`metrics_port=` needs the package prometheus_client: pip install 'reput[metrics]'"
            ) from None
        self._address = host, port
        self._collector = collector
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_fresh, name="reput-metrics", daemon=True)

    def __enter__(self) -> Self:
        """Listen; ``self.port`` is the port that is bound. Raises StoreError where it is taken, and
        UsageError for an address that cannot be one."""
        host, port = self._address
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listening = socket.create_server((host, port), family=family)
        except (OSError, UnicodeError) as error:
            line = f"`metrics_port=` cannot listen at {host}:{port}: {error}"
            if isinstance(error, OSError) and error.errno in PASSING_ERRORS:
                raise StoreError(line) from error
            raise UsageError(line) from error
        self.port = self._listening.getsockname()[1]
        self._start()
        # what is known without a look, so that the first scrape waits for none
        self._send(self.page())
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        # it keeps nothing, and a write to it that waits ends with it
        self._process.kill()
        self._thread.join()
        self._end()
        self._listening.close()
        self._collector.close()

    def page(self) -> bytes:
        """Return the metrics in Prometheus's text format, as the last look found them."""
        from prometheus_client import generate_latest  # noqa: PLC0415

        return generate_latest(self._registry)

    def _keep_fresh(self) -> None:
        while not self._stopping.is_set():
            self._collector.look()
            try:
                self._send(self.page())
            except OSError:
                if not self._stopping.is_set():
                    logger.warning("the process that serves the metrics has ended: starting anew")
                    self._end()
                    self._start()
            self._stopping.wait(LOOK_SECONDS)

    def _start(self) -> None:
        # isolated, and without site-packages, it is there before the run has imported its own; with
        # a process group of its own, since Ctrl-C is for the run, with which it ends
        listening = self._listening.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-IS", pageserver.__file__, str(listening)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(listening,), process_group=0,
        )  # fmt: skip

    def _send(self, page: bytes) -> None:
        """Raises OSError where the process has ended."""
        pages = self._pages
        pages.write(len(page).to_bytes(pageserver.LENGTH_BYTES, "big") + page)
        pages.flush()

    def _end(self) -> None:
        with suppress(OSError):  # a page may be left that nobody reads
            self._pages.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait()

    @property
    def _pages(self) -> BinaryIO:
        assert self._process.stdin is not None
        return self._process.stdin  # type: ignore[return-value]
