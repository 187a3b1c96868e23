"""One follower for tables of every format: position, form and counts.

A format is a ``TableWriter``. A commit of it holds the messages of one range of the log together
with the range's end. Both are written or neither is. Hence the table itself, not Spark's checkpoint
or ours, states where to resume.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Protocol

import pyarrow as pa

from reput.sinks.tables.tablerows import TableRows, check_types
from reput.sinks.tables.upkeep import RegularUpkeep
from reput.store.errors import StoreError, UsageError
from reput.store.rows.rowform import RowForm

_STORE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Mark:
    """Statement of a table's newest version about one store."""

    position: int | None
    """The exclusive end of the log that the table holds; None where it has no position."""
    form: RowForm | None
    """The form of the store's rows; None where it holds nothing of the store."""


class TableWriter(Protocol):
    """One table in its format. Its calls raise the errors of its library, or a ReputError."""

    def load(self) -> Mark | None:
        """Read the table's newest version; None if there is no table. Raises StoreError where the
        position of its rows cannot be known."""
        ...

    def schema(self) -> pa.Schema | None:
        """The columns of the version that was loaded; None if there is no table."""
        ...

    def has_rows(self) -> bool:
        """Whether the version that was loaded has rows, of whatever writer."""
        ...

    def has_rows_of_store(self) -> bool:
        """Whether it has rows of this store."""
        ...

    def append(
        self, end: int, form: RowForm, schema: pa.Schema, rows: Iterator[pa.RecordBatch]
    ) -> None:
        """Commit rows and the position ``end`` on top of the version that was loaded, or of the
        last commit; durably. A table that is missing is created, and columns that it lacks are
        added. Where the store has another position meanwhile, nothing may be written."""
        ...

    def truncate(self, end: int) -> None:
        """Delete the store's rows at and after ``end``, and make that the position: one commit."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


@dataclass(frozen=True, slots=True)
class TableStore:
    """A store as a table knows it."""

    store_id: str
    is_shared: bool
    """Whether the user named this identity, and so other writers may fill the table too."""
    option: str
    """The setting that names it, for messages."""
    losing: str
    """How the position may get lost while rows stay, for messages."""


class TableFollower:
    """Fills one table; a ``store.follower.LogFollower``."""

    def __init__(
        self,
        writer: TableWriter,
        store: TableStore,
        rows: TableRows,
        form: RowForm,
        upkeep: RegularUpkeep | None = None,
    ) -> None:
        """``form`` is for a new table; a table keeps the form that it began with."""
        self._writer = writer
        self._upkeep = upkeep
        self._store = store
        self._rows = rows
        self._wanted_form = form
        self._mark: Mark | None = None
        self._position: int | None = None
        self._counts = Counter[str]()
        self._unanswered: tuple[int, Counter[str]] | None = None
        """Position and counts of a commit of which it is not known whether it was made."""

    def position(self) -> int | None:
        """Position of the rows in the table's newest version.

        Raises UsageError for a table that other writers fill, StoreError for rows without a
        position, and as ``TableWriter.load``.
        """
        self._mark = self._writer.load()
        self._position = None if self._mark is None else self._mark.position
        if self._mark is not None and self._position is None:
            self._check_unfilled()
        if self._unanswered is not None and self._unanswered[0] == self._position:
            self._counts.update(self._unanswered[1])
        self._unanswered = None
        return self._position

    def _check_unfilled(self) -> None:
        """Refuse a table that has no position of this store, and rows that it would double."""
        store = self._store
        if not store.is_shared and self._writer.has_rows():
            raise UsageError(
                "the table holds only rows of other writers: give this output its own table, or "
                f"the identity that the store has, or shall have, in this one ({store.option})"
            )
        if self._writer.has_rows_of_store():
            raise StoreError(
                f"the table holds rows of the store {store.store_id}, and its position is gone, "
                f"as by {store.losing}: restore the table to a version that has it, or delete "
                "these rows"
            )

    def row_form(self) -> RowForm:
        """The form in which the table holds this store's rows, or shall hold them.

        It stands in the table beside the position, since rows of two forms would be told apart by
        nobody.
        """
        form, kept = self._wanted_form, None if self._mark is None else self._mark.form
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

    def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
        """Write [start, end) as one commit. Raises UsageError for a declaration that the table does
        not fit, StoreError for a body that must not be passed over."""
        if self._position not in (None, start):
            raise StoreError(
                f"the table is at {self._position}, not at {start}: nothing was written"
            )
        self._rows.refresh()
        counts, form, schema = Counter[str](), self.row_form(), self._rows.schema
        if (kept := self._writer.schema()) is not None:
            check_types(kept, schema)
        refusal: StoreError | None = None

        def made() -> Iterator[pa.RecordBatch]:
            nonlocal refusal
            for batch in rows:
                try:
                    of_table, counted = self._rows.of(batch, self._store.store_id)
                except StoreError as error:
                    refusal = error
                    raise
                counts.update(counted)
                yield of_table
            self._unanswered = end, counts

        try:
            self._writer.append(end, form, schema, made())
        except Exception as error:
            # libraries raise messages of their own about the rows that they receive
            raise refusal or error from None
        self._mark = Mark(end, form)
        self._position, self._unanswered = end, None
        self._counts.update(counts)
        if self._upkeep is not None:
            self._upkeep.run_if_due()

    def truncate(self, end: int) -> None:
        """Delete the rows at and after ``end``."""
        position = self.position()
        if position is not None and position > end:
            self._writer.truncate(end)
            self.position()

    def counts(self) -> Mapping[str, int]:
        """Numbers of bad bodies, and of messages left out, if columns are declared."""
        return dict(self._counts)

    def close(self) -> None:
        """Close connections."""
        self._writer.close()


def unfit_table(table: object, wrong: str) -> UsageError:
    """Return the error for a table of others to which rows cannot be added; ``wrong`` says what it
    is or has."""
    return UsageError(
        f"the table {table} {wrong}: give another one, or one that does not exist yet"
    )


def check_store_id(store_id: str | None, table: str) -> None:
    """Raise UsageError for an identity that cannot stand in a table of that format."""
    if store_id is not None and not _STORE_ID.match(store_id):
        raise UsageError(
            f"the identity of a store in {table} is {store_id!r}; it must be of "
            "letters, digits, dots, - and _"
        )


def _said(form: RowForm) -> str:
    internal = "internal records" if form.include_internal else "no internal records"
    limit = form.max_inflated_bytes
    bodies = "bodies as stored" if limit is None else f"bodies inflated up to {limit} bytes"
    return f"{internal} and {bodies}"
