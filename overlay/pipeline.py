"""Dispatches the overlay's own log, as far as it is durable, in a thread and without Spark.

The queues and the index are built by the dispatcher's own start and commits, so that all its
guarantees hold, and every command can read the overlay as any other output. A batch is what has
become durable while the one before was written, up to the end of a file of the log.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from reput.overlay.lostindex import with_whole_index
from reput.store import fsops
from reput.store.brokerconf import Properties, with_statements
from reput.store.config import StoreSettings
from reput.store.files import BROKER_CONF_FILE
from reput.streaming.commit import OnVisible
from reput.streaming.config import DispatcherConfig
from reput.streaming.space import SpaceWait
from reput.streaming.sparkless import Running, running

FILE_SIZE = "mappedFileSizeCommitLog"
DELAY_LEVELS = "messageDelayLevel"
CLOSE_SECONDS = 10.0
"""Time that an end waits for the batch in progress and what remains."""

logger = logging.getLogger("reput")


def write_settings(root: Path, base: StoreSettings, file_size: int) -> None:
    """State in the overlay's property file what its bytes depend on: the size of the log's files,
    unless it is stated, and the base's delay levels, by which a waiting record is due. Raises
    OutputError, and what ``Properties.read`` raises."""
    path = root / BROKER_CONF_FILE
    stated = Properties.read(path) if path.exists() else Properties(path)
    before = path.read_bytes() if path.exists() else b""
    levels = " ".join(f"{level // 1000}s" for level in base.message_delay_levels_ms)
    values = {} if FILE_SIZE in stated else {FILE_SIZE: str(file_size)}
    data = with_statements(before, {**values, DELAY_LEVELS: levels})
    if data != before:
        fsops.make_directories(root, root)
        fsops.replace_file(path, data)


class Pipeline:
    """Follows the durable end of a log whose appender is open in this process, while in a ``with``
    block; at its end everything durable is dispatched.

    Where the disk is full it waits. After any other error it stands still, and says so in
    ``failure``: nothing is lost, since the next start goes on from the watermark.
    """

    def __init__(self, root: Path, on_visible: OnVisible = lambda *_: None) -> None:
        """``root`` is the store, and the output; ``on_visible`` is called in the thread when the
        queues can be read, and whenever they have grown."""
        self._config = DispatcherConfig(root, root)
        self._on_visible = on_visible
        self._changed = threading.Condition()
        self._durable_end = 0
        self._position = -1
        self._is_closed = False
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._space = SpaceWait((self._config.state_directory,), self._stopping)
        self._thread = threading.Thread(target=self._run, name="reput-pipeline", daemon=True)

    def __enter__(self) -> Pipeline:
        """Take the output over, as soon as the disk has room. Raises what a start of the dispatcher
        raises."""
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._position >= 0 or self._failure is not None)
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(self, *_error: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)
        # a wait for space ends now
        self._stopping.set()
        self._thread.join()

    @property
    def failure(self) -> BaseException | None:
        """The error after which nothing is dispatched any more; None while all is well."""
        return self._failure

    @property
    def position(self) -> int:
        """The watermark: the physical offset up to which every record is in its queue."""
        return self._position

    def advance(self, durable_end: int) -> None:
        """Dispatch up to a physical offset, up to which the log is durable."""
        with self._changed:
            self._durable_end = max(self._durable_end, durable_end)
            self._changed.notify_all()

    def wait_for(self, offset: int, timeout: float | None = None) -> bool:
        """Wait until every record before a physical offset is in its queue; False after ``timeout``
        seconds, or where the pipeline has failed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._position >= offset or self._failure is not None, timeout
            )
        return self._position >= offset

    def _run(self) -> None:
        try:
            self._space.retry(self._dispatch)
        except BaseException as error:
            logger.error("the overlay's queues do not grow any more: %s", error)
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _dispatch(self) -> None:
        config = with_whole_index(self._config)
        with running(config, on_visible=self._on_visible) as run:
            self._note(run.position)
            while (end := self._next_end(run)) is not None:
                run.commit(run.scan(end))
                self._space.progressed()
                self._note(run.position)

    def _next_end(self, run: Running) -> int | None:
        """Wait for more that is durable, and return where the next batch ends; None at the end."""
        position = run.position
        with self._changed:
            self._changed.wait_for(lambda: self._durable_end > position or self._is_closed)
            end = self._durable_end
        if end <= position:
            return None
        run.log.refresh()
        file_size = run.log.file_size
        return min(end, position - position % file_size + file_size)

    def _note(self, position: int) -> None:
        with self._changed:
            self._position = position
            self._changed.notify_all()
