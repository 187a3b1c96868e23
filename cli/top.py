"""``reput top``: watches an output on a terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Self

from reput.cli import options, render
from reput.cli.clientoptions import address
from reput.cli.terminal import END_OF_INPUT, Terminal
from reput.cli.topview import TopView
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.upkeep.watch.outputs import OutputWatch
from reput.upkeep.watch.stages import StageReader

if TYPE_CHECKING:
    from reput.upkeep.watch.outputs import Reading

READ_SECONDS = 1.0
PAUSE_FACTOR = 4
"""A reading of very many queues takes long: this many times as long nothing is read after it."""


@options.with_options(settings=options.awaited_settings)
def top(
    store: options.Store,
    settings: StoreSettings,
    output: options.ReadOutput = None,
    checkpoint: options.Checkpoint = None,
    metrics: Annotated[
        str | None,
        options.value(
            "[HOST:]PORT",
            "Show the stages of batches of the run that serves its metrics there; the host is "
            "127.0.0.1 if not given.",
        ),
    ] = None,
) -> None:
    """Watch rates, lag, queues, batches, followers and faults of an output on a terminal.

    Reads only, once a second, and needs no JVM. `q` ends it, `h` shows all keys. It works over ssh;
    where there is no terminal, `reput status` shows the same.
    """
    from reput.upkeep.checkpoints import spark_directory_of  # noqa: PLC0415

    where = output or store
    stages = None
    if metrics is not None:
        stages = StageReader(*address("--metrics", metrics, "127.0.0.1"), store)
    status = command_line("status", store, output)
    terminal = Terminal(
        f"{status} shows the same once, with --watch again and again, with --json to programs"
    )
    spark_directory = spark_directory_of(where, checkpoint)
    with (
        OutputWatch(settings, where, spark_directory, stages) as watch,
        _Readings(watch, terminal.wake) as readings,
        render.stopped_by_signals(terminal.wake) as stop,
        terminal,
    ):
        view, reading = TopView(str(where)), None
        while not stop.is_set():
            latest = readings.latest()
            if reading is None or not view.is_paused:
                reading = latest
            terminal.draw(view.picture(reading, *terminal.size()))
            for key in terminal.pressed():
                if key in ("q", END_OF_INPUT):
                    return
                view.press(key)


class _Readings:
    """Reads in a thread of its own, in a ``with`` block: keys act while a reading takes long."""

    def __init__(self, watch: OutputWatch, on_reading: Callable[[], None]) -> None:
        self._watch = watch
        self._on_reading = on_reading
        self._latest: Reading | None = None
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="reput-top", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def latest(self) -> Reading | None:
        """Return the last reading; None before the first. Raises what ended the thread."""
        if self._failure is not None:
            raise self._failure
        return self._latest

    def _read(self) -> None:
        try:
            while not self._ended.is_set():
                began = time.monotonic()
                self._latest = self._watch.read()
                self._on_reading()
                took = time.monotonic() - began
                self._ended.wait(max(READ_SECONDS, PAUSE_FACTOR * took))
        except BaseException as error:
            self._failure = error
            self._on_reading()
