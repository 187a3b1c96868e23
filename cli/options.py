"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import functools
import inspect
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import typer

from reput.cli import completion
from reput.cli.render import print_note, when_ready
from reput.cli.texts import counted, time_text
from reput.sources.options import iso_time_ms, parse_size
from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import UsageError
from reput.store.flags import CLIENTS_PANEL, DAMAGE_PANEL, STORE_PANEL, Flag, flags_of
from reput.store.log.compression import MAX_INFLATED_BYTES
from reput.store.rows.rowform import RowForm
from reput.store.state.built import index_flags, settings_of
from reput.store.state.output import check_is_output
from reput.streaming.config import DispatcherConfig

_DURATION = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)\Z", re.ASCII)
_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MILLISECONDS = re.compile(r"[0-9]{1,15}\Z", re.ASCII)
_SECONDS_DIGITS = 10
"""A number of this many digits is seconds since the epoch: as ms it would be a day of 1970."""

TIME_FORMS = (
    "2026-01-31T12:30Z, 2026-01-31T12:30+08:00, '2026-01-31T12:30 Europe/Berlin' (or local), "
    "-1h (before now), or ms since the epoch"
)


def size_option(name: str, text: str | None) -> int | None:
    """Return the bytes of a size such as ``64k`` or ``1g``, in powers of 1,024; None for None.
    Raises UsageError naming the option."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"{name} is {text!r}; it {error}") from error


def duration_option_ms(name: str, text: str) -> int:
    """Return the milliseconds of ``200ms``, ``5s``, ``1m``, ``2h`` or ``1d``. Raises UsageError
    naming the option."""
    match = _DURATION.match(text)
    if not match:
        raise UsageError(f"{name} is {text!r}; it must be a number with ms, s, m, h or d")
    return int(match[1]) * _DURATION_UNITS_MS[match[2]]


def time_option_ms(name: str, text: str) -> int:
    """Return the milliseconds since the epoch that a time option means.

    It takes that number itself, a time before now (``-1h``), or an ISO 8601 time, which is in UTC
    unless it names a zone. A number that can only be seconds is taken as seconds, with a note.
    Raises UsageError naming the option.
    """
    if _MILLISECONDS.match(text):
        if len(text) != _SECONDS_DIGITS:
            return int(text)
        seconds_ms = int(text) * 1000
        print_note(f"{name} {text} is taken for seconds since the epoch: {time_text(seconds_ms)}")
        return seconds_ms
    ago = _DURATION.match(text.removeprefix("-"))
    if ago:
        return time.time_ns() // 1_000_000 - duration_option_ms(name, ago[0])
    try:
        return iso_time_ms(text)
    except ValueError as error:
        # what begins with a minus would be an option in an argument's place
        forms = TIME_FORMS if name.startswith("-") else TIME_FORMS.replace("-1h", "1h")
        raise UsageError(f"{name} is {text!r}; it must be one of {forms}") from error


def optional_time_ms(name: str, text: str | None) -> int | None:
    """Return ``time_option_ms`` of an option; None if it is not given."""
    return None if text is None else time_option_ms(name, text)


def text(text: str) -> str:
    """Return an argument unchanged. Raises UsageError if it is not UTF-8, as every topic and group
    is."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{text!r} is no text in UTF-8") from error
    return text


def optional_text(given: str | None) -> str | None:
    """Return ``text`` of an argument that may be left out."""
    return None if given is None else text(given)


def with_options(**makers: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that adds the parameters of other functions to a command's options.

    ``makers`` maps a parameter of the command to the function that makes its value. The function's
    parameters become options in place of that parameter. One that the command has too becomes one
    option, whose value goes to both.
    """
    parameters_of = {name: list(_parameters(maker).values()) for name, maker in makers.items()}

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        own = _parameters(command)

        @functools.wraps(command)
        def called(**given: Any) -> Any:
            made = {
                name: makers[name](
                    **{parameter.name: given[parameter.name] for parameter in parameters}
                )
                for name, parameters in parameters_of.items()
            }
            return command(**{name: given[name] for name in own if name in given} | made)

        parameters = [
            parameter.replace(kind=parameter.KEYWORD_ONLY)
            for name, declared in own.items()
            for parameter in parameters_of.get(name, [declared])
            if name not in parameters_of or parameter.name not in own.keys() - parameters_of.keys()
        ]
        declare(called, parameters)
        return called

    return decorated


def declare(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> None:
    """Give a function that takes any arguments by name the parameters that typer reads."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function, eval_str=True).parameters


def store_settings(
    store: Store, broker_conf: BrokerConf = None, commitlog_file_size: CommitLogFileSize = None
) -> StoreSettings:
    """Return a store's settings, in which the flag overrides the property file. Raises
    UsageError."""
    size = size_option("--commitlog-file-size", commitlog_file_size)
    return read_store_settings(store, broker_conf).with_commit_log_file_size(size)


def output_settings(
    store: Store,
    output: ReadOutput = None,
    broker_conf: BrokerConf = None,
    commitlog_file_size: CommitLogFileSize = None,
    consume_queue_file_size: ConsumeQueueFileSize = None,
) -> StoreSettings:
    """Return a store's settings, together with those that the output was built with.

    Raises UsageError, also if flags or property file contradict the output.
    """
    settings = store_settings(store, broker_conf, commitlog_file_size)
    return settings_of(output or store, settings, _file_size(consume_queue_file_size))


def awaited_settings(
    store: Store,
    output: ReadOutput = None,
    broker_conf: BrokerConf = None,
    commitlog_file_size: CommitLogFileSize = None,
    consume_queue_file_size: ConsumeQueueFileSize = None,
) -> StoreSettings:
    """Return ``output_settings`` once the store and the output are there."""

    def read() -> StoreSettings:
        settings = output_settings(
            store, output, broker_conf, commitlog_file_size, consume_queue_file_size
        )
        check_is_output(output or store, store)
        return settings

    return when_ready(read)


def declared(config: type, field: str, **limits: Any) -> Any:
    """Return typer's declaration of the option of a configuration's field."""
    row = Flag.of(config, field)
    if row.metavar is None:
        return flag(row.help, row.names, panel=row.panel)
    return value(row.metavar, row.help, row.names, panel=row.panel, **limits)


def fields_given(config: type, *fields: str) -> Callable[..., dict[str, Any]]:
    """Return the function whose parameters are the options of some fields of a configuration: field
    -> value, without those that are not given. It raises UsageError."""
    types = get_type_hints(config)
    rows = {field: Flag.of(config, field) for field in fields}
    readers = {field: _READERS.get(row.metavar or "") for field, row in rows.items()}

    def made(**given: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for field, row in rows.items():
            taken, reader = given[row.parameter], readers[field]
            if taken is None or (taken is False and _is_plain(row)):
                continue
            if reader is not None:
                taken = reader.read(row.name, taken)
            values[field] = row.words[taken] if row.words else taken
        if _INDEX_FIELD in values:
            values |= index_flags(values[_INDEX_FIELD])
        return values

    def parameter(field: str, row: Flag) -> inspect.Parameter:
        reader = readers[field]
        taken: Any = reader.taken if reader is not None else types[field]
        if row.words:
            taken = Literal[tuple(row.words)]
        default = False if _is_plain(row) else row.shown
        return inspect.Parameter(
            row.parameter, inspect.Parameter.KEYWORD_ONLY, default=default,
            annotation=Annotated[taken if default is not None else taken | None,
                                 declared(config, field)],
        )  # fmt: skip

    parameters = [parameter(field, row) for field, row in rows.items()]
    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return made


def _is_plain(row: Flag) -> bool:
    """Whether an option is a switch that can only be given, not taken back."""
    return row.metavar is None and row.name == row.names


def dispatcher_fields(command: str | None) -> Callable[..., dict[str, Any]]:
    """Return ``fields_given`` for the options of ``DispatcherConfig`` that a dispatching command
    has, and not all of them; for None, those that all have."""
    rows = flags_of(DispatcherConfig).items()
    taken = (field for field, row in rows if command in (row.commands or (None,)))
    return fields_given(DispatcherConfig, *taken)


def _file_size(consume_queue_file_size: str | None) -> dict[str, Any]:
    size = size_option("--consume-queue-file-size", consume_queue_file_size)
    return {"mapped_file_size_consume_queue": size}


def kinds_option(text: str | None, choices: Sequence[str]) -> Sequence[str]:
    """Return the kinds in a text with commas; all ``choices`` for None. Raises UsageError that
    lists these for any other."""
    if text is None:
        return choices
    kinds = text.split(",")
    for kind in kinds:
        if kind not in choices:
            raise UsageError(f"--only names {kind!r}; choose from {', '.join(choices)}")
    return kinds


def row_form(
    include_internal: IncludeInternal = False,
    no_inflate_bodies: NoInflateBodies = False,
    max_inflated_bytes: MaxInflatedBytes = None,
) -> RowForm:
    """Return the form of the messages that the options ask for. Raises UsageError."""
    if no_inflate_bodies:
        if max_inflated_bytes is not None:
            raise UsageError("give --no-inflate-bodies or --max-inflated-bytes, not both")
        return RowForm(include_internal, None)
    size = size_option("--max-inflated-bytes", max_inflated_bytes)
    return RowForm(include_internal, size or MAX_INFLATED_BYTES)


def note_internal(left_out: int) -> None:
    """Say how many internal records were left out, if any."""
    if left_out:
        counted_records = counted(left_out, "internal record")
        print_note(f"{counted_records} left out; --include-internal takes them as well")


def spark_conf(name: str, pairs: list[str]) -> dict[str, str]:
    """Return the Spark settings in texts of the form ``spark.KEY=VALUE``; the last of a key counts.
    Raises UsageError naming the option."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(f"{name} is {pair!r}; it must be spark.SOMETHING=VALUE")
        settings[key] = value
    return settings


class _Reader(NamedTuple):
    """How the value of an option is taken from typer, and read, given the option's name."""

    taken: Any
    read: Callable[[str, Any], Any]


_READERS: Mapping[str, _Reader] = {
    "SIZE": _Reader(str, size_option),
    "TIME": _Reader(str, duration_option_ms),
    "KEY=VALUE": _Reader(list[str], spark_conf),
}
"""By the kind of the value; any other is as typer makes it of the field's type."""
SETTINGS, DAMAGE, CLIENTS = STORE_PANEL, DAMAGE_PANEL, CLIENTS_PANEL
DELTA, ICEBERG, TABLES, KAFKA = "Delta table", "Iceberg table", "Tables", "Kafka"
METRICS, ROWS = "Metrics", "Rows of messages"
"""Panels of ``--help``; each aligns its own columns, so that names fit into 80 columns."""


_COMPLETIONS = {"TOPIC": completion.topics, "GROUP": completion.groups}


def flag(help: str, *names: str, panel: str | None = None) -> Any:
    """Return typer's declaration of an option without a value; without ``names``, the parameter's
    name is used."""
    return typer.Option(*names, help=help, rich_help_panel=panel)


def value(metavar: str, help: str, *names: str, panel: str | None = None, **limits: Any) -> Any:
    """Return typer's declaration of an option with a value. ``metavar`` must be short, since the
    option's name stands beside it in 80 columns; shells complete a TOPIC and a GROUP."""
    return typer.Option(
        *names, help=help, metavar=metavar, rich_help_panel=panel,
        autocompletion=_COMPLETIONS.get(metavar), **limits,
    )  # fmt: skip


def time_value(what: str) -> Any:
    """Return typer's declaration of an option whose value ``time_option_ms`` reads."""
    return value("TIME", f"{what}: `2026-01-31T12:30Z`, another zone, `-1h`, or ms.")


Store = Annotated[
    Path,
    typer.Argument(help="The store's root directory, which holds `commitlog/`.", metavar="STORE"),
]
ReadRoot = Annotated[
    Path,
    typer.Argument(help="The root directory of a store or of another output.", metavar="STORE"),
]
Topic = Annotated[
    str,
    typer.Argument(
        help="The topic.", callback=text, metavar="TOPIC", autocompletion=completion.topics
    ),
]
Queue = Annotated[int, typer.Argument(min=0, help="The queue's id.", metavar="QUEUE")]
Output = Annotated[
    Path | None,
    value("DIR", "Root directory to write to; the store itself if not given.", "--output", "-o"),
]
ReadOutput = Annotated[
    Path | None,
    value(
        "DIR",
        "Root directory of queues and index; the store itself if not given.",
        "--output",
        "-o",
    ),
]
Checkpoint = Annotated[Path | None, declared(DispatcherConfig, "checkpoint")]
BrokerConf = Annotated[Path | None, declared(DispatcherConfig, "broker_conf")]
CommitLogFileSize = Annotated[str | None, declared(DispatcherConfig, "mapped_file_size_commit_log")]
ConsumeQueueFileSize = Annotated[
    str | None, declared(StoreSettings, "mapped_file_size_consume_queue")
]
Topics = Annotated[
    list[str] | None,
    value("TOPIC", "Take only this topic; `*` and `?` match; may be repeated.", "--topic", "-t"),
]
Only = Annotated[
    str | None,
    value("KINDS", "Take only these kinds, with commas: `consumequeue`, `index`, ..."),
]
AsOf = Annotated[
    str | None,
    value("MOMENT", "Read everything as it was then: a time, `offset:N` of the log, or the end of "
          "`batch:N` of Spark's checkpoint.", "--as-of"),
]  # fmt: skip
FailOnDataLoss = Annotated[
    bool,
    flag(
        "Fail where a part of the log that is read is lost or damaged, in place of a warning and "
        "the rest.",
        "--fail-on-data-loss",
    ),
]
IncludeInternal = Annotated[
    bool,
    flag("Take internal records as well, which consumers never see: those of RocketMQ's own "
         "topics, and PREPARED and ROLLBACK records.", "--include-internal", panel=ROWS),
]  # fmt: skip
NoInflateBodies = Annotated[
    bool, flag("Leave compressed bodies as stored.", "--no-inflate-bodies", panel=ROWS)
]
MaxInflatedBytes = Annotated[
    str | None,
    value("SIZE", "Inflate compressed bodies up to this size, `16m` if not given; a larger one "
          "stays as stored.", "--max-inflated-bytes", panel=ROWS),
]  # fmt: skip
OverlayOutput = Annotated[
    Path,
    typer.Argument(
        help="The output that has the overlay: that of `serve`, or the store itself.",
        metavar="OUTPUT",
    ),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    value("LEVEL", "Log events of this level and above; `debug` has one for each micro-batch."),
]
AsJson = Annotated[bool, flag("Print JSON; lines on stderr are JSON, too.", "--json", "-j")]
AsJsonLines = Annotated[
    bool, flag("Print JSON lines on a terminal, too; elsewhere they are the default.",
               "--json", "-j")
]  # fmt: skip

_INDEX_FIELD = "message_index_enable"
_BUILD_FIELDS = ("on_queue_gap", "verify_crc", "index_tags", "mapped_file_size_consume_queue")
build_flags = fields_given(StoreSettings, *_BUILD_FIELDS)
run_flags = fields_given(StoreSettings, *_BUILD_FIELDS, _INDEX_FIELD)
