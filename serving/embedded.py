"""A server in the process of the dispatcher whose output it serves.

It runs in a thread with an event loop of its own. All it gets from the dispatcher is the notice
that the watermark has moved. If it fails, it logs one line and the dispatcher goes on; the next
start serves again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from reput.serving.arrivals import NotifiedArrivals
from reput.serving.config import ServerConfig
from reput.serving.server import Server
from reput.serving.stores import BrokerIdentity, ServedStore
from reput.store.config import StoreSettings
from reput.store.errors import error_text
from reput.store.runs.dispatch import Run

STOP_SECONDS = 10.0
"""Time for the last commits; a slow disk does not delay the end of the process any longer."""

logger = logging.getLogger("reput")


class EmbeddedServer:
    """Serves one output from its first watermark on; a context manager, which ends it."""

    def __init__(
        self,
        config: ServerConfig,
        identity: BrokerIdentity,
        output: Path,
        on_ready: Callable[[int], None],
    ) -> None:
        """Bind the port; ``on_ready`` is called with it when clients are served. Raises
        UsageError."""
        self._server = Server(config)
        self._identity = identity
        self._output = output
        self._on_ready = on_ready
        self._loop = asyncio.new_event_loop()
        self._arrivals = NotifiedArrivals(self._loop)
        self._stop = asyncio.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._thread is None:
            self._end()
            return
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            logger.warning("serving did not end in %.0f s and was abandoned", STOP_SECONDS)

    def end_moved(self, settings: StoreSettings, runs: Sequence[Run] | None) -> None:
        """Serve from the first durable watermark on, and wake waiting pulls at each further one,
        which covers these runs (None: any messages). The dispatcher's threads call it."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(settings,), name="reput-serve", daemon=True
            )
            self._thread.start()
        self._arrivals.end_moved(settings, runs)

    def _run(self, settings: StoreSettings) -> None:
        store = ServedStore(self._identity, settings, self._output, self._arrivals)
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(
                    self._server.run(
                        [store], self._stop, lambda: self._on_ready(self._server.ports[0])
                    )
                )
        except Exception as error:
            # dispatching must not depend on serving
            logger.error(
                "serving has ended, dispatching goes on: %s; the next start serves again",
                error_text(error),
            )
        finally:
            self._end()

    def _end(self) -> None:
        self._server.close()
        self._loop.close()
