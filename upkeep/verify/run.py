"""Compares everything derived from a log with it, and heals it, without Spark or a JVM.

A repair removes what no message needs, lowers the watermark to the first message that lacks a unit
or an entry, then cuts damaged files: the next run dispatches from there and finds everything else
in whole files. This order keeps every state safe: whenever the repair stops, all missing entries
lie beyond the watermark, and every entry beyond the watermark that is not written over is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reput.checkpoints.agreement import Built
from reput.checkpoints.ownership import Ownership
from reput.checkpoints.reconcile import watermark_of
from reput.checkpoints.watermark import new_store_id
from reput.store import fsops
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.errors import CommitLogError, OutputError, StoreError, UsageError
from reput.store.files import (
    ABORT_FILE,
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    STATE_DIRECTORY,
    WATERMARK_FILE,
)
from reput.store.index.indexfile import IndexLayout
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange, LogTail
from reput.store.log.record import SIZE_MAGIC_LENGTH
from reput.store.log.status import Status
from reput.store.queue.placement import unit_queue_offset
from reput.store.queue.queuetype import find_batch_topics
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts, Run, Wanted
from reput.store.runs.scan import PackedChunk, runs_of, scan
from reput.store.state.built import record_build
from reput.store.state.ends import drop_ends
from reput.store.state.ledger import LedgerEntry
from reput.store.state.output import check_is_output, fingerprint
from reput.store.state.recognition import tags_begin
from reput.store.state.storecheckpoint import (
    StoreCheckpoint,
    keeps_logics_physical_offset,
    lower_logics_physical_offset,
)
from reput.store.state.watermark import Watermark, read_watermark
from reput.streaming.progress import ReadProgress
from reput.upkeep.verify.batchconsumequeue import BatchConsumeQueueVerifier
from reput.upkeep.verify.consumequeue import ConsumeQueueVerifier
from reput.upkeep.verify.difference import Difference, LogRange, Verifier
from reput.upkeep.verify.index import IndexVerifier
from reput.upkeep.verify.logdamage import LogDamage, damage_advice
from reput.upkeep.verify.positions import (
    ComparedLedger,
    StoreCheckpointBounds,
    compare_store_checkpoint,
    heal_store_checkpoint,
    rewrite_watermark,
    watermark_differences,
)
from reput.upkeep.verify.seal import Seal, make_seal, note_unused, read_seal, write_seal

if TYPE_CHECKING:
    from reput.sources.bitmaps import BitMaps


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
        built = Built(output, settings)
        if repair:
            _check_repairable(log, built)
            if not dry_run:
                resources.enter_context(Ownership(output))
        tail = LogTail(log)
        sealed_end = tail.settled()
        watermark = watermark_of(log, sealed_end, built)
        end = sealed_end if watermark is None else watermark.end_offset

        def look_up(seen_end: int) -> int:
            # most often nothing has been added: one small read, no wait
            log.refresh()
            return (
                tail.settled(seen_end) if any(log.read(seen_end, SIZE_MAGIC_LENGTH)) else seen_end
            )

        scope = LogRange(log.min_offset, end, sealed_end, look_up)

        def compare(seal: Seal | None = None) -> _Pass:
            pass_ = _Pass(settings, output, log, scope, watermark, show, seal)
            pass_.compare()
            return pass_

        if sealed:
            _check_sealable(output, settings, watermark)
            pass_ = _compare_sealed(compare, output, settings, log, end)
        else:
            pass_ = compare()
        verdict = pass_.result()
        if repair and verdict.damage:
            # a message that had a unit may have been in it, and gets none again
            raise CommitLogError(
                f"{verdict.damage[0].line}, and was sound when it was dispatched; nothing was cut: "
                f"{damage_advice(settings, output)}"
            )
        if repair and not dry_run:
            # the bytes that show it in the files may be cut
            record_build(output, settings)
            pass_.heal()
    return verdict


def _check_repairable(log: CommitLog, built: Built) -> None:
    log.check_mounted("nothing is cut")
    is_ours = watermark_of(log, LogTail(log).settled(), built) is not None
    if not is_ours and not watermark_differences(built.output / STATE_DIRECTORY):
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
    compare: Callable[[Seal | None], _Pass],
    output: Path,
    settings: StoreSettings,
    log: CommitLog,
    end: int,
) -> _Pass:
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
    pass_ = None if old is None else _compare_new(compare, old)
    if pass_ is None:
        pass_ = compare(None)
    if new is not None and pass_.is_right() and pass_.has_times(new):
        _put(output, new)
    return pass_


def _compare_new(compare: Callable[[Seal | None], _Pass], seal: Seal) -> _Pass | None:
    """Compare what is not sealed; None where everything has to be compared."""
    try:
        pass_ = compare(seal)
    except (OSError, StoreError) as error:
        note_unused(str(error))
        return None
    if not pass_.is_right():
        note_unused("something differs")
        return None
    return pass_


def _put(output: Path, seal: Seal) -> None:
    try:
        write_seal(output, seal)
    except OutputError as error:
        # the answer is no worse for it
        logger.warning("not sealed: %s", error)
    else:
        logger.info("sealed: log_end=%d log_files=%d", seal.end, len(seal.log))


class _Pass:
    """One pass over the log, and its findings."""

    def __init__(
        self,
        settings: StoreSettings,
        output: Path,
        log: CommitLog,
        scope: LogRange,
        watermark: Watermark | None,
        show: Callable[[ReadProgress], None],
        seal: Seal | None,
    ) -> None:
        """``seal`` holds, and no message before its end is read."""
        self._show = show
        self._settings = settings
        self._output = output
        self._state = output / STATE_DIRECTORY
        self._log = log
        self._scope = scope = replace(scope, damaged=[])
        self._seal = seal
        read = self._read = scope if seal is None else replace(scope, start=seal.end)
        self._progress = ReadProgress(read.start, log_end=read.end)
        self._watermark = watermark
        self._ledger = ComparedLedger(self._state)
        self._batch_topics = find_batch_topics(settings.root, output)
        has_ext = settings.enable_consume_queue_ext
        self._bit_maps = has_ext and settings.enable_calc_filter_bit_map
        has_ext = has_ext or (output / CONSUME_QUEUE_EXT_DIRECTORY).is_dir()
        begin = None if watermark is None or watermark.index_begin < 0 else watermark.index_begin
        self._queues = ConsumeQueueVerifier(
            output, settings.mapped_file_size_consume_queue, self._ledger, read,
            settings.on_queue_gap,
            queue_offset_at=partial(unit_queue_offset, log, settings.enable_lmq),
            ext_is_on=settings.enable_consume_queue_ext, bit_maps=self._bit_maps,
            ext_file_size=settings.mapped_file_size_consume_queue_ext if has_ext else None,
            topic_begins=settings.topic_begins,
        )  # fmt: skip
        self._batch_queues = None
        if self._batch_topics or (output / BATCH_CONSUME_QUEUE_DIRECTORY).is_dir():
            self._batch_queues = BatchConsumeQueueVerifier(
                output, settings.mapper_file_size_batch_consume_queue, self._ledger, read,
                settings.topic_begins,
            )  # fmt: skip
        layout = IndexLayout(settings.max_hash_slot_num, settings.max_index_num)
        self._index = None
        if settings.builds_index:
            self._index = IndexVerifier(output, layout, read, begin)
        self._differences: list[Difference] = []
        self._newest_store_timestamp = 0
        self._last_record_offset = -1
        self._store_checkpoint: StoreCheckpoint | None = None
        """The content to write where the checkpoint is wrong."""

    @property
    def _verifiers(self) -> Sequence[Verifier]:
        batch_queues = [] if self._batch_queues is None else [self._batch_queues]
        return [self._queues, *batch_queues, *([] if self._index is None else [self._index])]

    def compare(self) -> None:
        """Read the log once, then check everything that it does not cover."""
        settings, scope = self._settings, self._read
        bit_maps = None
        if self._bit_maps:
            # most stores have no filters, and need no Arrow
            from reput.sources.bitmaps import BitMaps  # noqa: PLC0415

            bit_maps = BitMaps(self._log, settings)
        tags_from = None
        if self._index is not None and settings.index_tags:
            tags_from = tags_begin(self._output, settings, self._log)
        middle = scope.end if tags_from is None else min(max(scope.start, tags_from), scope.end)
        self._scan(scope.start, middle, bit_maps, index_tags=False)
        self._scan(middle, scope.end, bit_maps, index_tags=True)
        self._check_tail()
        for verifier in self._verifiers:
            self._differences += verifier.finish(self._last_record_offset)
        lost = watermark_differences(self._state)
        if self._watermark is not None or lost:
            self._differences += [*self._ledger.differences(self._scope), *lost]
        self._compare_store_checkpoint()

    def _scan(self, start: int, end: int, bit_maps: BitMaps | None, *, index_tags: bool) -> None:
        """Compare all that follows from [start, end) of the log."""
        settings = self._settings
        for item in scan(
            self._log, start, end,
            delay_levels_ms=settings.message_delay_levels_ms, verify_crc=settings.verify_crc,
            fail_on_data_loss=False,
            extras=Wanted(
                index=self._index is not None and self._index.begin is not None,
                index_tags=index_tags, details=True,
                multi_dispatch=settings.enable_multi_dispatch,
                lmq=settings.enable_multi_dispatch and settings.enable_lmq,
                batch_topics=self._batch_topics,
            ),
        ):  # fmt: skip
            if isinstance(item, PackedChunk):
                self._compare_chunk(item, bit_maps)
            elif isinstance(item, BadRange):
                self._check_bad(item)
            elif item.last_record_offset >= 0:
                self._last_record_offset = item.last_record_offset

    def _compare_chunk(self, chunk: PackedChunk, bit_maps: BitMaps | None) -> None:
        runs = list(runs_of(chunk))
        for bad in chunk.unusable:
            self._check_bad(bad)
        messages = 0
        if chunk.details is not None and len(chunk.details):
            messages = int((chunk.details["is_light"] == 0).sum())
            newest = int(chunk.details["store_timestamp"].max())
            self._newest_store_timestamp = max(self._newest_store_timestamp, newest)
        if bit_maps is not None:
            runs = bit_maps.added_to(runs)
        batch = replace(_batch(runs, chunk), batch_topics=self._batch_topics)
        for verifier in self._verifiers:
            verifier.compare(batch)
        self._progress.advance(batch.end, DispatchCounts(messages=messages))
        self._show(self._progress)

    def _check_bad(self, bad: BadRange) -> None:
        entry = LedgerEntry(bad.start, bad.end, bad.status.name.lower())
        if bad.status is Status.BAD_MULTI_DISPATCH or self._ledger.may_list(entry):
            self._ledger.add(entry)
        else:
            self._pass(bad)

    def _check_tail(self) -> None:
        """Look at what follows the log's end, which dispatchers wait for and a broker cuts when it
        starts: its queues may have a unit of it."""
        scope, log = self._scope, self._log
        is_ours = (self._state / WATERMARK_FILE).exists()
        # by then a broker may have written the rest of it
        if not is_ours and any(log.read(scope.end, SIZE_MAGIC_LENGTH)) and scope.is_whole():
            end = scope.end + log.file_size - scope.end % log.file_size
            self._pass(BadRange(scope.end, end, Status.NEED_MORE))

    def _pass(self, bad: BadRange) -> None:
        # a message that had a unit may have been in it: without that unit, all later ones would
        # seem misplaced
        self._scope.damaged.append(bad)
        for verifier in self._verifiers:
            verifier.pass_damaged()

    def _compare_store_checkpoint(self) -> None:
        watermark = self._watermark
        if watermark is None or not watermark.last_store_timestamp:
            return
        bounds = StoreCheckpointBounds(
            watermark, self._scope, self._newest_store_timestamp,
            None if self._index is None else self._index.full_end_timestamps,
            keeps_logics_physical_offset(self._settings, {self._settings.root} - {self._output}),
        )  # fmt: skip
        differences, right = compare_store_checkpoint(self._output, self._log, bounds)
        if differences and read_watermark(self._state) != watermark:
            # a dispatcher has gone on meanwhile, and it writes the checkpoint every second
            return
        self._differences += differences
        self._store_checkpoint = right if differences else None

    def is_right(self) -> bool:
        """Return whether nothing differs, and all that was taken unseen is sealed."""
        is_wrong = bool(self._differences or self._scope.damaged)
        if self._seal is None or is_wrong:
            return not is_wrong
        extents = {extent for verifier in self._verifiers for extent in verifier.gone_extents()}
        return extents == self._seal.extents(self._output)

    def has_times(self, seal: Seal) -> bool:
        """Return whether the log has the times that a seal has of index files."""
        return seal.has_times({} if self._index is None else self._index.headers)

    def result(self) -> Verification:
        """Return the findings."""
        queues: list[ConsumeQueueVerifier | BatchConsumeQueueVerifier] = [self._queues]
        if self._batch_queues is not None:
            queues.append(self._batch_queues)
        return Verification(
            self._scope.start,
            self._read.start,
            self._scope.end,
            sum(verifier.queue_count for verifier in queues),
            sum(verifier.unit_count for verifier in queues),
            0 if self._index is None else self._index.entry_count - self._index.unseen_count,
            tuple(self._differences),
            tuple(LogDamage.of(self._log, bad) for bad in self._scope.damaged),
            sum(verifier.unseen_count for verifier in queues),
            0 if self._index is None else self._index.unseen_count,
            self._replay_from,
        )

    @property
    def _replay_from(self) -> int | None:
        if self._watermark is None and self._index is not None and self._index.begin is None:
            # nothing tells from where on the index has entries, and not all messages have units
            return self._scope.start
        offsets = [verifier.replay_from for verifier in self._verifiers]
        return min((offset for offset in offsets if offset is not None), default=None)

    def heal(self) -> None:
        """Heal the findings."""
        drop_ends(self._state)
        for verifier in self._verifiers:
            verifier.remove_strays()
        kinds = {difference.kind for difference in self._differences}
        if self._store_checkpoint is not None:
            heal_store_checkpoint(self._output, self._store_checkpoint)
        if self._ledger.path.name in kinds:
            self._ledger.heal()
        watermark, lowered = self._watermark, self._replay_from
        if lowered is not None:
            lower_logics_physical_offset(self._output, lowered)
        if watermark is None:
            # the watermark was lost: the files hold the entries that were compared
            begin = -1 if self._index is None or self._index.begin is None else self._index.begin
            last = self._last_record_offset
            watermark = Watermark(
                new_store_id(), self._scope.end,
                last_record_offset=last, last_record_crc=fingerprint(self._log, last),
                last_store_timestamp=self._newest_store_timestamp, index_begin=begin,
            )  # fmt: skip
        if lowered is not None:
            watermark = watermark.moved_to(lowered)
        # if a kill comes before everything is cut, the next start must clear what lies beyond the
        # lower watermark
        abort = self._state / ABORT_FILE
        was_cut_short = abort.exists()
        if lowered is not None:
            fsops.replace_file(abort, b"")
        if lowered is not None or WATERMARK_FILE in kinds:
            rewrite_watermark(self._state, replace(watermark, epoch=watermark.epoch + 1))
        for verifier in self._verifiers:
            verifier.cut()
        if lowered is not None and not was_cut_short:
            fsops.unlink(abort)


def _batch(runs: Sequence[Run], chunk: PackedChunk) -> DispatchBatch:
    """Return a chunk as a batch of its own; only positions that distinguish it from others
    matter."""
    entries = chunk.index_entries
    firsts = [run.first_physical_offset for run in runs]
    lasts = [int(run.units[-1]["offset"]) for run in runs]
    if entries is not None:
        firsts.append(entries.first_physical_offset)
        lasts += entries.offsets[-1:].tolist()
    start, last = min(firsts), max(lasts, default=min(firsts))
    return DispatchBatch(
        start, last + 1, runs, (), len(lasts), last, () if entries is None else (entries,)
    )
