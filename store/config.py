"""A store's settings, read from RocketMQ's own property file.

The file is ``broker.conf`` at the store's root, or one given by a flag, with RocketMQ's names and
defaults (``MessageStoreConfig``, ``BrokerConfig``). Keys of other parts of a broker are ignored,
and so is bitMapLengthConsumeQueueExt, which a broker overwrites with its Bloom filter's size. An
unreadable value is an error, whereas RocketMQ silently takes the default.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from store.errors import UsageError
from store.index.indexfile import (
    DEFAULT_MAX_HASH_SLOT_NUM,
    DEFAULT_MAX_INDEX_NUM,
    DEFAULT_MAX_MSGS_NUM_BATCH,
)
from store.log.commitlog import CommitLog
from store.log.record import DEFAULT_DELAY_LEVELS_MS
from store.queue.consumequeue import rounded_file_size
from store.unsupported import check_log_files, check_supported

FILE_NAME = "broker.conf"
NO_PROPERTY_FILE = f"no {FILE_NAME}, RocketMQ's defaults"
COMMIT_LOG_DIRECTORY = "commitlog"
MULTI_PATH_SPLITTER = ","
_JAVA_SPACE = bytes(range(33)).decode()
"""Characters that Java's String.trim removes."""
_PROPERTY = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)\Z", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_MAX_INT = (1 << 31) - 1
_MAX_LONG = 10**18 - 1
_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def setting_name(field_name: str) -> str:
    """RocketMQ's name of a setting, from that of our field: in camel case."""
    return re.sub(r"_([a-z])", lambda letter: letter[1].upper(), field_name)


def _switch(default: bool) -> Any:
    """A field that the property file states under its name in camel case."""
    return field(default=default, metadata={"limits": None})


def _number(default: int | None, smallest: int = 1, largest: int = _MAX_INT) -> Any:
    return field(default=default, metadata={"limits": (smallest, largest)})


class OnQueueGap(StrEnum):
    """Action where queue offsets jump forward."""

    ROCKETMQ = "rocketmq"
    """Append at the end, as RocketMQ does; positions and queue offsets differ from there on."""
    BLANK = "blank"
    """Fill the gap with blank units, so that positions equal queue offsets."""
    FAIL = "fail"
    """Stop with an error that names the position."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings that determine the bytes on disk and what consumers read of them: a broker's
    configuration and reput's own flags."""

    root: Path
    commit_log_directories: tuple[Path, ...]
    """Directories of the log's files, read-only ones included; each exists and occurs once."""
    property_file: Path | None = None
    """The property file; None if there is none, so that RocketMQ's defaults hold."""
    mapped_file_size_commit_log: int | None = _number(None, 1, _MAX_LONG)
    """Bytes; None if not stated, so that the files' own size holds."""
    mapped_file_size_consume_queue: int = _number(6_000_000, 1, _MAX_LONG)
    """Bytes, rounded up to whole 20-byte units."""
    message_delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS
    enable_consume_queue_ext: bool = _switch(False)
    mapped_file_size_consume_queue_ext: int = _number(48 << 20)
    """Bytes."""
    enable_calc_filter_bit_map: bool = _switch(False)
    max_error_rate_of_bloom_filter: int | None = _number(None, 1, 99)
    """Percent; with the next setting it determines the number of bits of a message's bit map."""
    expect_consumer_num_use_filter: int | None = _number(None)
    mapper_file_size_batch_consume_queue: int = _number(13_800_000)
    """Bytes, not rounded to whole units."""
    enable_multi_dispatch: bool = _switch(False)
    """Whether a message also goes to the queues that its properties name."""
    enable_lmq: bool = _switch(False)
    """Whether light queues (%LMQ%) have queue id 0."""
    message_index_enable: bool = _switch(True)
    index_file_write_enable: bool = _switch(True)
    """Whether the index is kept in files (RocketMQ 5.4 and newer)."""
    enable_accelerated_recovery: bool = _switch(False)
    """Whether a broker (RocketMQ 5.5) needs a logicsPhysicalOffset to start after a crash."""
    max_hash_slot_num: int = _number(DEFAULT_MAX_HASH_SLOT_NUM)
    """Slots of an index file."""
    max_index_num: int = _number(DEFAULT_MAX_INDEX_NUM)
    """Entries of an index file."""
    max_msgs_num_batch: int = _number(DEFAULT_MAX_MSGS_NUM_BATCH, 0)
    """Upper limit of messages that a query by key returns."""
    max_transfer_bytes_on_message_in_memory: int = _number(262_144, 0)
    """Limits of a pull, for the end of the log, which RocketMQ assumes to be cached, and for the
    rest."""
    max_transfer_count_on_message_in_memory: int = _number(32, 0)
    max_transfer_bytes_on_message_in_disk: int = _number(65_536, 0)
    max_transfer_count_on_message_in_disk: int = _number(8, 0)
    max_filter_message_size: int = _number(16_000, 0)
    """Bytes of units that a pull reads."""
    access_message_in_memory_max_ratio: int = _number(40, 0, 100)
    """Length of the cached end of the log, in percent of the machine's memory."""
    on_queue_gap: OnQueueGap = OnQueueGap.ROCKETMQ
    verify_crc: bool = False
    """Check the CRC of every body; a message with a wrong one gets no entry."""
    index_tags: bool = False
    """Index tags too, as RocketMQ 5.5 does and 5.3 does not."""
    topic_begins: Mapping[str, int] = field(default_factory=dict)
    """Topic -> physical offset before which its messages get no units, because its offsets begin
    again there (``reput rebuild --topic TOPIC --from OFFSET``)."""
    stated: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Field -> value, for fields that the property file states."""

    @property
    def builds_index(self) -> bool:
        """Whether index files are built."""
        return self.message_index_enable and self.index_file_write_enable

    def with_commit_log_file_size(self, size: int | None) -> StoreSettings:
        """These settings with the size of a flag; None keeps the size."""
        return self if size is None else replace(self, mapped_file_size_commit_log=size)

    def open_log(self) -> CommitLog:
        """The store's log. Raises like CommitLog."""
        return CommitLog(self.commit_log_directories, self.mapped_file_size_commit_log)


def read_store_settings(root: Path, broker_conf: Path | None = None) -> StoreSettings:
    """Read the settings of the store at ``root``.

    Raises UsageError if ``root`` is not a store or of an unsupported kind, or if a value cannot be
    read.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory; give a store's root, which holds commitlog/")
    path, values = read_properties(root, broker_conf)
    found = path if broker_conf is not None or path.is_file() else None
    directories = _commit_log_directories(root, values, path)
    check_log_files(directories)
    stated = _stated(values, path)
    return StoreSettings(root, directories, found, **stated, stated=stated)


def read_stated(root: Path, broker_conf: Path | None = None) -> Mapping[str, Any]:
    """Fields of StoreSettings that the property file of a store or output states.

    Raises UsageError like ``read_store_settings``; an output need not be a store.
    """
    path, values = read_properties(root, broker_conf)
    return _stated(values, path)


def read_properties(root: Path, broker_conf: Path | None = None) -> tuple[Path, dict[str, str]]:
    """The property file of a store or output and its values; a store's own need not exist.

    Raises UsageError if it cannot be read, or if the store is of an unsupported kind.
    """
    path = broker_conf or root / FILE_NAME
    values = _read_properties(path) if broker_conf is not None or path.is_file() else {}
    check_supported(root, values, path)
    return path, values


def broker_name(root: Path, values: Mapping[str, str]) -> str:
    """The name of a store's broker: its properties state it, or else the store's folder has it, as
    RocketMQ takes the host's."""
    return values.get("brokerName") or root.absolute().name


def _read_properties(path: Path) -> dict[str, str]:
    try:
        return parse_properties(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error


def _stated(values: dict[str, str], path: Path) -> dict[str, Any]:
    """The fields of StoreSettings that a property file states, except the log's directories."""
    found: dict[str, Any] = {}
    for setting in fields(StoreSettings):
        key = setting_name(setting.name)
        if key not in values or "limits" not in setting.metadata:
            continue
        limits = setting.metadata["limits"]
        found[setting.name] = (
            _parsed_switch(key, values[key], path)
            if limits is None
            else _parsed_number(key, values[key], limits, path)
        )
    if (size := found.get("mapped_file_size_consume_queue")) is not None:
        found["mapped_file_size_consume_queue"] = rounded_file_size(size)
    if delay_levels := values.get("messageDelayLevel"):
        found["message_delay_levels_ms"] = _delay_levels(delay_levels, path)
    return found


def _commit_log_directories(root: Path, values: dict[str, str], path: Path) -> tuple[Path, ...]:
    """Directories of the log's files, by the rules of ``MultiPathMappedFileQueue``.

    A stated path counts, whatever other directories exist: RocketMQ derives commitlog/ from the
    root only if storePathCommitLog is not stated, and reads readOnlyCommitLogStorePaths only beside
    several paths. Raises UsageError for a missing directory.
    """
    stated = values.get("storePathCommitLog")
    read_only = values.get("readOnlyCommitLogStorePaths", "").strip(_JAVA_SPACE)
    if read_only and MULTI_PATH_SPLITTER not in (stated or ""):
        raise UsageError(
            f"RocketMQ ignores readOnlyCommitLogStorePaths in {path}, since storePathCommitLog has "
            "no comma; end storePathCommitLog with one to have both read, or take "
            "readOnlyCommitLogStorePaths out"
        )
    if stated is None:
        own = root / COMMIT_LOG_DIRECTORY
        if not own.is_dir():
            raise UsageError(
                f"no {COMMIT_LOG_DIRECTORY} in {root}; give a store's root, which holds "
                f"{COMMIT_LOG_DIRECTORY}/, or a property file that states storePathCommitLog"
            )
        return (own,)
    named = _directories("storePathCommitLog", stated, path)
    if read_only:
        named += _directories("readOnlyCommitLogStorePaths", read_only, path)
    # a read-only path is usually one of the others, and two names may lead to one directory
    once: dict[tuple[int, int], Path] = {}
    for place, status in named:
        once.setdefault((status.st_dev, status.st_ino), place)
    return tuple(once.values())


def _directories(key: str, text: str, path: Path) -> list[tuple[Path, os.stat_result]]:
    parts = text.strip(_JAVA_SPACE).split(MULTI_PATH_SPLITTER)
    while len(parts) > 1 and not parts[-1]:
        parts.pop()  # as Java's split does
    found = []
    for part in parts:
        place = Path(part)
        if not place.is_absolute():
            raise UsageError(
                f"{key} in {path} names {part!r}, which a broker takes literally and from its "
                "working directory, unknown here; write whole paths, with commas and no spaces "
                "between, there or in another file (--broker-conf)"
            )
        try:
            status = place.stat()
        except OSError as error:
            raise _no_directory(key, path, part, error.strerror) from error
        if not stat.S_ISDIR(status.st_mode):
            raise _no_directory(key, path, part, "Not a directory")
        found.append((place, status))
    return found


def _no_directory(key: str, path: Path, part: str, reason: str | None) -> UsageError:
    return UsageError(
        f"cannot read commitlog directory {part}, which {key} in {path} names: {reason}; mount or "
        "create it, or, where the store was copied or moved, correct the file or pass another "
        "with --broker-conf"
    )


def _parsed_switch(key: str, text: str, path: Path) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{key} in {path} is {text!r}; it must be true or false")
    return text.lower() == "true"


def _parsed_number(key: str, text: str, limits: tuple[int, int], path: Path) -> int:
    smallest, largest = limits
    number = int(text) if re.fullmatch(r"[0-9]{1,18}", text, re.ASCII) else -1
    if not smallest <= number <= largest:
        raise UsageError(
            f"{key} in {path} is {text!r}; it must be a number from {smallest} to {largest}"
        )
    return number


def _delay_levels(text: str, path: Path) -> tuple[int, ...]:
    levels = []
    for part in text.split():
        found = re.fullmatch(r"([0-9]{1,9})([smhd])", part, re.ASCII)
        if not found:
            raise UsageError(
                f"messageDelayLevel in {path} holds {part!r}; it must be numbers with s, m, h or d"
            )
        levels.append(int(found[1]) * _DELAY_UNITS_MS[found[2]])
    return tuple(levels)


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java's property file format as far as broker.conf uses it.

    It has ``#`` and ``!`` comments, ``=``, ``:`` or a space as separator, lines continued with a
    backslash, and escapes; the last duplicate wins. Escaped code points are not supported, and
    trailing space of a value is dropped.
    """
    values: dict[str, str] = {}
    pending = ""
    for line in text.splitlines():
        stripped = line.strip()
        if not pending and stripped.startswith(("#", "!")):
            continue
        # a backslash that is itself escaped does not continue the line
        if (len(stripped) - len(stripped.rstrip("\\"))) % 2:
            pending += stripped[:-1]
            continue
        key, value = _split_property(pending + stripped)
        pending = ""
        if key:
            values[key] = value
    return values


def _split_property(line: str) -> tuple[str, str]:
    found = _PROPERTY.match(line)
    key, value = found.groups() if found else ("", "")
    return _unescaped(key), _unescaped(value)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), text)
