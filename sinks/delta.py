"""A Delta table of all messages: public rows (``store.rows.rowschema``), partitioned by topic and
date.

Delivery: exactly once. A commit holds the messages of one range of the log and, as an application
transaction of Delta's protocol, the range's end: both or neither, and durably (on a local path
``sinks.localtable`` sees to that). The application is the store's identity, so that neither Spark's
checkpoint nor ours says where to go on, but the table itself; of two writers with one identity the
table refuses the second one's commit.

Columns besides the public ones:

| column | type | what |
|---|---|---|
| storeId | string | identity of the store; with physicalOffset it names one row |
| date | date | of storeTimestamp, UTC; null where that is |
| fullTopic | string | the topic's name where it can name no partition, else null |
| json | struct | columns of a JSON body, where declared for the topic (``sinks.jsonbody``) |
| badBody | boolean | whether the body did not fit the declaration; null without one |

A damaged or lost range is a row too, with corruptReason, in the partition without topic and date.
A topic whose name is too long for a directory has its beginning and a digest in topic, an empty one
(Delta reads an empty partition value as null) has null there; fullTopic has the name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sinks.jsonbody import JsonColumns
from sinks.localtable import COMMIT_MARK, LocalTable
from store.config import StoreSettings
from store.errors import StoreError, UsageError
from store.rows.rowschema import ROWS_SCHEMA

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

DEFAULT_INTERVAL_SECONDS = 10.0
PARTITION_COLUMNS = ["topic", "date"]
LONGEST_DIRECTORY = 255 - len("topic=")
"""Bytes of a topic's name as a directory: what local file systems take."""
_STORE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z", re.ASCII)
_PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """One table; ``store.follower.FollowerTarget``. Raises UsageError without deltalake."""

    url: str
    """A local path, or what deltalake takes: s3://, gs://, az://, ...; their settings come from
    the environment."""
    json_columns: JsonColumns | None = None
    store_id: str | None = None
    """The store's identity in the table; None: the output's, for a table of its own."""
    interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    """A commit is a file a partition and one more: a live log is not worth them ten times a
    second."""
    name: str = "delta"

    def __post_init__(self) -> None:
        try:
            import deltalake  # noqa: F401, PLC0415
        except ImportError as error:
            raise UsageError(
                "a Delta table needs the package deltalake: pip install 'reput[delta]'"
            ) from error
        if self.store_id is not None and not _STORE_ID.match(self.store_id):
            raise UsageError(
                f"the identity of a store in a Delta table is {self.store_id!r}; it must be of "
                "letters, digits, dots, - and _"
            )

    @property
    def description(self) -> str:
        """The URL without a password."""
        return _PASSWORD.sub("//", self.url)

    @property
    def local_path(self) -> Path | None:
        """The table's directory, where it is on this machine."""
        table = LocalTable.of(self.url)
        return None if table is None else table.root

    def open(self, store_id: str, settings: StoreSettings) -> DeltaFollower:  # noqa: ARG002
        """The follower."""
        return DeltaFollower(self, store_id)


class DeltaFollower:
    """Appends to one table; ``store.follower.LogFollower``."""

    def __init__(self, target: DeltaTarget, store_id: str) -> None:
        self._url = target.url
        self._local = LocalTable.of(target.url)
        self._json = target.json_columns
        self._shared = target.store_id is not None
        self._store_id = target.store_id or store_id
        self._app_id = f"reput:{self._store_id}"
        self._table: DeltaTable | None = None
        self._bad_bodies = 0
        fields = [
            pa.field("storeId", pa.string()),
            pa.field("date", pa.date32()),
            pa.field("fullTopic", pa.string()),
        ]
        if self._json is not None:
            fields += [pa.field("json", self._json.type), pa.field("badBody", pa.bool_())]
        self._schema = pa.schema([*ROWS_SCHEMA, *fields])

    def position(self) -> int | None:
        """What the table's newest version says. Raises UsageError for a table that others fill,
        StoreError for a version that was torn."""
        from deltalake import DeltaTable  # noqa: PLC0415
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

        if self._local is not None:
            self._local.settle()
        try:
            self._table = DeltaTable(self._url)
        except TableNotFoundError:
            self._table = None
            return None
        position = self._table.transaction_version(self._app_id)
        if position is None and not self._shared and self._table.file_uris():
            raise UsageError(
                "the table holds rows, none of them of this output: give a table of its own, or "
                "the identity that the store has, or shall have, in this one (--delta-store-id)"
            )
        return position

    def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
        """One commit."""
        from deltalake import DeltaTable  # noqa: PLC0415

        table = self._table
        found = table.transaction_version(self._app_id) if table is not None else None
        if found not in (None, start):
            raise StoreError(f"the table is at {found}, not at {start}: nothing was written")
        bad_bodies = 0

        def columns() -> Iterator[pa.RecordBatch]:
            nonlocal bad_bodies
            for batch in rows:
                made = self._with_columns(batch)
                if self._json is not None:
                    bad_bodies += made.column("badBody").true_count
                yield made

        self._append(table, end, columns())
        self._bad_bodies += bad_bodies
        if table is None:
            self._table = DeltaTable(self._url)

    def truncate(self, end: int) -> None:
        """Delete the rows behind ``end``."""
        position = self.position()
        if self._table is None or position is None or position <= end:
            return
        with self._synced():
            self._table.delete(
                f"storeId = '{self._store_id}' and physicalOffset >= {end}",
                commit_properties=self._commit(end),
            )
        if self.position() != end:
            # a deletion of no row is no commit
            self._append(self._table, end, iter(()))

    def counts(self) -> Mapping[str, int]:
        """Bad bodies, where columns are declared."""
        return {} if self._json is None else {"bad bodies": self._bad_bodies}

    def close(self) -> None:
        """Nothing is open between writes."""

    def _append(self, table: DeltaTable | None, end: int, rows: Iterator[pa.RecordBatch]) -> None:
        """Rows and the position, to the version that the last position was read from: where that
        was committed to by the same application meanwhile, this fails."""
        from deltalake import write_deltalake  # noqa: PLC0415

        with self._synced():
            write_deltalake(
                self._url if table is None else table,
                pa.RecordBatchReader.from_batches(self._schema, rows),
                mode="error" if table is None else "append",
                schema_mode=None if table is None else "merge",
                partition_by=PARTITION_COLUMNS,
                commit_properties=self._commit(end),
            )

    def _synced(self) -> AbstractContextManager[None]:
        return nullcontext() if self._local is None else self._local.synced()

    def _commit(self, end: int) -> CommitProperties:
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415

        return CommitProperties(
            custom_metadata={COMMIT_MARK: str(end)},
            app_transactions=[Transaction(self._app_id, end)],
        )

    def _with_columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        topics, full_topics = _partition_topics(rows.column("topic"))
        added = [
            pa.repeat(pa.scalar(self._store_id), rows.num_rows),
            pc.cast(rows.column("storeTimestamp"), pa.date32()),
            full_topics,
        ]
        if self._json is not None:
            added += self._json.of(rows)
        columns = dict(zip(rows.schema.names, rows.columns, strict=True)) | {"topic": topics}
        return pa.RecordBatch.from_arrays([*columns.values(), *added], schema=self._schema)


def _partition_topics(topics: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(what the partitions are named by, the names that these are not)."""
    full_topics = pa.nulls(len(topics), pa.string())
    for name in pc.unique(topics).to_pylist():
        if name is None or 0 < _directory_length(name) <= LONGEST_DIRECTORY:
            continue
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        stands_for = f"{name[:16]}#{digest}" if name else None
        rows = pc.equal(topics, name)
        full_topics = pc.if_else(rows, name, full_topics)
        topics = pc.if_else(rows, pa.scalar(stands_for, pa.string()), topics)
    return topics, full_topics


def _directory_length(name: str) -> int:
    """At the most: what is neither letter nor digit is written as %XX."""
    return sum(1 if chr(byte).isalnum() and byte < 128 else 3 for byte in name.encode())
