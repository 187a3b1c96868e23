"""Sends what is in an overlay into a broker of RocketMQ, each message once.

A send keeps attempts, birth, flags, properties and body. A retry goes to its retry topic, with the
delay level that fits what is left to wait; a dead letter goes there with more attempts than it may
have, so that the broker itself makes the topic of dead letters. Source: RocketMQ 5.3.3
``SendMessageProcessor.handleRetryAndDLQ``, ``HookUtils.handleScheduleMessage``.

A message is named in a journal before it is sent (``overlay.drain.drainjournal``). One without
an answer may be in the broker: it is looked for by its UNIQ_KEY, and compared, before it is sent
again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from reput.overlay.drain.contents import Contents, Entry, Kind
from reput.overlay.drain.drainjournal import DrainJournal, DrainNotes
from reput.overlay.records import properties as names
from reput.overlay.records.copies import DEFAULT_MAX_RECONSUME_TIMES, message_id
from reput.overlay.records.drafts import TIMER_TOPIC
from reput.overlay.records.release import Refusal
from reput.overlay.records.sends import Send
from reput.store.errors import RefusedMessageError
from reput.store.log import java, properties
from reput.store.log.record import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    Record,
    body_crc,
)
from reput.store.log.sysflag import SysFlag

NAMED_AT_ONCE = 32
"""Messages that one durable line names before they are sent; as many are asked for after a kill."""
MAX_FOUND = 32
"""Messages with one UNIQ_KEY that a broker lists (``defaultQueryMaxNum``)."""
TOO_MANY = "it was sent without an answer, and the broker lists too many messages with its key"
NOT_STORED = frozenset(
    (
        Refusal.MESSAGE_ILLEGAL, Refusal.NO_PERMISSION, Refusal.SUBSCRIPTION_GROUP_NOT_EXIST,
        Refusal.INVALID_PARAMETER,
    )
)  # fmt: skip
"""Answers before anything is stored; after any other refusal the message is looked for."""
LEFT_OUT = (
    names.REAL_TOPIC, names.REAL_QUEUE_ID, b"RECONSUME_TIME", b"MAX_RECONSUME_TIMES", b"MIN_OFFSET",
    b"MAX_OFFSET", b"CONSUME_START_TIME",
    # a send that has it is an open transaction
    names.TRANSACTION_PREPARED,
)  # fmt: skip
"""Properties that the broker, or the next client, sets anew."""
_TIMES = (
    names.TIMER_OUT_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_ENQUEUE_MS,
    names.TIMER_DEQUEUE_MS,
)  # fmt: skip
_HOSTS_V6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


class Broker(Protocol):
    """The broker that gets the messages. Methods raise StoreError where it does not answer."""

    def send(self, message: Send) -> str:
        """Send a message, for the topic's only queue if it has to be made; return its id. Raises
        RefusedMessageError."""

    def find(self, topic: bytes, unique_key: bytes) -> Sequence[Record]:
        """Return up to MAX_FOUND messages of a topic with a UNIQ_KEY."""

    def wait_until_found(self) -> None:
        """Return when ``find`` knows all that was sent before the call."""

    def delay_levels_ms(self) -> Sequence[int]:
        """The delays of its levels from 1 on."""


@dataclass(slots=True)
class Drained:
    """Counts of an overlay's messages by what became of them, or would."""

    sent: Counter[str] = field(default_factory=Counter)
    """By kind."""
    found: int = 0
    """Messages of an earlier, killed run that the broker had."""
    before: int = 0
    """Messages whose answer an earlier run noted."""
    remaining: int = 0
    """Messages that the broker refused, or of which it cannot be told whether it has them."""
    left_out: Counter[str] = field(default_factory=Counter)
    """By reason."""


def delay_level(left_ms: int, levels: Sequence[int]) -> int:
    """The number of the shortest level that is at least as long as ``left_ms``, or else of the
    longest one; 0 where nothing is left to wait. ``levels`` are in ms, from number 1 on."""
    if left_ms <= 0:
        return 0
    long_enough = [level for level in levels if level >= left_ms]
    return levels.index(min(long_enough) if long_enough else max(levels)) + 1


def drained(record: Record, entry: Entry, level: int) -> Send:
    """The send that puts an entry into a broker; ``level`` is the delay level to wait for."""
    values = dict(record.property_map)
    real_queue_id = java.parse_integer(values.get(names.REAL_QUEUE_ID, b""), 32)
    queue_id = record.queue_id if real_queue_id is None else real_queue_id
    is_retry = entry.group is not None
    is_timed = record.topic == TIMER_TOPIC and not is_retry
    if not is_retry:
        for name in _TIMES:
            values.pop(name, None)
        values.pop(names.TIMER_DELIVER_MS, None)
    for name in LEFT_OUT:
        values.pop(name, None)
    if is_timed:
        values[names.TIMER_DELIVER_MS] = str(entry.due_ms).encode()
    if is_retry or level:
        values[properties.DELAY] = str(level).encode()
    else:
        values.pop(properties.DELAY, None)
    values.setdefault(properties.UNIQ_KEY, _unique_key(record))
    topic, limit = entry.topic, max(DEFAULT_MAX_RECONSUME_TIMES, record.reconsume_times + 1)
    if entry.kind is Kind.DEAD:
        topic = RETRY_GROUP_TOPIC_PREFIX + topic.removeprefix(DLQ_GROUP_TOPIC_PREFIX)
        limit = record.reconsume_times - 1
    return Send(
        topic=topic,
        queue_id=0 if is_retry else queue_id,
        body=record.body,
        properties=properties.format_block(values),
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        flag=record.flag,
        # the broker's own address decides about these bits
        sys_flag=record.sys_flag & ~_HOSTS_V6,
        reconsume_times=record.reconsume_times,
        max_reconsume_times=limit if is_retry else None,
    )


def _unique_key(record: Record) -> bytes:
    """A key for a message without one: always the same, so that it is found after a kill."""
    place = f"{record.store_host} {record.physical_offset} {record.store_timestamp}"
    return hashlib.sha256(place.encode()).hexdigest()[:32].upper().encode()


def stored_topics(message: Send, kind: Kind) -> Sequence[bytes]:
    """The topics in one of which a broker stores a send of ``drained``."""
    values = properties.parse(message.properties)
    if kind is Kind.DEAD:
        return (DLQ_GROUP_TOPIC_PREFIX + message.topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX),)
    if values.get(properties.DELAY, b"0") != b"0":
        return (SCHEDULE_TOPIC,)
    if names.TIMER_DELIVER_MS in values and names.TIMER_OUT_MS not in values:
        # it depends on when the broker got it
        return TIMER_TOPIC, message.topic
    return (message.topic,)


def is_same(found: Record, message: Send, kind: Kind) -> bool:
    """Whether a broker's record is that of a send. One UNIQ_KEY may belong to several messages: all
    of a client's batch have it, and so have the attempts of one message."""
    sent, stored = properties.parse(message.properties), found.property_map
    same = [properties.UNIQ_KEY, names.ORIGIN_MESSAGE_ID]
    if kind is not Kind.DEAD:
        # a broker has a level of its own for dead letters
        same.append(properties.DELAY)
    return (
        found.reconsume_times == message.reconsume_times
        and found.born_timestamp == message.born_timestamp
        and body_crc(found.body) == body_crc(message.body)
        and all(stored.get(name) == sent.get(name) for name in same)
        and stored.get(names.REAL_TOPIC, message.topic) == message.topic
    )


class Drain:
    """One drain of an overlay whose lock the caller holds."""

    def __init__(
        self,
        contents: Contents,
        notes: DrainNotes,
        journal: DrainJournal,
        broker: Broker,
        now_ms: Callable[[], int],
    ) -> None:
        self._contents = contents
        self._notes = notes
        self._journal = journal
        self._broker = broker
        self._now_ms = now_ms
        self._levels: Sequence[int] = ()
        plan = planned(contents, notes)
        self._done = Drained(before=plan.before, left_out=plan.left_out)

    def run(self, on_sent: Callable[[int], object]) -> Drained:
        """Send what the broker does not have; ``on_sent`` gets the number of messages that are
        dealt with. Raises StoreError where the broker does not answer: another run goes on."""
        entries = to_send(self._contents, self._notes)
        named = [entry for entry in entries if entry.physical_offset in self._notes.unanswered]
        others = [entry for entry in entries if entry.physical_offset not in self._notes.unanswered]
        self._levels = self._broker.delay_levels_ms()
        pending = self._look_for(named) + others
        handled = len(entries) - len(pending)
        for start in range(0, len(pending), NAMED_AT_ONCE):
            portion = pending[start : start + NAMED_AT_ONCE]
            self._send(portion)
            on_sent(handled + start + len(portion))
        return self._done

    def _look_for(self, entries: Sequence[Entry]) -> list[Entry]:
        """Note the messages that the broker has; return those that it does not have."""
        if entries:
            self._broker.wait_until_found()
        missing, known = [], set(self._notes.message_ids.values())
        for entry in entries:
            level = self._notes.unanswered[entry.physical_offset]
            message = drained(self._contents.record(entry), entry, level)
            key = properties.parse(message.properties)[properties.UNIQ_KEY]
            topics = stored_topics(message, entry.kind)
            listed = [found for topic in topics for found in self._broker.find(topic, key)]
            ids = [
                message_id(found).decode()
                for found in listed
                if is_same(found, message, entry.kind)
            ]
            new = [each for each in ids if each not in known]
            if new:
                self._journal.note(entry.physical_offset, new[0])
                known.add(new[0])
                self._done.found += 1
            elif len(listed) >= MAX_FOUND:
                self._done.left_out[TOO_MANY] += 1
                self._done.remaining += 1
            else:
                missing.append(entry)
        return missing

    def _send(self, entries: Sequence[Entry]) -> None:
        now_ms = self._now_ms()
        named = [(entry, _level(entry, self._levels, now_ms)) for entry in entries]
        self._journal.begin([(entry.physical_offset, level) for entry, level in named])
        for entry, level in named:
            message = drained(self._contents.record(entry), entry, level)
            try:
                answered = self._broker.send(message)
            except RefusedMessageError as error:
                self._done.left_out[f"refused: {error}"] += 1
                self._done.remaining += 1
                if error.code in NOT_STORED:
                    self._journal.note_refused(entry.physical_offset)
                continue
            self._journal.note(entry.physical_offset, answered)
            self._done.sent[entry.kind] += 1


def _level(entry: Entry, levels: Sequence[int], now_ms: int) -> int:
    is_level = entry.kind is Kind.WAITING and (entry.level or entry.group is not None)
    return delay_level((entry.due_ms or 0) - now_ms, levels) if is_level else 0


def to_send(contents: Contents, notes: DrainNotes) -> list[Entry]:
    """The entries that a broker shall have and has not answered for."""
    return [
        entry
        for entry in contents.entries
        if not entry.is_resent and entry.physical_offset not in notes.message_ids
    ]


def planned(contents: Contents, notes: DrainNotes) -> Drained:
    """Count what a drain would send, and what it would leave out."""
    counts = Drained(left_out=Counter(contents.left_out))
    counts.sent.update(entry.kind for entry in to_send(contents, notes))
    resent = sum(entry.is_resent for entry in contents.entries)
    if resent:
        counts.left_out["dead letter that was sent again"] = resent
    counts.before = len(notes.message_ids)
    return counts
