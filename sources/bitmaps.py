"""The filterBitMap of scanned messages, computed from the store's SQL92 consumers.

Source: RocketMQ 5.3.3 ``CommitLogDispatcherCalcBitMap``; formats.md §10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reput.filters import consumers
from reput.filters.bitmaps import BitMapCalculator
from reput.filters.bloom import DEFAULT_ERROR_RATE, DEFAULT_EXPECTED_CONSUMERS, BloomFilter
from reput.store import configjson
from reput.store.config import StoreSettings
from reput.store.errors import StoreError, UsageError
from reput.store.files import CONSUMER_FILTER_FILE
from reput.store.log.commitlog import CommitLog
from reput.store.rows.rows import rows_at
from reput.store.rows.rowschema import ROWS_SCHEMA
from reput.store.runs.dispatch import Run

_COLUMNS = pa.schema(
    [ROWS_SCHEMA.field(name) for name in ("physicalOffset", "properties", "corruptReason")]
)


class BitMaps:
    """Computes the bit maps of runs; it reads the properties only of messages whose topic has a
    filter."""

    def __init__(
        self, log: CommitLog, settings: StoreSettings, document: object | None = None
    ) -> None:
        """``document`` is the filter file's, or None to read the file now. Raises UsageError where
        it is not a broker's document, or contradicts the settings."""
        self._log = log
        path = settings.root / CONSUMER_FILTER_FILE
        if document is None:
            document = configjson.read(path)
        try:
            filters = consumers.from_json(document, _bloom(settings))
            self._topics = {topic.encode("utf-8"): topic for topic in filters.topics}
        except ValueError as error:
            raise UsageError(f"cannot use {path}: {error}") from error
        if filters.problem:
            raise UsageError(
                f"{path} contradicts broker.conf (maxErrorRateOfBloomFilter, "
                f"expectConsumerNumUseFilter): {filters.problem}"
            )
        self._calculator = BitMapCalculator(filters)
        self._delay_levels_ms = settings.message_delay_levels_ms

    def added_to(self, runs: Sequence[Run]) -> list[Run]:
        """Return ``runs``, with bit maps added to those whose topic has a filter. Raises StoreError
        where the log has changed since it was scanned."""
        added = list(runs)
        for name, topic in self._topics.items():
            of_topic = [index for index, run in enumerate(runs) if run.topic == name]
            if not of_topic:
                continue
            fields = ("offset", "size")
            offsets, sizes = (
                np.concatenate([runs[index].units[field] for index in of_topic]) for field in fields
            )
            ends = np.cumsum([len(runs[index]) for index in of_topic])
            maps = np.split(self._of_messages(topic, offsets, sizes), ends[:-1])
            for index, bit_maps in zip(of_topic, maps, strict=True):
                added[index] = replace(added[index], bit_maps=bit_maps)
        return added

    def _of_messages(
        self, topic: str, offsets: NDArray[np.int64], sizes: NDArray[np.int32]
    ) -> NDArray[np.uint8]:
        """Return uint8[n, size]; the log is read in its own order."""
        order = np.argsort(offsets)
        parts = [
            self._of_rows(topic, rows)
            for rows in rows_at(
                self._log, offsets[order], sizes[order], _COLUMNS,
                delay_levels_ms=self._delay_levels_ms,
            )
        ]  # fmt: skip
        ordered = np.concatenate(parts)
        maps = np.empty_like(ordered)
        maps[order] = ordered
        return maps

    def _of_rows(self, topic: str, rows: pa.RecordBatch) -> NDArray[np.uint8]:
        """Return uint8[n, size]; each distinct set of property values is evaluated once."""
        damaged = np.flatnonzero(rows["corruptReason"].is_valid())
        if len(damaged):
            offset = rows["physicalOffset"][damaged[0]]
            line = f"the record at {offset} changed while it was read"
            raise StoreError(line, physical_offset=offset.as_py())
        names = sorted(self._calculator.names(topic))
        pairs = rows["properties"]
        columns = pc.index_in(pairs.keys, pa.array(names, pa.string()))
        named = np.flatnonzero(columns.is_valid())
        texts = pairs.items.take(pa.array(named)).dictionary_encode()
        # -1: the message has no such property
        codes = np.full((len(rows), len(names)), -1, np.int32)
        row_of_pair = np.repeat(np.arange(len(rows)), np.diff(pairs.offsets))
        codes[row_of_pair[named], columns.drop_null()] = texts.indices
        distinct, which = np.unique(codes, axis=0, return_inverse=True)
        values = texts.dictionary.to_pylist()
        maps = []
        for combination in distinct.tolist():
            property_values = {
                n: values[code] for n, code in zip(names, combination, strict=True) if code >= 0
            }
            maps.append(self._calculator.bit_map(topic, property_values) or b"")
        data = np.frombuffer(b"".join(maps), np.uint8)
        return data.reshape(len(maps), -1)[which.reshape(-1)]


def _bloom(settings: StoreSettings) -> BloomFilter | None:
    """Return the shape that the broker's settings state; otherwise the filter file's."""
    rate = settings.max_error_rate_of_bloom_filter
    expected = settings.expect_consumer_num_use_filter
    if rate is None and expected is None:
        return None
    return BloomFilter.create_by_fn(
        rate or DEFAULT_ERROR_RATE, expected or DEFAULT_EXPECTED_CONSUMERS
    )
