"""One pass over a log, which compares everything derived from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from reput.checkpoints.agreement import BuiltOutput
from reput.store.files import BATCH_CONSUME_QUEUE_DIRECTORY, STATE_DIRECTORY, WATERMARK_FILE
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange
from reput.store.log.record import SIZE_MAGIC_LENGTH
from reput.store.log.status import Status
from reput.store.queue.placement import unit_queue_offset
from reput.store.queue.queuetype import find_batch_topics
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts, Wanted
from reput.store.runs.scan import PackedChunk, runs_of, scan
from reput.store.state.ledger import LedgerEntry
from reput.store.state.recognition import tags_begin
from reput.store.state.storecheckpoint import StoreCheckpoint, keeps_logics_physical_offset
from reput.store.state.watermark import Watermark, read_watermark
from reput.streaming.progress import ReadProgress
from reput.upkeep.verify.batchconsumequeue import BatchConsumeQueueVerifier
from reput.upkeep.verify.consumequeue import ConsumeQueueVerifier
from reput.upkeep.verify.difference import Counts, Difference, LogRange, Verifier
from reput.upkeep.verify.index import IndexVerifier
from reput.upkeep.verify.positions import (
    ComparedLedger,
    StoreCheckpointBounds,
    compare_store_checkpoint,
    watermark_differences,
)
from reput.upkeep.verify.seal import Seal

if TYPE_CHECKING:
    from reput.sources.bitmaps import BitMaps


class LogComparison:
    """The comparison of an output with its log, and its findings."""

    def __init__(
        self,
        built: BuiltOutput,
        log: CommitLog,
        scope: LogRange,
        watermark: Watermark | None,
        seal: Seal | None,
    ) -> None:
        """``seal`` holds, and no message before its end is read."""
        settings, output = built.settings, built.output
        self.built = built
        self.state = output / STATE_DIRECTORY
        self.log = log
        self.scope = replace(scope, damaged=[])
        self.read = self.scope if seal is None else replace(self.scope, start=seal.end)
        """The part that is read; both have the same damage."""
        self.watermark = watermark
        self._seal = seal
        self.ledger = ComparedLedger(self.state)
        self._batch_topics = find_batch_topics(settings.root, output)
        begin = None if watermark is None or watermark.index_begin < 0 else watermark.index_begin
        queue_offset_at = partial(unit_queue_offset, log, settings.enable_lmq)
        place = output, settings, self.read, self.ledger
        self.verifiers: list[Verifier] = [ConsumeQueueVerifier(*place, queue_offset_at)]
        if self._batch_topics or (output / BATCH_CONSUME_QUEUE_DIRECTORY).is_dir():
            self.verifiers.append(BatchConsumeQueueVerifier(*place))
        self.index = IndexVerifier(output, settings, self.read, begin)
        self.verifiers.append(self.index)
        self.differences: list[Difference] = []
        self.newest_store_timestamp = 0
        self.last_store_timestamp = 0
        """Store time of the last message; not the newest where a clock stepped back."""
        self.last_record_offset = -1
        self.store_checkpoint: StoreCheckpoint | None = None
        """The content to write where the checkpoint is wrong."""

    def compare(self, show: Callable[[ReadProgress], None]) -> None:
        """Read the log once, then check everything that it does not cover."""
        settings, part = self.built.settings, self.read
        bit_maps = None
        if settings.builds_bit_maps:
            # most stores have no filters, and need no Arrow
            from reput.sources.bitmaps import BitMaps  # noqa: PLC0415

            bit_maps = BitMaps(self.log, settings)
        tags_from = None
        if settings.builds_index and settings.index_tags:
            tags_from = tags_begin(self.built.output, settings, self.log)
        middle = part.end if tags_from is None else min(max(part.start, tags_from), part.end)
        progress = ReadProgress(part.start, log_end=part.end)
        for start, end, has_tags in ((part.start, middle, False), (middle, part.end, True)):
            for chunk in self._scan(start, end, index_tags=has_tags):
                self._compare_chunk(chunk, bit_maps, progress)
                show(progress)
        self._check_tail()
        for verifier in self.verifiers:
            self.differences += verifier.finish(self.last_record_offset)
        lost = watermark_differences(self.state)
        if self.watermark is not None or lost:
            self.differences += [*self.ledger.differences(self.scope), *lost]
        self._compare_store_checkpoint()

    def _scan(self, start: int, end: int, *, index_tags: bool) -> Iterator[PackedChunk]:
        """Yield all that follows from [start, end) of the log."""
        settings = self.built.settings
        for item in scan(
            self.log, start, end,
            delay_levels_ms=settings.message_delay_levels_ms, verify_crc=settings.verify_crc,
            fail_on_data_loss=False,
            extras=Wanted(
                index=self.index.begin is not None,
                index_tags=index_tags, details=True,
                multi_dispatch=settings.enable_multi_dispatch,
                lmq=settings.enable_multi_dispatch and settings.enable_lmq,
                batch_topics=self._batch_topics,
            ),
        ):  # fmt: skip
            if isinstance(item, PackedChunk):
                yield item
            elif isinstance(item, BadRange):
                self._check_bad(item)
            elif item.last_record_offset >= 0:
                self.last_record_offset = item.last_record_offset

    def _compare_chunk(
        self, chunk: PackedChunk, bit_maps: BitMaps | None, progress: ReadProgress
    ) -> None:
        runs = list(runs_of(chunk))
        for bad in chunk.unusable:
            self._check_bad(bad)
        messages = 0
        if chunk.details is not None and len(chunk.details):
            messages = int((chunk.details["is_light"] == 0).sum())
            newest = int(chunk.details["store_timestamp"].max())
            self.newest_store_timestamp = max(self.newest_store_timestamp, newest)
        entries = () if chunk.index_entries is None else (chunk.index_entries,)
        lasts = [int(run.units[-1]["offset"]) for run in runs]
        for part in entries:
            lasts += [part.first_physical_offset, *part.offsets[-1:].tolist()]
        if bit_maps is not None:
            runs = bit_maps.added_to(runs)
        batch = DispatchBatch(
            progress.position, max(lasts) + 1, runs, (), messages, max(lasts), entries,
            self._batch_topics,
        )  # fmt: skip
        self.last_store_timestamp = batch.last_store_timestamp or self.last_store_timestamp
        for verifier in self.verifiers:
            verifier.compare(batch)
        progress.advance(batch.end, DispatchCounts(messages=messages))

    def _check_bad(self, bad: BadRange) -> None:
        entry = LedgerEntry(bad.start, bad.end, bad.status.name.lower())
        if bad.status is Status.BAD_MULTI_DISPATCH or self.ledger.may_list(entry):
            self.ledger.add(entry)
        else:
            self._pass(bad)

    def _check_tail(self) -> None:
        """Look at what follows the log's end, which dispatchers wait for and a broker cuts when it
        starts: its queues may have a unit of it."""
        scope, log = self.scope, self.log
        is_ours = (self.state / WATERMARK_FILE).exists()
        # by then a broker may have written the rest of it
        if not is_ours and any(log.read(scope.end, SIZE_MAGIC_LENGTH)) and scope.is_whole():
            end = scope.end + log.file_size - scope.end % log.file_size
            self._pass(BadRange(scope.end, end, Status.NEED_MORE))

    def _pass(self, bad: BadRange) -> None:
        # a message that had a unit may have been in it: without that unit, all later ones would
        # seem misplaced
        self.scope.damaged.append(bad)
        for verifier in self.verifiers:
            verifier.pass_damaged()

    def _compare_store_checkpoint(self) -> None:
        watermark, settings = self.watermark, self.built.settings
        if watermark is None or not watermark.last_store_timestamp:
            return
        bounds = StoreCheckpointBounds(
            watermark, self.scope, self.newest_store_timestamp,
            self.index.full_end_timestamps if settings.builds_index else None,
            keeps_logics_physical_offset(settings, {settings.root} - {self.built.output}),
        )  # fmt: skip
        differences, right = compare_store_checkpoint(self.built.output, self.log, bounds)
        if differences and read_watermark(self.state) != watermark:
            # a dispatcher has gone on meanwhile, and it writes the checkpoint every second
            return
        self.differences += differences
        self.store_checkpoint = right if differences else None

    def is_right(self) -> bool:
        """Return whether nothing differs, and all that was taken unseen is sealed."""
        is_wrong = bool(self.differences or self.scope.damaged)
        if self._seal is None or is_wrong:
            return not is_wrong
        extents = {extent for verifier in self.verifiers for extent in verifier.gone_extents()}
        return extents == self._seal.extents(self.built.output)

    @property
    def counts(self) -> Counts:
        """The counts of all kinds of files."""
        return Counts(
            *map(sum, zip(*(verifier.counts for verifier in self.verifiers), strict=True))
        )

    @property
    def replay_from(self) -> int | None:
        """The offset to which a repair lowers the watermark; None where no message lacks an
        entry."""
        if self.watermark is None and self.built.index and self.index.begin is None:
            # nothing tells from where on the index has entries, and not all messages have units
            return self.scope.start
        offsets = [verifier.replay_from for verifier in self.verifiers]
        return min((offset for offset in offsets if offset is not None), default=None)
