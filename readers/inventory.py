"""The content of a store by topics, and the messages in it that only a broker would deliver.

A broker does more than hand out what is in queues. It moves delayed and timed messages to their
topics when they are due, and asks producers how open transactions ended. Source: RocketMQ 5.3.3
``ScheduleMessageService``, ``TransactionalMessageServiceImpl``; formats.md §11.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.readers.messagestore import MessageStore
from reput.store import configjson
from reput.store.files import DELAY_OFFSET_FILE
from reput.store.log import java
from reput.store.log.record import SCHEDULE_TOPIC
from reput.store.log.systemtopics import HALF_TOPIC, OP_TOPIC, TIMER_TOPIC, is_system_topic
from reput.store.state.consumeroffset import TopicGroup, read_committed

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
MOST_READ = 100_000
"""Messages about ended transactions that are read; beyond that, every half message counts."""
PULLED = 32


@dataclass(frozen=True, slots=True)
class Inventory:
    """The content of one store at a moment."""

    topics: dict[str, int]
    """Messages that the log still has, by topic; without RocketMQ's own topics."""
    delayed: int
    """Messages of delay levels that no broker has delivered yet."""
    timed: int
    """Timed messages, delivered ones that the log still has among them."""
    halves: int
    """Half messages of transactions that are open."""
    are_all_halves: bool
    """Whether ``halves`` counts ended transactions as well, because there are too many."""


def take_inventory(store: MessageStore, root: Path) -> Inventory:
    """Count what a store has; ``root`` holds its broker's ``config/``. Raises StoreError."""
    topics = {name: _count(store, name) for name in store.topics() if not is_system_topic(name)}
    halves, are_all = _open_halves(store, root)
    return Inventory(topics, _undelivered(store, root), _count(store, TIMER_TOPIC), halves, are_all)


def _count(store: MessageStore, topic: str) -> int:
    bounds = (store.queue(topic, queue_id).bounds() for queue_id in store.queue_ids(topic))
    return sum(high - low for low, high in bounds)


def _undelivered(store: MessageStore, root: Path) -> int:
    document = configjson.read(root / DELAY_OFFSET_FILE)
    table = document.get("offsetTable") if isinstance(document, dict) else None
    waiting = 0
    topic = SCHEDULE_TOPIC.decode()
    for queue_id in store.queue_ids(topic):
        low, high = store.queue(topic, queue_id).bounds()
        # levels count from 1
        next_offset = table.get(str(queue_id + 1)) if isinstance(table, dict) else None
        waiting += high - min(max(low, next_offset if type(next_offset) is int else 0), high)
    return waiting


def _open_halves(store: MessageStore, root: Path) -> tuple[int, bool]:
    """Half messages that no message about an ended transaction names, and whether ended ones are
    counted as well."""
    low, high = _from_committed(store, root, HALF_TOPIC)
    first, last = _from_committed(store, root, OP_TOPIC)
    if last - first > MOST_READ:
        return high - low, True
    ended = set(_ended_halves(store, first, last))
    return sum(offset not in ended for offset in range(low, high)), False


def _from_committed(store: MessageStore, root: Path, topic: str) -> tuple[int, int]:
    """The part of a topic's queue 0 that the transactions' own group has not done."""
    low, high = store.queue(topic, 0).bounds()
    done = (read_committed(root) or {}).get(TopicGroup(topic, TRANSACTION_GROUP), {}).get(0, 0)
    return min(max(low, done), high), high


def _ended_halves(store: MessageStore, first: int, last: int) -> Iterator[int]:
    """The queue offsets of half messages that are named by messages [first, last)."""
    at = first
    while at < last:
        result = store.queue(OP_TOPIC, 0).get_message(at, PULLED)
        for message in result.messages:
            yield from named_halves(message.body())
        if result.next_begin_offset <= at:
            return
        at = result.next_begin_offset


def named_halves(body: bytes) -> Iterator[int]:
    """The queue offsets of half messages that a message about ended transactions names: one in
    RocketMQ 4, in RocketMQ 5 several, each followed by a comma. What is no number names none
    (``TransactionalMessageServiceImpl.getLong``)."""
    numbers = (java.parse_integer(text, 64) for text in body.split(b","))
    return (number for number in numbers if number is not None)
