"""The writer of batch queues, held against RocketMQ's own tree and a plain model of its put.

Axes: the golden store, random messages, batch and chunk borders, restarts, lost pages, full disks.
Compared are whole trees byte for byte, the ledger and the counts.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from reput.sinks.index.batchconsumequeue import BatchConsumeQueueWriter
from reput.sinks.index.consumequeue import ConsumeQueueWriter
from reput.store import fsops
from reput.store.brokerconf import parse_properties
from reput.store.config import read_store_settings
from reput.store.errors import NoSpaceError, UsageError
from reput.store.files import BATCH_CONSUME_QUEUE_DIRECTORY
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.queuetype import find_batch_topics
from reput.store.runs.dispatch import DispatchCounts
from reput.store.state.ledger import Ledger
from tests.support.batch_queue import (
    BatchMessage,
    lose_pages,
    make_batch,
    messages_of,
    model_of,
    model_tree,
)
from tests.support.golden import difference, tree
from tests.support.outputs import Setup
from tests.support.processes import is_killed_at

REFUSED = "batch_offset_out_of_range"
TOPICS = frozenset((b"T", "订".encode(), b"a/b"))


@dataclass
class Work:
    """A store and its settings, and an output that is being written."""

    messages: list[BatchMessage]
    topics: frozenset[bytes]
    file_size: int
    root: Path
    durable_end: int = 0
    """The watermark."""

    def start(self, *, adopt: bool = False) -> None:
        """A new process."""
        fsops.make_directories(self.root / "reput", self.root)
        self.ledger = Ledger(self.root / "reput")
        self.writer = BatchConsumeQueueWriter(
            self.root, self.file_size, self.ledger,
            durable_end=None if adopt else self.durable_end, count_units=self.count_units,
        )  # fmt: skip

    def count_units(self, queue: QueueKey, offset: int, size: int) -> int:
        """How many units of a queue the messages have that are there."""
        return sum(
            (one.topic.decode(), one.queue_id, one.offset, one.end)
            == (queue.topic, queue.queue_id, offset, offset + size)
            for one in self.messages
        )

    def dispatch(self, start: int, end: int, rng: random.Random | None = None) -> DispatchCounts:
        return self.writer.write(make_batch(self.messages, start, end, self.topics, rng))

    def commit(self, end: int) -> None:
        self.writer.sync()
        self.ledger.sync()
        self.durable_end = max(self.durable_end, end)

    def run(self, start: int, end: int, rng: random.Random | None = None) -> DispatchCounts:
        counts = self.dispatch(start, end, rng)
        self.commit(end)
        return counts

    @property
    def end(self) -> int:
        return self.messages[-1].end

    @property
    def borders(self) -> list[int]:
        """Where a batch may begin or end."""
        return [0, *(message.end for message in self.messages)]

    def tree(self) -> dict[str, bytes]:
        return tree(self.root / BATCH_CONSUME_QUEUE_DIRECTORY)

    def ledger_lines(self) -> list[tuple[object, ...]]:
        lines = Setup(None, self.root, 0, {}).ledger_lines()  # type: ignore[arg-type]
        return [(line["reason"], line["physical_offset"]) for line in lines]

    def at(self, name: str) -> Work:
        """The same messages, another output."""
        return replace(self, root=self.root.parent / name, durable_end=0)


@pytest.fixture
def batch_store(golden: Callable[[str], Path], ram_path: Path) -> tuple[Path, Work]:
    """The golden store and an empty output with its settings."""
    root = golden("batch")
    settings = read_store_settings(root)
    conf = parse_properties((root / "broker.conf").read_bytes())
    messages = messages_of(root, settings.message_delay_levels_ms)
    size = int(conf["mapperFileSizeBatchConsumeQueue"])
    return root, Work(messages, find_batch_topics(root, root), size, ram_path / "output")


def test_one_batch_builds_the_golden_tree(batch_store: tuple[Path, Work]) -> None:
    """Everything at once; then everything again, from a fresh writer: nothing changes."""
    root, work = batch_store
    assert work.topics == {b"BatchTopic"}
    work.start()
    counts = work.run(0, work.end)
    theirs = root / BATCH_CONSUME_QUEUE_DIRECTORY
    assert difference(work.root / BATCH_CONSUME_QUEUE_DIRECTORY, theirs) == []
    own = [message for message in work.messages if message.topic == b"BatchTopic"]
    assert counts == DispatchCounts(len(own))
    assert len({message.batch_size for message in own}) > 2
    work.start()
    assert work.run(0, work.end) == DispatchCounts(len(own), len(own))
    assert difference(work.root / BATCH_CONSUME_QUEUE_DIRECTORY, theirs) == []
    assert work.ledger_lines() == []
    assert find_batch_topics(root, work.root) == work.topics


def test_random_batches_build_the_golden_tree(batch_store: tuple[Path, Work], seed: int) -> None:
    """Overlapping pieces, given twice or over again, chunks cut anywhere, restarts at an older
    watermark, whether pages beyond it are lost or not."""
    root, work = batch_store
    rng = random.Random(seed)
    for case in range(6):
        work = work.at(f"output-{case}")
        work.start()
        messages = duplicates = repeated = 0
        for end in [*sorted(rng.sample(work.borders[1:-1], 25)), work.end]:
            start = rng.choice((work.durable_end, rng.choice(work.borders)))
            counts = work.dispatch(min(start, work.durable_end), end, rng)
            messages, duplicates = messages + counts.messages, duplicates + counts.duplicates
            if rng.random() < 0.3:
                work.writer.sync()
                repeated += counts.messages - counts.duplicates
                spoil_beyond(rng, work)
                work.start()
                counts = work.dispatch(work.durable_end, end, rng)
                messages, duplicates = messages + counts.messages, duplicates + counts.duplicates
            work.commit(end)
        theirs = root / BATCH_CONSUME_QUEUE_DIRECTORY
        assert difference(work.root / BATCH_CONSUME_QUEUE_DIRECTORY, theirs) == [], case
        own = sum(message.topic in work.topics for message in work.messages)
        assert messages - duplicates - repeated == own
        assert work.ledger_lines() == []


def spoil_beyond(rng: random.Random, work: Work) -> None:
    """Units beyond the watermark lose pages, or are zeroed one by one, or stay."""
    how = rng.randrange(3)
    for path in (work.root / BATCH_CONSUME_QUEUE_DIRECTORY).glob("*/*/*"):
        written = path.read_bytes()
        durable = bytearray(written)
        for at in range(0, len(written), 46):
            offset = int.from_bytes(written[at : at + 8], "big")
            size = int.from_bytes(written[at + 8 : at + 12], "big")
            if offset + size > work.durable_end and (how or rng.random() < 0.5):
                durable[at : at + 46] = bytes(46)
        if how == 1:
            durable[:] = lose_pages(rng, bytes(durable), written)
        if how < 2:
            path.write_bytes(durable)


def test_rocketmqs_own_tree_is_adopted_unchanged(batch_store: tuple[Path, Work]) -> None:
    """durable_end=None trusts every unit that is there: the whole log is then a duplicate."""
    root, work = batch_store
    theirs = root / BATCH_CONSUME_QUEUE_DIRECTORY
    shutil.copytree(theirs, work.root / BATCH_CONSUME_QUEUE_DIRECTORY)
    work.start(adopt=True)
    counts = work.run(0, work.end)
    assert counts.duplicates == counts.messages > 100
    assert difference(work.root / BATCH_CONSUME_QUEUE_DIRECTORY, theirs) == []


def test_the_writer_of_consume_queues_leaves_batch_topics_alone(
    batch_store: tuple[Path, Work], tmp_path: Path
) -> None:
    """With a batch that has batch topics it builds RocketMQ's consumequeue tree without them."""
    root, work = batch_store
    settings = read_store_settings(root)
    output = tmp_path / "ordinary"
    fsops.make_directories(output / "reput", output)
    writer = ConsumeQueueWriter(
        output, settings.mapped_file_size_consume_queue, Ledger(output / "reput"),
        durable_end=0, queue_offset_at=lambda *_: None, count_units=lambda *_: None,
    )  # fmt: skip
    counts = writer.write(make_batch(work.messages, 0, work.end, work.topics))
    writer.sync()
    assert difference(output / "consumequeue", root / "consumequeue") == []
    assert counts.messages == sum(message.topic not in work.topics for message in work.messages)


def random_messages(rng: random.Random, number: int) -> list[BatchMessage]:
    """Messages of batch topics and others, some of them light, refused, or without a place."""
    found, offset, bases = [], rng.choice((0, 1 << 33)), dict.fromkeys(range(9), 0)
    for index in range(number):
        offset += rng.choice((0, 0, 100))
        queue = rng.randrange(4)
        base, batch_size = bases[queue], rng.choice((0, 1, 1, 7, 32767))
        bases[queue] = base + batch_size
        if rng.random() < 0.1:
            base, batch_size = rng.choice(((-1, 3), (base, -1), (-(1 << 63), -32768)))
        topic = rng.choice((b"T", b"T", "订".encode(), b"other", b"a/b"))
        message = BatchMessage(
            offset, rng.randrange(91, 300), rng.randrange(-(1 << 63), 1 << 63), index, base,
            batch_size, topic, rng.choice((queue, queue, queue, -1)), rng.random() < 0.1,
        )  # fmt: skip
        found.append(message)
        offset = message.end
    return found


def expected(work: Work) -> tuple[dict[str, bytes], list[tuple[object, ...]]]:
    """The tree and the ledger of a whole run."""
    queues = model_of(work.messages, work.topics, work.file_size)
    lines = [
        ("queue_id" if queue_id < 0 else "topic_name", message.offset)
        for topic, queue_id in queues
        if queue_id < 0 or "/" in topic
        for message in work.messages
        if (message.topic.decode(), message.queue_id) == (topic, queue_id) and not message.is_light
    ]
    placed = {key: queue for key, queue in queues.items() if key[1] >= 0 and "/" not in key[0]}
    lines += [(REFUSED, offset) for queue in placed.values() for offset in queue.ignored]
    return model_tree(placed), sorted(lines, key=str)


def check_against_model(directory: Path, seed: int, case: int) -> None:
    """One random log in random batches with restarts equals the model's tree and ledger."""
    rng = random.Random(f"{seed}:{case}")
    messages = random_messages(rng, rng.choice((5, 60, 250)))
    file_size = 46 * rng.choice((1, 2, 5, 200))
    work = Work(messages, TOPICS, file_size, directory / str(case))
    work.start()
    while work.durable_end < work.end:
        ahead = [at for at in work.borders if at > work.durable_end]
        end = rng.choice(ahead[: rng.choice((1, 5, 60, 400))])
        start = rng.choice((work.durable_end, rng.choice(work.borders[: -len(ahead)])))
        work.dispatch(start, end, rng)
        if rng.random() < 0.3:
            work.writer.sync()
            spoil_beyond(rng, work)
            work.start()
        else:
            work.commit(end)
    files, lines = expected(work)
    place = f"seed={seed} case={case} file_size={file_size}"
    assert work.tree() == files, place
    assert sorted(work.ledger_lines(), key=str) == lines, place
    work.start()
    counts, own = work.run(0, work.end), [m for m in messages if m.topic in TOPICS]
    assert counts.messages == sum(not message.is_light for message in own), place
    assert counts.quarantined_messages == len(lines), place
    assert counts.duplicates == counts.messages - len(lines), place
    assert (work.tree(), sorted(work.ledger_lines(), key=str)) == (files, lines), place


def test_random_messages_are_placed_as_rocketmq_does(ram_path: Path, seed: int) -> None:
    """The model's bytes, whatever the batches, restarts and lost pages."""
    for case in range(25):
        check_against_model(ram_path, seed, case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_queues_equal_the_model_at_length(ram_path: Path, seed: int) -> None:
    """Five thousand logs."""
    for case in range(5000):
        check_against_model(ram_path, seed, case)
        shutil.rmtree(ram_path / str(case))


def full_disks(
    work: Work, monkeypatch: pytest.MonkeyPatch, operation: str
) -> Iterator[tuple[Work, DispatchCounts]]:
    """A full disk at every ordinal of one operation; the same batch is given again at once."""
    for ordinal in count(1):
        tried, counts, failed = work.at(f"{operation}-{ordinal}"), DispatchCounts(), False
        tried.start()
        failing = fsops._Failpoints(f"{operation}:{ordinal}=ENOSPC")
        for end in (work.borders[len(work.borders) // 2], work.end):
            with monkeypatch.context() as patched:
                patched.setattr(fsops, "_failpoints", failing)
                try:
                    counts.add(tried.dispatch(tried.durable_end, end))
                except NoSpaceError:
                    failed = True
                    counts.add(tried.dispatch(tried.durable_end, end))
            tried.commit(end)
        if not failed:
            assert ordinal > 3
            return
        yield tried, counts


@pytest.mark.parametrize("operation", ["pwrite", "truncate", "mkdir", "open"])
def test_a_full_disk_anywhere_is_waited_out(
    ram_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """ENOSPC at every write, new file or directory: the bytes, the ledger and the counts are those
    of a run that nothing interrupted."""
    work = Work(random_messages(random.Random(seed), 60), TOPICS, 92, ram_path / "whole")
    work.start()
    middle = work.borders[len(work.borders) // 2]
    whole = work.run(0, middle)
    whole.add(work.run(middle, work.end))
    assert (work.tree(), sorted(work.ledger_lines(), key=str)) == expected(work)
    for tried, counts in full_disks(work, monkeypatch, operation):
        assert (tried.tree(), tried.ledger_lines()) == (work.tree(), work.ledger_lines()), (
            tried.root
        )
        assert counts == whole, tried.root


def test_a_batch_tried_again_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the disk is full: its offsets begin again, so that it is written in two parts."""
    messages = [
        BatchMessage(100 * number, 60, 0, number, base, 7, b"T", 0, False)
        for number, base in enumerate((0, 7, 14, 21, 0, 7))
    ]
    for ordinal in count(1):
        work = Work(messages, TOPICS, 46 * 3, tmp_path / str(ordinal))
        work.start()
        failing = fsops._Failpoints(f"*:{ordinal}=ENOSPC")
        with monkeypatch.context() as patch:
            patch.setattr(fsops, "_failpoints", failing)
            try:
                work.dispatch(0, work.end)
            except NoSpaceError:
                assert work.dispatch(0, work.end) == DispatchCounts(len(messages))
            else:
                break
        assert work.dispatch(0, work.end) == DispatchCounts(len(messages), len(messages))
        assert work.tree() == expected(work)[0]
    assert ordinal > 4
    # those that were there count for each queue alone
    messages = [replace(one, queue_id=number % 2) for number, one in enumerate(messages)]
    work = Work(messages, TOPICS, 46 * 3, tmp_path / "two queues")
    work.start()
    assert work.dispatch(0, messages[2].offset) == DispatchCounts(2)
    assert work.dispatch(0, work.end) == DispatchCounts(len(messages), 2)


def test_killed_anywhere_it_ends_the_same(ram_path: Path, seed: int) -> None:
    """SIGKILL before every operation of two batches; a restart at the first watermark finishes."""
    work = Work(random_messages(random.Random(seed), 12), TOPICS, 92, ram_path / "whole")

    def run_all(output: Work) -> None:
        output.start()
        output.run(0, work.borders[6])
        output.run(work.borders[6], work.end)

    for ordinal in count(1):
        output = work.at(f"output-{ordinal}")
        killed = is_killed_at(ordinal, partial(run_all, output))
        run_all(output)
        found = (output.tree(), sorted(output.ledger_lines(), key=str))
        assert found == expected(work), f"killed at {ordinal}"
        if not killed:
            break
    assert ordinal > len(expected(work)[0])  # each file is made, at least


def test_a_cut_queue_holds_what_the_log_still_has(ram_path: Path, seed: int) -> None:
    """truncate at every border: the tree of the log up to there; then the rest comes again."""
    work = Work(random_messages(random.Random(seed), 40), TOPICS, 138, ram_path / "output")
    work.start()
    work.run(0, work.end)
    files, lines = expected(work)
    for end in reversed(work.borders):
        work.writer.truncate(end)
        kept = [message for message in work.messages if message.end <= end]
        assert work.tree() == expected(replace(work, messages=kept))[0], end
    assert work.tree() == {}
    work.run(0, work.end)
    assert (work.tree(), sorted(work.ledger_lines(), key=str)) == (files, lines)


@pytest.mark.parametrize("lost", [6, 7, 8, 11])
def test_a_unit_that_lost_its_first_bytes_is_cut(ram_path: Path, lost: int) -> None:
    """As a power cut leaves it that took one of its two pages: its offset looks like that of the
    queue's first message, and so like one before the watermark."""
    messages = [BatchMessage(100 * number, 100) for number in range(4)]
    work = Work(messages, TOPICS, 460, ram_path / "output")
    work.start()
    work.run(0, work.end)
    files, _ = expected(work)
    (path,) = (ram_path / "output" / BATCH_CONSUME_QUEUE_DIRECTORY).rglob("0" * 20)
    for keep in range(1, 4):
        whole = path.read_bytes()
        at = 46 * keep
        path.write_bytes(whole[:at] + bytes(lost) + whole[at + lost :])
        work.writer.truncate(100 * keep)
        assert work.tree() == expected(replace(work, messages=messages[:keep]))[0]
        work.dispatch(0, work.end)
        assert work.tree() == files


def test_a_file_size_that_splits_units_is_refused(tmp_path: Path) -> None:
    """RocketMQ takes it and then fails at the first file's end for good."""
    with pytest.raises(UsageError, match=r"mapperFileSizeBatchConsumeQueue is 100.*of 46"):
        work = Work([BatchMessage(0, 100)], TOPICS, 100, tmp_path)
        work.start()
        work.run(0, work.end)


def test_runs_without_details_are_refused(tmp_path: Path) -> None:
    """They have no store times and no inner batches: nothing is written from them."""
    messages = [BatchMessage(0, 100)]
    work = Work(messages, TOPICS, 92, tmp_path)
    work.start()
    batch = make_batch(messages, 0, 100, TOPICS)
    bare = replace(batch, runs=[replace(run, details=None) for run in batch.runs])
    with pytest.raises(ValueError, match="details"):
        work.writer.write(bare)
    assert work.tree() == {}
