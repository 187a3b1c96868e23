"""Compares a soak's end with a fault-free build's bytes, and with plain models' of the made log.

The models know the log's messages from the seed, and RocketMQ's rules from docs/formats.md. The
log itself must be what was made, since nobody but the appender may write it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable

from reput.store.index.indexfile import index_key_hash
from reput.store.log import java
from tests.soak.consumer import Queue
from tests.soak.madelog import (
    BATCH_FILE_SIZE,
    BATCH_TOPIC,
    ENTRIES,
    EXT_FILE_SIZE,
    LIGHT_TOPIC,
    QUEUE_FILE_SIZE,
    SLOTS,
    Made,
    MadeLog,
)
from tests.soak.site import Site
from tests.support.batch_queue import BatchMessage, ModelBatchQueue, model_tree
from tests.support.ext_model import Message, ModelQueuesWithExt
from tests.support.golden import tree
from tests.support.index_model import Content, ModelIndex, read_content
from tests.support.index_model import Message as Indexed

Row = tuple[int, str | None, int | None, int | None, int | None, str | None]
"""Physical offset, topic, queue id, queue offset, CRC-32 of the body, and why it is damaged."""


@dataclass
class Expected:
    """Everything that the first messages of a made log stand for."""

    end: int = 0
    messages: int = 0
    queues: ModelQueuesWithExt = field(
        default_factory=lambda: ModelQueuesWithExt(QUEUE_FILE_SIZE, EXT_FILE_SIZE)
    )
    batches: dict[tuple[str, int], ModelBatchQueue] = field(default_factory=dict)
    index: ModelIndex = field(default_factory=lambda: ModelIndex(SLOTS, ENTRIES))
    units: dict[Queue, list[tuple[int, int]]] = field(default_factory=dict)
    """The messages that a consumer gets of each queue: (physical offset, CRC-32 of the record)."""
    rows: list[Row] = field(default_factory=list)
    damaged: set[tuple[int, int]] = field(default_factory=set)
    """[start, end) of damaged records, of those that follow each other in one range."""
    jumps: set[int] = field(default_factory=set)
    """Physical offsets of the messages before which queue offsets jump."""
    displaced: set[tuple[int, str]] = field(default_factory=set)
    """(physical offset, detail) of messages whose queue offset is not their position."""
    _following: dict[Queue, int] = field(default_factory=dict)
    _positions: dict[Queue, int] = field(default_factory=dict)

    def add(self, made: Made) -> None:
        """The next message."""
        self.end, self.messages = made.end, self.messages + 1
        if made.is_damaged:
            self._add_damaged(made)
            return
        topic = made.topic.decode()
        if not made.is_prepared:
            self.rows.append(
                (made.offset, topic, made.queue_id, made.queue_offset, zlib.crc32(made.body), None)
            )
        keys = [made.topic + b"#" + key for key in made.keys]
        hashes = tuple(index_key_hash(key) for key in keys)
        self.index.build_index(Indexed(made.offset, made.end, made.store_timestamp, hashes))
        if made.is_prepared:
            return
        if made.topic == BATCH_TOPIC:
            message = BatchMessage(
                made.offset, len(made.data), 0, made.store_timestamp, made.queue_offset, made.inner
            )
            queue = self.batches.setdefault(
                (topic, made.queue_id), ModelBatchQueue(BATCH_FILE_SIZE)
            )
            queue.put(message)
            return
        self._put(made, topic, made.queue_offset, is_light=False)
        if made.light_offset is not None:
            self._put(made, LIGHT_TOPIC.decode(), made.light_offset, is_light=True)

    def _add_damaged(self, made: Made) -> None:
        before = next((one for one in self.damaged if one[1] == made.offset), None)
        if before is None:
            self.damaged.add((made.offset, made.end))
            self.rows.append((made.offset, None, None, None, None, "bad_magic"))
        else:
            self.damaged.remove(before)
            self.damaged.add((before[0], made.end))

    def trees(self) -> dict[str, dict[str, bytes]]:
        """The files of each kind of queue, by relative path."""
        queues, exts = self.queues.trees()
        batches = model_tree(self.batches)
        return {"consumequeue": queues, "consumequeue_ext": exts, "batchconsumequeue": batches}

    def _put(self, made: Made, topic: str, queue_offset: int, *, is_light: bool) -> None:
        key = topic, made.queue_id
        if queue_offset != self._following.get(key, queue_offset):
            self.jumps.add(made.offset)
        self._following[key] = queue_offset + 1
        position = self._positions.get(key, queue_offset)
        self._positions[key] = position + 1
        if position != queue_offset:
            self.displaced.add((made.offset, f"queue offset {queue_offset} at position {position}"))
        self.queues.put(
            Message(
                topic, made.queue_id, made.offset, len(made.data), queue_offset,
                java.hash_code(made.tag), made.store_timestamp, is_light=is_light,
            )
        )  # fmt: skip
        self.units.setdefault(key, []).append((made.offset, zlib.crc32(made.data)))


def expected_of(seed: int, end: int) -> Iterator[tuple[Made, Expected]]:
    """Each message of the made log before ``end``, and what all of them so far stand for."""
    log, expected = MadeLog(seed), Expected()
    while log.end < end:
        made = log.next()
        expected.add(made)
        yield made, expected


def _index(root: Path) -> list[Content]:
    directory = root / "index"
    paths = sorted(directory.iterdir()) if directory.is_dir() else []
    found = [read_content(path, SLOTS, ENTRIES) for path in paths]
    if len(found) > 1 and not found[-1].entries:
        found.pop()  # a batch that a crash ended may have asked for it
    return found


def damaged_ranges(ledger: Iterable[str]) -> set[tuple[int, int]]:
    """[start, end) of each damaged range, by the lines of a ledger."""
    return {
        (one["physical_offset"], one["end_physical_offset"])
        for one in map(json.loads, ledger)
        if one["reason"] == "bad_magic"
    }


def ledger_of(root: Path) -> list[str]:
    """The lines of an output's ledger, sorted."""
    path = root / "reput" / "quarantine.jsonl"
    return sorted(path.read_text("utf-8").splitlines()) if path.exists() else []


def check(site: Site, seed: int) -> Iterator[str]:
    """Compare everything after the last run; each problem that there is."""
    end = site.position
    expected = Expected()
    for made, expected in expected_of(seed, end):  # noqa: B007
        if site.log_bytes(made.offset, len(made.data)) != made.data:
            yield f"the log is not what was appended at {made.offset}"
            return
    if expected.end != end:
        yield f"the watermark is {end}, which is no record's end: {expected.end}"
    code, out, said = site.command("verify", site.store, "--output", site.output)
    if code:
        yield f"verify ended with {code}: {out} {said[-2000:]}"
    yield from _check_files(site, expected)
    code, out, said = site.command("diff", site.output, site.plain)
    if code:
        yield f"diff ended with {code}: {out[-2000:]} {said[-2000:]}"
    yield from _check_ledger(site, expected)
    yield from _check_table(site, expected)
    yield from _check_consumer(site, expected)


def _check_files(site: Site, expected: Expected) -> Iterator[str]:
    """Queues and index are those of a fault-free build of the whole log, which are the models',
    but for what retention removes, in both in the same way."""
    yield from _build_plain(site, site.whole_store())
    for problem in unlike_models(site.plain, expected):
        yield f"fault-free, {problem}"
    yield from _build_plain(site, site.store, "--retention")
    yield from unlike_models(site.inside, expected, is_whole=False)
    for name in expected.trees():
        yield from _unlike(f"{name}, fault-free", tree(site.inside / name), tree(site.plain / name))
    if _index(site.inside) != _index(site.plain):
        yield "the index is not that of the fault-free build"


def unlike_models(root: Path, expected: Expected, *, is_whole: bool = True) -> Iterator[str]:
    """The files of an output that differ from the models; one that is not whole may lack the first
    ones, as after retention."""
    for name, model in expected.trees().items():
        found = tree(root / name)
        wanted = {path: data for path, data in model.items() if is_whole or path in found}
        yield from _unlike(f"{name}, models", found, wanted)
    index = _index(root)
    if index != expected.index.files[0 if is_whole else -len(index) :]:
        yield "the index is not the models'"


def _build_plain(site: Site, store: Path, *more: str) -> Iterator[str]:
    code, out, said = site.command("run", store, "--output", site.plain, "--once", *more)
    if code:
        yield f"the fault-free build ended with {code}: {out} {said[-2000:]}"


def _unlike(name: str, found: dict[str, bytes], wanted: dict[str, bytes]) -> Iterator[str]:
    wrong = sorted(
        path for path in found.keys() | wanted.keys() if found.get(path) != wanted.get(path)
    )
    if wrong:
        yield f"{name}: {len(wrong)} files differ: {', '.join(wrong[:5])}"


def _check_ledger(site: Site, expected: Expected) -> Iterator[str]:
    found, plain = ledger_of(site.inside), ledger_of(site.plain)
    # a start that no longer finds a queue's last message in the log lists its gap again
    again = [
        line
        for line in found
        if (one := json.loads(line))["physical_offset"] not in expected.jumps
        and (one["physical_offset"], one.get("detail")) in expected.displaced
    ]
    found = [line for line in found if line not in again]
    if found != plain:
        differing = sorted({*found} ^ {*plain})
        yield f"ledger: {len(found)} lines and {len(plain)}: {differing[:5]}"
    damaged, lines = damaged_ranges(found), [json.loads(line) for line in found]
    if damaged != expected.damaged:
        yield f"ledger: damaged ranges {sorted(damaged ^ expected.damaged)[:5]}"
    jumps = {one["physical_offset"] for one in lines if one["reason"] == "queue_offset_gap"}
    if jumps != expected.jumps:
        yield f"ledger: jumps {sorted(jumps ^ expected.jumps)[:5]}"
    if others := {one["reason"] for one in lines} - {"bad_magic", "queue_offset_gap"}:
        yield f"ledger: {others}"


def _check_table(site: Site, expected: Expected) -> Iterator[str]:
    columns = ["physicalOffset", "topic", "queueId", "queueOffset", "body", "corruptReason"]
    found = DeltaTable(str(site.table)).to_pyarrow_table(columns=columns)
    found = found.take(pc.sort_indices(found, [("physicalOffset", "ascending")]))
    rows: list[Row] = []
    for batch in found.to_batches(max_chunksize=10_000):
        rows += [
            (
                row["physicalOffset"], row["topic"], row["queueId"], row["queueOffset"],
                None if row["corruptReason"] else zlib.crc32(row["body"]), row["corruptReason"],
            )
            for row in batch.to_pylist()
        ]  # fmt: skip
    if rows != expected.rows:
        offsets = [row[0] for row in rows]
        doubled = len(offsets) - len({*offsets})
        lost = {row[0] for row in expected.rows} - {*offsets}
        odd = next(
            (pair for pair in zip(rows, expected.rows, strict=False) if pair[0] != pair[1]), None
        )
        yield f"Delta: {len(rows)} rows, {doubled} doubled, {len(lost)} lost, first {odd}"


def _check_consumer(site: Site, expected: Expected) -> Iterator[str]:
    wanted = {queue: len(units) for queue, units in expected.units.items()}
    if site.consumer.failure is not None:
        yield f"the consumer failed: {site.consumer.failure}"
    for queue, units in expected.units.items():
        found = site.consumer.queues[queue].units
        if found != units:
            at = next(
                (n for n, pair in enumerate(zip(found, units, strict=False)) if pair[0] != pair[1]),
                -1,
            )
            yield f"consumed of {queue}: {len(found)} of {wanted[queue]}, first other one {at}"
