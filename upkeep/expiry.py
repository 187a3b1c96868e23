"""Finds the files of an output whose messages the log's retention removed, and removes them on
request.

A broker expires its own queues, but nobody does so for an output elsewhere. The rule is RocketMQ's
(``store.queue.retention``): oldest first, never a queue's last file. While a part of the log may
not be mounted, nothing is removed.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from reput.checkpoints.agreement import BuiltOutput
from reput.checkpoints.ownership import Ownership
from reput.checkpoints.reconcile import watermark_of
from reput.store import fsops
from reput.store.config import StoreSettings
from reput.store.errors import UsageError
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.retention import (
    ExpiredFile,
    expired_files,
    remove_files,
    remove_queue,
    unused_queues,
)
from reput.store.state.output import check_is_output
from reput.store.state.watermark import Watermark


@dataclass(frozen=True, slots=True)
class Expiry:
    """The files and queues that are to be removed, or were."""

    log_min_offset: int
    files: tuple[ExpiredFile, ...]
    unused_queues: tuple[QueueKey, ...]
    """Queues without a message in the log, or without a file; their last files are not among
    ``files``."""


def expire(
    settings: StoreSettings, output: Path, *, apply: bool, remove_unused: bool = False
) -> Expiry:
    """Plan the removal, and carry it out if ``apply``; ``remove_unused`` includes unused queues.

    Without ``apply`` it only reads, also while others write. Raises UsageError where ``output`` was
    not built by reput, OwnershipError while a dispatcher or a broker runs on it, CommitLogError
    where the log is not its log, or a part of it may not be mounted, OutputError and SyncError.
    """
    log = settings.open_log()
    with ExitStack() as resources:
        resources.callback(log.close)
        log.segments.check_mounted("nothing is removed")
        built = BuiltOutput(output, settings)
        if apply:
            _watermark(log, built)  # this creates nothing in a directory that is not an output
            resources.enter_context(Ownership(output))
            # what a killed removal has taken is not found again, but a power cut may undo it
            fsops.sync_file_system_of(output)
        watermark = _watermark(log, built)
        position = output, settings, log.min_offset, watermark.end_offset
        expiry = Expiry(
            log.min_offset, tuple(expired_files(*position)), tuple(unused_queues(*position))
        )
        if apply:
            remove_files(expiry.files)
            for key in expiry.unused_queues if remove_unused else ():
                remove_queue(output, settings, key)
    return expiry


def _watermark(log: CommitLog, built: BuiltOutput) -> Watermark:
    check_is_output(built.output, built.settings.root)
    watermark, _ = watermark_of(log, LogTail(log), built)
    if watermark is None:
        raise UsageError(
            f"{built.output} has no watermark: its queues are a broker's, which expires them "
            "itself; give the `output=` that reput writes"
        )
    return watermark
