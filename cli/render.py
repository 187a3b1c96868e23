"""Logs, errors and progress of a command, on stderr; as JSON lines with ``--json``.

All of them go through one object, so that no line is printed into a progress bar.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeVar

import typer

from reput import INTERRUPTED, interrupts
from reput.cli.settingflags import with_flags
from reput.cli.texts import escaped, human_bytes, human_seconds, known, time_text
from reput.store.errors import ReputError, StoreError
from reput.streaming.logcontext import store_name
from reput.streaming.waiting import until_ready

if TYPE_CHECKING:
    from reput.cli.bar import Bar
    from reput.streaming.progress import BatchTimes

_Result = TypeVar("_Result")

PLAIN_SECONDS = 10.0


class Shown(Protocol):
    """The part of ``streaming.progress.Progress`` that a progress display reads."""

    position: int
    ahead_bytes: int
    start_offset: int

    @property
    def lag_bytes(self) -> int | None:
        """Bytes of the log that are not dispatched yet; None while unknown."""

    def rates(self) -> tuple[float, float]:
        """Return (messages/s, bytes/s) of the last seconds."""

    def eta_seconds(self) -> float | None:
        """Return the seconds until the run has caught up; None while unknown."""

    def summary(self) -> dict[str, Any]:
        """Return the counts of the run so far, by name; ``messages`` is among them."""

    def take_times(self) -> BatchTimes:
        """Return the longest times of the batches since the last call."""


class _Stderr:
    """Writes lines for people, or JSON with time and level. While there is a bar, they stand above
    it."""

    def __init__(self) -> None:
        self.as_json = False
        self.bar: Bar | None = None

    def say(self, level: str, fields: Mapping[str, object], plain: str) -> None:
        """Write one line at once: ``plain`` for people, ``fields`` for machines. A setting that a
        line of the library names is shown as its option."""
        if self.as_json:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            plain = json_text({"time": now, "level": level, **fields})
        plain = with_flags(plain)
        # never broken, so that a line can be copied and searched for
        if self.bar is None:
            typer.echo(plain, err=True)
        else:
            self.bar.print_above(plain)


logger = logging.getLogger("reput")
_stderr = _Stderr()
_NOT_RETRIABLE: Mapping[str, object] = {"retriable": False}


def fail(line: str, code: int, fields: Mapping[str, object] = _NOT_RETRIABLE) -> NoReturn:
    """Write an error line on stderr, and exit with ``code``: 1 for failed, 2 for called wrongly;
    ``fields`` are those of ``ReputError`` for machines."""
    text = " ".join(line.split())
    _stderr.say("error", {"event": text, **fields}, f"reput: error: {escaped(text)}")
    sys.exit(code)


def system_line(error: OSError) -> str:
    """Return a line about a file or directory that the system refuses."""
    path = Path(os.fsdecode(error.filename))
    if not isinstance(error, PermissionError):
        return f"cannot use {path}: {error.strerror}"
    closed = (
        place
        for place in reversed(path.absolute().parents)
        if not os.access(place, os.X_OK, effective_ids=True)
    )
    place = next(closed, path)
    return f"cannot use {place}: {error.strerror}; give reput's user the permission"


def error_of_store(error: ReputError | OSError) -> ReputError:
    """Return the error of one of several stores, which ends what is done about it alone."""
    if isinstance(error, ReputError):
        return error
    line = str(error) if error.filename is None else system_line(error)
    return StoreError(line, path=error.filename)


def print_note(line: str) -> None:
    """Write a line of information on stderr at once; in a file it looks like a line of the log."""
    text = escaped(line)
    plain = f"reput: {text}" if sys.stderr.isatty() else _stamped("info", time.time(), text)
    _stderr.say("info", {"event": line}, plain)


def _stamped(level: str, seconds: float, text: str) -> str:
    return f"{time_text(int(seconds * 1000))} {level:7} {text}"


def json_text(fields: object, **options: Any) -> str:
    """Return one line of JSON. Characters that could act on a terminal are escaped, others are not;
    ``options`` are those of ``json.dumps``."""
    text = json.dumps(fields, ensure_ascii=False, **options)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _json_escape(c) for c in text)


def _json_escape(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


class _Handler(logging.Handler):
    """Writes a record; one with ``fields`` says them after its event, each as ``name=value``."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: Mapping[str, object] = getattr(record, "fields", {})
        if fields and record.levelno == logging.INFO and _stderr.bar is not None:
            return  # the bar says it
        level, event, store = record.levelname.lower(), record.getMessage(), store_name.get()
        about = {} if store is None else {"store": store}
        text = event + ":" * bool(fields) + _texts_of(fields)
        where = "" if store is None else f"{escaped(store)}: "
        line = _stamped(level, record.created, where + escaped(text))
        _stderr.say(level, {**about, "event": event, **fields}, line)


def _texts_of(fields: Mapping[str, object]) -> str:
    return "".join(f" {name}={_field_text(value)}" for name, value in fields.items())


def _field_text(value: object) -> str:
    """Return a value of a log line; text with blanks is quoted, so that its end can be seen."""
    text = known(value)
    return json_text(text) if " " in text else text


def set_up(as_json: bool) -> None:
    """Send this project's log to stderr, one line for each event, as JSON if ``as_json``."""
    _stderr.as_json = as_json
    logger.handlers = [_Handler()]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    # py4j prints a traceback for each error of our batch callback, and through the root logger for
    # each call of a JVM that is gone; we print one line
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: record.module != "java_gateway")


def set_log_level(level: str) -> None:
    """Send events of this level and above only, such as ``debug``."""
    logger.setLevel(level.upper())


@contextmanager
def stopped_by_signals(
    on_stop: Callable[[], object] = lambda: None,
) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set; a second signal ends the process at once, which
    the next start can cope with.

    ``on_stop`` is called in the signal's handler.
    """
    stop = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()
        on_stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        if interrupts:
            sys.exit(INTERRUPTED)
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def when_ready(work: Callable[[], _Result]) -> _Result:
    """``until_ready`` for a command that follows a store; a signal ends the command meanwhile."""
    with stopped_by_signals() as stop:
        result = until_ready(work, stop)
    # nobody looks at a signal later that has come just before the store was there
    if result is None or stop.is_set():
        raise typer.Exit()
    return result


class ProgressDisplay:
    """Progress of a command, in a ``with`` block: a bar on a terminal, otherwise a line at level
    info for every ten seconds in which something has changed."""

    def __init__(self, doing: str = "dispatching") -> None:
        self._doing = doing
        self._due = time.monotonic() + PLAIN_SECONDS
        self._state = ""
        if sys.stderr.isatty() and not _stderr.as_json:
            from reput.cli.bar import Bar  # noqa: PLC0415

            _stderr.bar = Bar()
            self._task = _stderr.bar.add_task(doing, total=None, at="starting")
            _stderr.bar.start()

    def __call__(self, progress: Shown) -> None:
        """Show the progress of a run."""
        messages, size = progress.rates()
        summary, eta = progress.summary(), progress.eta_seconds()
        ahead = progress.ahead_bytes
        text = (
            f"{summary['messages']:,} messages, {messages:,.0f}/s, {human_bytes(size)}/s, "
            f"lag {human_bytes(progress.lag_bytes)}"
            + (f" ({human_bytes(ahead)} of it scanned)" if ahead else "")
            + f", ETA {human_seconds(eta)}"
        )
        fields = {
            **summary, "lag_bytes": progress.lag_bytes, "scanned_ahead_bytes": ahead,
            "eta_seconds": eta, "messages_per_second": round(messages),
            "bytes_per_second": round(size),
        }  # fmt: skip
        done, lag = progress.position - progress.start_offset, progress.lag_bytes
        total = None if lag is None else done + lag
        self.update(done + ahead, total, text, fields, lambda: progress.take_times().fields())

    def update(
        self,
        done: float,
        total: float | None,
        text: str,
        fields: Mapping[str, object],
        since_line: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        """Show ``done`` of ``total`` in any unit (None: not known), with ``text`` for people and
        ``fields`` for machines. ``since_line`` is asked for more fields for each line."""
        now = time.monotonic()
        if _stderr.bar is not None:
            _stderr.bar.update(self._task, total=total, completed=done, at=text)
        elif now >= self._due and logger.isEnabledFor(logging.INFO):
            state = f"{done} {total}"
            if state != self._state:
                self._state = state
                self._due = now + PLAIN_SECONDS
                more = since_line()
                line = _stamped("info", time.time(), f"{self._doing}: {text}{_texts_of(more)}")
                _stderr.say("info", {"event": self._doing, **fields, **more}, line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if _stderr.bar is not None:
            _stderr.bar.stop()
            _stderr.bar = None
