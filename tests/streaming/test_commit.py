"""Commits without Spark: which batches are refused, and which positions are on disk afterwards.

The log is made by the plain writer, and what is on disk is read as bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from reput.checkpoints.agreement import BuiltOutput
from reput.checkpoints.ownership import Ownership
from reput.checkpoints.reconcile import make_plan
from reput.store.errors import OwnershipError, StoreError, UsageError
from reput.store.log.logtail import LogTail
from reput.store.runs.dispatch import BatchSettings, DispatchBatch, DispatchCounts
from reput.store.state.built import settings_of
from reput.store.state.visible import read_end
from reput.store.state.watermark import Watermark, read_watermark
from reput.streaming.commit import Committer, OnVisible
from reput.streaming.config import DispatcherConfig
from reput.streaming.followers import Followers
from reput.streaming.indexes import Indexes
from reput.streaming.refusals import check_queues_are_ours
from tests.support.golden import tree
from tests.support.wire import UNIT, PlainLog, file_name

FILE_SIZE = 1024
TIME = 1_700_000_000_000


@dataclass
class Open:
    """An output that a run has taken over."""

    committer: Committer
    indexes: Indexes
    config: DispatcherConfig

    def batch(self, start: int, end: int) -> DispatchBatch:
        """The batch of a range."""
        settings = self.indexes.settings
        live = BatchSettings(self.indexes.batch_topics, settings.message_delay_levels_ms)
        log = settings.open_log()
        with closing(log):
            found = self.indexes.scan(log, start, end, live)
        assert found is not None
        return found

    def commit(self, start: int, end: int) -> DispatchCounts:
        """Commit the batch of a range."""
        batch = self.batch(start, end)
        counts = self.committer.commit(batch)
        self.committer.publish(batch)
        return counts


@contextmanager
def opened(
    store: Path,
    output: Path,
    on_visible: OnVisible = lambda *_: None,
    followers_of: type[Followers] = Followers,
    durable_latency_ms: int = 0,
) -> Iterator[Open]:
    """As a start does it; without ``Committer.end`` it is a run that was cut short."""
    config = DispatcherConfig(store, output, durable_latency_ms=durable_latency_ms)
    settings = settings_of(output, config.given_settings(), config.flags)
    with ExitStack() as held:
        log = held.enter_context(closing(settings.open_log()))
        held.enter_context(Ownership(output))
        indexes = Indexes.of(config, settings)
        found = read_watermark(config.state_directory)
        end = LogTail(log).settled()
        plan = make_plan(log, end, found, config.spark_directory, BuiltOutput(output, settings))
        followers = followers_of(config, settings, plan.watermark.store_id)
        committer = Committer(config, indexes, log, followers, on_visible)
        held.enter_context(closing(committer))
        committer.take_over(plan)
        yield Open(committer, indexes, config)


def watermark(output: Path) -> Watermark:
    """The durable one."""
    found = read_watermark(output / "reput")
    assert found is not None
    return found


def units(output: Path, queue: str) -> list[int]:
    """Physical offsets of a queue's units."""
    data = (output / "consumequeue" / queue / file_name(0)).read_bytes()
    found = (UNIT.unpack_from(data, at) for at in range(0, len(data) - 19, 20))
    return [offset for offset, size, _ in found if size]


def ledger(output: Path) -> list[dict[str, object]]:
    """The ranges that are listed, without jumps of queue offsets."""
    path = output / "reput" / "quarantine.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [entry for entry in found if entry["reason"] != "queue_offset_gap"]


@pytest.fixture
def plain() -> PlainLog:
    """Sixty messages of two topics in turns, in several files; each has a time of its own."""
    log = PlainLog(FILE_SIZE)
    for number in range(60):
        topic = (b"A", b"B")[number % 2]
        log.append(topic=topic, queue_offset=number // 2, store_timestamp=TIME + number)
    return log


@pytest.fixture
def store(tmp_path: Path, plain: PlainLog) -> Path:
    """The log on disk."""
    plain.write(tmp_path / "store" / "commitlog")
    (tmp_path / "store" / "broker.conf").write_text("messageIndexEnable=false\n")
    return tmp_path / "store"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The root of the queues, which does not exist yet."""
    return tmp_path / "output"


def test_a_batch_beyond_the_watermark_is_refused(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """It would skip messages; nothing is written, and the right one is taken afterwards."""
    starts = [start for start, _ in plain.spans]
    with opened(store, output) as run:
        run.commit(0, starts[20])
        before = tree(output)
        with pytest.raises(StoreError, match=f"begins at {starts[21]}, beyond the watermark"):
            run.commit(starts[21], starts[40])
        assert tree(output) == before
        run.commit(starts[20], plain.end)
    assert units(output, "A/0") == starts[::2]
    assert units(output, "B/0") == starts[1::2]


def test_a_batch_that_comes_again_moves_nothing_back(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """Readers have seen everything up to the watermark. All its messages are duplicates."""
    starts = [start for start, _ in plain.spans]
    with opened(store, output) as run:
        run.commit(0, starts[40])
        before = watermark(output)
        for end in (starts[10], starts[40]):
            again = run.batch(0, end)
            counts = run.committer.commit(again)
            assert counts.duplicates == counts.messages == again.message_count
            assert watermark(output) == before


@pytest.mark.parametrize("count", [1, 41, 42])
def test_the_last_message_says_when_and_where(
    output: Path, store: Path, plain: PlainLog, count: int
) -> None:
    """In the watermark and in RocketMQ's checkpoint file, whichever queue it is in."""
    start, end = plain.spans[count - 1]
    with opened(store, output) as run:
        run.commit(0, end)
        run.committer.end()
    found = watermark(output)
    assert (found.end_offset, found.last_record_offset) == (end, start)
    assert found.last_store_timestamp == TIME + count - 1
    fields = struct.unpack_from(">qqqqq", (output / "checkpoint").read_bytes())
    assert fields == (TIME + count - 1, TIME + count - 1, 0, 0, start)


def test_what_a_broker_alone_knows_stays_in_its_checkpoint(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """How far a master has flushed, in the fourth field of the file, and the time of a message
    that is not dispatched yet; a run that was cut short may have left that of a lost one."""
    flushed, later = plain.spans[3][0], TIME + 1000
    output.mkdir()
    known = struct.pack(">qqqqq", later, TIME, 0, flushed, 0)
    (output / "checkpoint").write_bytes(known.ljust(4096, b"\0"))
    end = plain.spans[9][1]
    for stored in (later, TIME + 9):
        with opened(store, output) as run:
            run.commit(0, end)
        fields = struct.unpack_from(">qqqqq", (output / "checkpoint").read_bytes())
        assert fields == (stored, TIME + 9, 0, flushed, plain.spans[9][0])


def test_what_retention_took_before_it_was_dispatched_is_listed(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """The whole range from the watermark to the log's first byte, once."""
    end = plain.spans[5][1]
    with opened(store, output) as run:
        run.commit(0, end)
    for at in (0, FILE_SIZE):
        (store / "commitlog" / file_name(at)).unlink()
    for _ in range(2):
        with opened(store, output):
            assert watermark(output).end_offset == 2 * FILE_SIZE
    assert ledger(output) == [
        {"physical_offset": end, "end_physical_offset": 2 * FILE_SIZE, "reason": "segment_deleted"}
    ]


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_run_whose_watermark_is_lost_writes_nothing_more(
    output: Path, store: Path, plain: PlainLog, *, is_gone: bool
) -> None:
    """Somebody has removed the file, or another host has emptied the output."""
    starts = [start for start, _ in plain.spans]
    with opened(store, output) as run:
        run.commit(0, starts[20])
        before = tree(output / "consumequeue")
        path = output / "reput" / "watermark"
        if is_gone:
            path.unlink()
        else:
            path.write_bytes(bytes(path.stat().st_size))
        with pytest.raises(OwnershipError, match="another dispatcher has taken over, or the file"):
            run.commit(starts[20], starts[40])
        assert tree(output / "consumequeue") == before


def test_damage_is_listed_with_its_bytes(output: Path, store: Path, plain: PlainLog) -> None:
    """The messages around it have their units."""
    start, end = plain.spans[22]
    plain.put(start + 4, b"XXXX")
    plain.write(store / "commitlog")
    with opened(store, output) as run:
        counts = run.commit(0, plain.end)
    assert counts.quarantined_bytes == end - start
    assert ledger(output) == [
        {"physical_offset": start, "end_physical_offset": end, "reason": "bad_magic"}
    ]
    expected = [each for each, _ in plain.spans[::2] if each != start]
    assert units(output, "A/0") == expected


def test_a_batch_of_damage_alone_keeps_the_last_message(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """A cut of the log is noticed by it, and RocketMQ's checkpoint file names it."""
    (last, first_end), (start, end) = plain.spans[20], plain.spans[21]
    plain.put(start + 4, bytes(4))
    plain.write(store / "commitlog")
    with opened(store, output) as run:
        run.commit(0, first_end)
        before = watermark(output)
        run.commit(start, end)
    after = watermark(output)
    assert (before.end_offset, after.end_offset) == (first_end, end)
    assert after.last_record_offset == before.last_record_offset == last
    assert after.last_store_timestamp == before.last_store_timestamp == TIME + 20
    assert after.last_record_crc == before.last_record_crc != 0
    # by which a start knows the log
    with opened(store, output) as run:
        run.commit(end, plain.end)


def test_who_waits_is_told_of_every_watermark_once_it_is_durable(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """Followers and waiting pulls learn of it, but not of a batch that is repeated; the pulls learn
    of it before it is durable."""
    starts = [start for start, _ in plain.spans]
    told, noticed = list[int](), list[int]()

    class Noted(Followers):
        def advance(self, watermark_told: int) -> None:
            assert watermark(output).end_offset == watermark_told
            told.append(watermark_told)
            super().advance(watermark_told)

    def notice(*_: object) -> None:
        assert watermark(output).end_offset == (told or [0])[-1]
        found = read_end(output / "reput")
        assert found is not None
        noticed.append(found.end_offset)

    with opened(store, output, notice, Noted) as run:
        for start, end in ((0, starts[20]), (0, starts[10]), (starts[20], plain.end)):
            run.commit(start, end)
    assert told == noticed == [starts[20], plain.end]


def test_units_beyond_the_watermark_count_as_unwritten(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """Bytes that look like a unit are written over."""
    starts = [start for start, _ in plain.spans]
    with opened(store, output) as run:
        run.commit(0, starts[20])
        run.committer.end()
    path = output / "consumequeue" / "A" / "0" / file_name(0)
    with path.open("r+b") as file:
        file.seek(10 * 20)
        file.write(UNIT.pack(starts[20] + 7, 50, 0) * 3)
    with opened(store, output) as run:
        counts = run.commit(starts[20], plain.end)
    assert (counts.messages, counts.duplicates) == (40, 0)
    assert units(output, "A/0") == starts[::2]


def cut(store: Path, plain: PlainLog, count: int, *later: bytes) -> None:
    """The log ends after ``count`` messages, or goes on with a message of each of these topics."""
    end = plain.spans[count - 1][1]
    plain.put(end, bytes(plain.end - end))
    plain.spans, plain.end = plain.spans[:count], end
    for topic in later:
        plain.append(topic=topic, store_timestamp=TIME + 1000)
    plain.write(store / "commitlog")


def test_a_cut_log_takes_entries_and_ledger_along(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """Ranges listed beyond the cut are gone with their bytes; the epoch tells readers."""
    damaged = [plain.spans[at] for at in (10, 50)]
    for start, _ in damaged:
        plain.put(start + 4, b"XXXX")
    plain.write(store / "commitlog")
    with opened(store, output) as run:
        run.commit(0, plain.end)
        run.committer.end()
    assert [line["physical_offset"] for line in ledger(output)] == [start for start, _ in damaged]
    epoch = watermark(output).epoch
    with opened(store, output):
        assert watermark(output).epoch == epoch + 1
    cut(store, plain, 40)
    with opened(store, output) as run:
        assert watermark(output).end_offset == plain.end
        assert watermark(output).epoch == epoch + 3
    starts = [start for start, _ in plain.spans]
    assert units(output, "A/0") == [start for start in starts[::2] if start != damaged[0][0]]
    assert units(output, "B/0") == starts[1::2]
    assert [line["physical_offset"] for line in ledger(output)] == [damaged[0][0]]


def test_a_run_that_was_cut_short_leaves_no_unit_of_messages_that_the_log_lost(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """The last batch was written in part; then the log lost its messages and went on with others,
    so that no message comes for those queues."""
    starts = [start for start, _ in plain.spans]
    abort = output / "reput" / "abort"
    with opened(store, output) as run:
        run.commit(0, starts[40])
        for writer in run.committer._writers:
            writer.write(run.batch(starts[40], starts[50]))
    assert units(output, "A/0") == starts[:50:2]
    assert abort.exists()
    cut(store, plain, 40, b"C", b"C")
    with opened(store, output) as run:
        run.commit(starts[40], plain.end)
        assert abort.exists()
        run.committer.end()
    assert not abort.exists()
    assert units(output, "A/0") == starts[:40:2]
    assert units(output, "B/0") == starts[1:40:2]


@pytest.mark.parametrize("kind", ["consumequeue", "batchconsumequeue"])
def test_queues_that_another_writer_built_are_not_gone_on_with_unasked(
    output: Path, store: Path, kind: str
) -> None:
    """They may be of either kind; an output with a damaged watermark is told apart from one that
    never had any."""
    check_queues_are_ours(store, output)
    (output / kind / "Empty").mkdir(parents=True)
    check_queues_are_ours(store, output)
    with opened(store, output) as run:
        run.commit(0, run.batch(0, FILE_SIZE).end)
    queues = output / "consumequeue"
    queues.rename(output / "others")
    (output / kind).mkdir(exist_ok=True)
    (output / "others" / "A").rename(output / kind / "A")
    path = output / "reput" / "watermark"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(StoreError, match="is damaged, both slots"):
        check_queues_are_ours(store, output)
    path.unlink()
    with pytest.raises(UsageError, match="queues that reput did not build"):
        check_queues_are_ours(store, output)
