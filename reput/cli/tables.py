"""Tables, fields, numbers and times for people. A number that an option takes, an offset say, is
printed as the option takes it; only counts in sentences are grouped by thousands.

Text comes from anywhere and never acts on a terminal: it is no markup, and what is not printable is
shown as an escape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from upkeep.compare import Comparison, Difference, Fields

SHOWN_LINES = 12
"""Lines of a terminal that one value may take; more of it is counted, not shown."""
_BETWEEN = 2
"""Characters between a table's columns."""
_UNBROKEN = 1 << 16


def _console() -> Console:
    """Where no terminal sets a width, no line is broken."""
    console = Console()
    if not console.is_terminal:
        console.width = _UNBROKEN
    return console


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout where it fits; else one record a block, a line a field."""
    console = _console()
    texts = [[shown(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *texts, strict=True)]
    if title:
        console.print(Text(title, style="italic"))
    if sum(widths) + _BETWEEN * (len(widths) - 1) > console.width:
        for number, row in enumerate(texts, 1):
            console.print(Text(f"[{number}]", style="bold"))
            _print_fields(console, dict(zip(columns, row, strict=True)))
    else:
        table = Table(
            box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, _BETWEEN, 0, 0)
        )
        for column in columns:
            table.add_column(column, no_wrap=True)
        for row in texts:
            table.add_row(*map(Text, row))
        console.print(table)


def print_fields(title: str, fields: Mapping[str, object]) -> None:
    """One record on stdout, a line a field; a mapping among the values is a line an entry."""
    console = _console()
    console.print(Text(title, style="italic"))
    flat: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat |= {f"{name} {escaped(str(key))}": shown(one) for key, one in value.items()}
        else:
            flat[name] = shown(value)
    _print_fields(console, flat)


def _print_fields(console: Console, fields: Mapping[str, str]) -> None:
    name_width = min(max(map(cell_len, fields), default=0), console.width // 2) + _BETWEEN
    room = max(console.width - name_width, 1)
    for name, value in fields.items():
        text = Text(elided(value, room * SHOWN_LINES))
        first = f"{set_cell_size(name, name_width - _BETWEEN)}{' ' * _BETWEEN}"
        for line in text.wrap(console, room, overflow="fold") or [text]:
            line.rstrip()
            console.print(Text.assemble((first, "bold"), line), soft_wrap=True)
            first = " " * name_width


def print_entry(heading: str, body: str | None, lines: int) -> None:
    """An entry of a list: a line that says which, and up to ``lines`` of its text below it."""
    console = _console()
    console.print(Text(heading, style="bold"))
    if body:
        indented = console.width - _BETWEEN
        text = Text(elided(escaped(body), indented * lines), overflow="fold")
        console.print(Padding(text, (0, 0, 0, _BETWEEN)))


def print_line(line: str) -> None:
    """A sentence on stdout, broken between words where the terminal ends."""
    _console().print(Text(line))


def elided(text: str, length: int) -> str:
    """``text``, or its first ``length`` characters and how many more there are."""
    more = len(text) - length
    return text if more <= 0 else f"{text[:length]}... ({more:,} more characters)"


def shown(value: object) -> str:
    """A value for people: what is not there is said to be so, a time has its zone."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return time_text(round(value.timestamp() * 1000))
        case bytes():
            return escaped(value.decode("utf-8", "backslashreplace"))
        case dict():
            return " ".join(f"{escaped(str(key))}={shown(one)}" for key, one in value.items())
        case _:
            return escaped(str(value))


def known(value: object) -> str:
    """The same of what may be unknown."""
    return "unknown" if value is None else shown(value)


def escaped(text: str) -> str:
    """Text from anywhere, harmless on a terminal: what is not printable, as control characters,
    line feeds and those that turn the direction of writing, is shown as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def time_text(milliseconds: int) -> str:
    """A time in ISO 8601, UTC, as options take it; the number where no calendar has it."""
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


def human_bytes(count: float) -> str:
    """``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """``12.3 s``, ``4 min 10 s``, ``3 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def lag_text(lag_bytes: int | None) -> str:
    """A lag for people."""
    return "unknown" if lag_bytes is None else human_bytes(lag_bytes)


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """How much was compared and how much of it differs, a line a kind."""
    different = Counter(difference.kind for difference in comparison.differences)
    for kind, count in comparison.compared.items():
        result = f"{different[kind]:,} differ" if different[kind] else "equal"
        yield f"{kind:20} {count:,} compared, {result}"


def print_differences(differences: Sequence[Difference], left: object, right: object) -> None:
    """Each entry that differs, as both sides have it; ``left`` and ``right`` name the stores."""
    for one in differences:
        sides = {str(left): _fields(one.left), str(right): _fields(one.right)}
        print_sides(" ".join(filter(None, (one.kind, one.place, one.entry))), sides)


def print_sides(heading: str, sides: Mapping[str, str]) -> None:
    """One difference: what and where, and below it what each side has there."""
    console = _console()
    console.print(Text(escaped(heading), style="bold"))
    _print_fields(console, {f"  {escaped(name)}": text for name, text in sides.items()})


def _fields(fields: Fields | None) -> str:
    if fields is None:
        return "nothing"
    return ", ".join(f"{name} {value}" for name, value in fields.items())
