"""How things are shown: logs, errors, progress, tables; plain or JSON where no terminal is."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Any, NoReturn, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from reput import INTERRUPTED
from store.compare import Comparison, Difference, Fields

PLAIN_SECONDS = 5.0


class Shown(Protocol):
    """What a progress display asks of ``streaming.progress.Progress``."""

    end_offset: int
    start_offset: int
    log_end: int | None

    @property
    def lag_bytes(self) -> int | None:
        """Bytes of log to go; None while unknown."""

    def rates(self) -> tuple[float, float]:
        """(messages/s, bytes/s)."""

    def eta_seconds(self) -> float | None:
        """Seconds to go; None while unknown."""

    def summary(self) -> dict[str, Any]:
        """Counts so far."""


def fail(line: str, code: int) -> NoReturn:
    """One line on stderr, then the end."""
    print_note(f"error: {' '.join(line.split())}")
    sys.exit(code)


def print_note(line: str) -> None:
    """One line on stderr, at once."""
    print(f"reput: {escaped(line)}", file=sys.stderr, flush=True)


class _Formatter(logging.Formatter):
    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        now = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, text = record.levelname.lower(), record.getMessage()
        if self._as_json:
            return json.dumps({"time": now, "level": level, "event": text})
        return f"{now} {level:7} {text}"


def set_up_logging(as_json: bool) -> None:
    """Our events on stderr, a line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(as_json))
    logger = logging.getLogger("reput")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    # py4j prints a traceback for whatever our batch callback raises; we say it in one line
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; a second one ends at once (a restart heals)."""
    stop = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ProgressDisplay:
    """A bar with rate, lag and ETA on a terminal; otherwise a line every few seconds."""

    def __init__(self, as_json: bool, doing: str = "dispatching") -> None:
        self._json = as_json
        self._due = time.monotonic() + PLAIN_SECONDS
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal and not as_json:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[at]}"),
            )
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task(doing, total=None, at="")
            self._bar.start()

    def __call__(self, progress: Shown) -> None:
        """Show where a run stands."""
        if self._bar is not None:
            total = None if progress.log_end is None else progress.log_end - progress.start_offset
            done = progress.end_offset - progress.start_offset
            self._bar.update(self._task, total=total, completed=done, at=_line(progress))
        elif time.monotonic() >= self._due:
            self._due = time.monotonic() + PLAIN_SECONDS
            if self._json:
                messages, size = progress.rates()
                fields = {"lag_bytes": progress.lag_bytes, "eta_seconds": progress.eta_seconds()}
                rates = {"messages_per_second": round(messages), "bytes_per_second": round(size)}
                print(json.dumps({**progress.summary(), **fields, **rates}), file=sys.stderr)
            else:
                print(_line(progress), file=sys.stderr)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


def _line(progress: Shown) -> str:
    messages, size = progress.rates()
    eta = progress.eta_seconds()
    return (
        f"{progress.summary()['messages']:,} messages, {messages:,.0f}/s, {human_bytes(size)}/s, "
        f"lag {lag_text(progress.lag_bytes)}, ETA {'unknown' if eta is None else f'{eta:.0f} s'}"
    )


def human_bytes(count: float) -> str:
    """``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def lag_text(lag_bytes: int | None) -> str:
    """A lag for people."""
    return "unknown" if lag_bytes is None else human_bytes(lag_bytes)


def known(value: object) -> str:
    """A value for people: what is not known is said to be so."""
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout; cells are text from anywhere and are never taken for markup."""
    console = Console()
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    console.print(table)


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """How much was compared and how much of it differs, a line a kind."""
    different = Counter(difference.kind for difference in comparison.differences)
    for kind, count in comparison.compared.items():
        result = f"{different[kind]:,} differ" if different[kind] else "equal"
        yield f"{kind:20} {count:,} compared, {result}"


def difference_rows(
    differences: Sequence[Difference], left: object, right: object
) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Columns and rows for ``print_table``; ``left`` and ``right`` name the stores."""
    rows = [
        (one.kind, one.place, one.entry, _fields(one.left), _fields(one.right))
        for one in differences
    ]
    return ("kind", "where", "entry", str(left), str(right)), rows


def _fields(fields: Fields | None) -> str:
    if fields is None:
        return "nothing"
    return ", ".join(f"{name} {value}" for name, value in fields.items())


def escaped(text: str) -> str:
    """Text from anywhere, harmless on a terminal: what is not printable, as control characters,
    line feeds and those that turn the direction of writing, is shown as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cell(value: object) -> Text:
    """A table's cell; never markup."""
    return Text(escaped(known(value)))
