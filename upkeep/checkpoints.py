"""Shows, checks and rewinds the positions of an output, without Spark's JVM.

A rewind is a start that cuts at a chosen place and then dispatches nothing: it takes the way of a
start that finds the log cut (decision 0009), and is as safe against a kill at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from reput.checkpoints import spark_checkpoint
from reput.checkpoints.agreement import BuiltOutput, what_differs
from reput.checkpoints.followers import read_follower_states
from reput.checkpoints.history import Batch, History, read_history
from reput.checkpoints.keptstate import KeptState, drop_kept, keep_state, list_kept
from reput.checkpoints.ownership import Ownership
from reput.checkpoints.presence import find_loss
from reput.checkpoints.reconcile import make_plan, watermark_of
from reput.checkpoints.rewind import Rewind, Target, plan_rewind
from reput.checkpoints.swap import finish_owned_swap
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.errors import CommitLogError, NotFoundError, UsageError
from reput.store.files import ABORT_FILE, SPARK_DIRECTORY, STATE_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange
from reput.store.log.logtail import LogTail
from reput.store.log.places import pass_over
from reput.store.state.output import check_is_output
from reput.store.state.watermark import Watermark, read_watermark
from reput.upkeep.verify.positions import watermark_differences


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of one output."""

    watermark: int
    log_min: int
    log_end: int
    spark_directory: Path
    history: History
    kept: tuple[KeptState, ...]


@dataclass(frozen=True, slots=True)
class BatchContent:
    """One batch of Spark's checkpoint, and what the log holds in its range."""

    batch: Batch
    watermark: int
    messages: int | None
    """Number of sound records; None where the range or a part of it is not in the log."""
    first_stored_ms: int | None
    last_stored_ms: int | None
    bad: tuple[BadRange, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """The state of an output's positions, and what the next start makes of them."""

    problems: tuple[str, ...]
    next_start: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rewound:
    """A rewind that was planned or carried out."""

    rewind: Rewind
    applied: bool
    batches: tuple[int, ...]
    """Batches of Spark's checkpoint that end beyond the place."""
    followers: tuple[str, ...]
    """Followers whose targets hold messages beyond it: a table drops them and gets them again, a
    mirror gets them twice."""
    kept: Path | None
    """The copy of the old positions; None if nothing was rewound."""


def spark_directory_of(output: Path, checkpoint: Path | None) -> Path:
    """Return the directory of Spark's checkpoint."""
    return checkpoint or output / STATE_DIRECTORY / SPARK_DIRECTORY


def read_positions(settings: StoreSettings, output: Path, checkpoint: Path | None) -> Positions:
    """Return the positions. Raises UsageError for a directory that reput did not write, and where
    ``checkpoint`` is no directory."""
    with _opened(settings, output) as log:
        watermark = _any_watermark(settings, output)
        spark = spark_directory_of(output, checkpoint)
        if checkpoint is not None and not spark.is_dir():
            raise UsageError(f"there is no directory {spark}; give the `checkpoint=` of reput run")
        return Positions(
            watermark.end_offset, log.min_offset, LogTail(log).settled(), spark,
            read_history(spark, watermark.store_id), tuple(list_kept(output, spark)),
        )  # fmt: skip


def read_batch(
    settings: StoreSettings, output: Path, checkpoint: Path | None, batch_id: int
) -> BatchContent:
    """Return one batch with what the log holds in its range. Raises NotFoundError."""
    positions = read_positions(settings, output, checkpoint)
    batch = positions.history.batch(batch_id)
    if batch is None:
        option = () if checkpoint is None else ("--checkpoint", str(checkpoint))
        listed = command_line("checkpoints list", settings.root, output, *option)
        raise NotFoundError(
            f"no batch {batch_id} in {positions.spark_directory}; {listed} shows those that are "
            "there"
        )
    if batch.start is None or batch.start < positions.log_min or batch.end > positions.log_end:
        return BatchContent(batch, positions.watermark, None, None, None, ())
    with _opened(settings, output) as log:
        passed = pass_over(log, batch.start, batch.end)
        return BatchContent(
            batch, positions.watermark, passed.messages,
            None if passed.first_record_offset < 0 else log.store_time(passed.first_record_offset),
            None if passed.last_record_offset < 0 else log.store_time(passed.last_record_offset),
            passed.bad,
        )  # fmt: skip


def check(settings: StoreSettings, output: Path, checkpoint: Path | None) -> Check:
    """Look for damage of watermark and Spark's checkpoint, each file and all together, and say
    what the next start would do. It only reads, also while others write."""
    state, spark = output / STATE_DIRECTORY, spark_directory_of(output, checkpoint)
    problems: list[str] = []
    with _opened(settings, output) as log:
        watermark = _any_watermark(settings, output)
        for difference in watermark_differences(state):
            problems.append(
                f"{difference.path}: {difference.damage} {difference.entry} is not sound"
            )
        problems += (
            f"{spark.name}/{line}" for line in read_history(spark, watermark.store_id).damage
        )
        log_end = LogTail(log).settled()
        if noticed := what_differs(log, log_end, watermark):
            problems.append(noticed)
        elif loss := find_loss(log, watermark, BuiltOutput(output, settings)):
            problems.append(str(loss.error(settings)))
        try:
            plan = make_plan(log, log_end, watermark, spark, BuiltOutput(output, settings))
            notes = list(plan.notes) or [f"goes on at {plan.start}"]
        except CommitLogError as error:
            notes = [f"is refused: {error}"]
    if (state / ABORT_FILE).exists():
        notes.append(
            f"a run goes on or was cut short: a start clears what is beyond {watermark.end_offset}"
        )
    return Check(tuple(problems), tuple(notes))


def rewind(
    settings: StoreSettings,
    output: Path,
    checkpoint: Path | None,
    target: Target,
    *,
    apply: bool,
) -> Rewound:
    """Plan a rewind, and carry it out if ``apply``.

    Without ``apply`` it only reads, also while others write. Raises like ``plan_rewind``;
    OwnershipError while a dispatcher or a broker runs on the output, and CommitLogError where the
    log was cut below the watermark.
    """
    with ExitStack() as resources:
        log = resources.enter_context(_opened(settings, output))
        _any_watermark(settings, output)  # nothing is created in a directory that is not an output
        if apply:
            resources.enter_context(Ownership(output))
            finish_owned_swap(output)
        spark = spark_directory_of(output, checkpoint)
        built = BuiltOutput(output, settings)
        watermark, log_end = watermark_of(log, LogTail(log), built)
        if watermark is None:
            raise _no_watermark(settings, output)
        loss = find_loss(log, watermark, built)
        if loss is not None:
            raise loss.error(settings)
        rewinding = plan_rewind(log, log_end, watermark, spark, built, target)
        history = read_history(spark, watermark.store_id)
        batches = tuple(batch.batch_id for batch in history.batches if batch.end > rewinding.offset)
        followers = tuple(
            state.name
            for state in read_follower_states(output / STATE_DIRECTORY)
            if state.position is None or state.position > rewinding.offset
        )
        kept = None
        if apply and rewinding.offset < rewinding.watermark:
            kept = keep_state(output, spark, rewinding.watermark, rewinding.offset)
            _cut(settings, output, checkpoint, log, rewinding)
        return Rewound(rewinding, apply, batches, followers, kept)


def _cut(
    settings: StoreSettings,
    output: Path,
    checkpoint: Path | None,
    log: CommitLog,
    rewinding: Rewind,
) -> None:
    # pyspark and Arrow take a second, and no dry run needs them
    from reput.streaming.commit import Committer  # noqa: PLC0415
    from reput.streaming.config import DispatcherConfig  # noqa: PLC0415
    from reput.streaming.followers import Followers  # noqa: PLC0415
    from reput.streaming.indexes import Indexes  # noqa: PLC0415

    config = DispatcherConfig(settings.root, output, once=True, checkpoint=checkpoint)
    indexes = Indexes.of(config, settings)
    followers = Followers(config, settings, rewinding.plan.watermark.store_id)
    committer = Committer(config, indexes, log, followers)
    try:
        committer.take_over(rewinding.plan)
        if rewinding.plan.spark is not None:
            spark_checkpoint.rewind(config.spark_directory, rewinding.plan.spark)
        elif config.spark_directory.is_dir():
            spark_checkpoint.move_aside(config.spark_directory)
        committer.end()
    finally:
        committer.close()
        followers.close()


def prune(
    settings: StoreSettings, output: Path, checkpoint: Path | None, *, apply: bool
) -> list[KeptState]:
    """Return what rewinds and starts have set aside, and remove it if ``apply``. Raises
    OwnershipError while a dispatcher or a broker runs on the output."""
    check_is_output(output, settings.root)
    _any_watermark(settings, output)
    spark = spark_directory_of(output, checkpoint)
    if not apply:
        return list_kept(output, spark)
    with Ownership(output):
        return drop_kept(output, spark)


@contextmanager
def _opened(settings: StoreSettings, output: Path) -> Iterator[CommitLog]:
    check_is_output(output, settings.root)
    log = settings.open_log()
    try:
        yield log
    finally:
        log.close()


def _any_watermark(settings: StoreSettings, output: Path) -> Watermark:
    watermark = read_watermark(output / STATE_DIRECTORY)
    if watermark is None:
        raise _no_watermark(settings, output)
    return watermark


def _no_watermark(settings: StoreSettings, output: Path) -> UsageError:
    return UsageError(
        f"{output} has no watermark: reput did not build its queues; give the `output=` that reput "
        "writes, or take the queues over: "
        f"{command_line('run', settings.root, output, '--adopt', '--once')}"
    )
