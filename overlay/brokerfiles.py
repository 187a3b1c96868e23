"""The files by which a broker goes on in an overlay, beside the log, the queues and the committed
offsets.

``config/topics.json`` has the topics and their queues, ``config/delayOffset.json`` what is
delivered already, and ``config/subscriptionGroup.json`` the base's settings of groups. ``abort``
exists while the overlay is open: a broker that finds it recovers as after a crash. The overlay
itself needs none of them, and they are written up to a second after a change; what a broker or an
administrator has added to them stays.

``config/timercheck`` has the first timer message that waits. A broker delivers all from there on,
also those that came later and were delivered: it knows of single ones only by its wheel.

Source: RocketMQ 5.3.3 ``TopicConfigManager``, ``ScheduleMessageService``,
``SubscriptionGroupManager``; formats.md §1.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from reput.overlay.delivery.waiting import NextOffsets
from reput.overlay.periodic import Periodic
from reput.overlay.records import properties as names
from reput.overlay.records.drafts import TIMER_TOPIC
from reput.store import configjson, fsops
from reput.store.errors import StoreError
from reput.store.files import (
    ABORT_FILE,
    DELAY_OFFSET_FILE,
    SUBSCRIPTION_GROUP_FILE,
    TIMER_CHECKPOINT_FILE,
    TIMER_LOG_DIRECTORY,
    TIMER_WHEEL_FILE,
    TOPICS_FILE,
)
from reput.store.filetimes import Watched
from reput.store.log import java
from reput.store.log.record import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    Record,
)
from reput.store.log.systemtopics import is_system_topic

TIMER_CHECKPOINT_SIZE = 4096
_TIMER_CHECKPOINT = struct.Struct(">qqqq")
"""Time in ms up to which the wheel was read, position in its log, queue offset, the master's."""
WRITE_SECONDS = 1.0
"""Time between two looks for changes."""
MOST_QUEUES = 1 << 16
"""Limit of a queue id that a client names."""
PERM_READ, PERM_WRITE = 4, 2
RETRY_PREFIX, DLQ_PREFIX = RETRY_GROUP_TOPIC_PREFIX.decode(), DLQ_GROUP_TOPIC_PREFIX.decode()
TOPICS, OFFSETS = "topicConfigTable", "offsetTable"
GROUPS, FORBIDDEN = "subscriptionGroupTable", "forbiddenTable"
Table = Mapping[str, Any]

logger = logging.getLogger("reput")


class BrokerFiles:
    """Keeps the files of one overlay, in a thread of its own, while in a ``with`` block."""

    def __init__(
        self,
        root: Path,
        base: Path,
        next_offsets: Callable[[], NextOffsets],
        is_complete: Callable[[], bool],
    ) -> None:
        """``root`` and ``base`` are the stores' roots. ``next_offsets`` returns where a broker
        would go on; ``is_complete`` is asked at the end, and says whether the whole log is
        dispatched."""
        self._root = root
        self._base_groups = Watched(
            base / SUBSCRIPTION_GROUP_FILE, lambda: _tables(base / SUBSCRIPTION_GROUP_FILE)
        )
        self._next_offsets = next_offsets
        self._is_complete = is_complete
        self._queue_counts: dict[bytes, int] = {}
        self._topics_of: object = None
        """The queues and groups of which the last table of topics was made."""
        self._files: dict[str, _TableFile] = {}
        self._timer_offset: int | None = None
        """The queue offset in the timer checkpoint, once that is written."""
        self._has_failed = False
        """Whether the last write has failed, and the log says so."""
        self._opened = ExitStack()

    def note(self, record: Record) -> None:
        """Take in that a record's queue exists, and the one to which a broker would deliver it."""
        self.note_queue(record.topic, record.queue_id)
        if record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            values = record.property_map
            queue_id = java.parse_integer(values.get(names.REAL_QUEUE_ID, b""), 32)
            if names.REAL_TOPIC in values and queue_id is not None and 0 <= queue_id < MOST_QUEUES:
                self.note_queue(values[names.REAL_TOPIC], queue_id)

    def note_queue(self, topic: bytes, queue_id: int) -> None:
        """Take in that a queue exists. Any thread may call it."""
        if queue_id >= self._queue_counts.get(topic, 0):
            self._queue_counts[topic] = queue_id + 1

    def frozen(self) -> Callable[[], dict[str, Any]]:
        """Return a function that makes what ``restore`` needs, as of now (``overlay.snapshot``)."""
        counts = dict(self._queue_counts)
        return lambda: {topic.decode("latin-1"): count for topic, count in counts.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take in the queues of a snapshot."""
        for topic, count in state.items():
            self.note_queue(topic.encode("latin-1"), count - 1)

    def __enter__(self) -> BrokerFiles:
        """Write all of them as of now. Raises StoreError for one that cannot be used,
        OutputError."""
        fsops.make_directories((self._root / TOPICS_FILE).parent, self._root)
        fsops.replace_file(self._root / ABORT_FILE, str(os.getpid()).encode())
        for name in (TOPICS_FILE, SUBSCRIPTION_GROUP_FILE):
            self._files[name] = _TableFile(self._root / name, _tables(self._root / name))
        # nothing of it is kept
        self._files[DELAY_OFFSET_FILE] = _TableFile(self._root / DELAY_OFFSET_FILE, {})
        self._write()
        self._opened.enter_context(
            Periodic("reput-broker-files", WRITE_SECONDS, self._try_to_write)
        )
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Write them for the last time. ``abort`` stays after an error, or where the queues lack
        something."""
        self._opened.close()
        self._try_to_write()
        if error is None and not self._has_failed and self._is_complete():
            fsops.unlink(self._root / ABORT_FILE)
            fsops.sync_directory(self._root)

    def _try_to_write(self) -> None:
        try:
            self._write()
            self._has_failed = False
        except (StoreError, OSError) as error:
            if not self._has_failed:
                logger.error("a broker could not go on in the overlay now: %s", error)
            self._has_failed = True

    def _write(self) -> None:
        base = self._base_groups.value()
        offsets = self._next_offsets()
        levels = {str(level): offset for level, offset in offsets.levels.items()}
        self._files[DELAY_OFFSET_FILE].update({OFFSETS: levels})
        if offsets.timers not in (None, self._timer_offset):
            _write_timer_checkpoint(self._root, offsets.timers or 0)
            self._timer_offset = offsets.timers
        queue_counts = dict(self._queue_counts)
        if (queue_counts, base) != self._topics_of:
            topics = self._files[TOPICS_FILE]
            topics.update({TOPICS: _topics(topics.table(TOPICS), queue_counts, base)})
            self._topics_of = queue_counts, base
        if base:
            groups = self._files[SUBSCRIPTION_GROUP_FILE]
            tables = (GROUPS, FORBIDDEN)
            groups.update({name: {**groups.table(name), **_table(base, name)} for name in tables})


def _write_timer_checkpoint(root: Path, queue_offset: int) -> None:
    """Have a broker take up timer messages from a queue offset on, with a wheel that is empty. What
    an earlier one left of its wheel goes."""
    second = time.time_ns() // 1_000_000_000 * 1000
    data = _TIMER_CHECKPOINT.pack(second, 0, queue_offset, queue_offset)
    fsops.replace_file(root / TIMER_CHECKPOINT_FILE, data.ljust(TIMER_CHECKPOINT_SIZE, b"\0"))
    for name in (TIMER_WHEEL_FILE, TIMER_LOG_DIRECTORY):
        fsops.remove_tree(root / name)


def _topics(declared: Table, queue_counts: Mapping[bytes, int], base: Table) -> Table:
    """The topics that are declared, and those with queues; ``base`` has the settings of groups."""
    topics = dict(declared)
    for topic, count in queue_counts.items():
        name = java.decode(topic)
        if not is_system_topic(name):
            wanted = max(count, _wanted_queues(name, base))
            topics[name] = _topic(name, wanted, _table(declared, name))
    return topics


def _wanted_queues(topic: str, base: Table) -> int:
    group = _table(_table(base, GROUPS), topic.removeprefix(RETRY_PREFIX))
    number = group.get("retryQueueNums", 1) if topic.startswith(RETRY_PREFIX) else 1
    return number if type(number) is int else 1


def _topic(name: str, queue_count: int, declared: Table) -> Table:
    """A topic as a broker declares it: nobody sends messages of the base's topics to the
    overlay."""
    is_consumers = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    topic = {
        "attributes": {}, "order": False, "perm": PERM_READ | PERM_WRITE * is_consumers,
        "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": 0,
        **declared,
    }  # fmt: skip
    for field in ("readQueueNums", "writeQueueNums"):
        number = topic.get(field, 0)
        topic[field] = max(queue_count, number if type(number) is int else 0)
    return topic


class _TableFile:
    """One file of a broker's configuration."""

    def __init__(self, path: Path, tables: Table) -> None:
        """``tables`` is its present content, as far as it is kept."""
        self._path = path
        self._tables = tables
        self._is_written = False

    def table(self, name: str) -> Table:
        """One of its tables; empty without it."""
        return _table(self._tables, name)

    def update(self, tables: Table) -> None:
        """Replace some tables, unless they are as they were. Raises OutputError."""
        after = {**self._tables, **tables}
        if after == self._tables and self._is_written:
            return
        counter = _table(after, "dataVersion").get("counter", 0)
        after["dataVersion"] = {
            "counter": counter + 1 if type(counter) is int else 1,
            "stateVersion": 0,
            "timestamp": time.time_ns() // 1_000_000,
        }
        text = json.dumps(after, ensure_ascii=False, indent="\t")
        fsops.replace_file(self._path, text.encode())
        self._tables, self._is_written = after, True


def _tables(path: Path) -> Table:
    """The content of a file; empty without it. Raises StoreError."""
    document = configjson.read(path)
    return document if isinstance(document, dict) else {}


def _table(tables: Table, name: str) -> Table:
    found = tables.get(name)
    return found if isinstance(found, dict) else {}
