"""A store's settings, read from RocketMQ's own property file.

The file is ``broker.conf`` at the store's root, or one given by a flag, with RocketMQ's names and
defaults (``MessageStoreConfig``, ``BrokerConfig``), as a broker reads it (``store.brokerconf``).
Keys of other parts of a broker are ignored, and so is bitMapLengthConsumeQueueExt, which a broker
overwrites with its Bloom filter's size. A number that a broker takes, and that no store can have
been written with, is an error.
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

from reput.store.brokerconf import Properties
from reput.store.errors import NotReadyError, StoreError, UsageError
from reput.store.files import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    BROKER_CONF_FILE,
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    INDEX_DIRECTORY,
)
from reput.store.flags import DAMAGE_PANEL, INDEX_PANEL, STORE_PANEL, Flag
from reput.store.index.indexfile import (
    DEFAULT_MAX_HASH_SLOT_NUM,
    DEFAULT_MAX_INDEX_NUM,
    DEFAULT_MAX_MSGS_NUM_BATCH,
    IndexLayout,
)
from reput.store.log.commitlog import CommitLog
from reput.store.log.java import ascii_digits, parse_integer
from reput.store.log.record import DEFAULT_DELAY_LEVELS_MS
from reput.store.queue.consumequeue import rounded_file_size
from reput.store.unsupported import SWITCHES as KIND_SWITCHES
from reput.store.unsupported import TEXTS as KIND_TEXTS
from reput.store.unsupported import check_log_files, check_supported

FILE_SIZE_FIELDS = {
    CONSUME_QUEUE_DIRECTORY: "mapped_file_size_consume_queue",
    CONSUME_QUEUE_EXT_DIRECTORY: "mapped_file_size_consume_queue_ext",
    BATCH_CONSUME_QUEUE_DIRECTORY: "mapper_file_size_batch_consume_queue",
}
"""Directory -> field of StoreSettings with the size of its files."""
NO_PROPERTY_FILE = f"no {BROKER_CONF_FILE}, RocketMQ's defaults"
MULTI_PATH_SPLITTER = ","
_MAX_INT = (1 << 31) - 1
_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def setting_name(field_name: str) -> str:
    """RocketMQ's name of a setting, from that of our field: in camel case."""
    return re.sub(r"_([a-z])", lambda letter: letter[1].upper(), field_name)


_QUEUES = (CONSUME_QUEUE_DIRECTORY,)
_EXT = (CONSUME_QUEUE_EXT_DIRECTORY,)
_BATCH = (BATCH_CONSUME_QUEUE_DIRECTORY,)
_INDEX = (INDEX_DIRECTORY,)
_INDEX_FLAG = Flag(
    "--index/--no-index",
    "Build the index of keys (default for a new output: messageIndexEnable of broker.conf).",
    INDEX_PANEL,
)  # fmt: skip


def _setting(
    default: Any,
    *built: str,
    limits: tuple[int, int] | bool | None = False,
    may_change: bool = False,
    flag: Flag | None = None,
) -> Any:
    """One setting. ``built`` are the directories of an output whose bytes depend on the value; with
    ``may_change`` files of two values are sound, so that a new one holds for later entries.
    ``limits`` are those of a number that the property file states; None for a switch there."""
    metadata = {"limits": limits, "built": built, "may_change": may_change, "flag": flag}
    make = {"default_factory": default} if default is dict else {"default": default}
    return field(metadata=metadata, **make)


def _switch(default: bool, *built: str, **more: Any) -> Any:
    """A field that the property file states under its name in camel case."""
    return _setting(default, *built, limits=None, **more)


def _number(
    default: int | None, smallest: int = 1, largest: int = _MAX_INT, built: tuple[str, ...] = (),
    **more: Any,
) -> Any:  # fmt: skip
    return _setting(default, *built, limits=(smallest, largest), **more)


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
    mapped_file_size_commit_log: int | None = _number(None)
    """Bytes; None if not stated, so that the files' own size holds."""
    mapped_file_size_consume_queue: int = _number(
        6_000_000, 1, _MAX_INT // 20 * 20, _QUEUES,
        flag=Flag(
            "--consume-queue-file-size", "mappedFileSizeConsumeQueue, such as `6000000`.",
            STORE_PANEL, "SIZE",
        ),
    )  # fmt: skip
    """Bytes, rounded up to whole 20-byte units."""
    on_queue_gap: OnQueueGap = _setting(  # noqa: RUF009
        OnQueueGap.ROCKETMQ, *_QUEUES,
        flag=Flag(
            "--on-queue-gap",
            "Where queue offsets jump: `rocketmq` appends at the queue's end as RocketMQ does "
            "(default for a new output), `blank` fills the gap with blanks, `fail` stops.",
            DAMAGE_PANEL, "HOW",
        ),
    )  # fmt: skip
    enable_multi_dispatch: bool = _switch(False, *_QUEUES)
    """Whether a message also goes to the queues that its properties name."""
    enable_lmq: bool = _switch(False, *_QUEUES)
    """Whether light queues (%LMQ%) have queue id 0."""
    enable_consume_queue_ext: bool = _switch(False, *_QUEUES, *_EXT)
    mapped_file_size_consume_queue_ext: int = _number(48 << 20, built=_EXT)
    """Bytes."""
    enable_calc_filter_bit_map: bool = _switch(False, *_EXT)
    max_error_rate_of_bloom_filter: int | None = _number(None, 1, 99, _EXT)
    """Percent; with the next setting it determines the number of bits of a message's bit map."""
    expect_consumer_num_use_filter: int | None = _number(None, built=_EXT)
    mapper_file_size_batch_consume_queue: int = _number(13_800_000, built=_BATCH)
    """Bytes, not rounded to whole units."""
    message_index_enable: bool = _switch(True, *_INDEX, may_change=True, flag=_INDEX_FLAG)
    index_file_write_enable: bool = _switch(True, *_INDEX, may_change=True, flag=_INDEX_FLAG)
    """Whether the index is kept in files (RocketMQ 5.4 and newer)."""
    index_tags: bool = _setting(
        False, *_INDEX,
        flag=Flag(
            "--index-tags/--no-index-tags", "Index tags as well, as RocketMQ 5.5 does.",
            INDEX_PANEL,
        ),
    )  # fmt: skip
    """Index tags too, as RocketMQ 5.5 does and 5.3 does not."""
    max_hash_slot_num: int = _number(DEFAULT_MAX_HASH_SLOT_NUM, built=_INDEX)
    """Slots of an index file."""
    max_index_num: int = _number(DEFAULT_MAX_INDEX_NUM, built=_INDEX)
    """Entries of an index file."""
    verify_crc: bool = _setting(
        False, *_QUEUES, *_EXT, *_BATCH, *_INDEX,
        flag=Flag(
            "--verify-crc/--no-verify-crc",
            "Check the CRC of every body (default for a new output: no).",
            DAMAGE_PANEL,
        ),
    )  # fmt: skip
    """Check the CRC of every body; a message with a wrong one gets no entry."""
    topic_begins: Mapping[str, int] = _setting(
        dict, *_QUEUES, *_EXT, *_BATCH, may_change=True,
        flag=Flag(
            "--from",
            "With `--topic`: messages of the topic before this physical offset get no units, now "
            "and later; for a topic that was deleted and made again. 0 takes all of them again.",
            None, "OFFSET",
        ),
    )  # fmt: skip
    """Topic -> physical offset before which its messages get no units, because its offsets begin
    again there (``reput rebuild --topic TOPIC --from OFFSET``); the queues of a topic are rebuilt
    where its begin changes."""
    message_delay_levels_ms: tuple[int, ...] = _setting(
        DEFAULT_DELAY_LEVELS_MS, *_QUEUES, *_EXT, *_BATCH, may_change=True
    )
    """A broker uses other levels after a restart."""
    enable_accelerated_recovery: bool = _switch(False)
    """Whether a broker (RocketMQ 5.5) needs a logicsPhysicalOffset to start after a crash."""
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
    stated: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Field -> value, for fields that the property file states."""

    @property
    def builds_index(self) -> bool:
        """Whether index files are built."""
        return self.message_index_enable and self.index_file_write_enable

    @property
    def index_layout(self) -> IndexLayout:
        """The layout of index files. Raises UsageError for sizes that no file can have."""
        return IndexLayout(self.max_hash_slot_num, self.max_index_num)

    def file_size(self, directory: str) -> int:
        """Bytes of each file in a directory of queues, ext or index. Raises UsageError."""
        if directory == INDEX_DIRECTORY:
            return self.index_layout.file_size
        size: int = getattr(self, FILE_SIZE_FIELDS[directory])
        return size

    @property
    def builds_bit_maps(self) -> bool:
        """Whether ext units get the bit maps of filters."""
        return self.enable_consume_queue_ext and self.enable_calc_filter_bit_map

    def with_commit_log_file_size(self, size: int | None) -> StoreSettings:
        """These settings with the size of a flag; None keeps the size."""
        return self if size is None else replace(self, mapped_file_size_commit_log=size)

    def open_log(self) -> CommitLog:
        """The store's log. Raises like CommitLog."""
        return CommitLog(self.commit_log_directories, self.mapped_file_size_commit_log)


def read_store_settings(root: Path, broker_conf: Path | None = None) -> StoreSettings:
    """Read the settings of the store at ``root``.

    Raises NotReadyError if ``root`` is no store yet, StoreError if it cannot be read, and
    UsageError if it is of an unsupported kind or its property file is wrong.
    """
    kind = f"give a store's root, which holds {COMMIT_LOG_DIRECTORY}/"
    if not root.is_dir():
        if root.exists():
            raise UsageError(f"{root} is not a directory; {kind}")
        raise NotReadyError(f"there is no directory {root}; {kind}", path=root)
    properties = read_properties(root, broker_conf)
    path = properties.path
    property_file = path if broker_conf is not None or path.is_file() else None
    directories = _commit_log_directories(root, properties)
    check_log_files(directories)
    stated = _stated(properties)
    return StoreSettings(root, directories, property_file, **stated, stated=stated)


def read_stated(root: Path, broker_conf: Path | None = None) -> Mapping[str, Any]:
    """Fields of StoreSettings that the property file of a store or output states.

    Raises UsageError like ``read_store_settings``; an output need not be a store.
    """
    return _stated(read_properties(root, broker_conf))


def read_properties(root: Path, broker_conf: Path | None = None) -> Properties:
    """The property file of a store or output; a store's own need not exist.

    Raises UsageError if it cannot be read, or if the store is of an unsupported kind.
    """
    path = broker_conf or root / BROKER_CONF_FILE
    is_read = broker_conf is not None or path.is_file()
    properties = Properties.read(path) if is_read else Properties(path)
    properties.warn(_TEXTS, _SWITCHES, _NUMBERS)
    check_supported(root, properties)
    return properties


def broker_name(root: Path, properties: Properties) -> str:
    """The name of a store's broker: its properties state it, or else the store's folder has it, as
    RocketMQ takes the host's."""
    return properties.text("brokerName") or root.absolute().name


def _stated(properties: Properties) -> dict[str, Any]:
    """The fields of StoreSettings that a property file states, except the log's directories."""
    values: dict[str, Any] = {
        field_name: properties.is_true(key)
        for key, field_name in _SWITCHES.items()
        if field_name and key in properties
    }
    for key, (field_name, limits) in _NUMBERS.items():
        if (number := properties.number(key)) is not None:
            values[field_name] = _within(limits, number, key, properties)
    if (size := values.get("mapped_file_size_consume_queue")) is not None:
        values["mapped_file_size_consume_queue"] = rounded_file_size(size)
    if (delay_levels := properties.text("messageDelayLevel")) is not None:
        values["message_delay_levels_ms"] = delay_levels_ms(delay_levels, properties.path)
    return values


def _commit_log_directories(root: Path, properties: Properties) -> tuple[Path, ...]:
    """Directories of the log's files, by the rules of ``MultiPathMappedFileQueue``.

    A stated path counts, whatever other directories exist: RocketMQ derives commitlog/ from the
    root only if storePathCommitLog is not stated, and reads readOnlyCommitLogStorePaths only beside
    several paths. Raises NotReadyError for a missing directory.
    """
    path = properties.path
    stated = properties.text("storePathCommitLog")
    read_only = properties.text("readOnlyCommitLogStorePaths")
    if read_only and MULTI_PATH_SPLITTER not in (stated or ""):
        raise UsageError(
            f"RocketMQ ignores readOnlyCommitLogStorePaths in {path}, since storePathCommitLog has "
            "no comma; end storePathCommitLog with one to have both read, or take "
            "readOnlyCommitLogStorePaths out"
        )
    if stated is None:
        own = root / COMMIT_LOG_DIRECTORY
        if not own.is_dir():
            raise NotReadyError(
                f"no {COMMIT_LOG_DIRECTORY} in {root}; start its broker, or give a store's root, "
                f"which holds {COMMIT_LOG_DIRECTORY}/, or a property file that states "
                "storePathCommitLog",
                path=own,
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
    places = []
    for part in _split(text, MULTI_PATH_SPLITTER):
        place = Path(part)
        if not place.is_absolute():
            raise UsageError(
                f"{key} in {path} names {part!r}, which a broker takes literally and from its "
                "working directory, unknown here; write whole paths, with commas and no spaces "
                "between, there or in another file (`broker_conf=`)"
            )
        try:
            status = place.stat()
        except FileNotFoundError as error:
            line = _no_directory(key, path, part, error.strerror)
            raise NotReadyError(line, path=place) from error
        except NotADirectoryError as error:
            raise UsageError(_no_directory(key, path, part, error.strerror)) from error
        except OSError as error:
            line = _no_directory(key, path, part, error.strerror)
            raise StoreError(line, path=place) from error
        except ValueError as error:  # it holds a character that no path has
            raise UsageError(_no_directory(key, path, part, str(error))) from error
        if not stat.S_ISDIR(status.st_mode):
            raise UsageError(_no_directory(key, path, part, "Not a directory"))
        places.append((place, status))
    return places


def _no_directory(key: str, path: Path, part: str, reason: str | None) -> str:
    return (
        f"cannot read commitlog directory {part}, which {key} in {path} names: {reason}; mount or "
        "create it, or, where the store was copied or moved, correct the file or pass another "
        "with `broker_conf=`"
    )


def _within(limits: tuple[int, int], number: int, key: str, properties: Properties) -> int:
    smallest, largest = limits
    if not smallest <= number <= largest:
        raise UsageError(
            f"{key} in {properties.path} is {properties.values[key]!r}; it must be a number from "
            f"{smallest} to {largest}"
        )
    return number


def delay_levels_ms(text: str, place: object) -> tuple[int, ...]:
    """Milliseconds by level, as ``ScheduleMessageService.parseDelayLevel`` has them, overflow
    included. Raises UsageError where it fails, since a broker does not start then."""
    levels = []
    for part in _split(text, " "):
        number = parse_integer(ascii_digits(part[:-1]), 64)
        if number is None or part[-1] not in _DELAY_UNITS_MS:
            raise UsageError(
                f"messageDelayLevel in {place} holds {part!r}, with which a broker does not start; "
                "write numbers with s, m, h or d, and one blank between"
            )
        milliseconds = number * _DELAY_UNITS_MS[part[-1]]
        levels.append((milliseconds + (1 << 63)) % (1 << 64) - (1 << 63))
    return tuple(levels)


def _split(text: str, separator: str) -> list[str]:
    """``text.split(separator)`` of Java, which drops empty parts at the end."""
    parts = text.split(separator)
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


_LIMITS = {row.name: row.metadata.get("limits", False) for row in fields(StoreSettings)}
_NUMBERS = {setting_name(name): (name, limits) for name, limits in _LIMITS.items() if limits}
_SWITCHES = {setting_name(name): name for name, limits in _LIMITS.items() if limits is None}
_SWITCHES |= dict.fromkeys(KIND_SWITCHES, "")
_TEXTS = {
    "messageDelayLevel", "storePathCommitLog", "readOnlyCommitLogStorePaths",
    "brokerName", "brokerClusterName", *KIND_TEXTS,
}  # fmt: skip
"""The keys that are read of a property file; switches and numbers with their fields here."""
