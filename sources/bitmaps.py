"""The filterBitMap of scanned messages, by the store's SQL92 consumers.

Source: RocketMQ 5.3.3 ``CommitLogDispatcherCalcBitMap``; format.md §10.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from filters import consumers
from filters.bitmaps import BitMapCalculator
from filters.bloom import DEFAULT_ERROR_RATE, DEFAULT_EXPECTED_CONSUMERS, BloomFilter
from store import configjson, java
from store.commitlog import CommitLog
from store.config import StoreSettings
from store.dispatch import Run
from store.errors import StoreError, UsageError
from store.record import Record


class BitMaps:
    """Bit maps of runs; reads the properties of those messages whose topic has a filter."""

    def __init__(self, log: CommitLog, settings: StoreSettings) -> None:
        """Raises UsageError where the filter file is no broker's, or contradicts the settings."""
        self._log = log
        path = settings.root / consumers.CONSUMER_FILTER_FILE
        try:
            found = consumers.from_json(configjson.read(path), _bloom(settings))
        except (consumers.FilterDataError, ValueError) as error:
            raise UsageError(f"cannot use {path}: {error}") from error
        if found.problem:
            raise UsageError(
                f"{path} contradicts broker.conf (maxErrorRateOfBloomFilter, "
                f"expectConsumerNumUseFilter): {found.problem}"
            )
        self._calculator = BitMapCalculator(found)
        self._topics = {topic.encode("utf-8"): topic for topic in found.topics}

    def of_run(self, run: Run) -> NDArray[np.uint8] | None:
        """uint8[n, size]; None where the topic has no filter. Raises StoreError where the log has
        changed since it was scanned."""
        topic = self._topics.get(run.topic)
        if topic is None:
            return None
        names = self._calculator.names(topic)
        maps = []
        for unit in run.units:
            found = self._log.record_at(int(unit["offset"]), int(unit["size"]))
            if not isinstance(found, Record):
                raise StoreError(f"the record at {unit['offset']} changed while it was read")
            values = {java.decode(k): v for k, v in found.property_map.items()}
            wanted = {name: java.decode(values[name]) for name in names if name in values}
            maps.append(self._calculator.bit_map(topic, wanted) or b"")
        return np.frombuffer(b"".join(maps), np.uint8).reshape(len(maps), -1)


def _bloom(settings: StoreSettings) -> BloomFilter | None:
    """The broker's shape where its settings state it; otherwise the filter file tells."""
    rate = settings.max_error_rate_of_bloom_filter
    expected = settings.expect_consumer_num_use_filter
    if rate is None and expected is None:
        return None
    return BloomFilter.create_by_fn(
        rate or DEFAULT_ERROR_RATE, expected or DEFAULT_EXPECTED_CONSUMERS
    )
