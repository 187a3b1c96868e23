"""The common part of the sources' options: their tables, parsers, and the rejection of unknown
keys."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from reput.store.errors import UsageError
from reput.store.rows.rowform import RowForm

EARLIEST, LATEST = "earliest", "latest"
LOCAL_ZONE = "local"
_EPOCH = datetime.fromtimestamp(0, UTC)
_SIZE = re.compile(r"([0-9]{1,15})([kmgt]?)b?\Z", re.ASCII | re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_DURATION = re.compile(r"([0-9]{1,12})(us|ms|s|m|min|h|d)?\Z", re.ASCII)
_DURATION_UNITS_MS = {
    "us": 0.001, "ms": 1, None: 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000,
    "d": 86_400_000,
}  # fmt: skip
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str) -> int:
    """Parse bytes from ``64k``, ``1g``, ``1048576``. Raises ValueError."""
    match = _SIZE.match(text.strip())
    if not match or int(match[1]) < 1:
        raise ValueError("must be a number of bytes above 0, optionally with k, m, g or t")
    return int(match[1]) * _SIZE_UNITS[match[2].lower()]


def parse_duration_ms(text: str) -> int:
    """Parse milliseconds from ``500``, ``30s``, ``15m``, ``1h``, as Spark does. Raises
    ValueError."""
    match = _DURATION.match(text.strip().lower())
    if not match:
        raise ValueError(
            "must be a time such as 500ms, 30s, 15m, 1h or 1d; a number alone is milliseconds"
        )
    return int(int(match[1]) * _DURATION_UNITS_MS[match[2]])


def positive(text: str) -> int:
    """Parse a whole number above 0. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,18}", text.strip(), re.ASCII) or int(text) < 1:
        raise ValueError("must be a whole number above 0")
    return int(text)


def iso_time_ms(text: str) -> int:
    """Parse an ISO 8601 time, in UTC unless it names a zone by its offset, or after a blank by its
    name, or ``local``, into milliseconds since the epoch. Raises ValueError."""
    stated, _, zone = text.rpartition(" ")
    try:
        if not zone[:1].isalpha():
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        else:
            moment = datetime.fromisoformat(stated)
            if moment.tzinfo:
                raise ValueError("two zones")
            local = zone == LOCAL_ZONE
            moment = moment.astimezone() if local else moment.replace(tzinfo=ZoneInfo(zone))
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (OSError, OverflowError, ZoneInfoNotFoundError) as error:
        raise ValueError(str(error)) from error


def timestamp_ms(text: str) -> int:
    """Parse milliseconds since the epoch, or an ISO 8601 time from then on (``iso_time_ms``).
    Raises ValueError."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,15}", text, re.ASCII):
        return int(text)
    try:
        if (found := iso_time_ms(text)) >= 0:
            return found
    except ValueError:
        pass
    raise ValueError(
        "must be milliseconds since the epoch, or a time such as 2026-01-31T12:30Z, "
        "2026-01-31T12:30+08:00 or '2026-01-31T12:30 Europe/Berlin' (or local)"
    )


def boolean(text: str) -> bool:
    """Parse ``true`` or ``false``. Raises ValueError."""
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.strip().lower() == "true"


def one_of(*allowed: str) -> Callable[[str], str]:
    """Return a parser that accepts one of ``allowed``."""

    def parse(text: str) -> str:
        if text.strip().lower() not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text.strip().lower()

    return parse


def offset_or(*words: str) -> Callable[[str], str | int]:
    """Return a parser that accepts a physical offset or one of ``words``."""

    def parse(text: str) -> str | int:
        stripped = text.strip().lower()
        if stripped in words:
            return stripped
        if not re.fullmatch(r"[0-9]{1,18}", stripped, re.ASCII):
            choices = " or ".join(filter(None, (", ".join(words), "a physical offset")))
            raise ValueError(f"must be {choices} of up to 18 digits")
        return int(stripped)

    return parse


def non_empty(text: str) -> str:
    """Accept any text that is not empty. Raises ValueError."""
    if not text:
        raise ValueError("must not be empty")
    return text


def local_path(text: str) -> str:
    """Accept a path, or a URL of one on this machine, as Hadoop writes them: ``file:///data``.
    Raises ValueError."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return non_empty(text)
    if scheme[1] != "file":
        raise ValueError("must be a path of a file system that every node sees, or file:///PATH")
    path = "/" + text.removeprefix(scheme[0]).lstrip("/")
    return unquote(path)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a source."""

    key: str
    default: str | None
    parse: Callable[[str], Any]
    scope: str
    """``both``, ``stream`` or ``batch``."""
    doc: str


class SourceOptions:
    """Parsed options of one source: ``options["key"]`` with the key as it is spelled in its
    table."""

    table: ClassVar[tuple[Option, ...]]
    kafka_names: ClassVar[Mapping[str, str]] = {"kafka.bootstrap.servers": "path"}
    """Options of Spark's Kafka source that have another name here, in lower case."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Parse options. Raises UsageError naming the option, its value and the accepted form."""
        self._values: dict[str, Any] = {}
        self._given: set[str] = set()
        by_key = {option.key.lower(): option for option in self.table}
        for key, value in given.items():
            option = by_key.get(key.lower())
            if option is None:
                raise UsageError(f"unknown option {key}{self._hint(key.lower(), by_key)}")
            self._given.add(option.key)
            try:
                self._values[option.key] = option.parse(value)
            except ValueError as error:
                raise UsageError(f"option {option.key} is {value!r}; it {error}") from error
        for option in self.table:
            if option.key not in self._values:
                default = option.default
                self._values[option.key] = None if default is None else option.parse(default)
        if self["path"] is None:
            raise UsageError("option path is missing: the store's root directory")

    def _hint(self, key: str, by_key: Mapping[str, Option]) -> str:
        if key in self.kafka_names:
            return f", which is {self.kafka_names[key]} here"
        near = difflib.get_close_matches(key, by_key, 1, 0.5)
        return f"; did you mean {by_key[near[0]].key}?" if near else ""

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def check_not_both(self, *keys: str) -> None:
        """Reject two options that contradict each other. Raises UsageError."""
        given = [key for key in keys if self[key] is not None]
        if len(given) > 1:
            raise UsageError(f"give {' or '.join(given)}, not both")

    def check_least_within_most(self) -> None:
        """Reject a smallest batch that is larger than the largest one. Raises UsageError."""
        least, most = self["minOffsetsPerTrigger"], self["maxOffsetsPerTrigger"]
        if least is not None and most is not None and least > most:
            raise UsageError(
                f"option minOffsetsPerTrigger is {least}; it must be at most "
                f"maxOffsetsPerTrigger, which is {most}"
            )

    @property
    def row_form(self) -> RowForm:
        """The records that are wanted, and the form of their bodies.

        Without the column ``body``, bodyCompression is the codec of the stored body: none is
        inflated just to find out whether it could be.
        """
        inflates = self["inflateBodies"] and self["includeBody"]
        return RowForm(
            include_internal=self["includeInternal"],
            max_inflated_bytes=self["maxInflatedBytes"] if inflates else None,
        )

    @property
    def starts_by_time(self) -> bool:
        """Whether a time decides where to begin, regardless of offsets."""
        return self["startingTimestamp"] is not None

    def check_batch(self) -> None:
        """Reject starts and ends that make no sense for a batch read. Raises UsageError."""
        if self["startingOffsets"] == LATEST and not self.starts_by_time:
            raise UsageError(
                "startingOffsets is latest; a batch read must begin at or before its end"
            )

    def check_stream(self) -> None:
        """Reject batch options in a stream. Raises UsageError."""
        for option in self.table:
            if option.scope == "batch" and option.key in self._given:
                raise UsageError(f"option {option.key} is for batch reads; a stream has no end")
