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
is another one: a broker has written it meanwhile, and its offsets count.

A server, or a command that moves offsets, keeps the offsets for itself by a lock on the journal.
Members of groups that are processes of their own (``readers.consumer``, the Spark source) share
that lock for as long as they consume, and write one after the other (``reput/serve/turn.lock``).
Source: RocketMQ 5.3.3 ``ConsumerOffsetManager``, ``BroadcastOffsetManager``; formats.md §18.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from store import configjson, fsops
from store.errors import OwnershipError, UsageError
from store.filelocks import HeldLock, lock
from store.state.brokerlock import broker_pid
from store.state.watermark import STATE_DIRECTORY

CONSUMER_OFFSET_FILE = "config/consumerOffset.json"
SERVE_DIRECTORY = f"{STATE_DIRECTORY}/serve"
JOURNAL = f"{SERVE_DIRECTORY}/offsets.journal"
TURN_LOCK = f"{SERVE_DIRECTORY}/turn.lock"
MAX_JOURNAL_BYTES = 1 << 20
REPLACE_SECONDS = 5.0
"""The file is replaced by the first commit this long after the last time, as RocketMQ does
(flushConsumerOffsetInterval)."""
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
    return None if found is None else found.offsets


def first_position(committed: Mapping[int, int], asked: int, earliest: int) -> int:
    """Where a group begins in a queue of a topic in which it has committed other queues' offsets.

    In a topic that is new to it, that is where it was ``asked`` to. In another one the queue came
    later, and the group begins with its ``earliest`` message, so that it loses none. The answers
    for a new topic are to be committed at once and together: asked again, a queue's end would lie
    beyond messages that nobody has read.
    """
    return earliest if committed else asked


class ConsumerOffsetFile:
    """The file and the journal of one output, for the one process that writes them.

    A context manager. Methods raise OutputError.
    """

    def __init__(self, output: Path, *, shared: bool = False) -> None:
        """``shared``: for one of the processes that take turns (``SharedConsumerOffsetFile``)."""
        self._output = output
        self._path = output / CONSUMER_OFFSET_FILE
        self._journal_path = output / JOURNAL
        self._shared = shared
        self._lock: HeldLock
        self._journal_size = 0
        """Bytes of the journal's whole lines; 0 if it does not belong to the file."""
        self._commits = 0
        """Entries of the journal after its first line."""
        self._counter = 0
        """The counter of the file's dataVersion, which only grows."""

    def __enter__(self) -> Self:
        """Raises OwnershipError if another process writes these offsets."""
        fsops.make_directories(self._journal_path.parent, self._output)
        fsops.make_directories(self._path.parent, self._output)
        found = lock(self._journal_path, shared=self._shared)
        if found is None:
            raise OwnershipError(
                f"{self._path} is written by another process, which holds {self._journal_path}; "
                "stop that server, command or consumer, or move offsets through the server"
            )
        self._lock = found
        return self

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def load(self, seed: Path) -> Offsets:
        """Read what is committed; below ``seed`` if nothing is yet. Raises UsageError.

        It must be written by ``replace`` before the first ``append``.
        """
        own = _read(self._output)
        found = own or _read(seed) or _Found({}, 0)
        self._counter = found.counter
        self._journal_size, self._commits = own[2:] if own else (0, 0)
        return found.offsets

    @property
    def has_commits(self) -> bool:
        """Whether the journal has some that the file has not."""
        return self._commits > 0

    @property
    def is_due(self) -> bool:
        """Whether ``replace`` should be called in place of ``append``."""
        if not 0 < self._journal_size < MAX_JOURNAL_BYTES:
            return True
        return not 0 <= time.time() - self._path.stat().st_mtime < REPLACE_SECONDS

    def append(self, commits: Offsets) -> None:
        """Add commits durably."""
        self.write(commits)
        self.sync()

    def write(self, commits: Offsets) -> None:
        """Add commits, which survive a kill from now on, and a power cut after ``sync``."""
        fd, data = self._lock.fd, _line(_texts(commits))
        if os.fstat(fd).st_size > self._journal_size:
            # what a killed process left of a line
            fsops.truncate(fd, self._journal_size, self._journal_path)
        fsops.pwrite(fd, data, self._journal_size, self._journal_path)
        self._journal_size += len(data)
        self._commits += 1

    def sync(self) -> None:
        """Make what was written durable; another thread may write meanwhile."""
        fsops.sync(self._lock.fd, self._journal_path)

    def replace(self, offsets: Offsets, commits: int) -> None:
        """Replace the file, ``commits`` after the last time, and begin the journal anew."""
        self._counter += commits
        data = _document(offsets, self._counter)
        fsops.replace_file(self._path, data)
        # a kill here leaves a journal of another file, whose commits are all in this one
        fd, first = self._lock.fd, _line({"file": zlib.crc32(data)})
        fsops.truncate(fd, 0, self._journal_path)
        fsops.pwrite(fd, first, 0, self._journal_path)
        fsops.sync(fd, self._journal_path)
        self._journal_size, self._commits = len(first), 0


class SharedConsumerOffsetFile:
    """The file and the journal for processes that commit beside each other, each in its turn.

    A context manager. Methods raise OutputError, UsageError for offsets that cannot be used, and
    OwnershipError if a broker runs on the store whose file would be written.
    """

    def __init__(self, output: Path, seed: Path) -> None:
        """``seed`` is the store whose offsets are taken over if the output has none."""
        self._output = output
        self._seed = seed
        self._file = ConsumerOffsetFile(output, shared=True)

    def __enter__(self) -> Self:
        """Raises OwnershipError also if a server keeps these offsets for itself."""
        self._check_no_broker()
        self._file.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        """Put the journal's commits into the file, of which alone a broker reads."""
        with ExitStack() as held:
            held.push(self._file)
            self._check_no_broker()
            held.enter_context(self._turn())
            offsets = self._file.load(self._seed)
            if self._file.has_commits:
                self._file.replace(offsets, 0)

    def read(self) -> Offsets:
        """The committed offsets."""
        return read_committed(self._output) or read_committed(self._seed) or {}

    def update(self, plan: Callable[[Offsets], Offsets]) -> Offsets:
        """Commit durably what ``plan`` answers to the committed offsets; all of them afterwards."""
        self._check_no_broker()
        with self._turn():
            offsets = self._file.load(self._seed)
            commits = plan(offsets)
            if not commits:
                return offsets
            for key, queues in commits.items():
                offsets.setdefault(key, {}).update(queues)
            if self._file.is_due:
                self._file.replace(offsets, 1)
            else:
                self._file.append(commits)
        return offsets

    def _turn(self) -> HeldLock:
        found = lock(self._output / TURN_LOCK, patience=None)
        assert found is not None  # it waits
        return found

    def _check_no_broker(self) -> None:
        pid = broker_pid(self._output) if self._output.samefile(self._seed) else None
        if pid is not None:
            raise OwnershipError(
                f"a broker or dispatcher (process {pid}) writes {self._output}; give an output of "
                "your own for queues and offsets"
            )


class _Found(NamedTuple):
    """The offsets of a file and its journal."""

    offsets: Offsets
    counter: int
    journal_size: int = 0
    """Bytes of the journal's whole lines; 0 if it belongs to another file."""
    journal_commits: int = 0
    """Entries of the journal after its first line."""


def _read(root: Path) -> _Found | None:
    """The journal is read first: a file that replaces the one to which it belongs has all of its
    commits."""
    path = root / CONSUMER_OFFSET_FILE
    journal, journal_size = _read_journal(root / JOURNAL)
    try:
        data = path.read_bytes() if journal else b""
    except OSError:
        data = b""
    try:
        if not data or journal[0] != {"file": zlib.crc32(data)}:
            document = configjson.read(path)
            return None if document is None else _Found(*_parse(document))
        offsets, counter = _parse(configjson.parse(data.decode()))
        for entry in journal[1:]:
            for key, queues in _parse_table(entry).items():
                offsets.setdefault(key, {}).update(queues)
    except ValueError as error:
        raise UsageError(
            f"cannot use {path}: {error}; restore the file from {path.name}"
            f"{configjson.BACKUP_SUFFIX} or from a copy"
        ) from error
    return _Found(offsets, counter, journal_size, len(journal) - 1)


def _read_journal(path: Path) -> tuple[list[object], int]:
    """The entries of its whole lines up to the first torn one, and their size; none where it is
    missing."""
    entries: list[object] = []
    size = 0
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return entries, size
    for line in lines:
        mark, _, data = line.partition(b" ")
        if not line.endswith(b"\n") or mark != b"%08x" % zlib.crc32(data[:-1]):
            break
        entries.append(json.loads(data))
        size += len(line)
    return entries, size


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
