"""A start compares four positions and decides: one row of a table per case.

Held against decision 0002 (the log and the watermark are the truth, Spark's checkpoint is
replaceable), on real log files and hand-made checkpoint directories. A plan changes no file.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from reput.checkpoints import spark_checkpoint
from reput.checkpoints.agreement import BuiltOutput
from reput.checkpoints.reconcile import Plan, make_plan, watermark_of
from reput.checkpoints.watermark import WatermarkFile
from reput.store.config import StoreSettings
from reput.store.errors import CommitLogError, UsageError
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.state.logoffset import offset_json
from reput.store.state.output import fingerprint
from reput.store.state.watermark import Watermark
from tests.support.golden import tree
from tests.support.wire import PlainLog

STORE = "0123456789abcdef0123456789abcdef"
FILE_SIZE = 1024
RECORDS = 25
QUEUE_FILE_SIZE = 20 * 30


class Scene:
    """A log of a few files, its record starts, and a place for Spark's directory."""

    def __init__(self, directory: Path, first_file: int = 2, body: bytes = b"body") -> None:
        self.directory = directory
        self.plain = PlainLog(FILE_SIZE, first_file * FILE_SIZE)
        for index in range(RECORDS):
            self.plain.append(queue_offset=index, store_timestamp=1000 + index, body=body)
        self.log = CommitLog([self.plain.write(directory / "commitlog")])
        self.spark = directory / "spark"

    def built(self, last: int, topic: str = "Topic", queue_id: int = 0) -> None:
        """A queue with units of the records up to ``last``, and two that hold nothing yet."""
        queue = self.directory / "consumequeue" / topic / str(queue_id)
        queue.mkdir(parents=True)
        units = [struct.pack(">qiq", a, b - a, 0) for a, b in self.plain.spans[: last + 1]]
        data = b"".join(units)
        for start in range(0, len(data), QUEUE_FILE_SIZE):
            file = data[start : start + QUEUE_FILE_SIZE].ljust(QUEUE_FILE_SIZE, b"\0")
            (queue / f"{start:020d}").write_bytes(file)

    @property
    def end(self) -> int:
        return self.plain.end

    def border(self, index: int) -> int:
        """The end of record ``index``; there the next one begins, or a BLANK."""
        return self.plain.spans[index][1]

    def watermark(self, index: int) -> Watermark:
        """The watermark after record ``index``, as the dispatcher would have written it."""
        last = self.plain.spans[index][0]
        crc = fingerprint(self.log, last)
        return Watermark(STORE, self.border(index), 4, 9, last, crc, 1000 + index)

    def planned(self, start: int, end: int, *, store: str = STORE, committed: bool = False) -> None:
        """Spark's directory with one batch [start, end)."""
        for name in ("offsets", "commits"):
            (self.spark / name).mkdir(parents=True)
        (self.spark / "metadata").write_text('{"id":"x"}')
        (self.spark / "offsets" / "0").write_text(
            f"v1\n{{}}\n{json.dumps(offset_json(store, end))}"
        )
        (self.spark / "reput-start").write_text(json.dumps(offset_json(store, start)))
        if committed:
            (self.spark / "commits" / "0").write_text("v1\n{}")

    def plan(
        self,
        found: Watermark | None,
        *,
        log_end: int | None = None,
        replay_from: int | None = None,
    ) -> Plan:
        """A plan, and a check that making it changed nothing."""
        before = tree(self.directory)
        end = self.end if log_end is None else log_end
        settings = StoreSettings(
            self.directory, (), mapped_file_size_consume_queue=QUEUE_FILE_SIZE,
            message_index_enable=False,
        )  # fmt: skip
        built = BuiltOutput(self.directory, settings)
        plan = make_plan(self.log, end, found, self.spark, built, replay_from)
        assert tree(self.directory) == before
        return plan


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    with closing(made.log):
        yield made


def test_a_first_start_begins_at_the_logs_first_byte(scene: Scene) -> None:
    """A new identity; nothing is lost, nothing cut."""
    plan = scene.plan(None)
    assert plan.start == plan.watermark.end_offset == 2 * FILE_SIZE
    assert plan.watermark.last_record_offset == -1
    assert plan.watermark.store_id != scene.plan(None).watermark.store_id
    assert (plan.spark, plan.truncate_to, plan.lost) == (None, None, None)
    assert "no watermark" in " ".join(plan.notes)


@dataclass(frozen=True)
class SparkCase:
    """The content of Spark's directory for a watermark after record 12, and the decision."""

    name: str
    start: int | None
    """Index of the record after which Spark's batch begins; None for no directory."""
    end: int
    committed: bool
    kept_at: int | None
    """Index of the record after which the query resumes; None if the checkpoint is moved aside."""
    store: str = STORE


SPARK_CASES = (
    SparkCase("no directory", None, 0, False, None),
    SparkCase("at the watermark", 4, 12, True, 12),
    SparkCase("before the watermark, committed", 4, 9, True, 9),
    SparkCase("unfinished batch over the watermark", 9, 15, False, 9),
    SparkCase("unfinished batch from the watermark", 12, 15, False, 12),
    SparkCase("ahead, committed: that batch is repeated", 4, 13, True, 4),
    SparkCase("ahead from its first batch on", 13, 15, True, None),
    SparkCase("ahead, unfinished", 13, 15, False, None),
    SparkCase("another store's", 4, 12, True, None, "f" * 32),
)


@pytest.mark.parametrize("case", SPARK_CASES, ids=lambda case: case.name)
def test_sparks_checkpoint_is_kept_where_it_skips_nothing(scene: Scene, case: SparkCase) -> None:
    """Kept at, or brought back to, a batch's start at or before the watermark; otherwise the query
    begins anew at the watermark."""
    if case.start is not None:
        scene.planned(
            scene.border(case.start),
            scene.border(case.end),
            store=case.store,
            committed=case.committed,
        )
    found = scene.watermark(12)
    plan = scene.plan(found)
    assert plan.watermark == found
    assert (plan.spark is not None) is (case.kept_at is not None)
    assert plan.start == scene.border(12 if case.kept_at is None else case.kept_at)
    assert (plan.truncate_to, plan.lost) == (None, None)
    stays = (
        plan.spark == spark_checkpoint.read_position(scene.spark, STORE) if plan.spark else False
    )
    assert bool(plan.notes) is not stays


def test_a_planned_end_within_a_record_is_not_kept(scene: Scene) -> None:
    """The log was cut and went on with records of other sizes since Spark planned the batch."""
    scene.planned(scene.border(9), scene.border(15) + 7)
    plan = scene.plan(scene.watermark(12))
    assert (plan.spark, plan.start) == (None, scene.border(12))


@pytest.mark.parametrize("name", ["metadata", "offsets/0", "commits/0"])
def test_a_damaged_checkpoint_is_not_kept(scene: Scene, name: str) -> None:
    """The watermark knows everything that it knew, and the note says what was wrong."""
    scene.planned(scene.border(4), scene.border(12), committed=True)
    (scene.spark / name).write_bytes(b"v1")
    plan = scene.plan(scene.watermark(12))
    assert (plan.spark, plan.start) == (None, scene.border(12))
    assert name in " ".join(plan.notes)


def test_an_empty_checkpoint_directory_is_none(scene: Scene) -> None:
    """The watermark decides."""
    scene.spark.mkdir()
    plan = scene.plan(scene.watermark(3))
    assert (plan.spark, plan.start) == (None, scene.border(3))


@pytest.mark.parametrize(("spark_end", "kept"), [(8, True), (10, True), (11, False), (14, False)])
def test_a_log_that_shrank_cuts_what_was_built(scene: Scene, spark_end: int, kept: bool) -> None:
    """The broker cut its log before our watermark: the position follows, Spark's if it must."""
    scene.planned(scene.border(2), scene.border(spark_end), committed=True)
    scene.built(14)
    plan = scene.plan(scene.watermark(14), log_end=scene.border(10))
    assert plan.truncate_to == scene.border(10)
    assert plan.watermark == scene.watermark(10)
    assert (plan.spark is not None) is kept
    assert plan.start == scene.border(spark_end if kept else 10)
    assert plan.lost is None
    assert "cutting" in " ".join(plan.notes)


@pytest.mark.parametrize("is_longer", [False, True])
@pytest.mark.parametrize(
    "other", [{"topic": b"Topix"}, {"queue_id": 1}, {"queue_offset": 1}, {"store_timestamp": 2000}]
)
def test_records_that_only_look_like_those_dispatched_are_cut(
    scene: Scene, other: dict[str, Any], is_longer: bool
) -> None:
    """They stand at the same places and have the same sizes; one field tells them apart."""
    scene.built(20)
    found = scene.watermark(20)
    spans = scene.plain.spans
    again = PlainLog(FILE_SIZE, scene.plain.start)
    for index in range(RECORDS):
        fields: dict[str, Any] = {"queue_offset": index, "store_timestamp": 1000 + index}
        # a clock that was put back
        again.append(**(fields if index <= 15 else fields | {"store_timestamp": 1000} | other))
    assert again.spans == spans
    again.write(scene.directory / "commitlog")
    end = None if is_longer else scene.border(18)
    plan = scene.plan(found, log_end=end)
    assert plan.truncate_to == scene.border(15)
    assert plan.watermark == replace(scene.watermark(15), epoch=4)
    assert f"from {scene.border(15)} to {scene.border(20)}, 5 units, 16 agree" in plan.notes[0]


def test_records_of_another_tag_are_cut(tmp_path: Path) -> None:
    """Place, size, queue, queue offset and store time are the same."""
    scene = Scene(tmp_path, body=b"of 11 bytes")
    scene.built(20)
    found = scene.watermark(20)
    again = PlainLog(FILE_SIZE, scene.plain.start)
    for index in range(RECORDS):
        tagged = {"body": b"of 4", "properties": b"TAGS\1x\2"}
        fields = {"body": b"of 11 bytes"} if index <= 15 else tagged
        again.append(queue_offset=index, store_timestamp=1000 + index, **fields)
    assert again.spans == scene.plain.spans
    again.write(scene.directory / "commitlog")
    assert scene.plan(found).truncate_to == scene.border(15)


@pytest.mark.parametrize("alike", range(17, 20))
def test_an_old_unit_that_agrees_by_chance_moves_no_cut(scene: Scene, alike: int) -> None:
    """One of five units that the log has lost points to a message like its own. The search may
    look at it, between others that differ."""
    scene.built(20)
    found = scene.watermark(20)
    again = PlainLog(FILE_SIZE, scene.plain.start)
    for index in range(RECORDS):
        is_other = index > 15 and index != alike
        topic = b"Topix" if is_other else b"Topic"
        again.append(topic=topic, queue_offset=index, store_timestamp=1000 + index)
    assert again.spans == scene.plain.spans
    again.write(scene.directory / "commitlog")
    for log_end in (scene.border(20) - 1, scene.border(19) - 1, scene.border(18) - 1):
        assert scene.plan(found, log_end=log_end).truncate_to == scene.border(15)


@pytest.mark.parametrize(
    ("same", "count", "is_enough"),
    [
        (0, 25, False), (1, 25, False), (7, 25, False), (15, 25, True),
        (15, 35, False), (16, 35, True),
    ],
)  # fmt: skip
def test_a_few_messages_of_one_shape_are_no_agreement(
    scene: Scene, same: int, count: int, is_enough: bool
) -> None:
    """As two logs may begin with: at least as many units must agree as do not, or 16."""
    for index in range(RECORDS, count):
        scene.plain.append(queue_offset=index, store_timestamp=1000 + index, body=b"body")
    scene.plain.write(scene.directory / "commitlog")
    scene.log.refresh()
    scene.built(count - 1)
    found = scene.watermark(count - 1)
    again = PlainLog(FILE_SIZE, scene.plain.start)
    for index in range(count + 5):
        is_same = index < same
        topic, time = (b"Topic", 1000 + index) if is_same else (b"Other", 1000)
        again.append(topic=topic, queue_offset=index, store_timestamp=time)
    again.write(scene.directory / "commitlog")
    scene.log.refresh()
    if is_enough:
        assert scene.plan(found, log_end=again.end).truncate_to == scene.border(same - 1)
        return
    with pytest.raises(CommitLogError, match="nothing was cut") as caught:
        scene.plan(found, log_end=again.end)
    counted = f"only {same} of the {count} units" if same else f"none of the {count} units"
    assert counted in str(caught.value)


@pytest.mark.parametrize("which", [{"topic": "Other"}, {"queue_id": 4}])
def test_another_shorter_log_is_refused_before_anything_is_cut(
    scene: Scene, which: dict[str, Any]
) -> None:
    """Given by mistake: the queues were built from other records than stand there."""
    scene.built(14, **which)
    with pytest.raises(CommitLogError, match="this is another log") as caught:
        scene.plan(scene.watermark(14), log_end=scene.border(10))
    assert "none of the 15 units of the queues" in str(caught.value)


def test_a_shorter_log_whose_records_stand_elsewhere_is_refused(scene: Scene) -> None:
    """The units point into the middle of records."""
    found = scene.watermark(14)
    scene.plain.spans = [(start + 1, end + 1) for start, end in scene.plain.spans]
    scene.built(14)
    with pytest.raises(CommitLogError, match="this is another log"):
        scene.plan(found, log_end=scene.border(10))


@pytest.mark.parametrize("number", [16, 20])
def test_of_the_units_that_seem_to_agree_samples_must_agree(scene: Scene, number: int) -> None:
    """The search looks at the newest of twenty units alone. The 16th from the last and the oldest
    one are samples, and a record of another queue stands there."""
    scene.built(24)
    found = scene.watermark(24)
    scene.plain.put(scene.plain.spans[20 - number][0] + 12, b"\0\0\0\x07")
    scene.plain.write(scene.directory / "commitlog")
    offset = scene.plain.spans[20 - number][0]
    end = scene.border(19)
    with pytest.raises(CommitLogError, match=f"offset {offset} is not the one") as caught:
        scene.plan(found, log_end=end)
    assert f", 20 of 25 units agree up to {end}, but the record" in str(caught.value)


def test_a_log_that_holds_nothing_of_what_was_built_is_refused(tmp_path: Path) -> None:
    """All files gone, as with a disk that is not there: the queues stay as they are."""
    scene = Scene(tmp_path, first_file=0)
    found = scene.watermark(14)
    scene.built(14)
    for segment in scene.log.segments.listed:
        segment.path.unlink()
    scene.log.refresh()
    with pytest.raises(CommitLogError, match="nothing was cut"):
        scene.plan(found, log_end=0)


def test_a_log_that_is_empty_again_starts_anew(tmp_path: Path) -> None:
    """All files gone, and no queue was built: position 0, nothing is lost that was not built."""
    scene = Scene(tmp_path, first_file=0)
    found = scene.watermark(14)
    for segment in scene.log.segments.listed:
        segment.path.unlink()
    scene.log.refresh()
    plan = scene.plan(found, log_end=0)
    assert (plan.truncate_to, plan.start, plan.lost) == (0, 0, None)
    nothing = {"end_offset": 0, "last_record_offset": -1, "last_record_crc": 0}
    assert plan.watermark == replace(found, **nothing)
    assert f"from 0 to {found.end_offset}, 0 units, 0 agree" in plan.notes[0]


def test_where_no_queue_has_a_unit_all_of_a_cut_log_comes_again(scene: Scene) -> None:
    """Nothing says how much of it is as it was: entries of the index and the ledger may be of
    messages in whose place others are now."""
    found = scene.watermark(14)
    plan = scene.plan(found, log_end=scene.border(10))
    first = scene.log.min_offset
    assert first > 0
    assert (plan.truncate_to, plan.start, plan.lost) == (first, first, None)


def remove_first_files(scene: Scene, count: int) -> int:
    for segment in scene.log.segments.listed[:count]:
        segment.path.unlink()
    scene.log.refresh()
    return scene.log.min_offset


def test_what_retention_took_before_dispatch_is_lost_and_said(scene: Scene) -> None:
    """[watermark, first byte) goes to the ledger; the query begins at the first byte."""
    found = scene.watermark(3)
    scene.planned(scene.border(1), scene.border(3), committed=True)
    first = remove_first_files(scene, 2)
    plan = scene.plan(found)
    assert plan.lost == (found.end_offset, first)
    assert (plan.start, plan.watermark.end_offset) == (first, first)
    assert plan.watermark.store_id == STORE
    assert plan.watermark.last_record_offset == -1
    assert plan.spark is None
    assert plan.truncate_to is None


def test_what_retention_took_after_dispatch_is_no_loss(scene: Scene) -> None:
    """The log now begins before, at or after the last record that we saw; all is dispatched."""
    for count in (1, 2):
        first = remove_first_files(scene, 1)
        last = next(i for i, span in enumerate(scene.plain.spans) if span[0] >= first + 300)
        plan = scene.plan(scene.watermark(last))
        assert (plan.lost, plan.start) == (None, scene.border(last)), count
    # the watermark is exactly where the log begins
    before = Watermark(STORE, scene.log.min_offset, 4, 9, scene.log.min_offset - 100, 123)
    assert scene.plan(before).lost is None
    assert scene.plan(before).start == scene.log.min_offset


def test_spark_before_the_logs_first_byte_is_not_kept(scene: Scene) -> None:
    """It would ask for bytes that are gone."""
    scene.planned(scene.border(0), scene.border(1), committed=True)
    found = scene.watermark(20)
    remove_first_files(scene, 1)
    plan = scene.plan(found)
    assert (plan.spark, plan.start) == (None, scene.border(20))


@pytest.mark.parametrize("at", [0, 8, 12, 20, 28, 56, 72, 87])
def test_a_log_of_which_nothing_was_built_is_refused(scene: Scene, at: int) -> None:
    """The last record below the watermark is another one: any of its first 88 bytes tells."""
    found = scene.watermark(12)
    path = scene.log.segments.at(found.last_record_offset)
    assert path is not None
    position = found.last_record_offset - path.start + at
    with path.path.open("r+b") as file:
        old = os.pread(file.fileno(), 1, position)
        os.pwrite(file.fileno(), bytes([old[0] ^ 1]), position)
    for log_end in (None, found.end_offset):
        with pytest.raises(CommitLogError) as caught:
            scene.plan(found, log_end=log_end)
        for part in (str(found.last_record_offset), str(found.end_offset), "`output="):
            assert part in str(caught.value)


def test_an_unknown_last_record_is_not_checked(scene: Scene) -> None:
    """After a cut or a loss there is none to compare."""
    found = replace(scene.watermark(12), last_record_offset=-1, last_record_crc=0)
    assert scene.plan(found).start == scene.border(12)


def test_an_output_that_reput_did_not_build_has_no_watermark(scene: Scene) -> None:
    """Upkeep's commands then say so, each in its own words."""
    scene.built(3)
    built = BuiltOutput(scene.directory, StoreSettings(scene.directory, ()))
    assert watermark_of(scene.log, LogTail(scene.log), built) == (None, scene.end)


def test_a_watermark_where_the_log_begins_is_one(scene: Scene) -> None:
    """Nothing is dispatched yet, or retention has come just so far: nothing is lost."""
    state, begin = scene.directory / "reput", scene.log.min_offset
    state.mkdir(parents=True, exist_ok=True)
    with closing(WatermarkFile(state)) as file:
        file.advance(Watermark("0" * 32, begin))
    built = BuiltOutput(scene.directory, StoreSettings(scene.directory, ()))
    found, _ = watermark_of(scene.log, LogTail(scene.log), built)
    assert found is not None
    assert found.end_offset == begin


def test_a_replay_begins_at_any_record_that_was_dispatched(scene: Scene) -> None:
    """Every record start, every file start and the watermark itself; Spark begins anew."""
    scene.planned(scene.border(4), scene.border(12), committed=True)
    found = scene.watermark(20)
    starts = {start for start, _ in scene.plain.spans[:21]} | {scene.border(20)}
    starts |= {file.start for file in scene.log.segments.listed if file.start < scene.border(20)}
    for offset in starts:
        plan = scene.plan(found, replay_from=offset)
        assert (plan.start, plan.spark) == (offset, None)
        assert plan.watermark == found
        assert f"replaying from {offset}" in plan.notes


def test_a_replay_from_elsewhere_is_refused(scene: Scene) -> None:
    """Inside a record the error names where it starts; elsewhere the range that there is."""
    found = scene.watermark(20)
    start, end = scene.plain.spans[7]
    for offset in (start + 1, end - 1):
        with pytest.raises(UsageError, match=f"no record starts there, one does at {start}"):
            scene.plan(found, replay_from=offset)
    first = scene.log.min_offset
    for offset in (first - 1, 0, -1, found.end_offset + 1, scene.plain.spans[22][0], 1 << 50):
        with pytest.raises(UsageError) as caught:
            scene.plan(found, replay_from=offset)
        assert f"[{first}, {found.end_offset})" in str(caught.value)
