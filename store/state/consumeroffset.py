"""``config/consumerOffset.json``, the offsets that consumer groups have committed.

::

    {"dataVersion":{"counter":N,...},"offsetTable":{"TOPIC@GROUP":{QUEUE:OFFSET,...},...}}

An offset is that of the next message to consume. Only offsetTable is read, as by RocketMQ, which
keeps the offsets in memory and writes the file every five seconds. Offsets that a broker keeps for
broadcasting consumers stand under the group's name and ``@broadcast``.

We replace the file as a whole, by rename. Between two replacements, commits are appended to a
journal and synced (``store.state.offsetjournal``).

A server, or a command that moves offsets, holds an exclusive lock on the first journal. Members of
groups that are processes of their own (``readers.consumer``, the Spark source) share that lock
while they consume, and take turns to write (``reput/serve/turn.lock``).
Source: RocketMQ 5.3.3 ``ConsumerOffsetManager``, ``BroadcastOffsetManager``; formats.md §18.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from reput.store import configjson, fsops
from reput.store.brokerlock import broker_pid
from reput.store.errors import OwnershipError, StoreError
from reput.store.filelocks import HeldLock, lock
from reput.store.files import (
    BACKUP_SUFFIX,
    CONSUMER_OFFSET_FILE,
    OFFSET_JOURNALS,
    TURN_LOCK_FILE,
)
from reput.store.state.offsetjournal import Journal, JournalLines, applying_to, read_journal

MAX_JOURNAL_BYTES = 1 << 20
REPLACE_SECONDS = 5.0
"""The first commit this long after the last replacement replaces the file again: RocketMQ's
flushConsumerOffsetInterval."""
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
    """Return the committed offsets below ``root``; None if neither the file nor its backup exists.

    It takes no lock; another process may write meanwhile. Raises StoreError for a file or journal
    that cannot be used.
    """
    state = _read(root)
    return None if state is None else state.offsets


def read_committed_of(output: Path, seed: Path) -> Offsets:
    """Return the committed offsets of an output, or those below ``seed`` if it has no file yet, as
    ``ConsumerOffsetFile.load`` does: a file without any offset counts, since groups may have been
    deleted. Raises StoreError."""
    own = read_committed(output)
    return (read_committed(seed) or {}) if own is None else own


def document_with(root: Path, key: TopicGroup, queue_id: int, offset: int) -> bytes:
    """The text of the file below ``root`` with one offset that is another. Raises StoreError."""
    state = _read(root) or _FileState({}, 0)
    changed = {**state.offsets, key: {**state.offsets.get(key, {}), queue_id: offset}}
    return _document(changed, state.counter + 1)


def first_position(committed: Mapping[int, int], asked: int, earliest: int) -> int:
    """Return the offset at which a group begins in a queue without a committed offset.

    ``committed`` has the group's offsets in the topic's other queues. Without any, the topic is new
    to the group, and it begins where it was ``asked`` to. Otherwise the queue is new, and the group
    begins at its ``earliest`` message, so that it loses none. The caller must commit the answers
    for all queues of a new topic at once: asked again later, the end of a queue would lie beyond
    messages that nobody has read.
    """
    return earliest if committed else asked


class ConsumerOffsetFile:
    """The file and the journals of one output, for the one process that writes them.

    A context manager. Methods raise OutputError.
    """

    def __init__(self, output: Path, *, shared: bool = False) -> None:
        """``shared``: for one of the processes that take turns (``SharedConsumerOffsetFile``)."""
        self._output = output
        self._path = output / CONSUMER_OFFSET_FILE
        self._journal_paths = [output / name for name in OFFSET_JOURNALS]
        self._shared = shared
        self._journals: list[Journal] = []
        self._current: Journal | None = None
        """The journal that commits are appended to. It is None until the first ``replace``, unless
        a journal that was found belongs to the file."""
        self._resources = ExitStack()
        self._has_commits = False
        self._counter = 0
        """The counter of the file's dataVersion, which only grows."""
        self._crc = 0
        """CRC-32 of the file that was written last, or is being written."""

    def __enter__(self) -> Self:
        """Raises OwnershipError if another process writes these offsets."""
        first, second = self._journal_paths
        fsops.make_directories(first.parent, self._output)
        fsops.make_directories(self._path.parent, self._output)
        with ExitStack() as resources:
            file_lock = lock(first, shared=self._shared)
            if file_lock is None:
                raise OwnershipError(
                    f"{self._path} is written by another process, which holds {first}; "
                    "stop that server, command or consumer, or move offsets through the server",
                    path=self._path,
                )
            resources.enter_context(file_lock)
            fd = fsops.open_for_writing(second)
            resources.callback(os.close, fd)
            fsops.sync_directory(first.parent)
            self._journals = [Journal(file_lock.fd, first), Journal(fd, second)]
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._resources.close()

    def load(self, seed: Path) -> Offsets:
        """Return the committed offsets: the output's, or those below ``seed`` if it has none yet.

        Call ``replace`` with them before the first ``append``. Raises StoreError.
        """
        own = _read(self._output)
        state = own or _read(seed) or _FileState({}, 0)
        self._counter = state.counter
        self._current, self._has_commits = None, False
        for number, lines in own.journals if own else ():
            self._current = self._journals[number]
            self._current.size = lines.size
            self._has_commits = self._has_commits or bool(lines.commits)
        return state.offsets

    @property
    def has_commits(self) -> bool:
        """Whether ``load`` found commits in the journals that are not in the file."""
        return self._has_commits

    @property
    def is_due(self) -> bool:
        """Whether ``replace`` should be called in place of ``append``."""
        if self._current is None or self._current.size >= MAX_JOURNAL_BYTES:
            return True
        return not 0 <= time.time() - self._path.stat().st_mtime < REPLACE_SECONDS

    def append(self, commits: Offsets) -> None:
        """Append commits durably."""
        self.write(commits)
        self.sync()

    def write(self, commits: Offsets) -> None:
        """Append commits, which then survive a kill, and after ``sync`` a power cut."""
        assert self._current is not None  # load or replace has set it
        self._current.write(_texts(commits))

    def sync(self) -> None:
        """Make all written commits durable; another thread may write meanwhile."""
        for journal in self._journals:
            journal.sync()

    def replace(self, offsets: Offsets, commits: int) -> None:
        """Replace the file and begin the journals anew; ``commits`` is the number of commits since
        the last replacement."""
        data = self._next(offsets, commits)
        fsops.replace_file(self._path, data)
        self._crc = zlib.crc32(data)
        # after a kill here, the journals belong to another file, and their commits are in this one
        for journal in self._journals:
            journal.clear()
        self._current, _ = self._journals
        self._current.begin(self._crc)
        self._current.sync()

    def begin_replacing(self, offsets: Offsets, commits: int) -> bytes:
        """Direct further commits to the other journal, and return the new file's content.

        ``offsets`` has everything that was written; ``commits`` is the number of commits since the
        last replacement. Pass the content to ``finish_replacing``, in any thread. ``write`` may be
        called meanwhile, this method only after that. ``replace`` must have been called before.
        """
        data = self._next(offsets, commits)
        crc = zlib.crc32(data)
        other = self._other
        other.begin(crc, self._crc)
        self._current, self._crc = other, crc
        return data

    def finish_replacing(self, data: bytes) -> None:
        """Replace the file durably; after an error it may be called again."""
        fsops.replace_file(self._path, data)
        # now, because the next file is begun on the thread of those who commit
        self._other.clear()

    @property
    def _other(self) -> Journal:
        (other,) = (journal for journal in self._journals if journal is not self._current)
        return other

    def _next(self, offsets: Offsets, commits: int) -> bytes:
        # two files of the same bytes could not be told apart by their journals
        self._counter += max(commits, 1)
        return _document(offsets, self._counter)


def check_no_broker(output: Path, store: Path) -> None:
    """Refuse to keep offsets in the store of a running broker, which writes the same file.

    Raises OwnershipError.
    """
    if output.resolve() != store.resolve():
        return
    pid = broker_pid(output)
    if pid is not None:
        raise OwnershipError(
            f"a broker or dispatcher (process {pid}) writes {output}; give an output of your own "
            "for queues and offsets (`output=DIR`)",
            path=output,
        )


class SharedConsumerOffsetFile:
    """The file and the journals, for processes that take turns to commit.

    A context manager. Methods raise OutputError, StoreError for offsets that cannot be used, and
    OwnershipError if a broker runs on the store whose file would be written.
    """

    def __init__(self, output: Path, seed: Path) -> None:
        """``seed`` is the root of the store whose offsets are taken over if the output has none."""
        self._output = output
        self._seed = seed
        self._file = ConsumerOffsetFile(output, shared=True)

    def __enter__(self) -> Self:
        """Raises OwnershipError also if a server or command has the exclusive lock."""
        check_no_broker(self._output, self._seed)
        self._file.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        """Write the journals' commits into the file, since a broker reads only that."""
        with ExitStack() as resources:
            resources.push(self._file)
            check_no_broker(self._output, self._seed)
            resources.enter_context(self.turn())
            offsets = self._file.load(self._seed)
            if self._file.has_commits:
                self._file.replace(offsets, 0)

    def read(self) -> Offsets:
        """The committed offsets."""
        return read_committed_of(self._output, self._seed)

    def update(self, plan: Callable[[Offsets], Offsets]) -> Offsets:
        """Call ``plan`` with all committed offsets, and commit durably the ones that it returns.
        Return all offsets after the commit."""
        check_no_broker(self._output, self._seed)
        with self.turn():
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

    def turn(self) -> HeldLock:
        """Wait for the turn to write, and hold it for a ``with`` block."""
        turn_lock = lock(self._output / TURN_LOCK_FILE, patience=None)
        assert turn_lock is not None  # without a limit of patience, a lock is always got
        return turn_lock


class _FileState(NamedTuple):
    """The offsets of a file and its journals."""

    offsets: Offsets
    counter: int
    journals: Sequence[tuple[int, JournalLines]] = ()
    """The journals that belong to the file, by their numbers, in the order of their lines."""


def _read(root: Path) -> _FileState | None:
    """Read the file below ``root``, and apply its journals.

    The journals are read first: if the file is replaced meanwhile, the new one has their commits.
    """
    path = root / CONSUMER_OFFSET_FILE
    journals = [read_journal(root / name) for name in OFFSET_JOURNALS]
    try:
        data = path.read_bytes() if any(lines.size for lines in journals) else b""
    except OSError:
        data = b""
    applied = [(number, journals[number]) for number in applying_to(zlib.crc32(data), journals)]
    try:
        if not data or not applied:
            document = configjson.read(path)
            return None if document is None else _FileState(*_parse(document))
        offsets, counter = _parse(configjson.parse(data.decode()))
        for entry in (commit for _, lines in applied for commit in lines.commits):
            for key, queues in _parse_table(entry).items():
                offsets.setdefault(key, {}).update(queues)
    except ValueError as error:
        raise StoreError(
            f"cannot use {path}: {error}; restore the file from {path.name}"
            f"{BACKUP_SUFFIX} or from a copy",
            path=path,
        ) from error
    return _FileState(offsets, counter, applied)


def _parse(document: object) -> tuple[Offsets, int]:
    fields = _mapping(document)
    counter = _mapping(fields.get("dataVersion") or {}).get("counter", 0)
    offsets = _parse_table(fields.get("offsetTable") or {})
    return offsets, counter if type(counter) is int else 0


def _parse_table(table: object) -> Offsets:
    offsets: Offsets = {}
    for key, queues in _mapping(table).items():
        topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
        if not (topic and group):
            raise ValueError(f"the key {key!r} of offsetTable is not TOPIC@GROUP")
        offset_of = offsets[TopicGroup(topic, group)] = {}
        for queue_id, offset in _mapping(queues).items():
            if type(offset) is not int:
                raise ValueError(f"the offset of {key} in queue {queue_id} is {offset!r}")
            offset_of[int(queue_id)] = offset
    return offsets


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {value!r:.40}")
    return value


def _texts(offsets: Offsets) -> dict[str, dict[int, int]]:
    """Return offsets by ``TOPIC@GROUP``, sorted."""
    return {
        TOPIC_GROUP_SEPARATOR.join(key): dict(sorted(offsets[key].items()))
        for key in sorted(offsets)
    }


def _document(offsets: Offsets, counter: int) -> bytes:
    """Return the file's text as RocketMQ writes it: with tabs, and numbers as unquoted keys."""
    entries = []
    for key, queues in _texts(offsets).items():
        numbers = ",".join(f"{queue_id}:{offset}" for queue_id, offset in queues.items())
        entries.append(f"\t\t{json.dumps(key, ensure_ascii=False)}:{{{numbers}\n\t\t}}")
    table = ",\n".join(entries)
    version = f'"counter":{counter},\n\t\t"stateVersion":0,\n\t\t"timestamp":0'
    text = f'{{\n\t"dataVersion":{{\n\t\t{version}\n\t}},\n\t"offsetTable":{{\n{table}\n\t}}\n}}'
    return text.encode()
