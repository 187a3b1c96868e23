"""A store's settings, from RocketMQ's own property file.

``broker.conf`` at the store's root, or a file given; RocketMQ's names and defaults
(``MessageStoreConfig``). Keys that concern other parts of a broker are left alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from store.consumequeue import rounded_file_size
from store.errors import UsageError
from store.record import DEFAULT_DELAY_LEVELS_MS

FILE_NAME = "broker.conf"
COMMIT_LOG_DIRECTORY = "commitlog"
_PROPERTY = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)\Z", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What of a broker's configuration decides bytes on disk."""

    root: Path
    commit_log_directories: tuple[Path, ...]
    mapped_file_size_commit_log: int | None = None
    """Bytes; None where not stated: the files' own size is taken then."""
    mapped_file_size_consume_queue: int = 6_000_000
    """Bytes, rounded up to whole 20-byte units."""
    message_delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS

    def with_overrides(
        self, commit_log_file_size: int | None, consume_queue_file_size: int | None
    ) -> StoreSettings:
        """These settings with the sizes that a flag gives; None keeps one."""
        settings = self
        if commit_log_file_size is not None:
            settings = replace(settings, mapped_file_size_commit_log=commit_log_file_size)
        if consume_queue_file_size is not None:
            size = rounded_file_size(consume_queue_file_size)
            settings = replace(settings, mapped_file_size_consume_queue=size)
        return settings


def read_store_settings(root: Path, broker_conf: Path | None = None) -> StoreSettings:
    """The settings of the store at ``root``.

    Raises UsageError where ``root`` is no store or a value cannot be read.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory; give a store's root, which holds commitlog/")
    path = broker_conf or root / FILE_NAME
    values: dict[str, str] = {}
    if broker_conf is not None or path.is_file():
        try:
            values = parse_properties(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {path}: {error}") from error
    settings = StoreSettings(root, _commit_log_directories(root, values))
    if delay_levels := values.get("messageDelayLevel"):
        settings = replace(settings, message_delay_levels_ms=_delay_levels(delay_levels, path))
    return settings.with_overrides(
        _size(values, "mappedFileSizeCommitLog", path),
        _size(values, "mappedFileSizeConsumeQueue", path),
    )


def _commit_log_directories(root: Path, values: dict[str, str]) -> tuple[Path, ...]:
    own = root / COMMIT_LOG_DIRECTORY
    stated = [Path(part) for part in values.get("storePathCommitLog", "").split(",") if part]
    if own.is_dir():
        # a copied store still names the original's directories: its own log comes first
        return (own,)
    if stated:
        return tuple(stated)
    raise UsageError(f"no commitlog in {root}; give a store's root, which holds commitlog/")


def _size(values: dict[str, str], key: str, path: Path) -> int | None:
    text = values.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII) or int(text) < 1:
        raise UsageError(f"{key} in {path} is {text!r}; it must be a number of bytes")
    return int(text)


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
    """Java's property file format, as far as broker.conf uses it: ``#`` and ``!`` comments, ``=``,
    ``:`` or a space, lines continued with a backslash, escapes; the last duplicate wins. Without
    escaped code points; space that ends a value is dropped."""
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
