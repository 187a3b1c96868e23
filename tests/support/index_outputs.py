"""An index output as the streaming query drives it, without Spark: messages become batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from reput.sinks.index.indexfile import IndexFileWriter
from reput.store.index.indexfile import IndexLayout
from reput.store.log.commitlog import CommitLog
from reput.store.runs.dispatch import DispatchBatch, IndexEntries
from tests.support.index_model import (
    Content,
    Message,
    ModelIndex,
    key_with_hash,
    read_content,
)
from tests.support.wire import PlainLog


def entries_of(messages: Sequence[Message]) -> IndexEntries:
    """The entries of one chunk."""
    flat = [(m.offset, key_hash, m.store_timestamp) for m in messages for key_hash in m.hashes]
    offsets, hashes, times = zip(*flat, strict=True) if flat else ((), (), ())
    return IndexEntries(
        messages[0].offset,
        np.array(offsets, np.int64),
        np.array(hashes, np.int32),
        np.array(times, np.int64),
    )


def batch_of(messages: Sequence[Message], rng: random.Random | None = None) -> DispatchBatch:
    """One batch, in one chunk or in random ones."""
    cuts = {0, len(messages)}
    if rng:
        cuts |= {rng.randrange(len(messages)) for _ in range(rng.choice((0, 1, 3)))}
    bounds = sorted(cuts)
    return DispatchBatch(
        start=messages[0].offset,
        end=messages[-1].end,
        runs=(),
        bad=(),
        message_count=len(messages),
        last_record_offset=messages[-1].offset,
        index_entries=[entries_of(messages[low:high]) for low, high in pairwise(bounds)],
    )


@dataclass(frozen=True)
class IndexLog:
    """A commitlog on disk and what the index wants of its messages."""

    directory: Path
    messages: Sequence[Message]


def write_log(
    directory: Path, wanted: Sequence[tuple[int, Sequence[int]]], start: int = 0
) -> IndexLog:
    """A log of messages with (store time, key hashes), some PREPARED, some with a unique key."""
    plain = PlainLog(1024, start)
    messages = []
    for number, (time, hashes) in enumerate(wanted):
        keys = [key_with_hash(key_hash) for key_hash in hashes]
        block = b"TAGS\x01a\x02"
        if keys and number % 3 == 0:
            block += b"UNIQ_KEY\x01" + keys.pop(0) + b"\x02"
        block += b"KEYS\x01" + b" ".join(keys) + b"\x02"
        sys_flag = (0, 4, 8, 0, 12)[number % 5] if not hashes else (0, 4, 8)[number % 3]
        if sys_flag == 12:
            block += b"UNIQ_KEY\x01rolled back\x02"
        offset = plain.append(topic=b"T", properties=block, store_timestamp=time, sys_flag=sys_flag)
        messages.append(Message(offset, plain.end, time, tuple(hashes)))
    return IndexLog(plain.write(directory), messages)


def random_log(
    directory: Path, rng: random.Random, count: int, *, sound_clock: bool = False
) -> IndexLog:
    """Few key hashes, so that they meet; clocks that jump, stand still and run backwards."""
    hashes = [0, 1, 2, 2147483647, *(rng.randrange(1 << 31) for _ in range(6))]
    wanted = []
    time = rng.choice((0, 1, 1_700_000_000_000)) + sound_clock
    for _ in range(count):
        wanted.append((time, rng.choices(hashes, k=rng.choice((0, 0, 1, 1, 2, 3, 12)))))
        steps = (0, 1, 400, 1000, 61_000) if sound_clock else (0, 999, 1001, -1500, 1 << 43, -5)
        time += rng.choice(steps)
    return write_log(directory, wanted, rng.choice((0, 0, 1 << 40)))


class IndexOutput:
    """Messages, and the outputs that runs of a dispatcher make of them."""

    def __init__(self, root: Path, layout: IndexLayout, source: IndexLog) -> None:
        self.root = root
        self.layout = layout
        self.messages = source.messages
        self.log = CommitLog([source.directory])

    def writer(self, durable_end: int | None) -> IndexFileWriter:
        """A new run, as after a start."""
        return IndexFileWriter(self.root, self.layout, self.log, durable_end=durable_end)

    def paths(self) -> list[Path]:
        """The index files, oldest first."""
        directory = self.root / "index"
        return sorted(directory.iterdir()) if directory.is_dir() else []

    def contents(self) -> list[Content]:
        """Their contents."""
        sizes = self.layout.max_hash_slot_num, self.layout.max_index_num
        return [read_content(path, *sizes) for path in self.paths()]

    def model(self, count: int | None = None) -> list[Content]:
        """The index that the first ``count`` messages make."""
        model = ModelIndex(self.layout.max_hash_slot_num, self.layout.max_index_num)
        for message in self.messages[:count]:
            model.build_index(message)
        return model.files
