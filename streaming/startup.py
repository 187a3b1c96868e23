"""The start of one attempt up to Spark: positions are compared, then the output is taken over.

It needs no Spark, so that a test starts on what a power cut has left exactly as a run does.
"""

from __future__ import annotations

import logging
import re
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reput.checkpoints import spark_checkpoint
from reput.checkpoints.agreement import BuiltOutput
from reput.checkpoints.presence import find_loss
from reput.checkpoints.reconcile import Plan, make_plan
from reput.checkpoints.swap import has_begun_swap
from reput.store.config import StoreSettings
from reput.store.errors import StoreError, UsageError
from reput.store.files import SPARK_START_FILE
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.state.built import settings_of
from reput.store.state.watermark import Watermark, read_watermark
from reput.streaming.commit import Committer
from reput.streaming.config import DispatcherConfig
from reput.streaming.estimate import warn_of_little_space
from reput.streaming.indexes import Indexes
from reput.streaming.refusals import check_output, check_queues_are_ours

if TYPE_CHECKING:
    from reput.streaming.followers import Followers  # imports pyspark, which a start does not need

logger = logging.getLogger("reput")


@dataclass(frozen=True, slots=True)
class Start:
    """The findings of one start; nothing has changed yet."""

    indexes: Indexes
    log_end: int
    """The sealed end of the log."""
    plan: Plan


def look(config: DispatcherConfig) -> Start:
    """Return what a start would do now. Nothing is changed, and the output stays free for others.

    Raises what a start raises, and StoreError where a start would finish a killed rebuild first.
    """
    given, log = config.open_store()
    with closing(log):
        check_output(config, given)
        if has_begun_swap(config.output):
            raise StoreError(
                f"a rebuild of {config.output} was killed, and the next start finishes it before "
                "anything else; start without a dry run",
                path=config.output,
            )
        settings = settings_of(config.output, given, config.flags)
        return plan_start(config, settings, log, replay_offset(config, log))


def replay_offset(config: DispatcherConfig, log: CommitLog) -> int | None:
    """Return the physical offset of ``replay_from``. Raises UsageError."""
    text = config.replay_from
    if text is None:
        return None
    if text == "earliest":
        return log.min_offset
    if not re.fullmatch("[0-9]{1,18}", text):
        raise UsageError(f"`replay_from=` is {text!r}; it must be earliest or a physical offset")
    return int(text)


def plan_start(
    config: DispatcherConfig,
    settings: StoreSettings,
    log: CommitLog,
    replay_from: int | None = None,
) -> Start:
    """Compare the positions of an output that this process owns. Raises like ``make_plan``, and
    UsageError or StoreError for queues that are not ours."""
    watermark = read_watermark(config.state_directory)
    if watermark is None and not config.adopt:
        check_queues_are_ours(config.store, config.output)
    indexes = Indexes.of(config, settings)
    log.refresh()
    log_end = LogTail(log).settled()
    if watermark is None:
        warn_of_little_space(config.output, log, log_end, settings)
    built = BuiltOutput(config.output, settings)
    plan = make_plan(
        log, log_end, watermark, config.spark_directory, built, replay_from, config.store_id
    )
    if watermark is not None and plan.truncate_to is None:
        plan = _with_everything_there(config, settings, log, log_end, watermark, plan)
    return Start(indexes, log_end, plan)


def _with_everything_there(
    config: DispatcherConfig,
    settings: StoreSettings,
    log: CommitLog,
    log_end: int,
    watermark: Watermark,
    plan: Plan,
) -> Plan:
    """Return the plan, if nothing is missing of what was built or a replay builds it again; where
    no queue is left, a plan from the log's beginning (decision 0019). Raises StoreError where a
    part is missing."""
    built = BuiltOutput(config.output, settings)
    loss = find_loss(log, watermark, built)
    if loss is None or (plan.replays and plan.start <= loss.remaining_end):
        return plan
    if not loss.is_everything:
        raise loss.error(settings)
    log.segments.check_mounted("the queues are not built again")
    first = log.min_offset
    begin = first if settings.builds_index else watermark.index_begin
    lowered = replace(watermark.moved_to(first), index_begin=min(begin, watermark.index_begin))
    logger.warning(
        "all queues of %s are gone, %d queues and index files in all: building them again from the "
        "log's first byte, %d; followers wait at %d",
        config.output, len(loss.names), first, watermark.end_offset,
    )  # fmt: skip
    return make_plan(log, log_end, lowered, config.spark_directory, built)


def take_over(
    config: DispatcherConfig, start: Start, committer: Committer, followers: Followers
) -> None:
    """Carry the plan out: nothing lies beyond the watermark that the next batch does not write
    again, and the query begins at the plan's start. Raises OutputError, QueueFileError,
    IndexFileError."""
    for note in start.plan.notes:
        logger.info("%s", note)
    committer.take_over(start.plan)
    followers.start(start.plan.watermark.end_offset, start.log_end)
    _prepare_spark_directory(config, start.plan)


def _prepare_spark_directory(config: DispatcherConfig, plan: Plan) -> None:
    """Keep a usable checkpoint; give a new query an empty directory and a pinned start, in place of
    one from which no query has begun."""
    directory = config.spark_directory
    if plan.spark is not None:
        spark_checkpoint.rewind(directory, plan.spark)
        return
    if directory.is_dir() and any(path.name != SPARK_START_FILE for path in directory.iterdir()):
        logger.warning(
            "spark checkpoint moved aside: path=%s", spark_checkpoint.move_aside(directory)
        )
    root = config.output if directory.is_relative_to(config.output) else directory
    spark_checkpoint.pin_start(directory, root, plan.watermark.store_id, plan.start)
