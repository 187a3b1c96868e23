"""Power cuts of an overlay that is appended to and dispatched in turn: the log is recovered from
what its queues tell, which may be torn as well."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from reput.overlay.groupcommit import GroupCommit
from reput.overlay.pipeline import Pipeline
from reput.store.config import read_store_settings
from reput.store.files import COMMIT_LOG_DIRECTORY
from reput.store.log.appender import LogAppender
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from reput.store.state.built import settings_of
from reput.streaming.config import DispatcherConfig
from reput.streaming.sparkless import running
from reput.upkeep.verify.run import verify
from tests.support import power_cuts
from tests.support.power_cuts import Disk, mount
from tests.support.recorder import Recorder

FILE_SIZE = 2048
CONF = (
    "maxHashSlotNum=20\nmaxIndexNum=80\nmappedFileSizeConsumeQueue=400\n"
    f"mappedFileSizeCommitLog={FILE_SIZE}\n"
)
ACKNOWLEDGED = "acknowledged"
"""Kind of a note: the number of records that are durable."""
IMAGES = 60
WAIT_SECONDS = 60.0


def random_record(rng: random.Random) -> Record:
    return Record(
        topic=rng.choice((b"%RETRY%g", b"%DLQ%g")), queue_id=rng.randrange(2),
        body=rng.randbytes(rng.randrange(1, 90)), properties=b"KEYS\x01k%d\x02" % rng.randrange(9),
    )  # fmt: skip


def run(root: Path, recorder: Recorder, rng: random.Random, stored: list[Record]) -> None:
    """Append, sync and dispatch in turn; the last records are neither synced nor dispatched."""
    with (
        LogAppender(root) as appender,
        running(DispatcherConfig(root, root)) as dispatching,
    ):
        appender.sync()
        for _ in range(4):
            stored += appender.append_all([random_record(rng) for _ in range(rng.randrange(1, 7))])
            appender.sync()
            recorder.note(ACKNOWLEDGED, len(stored))
            end = appender.end_offset
            stored += appender.append_all([random_record(rng) for _ in range(rng.randrange(3))])
            dispatching.commit(dispatching.scan(end))


def check(root: Path, stored: Sequence[Record], acknowledged: int) -> None:
    """Open it, go on, and look at everything."""
    with LogAppender(root) as appender:
        recovered = appender.end_offset
        pipeline = Pipeline(root)
        with pipeline, GroupCommit(appender, lambda end, _: pipeline.advance(end)) as commits:
            pipeline.advance(commits.durable_end)
            later = commits.submit([Record(topic=b"%RETRY%g")] * 3).result(WAIT_SECONDS)
            assert pipeline.wait_for(commits.durable_end, WAIT_SECONDS)
    kept = [one for one in stored if one.physical_offset < recovered]
    assert len(kept) >= acknowledged
    log = CommitLog([root / COMMIT_LOG_DIRECTORY])
    for one in (*kept, *later):
        assert log.record_starting_at(one.physical_offset) == one
    offsets = [one.queue_offset for one in kept if (one.topic, one.queue_id) == (b"%RETRY%g", 0)]
    offsets += [one.queue_offset for one in later]
    assert offsets == list(range(len(offsets)))
    verified = verify(settings_of(root, read_store_settings(root)), root)
    assert verified.differences == ()
    assert verified.damage == ()
    assert verified.units == len(kept) + len(later)


def test_a_power_cut_loses_nothing_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """At random operations, with a random part of what was not durable, and sectors whole."""
    monkeypatch.setattr(power_cuts, "PARTED_BYTES", power_cuts.PAGE)
    rng, disk_root = random.Random(seed), tmp_path / "disk"
    root = disk_root / "overlay"
    root.mkdir(parents=True)
    (root / "broker.conf").write_text(CONF)
    stored: list[Record] = []
    with Recorder(disk_root) as recorder:
        for _ in range(2):
            run(root, recorder, rng, stored)
    recorder.check()
    counts = sorted(rng.choices(range(1, len(recorder.operations) + 1), k=IMAGES))
    disk = Disk(recorder.begin, recorder.directories())
    for count, operation in enumerate(recorder.operations, 1):
        disk.apply(operation)
        notes = [int(str(value)) for at, _, value in recorder.notes if at <= count]
        for _ in range(counts.count(count)):
            mount(disk.random_image(rng).tree, disk_root)
            check(root, stored, max(notes, default=0))
