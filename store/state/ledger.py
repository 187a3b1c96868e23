"""The quarantine ledger: every byte of the log that got no entry, with the reason.

One JSON object per line in ``reput/quarantine.jsonl`` of the output, appended and synced before the
watermark advances, so that no loss is silent. Entries are keyed by their physical offset, reason
and queue (a message goes into light queues besides its own), so a replay lists nothing twice. A
torn last line (a crash) is cut when the file is opened.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reput.store import fsops, jsontext
from reput.store.files import LEDGER_FILE
from reput.store.log.status import Status
from reput.store.names import escaped

QUEUE_OFFSET_GAP = "queue_offset_gap"
"""The reason of an entry that is no quarantine: the messages after a gap are dispatched."""
QUEUE_OFFSET_SEEN_BEFORE = "queue_offset_seen_before"
"""The reason of a message whose queue offset its queue has already: RocketMQ drops it."""
DAMAGED_RECORD = "damaged_record"
"""The reason of a record that consumers did not get: it has a unit, but not its bytes."""
DAMAGED_LINE = "damaged_line"
_UNUSABLE_LISTS = Status.BAD_MULTI_DISPATCH.name.lower()
"""The reason of a message that names light queues wrongly; it is in its own queue."""
_Key = tuple[int, str, str | None, int | None]
_KINDS = {
    "physical_offset": int, "end_physical_offset": int, "reason": str, "topic": str | None,
    "queue_id": int | None,
}  # fmt: skip
"""The kinds of an entry's fields; a damaged digit may make a text of a number."""


_ESCAPED_LETTER = re.compile(r"\\u([0-9a-f]{4})")


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One range of the log and why it has no entry (or, for a gap, the observation)."""

    physical_offset: int
    end_physical_offset: int
    reason: str
    topic: str | None = None
    """Escaped, because it comes from untrusted bytes."""
    queue_id: int | None = None
    queue_offset: int | None = None
    detail: str | None = None

    @property
    def key(self) -> _Key:
        """The key that makes an entry unique."""
        return self.physical_offset, self.reason, self.topic, self.queue_id

    @property
    def is_damage(self) -> bool:
        """Whether its range was damaged or gone when it was dispatched. A message that is listed
        was sound: it may have a unit in another queue, or entries of the index, all the same."""
        return self.topic is None and self.reason != _UNUSABLE_LISTS

    def to_json(self) -> str:
        """One line, keys in a fixed order, absent fields left out."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({k: v for k, v in fields.items() if v is not None})


def damaged_record(physical_offset: int, topic: str) -> LedgerEntry:
    """The entry of a record that consumers did not get."""
    place = physical_offset, physical_offset
    return LedgerEntry(*place, DAMAGED_RECORD, escaped(topic.encode()))


@dataclass(frozen=True, slots=True)
class LedgerCount:
    """Counts of a ledger's entries for one reason."""

    reason: str
    ranges: int
    bytes: int


def read_entries(directory: Path) -> Iterator[LedgerEntry | None]:
    """Yield the entries of the ledger below ``directory``, and None for a line that is damaged."""
    path = directory / LEDGER_FILE
    if path.exists():
        with path.open("rb") as lines:
            yield from map(read_entry, lines)


@dataclass(frozen=True, slots=True)
class RepeatedQueue:
    """A queue with messages that were dropped because their queue offsets were seen before."""

    topic: str
    """Escaped."""
    queue_id: int
    messages: int
    first_physical_offset: int
    """Place of the first message that was dropped."""
    begin: int
    """Where the topic's new messages begin, as far as is known: before those that were dropped
    comes the one with queue offset 0, which has its unit."""


def read_repeats(directory: Path) -> tuple[RepeatedQueue, ...]:
    """The queues of the ledger below ``directory`` in which offsets began again, sorted."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for entry in read_entries(directory):
        if entry is not None and entry.reason == QUEUE_OFFSET_SEEN_BEFORE:
            key = (entry.topic or "", entry.queue_id or 0)
            offsets.setdefault(key, []).append(entry.physical_offset)
    return tuple(
        RepeatedQueue(*key, len(offsets[key]), min(offsets[key]), min(offsets[key]))
        for key in sorted(offsets)
    )


def read_counts(directory: Path) -> tuple[LedgerCount, ...]:
    """Count the entries of the ledger below ``directory`` by reason, without writing.

    An unreadable line is counted under its own reason; a last line that is being written is not.
    """
    return LedgerCounter(directory).counts()


class LedgerCounter:
    """Counts a ledger again and again, and reads only what was added since."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LEDGER_FILE
        self._begin(None)

    def counts(self) -> tuple[LedgerCount, ...]:
        """Return the counts as of now."""
        try:
            with self._path.open("rb") as lines:
                status = os.fstat(lines.fileno())
                if status.st_ino != self._inode or status.st_size < self._read:
                    self._begin(status.st_ino)
                lines.seek(self._read)
                for line in lines:
                    if line.endswith(b"\n"):
                        self._count(read_entry(line))
                        self._read += len(line)
        except FileNotFoundError:
            self._begin(None)
        names = sorted(self._ranges)
        return tuple(LedgerCount(name, self._ranges[name], self._sizes[name]) for name in names)

    def _begin(self, inode: int | None) -> None:
        self._inode = inode
        self._read = 0
        self._ranges: Counter[str] = Counter()
        self._sizes: Counter[str] = Counter()

    def _count(self, entry: LedgerEntry | None) -> None:
        reason = entry.reason if entry else DAMAGED_LINE
        self._ranges[reason] += 1
        self._sizes[reason] += entry.end_physical_offset - entry.physical_offset if entry else 0


class Ledger:
    """Appends entries, each once."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / LEDGER_FILE
        self._seen: set[_Key] = set()
        self._size = 0
        self._pending: list[LedgerEntry] = []
        if self.path.exists():
            whole = self.path.read_bytes()
            kept = whole[: whole.rfind(b"\n") + 1]
            self._size = len(kept)
            # a damaged line stays as evidence; its range may be listed again
            keys = map(_key, kept.splitlines())
            self._seen = {key for key in keys if key is not None}

    def add(self, entry: LedgerEntry) -> bool:
        """Add an entry for the next ``sync``; False if it is already listed."""
        if entry.key in self._seen:
            return False
        self._seen.add(entry.key)
        self._pending.append(entry)
        return True

    @property
    def added(self) -> Sequence[LedgerEntry]:
        """The entries that the next ``sync`` appends."""
        return self._pending

    def take_added(self) -> list[LedgerEntry]:
        """Return the added entries instead of appending them: the owner of the ledger will."""
        added, self._pending = self._pending, []
        return added

    def truncate(self, end_offset: int) -> None:
        """Durably remove entries from ``end_offset`` on: where the log was cut their bytes are
        gone, and beyond the watermark a power cut may have left them in part.

        May be called again. Raises OutputError.
        """
        if not self.path.exists():
            return
        whole = self.path.read_bytes()
        lines = whole[: self._size].splitlines(keepends=True)
        kept = [line for line in lines if _stays(line, end_offset)]
        if len(data := b"".join(kept)) == len(whole):
            return
        fsops.replace_file(self.path, data)
        self._size = len(data)
        self._seen = {key for key in self._seen if key[0] < end_offset}

    def sync(self) -> None:
        """Durably append the added entries. Raises OutputError; may then be called again."""
        if not self._pending:
            return
        data = "".join(entry.to_json() + "\n" for entry in self._pending).encode()
        new = not self.path.exists()
        fd = fsops.open_for_writing(self.path)
        try:
            fsops.truncate(fd, self._size, self.path)
            fsops.pwrite(fd, data, self._size, self.path)
            fsops.sync(fd, self.path)
        finally:
            os.close(fd)
        if new:
            fsops.sync_directory(self.path.parent)
        self._size += len(data)
        self._pending.clear()


def _stays(line: bytes, end_offset: int) -> bool:
    """Whether a line is of an earlier range, or damaged; one with zeros was never written whole."""
    key = _key(line)
    return b"\0" not in line if key is None else key[0] < end_offset


def read_entry(line: bytes) -> LedgerEntry | None:
    """The entry of a line; None for a line that is damaged."""
    try:
        # decoded here: json lets halves of surrogates pass, which are no UTF-8
        entry = LedgerEntry(**jsontext.parse(line.decode()))
    except (ValueError, TypeError):
        return None
    if not all(isinstance(getattr(entry, name), kind) for name, kind in _KINDS.items()):
        return None
    if entry.topic is not None and _ESCAPED_LETTER.search(entry.topic):
        # older ledgers have escapes for all that is not ASCII
        return replace(entry, topic=_ESCAPED_LETTER.sub(_printable, entry.topic))
    return entry


def _printable(match: re.Match[str]) -> str:
    char = chr(int(match[1], 16))
    return char if char.isprintable() else match[0]


def _key(line: bytes) -> _Key | None:
    entry = read_entry(line)
    return entry.key if entry else None
