"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from sinks.consumequeue import OnQueueGap
from sources.options import parse_size
from store.config import StoreSettings, read_store_settings
from store.errors import UsageError
from store.follower import FollowerTarget

_DURATION = re.compile(r"([0-9]{1,9})(ms|s|m)\Z", re.ASCII)
_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000}
_MILLISECONDS = re.compile(r"[0-9]{1,15}\Z", re.ASCII)
_EPOCH = datetime.fromtimestamp(0, UTC)


def size_option(name: str, text: str | None) -> int | None:
    """Bytes of ``64k`` or ``1g``. Raises UsageError naming the option."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"{name} is {text!r}; it {error}") from error


def duration_option_ms(name: str, text: str) -> int:
    """Milliseconds of ``200ms``, ``5s``, ``1m``. Raises UsageError naming the option."""
    found = _DURATION.match(text)
    if not found:
        raise UsageError(f"{name} is {text!r}; it must be a number with ms, s or m")
    return int(found[1]) * _DURATION_UNITS_MS[found[2]]


def time_option_ms(name: str, text: str) -> int:
    """Milliseconds since the epoch, of such a number or of an ISO 8601 time, UTC where it names no
    zone. Raises UsageError naming the option."""
    if _MILLISECONDS.match(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{name} is {text!r}; it must be ms since the epoch or a time like 2026-01-31T12:30:00Z"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def optional_time_ms(name: str, text: str | None) -> int | None:
    """The same of an option that may be left out."""
    return None if text is None else time_option_ms(name, text)


def text(text: str) -> str:
    """An argument as it is. Raises UsageError where it is no text: no message has such a name."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{text!r} is no text in UTF-8") from error
    return text


def store_settings(
    store: Path,
    broker_conf: Path | None,
    commit_log_file_size: str | None = None,
    consume_queue_file_size: str | None = None,
) -> StoreSettings:
    """A store's settings with the flags above them. Raises UsageError."""
    return read_store_settings(store, broker_conf).with_overrides(
        size_option("--commitlog-file-size", commit_log_file_size),
        size_option("--consume-queue-file-size", consume_queue_file_size),
    )


def dispatcher_settings(
    broker_conf: Path | None,
    commit_log_file_size: str | None,
    consume_queue_file_size: str | None,
    conf: list[str] | None,
) -> dict[str, Any]:
    """What every command that dispatches tells ``DispatcherConfig`` alike. Raises UsageError."""
    return {
        "broker_conf": broker_conf,
        "commit_log_file_size": size_option("--commitlog-file-size", commit_log_file_size),
        "consume_queue_file_size": size_option(
            "--consume-queue-file-size", consume_queue_file_size
        ),
        "spark_conf": spark_conf(conf or []),
    }


def kinds_option(text: str | None, known: Sequence[str]) -> Sequence[str]:
    """Kinds of a text with commas. Raises UsageError naming the known ones."""
    if text is None:
        return known
    kinds = text.split(",")
    for kind in kinds:
        if kind not in known:
            raise UsageError(f"--only names {kind!r}; it must be of {', '.join(known)}")
    return kinds


def followers(
    delta: str | None, schema: Path | None, store_id: str | None, interval: str
) -> tuple[FollowerTarget, ...]:
    """What a run is told to follow the log with. Raises UsageError."""
    interval_seconds = duration_option_ms("--delta-interval", interval) / 1000
    if delta is None:
        if schema is not None or store_id is not None:
            raise UsageError("--delta-schema and --delta-store-id need --delta URL")
        return ()
    from sinks.delta import DeltaTarget  # noqa: PLC0415
    from sinks.jsonbody import JsonColumns  # noqa: PLC0415

    columns = JsonColumns.read(schema) if schema is not None else None
    return (DeltaTarget(delta, columns, store_id, interval_seconds),)


def spark_conf(pairs: list[str]) -> dict[str, str]:
    """Spark settings of ``key=value`` texts. Raises UsageError."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(f"--conf is {pair!r}; it must be spark.SOMETHING=VALUE")
        settings[key] = value
    return settings


Store = Annotated[Path, typer.Argument(help="Root of the store; holds `commitlog/`.")]
Output = Annotated[
    Path | None,
    typer.Option(help="Root of the store to write; the store itself if not given."),
]
ReadOutput = Annotated[
    Path | None,
    typer.Option("--output", help="Root of queues and index; the store itself if not given."),
]
BrokerConf = Annotated[
    Path | None,
    typer.Option(help="RocketMQ's property file, if it is not `broker.conf` in the store."),
]
CommitLogFileSize = Annotated[
    str | None, typer.Option("--commitlog-file-size", help="mappedFileSizeCommitLog; `1g`.")
]
ConsumeQueueFileSize = Annotated[
    str | None,
    typer.Option("--consume-queue-file-size", help="mappedFileSizeConsumeQueue in bytes."),
]
OnQueueGapOption = Annotated[
    OnQueueGap,
    typer.Option(help="Queue offsets that jump: close up as RocketMQ, fill with blanks, stop."),
]
VerifyCrc = Annotated[bool, typer.Option("--verify-crc", help="Check the CRC of every body.")]
Conf = Annotated[
    list[str] | None, typer.Option(help="A Spark setting, `key=value`; may be repeated.")
]
Only = Annotated[
    str | None,
    typer.Option(help="Kinds, with commas: `consumequeue`, `index`, ...; all if not given."),
]
Retention = Annotated[
    bool, typer.Option("--retention", help="Remove queue files whose messages the log has lost.")
]
Index = Annotated[
    bool | None,
    typer.Option(
        "--index/--no-index", help="Build the index of keys, or not; as messageIndexEnable says."
    ),
]
IndexTags = Annotated[
    bool, typer.Option("--index-tags", help="Index tags too, as RocketMQ 5.5 does.")
]
Delta = Annotated[
    str | None,
    typer.Option(help="Also a row a message into this Delta table: a path, `s3://...`, ..."),
]
DeltaSchema = Annotated[
    Path | None, typer.Option(help="Columns of JSON bodies for `--delta`: a TOML or JSON file.")
]
DeltaStoreId = Annotated[
    str | None,
    typer.Option(help="The store's name in a table that several share, or that outlives OUTPUT."),
]
DeltaInterval = Annotated[
    str, typer.Option(help="Least time between commits to the table while there is little.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines.")]
