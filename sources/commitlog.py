"""The Spark data source ``rocketmq-commitlog``: a commitlog directory as a table.

Unit of parallelism: a byte range of the log that begins and ends at record starts. Guarantee: a
range gives the same messages however often it is read, so a query is exactly-once where its sink is
idempotent. Readers hold no progress: everything follows from offsets and the log.

Spark keeps one reader in a planner process on the driver, which answers where the log ends, and
sends copies of it to the tasks, which only call ``read``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
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
    ReadMaxBytes,
    ReadMaxRows,
)
from pyspark.sql.types import StructType

from reput.sources.commitlogoptions import CommitLogOptions
from reput.sources.garbage import freeze_loaded
from reput.sources.hangup import QuietDataSource
from reput.sources.interpreter import check_workers_interpreter
from reput.sources.livesettings import LiveSettings
from reput.sources.logparts import even_sizes, shrinking_sizes
from reput.sources.manystores import StoreBatchReader, Stores, StoreStreamReader
from reput.sources.offsets import (
    LogCheck,
    PinnedStart,
    earliest,
    limited_end,
    resolve_end,
    resolve_start,
    store_id_of,
)
from reput.sources.options import EARLIEST, LATEST, SourceOptions
from reput.sources.pushdown import is_pushing, matching, narrowed
from reput.sources.rowcolumns import RowColumns
from reput.sources.schemas import RUNS_SCHEMA, check_schema
from reput.sources.triggerdelay import MessageCount, TriggerDelay
from reput.store import configjson
from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import CommitLogDataLossError
from reput.store.files import CONSUMER_FILTER_FILE
from reput.store.filetimes import Watched
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, record_starts, walk
from reput.store.log.logtail import LogTail
from reput.store.runs.dispatch import BatchSettings, ScannedRange
from reput.store.state.built import settings_of
from reput.store.state.evidence import Evidence, evidence_before
from reput.store.state.logoffset import LogOffset, offset_json, parse_log_offset

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.02, 0.1
"""Pauses between looks at the log's end, the first and the longest, while a query waits there."""


@dataclass
class LogPartition(InputPartition):
    """Ranges [start, end) of the log, and the settings by which all partitions of a batch are read.

    It is one range, or all parts of the batch: the tasks of a batch with a spool share them
    (``store.runs.spool``).
    """

    ranges: tuple[tuple[int, int], ...]
    settings: BatchSettings
    filters: object
    """The document of consumerFilter.json if bit maps are wanted."""


class CommitLogDataSource(QuietDataSource):
    """``spark.read`` and ``spark.readStream`` over a store; options in
    ``sources.commitlogoptions``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``. Called on the driver to register the source, where it raises
        UsageError if the interpreter of Spark's workers lacks this project."""
        check_workers_interpreter()
        return "rocketmq-commitlog"

    def schema(self) -> str:
        """The schema that ``mode`` fixes. Called first, on the driver: a wrong option fails here,
        at load()."""
        schema = ""
        for options in Stores(CommitLogOptions, self.options).by_root.values():
            store_settings(options).open_log()
            schema = _schema_of(options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader. Called on the driver."""
        pushes = is_pushing()
        kind = PushingLogReader if pushes else CommitLogBatchReader
        return Stores(CommitLogOptions, self.options).batch_reader(
            partial(kind, schema=schema), pushes=pushes
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the stream reader. Called in the planner process, once per query."""
        return Stores(CommitLogOptions, self.options).stream_reader(
            partial(CommitLogStreamReader, schema=schema)
        )


def _schema_of(options: SourceOptions) -> str:
    return RUNS_SCHEMA if options["mode"] == "runs" else RowColumns(options).ddl


def store_settings(options: SourceOptions) -> StoreSettings:
    """Combine a source's options with the store's property file. Raises UsageError."""
    conf = options["brokerConf"]
    settings = read_store_settings(Path(options["path"]), Path(conf) if conf else None)
    return settings.with_commit_log_file_size(options["commitLogFileSize"])


class _LogReader:
    """The common part of both readers: options, the log (opened where it is used), planning,
    reading."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema
        check_schema(CommitLogDataSource.name(), schema, _schema_of(options))
        self._columns = RowColumns(options)
        self._pushed: list[Filter] = []
        # the file is read once, so that planner and tasks look in the same directories even if it
        # changes
        self._settings = store_settings(options)
        if options["output"] is not None:
            self._settings = settings_of(Path(options["output"]), self._settings)
        self._opened: tuple[StoreSettings, CommitLog] | None = None
        self._live: LiveSettings | None = None
        self._filters: Watched[object] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_live": None, "_filters": None}

    def _store(self) -> tuple[StoreSettings, CommitLog]:
        if self._opened is None:
            self._opened = self._settings, self._settings.open_log()
        return self._opened

    def _settings_now(self) -> tuple[BatchSettings, object]:
        """Return the settings of a batch whose end is known, and its consumers' filters."""
        settings, _ = self._store()
        gather, conf = self.options["gather"], self.options["brokerConf"]
        if self._live is None:
            batch_topics = gather.batch_topics
            self._live = LiveSettings(settings, Path(conf) if conf else None, batch_topics)
        if self.options["mode"] == "rows":
            # every kind of queue gives the same rows
            return BatchSettings(frozenset(), self._live.delay_levels_ms()), None
        if not gather.bit_maps:
            return self._live.poll(), None
        if self._filters is None:
            path = settings.root / CONSUMER_FILTER_FILE
            self._filters = Watched(path, lambda: configjson.read(path) or {})
        return self._live.poll(), self._filters.value()

    def _plan(self, start: int, end: int) -> list[LogPartition]:
        """Return partitions of [start, end), cut at file starts where one is near, else at records.

        The packed form is cut at likely record starts, because its sink checks that the pieces
        join. Nothing checks rows, so their cuts are found by walking the records.
        """
        _, log = self._store()
        log.refresh()
        partition_count = self.options["minPartitions"]
        sizes_of = even_sizes if self.options["spool"] is None else shrinking_sizes
        sizes = sizes_of(end - start, partition_count, log.file_size)
        window = Window(log)
        cuts, ideal = [start], start
        for size in sizes[:-1]:
            ideal += size
            segment = log.segments.at(ideal)
            if segment is None:
                continue
            file_end, near = segment.start + log.file_size, size // 32
            if ideal - segment.start <= near:
                cut = segment.start
            elif file_end - ideal <= near:
                cut = file_end
            elif self.options["mode"] == "runs":
                (cut,) = record_starts(log, [ideal])
            else:
                cut = walk(log, window, max(segment.start, cuts[-1]), ideal).offset
            if cuts[-1] < cut < end:
                cuts.append(cut)
        now = self._settings_now()
        ranges = tuple(pairwise([*cuts, end]))
        if self.options["spool"] is not None:
            return [LogPartition(ranges, *now)] * min(partition_count, len(ranges))
        return [LogPartition((part,), *now) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition. Called in tasks, again after a failure; changes nothing but the
        spool."""
        if not isinstance(partition, LogPartition):
            return  # Spark's stand-in for an empty plan
        options = self.options
        common: dict[str, Any] = {
            "delay_levels_ms": partition.settings.delay_levels_ms,
            "verify_crc": options["verifyCrc"],
            "fail_on_data_loss": options["failOnDataLoss"],
        }
        if options["mode"] == "runs":
            yield from self._read_runs(partition, common)
            return
        # among the processes that Spark starts for a query, only the tasks need kernels and Arrow
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

        from reput.store.rows.rows import message_rows  # noqa: PLC0415

        ((start, end),) = partition.ranges
        schema = to_arrow_schema(self._schema, timezone="UTC")
        try:
            for batch in message_rows(
                self._store()[1],
                start,
                end,
                self._columns.read_schema(schema),
                options.row_form,
                fail_on_corrupt=options["onCorrupt"] == "fail",
                **common,
            ):
                yield self._columns.complete(matching(batch, self._pushed), schema)
        finally:
            freeze_loaded()

    def _read_runs(
        self, partition: LogPartition, common: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        from reput.sources.bitmaps import BitMaps  # noqa: PLC0415
        from reput.store.runs.packed import read_runs, scanned_row  # noqa: PLC0415
        from reput.store.runs.spool import claim, is_open, write_part  # noqa: PLC0415

        settings, log = self._store()
        gather = self.options["gather"].with_batch_topics(partition.settings.batch_topics)
        bit_maps = BitMaps(log, settings, partition.filters).added_to if gather.bit_maps else None
        common |= {"add_bit_maps": bit_maps, "extras": gather}
        if self.options["spool"] is None:
            ((start, end),) = partition.ranges
            yield from read_runs(log, start, end, **common)
            return
        spool = Path(self.options["spool"])
        for start, end in partition.ranges:
            # the first part always, so that a batch that has begun when a run is stopped gets on
            may_claim = start == partition.ranges[0][0] or is_open(spool)
            if may_claim and (claimed := claim(spool, start)) is not None:
                with claimed:
                    rows = read_runs(log, start, end, reached=claimed.reached, **common)
                    write_part(spool, start, rows)
                    claimed.reached(end, at_once=True)
        (start, _), (_, end) = partition.ranges[0], partition.ranges[-1]
        yield scanned_row(ScannedRange(start, end, end, 0, -1, partition.settings, 0))


class CommitLogBatchReader(_LogReader, StoreBatchReader):
    """One read of [start, end), both fixed when the read is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        options.check_batch()

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions. Called once, on the driver."""
        settings, log = self._store()
        sealed_end = LogTail(log).settled()
        if any(self.options[key] is not None for key in ("startingOffsets", "startingTimestamp")):
            start = resolve_start(self.options, settings, log, sealed_end)
        else:
            start = earliest(self.options, log)
        end = resolve_end(self.options, log, start, sealed_end)
        start, end = narrowed(log, start, end, self._pushed)
        return list(self._plan(start, end)) if start < end else []


class PushingLogReader(CommitLogBatchReader):
    """A batch reader that takes Spark's filters as hints."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters as hints. Called once, on the driver, before ``partitions``. Spark evaluates
        them all again."""
        self._pushed = filters
        return filters


class CommitLogStreamReader(_LogReader, StoreStreamReader):
    """Follows the log. Only the planner keeps state, and only to save work.

    Offsets carry evidence of what was read (``store.state.evidence``), except those of packed runs
    for an output, whose watermark has its own.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        options.check_stream()
        self._tail: LogTail | None = None
        self._check: LogCheck | None = None
        self._frozen: LogOffset | None = None
        self._first: dict[str, Any] | None = None
        self._delay = TriggerDelay(options)
        self._count: MessageCount | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_tail": None, "_check": None, "_count": None}

    @property
    def _store_id(self) -> str:
        settings, _ = self._store()
        return self.options["storeId"] or store_id_of(settings)

    @property
    def _has_evidence(self) -> bool:
        return self.options["output"] is None

    def _log_check(self) -> LogCheck:
        if self._check is None:
            self._check = LogCheck(self._store()[1], self.options["failOnDataLoss"])
        return self._check

    def _log_tail(self) -> LogTail:
        if self._tail is None:
            self._tail = LogTail(self._store()[1])
        return self._tail

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset. Called in the planner for a new checkpoint, before the end is
        fixed or after that; then again for the partitions of batch 0, and where it is repeated."""
        if self._first is None:
            self._first = self._json(self._initial())
        return self._first

    def _initial(self) -> LogOffset:
        settings, log = self._store()
        pinned = PinnedStart(
            self.options["initialOffsetPath"], lambda text: parse_log_offset(text, self._store_id)
        )
        start = pinned.read()
        if start is None:
            option = self.options["startingOffsets"]
            if self.options["startingTimestamp"] is None and option == EARLIEST:
                offset = earliest(self.options, log)
            else:
                offset = sealed_end = self._sealed_end()
                if self.options["startingTimestamp"] is not None or option not in (None, LATEST):
                    offset = resolve_start(self.options, settings, log, sealed_end)
            start = LogOffset(offset, self._evidence(offset))
            pinned.keep(self._json(start))
        return start

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch. Called in the planner, once per query."""
        most: ReadLimit | None = None
        if self.options["maxBytesPerTrigger"]:
            most = ReadMaxBytes(self.options["maxBytesPerTrigger"])
        elif self.options["maxOffsetsPerTrigger"]:
            most = ReadMaxRows(self.options["maxOffsetsPerTrigger"])
        return self._delay.limit(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the log's end: nothing after it will be read. Called in the planner, once per
        query."""
        end = self._sealed_end()
        self._frozen = LogOffset(end, self._evidence(end))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch. Called in the planner, when idle 10 ms after each
        answer; a look then costs a stat and two small reads. The end is before ``start`` where the
        log has changed, and option failOnDataLoss allows to go on."""
        position, log = self._parsed(start), self._store()[1]
        end = self._end(position.offset, (self.options["maxWaitMs"] or 0) / 1000)
        begin = self._agreed(position)
        if begin != position.offset:
            # the tail went on from an offset at which no record may start
            self._tail = None
            end = self._end(begin)
        self._log_check().starts_in(position)
        is_same = begin == position.offset
        if is_same and (self._is_held(limit, begin, end) or end <= begin):
            return start
        evidence = position.evidence
        if not is_same:
            evidence = tuple(each for each in evidence if each.end <= begin)
        reached = limited_end(log, begin, end, limit) if begin < end else begin
        return self._json(LogOffset(reached, self._evidence(reached, begin, evidence)))

    def _is_held(self, limit: ReadLimit, begin: int, end: int) -> bool:
        """Whether the batch of [begin, end) waits for more messages; never up to a fixed end."""
        if self._frozen is not None:
            return False
        count = self._count = self._count or MessageCount(self._store()[1])
        least = self._delay.least
        return self._delay.holds(limit, lambda: count.within(begin, end, least))

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the log's end. Called in the planner for progress reports."""
        return offset_json(self._store_id, self._end(0))

    def beginning(self) -> dict[str, Any]:
        """Return the offset of the log's first message."""
        offset = earliest(self.options, self._store()[1])
        return self._json(LogOffset(offset, self._evidence(offset)))

    def lag_between(self, start: dict[str, Any], end: dict[str, Any]) -> int:
        """Return the bytes between two offsets."""
        return self._parsed(end).offset - self._parsed(start).offset

    def _agreed(self, position: LogOffset) -> int:
        """Return where the log agrees with a position, which is its offset as a rule."""
        return self._log_check().agreed(position) if self._has_evidence else position.offset

    def _end(self, begin: int, wait_seconds: float = 0.0) -> int:
        if self._frozen is not None:
            return self._agreed(self._frozen)
        start = max(begin, self.options["sealedEnd"] or 0)
        if self._tail is None:
            # Trigger.Once asks a single time: that answer must include the last record, too
            return self._log_tail().settled(start, patient=True)
        deadline = time.monotonic() + (wait_seconds if start == begin else 0.0)
        tail, pause = self._log_tail(), FIRST_PAUSE_SECONDS
        was_idle = tail.is_idle
        while (end := tail.poll(start)) <= start and time.monotonic() < deadline:
            pause = min(pause * 1.25, LAST_PAUSE_SECONDS)
            if tail.is_idle != was_idle:
                # a record that has just come is sealed by the next look
                was_idle, pause = tail.is_idle, FIRST_PAUSE_SECONDS
            time.sleep(pause)
        return end

    def _sealed_end(self) -> int:
        if self._frozen is not None:
            return self._frozen.offset
        end: int | None = self.options["sealedEnd"]
        return self._log_tail().settled() if end is None else end

    def _evidence(self, end: int, begin: int = 0, evidence: Evidence = ()) -> Evidence:
        return evidence_before(self._store()[1], begin, end, evidence) if self._has_evidence else ()

    def _json(self, position: LogOffset) -> dict[str, Any]:
        return offset_json(self._store_id, position.offset, position.evidence)

    def _parsed(self, offset: dict[str, Any]) -> LogOffset:
        position = parse_log_offset(offset, self._store_id)
        if position is None:
            raise CommitLogDataLossError(
                "FOREIGN_OFFSET",
                f"the checkpoint's offset {offset} is damaged or belongs to another store than "
                f"{self._store_id}",
                "give a store that moved its former identity with option storeId, or begin anew "
                "with a fresh checkpointLocation",
            )
        return position

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch. Called in the planner for every batch, and again when
        it is repeated: the log may then end before ``end``, or be another one up to there."""
        begin, reached = self._agreed(self._parsed(start)), self._agreed(self._parsed(end))
        # the dispatcher finds out itself that the log has changed, by the range that it gets
        return self._plan(begin, reached) if begin < reached or not self._has_evidence else []

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls it when the next batch begins, and never for the last one."""

    def stop(self) -> None:
        """Close the log. Called in the planner when the query ends."""
        if self._opened is not None:
            self._opened[1].close()
