"""A store whose log a test wrote, and its output without Spark, held against plain models.

The oracle is made of the plain walk over the log's bytes (``plain_walk``), RocketMQ's rules for
queues and the index one message at a time (``queue_model``, ``index_model``), and the rule that
each byte of the log has an entry, is a BLANK or is listed in the ledger.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reput.store.index.indexfile import index_key_hash, index_keys
from reput.store.log import record
from reput.store.log.record import Record
from reput.store.log.status import Status
from reput.store.runs.placing import MAX_QUEUE_OFFSET
from reput.store.state.watermark import read_watermark
from tests.support import wire
from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree
from tests.support.index_model import Message, ModelIndex
from tests.support.plain_walk import PlainItems, PlainWalk
from tests.support.queue_model import ModelQueues

FILE_SIZE = 4096
QUEUE_FILE_SIZE, SLOTS, ENTRIES = 400, 50, 400
Listed = tuple[int, int, str]
"""Physical offset, its end, and the reason."""
Fronts = Sequence[tuple[int, int]]
"""Physical offset, and where the log began when the messages from there on were dispatched."""
Queue = tuple[str, int]
"""Topic and queue id."""
Emptied = Mapping[Queue, int]
"""Queue -> the physical offset before which all units were removed, for a message that has no unit:
a cut has taken it, or a crash its unit."""
_MAGIC = re.compile(
    b"|".join(re.escape(magic.to_bytes(4, "big")) for magic in (wire.V1_MAGIC, wire.V2_MAGIC))
)


@dataclass(frozen=True)
class Repeat:
    """Messages from ``start`` to ``end`` that came again: one that had been dropped begins its
    queue anew if the log has lost the queue's units since."""

    start: int
    end: int
    watermark: int
    """The watermark at that time: all messages before it had come."""
    front: int
    """Where the log began at that time."""
    ends: Mapping[Queue, int] = field(default_factory=dict)
    """Where a crash has ended it earlier."""


@dataclass
class Expected:
    """The output that a log's bytes stand for, up to an offset."""

    queues: ModelQueues = field(default_factory=lambda: ModelQueues(QUEUE_FILE_SIZE))
    index: ModelIndex = field(default_factory=lambda: ModelIndex(SLOTS, ENTRIES))
    listed: set[Listed] = field(default_factory=set)
    items: PlainItems | None = None
    """The findings of the walk over the log."""


class SmallStore:
    """One log image on disk, and an output that is dispatched from it."""

    def __init__(self, directory: Path, plain: wire.PlainLog) -> None:
        self.plain = plain
        self.output = DerivedOutput(directory / "store", directory / "output")
        plain.write(self.output.store / "commitlog")
        settings = {
            "mappedFileSizeCommitLog": plain.file_size,
            "mappedFileSizeConsumeQueue": QUEUE_FILE_SIZE,
            "maxHashSlotNum": SLOTS,
            "maxIndexNum": ENTRIES,
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.output.store / "broker.conf").write_text(text)

    @property
    def end(self) -> int:
        """The watermark."""
        found = read_watermark(self.output.state)
        assert found is not None
        return found.end_offset

    def ledger(self) -> list[dict[str, Any]]:
        """Every entry of the ledger."""
        path = self.output.state / "quarantine.jsonl"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def listed(self) -> set[Listed]:
        """The ranges of the ledger."""
        return {
            (one["physical_offset"], one["end_physical_offset"], one["reason"])
            for one in self.ledger()
        }

    def topics(self) -> list[str]:
        """The topics with queues, by their directories."""
        root = self.output.root / "consumequeue"
        return sorted(path.name for path in root.iterdir()) if root.is_dir() else []

    def check(
        self,
        *,
        verify: bool = True,
        front: int = 0,
        gone: Sequence[tuple[int, int]] = (),
        shown: Sequence[tuple[int, int]] = (),
        fronts: Fronts = (),
        emptied: Emptied | None = None,
        repeats: Sequence[Repeat] = (),
        is_all: bool = True,
    ) -> Expected:
        """Assert that the output is what the log's bytes stand for up to the watermark, and with
        ``is_all`` that no whole record is left; return that. ``front`` is where the log begins now,
        ``gone`` was removed before it was durably dispatched, ``shown`` are ends of that which
        readers had been shown, ``fronts`` are where it began before, ``emptied`` are queues that
        began anew with messages that were cut, and ``repeats`` are batches that came again."""
        end = self.end
        expected = expected_of(self.plain, end, gone, shown, fronts, emptied, repeats)
        here, queues = tree(self.output.root / "consumequeue"), expected.queues.tree()
        # a crash may come after a queue was removed, and before it begins anew
        kept = here.keys() | of_messages(queues, front)
        assert here == {name: data for name, data in queues.items() if name in kept}
        listed = self.listed()
        if front > self.plain.start:
            # a start that cannot read a queue's last message lists a jump again that still stands
            listed -= {one for one in listed - expected.listed if one[2] == "queue_offset_gap"}
        assert listed == expected.listed
        index = self.output.index()
        if len(index) > len(expected.index.files) and not index[-1].entries:
            # a batch that a crash ended may have asked for it
            index.pop()
        if index and expected.index.files and index[-1].end_phy_offset < front:
            # the header is not synced, and its message may be gone: its entry counts seconds
            index[-1].end_timestamp = expected.index.files[-1].end_timestamp
        assert index == expected.index.files
        assert not is_all or later_boundary(self.plain, end) is None
        # where a log has lost its front, reput verify finds each first place by counting entries,
        # and errs in small queues with odd queue offsets
        if verify and max(front, self.plain.start) == 0:
            assert self.output.verify().differences == ()
        return expected

    def lost(self, sound: wire.PlainLog, expected: Expected) -> list[int]:
        """Messages whose bytes are as they were before the damage, and which have neither a unit
        nor their bytes in listed ranges and other records, up to the watermark; ``expected`` is
        the answer of ``check``."""
        units = {
            wire.UNIT.unpack_from(data, at)[0]
            for data in tree(self.output.root / "consumequeue").values()
            for at in range(0, len(data), wire.UNIT.size)
        }
        walk, end = PlainWalk(self.plain), self.end
        taken = [(low, high) for low, high, _ in self.listed()]
        items = expected.items
        assert items is not None
        # in the place of a record eight bytes may say that the file ends there
        starts = {start for start, _ in sound.spans}
        taken += [(at, walk.file_end(at)) for at in items.blanks if at in starts]
        for start in items.records:
            found = walk.at(start)
            assert isinstance(found, Record)
            if start in units or not found.dispatched_to_queue:
                taken.append((start, start + found.total_size))
        taken.sort()
        return [
            span[0]
            for span in sound.spans
            if span[1] <= end
            and sound.bytes_at(span) == self.plain.bytes_at(span)
            and not _is_covered(*span, taken)
        ]


def _is_covered(start: int, end: int, ranges: list[tuple[int, int]]) -> bool:
    for low, high in ranges:
        if low <= start < high:
            start = high
    return start >= end


def of_messages(files: Mapping[str, bytes], first: int) -> dict[str, bytes]:
    """The files of queues with a message at or beyond ``first``, where the log begins."""
    present = {
        Path(name).parent
        for name, data in files.items()
        if any(offset >= first for offset, _, _ in wire.UNIT.iter_unpack(data))
    }
    return {name: data for name, data in files.items() if Path(name).parent in present}


def is_directory_name(topic: bytes) -> bool:
    """Whether a topic may be a directory (ARCHITECTURE.md), said once more."""
    try:
        text = topic.decode()
    except UnicodeDecodeError:
        return False
    controls = {chr(code) for code in (*range(32), *range(127, 160))}
    return (
        0 < len(topic) < 256
        and text not in {".", ".."}
        and not controls & set(text) | ({"/", "\\"} & set(text))
    )


def _index(expected: Expected, found: Record) -> None:
    start, end = found.physical_offset, found.physical_offset + found.total_size
    hashes = tuple(index_key_hash(key) for key in index_keys(found))
    expected.index.build_index(Message(start, end, found.store_timestamp, hashes))


def _dispatched(expected: Expected, found: Record, log_min: int) -> None:
    start, end = found.physical_offset, found.physical_offset + found.total_size
    if _has_queue(found):
        _put(expected, found, log_min)
    elif not found.dispatched_to_queue:
        return
    elif found.queue_id < 0 or not is_directory_name(found.topic):
        reason = "queue_id" if found.queue_id < 0 else "topic_name"
        expected.listed.add((start, end, reason))
    else:
        expected.listed.add((start, end, "queue_offset_out_of_range"))


def _has_queue(found: Record) -> bool:
    return (
        found.dispatched_to_queue
        and found.queue_id >= 0
        and is_directory_name(found.topic)
        and 0 <= found.queue_offset < MAX_QUEUE_OFFSET
    )


def _put(expected: Expected, found: Record, log_min: int) -> None:
    tags_code = record.tags_code(found, record.DEFAULT_DELAY_LEVELS_MS)
    expected.queues.put(
        found.topic.decode(), found.queue_id, found.physical_offset, found.total_size, tags_code,
        found.queue_offset, log_min,
    )  # fmt: skip


def _dispatch_again(expected: Expected, dispatched: Sequence[Record], repeat: Repeat) -> None:
    for found in dispatched:
        start, key = found.physical_offset, (found.topic.decode(errors="replace"), found.queue_id)
        end = repeat.ends.get(key, repeat.end)
        if repeat.start <= start < end and _has_queue(found):
            _put(expected, found, repeat.front)


def expected_of(
    plain: wire.PlainLog,
    end: int,
    gone: Sequence[tuple[int, int]] = (),
    shown: Sequence[tuple[int, int]] = (),
    fronts: Fronts = (),
    emptied: Emptied | None = None,
    repeats: Sequence[Repeat] = (),
) -> Expected:
    """The output of the log's bytes before ``end``, but for ranges that were ``gone``: of the
    ends of these that readers had been ``shown``, the units stay, and the ledger lists no more than
    the range."""
    lost = lost_of(gone, shown)
    began = sorted([*fronts, *((high, high) for _, high in lost)])
    expected, walk = Expected(ModelQueues(QUEUE_FILE_SIZE, emptied=emptied)), PlainWalk(plain)
    items = expected.items = walk.items(plain.start, end)
    sizes = {}
    dispatched: list[Record] = []
    coming = deque(repeats)
    for start in items.records:
        if _is_within(start, lost):
            continue
        while coming and coming[0].watermark <= start:
            _dispatch_again(expected, dispatched, coming.popleft())
        found = walk.at(start)
        assert isinstance(found, Record)
        dispatched.append(found)
        sizes[start] = found.total_size
        log_min = max((front for at, front in began if at <= start), default=0)
        if not _is_within(start, gone):
            _index(expected, found)
        _dispatched(expected, found, log_min)
    for repeat in coming:
        _dispatch_again(expected, dispatched, repeat)
    expected.listed |= {(bad.start, bad.end, bad.status.name.lower()) for bad in items.bad}
    for reason, offsets in (
        ("queue_offset_seen_before", expected.queues.dropped()),
        ("queue_offset_gap", expected.queues.gaps()),
    ):
        expected.listed |= {(start, start + sizes[start], reason) for start in offsets}
    expected.listed = {one for one in expected.listed if not _is_within(one[0], gone)}
    expected.listed |= {(*one, "segment_deleted") for one in gone}
    return expected


def lost_of(
    gone: Sequence[tuple[int, int]], shown: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the ranges that were ``gone`` without the ends of them that readers were ``shown``."""
    ends = {high: low for low, high in shown}
    return [(low, end) for low, high in gone if low < (end := ends.get(high, high))]


def _is_within(offset: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(low <= offset < high for low, high in ranges)


def later_boundary(plain: wire.PlainLog, end: int) -> int | None:
    """A whole record beyond the log's sealed end, which nothing would dispatch; None without one.

    One record right at the end may wait there: its body's CRC is wrong, or its text ends in zeros.
    """
    walk = PlainWalk(plain)
    found = walk.at(end) if end < plain.start + len(plain.image) else Status.EMPTY
    if isinstance(found, Record):
        is_whole = record.body_crc_is_right(found)
        if is_whole and not found.topic.endswith(b"\0") and not found.properties.endswith(b"\0"):
            return end
        end += found.total_size
    if found is Status.BAD_PROPERTY:
        end += walk.stated_size(end)
    return next(_boundaries(plain, walk, end), None)


def _boundaries(plain: wire.PlainLog, walk: PlainWalk, start: int) -> Iterator[int]:
    for found in _MAGIC.finditer(bytes(plain.image), start - plain.start):
        at = plain.start + found.start() - 4
        if at >= start and walk.is_boundary(at, walk.file_end(at)):
            yield at
