"""RocketMQ's ``BatchConsumeQueue.putBatchMessagePositionInfo``, one message at a time (formats.md
§7), and the batches of runs that a writer is given.

What the writer's files are compared with, byte for byte. Messages come from a store's log by
the plain decoder or are made up: the writer does not look into the log.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reput.store.log import record
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from reput.store.queue.consumequeue import UNIT_DTYPE
from reput.store.runs.dispatch import DETAIL_DTYPE, DispatchBatch, Run
from tests.support.wire import file_name

BATCH_UNIT = struct.Struct(">qiqqqhii")


@dataclass(frozen=True)
class BatchMessage:
    """The fields of a message that a batch queue keeps."""

    offset: int
    size: int
    tags_code: int = 0
    store_time: int = 0
    base: int = 0
    batch_size: int = 1
    topic: bytes = b"T"
    queue_id: int = 0
    is_light: bool = False

    @property
    def end(self) -> int:
        """The physical offset after its last byte."""
        return self.offset + self.size

    @property
    def unit(self) -> bytes:
        """Its 46 bytes."""
        return BATCH_UNIT.pack(
            self.offset, self.size, self.tags_code, self.store_time, self.base, self.batch_size,
            -1, 0,
        )  # fmt: skip


def messages_of(root: Path, levels_ms: tuple[int, ...]) -> list[BatchMessage]:
    """The messages of a store that enter queues, in log order, by the plain decoder."""
    log, found = CommitLog([root / "commitlog"]), []
    for item in records(log, log.min_offset, LogTail(log).settled()):
        assert isinstance(item, Record)
        if item.dispatched_to_queue:
            inner = [item.property_map.get(name) for name in (b"INNER_BASE", b"INNER_NUM")]
            base, number = (
                (item.queue_offset, 1) if None in inner else map(int, filter(None, inner))
            )
            found.append(
                BatchMessage(
                    item.physical_offset, item.total_size, record.tags_code(item, levels_ms),
                    item.store_timestamp, base, number, item.topic, item.queue_id,
                )
            )  # fmt: skip
    log.close()
    return found


def run_of(messages: list[BatchMessage]) -> Run:
    """Messages of one queue as a source gives them."""
    return Run(
        messages[0].topic,
        messages[0].queue_id,
        messages[0].offset,
        messages[0].base,
        np.array([message.base for message in messages], np.int64),
        np.array([(m.offset, m.size, m.tags_code) for m in messages], UNIT_DTYPE),
        messages[-1].store_time,
        np.array(
            [(m.store_time, m.base, m.batch_size, m.is_light) for m in messages], DETAIL_DTYPE
        ),
    )


def make_batch(
    messages: list[BatchMessage],
    start: int,
    end: int,
    topics: frozenset[bytes],
    rng: random.Random | None = None,
) -> DispatchBatch:
    """[start, end) of the log in one chunk, or in chunks that are cut at random; ``topics`` have
    batch queues."""
    chunks: list[dict[tuple[bytes, int], list[BatchMessage]]] = [{}]
    inside = [message for message in messages if start <= message.offset < end]
    for message in inside:
        if rng is not None and rng.random() < 0.1:
            chunks.append({})
        chunks[-1].setdefault((message.topic, message.queue_id), []).append(message)
    runs = [run_of(group) for chunk in chunks for group in chunk.values()]
    runs.sort(key=lambda run: run.first_physical_offset)
    last = inside[-1].offset if inside else -1
    return DispatchBatch(start, end, runs, (), len(inside), last, batch_topics=topics)


@dataclass
class ModelBatchQueue:
    """One queue's files in memory."""

    file_size: int
    units: list[bytes] = field(default_factory=list)
    max_msg_phy_offset: int = -1
    ignored: list[int] = field(default_factory=list)
    """Physical offsets of messages that RocketMQ ignores with a warning."""

    def put(self, message: BatchMessage) -> None:
        """One message: ignored, a duplicate, or appended."""
        if message.base < 0 or message.batch_size < 0:
            self.ignored.append(message.offset)
        elif message.offset > self.max_msg_phy_offset:
            self.units.append(message.unit)
            self.max_msg_phy_offset = message.offset

    def files(self) -> dict[str, bytes]:
        """Names and contents."""
        data = b"".join(self.units)
        return {
            file_name(at): data[at : at + self.file_size].ljust(self.file_size, b"\0")
            for at in range(0, len(data), self.file_size)
        }


def model_of(
    messages: list[BatchMessage], topics: frozenset[bytes], file_size: int
) -> dict[tuple[str, int], ModelBatchQueue]:
    """The queues of these messages."""
    queues: dict[tuple[str, int], ModelBatchQueue] = {}
    for message in messages:
        if message.topic in topics and not message.is_light:
            key = (message.topic.decode(), message.queue_id)
            queues.setdefault(key, ModelBatchQueue(file_size)).put(message)
    return queues


def model_tree(queues: dict[tuple[str, int], ModelBatchQueue]) -> dict[str, bytes]:
    """Relative file names and contents below ``batchconsumequeue``."""
    return {
        f"{topic}/{queue_id}/{name}": data
        for (topic, queue_id), queue in queues.items()
        for name, data in queue.files().items()
    }


PAGE = 4096


def lose_pages(rng: random.Random, durable: bytes, written: bytes) -> bytes:
    """A file after a power cut: each page as it was synced last, or as written since."""
    return b"".join(
        rng.choice((durable, written))[at : at + PAGE] for at in range(0, len(written), PAGE)
    )
