"""Several stores in one load: a pattern, a list of roots, or roots with commas between them.

Each store has a reader of its own, and nothing is ordered between stores. An offset of a stream
holds those of all stores, by root:

    {"stores": {"/data/broker-a": {..}, "/data/broker-b": {..}}}

The stores are found when a query starts. One that was not there before is read from its beginning,
as a new queue is, and the offset of one that is gone stays, for the case that it comes back.
"""

from __future__ import annotations

import errno
import glob
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from reput.sources.offsets import PinnedStart
from reput.sources.options import SourceOptions, local_path
from reput.store import jsontext
from reput.store.errors import CommitLogDataLossError, NotReadyError, UsageError
from reput.store.stores import find_roots, name_outputs

if TYPE_CHECKING:
    import pyarrow as pa

PATH, PATHS, OUTPUTS, PIN = "path", "paths", "outputs", "initialoffsetpath"
"""Options in lower case; Spark makes ``paths``, JSON, of a list that ``load`` gets."""
ONE_STORE = frozenset({
    "output", "brokerconf", "storeid", "sealedend", "maxwaitms", "spool", "gather", "group",
    "minoffsetspertrigger", "startingoffsetsbytimestamp", "endingoffsetsbytimestamp",
    "physicaloffsetasof",
})  # fmt: skip
"""Options that say something about one store."""
STORES = "stores"

Options = TypeVar("Options", bound=SourceOptions)


class StoreBatchReader(DataSourceReader):
    """The reader of one store, perhaps among several."""

    is_one_of_several = False
    """Whether a topic that this store lacks may be in another one."""
    missing_topics: frozenset[str] = frozenset()
    """Topics that an option names and the store lacks; known after ``partitions``."""


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The same of a stream."""

    @abstractmethod
    def beginning(self) -> dict[str, Any]:
        """Return the offset before the store's first message. Called in the planner."""

    @abstractmethod
    def lag_between(self, start: dict[str, Any], end: dict[str, Any]) -> int:
        """Return how much lies between two offsets, in a unit that all stores share. Called in the
        planner."""


class Stores(Generic[Options]):
    """The stores of one load, each with its options."""

    def __init__(self, parse: Callable[[Mapping[str, str]], Options], given: Mapping[str, str]):
        """Find the stores. Raises UsageError for a pattern that matches none, for options that are
        wrong, and for those that say something about one store where there may be several."""
        common = {key.lower(): value for key, value in given.items()}
        places = _places(common)
        self.initial_offset_path = common.get(PIN)
        """Where the first offset of all stores is kept."""
        self.are_several = len(places) != 1 or _is_pattern(places[0])
        """Whether there may be several; a pattern may match one today and two tomorrow."""
        if not self.are_several:
            self.by_root = {places[0]: parse(given)}
            if OUTPUTS in common:
                raise UsageError("option outputs is for several stores; for one, it is output")
            return
        checked = {key: each for key, each in given.items() if key.lower() not in (PATH, PATHS)}
        _check_several(given, parse({**checked, PATH: places[0]}))
        kept = {key: each for key, each in checked.items() if key.lower() not in (OUTPUTS, PIN)}
        roots = sorted({root for place in places for root in _matching(place)})
        output_of: Mapping[Path, Path] = {}
        if OUTPUTS in common:
            output_of = name_outputs(roots, Path(common[OUTPUTS]))
        outputs = {root: {"output": str(output)} for root, output in output_of.items()}
        self.by_root = {
            str(root): parse({**kept, **outputs.get(root, {}), PATH: str(root)}) for root in roots
        }
        """Root -> options; sorted."""

    def batch_reader(
        self, make: Callable[[Options], StoreBatchReader], *, pushes: bool = False
    ) -> DataSourceReader:
        """Return the reader of one store, or that of several; ``pushes`` says whether those that
        are made take filters."""
        readers = {root: make(options) for root, options in self.by_root.items()}
        if not self.are_several:
            return readers.popitem()[1]
        return (PushingStoresReader if pushes else StoresBatchReader)(readers)

    def stream_reader(self, make: Callable[[Options], StoreStreamReader]) -> DataSourceStreamReader:
        """The same for a stream."""
        readers = {root: make(options) for root, options in self.by_root.items()}
        if not self.are_several:
            return readers.popitem()[1]
        return StoresStreamReader(readers, self.initial_offset_path)


def _places(common: Mapping[str, str]) -> list[str]:
    """Return the roots and patterns that were given, as paths."""
    if PATHS not in common and PATH not in common:
        raise UsageError("option path is missing: the store's root directory")
    try:
        if PATHS in common:
            places = jsontext.parse(common[PATHS])
            if not isinstance(places, list) or not places or not all(map(_is_text, places)):
                raise ValueError("must be a list of paths, in JSON")
            return [local_path(place) for place in places]
        whole = local_path(common[PATH])
        if _is_there(whole):
            return [whole]
        return [local_path(place.strip()) for place in common[PATH].split(",")]
    except ValueError as error:
        given = common.get(PATHS, common.get(PATH))
        raise UsageError(f"option path is {given!r}; it {error}") from error


def _is_text(place: object) -> bool:
    return isinstance(place, str)


def _is_pattern(place: str) -> bool:
    return glob.has_magic(place) and not _is_there(place)


def _is_there(place: str) -> bool:
    """Whether a path exists; a list of many stores is longer than any that can."""
    try:
        return Path(place).exists()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False


def _matching(place: str) -> list[Path]:
    if not _is_pattern(place):
        return [Path(place)]
    try:
        return find_roots(place)
    except NotReadyError as error:
        raise UsageError(
            f"option path is {place}, a pattern that matches no store; a store is a directory with "
            "a commitlog or a broker.conf"
        ) from error


def _check_several(given: Mapping[str, str], options: SourceOptions) -> None:
    """Reject what cannot hold for each of several stores. Raises UsageError."""
    ones = [key for key in given if key.lower() in ONE_STORE]
    by_queue = ("startingOffsets", "endingOffsets")
    ones += [key for key in by_queue if not isinstance(options[key], str | None)]
    if any((key.lower(), value.lower()) == ("mode", "runs") for key, value in given.items()):
        ones.append("mode")
    if ones:
        raise UsageError(
            f"option {ones[0]} is for one store, and path may name several; read each store by "
            "itself, and give the union of the frames"
        )


@dataclass
class StorePartition(InputPartition):
    """A partition of one of the stores."""

    root: str
    part: InputPartition


class StoresBatchReader(DataSourceReader):
    """One read of several stores."""

    def __init__(self, readers: Mapping[str, StoreBatchReader]) -> None:
        self._readers = readers
        for reader in readers.values():
            reader.is_one_of_several = True

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of all stores. Called once, on the driver. Raises UsageError for a
        topic that an option names and no store has."""
        parts = [
            StorePartition(root, part)
            for root, reader in self._readers.items()
            for part in reader.partitions()
        ]
        missing = frozenset.intersection(*(each.missing_topics for each in self._readers.values()))
        if missing:
            raise UsageError(
                f"option topics names {', '.join(sorted(missing))}, for which none of "
                f"{len(self._readers)} stores has messages"
            )
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition. Called in tasks."""
        if isinstance(partition, StorePartition):
            yield from self._readers[partition.root].read(partition.part)


class PushingStoresReader(StoresBatchReader):
    """The same, where Spark may push filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters as hints, in every store. Called once, on the driver."""
        for reader in self._readers.values():
            reader.pushFilters(filters)
        return filters


class StoresStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows several stores. Spark calls it as it calls the reader of one."""

    def __init__(
        self, readers: Mapping[str, StoreStreamReader], initial_offset_path: str | None
    ) -> None:
        self._readers = readers
        self._initial_offset_path = initial_offset_path
        self._first: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offsets of all stores."""
        if self._first is None:
            pinned = PinnedStart(self._initial_offset_path, _parse)
            self._first = pinned.read()
            if self._first is None:
                self._first = _document({r: each.initialOffset() for r, each in self._each()})
                pinned.keep(self._first)
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch of all stores together."""
        return next(iter(self._readers.values())).getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the ends of all stores."""
        for _, reader in self._each():
            reader.prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the ends of the next batch. A limit is divided in proportion to the stores' lags,
        as that of one store is among its queues."""
        former = self._parsed(start)
        starts = {root: self._start(former, root) for root in self._readers}
        ends = {
            root: reader.latestOffset(starts[root], ReadAllAvailable())
            for root, reader in self._each()
        }
        lags = {r: each.lag_between(starts[r], ends[r]) for r, each in self._each()}
        for root, share in _shares(limit, lags).items():
            ends[root] = self._readers[root].latestOffset(starts[root], share)
        return start if ends.items() <= former.items() else _document({**former, **ends})

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the ends of all stores."""
        return _document({root: each.reportLatestOffset() for root, each in self._each()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch, of all stores that are there."""
        former, ends = self._parsed(start), self._parsed(end)
        return [
            StorePartition(root, part)
            for root, reader in self._each()
            if root in ends and former.get(root) != ends[root]
            for part in reader.partitions(self._start(former, root), ends[root])
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition. Called in tasks."""
        if isinstance(partition, StorePartition):
            yield from self._readers[partition.root].read(partition.part)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, as the readers of the stores."""

    def stop(self) -> None:
        """Close all stores."""
        for _, reader in self._each():
            reader.stop()

    def _each(self) -> Iterable[tuple[str, StoreStreamReader]]:
        return self._readers.items()

    def _start(self, former: Mapping[str, Any], root: str) -> dict[str, Any]:
        return former[root] if root in former else self._readers[root].beginning()

    def _parsed(self, offset: dict[str, Any]) -> dict[str, Any]:
        stores = _stores(offset)
        if stores is None:
            raise CommitLogDataLossError(
                "FOREIGN_OFFSET",
                f"the checkpoint's offset {offset} is not one of several stores",
                "give the path with which the query began, or begin anew with a fresh "
                "checkpointLocation",
            )
        return stores


def _document(stores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the offset, always in the same order: Spark compares offsets as text."""
    return {STORES: dict(sorted(stores.items()))}


def _stores(offset: object) -> dict[str, Any] | None:
    stores = offset.get(STORES) if isinstance(offset, dict) else None
    if not isinstance(stores, dict) or not all(isinstance(each, dict) for each in stores.values()):
        return None
    return stores


def _parse(text: str) -> dict[str, Any] | None:
    """Return the offset that a file holds; None where it is damaged."""
    try:
        offset = jsontext.parse(text)
    except ValueError:
        return None
    return offset if _stores(offset) is not None else None


def _shares(limit: ReadLimit, lags: Mapping[str, int]) -> dict[str, ReadLimit]:
    """Return the limits of stores that have something; none where there is no limit."""
    lagging = {root: lag for root, lag in lags.items() if lag > 0}
    total = sum(lagging.values())
    if isinstance(limit, ReadMaxRows):
        rows = limit.max_rows
        return {root: ReadMaxRows(max(1, rows * lag // total)) for root, lag in lagging.items()}
    if isinstance(limit, ReadMaxBytes):
        size = limit.max_bytes
        return {root: ReadMaxBytes(max(1, size * lag // total)) for root, lag in lagging.items()}
    return {}
