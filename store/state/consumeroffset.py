"""``config/consumerOffset.json``, the offsets that consumer groups have committed, and our journal.

::

    {"dataVersion":{"counter":N,...},"offsetTable":{"TOPIC@GROUP":{QUEUE:OFFSET,...},...}}

An offset is that of the next message to consume. Of the file only offsetTable is read, as by
RocketMQ, which keeps the offsets in memory and writes the file every five seconds. Positions that a
broker keeps for broadcasting consumers stand under the group's name and ``@broadcast``.

We replace the file as a whole, by rename. Between, commits are appended to the journal
``reput/serve/offsets.journal`` and synced. A line of it is a CRC-32 in eight hex digits, a space,
and JSON: the first line names the CRC of the file to which the journal belongs, the others are
offsets as in offsetTable. A reader applies the lines up to the first torn one, and none if the file
is another one: a broker has written it meanwhile, and its offsets count. The journal's lock is held
by who writes. Source: RocketMQ 5.3.3 ``ConsumerOffsetManager``, ``BroadcastOffsetManager``;
formats.md §18.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from store import configjson, fsops
from store.errors import OwnershipError, UsageError
from store.state.watermark import STATE_DIRECTORY

CONSUMER_OFFSET_FILE = "config/consumerOffset.json"
SERVE_DIRECTORY = f"{STATE_DIRECTORY}/serve"
JOURNAL = f"{SERVE_DIRECTORY}/offsets.journal"
TOPIC_GROUP_SEPARATOR = "@"
BROADCAST_SUFFIX = "@broadcast"


class TopicGroup(NamedTuple):
    """The key of a consumer group's offsets in one topic."""

    topic: str
    group: str


Offsets = dict[TopicGroup, dict[int, int]]
"""Committed offsets by topic and group, then by queue id."""


def topics_of(offsets: Offsets, group: str) -> list[str]:
    """Topics in which a group has committed, sorted."""
    return sorted(key.topic for key in offsets if key.group == group)


def read_committed(root: Path) -> Offsets | None:
    """The committed offsets below ``root``; None if there is neither the file nor its backup.

    Takes no lock; another process may write meanwhile. Raises UsageError if they cannot be used.
    """
    found = _read(root)
    return None if found is None else found[0]


class ConsumerOffsetFile:
    """The file and the journal of one output, for the one process that writes them.

    A context manager. Methods raise OutputError.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._path = output / CONSUMER_OFFSET_FILE
        self._journal_path = output / JOURNAL
        self._journal = -1
        self._journal_size = 0
        self._counter = 0
        """The counter of the file's dataVersion, which only grows."""

    def __enter__(self) -> Self:
        """Raises OwnershipError if another process writes these offsets."""
        fsops.make_directories(self._journal_path.parent, self._output)
        fsops.make_directories(self._path.parent, self._output)
        fd = fsops.open_for_writing(self._journal_path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise OwnershipError(
                f"{self._path} is written by another process, which holds {self._journal_path}; "
                "stop that server or command, or reset offsets through it"
            ) from error
        except OSError as error:
            os.close(fd)
            raise fsops.output_error(error, "lock", self._journal_path) from error
        self._journal = fd
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._journal)
        self._journal = -1

    def load(self, seed: Path) -> Offsets:
        """Read what is committed; below ``seed`` if nothing is yet. Raises UsageError.

        It must be written by ``replace`` before the first ``append``.
        """
        found = _read(self._output) or _read(seed) or ({}, 0)
        offsets, self._counter = found
        return offsets

    def append(self, commits: Offsets) -> None:
        """Add commits durably."""
        data = _line(_texts(commits))
        fsops.pwrite(self._journal, data, self._journal_size, self._journal_path)
        fsops.sync(self._journal, self._journal_path)
        self._journal_size += len(data)

    def replace(self, offsets: Offsets, commits: int) -> None:
        """Replace the file, ``commits`` after the last time, and begin the journal anew."""
        self._counter += commits
        data = _document(offsets, self._counter)
        fsops.replace_file(self._path, data)
        # a kill here leaves a journal of another file, whose commits are all in this one
        first = _line({"file": zlib.crc32(data)})
        fsops.truncate(self._journal, 0, self._journal_path)
        fsops.pwrite(self._journal, first, 0, self._journal_path)
        fsops.sync(self._journal, self._journal_path)
        self._journal_size = len(first)


def _read(root: Path) -> tuple[Offsets, int] | None:
    """Offsets and counter. The journal is read first: a file that replaces the one to which it
    belongs has all of its commits."""
    path = root / CONSUMER_OFFSET_FILE
    journal = _read_journal(root / JOURNAL)
    try:
        data = path.read_bytes() if journal else b""
    except OSError:
        data = b""
    try:
        if not data or journal[0] != {"file": zlib.crc32(data)}:
            document = configjson.read(path)
            return None if document is None else _parse(document)
        offsets, counter = _parse(configjson.parse(data.decode()))
        for entry in journal[1:]:
            for key, queues in _parse_table(entry).items():
                offsets.setdefault(key, {}).update(queues)
    except ValueError as error:
        raise UsageError(
            f"cannot use {path}: {error}; restore the file from {path.name}"
            f"{configjson.BACKUP_SUFFIX} or from a copy"
        ) from error
    return offsets, counter


def _read_journal(path: Path) -> list[object]:
    """The entries of its whole lines up to the first torn one; none where it is missing."""
    entries: list[object] = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return entries
    for line in lines:
        mark, _, data = line.partition(b" ")
        if mark != b"%08x" % zlib.crc32(data):
            break
        entries.append(json.loads(data))
    return entries


def _parse(document: object) -> tuple[Offsets, int]:
    found = _mapping(document)
    counter = _mapping(found.get("dataVersion") or {}).get("counter", 0)
    offsets = _parse_table(found.get("offsetTable") or {})
    return offsets, counter if type(counter) is int else 0


def _parse_table(table: object) -> Offsets:
    offsets: Offsets = {}
    for key, queues in _mapping(table).items():
        topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
        if not (topic and group):
            raise ValueError(f"the key {key!r} of offsetTable is not TOPIC@GROUP")
        found = offsets[TopicGroup(topic, group)] = {}
        for queue_id, offset in _mapping(queues).items():
            if type(offset) is not int:
                raise ValueError(f"the offset of {key} in queue {queue_id} is {offset!r}")
            found[int(queue_id)] = offset
    return offsets


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {value!r:.40}")
    return value


def _texts(offsets: Offsets) -> dict[str, dict[int, int]]:
    """Offsets by ``TOPIC@GROUP``, sorted."""
    return {
        TOPIC_GROUP_SEPARATOR.join(key): dict(sorted(offsets[key].items()))
        for key in sorted(offsets)
    }


def _line(entry: Mapping[str, object]) -> bytes:
    data = json.dumps(entry, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _document(offsets: Offsets, counter: int) -> bytes:
    """The file as RocketMQ writes it: tabs, and numbers as keys without quotes."""
    entries = []
    for key, queues in _texts(offsets).items():
        numbers = ",".join(f"{queue_id}:{offset}" for queue_id, offset in queues.items())
        entries.append(f"\t\t{json.dumps(key, ensure_ascii=False)}:{{{numbers}\n\t\t}}")
    table = ",\n".join(entries)
    version = f'"counter":{counter},\n\t\t"stateVersion":0,\n\t\t"timestamp":0'
    text = f'{{\n\t"dataVersion":{{\n\t\t{version}\n\t}},\n\t"offsetTable":{{\n{table}\n\t}}\n}}'
    return text.encode()
