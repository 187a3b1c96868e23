"""The open transactions of a base at rest: its halves that no broker has ended.

A transaction's half is appended once more whenever a broker asks its producer, so that it has
several records, of which the last one is asked about. It has ended if an op record names any of
them, if there is a committed message of it, or if it was discarded after its last record. RocketMQ
looks at the op records alone, which it writes up to 3 s after what they note, so that after a crash
it asks again for what has been committed.

Halves and op records are found by their queues: from the offset on that the broker noted for halves
that are done, and near the log's end whatever it noted. From the first record of an open one on the
log is searched for what its queues do not tell.

Halves that RocketMQ 5.4 and later keeps in RocksDB (``transRocksDBEnable``) are not found.
Source: RocketMQ 5.3.3 ``TransactionalMessageServiceImpl``, ``EndTransactionProcessor``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from reput.overlay.base.debts import (
    MARGIN_MS,
    reach_and_end,
    records_of_elsewhere,
    records_of_queue,
)
from reput.overlay.records import properties as names
from reput.overlay.records.drafts import HALF_TOPIC
from reput.overlay.records.transactions import DISCARDED_TOPIC, OP_TOPIC
from reput.readers.inventory import TRANSACTION_GROUP, named_halves
from reput.readers.messagestore import MessageStore
from reput.readers.queuereader import QueueReader
from reput.store.config import StoreSettings, read_properties
from reput.store.errors import StoreError
from reput.store.log import properties, systemtopics
from reput.store.log.places import first_at_or_after, last_record_before
from reput.store.log.record import Record
from reput.store.log.sysflag import SysFlag
from reput.store.state.consumeroffset import TopicGroup, read_committed

NEAR_END_MS = 180_000
"""Halves that were stored in this time before the log's end, or in three of the broker's intervals
between checks, are looked at, whatever the broker noted: a power cut may have taken the records
that it appended for them."""
_MARK = re.compile(rb"TRAN(?:_MSG\x01|S_OP_HALF_TOPIC)")
"""It stands in every half, committed and discarded message, and in every op record."""


class HalfPlace(NamedTuple):
    """The place of one record of a transaction."""

    physical_offset: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has no end."""

    group: bytes
    """The group of its producer."""
    topic: bytes
    """The topic to which its message belongs."""
    places: tuple[HalfPlace, ...]
    """The places of its records, the last of which is asked about."""
    immunity: bytes | None
    """CHECK_IMMUNITY_TIME_IN_SECONDS."""

    @property
    def last(self) -> HalfPlace:
        """The place of the record that its producer is asked about."""
        return self.places[-1]


@dataclass(frozen=True, slots=True)
class Halves:
    """The transactions of a base that have no end, and its halves' end."""

    open: tuple[OpenTransaction, ...] = ()
    """In the order of the records that are asked about."""
    queue_end: int = 0
    """Queue offset after the last half."""
    are_in_rocksdb: bool = False
    """Whether there are some that only the broker's own RocksDB tells about."""


class _Key(NamedTuple):
    """The values that all records of a transaction have in common. A message that is sent anew has
    another time: an end of one of the two says nothing about the other."""

    group: bytes
    unique_key: bytes
    born_timestamp: int


@dataclass(slots=True)
class _Found:
    """A transaction that may be open."""

    first: Record
    last: Record
    places: list[HalfPlace] = field(default_factory=list)


def find_halves(base: StoreSettings, output: Path) -> Halves:
    """Find the open transactions of a base, whose broker is at rest, by its log and the queues of
    an output. Raises UsageError, StoreError."""
    with MessageStore(base.root, output=output, settings=base) as store:
        return _Search(store, base).run()


class _Search:
    """One search for open transactions."""

    def __init__(self, store: MessageStore, base: StoreSettings) -> None:
        self._store = store
        self._root = base.root
        stated = read_properties(base.root, base.property_file).number("transactionCheckInterval")
        self._near_end = max(NEAR_END_MS, 3 * (stated or 0))
        """ms."""
        self._log = store.log.view.log
        self._reach, self._end = reach_and_end(store)
        self._queue_end = 0
        self._found: dict[_Key, _Found] = {}
        self._named: set[int] = set()
        """Queue offsets of halves that op records name."""
        self._committed: set[_Key] = set()
        self._committed_places: set[int] = set()
        """Physical offsets of halves that were committed."""
        self._discarded: dict[_Key, int] = {}
        """Physical offset of the discarded message."""

    def run(self) -> Halves:
        """Return what is open."""
        self._take_queues()
        for record in records_of_elsewhere(self._log, self._start(), self._end, _MARK):
            self._take(record)
        found = sorted(self._open(), key=lambda one: one.last.physical_offset)
        transactions = [
            OpenTransaction(
                key.group,
                one.last.property_map.get(names.REAL_TOPIC, b""),
                tuple(one.places),
                one.last.property_map.get(names.CHECK_IMMUNITY_SECONDS),
            )
            for one in found
            for key in (_key(one.last),)
        ]
        rocksdb = self._store.queue(systemtopics.ROCKSDB_HALF_TOPIC, 0).max_offset() > 0
        return Halves(tuple(transactions), self._queue_end, rocksdb)

    def _take_queues(self) -> None:
        """Take the halves in that may be open, and the op records that may name them."""
        halves = self._store.queue(systemtopics.HALF_TOPIC, 0)
        low, high = halves.bounds()
        self._queue_end = high
        last = last_record_before(self._log, self._end)
        near_end = (self._log.store_time(last) if last >= 0 else 0) - self._near_end
        start = max(low, min(self._done(low), halves.first_from_time(near_end)))
        for record in records_of_queue(self._log, halves, start, high):
            self._take_half(record)
        if not self._found:
            return
        ops = self._store.queue(systemtopics.OP_TOPIC, 0)
        first = min(one.first.physical_offset for one in self._found.values())
        for record in records_of_queue(self._log, ops, _first_beyond(ops, first), ops.max_offset()):
            self._named.update(named_halves(record.body))

    def _done(self, low: int) -> int:
        """The queue offset up to which the broker has noted that halves are done."""
        try:
            committed = read_committed(self._root) or {}
        except StoreError:
            return low
        key = TopicGroup(systemtopics.HALF_TOPIC, TRANSACTION_GROUP)
        return committed.get(key, {}).get(0, low)

    def _start(self) -> int:
        """The physical offset from which on the log has more of what is open: of a transaction that
        was asked about, from the time on at which it was sent."""
        start = min(self._reach, self._end)
        for one in self._open():
            start = min(start, one.first.physical_offset)
            if names.TRANSACTION_CHECK_TIMES in one.first.property_map:
                sent = one.first.born_timestamp - MARGIN_MS
                found = first_at_or_after(self._log, sent, self._end)
                start = start if found is None else min(start, found)
        return start

    def _open(self) -> list[_Found]:
        return [one for key, one in self._found.items() if not self._has_ended(key, one)]

    def _has_ended(self, key: _Key, one: _Found) -> bool:
        return (
            key in self._committed
            or self._discarded.get(key, -1) > one.last.physical_offset
            or any(
                place.queue_offset in self._named or place.physical_offset in self._committed_places
                for place in one.places
            )
        )

    def _take(self, record: Record) -> None:
        """Take a record of the log in, whether its queue has told of it or not."""
        if record.topic == HALF_TOPIC:
            self._queue_end = max(self._queue_end, record.queue_offset + 1)
            self._take_half(record)
        elif record.topic == OP_TOPIC:
            self._named.update(named_halves(record.body))
        elif record.topic == DISCARDED_TOPIC:
            self._discarded[_key(record)] = record.physical_offset
        elif record.transaction_type == SysFlag.COMMIT:
            self._committed.add(_key(record))
            # copies of committed messages have 0
            if record.prepared_transaction_offset:
                self._committed_places.add(record.prepared_transaction_offset)

    def _take_half(self, record: Record) -> None:
        key = _key(record)
        one = self._found.setdefault(key, _Found(record, record))
        place = HalfPlace(record.physical_offset, record.queue_offset)
        if place in one.places:
            return
        one.places.append(place)
        one.places.sort()
        one.first = min(one.first, record, key=_position)
        one.last = max(one.last, record, key=_position)


def _position(record: Record) -> int:
    return record.physical_offset


def _key(record: Record) -> _Key:
    values = record.property_map
    # without a key of its own every half is a transaction, as for a broker
    own = b"at %d" % record.physical_offset
    return _Key(
        values.get(names.PRODUCER_GROUP, b""),
        values.get(properties.UNIQ_KEY, own),
        record.born_timestamp,
    )


def _first_beyond(queue: QueueReader, physical_offset: int) -> int:
    """The offset of the first message of a queue that is beyond a place in the log."""
    low, high = queue.bounds()
    while low < high:
        middle = (low + high) // 2
        units = queue.units(middle, 1)
        if units and units[0].physical_offset <= physical_offset:
            low = middle + 1
        else:
            high = middle
    return low
