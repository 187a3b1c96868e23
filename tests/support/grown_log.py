"""The log of a broker in small files, with messages for every kind of index, cut now and then."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

from tests.support.wire import BLANK_MAGIC, PlainLog, file_name, write_over

FILE_SIZE = 4096
SETTINGS = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 100,
    "mappedFileSizeConsumeQueueExt": 400,
    "mapperFileSizeBatchConsumeQueue": 460,
    "maxHashSlotNum": 7,
    "maxIndexNum": 20,
    "enableMultiDispatch": "true",
    "enableAcceleratedRecovery": "true",
}
BATCH_TOPIC = b"Batch"
TOPICS = (b"A", b"B", BATCH_TOPIC)
PREPARED = 4


class GrownLog:
    """The log of a broker that is cut now and then; a clock that only goes forward."""

    def __init__(self, root: Path, rng: random.Random, *, ext: bool) -> None:
        self.root = root
        self.plain = PlainLog(FILE_SIZE)
        self._rng = rng
        self._now = 1_700_000_000_000
        self._number = 0
        self.queues: list[dict[tuple[bytes, int], int]] = []
        """The queues that each record goes into, with its offsets there."""
        (root / "config").mkdir(parents=True)
        settings = {**SETTINGS, "enableConsumeQueueExt": str(ext).lower()}
        conf = "".join(f"{name}={value}\n" for name, value in settings.items())
        (root / "broker.conf").write_text(conf)
        attributes = {"attributes": {"queue.type": "BatchCQ"}}
        topics_json = {"topicConfigTable": {BATCH_TOPIC.decode(): attributes}}
        (root / "config" / "topics.json").write_text(json.dumps(topics_json))

    def grow(self, messages: int, *, alike: bool = False, keys: int = 1) -> None:
        """Append; ``alike``: of one queue and size, told apart by keys and bodies alone. ``keys``
        are those of each message besides its unique key."""
        for _ in range(messages):
            self._now += 1000
            self._number += 1
            self._append(b"%06d" % self._number, alike, keys)
        self.write()

    def _append(self, key: bytes, alike: bool, keys: int) -> None:
        rng = self._rng
        queue = (rng.choice(TOPICS), rng.randrange(2))
        body, sys_flag = rng.randbytes(rng.randrange(30)), 0
        more = b"".join(b" k%d" % number for number in range(1, keys))
        properties = b"UNIQ_KEY\x01" + key + b"\x02KEYS\x01k" + key + more + b"\x02"
        light, offset = None, 0
        if alike:
            queue, body = (TOPICS[0], 0), key
        elif queue[0] != BATCH_TOPIC:
            properties += b"TAGS\x01Tag%d\x02" % rng.randrange(3)
            sys_flag = PREPARED if rng.random() < 0.1 else 0
            if not sys_flag and rng.random() < 0.2:
                light = (b"Light", queue[1])
                offset = self._next_offset(light)
                properties += b"INNER_MULTI_DISPATCH\x01Light\x02"
                properties += b"INNER_MULTI_QUEUE_OFFSET\x01%d\x02" % offset
        queue_offset = 0 if sys_flag else self._next_offset(queue)
        if queue[0] == b"B" and not alike and not sys_flag and rng.random() < 0.3:
            queue_offset += 3  # a gap, which the ledger lists
        self.plain.append(
            topic=queue[0], queue_id=queue[1], body=body, sys_flag=sys_flag, properties=properties,
            queue_offset=queue_offset, store_timestamp=self._now,
        )  # fmt: skip
        queues = {} if sys_flag else {queue: queue_offset}
        self.queues.append(queues if light is None else {**queues, light: offset})

    def _next_offset(self, queue: tuple[bytes, int]) -> int:
        return max((queues[queue] + 1 for queues in self.queues if queue in queues), default=0)

    def cut(self, kept: int) -> None:
        """Lose all records but the first ones, as a broker that starts again sees to it."""
        self.plain.cut(self.plain.spans[kept - 1][1] if kept else 0)
        del self.queues[kept:]
        self.write()

    def break_off(self, how: str, kept: int) -> None:
        """Keep the first records alone: "torn" in the middle of the next one, "cut", "cut and
        grown" or "cut and grown beyond" the old end."""
        if how == "torn":
            self.tear(kept)
            return
        missing = len(self.plain.spans) - kept
        self.cut(kept)
        if how == "cut and grown":
            self.grow(3)
        if how == "cut and grown beyond":
            self.grow(missing + 5)

    def begin_again(self) -> None:
        """Go on in a new file, with a message of a queue of its own; all other queue offsets begin
        again, as where a broker has removed the queues."""
        room = FILE_SIZE - self.plain.end % FILE_SIZE
        self.plain.put(self.plain.end, struct.pack(">iI", room, BLANK_MAGIC))
        self.plain.end += room
        self._now += 1000
        self.plain.append(
            topic=b"Other", queue_id=0, queue_offset=0, body=b"", store_timestamp=self._now
        )
        self.queues = [{} for _ in self.plain.spans]
        self.write()

    def tear(self, kept: int) -> None:
        """Lose all but the first records and half of the next one; no broker has looked yet."""
        start, end = self.plain.spans[kept]
        half = self.plain.bytes_at((start, (start + end) // 2))
        self.cut(kept)
        self.plain.put(start, half)
        self.write()

    def back(self, seconds: int) -> None:
        """The clock is put back."""
        self._now -= seconds * 1000

    def write(self) -> None:
        """In place, as a broker does: somebody may be reading, and full files stay untouched."""
        directory, image = self.root / "commitlog", self.plain.image
        directory.mkdir(exist_ok=True)
        for path in directory.iterdir():
            if int(path.name) >= len(image):
                path.unlink()
        for at in range(0, len(image), FILE_SIZE):
            write_over(directory / file_name(at), image[at : at + FILE_SIZE])

    def units_of(self, kept: int) -> int:
        """Units that all but the first records have."""
        return sum(map(len, self.queues[kept:]))
