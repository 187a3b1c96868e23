"""The writer of consume queues, held against RocketMQ's own trees and a plain model of its rules.

Axes: golden stores, random queue offsets, batch borders, restarts, power cuts, file sizes. Compared
are whole trees byte for byte, the ledger and the counts. Kills and full disks are in
``test_consumequeue_faults``, the options and odd names in ``test_consumequeue_rules``.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.config import OnQueueGap, read_store_settings
from reput.store.log.commitlog import CommitLog
from reput.store.runs import scan
from reput.store.runs.dispatch import DispatchCounts
from tests.support.golden import GOLDEN_NAMES, difference
from tests.support.outputs import Output, QueueLog, Setup, random_queue_offsets
from tests.support.power_cuts import Power
from tests.support.wire import read_log

FILE_SIZES = (20, 40, 100, 200)


@pytest.fixture(params=GOLDEN_NAMES)
def store(
    request: pytest.FixtureRequest, golden: Callable[[str], Path], tmp_path: Path
) -> tuple[Path, Setup, list[int]]:
    """A golden store, an empty output with its settings, and the starts of its records."""
    root = golden(request.param)
    settings = read_store_settings(root)
    records = read_log(root / "commitlog")
    setup = Setup(
        CommitLog(settings.commit_log_directories),
        tmp_path / "output",
        settings.mapped_file_size_consume_queue,
        {offset: int.from_bytes(data[20:28], "big") for offset, data in records},
        settings.message_delay_levels_ms,
    )
    last = records[-1]
    return root, setup, [*(offset for offset, _ in records), last[0] + len(last[1])]


Store = tuple[Path, Setup, list[int]]


def test_one_batch_builds_the_golden_tree(store: Store) -> None:
    """Everything at once; then everything again, from a fresh writer: nothing changes."""
    root, setup, borders = store
    counts = Output(setup).run(borders[-1])
    assert difference(setup.root / "consumequeue", root / "consumequeue") == []
    assert counts.messages > 400
    assert (counts.duplicates, counts.gaps, counts.quarantined_messages) == (0, 0, 0)
    assert setup.ledger_lines() == []
    again = Output(setup).run(borders[-1], start=0)
    assert again == DispatchCounts(
        counts.messages, counts.messages, unusual_topics=counts.unusual_topics
    )
    assert difference(setup.root / "consumequeue", root / "consumequeue") == []


def test_random_batches_build_the_golden_tree(store: Store, seed: int) -> None:
    """Cut anywhere between records, some batches given twice or over again, some restarts."""
    root, setup, borders = store
    rng = random.Random(seed)
    cuts = [*sorted(rng.sample(borders[1:-1], 25)), borders[-1]]
    output, messages, duplicates = Output(setup), 0, 0
    for end in cuts:
        start = rng.choice(
            (None, None, rng.choice([at for at in borders if at <= output.position]))
        )
        counts = output.run(end, start)
        messages, duplicates = messages + counts.messages, duplicates + counts.duplicates
        if rng.random() < 0.2:
            output.close()
            output = Output(setup)
    assert difference(setup.root / "consumequeue", root / "consumequeue") == []
    fresh = Setup(setup.log, setup.root / "fresh", setup.file_size, {}, setup.levels_ms)
    assert messages - duplicates == Output(fresh).run(borders[-1]).messages
    assert setup.ledger_lines() == []


def test_rocketmqs_own_tree_is_adopted_unchanged(store: Store) -> None:
    """durable_end=None trusts every unit that is there: the whole log is then a duplicate."""
    root, setup, borders = store
    shutil.copytree(root / "consumequeue", setup.root / "consumequeue")
    counts = Output(setup, adopt=True).run(borders[-1])
    assert counts.duplicates == counts.messages > 400
    assert difference(setup.root / "consumequeue", root / "consumequeue") == []


def check_against_model(
    directory: Path, seed: int, case: int, *, gap: OnQueueGap, restarts: bool
) -> None:
    """One random log, dispatched in random batches, equals the model's tree."""
    rng = random.Random(f"{seed}:{case}")
    file_size = rng.choice(FILE_SIZES)
    log = QueueLog(file_size, blank_gaps=gap is OnQueueGap.BLANK)
    forward = case % 2 == 0
    random_queue_offsets(rng, log, rng.choice((5, 20, 60)), forward=forward)
    setup, borders = log.setup(directory / str(case), file_size, gap), log.borders()
    with Power(setup.root) as power:
        output = Output(setup)
        while output.position < borders[-1]:
            beyond = [at for at in borders if at > output.position]
            end = rng.choice(beyond[: rng.choice((1, 5, 60))])
            output.dispatch(end)
            if restarts and rng.random() < 0.3:
                # killed before the watermark moved; the machine may have lost power as well
                rng.choice((power.fail, power.kill))(rng, output.close)
                output = Output(setup, cut_short=True)
            else:
                output.commit(end)
        output.close()
    place = f"seed={seed} case={case} file_size={file_size}"
    assert setup.queues() == log.model.tree(), place
    assert setup.ledger("queue_offset_seen_before") == log.model.dropped(), place
    if gap is OnQueueGap.ROCKETMQ and forward:
        assert setup.ledger("queue_offset_gap") == log.model.gaps(), place
    setup.log.close()


def test_queue_offsets_that_jump_and_repeat_are_placed_as_rocketmq_does(
    ram_path: Path, seed: int
) -> None:
    """Random queues in random batches of one run: the model's bytes, drops and gaps."""
    for case in range(100):
        check_against_model(ram_path, seed, case, gap=OnQueueGap.ROCKETMQ, restarts=False)


def test_restarts_and_power_cuts_change_nothing(ram_path: Path, seed: int) -> None:
    """The same with restarts at the last watermark, whether units beyond it are lost or not."""
    for case in range(100):
        check_against_model(ram_path, seed, case, gap=OnQueueGap.ROCKETMQ, restarts=True)


def test_blanked_gaps_keep_positions_at_queue_offsets(ram_path: Path, seed: int) -> None:
    """onQueueGap=blank: the model with gaps filled."""
    for case in range(100):
        check_against_model(ram_path, seed, case, gap=OnQueueGap.BLANK, restarts=False)


def test_restarts_and_power_cuts_change_no_blanked_queue(ram_path: Path, seed: int) -> None:
    """onQueueGap=blank, with restarts."""
    for case in range(100):
        check_against_model(ram_path, seed, case, gap=OnQueueGap.BLANK, restarts=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("gap", [OnQueueGap.ROCKETMQ, OnQueueGap.BLANK])
def test_queues_equal_the_model_at_length(ram_path: Path, seed: int, gap: OnQueueGap) -> None:
    """Ten thousand logs with restarts."""
    for case in range(10_000):
        check_against_model(ram_path, seed, case, gap=gap, restarts=True)
        shutil.rmtree(ram_path / str(case))


@pytest.mark.parametrize(
    ("queue_offsets", "jumps"),
    [
        ((3, 4, 9, 10, 12), (2, 4)),
        ((0, 1, 2, 5, 6, 0, 8, 9), (3, 6)),  # offset 0 is appended anywhere (step e)
        ((0, 1, 2, 8, 9, 5, 11, 12), (3, 6)),  # 5 is the position that comes next
    ],
)
def test_every_jump_of_queue_offsets_is_listed(
    tmp_path: Path, queue_offsets: tuple[int, ...], jumps: tuple[int, ...]
) -> None:
    """Earlier jumps hide none, in one run and with a restart before every message."""
    log = QueueLog(100)
    for queue_offset in queue_offsets:
        log.append(queue_offset)
    expected = [log.plain.spans[index][0] for index in jumps]
    assert log.model.gaps() == expected
    for name, ends in (("one", [log.plain.end]), ("many", log.borders()[1:])):
        setup = log.setup(tmp_path / name, 100)
        for end in ends:
            output = Output(setup)
            output.run(end)
            output.close()
        assert setup.queues() == log.model.tree()
        assert setup.ledger("queue_offset_gap") == expected, name


@pytest.mark.parametrize("chunk_records", [1, 2, 3])
@pytest.mark.parametrize(
    "queue_offsets",
    [
        (3, 4, 5, 9, 10, 11, 7, 8, 9, 12, 13, 14, 20, 21, 22, 23, 24, 24),
        (3, 4, 5, 9, 10, 11, 20, 21, 22, 40, 41, 42, 50, 51, 52, 60, 61, 62),
    ],
    ids=["some", "each"],
)
def test_jumps_at_the_border_of_a_chunk_are_placed_as_rocketmq_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_records: int, queue_offsets: list[int]
) -> None:
    """A run of a chunk whose queue offsets follow those of the one before is written with it."""
    monkeypatch.setattr(scan, "CHUNK_RECORDS", chunk_records)
    log = QueueLog(100)
    for queue_offset in queue_offsets:
        log.append(queue_offset)
    setup = log.setup(tmp_path, 100)
    monkeypatch.setattr(scan._Chunk, "grow", lambda _: False)
    assert len(setup.batch(0, log.plain.end).runs) == -(-18 // chunk_records)
    output = Output(setup)
    output.run(log.plain.end)
    output.close()
    assert setup.queues() == log.model.tree()
    assert setup.ledger("queue_offset_gap") == log.model.gaps()
    assert setup.ledger("queue_offset_seen_before") == log.model.dropped()


def test_a_batch_given_twice_counts_all_as_duplicates(ram_path: Path, seed: int) -> None:
    """In one run, batch by batch: no byte changes, dropped messages are not listed again."""
    rng = random.Random(seed)
    log = QueueLog(100)
    random_queue_offsets(rng, log, 200, forward=True)
    setup = log.setup(ram_path, 100)
    output, borders = Output(setup), log.borders()
    whole = output.run(borders[-1])
    lines, queues = setup.ledger_lines(), setup.queues()
    for start, end in zip(borders[:-1:20], borders[20::20], strict=True):
        counts = output.run(end, start)
        assert counts.messages == 20
        assert counts.duplicates + counts.quarantined_messages == 20
        assert counts.gaps == 0
    assert (setup.ledger_lines(), setup.queues()) == (lines, queues)
    assert whole.quarantined_messages == len(log.model.dropped())
    assert whole.gaps == len(log.model.gaps())
    assert queues == log.model.tree()
