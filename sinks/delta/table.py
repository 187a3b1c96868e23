"""A Delta table of all messages: public rows (``store.rows.rowschema``), partitioned by topic and
date.

Delivery: exactly once. A commit holds the messages of one range of the log together with the
range's end, stored as an application transaction of Delta's protocol. Both are written or neither
is, durably (on a local path ``localtable`` ensures that). The application id is the store's
identity. Hence the table itself, not Spark's checkpoint or ours, states where to resume. If two
writers share an identity, the table refuses the second one's commit. Unit of work: a range of the
log, one after the other, in one thread.

Columns besides the public ones:

| column | type | content |
|---|---|---|
| storeId | string | identity of the store; with physicalOffset it names one row |
| date | date | of storeTimestamp, UTC; null if that is |
| fullTopic | string | the topic's name if it cannot name a partition, else null |
| json | struct | columns of a JSON body, if declared for the topic (``sinks.delta.jsonbody``) |
| badBody | boolean | whether the body did not fit the declaration; null without one |

A damaged or lost range is a row too, with corruptReason, in the partition without topic and date.
If a topic's name is too long for a directory, its topic column has the beginning and a digest. An
empty name has null there, because Delta reads an empty partition value as null. In both cases
fullTopic has the name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from reput.sinks.delta.jsonbody import JsonColumns
from reput.sinks.delta.localtable import TRANSACTIONS_MARK, LocalTable
from reput.sinks.delta.restores import CUT_MARK, POSITION_MARK, STORE_MARK, position_of_rows
from reput.store.config import StoreSettings
from reput.store.errors import StoreError, UsageError
from reput.store.rows.rowform import DEFAULT_FORM, RowForm
from reput.store.rows.rowschema import ROWS_SCHEMA

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

DEFAULT_INTERVAL_SECONDS = 10.0
PARTITION_COLUMNS = ["topic", "date"]
LONGEST_DIRECTORY = 255 - len("topic=")
"""Bytes of a topic's name as a directory, the limit of local file systems."""
_FORM = "includeInternal", "maxInflatedBytes"
"""Further application transactions of a store, whose versions say in which form its rows are: 0 or
1, and a number of bytes, 0 for bodies as stored."""
_STORE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z", re.ASCII)
_PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """One table, a ``store.follower.FollowerTarget``. Raises UsageError without deltalake."""

    url: str
    """A local path or another URL of deltalake: s3://, gs://, az://, ...; their settings come from
    the environment."""
    json_columns: JsonColumns | None = None
    store_id: str | None = None
    """The store's identity in the table; None takes the output's, for a table of its own."""
    interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    """Each commit writes a file per partition and one more, so a live log is committed at this
    interval and not ten times a second."""
    form: RowForm = DEFAULT_FORM
    """The form of a new table's rows; a table keeps the one that it began with."""
    name: str = "delta"
    position_is_apart: bool = False

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
        """The table's directory, if it is on this machine."""
        table = LocalTable.of(self.url)
        return None if table is None else table.root

    def open(self, store_id: str, settings: StoreSettings) -> DeltaFollower:  # noqa: ARG002
        """Return the follower of this table."""
        return DeltaFollower(self, store_id)


class DeltaFollower:
    """Appends to one table; a ``store.follower.LogFollower``."""

    def __init__(self, target: DeltaTarget, store_id: str) -> None:
        self._url = target.url
        self._local = LocalTable.of(target.url)
        self._json = target.json_columns
        self._shared = target.store_id is not None
        self._store_id = target.store_id or store_id
        self._app_id = f"reput:{self._store_id}"
        self._wanted_form = target.form
        self._table: DeltaTable | None = None
        self._position: int | None = None
        self._bad_bodies = 0
        self._unanswered: tuple[int, int] | None = None
        """Position and bad bodies of a commit of which it is not known whether it was made."""
        own = [
            pa.field("storeId", pa.string()),
            pa.field("date", pa.date32()),
            pa.field("fullTopic", pa.string()),
        ]
        if self._json is not None:
            own += [pa.field("json", self._json.type), pa.field("badBody", pa.bool_())]
        self._schema = pa.schema([*ROWS_SCHEMA, *own])

    def position(self) -> int | None:
        """Position of the rows in the table's newest version.

        Raises UsageError for a table that other writers fill, StoreError for a torn version, for
        rows without a position, and as ``position_of_rows``.
        """
        from deltalake import DeltaTable  # noqa: PLC0415
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

        if self._local is not None:
            self._local.settle()
        try:
            self._table = DeltaTable(self._url)
        except TableNotFoundError:
            self._table = self._position = None
            return None
        self._position = position_of_rows(self._table, self._app_id)
        if self._position is None:
            self._check_unfilled(self._table)
        if self._unanswered is not None and self._unanswered[0] == self._position:
            self._bad_bodies += self._unanswered[1]
        self._unanswered = None
        return self._position

    def _check_unfilled(self, table: DeltaTable) -> None:
        """Refuse a table that has no position of this store, and rows that it would double."""
        if not self._shared and table.file_uris():
            raise UsageError(
                "the table holds only rows of other writers: give this output its own table, or "
                "the identity that the store has, or shall have, in this one "
                "(`DeltaTarget.store_id=`)"
            )
        columns, ours = ["storeId"], f"storeId = '{self._store_id}'"
        if any(field.name in columns for field in table.schema().fields) and any(
            batch.num_rows for batch in table.scan(columns, ours)
        ):
            raise StoreError(
                f"the table holds rows of the store {self._store_id}, and its position is gone, "
                "as by delta.setTransactionRetentionDuration: restore the table to a version that "
                "has it, or delete these rows"
            )

    def row_form(self) -> RowForm:
        """The form in which the table holds this store's rows, or shall hold them.

        It stands in the table beside the position, since rows of two forms would be told apart by
        nobody. A table of an earlier version has every record as stored.
        """
        form, kept = self._wanted_form, self._kept_form()
        if kept is None:
            return form
        for field in fields(RowForm):
            asked, has = getattr(form, field.name), getattr(kept, field.name)
            if asked not in (field.default, has):
                raise UsageError(
                    f"the table holds this store's messages with {_said(kept)}, which cannot "
                    f"change: give the same options or none of them, or another table for "
                    f"{_said(form)}"
                )
        return kept

    def _kept_form(self) -> RowForm | None:
        """None if the table holds nothing of this store."""
        table = self._table
        if table is None or table.transaction_version(self._app_id) is None:
            return None
        internal, limit = (table.transaction_version(f"{self._app_id}:{n}") for n in _FORM)
        return RowForm(internal != 0, limit or None)

    def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
        """Write [start, end) as one commit."""
        from deltalake import DeltaTable  # noqa: PLC0415

        table = self._table
        if self._position not in (None, start):
            raise StoreError(
                f"the table is at {self._position}, not at {start}: nothing was written"
            )
        bad_bodies = 0

        def columns() -> Iterator[pa.RecordBatch]:
            nonlocal bad_bodies
            for batch in rows:
                made = self._with_columns(batch)
                if self._json is not None:
                    bad_bodies += made.column("badBody").true_count
                yield made
            self._unanswered = end, bad_bodies

        self._append(table, end, columns())
        if table is None:
            self._table = DeltaTable(self._url)
        self._position, self._unanswered = end, None
        self._bad_bodies += bad_bodies

    def truncate(self, end: int) -> None:
        """Delete the rows at and after ``end``."""
        position = self.position()
        if self._table is None or position is None or position <= end:
            return
        with self._synced():
            self._table.delete(
                f"storeId = '{self._store_id}' and physicalOffset >= {end}",
                commit_properties=self._commit(end, cut=True),
            )
        if self.position() != end:
            # deleting no rows makes no commit
            self._append(self._table, end, iter(()), cut=True)

    def counts(self) -> Mapping[str, int]:
        """Number of bad bodies, if columns are declared."""
        return {} if self._json is None else {"bad bodies": self._bad_bodies}

    def close(self) -> None:
        """Do nothing: no file or connection is open between writes."""

    def _append(
        self,
        table: DeltaTable | None,
        end: int,
        rows: Iterator[pa.RecordBatch],
        *,
        cut: bool = False,
    ) -> None:
        """Commit rows and the position on top of the version that the last position was read from.

        This fails if the same application has committed to the table meanwhile.
        """
        from deltalake import write_deltalake  # noqa: PLC0415

        with self._synced():
            write_deltalake(
                self._url if table is None else table,
                pa.RecordBatchReader.from_batches(self._schema, rows),
                mode="error" if table is None else "append",
                schema_mode=None if table is None else "merge",
                partition_by=PARTITION_COLUMNS,
                commit_properties=self._commit(end, cut=cut),
            )

    def _synced(self) -> AbstractContextManager[None]:
        return nullcontext() if self._local is None else self._local.synced()

    def _commit(self, end: int, *, cut: bool) -> CommitProperties:
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415

        transactions = [Transaction(self._app_id, end)]
        if self._kept_form() is None:
            form = self._wanted_form
            numbers = int(form.include_internal), form.max_inflated_bytes or 0
            transactions += [
                Transaction(f"{self._app_id}:{name}", number)
                for name, number in zip(_FORM, numbers, strict=True)
            ]
        marks = {
            POSITION_MARK: str(end),
            STORE_MARK: self._app_id,
            TRANSACTIONS_MARK: str(len(transactions)),
        }
        if cut:
            marks[CUT_MARK] = "true"
        return CommitProperties(custom_metadata=marks, app_transactions=transactions)

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


def _said(form: RowForm) -> str:
    internal = "internal records" if form.include_internal else "no internal records"
    limit = form.max_inflated_bytes
    bodies = "bodies as stored" if limit is None else f"bodies inflated up to {limit} bytes"
    return f"{internal} and {bodies}"


def _partition_topics(topics: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(partition values, full names that differ from them)."""
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
    """Upper bound: every byte other than a letter or digit is written as %XX."""
    return sum(1 if chr(byte).isalnum() and byte < 128 else 3 for byte in name.encode())
