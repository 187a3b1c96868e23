"""``config/consumerOffset.json``: the offsets that consumer groups have committed.

::

    {"dataVersion":{...},"groupTopicMap":{...},"offsetTable":{"TOPIC@GROUP":{QUEUE:OFFSET,...},...}}

A running broker keeps the offsets in memory and writes the file every five seconds. An offset is
that of the next message to consume. Only offsetTable is read, as by RocketMQ. The positions that a
broker keeps for broadcasting consumers stand under the group's name and ``@broadcast``. Source:
RocketMQ 5.3.3 ``ConsumerOffsetManager``, ``BroadcastOffsetManager``; formats.md §1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from store import configjson
from store.errors import UsageError

CONSUMER_OFFSET_FILE = "config/consumerOffset.json"
TOPIC_GROUP_SEPARATOR = "@"


class TopicGroup(NamedTuple):
    """A consumer group's share of the file: its offsets in one topic."""

    topic: str
    group: str


def read_committed(path: Path) -> dict[TopicGroup, dict[int, int]] | None:
    """Offsets by topic and group, then by queue id; None if there is neither the file nor its
    backup. Raises UsageError if it cannot be used."""
    document = configjson.read(path)
    if document is None:
        return None
    try:
        return dict(map(_entry, _mapping(_mapping(document).get("offsetTable") or {}).items()))
    except ValueError as error:
        raise UsageError(
            f"cannot use {path}: {error}; a broker rewrites the file when it next persists, "
            f"and {path.name}{configjson.BACKUP_SUFFIX} has the offsets of before"
        ) from error


def _entry(entry: tuple[str, object]) -> tuple[TopicGroup, dict[int, int]]:
    key, offsets = entry
    topic, separator, group = key.partition(TOPIC_GROUP_SEPARATOR)
    if not (topic and separator and group):
        raise ValueError(f"the key {key!r} of offsetTable is not TOPIC@GROUP")
    found = {}
    for queue_id, offset in _mapping(offsets).items():
        if type(offset) is not int:
            raise ValueError(f"the offset of {key} in queue {queue_id} is {offset!r}, no number")
        found[int(queue_id)] = offset
    return TopicGroup(topic, group), found


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {value!r:.40}")
    return value
