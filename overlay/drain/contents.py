"""Reads from an overlay's log, as it is, the messages that no consumer has had yet.

A message that waits, one that was delivered and is not consumed, and a dead letter are an entry
each. Nothing is written, and no lock is taken, so that a server may run on the overlay meanwhile:
the reading ends where the log is sealed.

A delivered retry counts as consumed where its group has committed beyond it, and where the group
has sent it back, since its successor is an entry then. Other messages count as consumed where
every group that has committed in their topic has committed beyond them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from reput.overlay.delivery.waiting import WaitingRecords
from reput.overlay.records import properties as names
from reput.overlay.records.drafts import HALF_TOPIC, TIMER_PRECISION_MS, TIMER_TOPIC
from reput.overlay.records.sources import source_of
from reput.overlay.records.transactions import DISCARDED_TOPIC, OP_TOPIC
from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import NotFoundError, StoreError
from reput.store.files import COMMIT_LOG_DIRECTORY, OVERLAY_DIRECTORY
from reput.store.log import java
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.logtail import LogTail
from reput.store.log.record import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    Record,
)
from reput.store.state.consumeroffset import Offsets, read_committed

_FOREVER = 1 << 62
"""ms; everything that waits is due then."""
_NO_MESSAGES = {HALF_TOPIC: "half of a transaction", DISCARDED_TOPIC: "discarded transaction"}
"""Topics of records that are no message of a consumer, and why they are left out."""


class Kind(StrEnum):
    """The ways in which an entry is still its group's."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Entry:
    """One message; its record is at ``physical_offset``."""

    kind: Kind
    physical_offset: int
    topic: bytes
    """The topic from which consumers have it: its own, and that in which it will be delivered."""
    queue_id: int
    queue_offset: int
    """Its offset in the queue of the record; a waiting one's is that of the schedule topic."""
    store_timestamp: int
    reconsume_times: int
    due_ms: int | None = None
    """When a waiting one is due."""
    level: int = 0
    """The delay level for which it waits; 0 for a time of its own, and for one that does not."""
    is_resent: bool = False
    """Whether a dead letter was sent to its group once more."""

    @property
    def group(self) -> str | None:
        """The group to which it belongs; None for a message of a topic that any group reads."""
        for prefix in (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX):
            if self.topic.startswith(prefix):
                return java.decode(self.topic.removeprefix(prefix))
        return None


@dataclass(slots=True)
class Contents:
    """The entries of an overlay, by physical offset, and the range of the log that has them."""

    root: Path
    settings: StoreSettings
    log: CommitLog
    begin: int
    end: int
    entries: list[Entry] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """How many records are no message of a consumer, or none at all, by the reason."""

    @property
    def dead_letters(self) -> list[Entry]:
        """The dead letters, by physical offset."""
        return [entry for entry in self.entries if entry.kind is Kind.DEAD]

    def record(self, entry: Entry) -> Record:
        """The record of an entry. Raises StoreError where the log does not have it any more."""
        found = self.log.record_starting_at(entry.physical_offset)
        if not isinstance(found, Record):
            raise StoreError(
                f"the log of {self.root} has no record at {entry.physical_offset} any more; run "
                "the same command again",
                physical_offset=entry.physical_offset,
            )
        return found


def overlay_of(output: Path) -> Path:
    """The root of an output's overlay. Raises NotFoundError where there is none."""
    root = output / OVERLAY_DIRECTORY
    if not (root / COMMIT_LOG_DIRECTORY).is_dir():
        raise NotFoundError(
            f"{output} has no overlay: `reput serve --overlay` makes one below its output",
            path=root,
        )
    return root


@contextmanager
def opened_contents(output: Path) -> Iterator[Contents]:
    """Read the overlay of an output; its log is open during the block. Raises NotFoundError where
    there is none, StoreError."""
    root = overlay_of(output)
    settings = read_store_settings(root)
    # before the log, so that nothing counts as consumed that was not read
    committed = read_committed(root) or {}
    log = settings.open_log()
    try:
        end = LogTail(log).settled()
        contents = Contents(root, settings, log, log.min_offset, end)
        _fill(contents, committed)
        yield contents
    finally:
        log.close()


def _fill(contents: Contents, committed: Offsets) -> None:
    levels = contents.settings.message_delay_levels_ms
    waiting = WaitingRecords(levels)
    entries: dict[int, Entry] = {}
    for record in records(contents.log, contents.begin, contents.end, fail_on_data_loss=False):
        if not isinstance(record, Record):
            contents.left_out["damaged or missing range of the log"] += 1
            continue
        waiting.note(record)
        _note_source(entries, record)
        reason = _NO_MESSAGES.get(record.topic)
        if reason is not None:
            contents.left_out[reason] += 1
        elif record.topic != OP_TOPIC:
            entries[record.physical_offset] = _entry(record, levels)
    still_waiting = {place.physical_offset for place in waiting.due(_FOREVER) if not place.is_base}
    floors = _floors(committed)
    contents.entries = [
        entry
        for entry in entries.values()
        if (
            entry.kind is Kind.DEAD
            or (entry.kind is Kind.WAITING and entry.physical_offset in still_waiting)
            or (entry.kind is Kind.DELIVERED and not _is_consumed(entry, floors))
        )
    ]


def _entry(record: Record, levels: tuple[int, ...]) -> Entry:
    kind, topic, due_ms, level = Kind.DELIVERED, record.topic, None, 0
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        kind = Kind.WAITING
        topic = record.property_map.get(names.REAL_TOPIC, b"")
        if record.topic == SCHEDULE_TOPIC:
            level = min(record.queue_id + 1, len(levels))
            due_ms = record.store_timestamp + levels[level - 1]
        else:
            out = java.parse_integer(record.property_map.get(names.TIMER_OUT_MS, b""), 64)
            due_ms = (out or 0) + TIMER_PRECISION_MS
    elif topic.startswith(DLQ_GROUP_TOPIC_PREFIX):
        kind = Kind.DEAD
    return Entry(
        kind, record.physical_offset, topic, record.queue_id, record.queue_offset,
        record.store_timestamp, record.reconsume_times, due_ms, level,
    )  # fmt: skip


def _note_source(entries: dict[int, Entry], record: Record) -> None:
    """Take from ``entries`` the delivered retry that this record succeeds, and mark the dead letter
    that it sends again."""
    source = source_of(record)
    if source is None or source.is_base:
        return
    entry = entries.get(source.physical_offset)
    if entry is None:
        return
    target = record.property_map.get(names.REAL_TOPIC, b"")
    topic = target if record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC) else record.topic
    if entry.kind is Kind.DEAD:
        if record.topic == RETRY_GROUP_TOPIC_PREFIX + (entry.group or "").encode():
            entries[source.physical_offset] = replace(entry, is_resent=True)
    elif entry.kind is Kind.DELIVERED and entry.group is not None:
        successors = [prefix + entry.group.encode() for prefix in
                      (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)]  # fmt: skip
        if topic in successors:
            del entries[source.physical_offset]


def _floors(committed: Offsets) -> Mapping[tuple[str, str | None], Mapping[int, int]]:
    """The queue offsets before which everything is consumed, by topic and group: for the group of
    a retry topic its own, and otherwise, with None for the group, the least of all groups."""
    floors: dict[tuple[str, str | None], dict[int, int]] = {}
    for (topic, group), queues in committed.items():
        floors[topic, group] = queues
        least = floors.setdefault((topic, None), dict(queues))
        for queue_id in {*least, *queues}:
            least[queue_id] = min(least.get(queue_id, 0), queues.get(queue_id, 0))
    return floors


def _is_consumed(entry: Entry, floors: Mapping[tuple[str, str | None], Mapping[int, int]]) -> bool:
    queues = floors.get((java.decode(entry.topic), entry.group), {})
    return entry.queue_offset < queues.get(entry.queue_id, 0)
