"""The content of a served store, and what of it nobody delivers: the lines of a server's start.

A broker does more than hand out what is in queues. It moves delayed and timed messages to their
topics when they are due, and asks producers how open transactions ended. A server does neither, so
it says how many messages wait for that. It also says what of the log is in no queue, at the start
and for as long as it is so. Source: RocketMQ 5.3.3 ``ScheduleMessageService``,
``TransactionalMessageServiceImpl``; formats.md §11.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from readers.messagestore import MessageStore
from serving.stores import ServedStore
from store import configjson
from store.errors import ReputError, error_text
from store.log.record import SCHEDULE_TOPIC
from store.log.systemtopics import is_system_topic
from store.state.consumeroffset import TopicGroup, read_committed

DELAY_OFFSETS_FILE = Path("config") / "delayOffset.json"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
MOST_NAMED = 5
"""Topics that the line about them names."""
MOST_READ = 100_000
"""Messages about ended transactions that are read; beyond that, every half message counts."""
PULLED = 32
LOOK_SECONDS = 300.0
"""Interval of the looks for messages that are in no queue."""

_BY_DUE_TIME = "only a broker moves them to their topics when they are due"

logger = logging.getLogger("reput")


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
    bounds = (_bounds(store, topic, queue_id) for queue_id in store.queue_ids(topic))
    return sum(high - low for low, high in bounds)


def _bounds(store: MessageStore, topic: str, queue_id: int) -> tuple[int, int]:
    return max(store.min_offset(topic, queue_id), 0), store.max_offset(topic, queue_id)


def _undelivered(store: MessageStore, root: Path) -> int:
    document = configjson.read(root / DELAY_OFFSETS_FILE)
    table = document.get("offsetTable") if isinstance(document, dict) else None
    waiting = 0
    topic = SCHEDULE_TOPIC.decode()
    for queue_id in store.queue_ids(topic):
        low, high = _bounds(store, topic, queue_id)
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
    low, high = _bounds(store, topic, 0)
    done = (read_committed(root) or {}).get(TopicGroup(topic, TRANSACTION_GROUP), {}).get(0, 0)
    return min(max(low, done), high), high


def _ended_halves(store: MessageStore, first: int, last: int) -> Iterator[int]:
    """The queue offsets of half messages that are named by messages [first, last)."""
    at = first
    while at < last:
        found = store.get_message(OP_TOPIC, 0, at, PULLED)
        for message in found.messages:
            # RocketMQ 4 names one, RocketMQ 5 several, each followed by a comma
            yield from (int(one) for one in message.body().split(b",") if one.isdigit())
        if found.next_begin_offset <= at:
            return
        at = found.next_begin_offset


def lines(found: Inventory) -> Iterator[tuple[int, str]]:
    """The level and text of each line about a store, after its name."""
    total = sum(found.topics.values())
    if not total:
        yield logging.WARNING, "no topic has a message"
    else:
        largest = sorted(found.topics.items(), key=lambda one: (-one[1], one[0]))
        named = ", ".join(f"{name} {count:,}" for name, count in largest[:MOST_NAMED])
        more = f" and {len(largest) - MOST_NAMED:,} more" if len(largest) > MOST_NAMED else ""
        counts = f"{_counted(total, 'message')} in {_counted(len(largest), 'topic')}"
        yield logging.INFO, f"{counts}: {named}{more}"
    waiting = {
        _counted(found.delayed, "delayed message"): (found.delayed, _BY_DUE_TIME),
        f"up to {_counted(found.timed, 'timed message')}": (found.timed, _BY_DUE_TIME),
        f"{'up to ' * found.are_all_halves}{_counted(found.halves, 'half message')}": (
            found.halves, "their transactions are open, and only a broker asks their producers",
        ),
    }  # fmt: skip
    for what, (count, why) in waiting.items():
        if count:
            yield logging.WARNING, f"not delivered: {what}: {why}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


async def report(served: ServedStore) -> None:
    """Log what a store holds, and then, until cancelled, what of it is in no queue."""
    await asyncio.to_thread(_report_content, served)
    # the process that dispatches knows its own lag
    while served.arrivals is None:
        await asyncio.to_thread(_report_coverage, served)
        await asyncio.sleep(LOOK_SECONDS)


def _report_content(served: ServedStore) -> None:
    name = served.identity.name
    try:
        with _opened(served) as store:
            for level, line in lines(take_inventory(store, served.settings.root)):
                logger.log(level, "broker %s: %s", name, line)
    except (ReputError, OSError) as error:
        logger.warning("broker %s: its content cannot be counted: %s", name, error_text(error))


def _report_coverage(served: ServedStore) -> None:
    name = served.identity.name
    try:
        with _opened(served) as store:
            line = store.note_coverage()
    except (ReputError, OSError) as error:
        logger.warning("broker %s: its queues cannot be compared: %s", name, error_text(error))
        return
    if line is not None:
        logger.warning("broker %s: not served: %s", name, line)


def _opened(served: ServedStore) -> MessageStore:
    """A view of its own, since the broker's is not for other threads."""
    return MessageStore(served.settings.root, output=served.output, settings=served.settings)
