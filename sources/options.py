"""Options of the commitlog source: one row each, names and rules after Spark's Kafka source."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from store.dispatch import Wanted
from store.errors import UsageError

EARLIEST, LATEST, RESUME = "earliest", "latest", "resume"
MODES = ("rows", "runs")
_SIZE = re.compile(r"([0-9]{1,15})([kmgt]?)b?\Z", re.ASCII | re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes of ``64k``, ``1g``, ``1048576``. Raises ValueError."""
    found = _SIZE.match(text.strip())
    if not found or int(found[1]) < 1:
        raise ValueError("must be a number of bytes above 0, with k, m, g or t where wanted")
    return int(found[1]) * _SIZE_UNITS[found[2].lower()]


def _positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text.strip(), re.ASCII) or int(text) < 1:
        raise ValueError("must be a whole number above 0")
    return int(text)


def _timestamp(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text.strip(), re.ASCII):
        raise ValueError("must be milliseconds since the epoch")
    return int(text)


def _boolean(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.strip().lower() == "true"


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip().lower() not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text.strip().lower()

    return parse


def _offset(*words: str) -> Callable[[str], str | int]:
    def parse(text: str) -> str | int:
        stripped = text.strip().lower()
        if stripped in words:
            return stripped
        if not re.fullmatch(r"[0-9]{1,18}", stripped, re.ASCII):
            raise ValueError(f"must be {', '.join(words)} or a physical offset")
        return int(stripped)

    return parse


def _text(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the source."""

    key: str
    default: str | None
    parse: Callable[[str], Any]
    scope: str
    """``both``, ``stream`` or ``batch``."""
    doc: str


OPTIONS: tuple[Option, ...] = (
    Option("path", None, _text, "both", "the store's root directory, which holds `commitlog/`"),
    Option("mode", "rows", _one_of(*MODES), "both",
           "`rows`: a row per message, public schema; `runs`: packed runs for the dispatcher"),
    Option("startingOffsets", None, _offset(EARLIEST, LATEST, RESUME), "both",
           "where to begin without a checkpoint: `earliest` (batch default), `latest` (stream "
           "default), `resume` (the smallest maxPhysicOffset of the store's queues) or a physical "
           "offset at which a record starts"),
    Option("startingTimestamp", None, _timestamp, "both",
           "begin at the first record with this storeTimestamp (ms) or a later one; stands above "
           "`startingOffsets`"),
    Option("startingOffsetsByTimestampStrategy", "error", _one_of("error", LATEST), "both",
           "what to do where no record is that young"),
    Option("endingOffsets", None, _offset(LATEST), "batch",
           "where to end, exclusive: `latest` or a physical offset at which a record starts"),
    Option("endingTimestamp", None, _timestamp, "batch",
           "end before the first record with this storeTimestamp (ms) or a later one"),
    Option("initialOffsetPath", None, _text, "stream",
           "a file of yours that keeps the first start, so that a `latest` or timestamp start does "
           "not move when Spark repeats batch 0; put it beside the checkpoint"),
    Option("sealedEnd", None, _offset(), "stream",
           "a physical offset up to which the caller has found the log whole: nothing before it is "
           "walked again, and Trigger.AvailableNow ends there"),
    Option("failOnDataLoss", "true", _boolean, "both",
           "whether missing commitlog files and a log that shrank are errors"),
    Option("maxOffsetsPerTrigger", None, _positive, "stream",
           "messages per micro-batch at the most"),
    Option("maxBytesPerTrigger", None, parse_size, "stream",
           "bytes of log per micro-batch at the most, but one record at least; `64k`, `1g`"),
    Option("minPartitions", "1", _positive, "both",
           "split a batch into at least so many partitions, at record starts"),
    Option("onCorrupt", "quarantine", _one_of("quarantine", "fail"), "both",
           "damaged bytes: give a row that says where and why, or stop there"),
    Option("verifyCrc", "false", _boolean, "both", "check the CRC of every body"),
    Option("includeBody", "true", _boolean, "both", "`rows`: have the column `body`"),
    Option("includeProperties", "true", _boolean, "both", "`rows`: have the column `properties`"),
    Option("inflateBodies", "false", _boolean, "both",
           "`rows`: decompress compressed bodies; one that does not inflate stays as stored"),
    Option("maxInflatedBytes", "16m", parse_size, "both",
           "the largest body that `inflateBodies` makes"),
    Option("brokerConf", None, _text, "both",
           "RocketMQ's property file, if not `broker.conf` in `path`"),
    Option("commitLogFileSize", None, parse_size, "both",
           "mappedFileSizeCommitLog, above the property file"),
    Option("spool", None, _text, "both",
           "`runs`: a directory that driver and tasks share; units go through it, not Spark"),
    Option("gather", "{}", Wanted.from_text, "both",
           "`runs`: what dispatchers besides that of the consume queue want of a message"),
    Option("storeId", None, _text, "both",
           "the identity that offsets carry; give the old one after a store was moved"),
)  # fmt: skip
_BY_KEY = {option.key.lower(): option for option in OPTIONS}


class SourceOptions:
    """Parsed options: ``options["key"]`` with the key as it is spelt in OPTIONS."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Raises UsageError naming the option, the value and what would be right."""
        self._values: dict[str, Any] = {}
        for key, value in given.items():
            option = _BY_KEY.get(key.lower())
            if option is None:
                near = difflib.get_close_matches(key.lower(), _BY_KEY, 1, 0.5)
                hint = f"; did you mean {_BY_KEY[near[0]].key}?" if near else ""
                raise UsageError(f"unknown option {key}{hint}")
            try:
                self._values[option.key] = option.parse(value)
            except ValueError as error:
                raise UsageError(f"option {option.key} is {value!r}; it {error}") from error
        for option in OPTIONS:
            if option.key not in self._values:
                default = option.default
                self._values[option.key] = None if default is None else option.parse(default)
        if self["path"] is None:
            raise UsageError("option path is missing: the store's root directory")
        if self["maxOffsetsPerTrigger"] and self["maxBytesPerTrigger"]:
            raise UsageError("give maxOffsetsPerTrigger or maxBytesPerTrigger, not both")

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def check_batch(self) -> None:
        """Refuse starts and ends that make no sense for a batch read. Raises UsageError."""
        if self["startingOffsets"] == LATEST and self["startingTimestamp"] is None:
            raise UsageError(
                "startingOffsets is latest; a batch read must begin at or before its end"
            )

    def check_stream(self) -> None:
        """Refuse batch options in a stream. Raises UsageError."""
        for option in OPTIONS:
            if option.scope == "batch" and self[option.key] is not None:
                raise UsageError(f"option {option.key} is for batch reads; a stream has no end")
