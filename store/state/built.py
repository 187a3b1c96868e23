"""The settings that determine an output's bytes, recorded in ``OUTPUT/reput/built.json``.

They are written before the first entry that depends on them, and every command reads them back. So
a caller need not repeat them, and a contradicting value is refused, because files of two settings
can be neither continued nor verified. A setting may change if no existing file depends on it;
otherwise ``rebuild`` changes it.

One JSON object:
    version      1
    settings     name -> value, of SETTINGS
    broker.conf  the values of these that the property file stated: a line that a flag overruled
                 when the output was built is no contradiction until it changes
    crc32        of both

Writer: the output's owner, which replaces the whole file by a rename, so after a crash the old or
the new one exists.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from reput.store import fsops, jsontext
from reput.store.config import OnQueueGap, StoreSettings, read_stated, setting_name
from reput.store.errors import StoreError, UsageError
from reput.store.files import BROKER_CONF_FILE, BUILD_RECORD_FILE, INDEX_DIRECTORY, STATE_DIRECTORY
from reput.store.index.indexfile import DEFAULT_MAX_HASH_SLOT_NUM
from reput.store.queue.consumequeue import rounded_file_size
from reput.store.state.output import end_of_output
from reput.store.state.recognition import recognised_settings

VERSION = 1

logger = logging.getLogger("reput")


@dataclass(frozen=True, slots=True)
class BuildSetting:
    """One setting that determines bytes; its row is a field of StoreSettings."""

    field: str
    """Field of StoreSettings."""
    kinds: tuple[str, ...]
    """Directories of an output whose bytes depend on the value."""
    may_change: bool
    """Whether files of two values are sound, so that a new value holds for later entries."""

    @property
    def name(self) -> str:
        """RocketMQ's key, or one of ours in the same style."""
        return setting_name(self.field)


SETTINGS = tuple(
    BuildSetting(row.name, kinds, row.metadata["may_change"])
    for row in fields(StoreSettings)
    if (kinds := row.metadata.get("built"))
)
_DIRECTORIES = {kind for setting in SETTINGS for kind in setting.kinds}
_FIELDS = {setting.name: setting.field for setting in SETTINGS}
_NAMES = {setting.field: setting.name for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """Content of the file."""

    settings: Mapping[str, Any]
    """Field of StoreSettings -> value."""
    stated: Mapping[str, Any]
    """Field -> value, for those that the property file stated."""

    @classmethod
    def of(cls, settings: StoreSettings) -> BuildRecord:
        """The record of an output that is built with ``settings``."""
        stated = {field: value for field, value in settings.stated.items() if field in _NAMES}
        return cls({field: getattr(settings, field) for field in _NAMES}, stated)

    def to_json(self) -> bytes:
        """Encode the file."""
        parts = {"settings": _named(self.settings), BROKER_CONF_FILE: _named(self.stated)}
        document = {"version": VERSION, **parts, "crc32": jsontext.checksum(parts)}
        return (json.dumps(document, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> BuildRecord:
        """Decode the result of ``to_json``. Raises ValueError."""
        try:
            document = jsontext.parse(data)
            parts = {key: document[key] for key in ("settings", BROKER_CONF_FILE)}
            if document["version"] != VERSION:
                raise ValueError(f"it has version {document['version']}")
            if document["crc32"] != jsontext.checksum(parts):
                raise ValueError("its CRC is wrong")
            return cls(*(_by_field(part) for part in parts.values()))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{error!r} in it") from error


def named_settings(settings: StoreSettings) -> dict[str, Any]:
    """The settings that decide bytes, by their names, as JSON has them."""
    named: dict[str, Any] = json.loads(json.dumps(_named(BuildRecord.of(settings).settings)))
    return named


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_NAMES[field]: value for field, value in values.items()}


def _by_field(values: Mapping[str, Any]) -> dict[str, Any]:
    settings = {_FIELDS[name]: value for name, value in values.items()}
    if "on_queue_gap" in settings:
        settings["on_queue_gap"] = OnQueueGap(settings["on_queue_gap"])
    if "message_delay_levels_ms" in settings:
        settings["message_delay_levels_ms"] = tuple(settings["message_delay_levels_ms"])
    return settings


def read_build_record(output: Path) -> BuildRecord | None:
    """The record of an output; None if there is none. Raises StoreError if it is damaged."""
    path = output / STATE_DIRECTORY / BUILD_RECORD_FILE
    try:
        return BuildRecord.from_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise StoreError(
            f"cannot read {path}, which records how {output} was built: {error}; remove it and "
            "call again with the options that the output was built with",
            path=path,
        ) from error


def settings_of(
    output: Path,
    given: StoreSettings,
    flags: Mapping[str, Any] | None = None,
    replaced: Collection[str] = (),
) -> StoreSettings:
    """``given``, completed with the values that ``output`` was or will be built with.

    The first of these counts: a flag, a line that the property file states since then, the record
    or, without a record, the value that shows in the files. ``flags`` maps field -> value, None if
    a flag was not given. ``replaced`` are directories to be rebuilt. Raises UsageError for a value
    that contradicts existing files.
    """
    flags = {field: value for field, value in (flags or {}).items() if value is not None}
    if (size := flags.get("mapped_file_size_consume_queue")) is not None:
        flags["mapped_file_size_consume_queue"] = rounded_file_size(size)
    record = read_build_record(output)
    output_values = recognised_settings(output, given) if record is None else record.settings
    overruled = {} if record is None else record.stated
    values = {}
    for setting in SETTINGS:
        field = setting.field
        is_stated = field in given.stated and (
            field not in overruled or overruled[field] != given.stated[field]
        )
        value = getattr(given, field)
        if field in flags:
            value = flags[field]
        elif field in output_values and not is_stated:
            value = output_values[field]
        if value != output_values.get(field, value) and not _may_change(
            setting, output_values[field], output, replaced
        ):
            stated = f"{setting.name} in {given.property_file}"
            source = f"`{field}=`" if field in flags else stated
            error = _contradiction(setting, output_values[field], value, output, source)
            with closing(given.open_log()) as log:
                try:
                    end_of_output(output, given.root, log)
                except UsageError as other:
                    # that the output is of another log is the more helpful of two errors
                    raise UsageError(f"{other}; and {error}") from other
            raise error
        values[field] = value
    return replace(given, **values)


def _may_change(
    setting: BuildSetting, built: object, output: Path, replaced: Collection[str]
) -> bool:
    """Whether all existing files may continue with another value."""
    # a dispatcher that stops at gaps has neither closed nor filled one
    if setting.may_change or built is OnQueueGap.FAIL:
        return True
    return not any(_is_there(output / kind) for kind in setting.kinds if kind not in replaced)


def _is_there(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _contradiction(
    setting: BuildSetting, built: object, value: object, output: Path, source: str
) -> UsageError:
    return UsageError(
        f"{output} was built with {setting.name}={_shown(built)}, but {source} says "
        f"{_shown(value)}: leave it out or give the same value to continue, or run reput "
        f"rebuild for all of {', '.join(setting.kinds)} with the new value"
    )


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "unset" if value is None else str(value)


def record_build(output: Path, settings: StoreSettings) -> None:
    """Durably record the settings of ``output``; costs one read if they are recorded already.

    Only the owner of the output may call it. Raises OutputError.
    """
    record, stored_record = BuildRecord.of(settings), read_build_record(output)
    if stored_record == record:
        return
    if stored_record is None and any(_is_there(output / kind) for kind in _DIRECTORIES):
        shown = recognised_settings(output, settings)
        texts = [f"{_NAMES[field]}={_shown(value)}" for field, value in shown.items()]
        logger.info(
            "how %s was built is not recorded: its files show %s, the rest is taken as given",
            output, " ".join(texts) or "nothing",
        )  # fmt: skip
    fsops.make_directories(output / STATE_DIRECTORY, output)
    fsops.replace_file(output / STATE_DIRECTORY / BUILD_RECORD_FILE, record.to_json())


def index_flags(index: bool | None) -> dict[str, bool | None]:
    """The flags by which an index of keys is built or not; None keeps what decides it."""
    return {"message_index_enable": index, "index_file_write_enable": index or None}


def topic_begins(output: Path) -> dict[str, int]:
    """Topic -> physical offset before which its messages have no units. Raises StoreError."""
    record = read_build_record(output)
    return {} if record is None else dict(record.settings.get("topic_begins", {}))


def built_fields(output: Path) -> dict[str, Any]:
    """The record by setting names, for display; empty if there is none. Raises StoreError."""
    record = read_build_record(output)
    return {} if record is None else _named(record.settings)


def hash_slot_count(outputs: Iterable[Path], broker_conf: Path | None = None) -> int:
    """maxHashSlotNum of the index files of some outputs, which need not be stores.

    It is the recorded value, or that of a property file (``broker_conf``, or the outputs' own), or
    RocketMQ's default. Raises UsageError if two outputs differ.
    """
    field = "max_hash_slot_num"
    said: dict[int, Path] = {}
    for output in outputs:
        stated, record = read_stated(output, broker_conf).get(field), read_build_record(output)
        is_recorded = record is not None and _is_there(output / INDEX_DIRECTORY)
        if record is not None and is_recorded:
            said.setdefault(record.settings.get(field, DEFAULT_MAX_HASH_SLOT_NUM), output)
        if stated is not None and (broker_conf is not None or not is_recorded):
            said.setdefault(stated, broker_conf or output / BROKER_CONF_FILE)
    if len(said) > 1:
        parts = " and ".join(f"{count} by {path}" for count, path in said.items())
        raise UsageError(
            f"maxHashSlotNum is {parts}: indexes with different slot counts cannot be compared; "
            "leave the index out with `kinds=`"
        )
    return next(iter(said), DEFAULT_MAX_HASH_SLOT_NUM)
