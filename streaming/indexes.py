"""The indexes to build and the columns that the source gathers for them, by the store's settings.

Writers run in this order (ARCHITECTURE.md): ext and consume queues, then batch queues, then the
index.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from reput.sinks.index.batchconsumequeue import BatchConsumeQueueWriter
from reput.sinks.index.consumequeue import ConsumeQueueWriter
from reput.sinks.index.executorqueues import ExecutorQueues
from reput.sinks.index.indexfile import IndexFileWriter
from reput.sources.bitmaps import BitMaps
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.errors import StoreError
from reput.store.files import INDEX_DIRECTORY
from reput.store.index.indexfile import IndexFiles
from reput.store.log.commitlog import CommitLog
from reput.store.queue.placement import count_units, unit_queue_offset
from reput.store.queue.queuetype import find_batch_topics
from reput.store.runs.dispatch import BatchSettings, DispatchBatch, IndexWriter, Wanted
from reput.store.runs.scan import scan_in_one_piece
from reput.store.state.ledger import Ledger
from reput.streaming.config import DispatcherConfig

logger = logging.getLogger("reput")


@dataclass(frozen=True)
class Indexes:
    """The indexes of one store, which are derived from its log."""

    settings: StoreSettings
    batch_topics: frozenset[bytes]
    """Topics that have batch queues at the start; each batch brings its own set."""
    on_executors: bool = False
    """Executors write the queues, and this process moves them in."""

    @classmethod
    def of(cls, config: DispatcherConfig, settings: StoreSettings) -> Indexes:
        """Decide by the settings of the output (``store.state.built``). Raises StoreError where a
        topic is declared as one kind of queue and present as the other."""
        return cls(settings, find_batch_topics(settings.root, config.output))

    @cached_property
    def extras(self) -> Wanted:
        """The columns that a scan gathers."""
        settings = self.settings
        extras = Wanted(
            index=settings.builds_index,
            index_tags=settings.builds_index and settings.index_tags,
            details=settings.enable_consume_queue_ext,
            bit_maps=settings.builds_bit_maps,
            multi_dispatch=settings.enable_multi_dispatch,
            lmq=settings.enable_multi_dispatch and settings.enable_lmq,
        )
        return extras.with_batch_topics(self.batch_topics)

    def scan(
        self, log: CommitLog, start: int, end: int, live: BatchSettings
    ) -> DispatchBatch | None:
        """Scan a range in one piece, as the source's tasks scan it in parts; None where the log has
        changed meanwhile."""
        settings, extras = self.settings, self.extras.with_batch_topics(live.batch_topics)
        batch = scan_in_one_piece(
            log, start, end,
            delay_levels_ms=live.delay_levels_ms, verify_crc=settings.verify_crc, extras=extras,
        )  # fmt: skip
        if batch is None or not extras.bit_maps:
            return batch
        return replace(batch, runs=BitMaps(log, settings).added_to(batch.runs))

    def scan_unchanged(
        self, log: CommitLog, start: int, end: int, live: BatchSettings
    ) -> DispatchBatch:
        """Scan a range of the log as it is now. Raises StoreError where it changes meanwhile."""
        log.refresh()
        batch = self.scan(log, start, end, live)
        if batch is None:
            line = f"the log between {start} and {end} changed while it was read"
            raise StoreError(line, physical_offset=start)
        return batch

    def first_indexed(self, output: Path) -> int | None:
        """Return the physical offset of the first message in the existing index files; None without
        one."""
        return IndexFiles(output / INDEX_DIRECTORY, self.settings.index_layout).first_phy_offset()

    def open_writers(
        self,
        output: Path,
        ledger: Ledger,
        durable_end: int | None,
        log: CommitLog,
        *,
        queues_end: int | None,
    ) -> Sequence[IndexWriter]:
        """Open the writers, in the order in which they write; ``durable_end`` is the watermark, or
        None to trust another writer's files. Units before ``queues_end`` are durable as well."""
        writers: list[IndexWriter] = []
        if self.on_executors:
            writers.append(ExecutorQueues(output, ledger))
        else:
            writers += self.open_queue_writers(output, ledger, queues_end, log)
        if self.settings.builds_index:
            is_late = (durable_end or 0) > log.min_offset
            if is_late and self.first_indexed(output) is None:
                command = command_line("rebuild", self.settings.root, output, "--only", "index")
                logger.warning("the index begins at %d: %s adds older keys", durable_end, command)
            layout = self.settings.index_layout
            writers.append(IndexFileWriter(output, layout, log, durable_end=durable_end))
        return writers

    def open_queue_writers(
        self, output: Path, ledger: Ledger, durable_end: int | None, log: CommitLog
    ) -> Sequence[IndexWriter]:
        """Open the writers of both kinds of queues alone."""
        settings = self.settings
        return [
            ConsumeQueueWriter(
                output,
                settings.mapped_file_size_consume_queue,
                ledger,
                durable_end=durable_end,
                queue_offset_at=partial(unit_queue_offset, log, settings.enable_lmq),
                count_units=partial(count_units, log),
                on_queue_gap=settings.on_queue_gap,
                ext_file_size=settings.mapped_file_size_consume_queue_ext
                if settings.enable_consume_queue_ext
                else None,
                is_gone=partial(_is_gone, log),
                topic_begins=settings.topic_begins,
            ),
            BatchConsumeQueueWriter(
                output,
                settings.mapper_file_size_batch_consume_queue,
                ledger,
                durable_end=durable_end,
                count_units=partial(count_units, log),
                is_gone=partial(_is_gone, log),
                topic_begins=settings.topic_begins,
            ),
        ]


def _is_gone(log: CommitLog, end: int) -> bool:
    """Whether the log has lost all bytes before ``end``. Raises CommitLogError where a part of it
    may not be mounted."""
    if end > log.min_offset:
        return False
    log.segments.check_mounted("no queue begins anew")
    return True
