"""Tables of each format that followers fill from a log without Spark, whatever happens to them, and
the rows that must be there at the end."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyiceberg.table import Table

from reput.sinks.delta.table import DeltaTarget
from reput.sinks.iceberg.catalog import TableName, open_catalog
from reput.sinks.iceberg.table import IcebergTarget
from reput.sinks.tables.follower import TableFollower
from reput.sinks.tables.layout import DELTA_LAYOUT, ICEBERG_LAYOUT
from tests.sinks.test_tables import COMPARED, STORE_ID, Source, plain_source, rows_of
from tests.support.settings import ANY_SETTINGS
from tests.support.tableformats import catalog_properties
from tests.support.wire import PlainLog

DAY_MS = 86_400_000
MESSAGES_A_DAY = 20
ATTEMPTS = 100
"""Failures in a row of a follower that is given up."""


@dataclass(frozen=True)
class FilledTable:
    """A table, as it can be told to another process."""

    name: str
    delta: str | None = None
    """Its directory, of a Delta table."""
    catalog: Mapping[str, str] = field(default_factory=dict)
    """pyiceberg's properties, of an Iceberg table."""
    partition_by: str | None = None
    """The declared partitions; None for the format's."""
    sort_by: str | None = None
    """The declared order, likewise."""

    @classmethod
    def in_directory(cls, kind: str, root: Path) -> FilledTable:
        """A new one on this machine: ``delta``, or ``iceberg`` with a catalog of sqlite; each also
        with a layout, as ``delta:hour:topic,keys``."""
        name, *declared = kind.split(":")
        parts, order = declared or (None, None)
        delta = str(root / "delta") if name == "delta" else None
        catalog = {} if name == "delta" else catalog_properties(root / "lake")
        return cls("messages", delta, catalog, parts, order)

    @classmethod
    def parse(cls, text: str) -> FilledTable:
        """The table of ``str``."""
        return cls(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @property
    def identifier(self) -> tuple[str, ...]:
        """The name in its catalog."""
        return "db", self.name

    def target(self) -> DeltaTarget | IcebergTarget:
        """A follower's target."""
        declared = self.partition_by, self.sort_by, None
        if self.delta is not None:
            layout = DELTA_LAYOUT.declared(*declared)
            return DeltaTarget(self.delta, interval_seconds=0.0, layout=layout)
        table, layout = TableName("lake", self.identifier), ICEBERG_LAYOUT.declared(*declared)
        return IcebergTarget(table, self.catalog, interval_seconds=0.0, layout=layout)

    def follower(self) -> TableFollower:
        """Another one, which knows nothing but the table."""
        found = self.target().open(STORE_ID, ANY_SETTINGS)
        assert isinstance(found, TableFollower)
        return found

    def iceberg(self) -> Table:
        """The table as another program sees it."""
        return open_catalog("lake", self.catalog).load_table(self.identifier)

    def rows(self) -> list[dict[str, Any]]:
        """Columns of the rows that a follower has written, by physical offset."""
        columns = [*COMPARED, "storeId"]
        if self.delta is not None:
            found: pa.Table = DeltaTable(self.delta).to_pyarrow_table(columns=columns)
        else:
            found = self.iceberg().scan(selected_fields=tuple(columns)).to_arrow()
        ours = found.filter(pc.equal(found.column("storeId"), STORE_ID)).select(COMPARED)
        order = pc.sort_indices(ours, [("physicalOffset", "ascending")])
        rows: list[dict[str, Any]] = ours.take(order).to_pylist()
        return [{**row, "properties": sorted(row["properties"] or ())} for row in rows]


@dataclass(frozen=True)
class Filling:
    """A log of messages, of which followers write some at a time."""

    source: Source
    ends: list[int]
    """The ends of its messages."""

    @classmethod
    def of(cls, root: Path, messages: int) -> Filling:
        """Lay a log below a directory."""
        log = PlainLog(1 << 20)
        for number in range(messages):
            log.append(
                topic=b"T%d" % (number % 3), body=b"%d" % number, queue_offset=number,
                store_timestamp=number // MESSAGES_A_DAY * DAY_MS + number,
            )  # fmt: skip
        return cls(plain_source(root, log), [end for _, end in log.spans])

    def fill(
        self,
        table: FilledTable,
        rng: random.Random,
        before_write: Callable[[], object] = lambda: None,
        most: int = 3,
    ) -> list[str]:
        """Write up to ``most`` messages at a time until the end, as a run's thread does, which asks
        for the position after any error; return the errors."""
        follower, errors, failures = table.follower(), list[str](), 0
        position: int | None = None
        try:
            while failures < ATTEMPTS:
                try:
                    if position is None:
                        position = follower.position() or 0
                    ends = [end for end in self.ends if end > position][:most]
                    if not ends:
                        return errors
                    before_write()
                    end = rng.choice(ends)
                    self.source.write(follower, position, end)
                    position, failures = end, 0
                # as in the thread
                except Exception as error:
                    position, failures = None, failures + 1
                    errors.append(f"{type(error).__name__}: {error}")
                if rng.random() < 0.1:
                    # another run
                    follower.close()
                    follower, position = table.follower(), None
        finally:
            follower.close()
        raise AssertionError(errors[-1])

    def race(self, table: FilledTable, rng: random.Random) -> list[str]:
        """Have two followers with one identity fill a table at once, each to the end; return the
        errors of both."""

        def fill(seed: int) -> list[str]:
            filling = Filling(Source(self.source.store), self.ends)
            return filling.fill(table, random.Random(seed))

        with ThreadPoolExecutor(2) as pool:
            found = pool.map(fill, (rng.randrange(1 << 32), rng.randrange(1 << 32)))
            return [error for errors in found for error in errors]

    def check(self, table: FilledTable) -> None:
        """Assert that every message of the log is there once."""
        assert table.rows() == rows_of(self.source.store)
        assert table.follower().position() == self.ends[-1]
