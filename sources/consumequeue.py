"""The Spark data source ``rocketmq-consumequeue``: built queues as a table, one row per message.

Unit of parallelism: a slice of all queues (``sources.queueranges``). Guarantee: a range gives the
same messages however often it is read, so a query is exactly-once where its sink is idempotent.
Offsets have the form of Spark's Kafka source. Messages that tags or offsets exclude are not read
from the log.

Spark keeps one stream reader in a planner process on the driver, which answers where the queues
end, and sends copies of it to the tasks, which only call ``read``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
)
from pyspark.sql.types import StructType

from reput.sources.commitlog import store_settings
from reput.sources.coverage import check_coverage
from reput.sources.garbage import freeze_loaded
from reput.sources.hangup import QuietDataSource
from reput.sources.interpreter import check_workers_interpreter
from reput.sources.manystores import StoreBatchReader, Stores, StoreStreamReader
from reput.sources.offsets import PinnedStart
from reput.sources.options import EARLIEST, LATEST
from reput.sources.pushdown import is_pushing, matching
from reput.sources.queuegroup import QueryGroup, committed_of, group_starts
from reput.sources.queueoffsets import (
    LossCheck,
    Queues,
    check_order,
    latest,
    limited_ends,
    offsets_json,
    resolve_ends,
    resolve_starts,
)
from reput.sources.queueoptions import ConsumeQueueOptions, Offsets
from reput.sources.queueposition import QueueCheck, QueuePosition, parse_position, position_at
from reput.sources.queueranges import QueuePartition, UnitRange, divide
from reput.sources.queues import BuiltQueues
from reput.sources.rowcolumns import RowColumns
from reput.sources.schemas import check_schema
from reput.sources.selection import QueueSelection
from reput.sources.triggerdelay import TriggerDelay
from reput.store.config import StoreSettings
from reput.store.errors import CommitLogDataLossError, UsageError
from reput.store.log.commitlog import CommitLog
from reput.store.queue.consumequeue import QueueKey
from reput.store.state.built import settings_of
from reput.store.state.output import end_of_output

if TYPE_CHECKING:
    import pyarrow as pa


class ConsumeQueueDataSource(QuietDataSource):
    """``spark.read`` and ``spark.readStream`` over built queues; options in
    ``sources.queueoptions``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``; ``CommitLogDataSource.name`` describes its check."""
        check_workers_interpreter()
        return "rocketmq-consumequeue"

    def schema(self) -> str:
        """The schema of the public rows. Called first, on the driver: a wrong option fails here, at
        load()."""
        schema = ""
        for options in Stores(ConsumeQueueOptions, self.options).by_root.values():
            store_settings(options).open_log()
            schema = RowColumns(options).ddl
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader. Called on the driver."""
        stores = Stores(ConsumeQueueOptions, self.options)
        pushes = is_pushing()
        kind = PushingBatchReader if pushes else ConsumeQueueBatchReader
        return stores.batch_reader(partial(kind, schema=schema), pushes=pushes)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the stream reader. Called in the planner process, once per query."""
        return Stores(ConsumeQueueOptions, self.options).stream_reader(
            partial(ConsumeQueueStreamReader, schema=schema)
        )


@dataclass
class _Opened:
    """The store and queues that a process opens for itself."""

    settings: StoreSettings
    log: CommitLog
    queues: BuiltQueues
    loss: LossCheck
    check: QueueCheck


class _QueueReader:
    """The common part of both readers: options, the store (opened where it is used), planning,
    reading."""

    def __init__(self, options: ConsumeQueueOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema
        self._columns = RowColumns(options)
        self._pushed: list[Filter] = []
        check_schema(ConsumeQueueDataSource.name(), schema, self._columns.ddl)
        self._selection = QueueSelection(
            topics=options["topics"],
            topic_pattern=options["topicPattern"],
            queue_ids=options["queueIds"],
            tag_filters=(options["tags"],) if options["tags"] is not None else (),
            form=options.row_form,
        )
        self._listed = self._selection
        """The selection of queues to list; queues that filters exclude may be among them."""
        flags = {"mapped_file_size_consume_queue": options["consumeQueueFileSize"]}
        # the file is read once, so that planner and tasks look in the same directories even if it
        # changes
        self._settings = settings_of(self._output, store_settings(options), flags)
        self._opened: _Opened | None = None
        self._is_checked = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def _output(self) -> Path:
        return Path(self.options["output"] or self.options["path"])

    def _store(self) -> _Opened:
        if self._opened is None:
            settings, log = self._settings, self._settings.open_log()
            loss = LossCheck(self.options["failOnDataLoss"])
            check_output = partial(end_of_output, self._output, settings.root, log)
            check_output()
            self._opened = _Opened(
                settings,
                log,
                BuiltQueues(self._output, settings, log, self._listed, self.options.as_of),
                loss,
                QueueCheck(log, loss, check_output),
            )
        return self._opened

    def _check_coverage(self, queues: Queues) -> None:
        """Look once, when planning, for what the queues lack. Raises CommitLogDataLossError."""
        opened = self._store()
        if not self._is_checked:
            check_coverage(
                self._output, opened.settings, opened.log, queues, self._listed,
                self.options.as_of, opened.loss,
            )  # fmt: skip
            self._is_checked = True

    def _plan(self, starts: Offsets, ends: Offsets, queues: Queues) -> list[QueuePartition]:
        """Return the partitions that read [start, end) of all queues."""
        ranges = []
        for key, end in ends.items():
            if not self._selection.takes(key):
                continue
            first = queues[key].unit_from(max(starts[key], self._selection.first_offset))
            last = queues[key].unit_from(min(end, self._selection.end_offset))
            if first < last:
                ranges.append(UnitRange(key, queues[key].kind, first, last))
        return divide(ranges, self.options["minPartitions"], self.options["maxRecordsPerPartition"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition. Called in tasks, again after a failure; changes nothing."""
        if not isinstance(partition, QueuePartition):
            return  # Spark's stand-in for an empty plan
        # the planner needs no Arrow
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

        from reput.sources.queuerows import QueueRows  # noqa: PLC0415

        opened, options = self._store(), self.options
        schema = to_arrow_schema(self._schema, timezone="UTC")
        try:
            for batch in QueueRows(opened.queues, opened.log).read(
                partition.ranges,
                self._selection,
                self._columns.read_schema(schema),
                loss=opened.loss,
                fail_on_corrupt=options["onCorrupt"] == "fail",
                delay_levels_ms=opened.settings.message_delay_levels_ms,
                max_inflated_bytes=self._selection.form.max_inflated_bytes,
                verify_crc=options["verifyCrc"],
            ):
                yield self._columns.complete(matching(batch, self._pushed), schema)
        finally:
            freeze_loaded()


class ConsumeQueueBatchReader(_QueueReader, StoreBatchReader):
    """One read of ranges that are fixed when it is planned."""

    def __init__(self, options: ConsumeQueueOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        options.check_batch()

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions. Called once, on the driver."""
        opened = self._store()
        queues = opened.queues.refresh()
        named = frozenset(self.options["topics"] or ())
        self.missing_topics = named - {key.topic for key in queues}
        if self.missing_topics and not self.is_one_of_several:
            raise UsageError(
                f"option topics names {', '.join(sorted(self.missing_topics))}, for which "
                f"{self._output} has no messages"
            )
        if self.options["group"] is None:
            starts = resolve_starts(self.options, queues, EARLIEST)
        else:
            starts = group_starts(self.options, committed_of(self.options), queues, EARLIEST)
        ends = resolve_ends(self.options, queues)
        check_order(starts, ends, queues)
        starts = opened.loss.starts(starts, queues)
        self._check_coverage(queues)
        return self._plan(starts, opened.loss.ends(ends, queues), queues)


class PushingBatchReader(ConsumeQueueBatchReader):
    """A batch reader that takes Spark's filters as hints."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters as hints. Called once, on the driver, before ``partitions``. Spark evaluates
        them all again: a damaged record's row fulfils none."""
        self._pushed = filters
        self._selection = self._selection.narrowed(filters)
        if not self.options.names_queues:
            self._listed = self._selection
        return filters


class ConsumeQueueStreamReader(_QueueReader, StoreStreamReader):
    """Follows the queues, including new ones. Only the planner keeps state, and only to save
    work."""

    def __init__(self, options: ConsumeQueueOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        options.check_stream()
        self._group = None if options["group"] is None else QueryGroup(options)
        self._committed: dict[str, Any] | None = None
        self._frozen_ends: Offsets | None = None
        self._first: dict[str, Any] | None = None
        self._delay = TriggerDelay(options)
        self._caught_up: tuple[int, dict[str, Any]] | None = None
        """The refresh of the queues that was used, and the ends that it gave."""
        self._held: tuple[int, dict[str, Any]] | None = None
        """The same of a batch that waits for more messages."""
        self._checked: tuple[tuple[str, int] | None] | None = None
        """The writer of the queues when all of them were held against a position."""

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_group": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offsets. Called in the planner for a new checkpoint, before the ends are
        fixed or after that; then again for the partitions of batch 0, and where it is repeated."""
        if self._first is None:
            self._first = self._initial().to_json()
        return self._first

    def _initial(self) -> QueuePosition:
        pinned = PinnedStart(self.options["initialOffsetPath"], parse_position)
        start = pinned.read()
        if start is None:
            opened = self._store()
            queues: Queues = opened.queues.refresh()
            if self._group is None:
                self._check_coverage(queues)
            if self._frozen_ends is not None:
                queues = {key: queue for key, queue in queues.items() if key in self._frozen_ends}
            if self._group is None:
                starts = resolve_starts(self.options, queues, LATEST)
            else:
                starts = self._group.begin(queues, LATEST)
            starts = {key: self._frozen_start(key, offset) for key, offset in starts.items()}
            opened.log.refresh()
            start = position_at(starts, queues, opened.log, QueuePosition({}))
            pinned.keep(start.to_json())
        return start

    def _frozen_start(self, key: QueueKey, offset: int) -> int:
        """Return a start that messages which came after the ends were fixed have not moved."""
        ends, queues = self._frozen_ends, self._store().queues.views
        if ends is None or offset > queues[key].max_offset:
            return offset
        return min(offset, ends[key])

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch. Called in the planner, once per query."""
        most = self.options["maxOffsetsPerTrigger"]
        return self._delay.limit(ReadMaxRows(most) if most else None)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the queues' ends: nothing after them will be read. Called in the planner, once per
        query."""
        self._frozen_ends = latest(self._store().queues.refresh())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the ends of the next batch. Called in the planner every 10 ms when idle. An end is
        before that of ``start`` where a queue or the log has changed, and option failOnDataLoss
        allows to go on."""
        if self._group is not None and start != self._committed:
            # Spark asks for a batch after it has committed all of those before
            self._group.commit(self._selected_position(self._parsed(start)).offsets)
            self._committed = start
        opened = self._store()
        opened.queues.poll()
        # planning a batch and reports refresh as well: what they saw first has to be looked at here
        seen = opened.queues.refreshes, start
        if seen == self._caught_up:
            self._is_held(limit, 0)
            return start
        if seen == self._held and self._delay.may_hold(limit):
            return start
        queues = opened.queues.views
        opened.log.refresh()
        whole = self._parsed(start)
        position = self._selected_position(whole)
        agreed, trusted = opened.check.agreed(position, queues, self._to_check(position, queues))
        starts = opened.loss.starts({**position.offsets, **agreed}, queues)
        self._check_coverage(queues)
        ends = self._ends(queues)
        ends = {
            key: max(ends.get(key, first), first)
            for key, first in starts.items()
            if key in ends or key in position.offsets
        }
        changed = {key for key, offset in agreed.items() if offset != position.offsets[key]}
        new_count = sum(end - starts[key] for key, end in ends.items())
        if not changed and trusted is position and self._is_held(limit, new_count):
            self._held = seen
            return start
        reached = ends
        if isinstance(limit, ReadMaxRows):
            reached = limited_ends(starts, ends, limit.max_rows)
        is_last = reached == ends
        # without a new message a changed queue stays as it was: its old ones may come back
        waiting = {key for key in changed if trusted is position and reached[key] == starts[key]}
        reached |= {key: position.offsets[key] for key in waiting}
        latest_offset = start
        if trusted is not position or changed != waiting or reached != position.offsets:
            left = whole.without(position.offsets.keys()).offsets
            before = trusted.without(changed - waiting).beside(left)
            latest_offset = position_at({**reached, **left}, queues, opened.log, before).to_json()
        if is_last:
            self._caught_up = opened.queues.refreshes, latest_offset
        return latest_offset

    def beginning(self) -> dict[str, Any]:
        """Return the offset of no queue: each of them is read from its beginning."""
        return QueuePosition({}).to_json()

    def lag_between(self, start: dict[str, Any], end: dict[str, Any]) -> int:
        """Return the messages between two offsets."""
        queues, starts = self._store().queues.views, self._parsed(start).offsets
        ends = self._parsed(end).offsets
        return sum(
            end - starts.get(key, queues[key].min_offset if key in queues else end)
            for key, end in ends.items()
        )

    def _is_held(self, limit: ReadLimit, count: int) -> bool:
        """Whether a batch of ``count`` messages waits for more; never up to fixed ends."""
        return self._frozen_ends is None and self._delay.holds(limit, lambda: count)

    def _to_check(self, position: QueuePosition, queues: Queues) -> set[QueueKey]:
        """Return the queues that may have changed: those that moved, and all of them after the
        dispatcher has started again."""
        keys, writer = position.offsets.keys() & queues.keys(), (self._store().queues.writer,)
        if self._checked == writer:
            keys = {key for key in keys if queues[key].max_offset != position.offsets[key]}
        self._checked = writer
        return keys

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the queues' ends. Called in the planner for progress reports."""
        queues = self._store().queues
        queues.poll()
        return offsets_json(self._ends(queues.views))

    def _ends(self, queues: Queues) -> Offsets:
        ends = latest(queues)
        if self._frozen_ends is None:
            return ends
        return {key: min(end, ends.get(key, end)) for key, end in self._frozen_ends.items()}

    def _parsed(self, offset: dict[str, Any]) -> QueuePosition:
        position = parse_position(json.dumps(offset))
        if position is None:
            raise CommitLogDataLossError(
                "FOREIGN_OFFSET",
                f"the checkpoint's offset {offset} is no offset of queues",
                "begin anew with a fresh checkpointLocation",
            )
        return position

    def _selected_position(self, position: QueuePosition) -> QueuePosition:
        """Return the position of the queues that the options take.

        The others, of topics that were taken out since, keep their offsets, so that one that is
        taken again is read on there.
        """
        return position.without([key for key in position.offsets if not self._selection.takes(key)])

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch. Called in the planner for every batch, and again when
        it is repeated: queues may then end before ``end``, or be others up to there."""
        opened = self._store()
        queues = opened.queues.refresh()
        opened.log.refresh()
        first, last = (self._selected_position(self._parsed(offset)) for offset in (start, end))
        moved = {
            key for key in last.offsets.keys() & queues.keys() if first.at(key) != last.at(key)
        }
        starts, _ = opened.check.agreed(first, queues, moved & first.offsets.keys())
        ends, _ = opened.check.agreed(last, queues, moved, is_end=True)
        starts = opened.loss.starts({**first.offsets, **starts}, queues)
        self._check_coverage(queues)
        ends = opened.loss.ends({**last.offsets, **ends}, queues)
        return self._plan(starts, ends, queues)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls it when the next batch begins, and never for the last one. Where
        ``latestOffset`` begins says the same, and earlier."""

    def stop(self) -> None:
        """Close the queues, and leave the group. Called in the planner when the query ends."""
        if self._group is not None:
            self._group.close()
        if self._opened is not None:
            self._opened.log.close()
