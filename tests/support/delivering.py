"""The golden stores of consuming, every record of them made again by the functions of ``overlay``.

The brokers' clocks, the addresses of clients and the times of the timer wheel are the records' own;
requests are those of the tapped wire. The wire of 4.9.7 was not tapped: its requests are what its
client would have sent, from the broker's records.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import struct
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reput.overlay.records import copies, release, sends, transactions
from reput.overlay.records import properties as names
from reput.overlay.records.copies import SendBack
from reput.overlay.records.properties import JavaProperties
from reput.overlay.records.sends import Recall, RetryGroup, Send, Target
from reput.store.log import properties, record
from reput.store.log.record import Record
from tests.support.golden import GOLDEN_DIRECTORY, log_records

STORES = {
    "g497": release.Writer(release.RELEASE_4_9_7, ("127.0.0.1", 29911)),
    "g533": release.Writer(release.RELEASE_5_3_3, ("127.0.0.2", 29911)),
    "g551": release.Writer(release.RELEASE_5_5_1, ("127.0.0.2", 29911)),
}
SENT_BACK = {b"gauto": (0, 3), b"glvl": (1, 3), b"gneg": (-1, 16)}
"""Group -> delay level and largest number of attempts of its consumer."""
ENDS = {"g497": [0, 1, 2, 3, 6, 9, 16]}
"""Queue offsets of halves in the order of their ends, where the wire was not tapped."""
RENEWED = "renewed half"
SOURCE = 4711
TIMER_TOPIC = b"rmq_sys_wheel_timer"
HALF_TOPIC = b"RMQ_SYS_TRANS_HALF_TOPIC"
UNIT = struct.Struct(">qiq")
"""A unit of a consume queue."""
TAPPED_BODY = 60
"""Bytes of a longer body that the tap kept."""
IN_TURN = pytest.mark.parametrize(
    "first", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2, 3))]
)
"""For a test with four kinds of notes, which cuts a log after each of its records: the kind that
the first cut meets. ``make test`` has each kind with a quarter of the cuts."""


class Made(NamedTuple):
    """A broker's record, and ours."""

    kind: str
    theirs: Record
    ours: Record | None
    """None for a kind that the overlay does not write."""


@dataclass
class Store:
    """The log of a golden store, and the requests that led to it."""

    name: str
    records: list[Record]
    requests: list[dict[str, Any]]

    @property
    def writer(self) -> release.Writer:
        """The broker that wrote it."""
        return STORES[self.name]

    def requested(self, *codes: int) -> list[dict[str, str]]:
        """The fields of requests with these codes, with ``code`` and the body's first bytes."""
        return [
            request["extFields"] | {"code": str(request["code"]), "hex": request.get("_hex", "")}
            for request in self.requests
            if request.get("code") in codes and request.get("_d") == ">"
        ]

    def last(self, before: Record, fits: Callable[[Record], bool]) -> Record:
        """The last record before another one of the same message that fits."""
        return [
            found
            for found in self.records
            if found.physical_offset < before.physical_offset
            and fits(found)
            and found.property_map.get(b"UNIQ_KEY") == before.property_map[b"UNIQ_KEY"]
        ][-1]


def load(name: str, into: Path) -> Store:
    """Unpack the log of a store."""
    with tarfile.open(GOLDEN_DIRECTORY / f"{name}.tar.gz") as archive:
        log = [member for member in archive.getmembers() if "/commitlog/" in member.name]
        archive.extractall(into, log, filter="data")
    wire = GOLDEN_DIRECTORY / f"{name}.wire.jsonl.gz"
    lines = gzip.decompress(wire.read_bytes()).splitlines() if wire.exists() else []
    return Store(name, log_records(into / name), [json.loads(line) for line in lines])


def remade(store: Store) -> Iterator[Made]:
    """Every record of the store, with ours, in the order of the log."""
    sent = dict(_sent(store))
    for theirs in store.records:
        kind = kind_of(theirs, store)
        if kind in MAKERS:
            yield Made(kind, theirs, MAKERS[kind](store, theirs))
        else:
            yield Made(kind, theirs, None if kind == RENEWED else sent[theirs.physical_offset])


def kind_of(theirs: Record, store: Store) -> str:
    """How the broker came to write a record, by what stands in it."""
    values, topic = theirs.property_map, theirs.topic
    simple = {b"RMQ_SYS_TRANS_OP_HALF_TOPIC": "op", b"TRANS_CHECK_MAX_TIME_TOPIC": "discarded"}
    if topic in simple:
        return simple[topic]
    if theirs.sys_flag & 8:
        return "committed"
    if b"TIMER_DEL_UNIQKEY" in values:
        return "recall"
    if b"TIMER_DEQUEUE_MS" in values:
        return "delivered (timer)"
    if topic == HALF_TOPIC:
        return RENEWED if b"TRANSACTION_CHECK_TIMES" in values else "sent: half"
    if values.get(b"REAL_TOPIC") == topic and int(values[b"DELAY"]) > 0:
        return "delivered (level)"
    if values.get(b"ORIGIN_MESSAGE_ID", b"").startswith(_host_of(store)):
        return "sent back: dead" if topic.startswith(b"%DLQ%") else "sent back: waiting"
    if topic.startswith(b"%DLQ%"):
        return "sent: dead"
    waiting = {record.SCHEDULE_TOPIC: "sent: waiting (level)", TIMER_TOPIC: "sent: waiting (timer)"}
    if b"batch" in theirs.body:
        return "sent: batch"
    return waiting.get(topic, "sent")


def _host_of(store: Store) -> bytes:
    return record.encode_host(store.writer.host).hex().upper().encode() + b"0000"


def copy_of(store: Store, theirs: Record) -> tuple[Record, bytes]:
    """The copy that was sent back to give a record, and the group that did so."""
    real = theirs.property_map.get(b"REAL_TOPIC", b"")
    dead = theirs.topic.startswith(b"%DLQ%")
    group = (theirs.topic if dead else real).split(b"%")[-1]
    topics = (theirs.property_map[b"RETRY_TOPIC"], b"%RETRY%" + group)
    copy = store.last(
        theirs, lambda r: r.topic in topics and r.reconsume_times == theirs.reconsume_times - 1
    )
    return copy, group


def _sent_back(store: Store, theirs: Record) -> Record:
    copy, group = copy_of(store, theirs)
    asked = SendBack(group, *SENT_BACK[group])
    return copies.sent_back(copy, asked, store.writer, source=SOURCE, now_ms=theirs.store_timestamp)


def _level_delivered(store: Store, theirs: Record) -> Record:
    waiting = store.last(
        theirs,
        lambda r: r.topic == record.SCHEDULE_TOPIC and r.reconsume_times == theirs.reconsume_times,
    )
    return copies.level_delivered(waiting, store.writer, source=SOURCE)


def _timer_delivered(store: Store, theirs: Record) -> Record:
    waiting = store.last(theirs, lambda r: r.topic == TIMER_TOPIC)
    enqueued, now = (
        int(theirs.property_map[name]) for name in (b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS")
    )
    return copies.timer_delivered(
        waiting, store.writer, enqueued_ms=enqueued, now_ms=now, source=SOURCE
    )


def _committed(store: Store, theirs: Record) -> Record:
    at = theirs.prepared_transaction_offset
    (half,) = (r for r in store.records if r.physical_offset == at)
    return transactions.committed(half, store.writer, source=at, now_ms=theirs.store_timestamp)


def _op(store: Store, theirs: Record) -> Record:
    offsets = named_by(theirs)
    writer, now = store.writer, theirs.born_timestamp
    return transactions.op(offsets, 0, writer, source=SOURCE, now_ms=now)


def named_by(op: Record) -> list[int]:
    """The queue offsets that an op message names."""
    return [int(part) for part in op.body.split(b",") if part]


def _discarded(store: Store, theirs: Record) -> Record:
    half = store.last(theirs, lambda r: r.topic == HALF_TOPIC)
    now = theirs.store_timestamp
    return transactions.discarded(half, store.writer, source=SOURCE, now_ms=now)


def _recall(store: Store, theirs: Record) -> Record:
    (request,) = store.requested(370)
    handle = base64.urlsafe_b64decode(request["recallHandle"]).split(b" ")
    recall = Recall(request["producerGroup"].encode(), handle[1], handle[4], int(handle[3]))
    made = sends.recalled(
        recall, store.writer, born_host=theirs.born_host, now_ms=theirs.born_timestamp
    )
    return replace(made, prepared_transaction_offset=SOURCE)


MAKERS: dict[str, Callable[[Store, Record], Record]] = {
    "sent back: waiting": _sent_back,
    "sent back: dead": _sent_back,
    "delivered (level)": _level_delivered,
    "delivered (timer)": _timer_delivered,
    "committed": _committed,
    "op": _op,
    "discarded": _discarded,
    "recall": _recall,
}


def _sent(store: Store) -> Iterator[tuple[int, Record]]:
    """Position of a sent message's record, and ours; every request makes a record of the store."""
    theirs = {
        r.physical_offset: r
        for r in store.records
        if kind_of(r, store) != RENEWED and kind_of(r, store) not in MAKERS
    }
    batch = [r for r in theirs.values() if kind_of(r, store) == "sent: batch"]
    for message, key in _messages(store, theirs, batch):
        group = RetryGroup() if message.topic.startswith(b"%RETRY%") else None
        target = Target(4, group)
        if key is None:
            records = sends.sent_batch(message, target, store.writer)
            yield from (
                (r.physical_offset, replace(ours, prepared_transaction_offset=SOURCE))
                for r, ours in zip(batch, records, strict=True)
            )
            continue
        one = theirs[key]
        ours = sends.sent(
            message, target, store.writer, unique_key=b"?", now_ms=one.store_timestamp
        )
        yield key, replace(ours, prepared_transaction_offset=SOURCE)


def _messages(
    store: Store, theirs: dict[int, Record], batch: list[Record]
) -> Iterator[tuple[Send, int | None]]:
    """Every send, and the position of its record; None for the batch."""
    if not store.requests:
        for key, one in theirs.items():
            if one not in batch:
                yield _as_sent_by_4_9_7(one), key
        yield _batch_of(batch, 0, b"WAIT\x01true", _own_text_4_9_7), None
        return
    for request in store.requested(10, 310, 320):
        text = request["i"].encode()
        if request["code"] == "320":
            message = _batch_of(batch, int(request["f"]), text, _own_text)
            assert message.body.startswith(bytes.fromhex(request["hex"]))
            assert len(message.body) == 670
            yield message, None
            continue
        unique_key = properties.parse(text)[b"UNIQ_KEY"]
        (one,) = (
            r for r in theirs.values()
            if r.born_timestamp == int(request["g"]) and r.property_map[b"UNIQ_KEY"] == unique_key
        )  # fmt: skip
        tapped = bytes.fromhex(request["hex"])
        assert one.body.startswith(tapped) and len(tapped) == min(len(one.body), TAPPED_BODY)
        limit = request.get("l")
        message = Send(
            topic=request["b"].encode(), queue_id=int(request["e"]), body=one.body,
            properties=text, flag=int(request["h"]), sys_flag=int(request["f"]),
            born_timestamp=int(request["g"]), born_host=one.born_host,
            reconsume_times=int(request["j"]),
            max_reconsume_times=None if limit is None else int(limit),
        )  # fmt: skip
        yield message, one.physical_offset


def _as_sent_by_4_9_7(theirs: Record) -> Send:
    """A request that a client of 4.9.7 would send for a record: what the broker added is gone, and
    WAIT, which a client puts first, is there."""
    values = theirs.property_map
    is_retry = b"RETRY_TOPIC" in values
    text = JavaProperties()
    if not is_retry:
        text.put(names.WAIT, b"true")
    added = (b"REAL_TOPIC", b"REAL_QID", b"WAIT") + (() if is_retry else (b"CLUSTER",))
    for name, value in values.items():
        if name not in added:
            text.put(name, value)
    if theirs.body.startswith(b"lv25"):
        text.put(b"DELAY", b"25")
    is_half = theirs.topic == HALF_TOPIC
    limit = values.get(b"MAX_RECONSUME_TIMES")
    return Send(
        topic=values.get(b"REAL_TOPIC", theirs.topic).replace(b"%DLQ%", b"%RETRY%"),
        queue_id=int(values.get(b"REAL_QID", str(theirs.queue_id).encode())),
        body=theirs.body,
        properties=text.text(ends_with_separator=False),
        flag=theirs.flag,
        sys_flag=theirs.sys_flag | (4 if is_half else 0),
        born_timestamp=theirs.born_timestamp,
        born_host=theirs.born_host,
        reconsume_times=theirs.reconsume_times,
        max_reconsume_times=None if limit is None else int(limit),
    )


def _own_text(stored: bytes) -> bytes:
    """The text that a message of a batch had before the broker added the batch's."""
    return stored.partition(b"MSG_REGION\x01")[0]


def _own_text_4_9_7(stored: bytes) -> bytes:
    return stored.partition(b"\x02CLUSTER\x01")[0]


def _batch_of(
    batch: list[Record], sys_flag: int, text: bytes, own: Callable[[bytes], bytes]
) -> Send:
    """The request of a batch of messages."""
    body = b""
    for one in batch:
        tail = one.body + struct.pack(">h", len(own(one.properties))) + own(one.properties)
        body += struct.pack(">iiiii", 20 + len(tail), 0, 0, one.flag, len(one.body)) + tail
    first = batch[0]
    return Send(
        topic=first.topic, queue_id=first.queue_id, body=body, properties=text, sys_flag=sys_flag,
        born_timestamp=first.born_timestamp, born_host=first.born_host,
    )  # fmt: skip


def lose_queue_ends(root: Path) -> None:
    """Leave each queue of a store its first unit alone."""
    for path in (root / "consumequeue").rglob("0*0"):
        size = path.stat().st_size
        os.truncate(path, UNIT.size)
        os.truncate(path, size)


def cut(root: Path, end: int) -> None:
    """Cut the log at a record, and the queues with it, as a broker's recovery would."""
    (path,) = (root / "commitlog").iterdir()
    size = path.stat().st_size
    os.truncate(path, end)
    os.truncate(path, size)
    for path in (root / "consumequeue").rglob("0*0"):
        units = path.read_bytes()
        kept = b"".join(
            units[at : at + UNIT.size]
            for at in range(0, len(units), UNIT.size)
            if UNIT.unpack_from(units, at)[0] < end and UNIT.unpack_from(units, at)[1]
        )
        path.write_bytes(kept.ljust(len(units), b"\0"))
