"""An index output as the streaming query drives it, without Spark: messages to batches, restarts,
and what a power cut may leave of the files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from sinks.index import IndexDispatcher
from store.dispatch import DispatchBatch, IndexEntries
from store.indexfile import IndexLayout
from tests.support.index_model import Content, Message, ModelIndex, read_content


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


class IndexOutput:
    """Messages, and the outputs that runs of a dispatcher make of them."""

    def __init__(self, root: Path, layout: IndexLayout, messages: Sequence[Message]) -> None:
        self.root = root
        self.layout = layout
        self.messages = messages
        self._times = {message.offset: message.store_timestamp for message in messages}

    def dispatcher(self, durable_end: int | None) -> IndexDispatcher:
        """A new run, as after a start."""
        return IndexDispatcher(
            self.root,
            self.layout,
            durable_end=durable_end,
            store_timestamp_at=self._times.get,
        )

    def forget_times(self) -> None:
        """The log has none of the messages any more."""
        self._times.clear()

    def paths(self) -> list[Path]:
        """The index files, oldest first."""
        directory = self.root / "index"
        return sorted(directory.iterdir()) if directory.is_dir() else []

    def contents(self) -> list[Content]:
        """What they hold."""
        sizes = self.layout.max_hash_slot_num, self.layout.max_index_num
        return [read_content(path, *sizes) for path in self.paths()]

    def model(self, count: int | None = None) -> list[Content]:
        """What the first ``count`` messages make."""
        model = ModelIndex(self.layout.max_hash_slot_num, self.layout.max_index_num)
        for message in self.messages[:count]:
            model.build_index(message)
        return model.files

    def lose_power(self, rng: random.Random, durable_count: int) -> None:
        """Anything may stand where it was not synced: random bytes, zeros, or what was written.

        Durable are the entries of the first ``durable_count`` messages, and all of a file behind
        which such an entry stands.
        """
        durable = sum(len(message.hashes) for message in self.messages[:durable_count])
        capacity = self.layout.max_index_num - 1
        for number, path in enumerate(self.paths()):
            here = durable - number * capacity
            if here > capacity:
                continue
            data = bytearray(path.read_bytes())
            first, last = map(self.layout.entry_position, (1, 1 + max(here, 0)))
            kept = bytes(data[first:last])
            at = 0
            while at < len(data):
                size = min(rng.choice((40, 64, 512, 4096)), len(data) - at)
                kind = rng.randrange(3)
                if kind < 2:
                    data[at : at + size] = rng.randbytes(size) if kind else bytes(size)
                at += size
            data[first:last] = kept
            path.write_bytes(data)
