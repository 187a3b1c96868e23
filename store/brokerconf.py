"""``broker.conf`` as a broker reads it, and what its writer surely did not mean.

A broker reads the file with ``java.util.Properties.load``: ISO 8859-1 with ``\\uXXXX``. It then
calls each setter whose property the file states (``MixAll.properties2Object``, which is the same in
RocketMQ 5.3.3 and 5.5.1). A text is trimmed. A number or a switch is not. What ``Integer.parseInt``
refuses is dropped without a word, so that the default holds. What is not ``true``, in any case, is
false. What a broker drops, or reads otherwise than it looks, is warned of here once in a process.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from reput.store.errors import NotReadyError, StoreError, UsageError
from reput.store.log.java import ascii_digits, parse_integer

JAVA_SPACE = bytes(range(33)).decode()
"""Characters that Java's String.trim removes."""
_BLANK = " \t\f"
_PROPERTY = re.compile(rf"((?:\\.|[^\\=:{_BLANK}])*)[{_BLANK}]*[=:]?[{_BLANK}]*(.*)\Z", re.DOTALL)
_ESCAPE = re.compile(r"\\(u.{0,4}|.)", re.DOTALL)
_CODE_POINT = re.compile(r"u[0-9a-fA-F]{4}")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_FORMER_NAMES = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
}
"""Names before RocketMQ 4.5.2; newer brokers ignore them."""
_ALIKE = 0.85
"""Least similarity of a misspelt name; no two settings of RocketMQ, one of them read here, are."""

logger = logging.getLogger("reput")


@dataclass(frozen=True, slots=True)
class Properties:
    """Statements of a property file, read by the rules of ``MixAll.properties2Object``."""

    path: Path
    """The file; it need not exist."""
    values: Mapping[str, str] = field(default_factory=dict)
    """By key, as ``java.util.Properties`` has them."""

    @classmethod
    def read(cls, path: Path) -> Properties:
        """Read a file. Raises NotReadyError, StoreError or, for what is in it, UsageError."""
        try:
            return cls(path, parse_properties(path.read_bytes()))
        except FileNotFoundError as error:
            raise NotReadyError(f"there is no file {path}", path=path) from error
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}", path=path) from error
        except ValueError as error:
            raise UsageError(f"cannot read {path}: {error}") from error

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str) -> str | None:
        """A setting that is a text; None if it is not stated."""
        value = self.values.get(key)
        return None if value is None else value.strip(JAVA_SPACE)

    def is_true(self, key: str) -> bool:
        """A switch, false if it is not stated: ``Boolean.parseBoolean``."""
        return equals_ignore_case(self.values.get(key, ""), "true")

    def number(self, key: str) -> int | None:
        """A number, which is an int in RocketMQ; None if a broker has its default."""
        return parse_integer(ascii_digits(self.values.get(key, "")), 32)

    def warn(
        self, texts: Collection[str], switches: Collection[str], numbers: Collection[str]
    ) -> None:
        """Log a line, once in this process, about each statement that a broker reads otherwise than
        it looks. The arguments name the settings that somebody reads."""
        for line in self._oddities({*texts}, {*switches}, {*numbers}):
            _warn_once(f"{self.path}: {line}")

    def _oddities(self, texts: set[str], switches: set[str], numbers: set[str]) -> Iterator[str]:
        names = texts | switches | numbers
        for key, value in self.values.items():
            if key in numbers and self.number(key) is None:
                yield (
                    f"{key} is {value!r}, which is no number to a broker, so that the default "
                    "holds; write digits alone, with nothing after them"
                )
            elif key in switches and value.lower() not in ("true", "false"):
                yield (
                    f"{key} is {value!r}, which a broker reads as false; write true or false, with "
                    "nothing after it"
                )
            elif key in texts and _is_misread(value):
                yield (
                    f"a broker reads this file as ISO 8859-1, so that {key} is {value!r}; write "
                    "\\uXXXX for other characters"
                )
            elif key not in names:
                yield from self._misspelling(key, names)

    def _misspelling(self, key: str, names: Collection[str]) -> Iterator[str]:
        if (current := _FORMER_NAMES.get(key)) is not None:
            if current not in self.values:
                yield f"brokers since RocketMQ 4.5.2 ignore {key}; its name is {current}"
            return
        folded = {name.casefold(): name for name in names}
        alike = difflib.get_close_matches(key.casefold(), folded, n=1, cutoff=_ALIKE)
        for name in alike:
            if folded[name] not in self.values:
                yield f"RocketMQ has no setting {key!r} and ignores it; its name is {folded[name]}"


def parse_properties(data: bytes) -> dict[str, str]:
    """Parse a property file as ``java.util.Properties.load`` does. Raises ValueError for a
    malformed ``\\uXXXX``, at which a broker does not start."""
    return dict(_statement(line) for _, line in _logical_lines(data) if line)


def with_statements(data: bytes, values: Mapping[str, str]) -> bytes:
    """A property file with these statements at its end, and no others of their keys; all other
    lines stay, byte by byte, in whatever charset. Raises ValueError as ``parse_properties``."""
    kept = b"".join(
        written
        for written, line in _logical_lines(data)
        if not line or _statement(line)[0] not in values
    )
    # neither a last line without an end nor one that goes on may take a statement for its own
    while [*_logical_lines(kept + b"=")][-1][0] != b"=":
        kept += b"\n"
    return kept + "".join(f"{key}={value}\n" for key, value in values.items()).encode()


def _statement(line: str) -> tuple[str, str]:
    match = _PROPERTY.match(line)
    key, value = match.groups() if match else (line, "")
    return _unescaped(key), _unescaped(value)


def _logical_lines(data: bytes) -> Iterator[tuple[bytes, str]]:
    """Each line as it is written, with all its ends, and as it is read: empty for a comment and
    where there is nothing."""
    written, pending = b"", ""
    for natural in data.splitlines(keepends=True):
        written += natural
        line = natural.decode("iso-8859-1").rstrip("\r\n").lstrip(_BLANK)
        # only a line that goes on with something cannot be a comment
        if not pending and line.startswith(("#", "!")):
            line = ""
        # a backslash that is itself escaped does not continue the line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1]
            continue
        yield written, pending + line
        written, pending = b"", ""
    if written:
        yield written, pending


def _unescaped(text: str) -> str:
    text = _ESCAPE.sub(_escaped_character, text)
    # two escapes of UTF-16 may be one character; a half alone stays
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def _escaped_character(match: re.Match[str]) -> str:
    escape = match[1]
    if not escape.startswith("u"):
        return _ESCAPED.get(escape, escape)
    if not _CODE_POINT.fullmatch(escape):
        raise ValueError(f"\\{escape} is no \\uXXXX; a broker does not start with it")
    return chr(int(escape[1:], 16))


def equals_ignore_case(text: str, name: str) -> bool:
    """Java's ``equalsIgnoreCase`` with one of RocketMQ's own words, which are ASCII."""
    return text.casefold() == name.casefold()


def _is_misread(value: str) -> bool:
    """Whether a text looks like UTF-8 that was read as ISO 8859-1."""
    try:
        return value.encode("iso-8859-1").decode("utf-8") != value
    except UnicodeError:
        return False


@cache
def _warn_once(line: str) -> None:
    logger.warning("%s", line)
