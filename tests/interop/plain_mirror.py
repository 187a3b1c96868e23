"""The messages that a mirror of a store must hold, decoded the plain way."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from reput.store.log import java, properties
from reput.store.log.compression import inflate
from reput.store.log.record import Record
from reput.store.log.systemtopics import is_system_topic
from tests.interop.mirroring import found_in

Message = tuple[bytes | None, bytes, int, tuple[tuple[str, bytes], ...]]
"""Key, value, timestamp, headers."""


def wanted(store: Path) -> dict[tuple[str, int], list[Message]]:
    """The messages that a mirror must hold, by topic and partition, by the plain decoder."""
    found: dict[tuple[str, int], list[Message]] = {}
    for item in found_in(store):
        if isinstance(item, Record) and item.dispatched_to_queue:
            topic = java.decode(item.topic)
            if not is_system_topic(topic):
                found.setdefault((topic, item.queue_id), []).extend(map(message, unwrapped(item)))
    return found


def unwrapped(item: Record) -> list[Record]:
    """The messages of an inner batch, or the one that it is; one whose lengths do not fit, too."""
    if item.sys_flag & 0xC0 != 0xC0:
        return [item]
    data, at, found = plain_body(item), 0, []
    while at < len(data):
        flag, length = struct.unpack(">12xii", data[at : at + 20].ljust(20, b"\xff"))
        body, at = data[at + 20 : at + 20 + length], at + 20 + length
        block = data[at + 2 : at + 2 + int.from_bytes(data[at : at + 2], "big")]
        at += 2 + len(block)
        if length < 0 or at > len(data):
            return [item]
        found.append(
            replace(
                item, flag=flag, body=body, property_map=properties.parse(block),
                queue_offset=item.queue_offset + len(found), sys_flag=item.sys_flag & ~0x7C1,
            )
        )  # fmt: skip
    return found or [item]


def plain_body(item: Record) -> bytes:
    """As its sender gave it."""
    if not item.sys_flag & 1:
        return item.body
    kind = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}[item.sys_flag >> 8 & 7]
    return inflate(item.body, kind, 1 << 24) or b""


def message(item: Record) -> Message:
    """One record as Kafka must have it."""
    texts = {java.decode(k): java.decode(v) for k, v in item.property_map.items()}
    host = item.born_host[0]
    own: dict[str, Any] = {
        "topic": java.decode(item.topic), "queueId": item.queue_id,
        "queueOffset": item.queue_offset, "physicalOffset": item.physical_offset,
    }  # fmt: skip
    if "TAGS" in texts:
        own["tags"] = texts["TAGS"]
    own["tagsCode"] = java.hash_code(item.property_map.get(properties.TAGS, b""))
    own |= {
        "sysFlag": item.sys_flag, "flag": item.flag, "reconsumeTimes": item.reconsume_times,
        "bornHost": f"{f'[{host}]' if ':' in host else host}:{item.born_host[1]}",
        "bornTimestamp": item.born_timestamp, "storeTimestamp": item.store_timestamp,
    }  # fmt: skip
    headers = [(name, value.encode()) for name, value in texts.items()]
    headers += [(f"rocketmq.{name}", str(value).encode()) for name, value in own.items()]
    key = texts.get("KEYS") or texts.get("UNIQ_KEY")
    return (key.encode() if key else None, plain_body(item), item.store_timestamp, tuple(headers))
