"""The soak's log: a function of a seed alone, message by message, with something for every index.

Since nothing depends on time, an appender that was killed writes the same bytes again, and the end
of a soak knows each message without reading the log.
"""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path

from tests.support import wire

FILE_SIZE = 512 << 10
SLOTS, ENTRIES = 5_000, 20_000
QUEUE_FILE_SIZE, EXT_FILE_SIZE, BATCH_FILE_SIZE = 40_000, 40_000, 46_000
SETTINGS = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": QUEUE_FILE_SIZE,
    "mappedFileSizeConsumeQueueExt": EXT_FILE_SIZE,
    "mapperFileSizeBatchConsumeQueue": BATCH_FILE_SIZE,
    "maxHashSlotNum": SLOTS,
    "maxIndexNum": ENTRIES,
    "enableMultiDispatch": "true",
    "enableConsumeQueueExt": "true",
}
BATCH_TOPIC, LIGHT_TOPIC = b"Batch", b"Light"
TOPICS = (b"A", b"A", b"B", BATCH_TOPIC)
QUEUES = 3
PREPARED = 4
INNER_BATCH = 1 << 7
DAMAGED_MAGIC = 0x0BADF00D
DAMAGED_SHARE = 0.0005
"""Share of all messages; two may come one after the other."""


def write_settings(store: Path) -> None:
    """Make a store without a log."""
    (store / "config").mkdir(parents=True)
    (store / "commitlog").mkdir()
    conf = "".join(f"{name}={value}\n" for name, value in SETTINGS.items())
    (store / "broker.conf").write_text(conf)
    attributes = {"attributes": {"queue.type": "BatchCQ"}}
    topics = {"topicConfigTable": {BATCH_TOPIC.decode(): attributes}}
    (store / "config" / "topics.json").write_text(json.dumps(topics))


@dataclass(frozen=True, slots=True)
class Made:
    """One record, and the BLANK that a file ended with before it."""

    offset: int
    data: bytes
    topic: bytes
    queue_id: int
    queue_offset: int
    store_timestamp: int
    body: bytes
    tag: bytes
    keys: tuple[bytes, ...]
    """All of them, in the order in which they are indexed."""
    inner: int
    """Messages in it."""
    light_offset: int | None
    """Its offset in the light queue of its queue id; None where it goes into none."""
    is_prepared: bool
    is_damaged: bool
    blank: bytes
    blank_at: int

    @property
    def end(self) -> int:
        """The physical offset after it."""
        return self.offset + len(self.data)


class MadeLog:
    """Makes one record after the other; picklable between two of them."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.number = 0
        self.end = 0
        self._offsets: dict[tuple[bytes, int], int] = {}

    def next(self) -> Made:
        """The next record."""
        rng, self.number = self._rng, self.number + 1
        topic, queue_id = rng.choice(TOPICS), rng.randrange(QUEUES)
        key = b"%09d" % self.number
        keys, tag, inner, sys_flag = [b"u" + key], b"", 1, 0
        block = b"UNIQ_KEY\x01u" + key + b"\x02"
        if rng.random() < 0.8:
            keys += [b"k" + key, b"shared%d" % rng.randrange(50)][: rng.randrange(1, 3)]
            block += b"KEYS\x01" + b" ".join(keys[1:]) + b"\x02"
        is_prepared, light_offset = False, None
        if topic != BATCH_TOPIC:
            tag = b"Tag%d" % rng.randrange(4)
            block += b"TAGS\x01" + tag + b"\x02"
            is_prepared = rng.random() < 0.03
            sys_flag = PREPARED if is_prepared else 0
        elif rng.random() < 0.3:
            inner, sys_flag = rng.randrange(2, 6), INNER_BATCH
        queue_offset = 0 if is_prepared else self._take((topic, queue_id), inner)
        if inner > 1:
            block += b"INNER_NUM\x01%d\x02INNER_BASE\x01%d\x02" % (inner, queue_offset)
        if topic == b"B" and not is_prepared:
            if rng.random() < 0.2:
                light_offset = self._take((LIGHT_TOPIC, queue_id), 1)
                block += b"INNER_MULTI_DISPATCH\x01Light\x02"
                block += b"INNER_MULTI_QUEUE_OFFSET\x01%d\x02" % light_offset
            if rng.random() < 0.002:
                self._take((topic, queue_id), 3)  # the next one jumps
        return self._placed(
            topic=topic, queue_id=queue_id, queue_offset=queue_offset, tag=tag, keys=tuple(keys),
            inner=inner, light_offset=light_offset, is_prepared=is_prepared, block=block,
            sys_flag=sys_flag,
        )  # fmt: skip

    def _take(self, queue: tuple[bytes, int], count: int) -> int:
        found = self._offsets.get(queue, 0)
        self._offsets[queue] = found + count
        return found

    def _placed(
        self, *, topic: bytes, queue_id: int, queue_offset: int, tag: bytes,
        keys: tuple[bytes, ...], inner: int, light_offset: int | None, is_prepared: bool,
        block: bytes, sys_flag: int,
    ) -> Made:  # fmt: skip
        rng = self._rng
        body = rng.randbytes(rng.choice((0, 20, 100, 100, 200, 900)))
        store_timestamp = 1_700_000_000_000 + 7 * self.number
        is_damaged = rng.random() < DAMAGED_SHARE
        blank, blank_at = b"", self.end

        def encode(offset: int) -> bytes:
            return wire.message(
                offset, topic=topic, body=body, properties=block, queue_id=queue_id,
                queue_offset=queue_offset, sys_flag=sys_flag, store_timestamp=store_timestamp,
            )  # fmt: skip

        room = FILE_SIZE - self.end % FILE_SIZE
        data = encode(self.end)
        if len(data) + 8 > room:
            blank = struct.pack(">iI", room, wire.BLANK_MAGIC)
            self.end += room
            data = encode(self.end)
        if is_damaged:
            data = data[:4] + struct.pack(">I", DAMAGED_MAGIC) + data[8:]
        offset, self.end = self.end, self.end + len(data)
        return Made(
            offset, data, topic, queue_id, queue_offset, store_timestamp, body, tag, keys, inner,
            light_offset, is_prepared, is_damaged, blank, blank_at,
        )  # fmt: skip
