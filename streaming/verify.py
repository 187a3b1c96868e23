"""An output's consume queues compared with the log, and cut for a repair. No Spark, no JVM.

A repair removes what no message needs, lowers the watermark to the first message that lacks a
unit, then cuts the damaged queues: the next run dispatches from there and finds all built in queues
that are whole. In this order, so that whatever stops it, what lacks a unit is behind the watermark,
and what is behind the watermark and not written over is gone.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoints import STATE_DIRECTORY
from checkpoints.ownership import Ownership
from checkpoints.reconcile import watermark_of
from checkpoints.watermark import WatermarkFile
from sinks.consumequeue import OnQueueGap
from sinks.verification import ConsumeQueueVerifier, Difference, LogRange, replay_from
from store.commitlog import CommitLog
from store.config import StoreSettings
from store.cursor import BadRange, LogTail
from store.dispatch import DispatchBatch, Wanted
from store.errors import CommitLogError, UsageError
from store.ledger import Ledger, LedgerEntry
from store.queuetype import read_batch_topics
from store.scan import PackedChunk, runs_of, scan


@dataclass(frozen=True, slots=True)
class Verification:
    """What was compared and what was found."""

    log_start: int
    log_end: int
    """Exclusive: the watermark, or the log's end where there is none."""
    queues: int
    units: int
    """Compared with the log."""
    differences: tuple[Difference, ...]
    replay_from: int | None
    """Where the watermark goes, or went, for a repair; None where no message lacks its unit."""


def verify(
    settings: StoreSettings,
    output: Path,
    *,
    repair: bool = False,
    on_queue_gap: OnQueueGap = OnQueueGap.ROCKETMQ,
    verify_crc: bool = False,
) -> Verification:
    """Compare, and repair where asked; the options must be those that the queues were built with.

    Without ``repair`` it only reads. Raises CommitLogError where the log is not the one that was
    dispatched or was damaged since, QueueFileError where the file size is wrong everywhere; with
    ``repair`` UsageError for queues that reput did not build, OwnershipError while others write.
    """
    log = CommitLog(settings.commit_log_directories, settings.mapped_file_size_commit_log)
    state = output / STATE_DIRECTORY
    with ExitStack() as held:
        held.callback(log.close)
        if repair:
            if watermark_of(log, output) is None:
                raise UsageError(
                    f"{output} has no watermark: reput did not build its queues; take them over "
                    "with reput run --adopt, then repair"
                )
            held.enter_context(Ownership(output))
        watermark = watermark_of(log, output)
        sealed_end = LogTail(log).settled()
        end = sealed_end if watermark is None else watermark.end_offset
        if end > sealed_end:
            raise CommitLogError(
                f"the log ends at {sealed_end}, before the watermark {end}: run the dispatcher "
                "first, which cuts the queues there"
            )
        scope = LogRange(log.min_offset, end, sealed_end)
        ledger = Ledger(state)
        verifier = ConsumeQueueVerifier(
            output, settings.mapped_file_size_consume_queue, ledger, scope,
            settings.mapped_file_size_consume_queue_ext, on_queue_gap,
            read_batch_topics(settings.root),
        )  # fmt: skip
        _compare(verifier, log, scope, settings, ledger, verify_crc)
        differences = tuple(verifier.finish())
        first = replay_from(differences)
        if repair:
            verifier.remove_strays()
            if first is not None:
                _lower_watermark(state, first)
                verifier.cut()
    return Verification(
        scope.start, scope.end, verifier.queue_count, verifier.unit_count, differences, first
    )


def _compare(
    verifier: ConsumeQueueVerifier,
    log: CommitLog,
    scope: LogRange,
    settings: StoreSettings,
    ledger: Ledger,
    verify_crc: bool,
) -> None:
    wanted = Wanted(
        multi_dispatch=settings.enable_multi_dispatch,
        lmq=settings.enable_lmq,
        batch_topics=read_batch_topics(settings.root),
    )
    for item in scan(
        log, scope.start, scope.end,
        delay_levels_ms=settings.message_delay_levels_ms, verify_crc=verify_crc,
        fail_on_data_loss=False, wanted=wanted,
    ):  # fmt: skip
        if isinstance(item, PackedChunk):
            runs = list(runs_of(item))
            first = runs[0].first_physical_offset
            last = max(int(run.units[-1]["offset"]) for run in runs)
            verifier.compare(DispatchBatch(first, last + 1, runs, (), 0, last))
        elif isinstance(item, BadRange):
            reason = item.status.name.lower()
            if ledger.add(LedgerEntry(item.start, item.end, reason)):
                # a message that had a unit may have been in it: what follows would seem misplaced
                raise CommitLogError(
                    f"the log at [{item.start}, {item.end}) is damaged ({reason}), which was not "
                    "so when it was dispatched: restore it from a copy, then verify again"
                )


def _lower_watermark(state: Path, end_offset: int) -> None:
    file = WatermarkFile(state)
    try:
        if file.current is not None:
            lowered = replace(
                file.current, end_offset=end_offset, epoch=file.current.epoch + 1,
                last_record_offset=-1, last_record_crc=0,
            )  # fmt: skip
            file.advance(lowered)
    finally:
        file.close()
