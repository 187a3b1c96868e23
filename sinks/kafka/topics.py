"""The topics that are mirrored to Kafka, and their names there.

Kafka allows fewer characters than RocketMQ, and a mirror must find its topics again after any
restart. So a name follows from the topic and the configuration alone, and no two topics share one.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from reput.store.errors import UsageError
from reput.store.rows.rowform import DEFAULT_FORM, RowForm

OWN_PREFIX = "reput-"
"""Prefix of Kafka topics that hold reput's own data."""
MAX_NAME_LENGTH = 249
DEFAULT_FORMAT = "{topic}"
_PLACE = "{topic}"
_KEPT_PREFIXES = ("__", OWN_PREFIX)
_LEGAL = re.compile(r"[a-zA-Z0-9._-]*\Z")
_ESCAPED = re.compile(rb"[^a-zA-Z0-9_-]|_(?=x[0-9a-f]{2})")
_DIGEST_LENGTH = 40


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Maps each topic to a Kafka name that never changes and that no other topic has.

    Kafka allows letters, digits, ``.``, ``_`` and ``-``, and treats names that differ only in ``.``
    and ``_`` as equal. Every other byte, and ``.``, becomes ``.x`` and two hexadecimal digits
    (``%RETRY%g`` is ``.x25RETRY.x25g``), as does a ``_`` that would look like one. A name that is
    too long is cut and ends in ``.xfe``, which is no byte of UTF-8, and a part of its SHA-256.
    Names that Kafka or reput reserves have their first character escaped.
    """

    template: str = DEFAULT_FORMAT
    reserved: Collection[str] = field(default=frozenset())
    """Kafka topics that hold other data."""

    def __post_init__(self) -> None:
        before, place, after = self.template.partition(_PLACE)
        literal, most = before + after, MAX_NAME_LENGTH // 2
        kept = before.startswith(_KEPT_PREFIXES)
        if not place or kept or not _LEGAL.match(literal) or len(literal) > most:
            raise UsageError(
                f"the format of Kafka's topic names is {self.template!r}; it must hold {_PLACE} "
                f"once, and else up to {most} letters, digits and . _ -, and not begin with "
                f"{' or '.join(_KEPT_PREFIXES)}"
            )

    def of(self, topic: str) -> str:
        """Kafka's name for ``topic``."""
        data = topic.encode()
        name = self._filled(_escaped(data) or ".xff")
        if name.startswith(_KEPT_PREFIXES) or _folded(name) in map(_folded, self.reserved):
            name = self._filled(f".x{data[:1].hex()}{_escaped(data[1:])}")
        if len(name) > MAX_NAME_LENGTH:
            digest = hashlib.sha256(data).hexdigest()[:_DIGEST_LENGTH]
            tail = f".xfe{digest}"
            name = name[: MAX_NAME_LENGTH - len(tail)] + tail
        return name

    def _filled(self, name: str) -> str:
        return self.template.replace(_PLACE, name, 1)


def _folded(name: str) -> str:
    """The name as it must differ from those of others: Kafka takes a dot for an underscore."""
    return name.replace(".", "_")


def check_topic(name: str) -> None:
    """Raises UsageError unless ``name`` is a valid topic name on Kafka."""
    if not name or name in (".", "..") or not _LEGAL.match(name) or len(name) > MAX_NAME_LENGTH:
        raise UsageError(
            f"`KafkaArrivalsTarget.topic=` is {name!r}; a topic's name on Kafka has 1 to "
            f"{MAX_NAME_LENGTH} letters, digits and . _ -"
        )


def _escaped(name: bytes) -> str:
    return _ESCAPED.sub(lambda match: b".x%02x" % match[0][0], name).decode()


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Chooses topics: all, or those of some patterns (``*`` and ``?``, as in file names), and of
    RocketMQ's own only those that are named, unless the form includes internal records.

    RocketMQ's own topics hold delayed messages until they are due and transactional messages until
    they are committed. RocketMQ then stores both again under their real topic.
    """

    patterns: tuple[str, ...] = ()
    form: RowForm = DEFAULT_FORM
    """Its named topics are these patterns: one without a wildcard is a name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "form", replace(self.form, named_topics=self.patterns))

    def __contains__(self, topic: str) -> bool:
        return self.form.takes_topic(topic) and (
            not self.patterns
            or any(fnmatch.fnmatchcase(topic, pattern) for pattern in self.patterns)
        )
