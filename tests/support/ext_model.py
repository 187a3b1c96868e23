"""Queues with ext units, one message at a time (formats.md §5 step 2, §6), and logs to make them
of.

What the writer's ``consumequeue`` and ``consumequeue_ext`` are compared with. Not RocketMQ's
are two rules: a message that is dispatched again leaves no second ext unit, and a unit that fits
into no file leaves no marked files.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field, replace

import numpy as np

from reput.store.runs.dispatch import DETAIL_DTYPE, DispatchBatch, Run
from tests.support.queue_model import ModelQueue
from tests.support.wire import UNIT, PlainLog, file_name

MIN_LONG = -(1 << 63)
MAX_ADDRESS = -(1 << 31) - 1


@dataclass(frozen=True)
class Message:
    """The fields that decide a message's unit and its ext unit."""

    topic: str
    queue_id: int
    offset: int
    size: int
    queue_offset: int
    tags_code: int
    store_timestamp: int
    bit_map: bytes = b""
    is_light: bool = False

    @property
    def end(self) -> int:
        """Physical."""
        return self.offset + self.size


@dataclass
class ModelExt:
    """One queue's ext files in memory."""

    file_size: int
    files: dict[int, bytearray] = field(default_factory=dict)
    end: int = 0

    def put(self, message: Message) -> int:
        """The unit's address; 1 where no file can hold it."""
        size = 20 + len(message.bit_map)
        if size > self.file_size - 4:
            return 1
        if size > self.file_size - self.end % self.file_size - 4:
            self._write(struct.pack(">h", -1))
            self.end += self.file_size - self.end % self.file_size
        head = struct.pack(
            ">hqqh", size, message.tags_code, message.store_timestamp, len(message.bit_map)
        )
        self._write(head + message.bit_map)
        self.end += size
        return self.end - size + MIN_LONG

    def _write(self, data: bytes) -> None:
        start = self.end - self.end % self.file_size
        file = self.files.setdefault(start, bytearray(self.file_size))
        file[self.end - start : self.end - start + len(data)] = data

    def cut(self, address: int | None) -> None:
        """Drop everything after the unit at an address, or everything without an address."""
        self.end = 0
        if address is not None:
            offset = address - MIN_LONG
            start = offset - offset % self.file_size
            size = struct.unpack_from(">h", self.files[start], offset - start)[0]
            self.end = offset + size
        self.files = {start: data for start, data in self.files.items() if start < self.end}
        for start, data in self.files.items():
            rest = max(0, start + self.file_size - self.end)
            data[len(data) - rest :] = bytes(rest)


class ModelQueuesWithExt:
    """All queues of an output."""

    def __init__(self, file_size: int, ext_file_size: int) -> None:
        self._file_size = file_size
        self._ext_file_size = ext_file_size
        self._queues: dict[tuple[str, int], ModelQueue] = {}
        self.exts: dict[tuple[str, int], ModelExt] = {}

    def put(self, message: Message, *, with_ext: bool = True) -> None:
        """One message of the log, in log order."""
        key = message.topic, message.queue_id
        queue = self._queues.setdefault(key, ModelQueue(self._file_size))
        tags_code = message.tags_code
        if with_ext and not message.is_light and message.end > queue.max_physic_offset:
            address = self.exts.setdefault(key, ModelExt(self._ext_file_size)).put(message)
            tags_code = address if address <= MAX_ADDRESS else tags_code
        queue.put(message.offset, message.size, tags_code, message.queue_offset)

    def restart(self) -> None:
        """``ConsumeQueue.recover``: drop everything after a queue's last address."""
        for key, ext in self.exts.items():
            units = b"".join(bytes(data) for _, data in sorted(self._queues[key].files.items()))
            codes = [code for _, _, code in UNIT.iter_unpack(units) if code <= MAX_ADDRESS]
            ext.cut(codes[-1] if codes else None)

    def trees(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """Relative file names and contents below ``consumequeue`` and ``consumequeue_ext``."""
        return tuple(  # type: ignore[return-value]
            {
                f"{topic}/{queue_id}/{file_name(start)}": bytes(data)
                for (topic, queue_id), files in queues.items()
                for start, data in files.files.items()
            }
            for queues in (self._queues, self.exts)
        )


def random_log(
    rng: random.Random, count: int, max_width: int, *, drops: bool = True
) -> tuple[PlainLog, list[Message]]:
    """Queue offsets that count up, jump and, with ``drops``, repeat and begin anew; bit maps whose
    size changes."""
    log, messages = PlainLog(8192), []
    weights = (30, 3, 3, 1) if drops else (30, 3, 0, 0)
    keys = [("T", 0), ("T", 1), ("订", 7)][: rng.choice((1, 2, 3))]
    following = {key: rng.choice((0, 0, 3, 23)) for key in keys}
    width, tags = 0, (b"", b"a", b"TagA", "标签".encode())
    for index in range(count):
        topic, queue_id = key = rng.choice(keys)
        step = rng.choices((0, rng.randrange(1, 9), -1, -following[key]), weights)[0]
        queue_offset = max(following[key] + step, 0)
        following[key] = queue_offset + 1
        width = rng.randrange(max_width) if rng.random() < 0.15 else width
        tag, store_timestamp = rng.choice(tags), 1_700_000_000_000 + index * rng.randrange(9)
        offset = log.append(
            topic=topic.encode(),
            queue_id=queue_id,
            queue_offset=queue_offset,
            properties=b"TAGS\x01" + tag + b"\x02" if tag else b"",
            store_timestamp=store_timestamp,
        )
        code = {b"": 0, b"a": 97, b"TagA": 2598919, tags[3]: ord("标") * 31 + ord("签")}[tag]
        messages.append(
            Message(
                topic, queue_id, offset, log.end - offset, queue_offset, code, store_timestamp,
                rng.randbytes(width), rng.random() < 0.1,
            )
        )  # fmt: skip
    return log, messages


def with_details(batch: DispatchBatch, messages: dict[int, Message]) -> DispatchBatch:
    """A batch with what ext units need, ``messages`` by physical offset; its runs are cut where
    the size of bit maps changes."""
    runs = []
    for run in batch.runs:
        found = [messages[int(offset)] for offset in run.units["offset"]]
        first = 0
        for last in range(1, len(run) + 1):
            width = len(found[first].bit_map)
            if last == len(run) or len(found[last].bit_map) != width:
                runs.append(_part(run, found, first, last))
                first = last
    return replace(batch, runs=sorted(runs, key=lambda run: run.first_physical_offset))


def _part(run: Run, messages: list[Message], first: int, last: int) -> Run:
    offsets, part = run.queue_offsets, messages[first:last]
    details = np.zeros(len(part), DETAIL_DTYPE)
    details["store_timestamp"] = [message.store_timestamp for message in part]
    details["is_light"] = [message.is_light for message in part]
    bits = np.frombuffer(b"".join(message.bit_map for message in part), np.uint8)
    return replace(
        run,
        first_physical_offset=part[0].offset,
        first_queue_offset=part[0].queue_offset,
        queue_offsets=None if offsets is None else offsets[first:last],
        units=run.units[first:last],
        last_store_timestamp=part[-1].store_timestamp,
        details=details,
        bit_maps=bits.reshape(len(part), -1) if len(bits) else None,
    )
