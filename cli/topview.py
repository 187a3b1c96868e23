"""The screen of ``reput top``: a few lines about the whole output, and below them one of six views.

``TopView`` holds what keys change; the picture follows from it, a reading and the terminal's size.
Where a terminal is small, columns and lines leave in the order of their importance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.table import Table as Rows
from rich.text import Text

from reput.cli import texts
from reput.cli.settingflags import with_flags
from reput.store.state.ledger import QUEUE_OFFSET_GAP
from reput.upkeep.watch.outputs import Reading

HELP = (
    "q                  quit",
    "1 to 6, Tab        show another view",
    "s                  sort by the next column",
    "r                  reverse the order",
    "arrows, Page Up,   scroll",
    "  Page Down, Home",
    "p                  pause, and go on",
    "h                  show this help, or leave it",
    "",
    "Rates are those of the last ten seconds. What is not known is",
    "unknown, never 0. Nothing is written.",
)
_KEYS = ("q quit", "h help", "1-6 views", "s sort", "r reverse", "p pause")
_NAME_WIDTH = 11
_BETWEEN = 2
_STEADY = 1.25
"""A rate counts as it was for the order of rows until it differs by this factor."""
_TOPIC_WIDTH = 14
"""Cells that a table's first column has at least, unless no other column is left."""
_MAX_FOLDED = 8
"""Lines that one fault may take."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a view; the first one takes the room that the others leave."""

    title: str
    form: Callable[[Any], str] = texts.shown
    rank: int = 0
    """Columns of the highest rank leave first where there is no room."""
    width: int = 6
    """Cells at least, so that columns stay where they are while numbers grow."""
    is_rate: bool = False
    """Whether it jitters: rows that are sorted by it stay where they are while it does."""

    def shown(self, value: Any) -> str:
        """Return a row's value as text."""
        return "unknown" if value is None else self.form(value)


@dataclass(frozen=True, slots=True)
class Table:
    """A view's rows, one value for each column, None where it is unknown."""

    columns: tuple[Column, ...]
    rows: Sequence[tuple[Any, ...]]
    without: str
    """The line in place of no rows."""
    names: int = 1
    """The columns, from the first on, that tell a row from all others."""


_milliseconds = "{:,.1f}".format


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _ago(seconds: float) -> str:
    return f"{texts.human_seconds(max(0.0, seconds))} ago"


def _total(values: Sequence[float | None]) -> float | None:
    """Return a sum, which is unknown where a part of it is."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if len(numbers) == len(values) else None


def _difference(high: int | None, low: int | None) -> int | None:
    return None if high is None or low is None else high - low


def queues(reading: Reading) -> Table | str:
    """Each queue with its bounds and rate."""
    if reading.queues is None:
        return f"unknown: {reading.unreadable['queues']}"
    columns = (
        Column("topic"), Column("queue"), Column("min", rank=3, width=9),
        Column("max", rank=1, width=9), Column("messages", texts.grouped, 2, 9),
        Column("messages/s", _rate, is_rate=True),
    )  # fmt: skip
    rows = [
        (queue.topic, queue.queue_id, queue.min_offset, queue.max_offset,
         _difference(queue.max_offset, queue.min_offset), queue.rate)
        for queue in reading.queues
    ]  # fmt: skip
    return Table(columns, rows, "no queues", names=2)


def topics(reading: Reading) -> Table | str:
    """Each topic with the sums of its queues."""
    table = queues(reading)
    if isinstance(table, str):
        return table
    of_topic: dict[str, list[tuple[Any, ...]]] = {}
    for row in table.rows:
        of_topic.setdefault(row[0], []).append(row)
    columns = (
        Column("topic"), Column("queues", texts.grouped, 2),
        Column("messages", texts.grouped, 1, 9), Column("messages/s", _rate, is_rate=True),
    )  # fmt: skip
    rows = [
        (topic, len(of), _total([row[4] for row in of]), _total([row[5] for row in of]))
        for topic, of in of_topic.items()
    ]
    return Table(columns, rows, "no queues")


def batches(reading: Reading) -> Table | str:
    """Each batch that Spark's checkpoint lists, the newest first."""
    if reading.batches is None:
        return f"unknown: {reading.unreadable.get('batches', 'there is no watermark')}"
    columns = (
        Column("batch"), Column("start", rank=3, width=9), Column("end", rank=1, width=9),
        Column("size", texts.human_bytes, 0, 10), Column("planned", _ago, 2, 10),
        Column("state", width=9),
    )  # fmt: skip
    rows = []
    for batch in reversed(reading.batches):
        state = "committed" if batch.is_committed else "planned"
        if reading.watermark is not None and batch.end <= reading.watermark:
            state = "durable"
        age = None if batch.planned_ms is None else reading.taken - batch.planned_ms / 1000
        size = _difference(batch.end, batch.start)
        rows.append((batch.batch_id, batch.start, batch.end, size, age, state))
    return Table(columns, rows, "no batches in Spark's checkpoint")


def stages(reading: Reading) -> Table | str:
    """Each stage of a run's batches, if the run's metrics are read."""
    if reading.stages is None:
        told = reading.unreadable.get("metrics")
        return f"unknown: {told or 'start the run with --metrics-port, and give its address here'}"
    columns = (
        Column("stage"), Column("times", texts.grouped, 1),
        Column("recent ms", _milliseconds, 0, 10), Column("mean ms", _milliseconds, 2, 10),
        Column("seconds", _milliseconds, 3, 10),
    )  # fmt: skip
    rows = [
        (stage.name, stage.count, stage.recent_ms,
         1000 * stage.seconds / stage.count if stage.count else None, stage.seconds)
        for stage in reading.stages.stages
    ]  # fmt: skip
    return Table(columns, rows, "no batch yet")


def followers(reading: Reading) -> Table | str:
    """Each Delta table and Kafka mirror that ever followed."""
    if reading.followers is None:
        return f"unknown: {reading.unreadable['followers']}"
    columns = (
        Column("follower"), Column("position", rank=3, width=9),
        Column("lag", texts.human_bytes, 0, 10), Column("rows", texts.grouped, 1, 9),
        Column("lost bytes", texts.grouped, 2), Column("state"),
    )  # fmt: skip
    rows = [
        (follower.name, follower.position, follower.lag_bytes, follower.rows, follower.lost_bytes,
         "failing" if follower.error
         else "truncating" if follower.truncate_to is not None else "ok")
        for follower in reading.followers
    ]  # fmt: skip
    return Table(columns, rows, "no followers")


def faults(reading: Reading) -> list[str]:
    """Return a line for everything that is not as it should be."""
    lines = [f"log: {reading.differs}"] if reading.differs else []
    lines += [f"run: {reading.unstopped_run}"] if reading.unstopped_run else []
    lines += [f"{part}: {why}" for part, why in reading.unreadable.items()]
    lines += [
        f"follower {follower.name}: {follower.error}; since "
        f"{texts.moment_text(follower.failing_since)}"
        for follower in reading.followers or ()
        if follower.error
    ]
    for entry in reading.ledger or ():
        ranges = texts.counted(entry.ranges, "range")
        if entry.reason == QUEUE_OFFSET_GAP:
            lines.append(f"gaps: queue offsets jump at {texts.counted(entry.ranges, 'place')}")
        else:
            lines.append(f"quarantine: {entry.reason}, {ranges} of {entry.bytes:,} bytes")
    return lines + [f"spark's checkpoint: {name}" for name in reading.damage]


VIEWS: dict[str, Callable[[Reading], Table | str]] = {
    "queues": queues, "topics": topics, "batches": batches, "stages": stages,
    "followers": followers, "faults": lambda reading: "\n".join(faults(reading)) or "no faults",
}  # fmt: skip


@dataclass(slots=True)
class _Order:
    """The order of one view's rows; a column that is None leaves them as they are."""

    column: int | None = None
    is_falling: bool = False


@dataclass(slots=True)
class TopView:
    """The state that keys change."""

    title: str
    is_paused: bool = False
    _has_help: bool = False
    _view: int = 0
    _top: int = 0
    """The first row that is shown."""
    _page: int = 1
    _last_top: int = 0
    """With the next one, as the last picture found it: the first row of the view's end."""
    _column_count: int = 1
    _orders: dict[str, _Order] = field(
        default_factory=lambda: {"queues": _Order(5, True), "topics": _Order(3, True)}
    )
    _steady: dict[tuple[Any, ...], float] = field(default_factory=dict)
    """The names of a row -> the rate by which it is sorted."""

    def press(self, key: str) -> None:
        """Act as a key asks; one that means nothing does nothing."""
        order = self._orders.setdefault(list(VIEWS)[self._view], _Order())
        was_shown = self._has_help
        self._has_help = key in ("h", "?") and not was_shown
        match key:
            case "1" | "2" | "3" | "4" | "5" | "6":
                self._view, self._top = int(key) - 1, 0
            case "tab" | "right":
                self._view, self._top = (self._view + 1) % len(VIEWS), 0
            case "back tab" | "left":
                self._view, self._top = (self._view - 1) % len(VIEWS), 0
            case "s":
                following = 0 if order.column is None else order.column + 1
                order.column, self._top = following % self._column_count, 0
            case "r":
                order.is_falling, self._top = not order.is_falling, 0
            case "p":
                self.is_paused = not self.is_paused
            case "up" | "down" | "page up" | "page down":
                size = self._page if key.startswith("page") else 1
                top = self._top + (size if key.endswith("down") else -size)
                self._top = max(0, min(top, self._last_top))
            case "home":
                self._top = 0
            case "end":
                self._top = self._last_top

    def picture(self, reading: Reading | None, columns: int, lines: int) -> RenderableType:
        """Return the whole screen of a terminal of this size; without a reading it is awaited."""
        clock = "" if reading is None else f"{texts.time_text(int(reading.taken * 1000))[11:19]}Z"
        state = f"paused {clock}" if self.is_paused else clock
        head: list[RenderableType] = [
            _sides(f"reput top  {texts.escaped(self.title)}", state, "reverse")
        ]
        if reading is None:
            return Group(*head, "reading")
        # four lines are left to the view where the terminal has them
        head += _about(reading)[: max(1, lines - 7)]
        head.append(self._names(columns))
        room = max(0, lines - len(head) - 1)
        body, where = self._body(reading, columns, room)
        screen = Layout()
        screen.split_column(
            Layout(Group(*head), size=min(len(head), lines - 1)),
            Layout(body, visible=room > 0),
            Layout(_sides(_keys(columns - len(where)), where, "dim"), size=1),
        )
        return screen

    def _names(self, columns: int) -> Text:
        """Return the names of the views, the shown one standing out; only its own where there is no
        room."""
        names = [f"{number} {name}" for number, name in enumerate(VIEWS, 1)]
        if len("  ".join(names)) > columns:
            names = [name if at == self._view else name[0] for at, name in enumerate(names)]
        styles = ["bold reverse" if at == self._view else "" for at in range(len(names))]
        return _line("  ").join(map(Text, names, styles))

    def _body(self, reading: Reading, columns: int, room: int) -> tuple[RenderableType, str]:
        """Return the view and where its rows stand in all of them."""
        name, shown = list(VIEWS.items())[self._view]
        content = shown(reading)
        if self._has_help:
            content = "\n".join(HELP)
        if isinstance(content, str):
            folded = [
                line
                for part in with_flags(content).split("\n")
                for line in texts.folded(texts.escaped(part), columns, _MAX_FOLDED)
            ]
            return Group(*map(_line, self._window(folded, room))), ""
        self._column_count = len(content.columns)
        order = self._orders.setdefault(name, _Order())
        rows = self._window(self._sorted(content, order), room - 1)
        if not rows:
            return _line(content.without), ""
        sorted_by = "" if order.column is None else f"by {content.columns[order.column].title}, "
        where = f"{sorted_by}{self._top + 1}-{self._top + len(rows)} of {len(content.rows)}"
        return _table(content, rows, order, columns), where

    def _sorted(self, table: Table, order: _Order) -> Sequence[tuple[Any, ...]]:
        """Return rows in an order, those with an unknown value last; equal ones stay as they
        were."""
        by = order.column
        if by is None:
            return table.rows[::-1] if order.is_falling else table.rows
        keyed_rows = [(self._steadied(table, row, by), row) for row in table.rows]
        ordered = [pair for pair in keyed_rows if pair[0] is not None]
        ordered.sort(key=lambda pair: pair[0], reverse=order.is_falling)
        return [row for _, row in ordered] + [row for value, row in keyed_rows if value is None]

    def _steadied(self, table: Table, row: tuple[Any, ...], by: int) -> Any:
        """Return the value by which a row is sorted."""
        value = row[by]
        if not table.columns[by].is_rate or value is None:
            return value
        name = row[: table.names]
        before = self._steady.get(name, 0.0)
        if not before / _STEADY <= value <= before * _STEADY:
            self._steady[name] = value
        return self._steady.get(name, value)

    def _window(self, rows: Sequence[Any], room: int) -> Sequence[Any]:
        """Return the rows that are shown, and keep the first one within what there is."""
        self._page = max(1, room)
        self._last_top = max(0, len(rows) - self._page)
        self._top = min(self._top, self._last_top)
        return rows[self._top : self._top + max(0, room)]


def _about(reading: Reading) -> list[Text]:
    """Return the lines about the whole output, the most important first."""
    lag, fault_lines = reading.lag, [*map(with_flags, faults(reading))]
    text = texts.lag_words(lag.bytes, lag.messages, lag.seconds)
    if lag.bytes and lag.seconds is not None and reading.dispatched_rate:
        text += f", ETA {texts.human_seconds(lag.bytes / reading.dispatched_rate)}"
    entries = (
        _total([queue.rate for queue in reading.queues]) if reading.queues is not None else None
    )
    rates = [] if entries is None else [f"{_rate(entries)} messages/s"]
    for words, size in (("", reading.dispatched_rate), ("the log grows ", reading.appended_rate)):
        rates += [] if size is None else [f"{words}{texts.human_bytes(size)}/s"]
    written = (
        f", written {_ago(reading.watermark_age)}" if reading.watermark_age is not None else ""
    )
    log = "unknown"
    if reading.log_min is not None:
        log = f"[{reading.log_min}, {reading.log_end})"
    none = "unknown" if "watermark" in reading.unreadable else "none, reput has not built here"
    following = "unknown"
    if reading.followers is not None:
        following = "; ".join(
            f"{follower.name} lag {texts.human_bytes(follower.lag_bytes)}"
            f"{', failing' if follower.error else ''}"
            for follower in reading.followers
        )
    told = f"{len(fault_lines)}: {fault_lines[0]}" if fault_lines else "none"
    writer = f"process {reading.writer_pid}" if reading.writer_pid else "none"
    watermark = none if reading.watermark is None else f"{reading.watermark}{written}"
    lines = {
        "lag": text, "rates": ", ".join(rates) or "unknown", "watermark": watermark, "faults": told,
        "followers": following or "none", "log": log, "writer": writer,
    }  # fmt: skip
    return [
        _line(name.ljust(_NAME_WIDTH), "bold").append(
            texts.escaped(line), "red" if fault_lines and name == "faults" else "not bold"
        )
        for name, line in lines.items()
    ]


def _table(table: Table, rows: Sequence[tuple[Any, ...]], order: _Order, columns: int) -> Rows:
    """Return a heading and a line for each row; columns leave until the first one has room."""
    cells = [[column.shown(value) for column, value in zip(table.columns, row, strict=True)]
             for row in rows]  # fmt: skip
    widths = {
        at: max(column.width, len(column.title), *(cell_len(line[at]) for line in cells))
        for at, column in enumerate(table.columns)
        if at
    }
    while widths and columns - sum(widths.values()) - _BETWEEN * len(widths) < _TOPIC_WIDTH:
        del widths[max(widths, key=lambda at: table.columns[at].rank)]
    shown = Rows(box=None, expand=True, pad_edge=False, padding=(0, 0, 0, _BETWEEN))
    for at in (0, *widths):
        style = "bold reverse" if at == order.column else "bold"
        shown.add_column(
            Text(table.columns[at].title, style), no_wrap=True, width=widths.get(at),
            justify="right" if at else "left", ratio=None if at else 1,
        )  # fmt: skip
    for line in cells:
        shown.add_row(*(Text(line[at]) for at in (0, *widths)))
    return shown


def _line(text: str, style: str = "") -> Text:
    """Return a line that is cut where the terminal ends."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _sides(left: str, right: str, style: str) -> Rows:
    """Return a line with a text on either side, of which the left one gives way."""
    line = Rows.grid(expand=True, padding=(0, 0, 0, 1))
    line.add_column(ratio=1, no_wrap=True)
    line.add_column(no_wrap=True, min_width=len(right))
    line.add_row(Text(left), Text(right), style=style)
    return line


def _keys(room: int) -> str:
    """Return as many keys as there is room for."""
    keys = ""
    for key in _KEYS:
        longer = f"{keys}  {key}".strip()
        keys = longer if len(longer) < room else keys
    return keys
