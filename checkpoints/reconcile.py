"""Compare four positions with each other before every start (decision 0002).

The log and the watermark are the truth. Spark's checkpoint is kept if it reads well, belongs to
this output and has a batch that begins at or before the watermark; later batches are repeated.
Otherwise it is moved aside and the query begins anew at the watermark. Each queue's own
maxPhysicOffset is read by the queue's writer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from reput.checkpoints import spark_checkpoint
from reput.checkpoints.agreement import (
    BuiltOutput,
    find_agreement,
    find_foreign_entries,
    what_differs,
)
from reput.checkpoints.spark_checkpoint import DamagedCheckpointError, SparkPosition
from reput.checkpoints.watermark import new_store_id
from reput.store.errors import CommitLogError, UsageError
from reput.store.files import STATE_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.log.places import record_start
from reput.store.state.watermark import Watermark, read_watermark


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one start; making the plan changes nothing."""

    watermark: Watermark
    """The position to begin with; it is written with a new epoch."""
    start: int
    """The offset at which the first batch begins if Spark's checkpoint is new; otherwise the offset
    at which the query resumes."""
    spark: SparkPosition | None
    """The position to which Spark's checkpoint is rewound; None if the checkpoint is moved
    aside."""
    truncate_to: int | None
    """The offset at which the log was cut, below the watermark, or beyond which queues of another
    writer hold what the log does not; everything derived from beyond it must be cut too."""
    lost: tuple[int, int] | None
    """The range [from, to) of the log that was removed and never dispatched."""
    notes: tuple[str, ...]
    """Lines for the log: each finding and the step taken for it."""

    @property
    def replays(self) -> bool:
        """Whether a range below the watermark was asked for again."""
        return self.spark is None and self.start < self.watermark.end_offset


def make_plan(
    log: CommitLog,
    log_end: int,
    previous: Watermark | None,
    spark_directory: Path,
    built: BuiltOutput,
    replay_from: int | None = None,
    store_id: str | None = None,
) -> Plan:
    """Compare the positions and return a plan.

    ``built`` is examined where the log is not as it was dispatched; ``replay_from`` is a record
    start from which to dispatch again; ``store_id`` is the identity for an output without one.

    Raises CommitLogError where too few of the built units agree with the log, and where a part of
    the log may not be mounted.
    """
    notes: list[str] = []
    first = log.min_offset
    watermark = previous or Watermark(store_id or new_store_id(), first)
    truncate_to, lost = None, None
    if previous is None:
        notes.append(f"no watermark: starting at the log's first byte, {first}")
        foreign = find_foreign_entries(log, log_end, built)
        if foreign is not None:
            truncate_to = foreign.end
            notes.append(
                f"the queues are newer than the log, or of another moment of it: cutting what they "
                f"hold from physical offset {truncate_to} on, {foreign.cut_units} units and "
                f"{foreign.cut_index_entries} index entries; {foreign.kept_units} units are kept"
            )
    elif noticed := what_differs(log, log_end, previous):
        agreement = find_agreement(log, log_end, previous, built, noticed)
        truncate_to = agreement.end
        notes.append(
            f"{noticed}: the broker has cut the log and may have gone on otherwise; cutting what "
            f"was built from {truncate_to} to {previous.end_offset}, {agreement.cut_units} units, "
            f"{agreement.kept_units} agree"
        )
        watermark = replace(
            previous,
            end_offset=truncate_to,
            last_record_offset=agreement.last_record_offset,
            last_record_crc=agreement.last_record_crc,
            last_store_timestamp=agreement.last_store_timestamp,
        )
    if watermark.end_offset < first:
        lost = (watermark.end_offset, first)
        log.segments.check_mounted(f"nothing of [{lost[0]}, {lost[1]}) is skipped")
        notes.append(f"log begins at {first}: [{lost[0]}, {lost[1]}) was removed undispatched")
        watermark = watermark.moved_to(first)
    start, spark = watermark.end_offset, None
    if replay_from is not None:
        _check_record_start(log, replay_from, watermark.end_offset)
        start = replay_from
        notes.append(f"replaying from {replay_from}")
    else:
        spark, note = spark_position(spark_directory, watermark, log, log_end)
        if spark is not None:
            start = spark.offset
        if note:
            notes.append(f"{note} at {start}")
    return Plan(watermark, start, spark, truncate_to, lost, tuple(notes))


def spark_position(
    directory: Path, watermark: Watermark, log: CommitLog, log_end: int
) -> tuple[SparkPosition | None, str]:
    """Return Spark's last usable position, and a note if it is not simply where Spark stands.

    A usable position skips nothing and plans no batch that ends beyond the log's end or, after the
    log was cut, at an offset where no record starts.
    """
    try:
        positions = spark_checkpoint.read_positions(directory, watermark.store_id)
    except DamagedCheckpointError as error:
        return None, f"spark checkpoint is not usable ({error}): resuming"
    if not positions:
        return None, "no spark checkpoint: resuming"
    for position in positions:
        end = position.planned_end
        if not log.min_offset <= position.offset <= watermark.end_offset or end > log_end:
            continue
        if end <= watermark.end_offset or record_start(log, end, watermark.end_offset) == end:
            if position is positions[0]:
                return position, ""
            return position, f"spark checkpoint is at {positions[0].offset}: rewound"
    return None, f"spark checkpoint is at {positions[0].offset}: resuming"


def watermark_of(log: CommitLog, tail: LogTail, built: BuiltOutput) -> tuple[Watermark | None, int]:
    """Return the watermark of an output, for upkeep commands, and the end of the log; None where
    reput did not build the output. ``tail`` is that of ``log``.

    Raises CommitLogError where this is not its log, or where a dispatcher must see the log first.
    """
    watermark = read_watermark(built.output / STATE_DIRECTORY)
    # the order matters: a dispatcher may be moving the watermark
    log_end = tail.settled()
    if watermark is None:
        return None, log_end
    if watermark.end_offset < log.min_offset:
        raise CommitLogError(
            f"the log begins at {log.min_offset}, beyond the watermark {watermark.end_offset} of "
            f"{built.output}; if it is the log of this output, run the dispatcher first, which "
            "lists what was lost",
            physical_offset=log.min_offset,
        )
    if noticed := what_differs(log, log_end, watermark):
        agreement = find_agreement(log, log_end, watermark, built, noticed)
        raise CommitLogError(
            f"{noticed}: the broker has cut the log; run the dispatcher first, which cuts "
            f"{agreement.cut_units} units from {agreement.end} on and goes on from there",
            physical_offset=agreement.end,
        )
    return watermark, log_end


def _check_record_start(log: CommitLog, offset: int, end: int) -> None:
    if offset == end:
        return
    if log.segments.at(offset) is None or offset > end:
        raise UsageError(
            f"cannot replay from {offset}: the dispatched log is [{log.min_offset}, {end})"
        )
    near = record_start(log, offset)
    if near != offset:
        raise UsageError(f"cannot replay from {offset}: no record starts there, one does at {near}")
