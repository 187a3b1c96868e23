"""An output as the streaming query drives it, without Spark: dispatch, sync, ledger, watermark."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from reput.checkpoints.watermark import WatermarkFile
from reput.sinks.index.consumequeue import ConsumeQueueWriter
from reput.store import fsops
from reput.store.config import OnQueueGap
from reput.store.files import LEDGER_FILE
from reput.store.log import record
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from reput.store.queue.consumequeue import QueueKey, topic_directory
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts
from reput.store.runs.scan import scan_in_one_piece
from reput.store.state.ledger import Ledger
from reput.store.state.watermark import Watermark, read_watermark
from tests.support.ext_model import Message, with_details
from tests.support.golden import tree
from tests.support.queue_model import ModelQueues
from tests.support.wire import PlainLog

STORE_ID = "0" * 32


@dataclass
class Setup:
    """The parts of an output; they survive restarts."""

    log: CommitLog
    root: Path
    file_size: int
    queue_offsets: dict[int, int]
    """Queue offset of the record at each physical offset."""
    levels_ms: tuple[int, ...] = record.DEFAULT_DELAY_LEVELS_MS
    on_queue_gap: OnQueueGap = OnQueueGap.ROCKETMQ
    ext_file_size: int | None = None
    messages: dict[int, Message] = field(default_factory=dict)
    """By physical offset; for ext units alone."""

    @property
    def state(self) -> Path:
        """The output's state directory."""
        return self.root / "reput"

    def count_units(self, queue: QueueKey, offset: int, size: int) -> int:
        """How many units of a queue the record there has, of which none is a light queue's."""
        found = self.log.record_at(offset, size)
        return int(
            isinstance(found, Record)
            and (topic_directory(found.topic), found.queue_id) == (queue.topic, queue.queue_id)
        )

    def batch(self, start: int, end: int) -> DispatchBatch:
        """The batch of a range that begins and ends at records."""
        batch = scan_in_one_piece(
            self.log, start, end, delay_levels_ms=self.levels_ms, verify_crc=False
        )
        assert batch is not None
        return batch if self.ext_file_size is None else with_details(batch, self.messages)

    def queues(self) -> dict[str, bytes]:
        """Every consume queue file."""
        return tree(self.root / "consumequeue")

    def exts(self) -> dict[str, bytes]:
        """Every ext file."""
        return tree(self.root / "consumequeue_ext")

    def ledger_lines(self) -> list[dict[str, object]]:
        """Every ledger entry, in the order of the log."""
        path = self.state / LEDGER_FILE
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        found: list[dict[str, object]] = [json.loads(line) for line in lines]
        return sorted(found, key=lambda entry: (str(entry["reason"]), entry["physical_offset"]))

    def ledger(self, reason: str) -> list[object]:
        """Physical offsets that the ledger lists for one reason."""
        return [e["physical_offset"] for e in self.ledger_lines() if e["reason"] == reason]


class Output:
    """One run of a dispatcher over an output; the next one is a restart."""

    def __init__(self, setup: Setup, *, adopt: bool = False, cut_short: bool = False) -> None:
        self.setup = setup
        fsops.make_directories(setup.state, setup.root)
        self.ledger = Ledger(setup.state)
        found = read_watermark(setup.state)
        self.position = found.end_offset if found else setup.log.min_offset
        self.writer = ConsumeQueueWriter(
            setup.root,
            setup.file_size,
            self.ledger,
            durable_end=None if adopt else self.position,
            queue_offset_at=lambda _, offset, __: setup.queue_offsets.get(offset),
            count_units=setup.count_units,
            on_queue_gap=setup.on_queue_gap,
            ext_file_size=setup.ext_file_size,
        )
        if cut_short:
            # the last run may have left anything beyond the watermark
            self.writer.truncate(self.position)
        self.watermark = WatermarkFile(setup.state)

    def run(self, end: int, start: int | None = None) -> DispatchCounts:
        """Dispatch up to ``end`` and make it durable."""
        counts = self.dispatch(end, start)
        self.commit(end)
        return counts

    def dispatch(self, end: int, start: int | None = None) -> DispatchCounts:
        """Dispatch from the position, or from ``start``; nothing is durable yet."""
        begin = self.position if start is None else start
        return self.writer.write(self.setup.batch(begin, end))

    def commit(self, end: int) -> None:
        """Sync in the order of ARCHITECTURE.md."""
        self.writer.sync()
        self.ledger.sync()
        if end > self.position:
            self.watermark.advance(Watermark(STORE_ID, end))
            self.position = end

    def close(self) -> None:
        """Let go of everything, as the end of a process does."""
        self.writer.sync()
        self.watermark.close()


class QueueLog:
    """A log made of chosen queue offsets, and the model that saw the same messages."""

    def __init__(self, file_size: int, *, blank_gaps: bool = False, start: int = 0) -> None:
        self.plain = PlainLog(8192, start)
        self.model = ModelQueues(file_size, blank_gaps=blank_gaps)
        self.queue_offsets: dict[int, int] = {}

    def append(self, queue_offset: int, queue_id: int = 0, topic: str = "T") -> int:
        """One message; its physical offset."""
        offset = self.plain.append(
            topic=topic.encode(), queue_id=queue_id, queue_offset=queue_offset, body=b"b" * 5
        )
        start, end = self.plain.spans[-1]
        self.model.put(topic, queue_id, offset, end - start, 0, queue_offset)
        self.queue_offsets[offset] = queue_offset
        return offset

    def setup(self, directory: Path, file_size: int, gap: OnQueueGap | None = None) -> Setup:
        """The log on disk and an output beside it."""
        log = CommitLog([self.plain.write(directory / "commitlog")])
        return Setup(
            log,
            directory / "output",
            file_size,
            self.queue_offsets,
            on_queue_gap=gap or OnQueueGap.ROCKETMQ,
        )

    def borders(self) -> list[int]:
        """Offsets at which a batch may begin or end: record starts, and the end."""
        return [*(start for start, _ in self.plain.spans), self.plain.end]


def random_queue_offsets(
    rng: random.Random, log: QueueLog, messages: int, *, forward: bool = False
) -> None:
    """Queue offsets that count up, jump and, if not only forward, repeat, go back, begin anew."""
    keys = [("T", 0), ("T", 1), ("订", 7)][: rng.choice((1, 2, 3))]
    following = {key: rng.choice((0, 0, 1, 4, 5, 23, 1 << 40)) for key in keys}
    for _ in range(messages):
        key = rng.choice(keys)
        weights = (30, 3, 0, 0, 0) if forward else (30, 3, 2, 2, 1)
        step = rng.choices(("next", "jump", "repeat", "back", "zero"), weights)[0]
        queue_offset = {
            "next": following[key],
            "jump": following[key] + rng.randrange(1, 12),
            "repeat": max(following[key] - 1, 1),
            "back": max(following[key] - rng.randrange(2, 9), 1),
            "zero": 0,
        }[step]
        log.append(queue_offset, key[1], key[0])
        following[key] = queue_offset + 1
