"""Compares everything derived from a log with it, and heals it, without Spark or a JVM."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from reput.checkpoints.agreement import BuiltOutput
from reput.checkpoints.ownership import Ownership
from reput.checkpoints.reconcile import watermark_of
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.errors import CommitLogError, OutputError, StoreError, UsageError
from reput.store.files import CONSUME_QUEUE_EXT_DIRECTORY, STATE_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.log.record import SIZE_MAGIC_LENGTH
from reput.store.state.built import record_build
from reput.store.state.output import check_is_output
from reput.store.state.watermark import Watermark
from reput.streaming.progress import ReadProgress
from reput.upkeep.verify.difference import Difference, LogRange
from reput.upkeep.verify.logcomparison import LogComparison
from reput.upkeep.verify.logdamage import LogDamage, damage_advice
from reput.upkeep.verify.positions import watermark_differences
from reput.upkeep.verify.repair import heal
from reput.upkeep.verify.seal import Seal, make_seal, note_unused, read_seal, write_seal

logger = logging.getLogger("reput")


@dataclass(frozen=True, slots=True)
class Verification:
    """The extent of a comparison and its findings."""

    log_start: int
    seal_end: int
    """The log before it was not read, because a seal holds; the log's start without one."""
    log_end: int
    """End of the compared log, exclusive: the watermark, or the log's end where there is none."""
    queues: int
    units: int
    """Number of units of consume and batch queues compared with the log."""
    index_entries: int
    """Number of index entries compared with the log."""
    differences: tuple[Difference, ...]
    damage: tuple[LogDamage, ...]
    unseen_units: int
    """Number of units of messages in the damage, which could not be compared."""
    unseen_index_entries: int
    """The same of index entries."""
    replay_from: int | None
    """The offset to which a repair lowers the watermark; None where no message lacks an entry."""


def verify(
    settings: StoreSettings,
    output: Path,
    *,
    repair: bool = False,
    dry_run: bool = False,
    sealed: bool = False,
    show: Callable[[ReadProgress], None] = lambda _: None,
) -> Verification:
    """Compare an output with its log, and repair it on request; ``settings`` are those with which
    it was built (``store.state.built.settings_of``).

    With ``sealed`` it reads only what is new since the output was sealed, as long as the seal holds
    (``upkeep.verify.seal``), and seals what it has found right. Without both it only reads. After
    each part of the log it calls ``show``, with new progress where it begins again. Raises
    CommitLogError where the log is not the one that was dispatched, QueueFileError or
    IndexFileError where the file size is wrong everywhere, UsageError for a directory that is not
    an output, for topics declared otherwise than they are built, and for what cannot be sealed;
    with ``repair`` CommitLogError where the log was damaged since, UsageError for queues that
    reput did not build, OwnershipError while others write. A ``dry_run`` of a repair raises the
    same, except for others that write, and changes nothing.
    """
    log = settings.open_log()
    with ExitStack() as resources:
        resources.callback(log.close)
        check_is_output(output, settings.root)
        built = BuiltOutput(output, settings)
        if repair:
            _check_repairable(log, built)
            if not dry_run:
                resources.enter_context(Ownership(output))
        tail = LogTail(log)
        watermark, sealed_end = watermark_of(log, tail, built)
        end = sealed_end if watermark is None else watermark.end_offset

        def look_up(seen_end: int) -> int:
            # most often nothing has been added: one small read, no wait
            log.refresh()
            return (
                tail.settled(seen_end) if any(log.read(seen_end, SIZE_MAGIC_LENGTH)) else seen_end
            )

        scope = LogRange(log.min_offset, end, sealed_end, look_up)

        def compare(seal: Seal | None = None) -> LogComparison:
            comparison = LogComparison(built, log, scope, watermark, seal)
            comparison.compare(show)
            return comparison

        if sealed:
            _check_sealable(output, settings, watermark)
            comparison = _compare_sealed(compare, output, settings, log, end)
        else:
            comparison = compare()
        verdict = _verification(comparison)
        if repair and verdict.damage:
            first = verdict.damage[0]
            # a message that had a unit may have been in it, and gets none again
            raise CommitLogError(
                f"{first.line}, and was sound when it was dispatched; nothing was cut: "
                f"{damage_advice(settings, output)}",
                path=first.path,
                physical_offset=first.physical_offset,
            )
        if repair and not dry_run:
            # the bytes that show it in the files may be cut
            record_build(output, settings)
            heal(comparison)
    return verdict


def _verification(comparison: LogComparison) -> Verification:
    return Verification(
        log_start=comparison.scope.start,
        seal_end=comparison.read.start,
        log_end=comparison.scope.end,
        differences=tuple(comparison.differences),
        damage=tuple(LogDamage.of(comparison.log, bad) for bad in comparison.scope.damaged),
        replay_from=comparison.replay_from,
        **comparison.counts._asdict(),
    )


def _check_repairable(log: CommitLog, built: BuiltOutput) -> None:
    log.segments.check_mounted("nothing is cut")
    watermark, _ = watermark_of(log, LogTail(log), built)
    if watermark is None and not watermark_differences(built.output / STATE_DIRECTORY):
        raise UsageError(
            f"{built.output} has no watermark: reput did not build its queues; build them anew: "
            f"{command_line('rebuild', built.settings.root, built.output)}"
        )


def _check_sealable(output: Path, settings: StoreSettings, watermark: Watermark | None) -> None:
    if watermark is None and not watermark_differences(output / STATE_DIRECTORY):
        raise UsageError(
            f"{output} has no watermark: reput did not build its queues, and only what it builds "
            "can be sealed; leave out `sealed=`"
        )
    if settings.enable_consume_queue_ext or (output / CONSUME_QUEUE_EXT_DIRECTORY).is_dir():
        raise UsageError(
            f"{output} has a {CONSUME_QUEUE_EXT_DIRECTORY}, whose units cannot be sealed: their "
            "addresses are compared with the whole log; leave out `sealed=`"
        )


def _compare_sealed(
    compare: Callable[[Seal | None], LogComparison],
    output: Path,
    settings: StoreSettings,
    log: CommitLog,
    end: int,
) -> LogComparison:
    """Compare what is new since the output was sealed, or everything where the seal does not hold
    or anything differs, and seal the output anew where nothing does."""
    old = read_seal(output, settings, log, end)
    if old is not None and (fault := old.changed(output, log.min_offset)) is not None:
        note_unused(fault)
        old = None
    new = None
    try:
        new = make_seal(output, settings, log, end, old)
    except (OSError, StoreError) as error:
        logger.info("not sealed: %s", error)
    comparison = None if old is None else _compare_new(compare, old)
    if comparison is None:
        comparison = compare(None)
    if new is not None and comparison.is_right() and new.has_times(comparison.index.headers):
        _put(output, new)
    return comparison


def _compare_new(
    compare: Callable[[Seal | None], LogComparison], seal: Seal
) -> LogComparison | None:
    """Compare what is not sealed; None where everything has to be compared."""
    try:
        comparison = compare(seal)
    except (OSError, StoreError) as error:
        note_unused(str(error))
        return None
    if not comparison.is_right():
        note_unused("something differs")
        return None
    return comparison


def _put(output: Path, seal: Seal) -> None:
    try:
        write_seal(output, seal)
    except OutputError as error:
        # the answer is no worse for it
        logger.warning("not sealed: %s", error)
    else:
        logger.info("sealed: log_end=%d log_files=%d", seal.end, len(seal.log))
