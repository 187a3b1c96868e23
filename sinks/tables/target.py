"""The configuration of a table and its follower, as far as it is the same in every format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

from reput.sinks.tables.follower import TableFollower, TableStore, TableWriter, check_store_id
from reput.sinks.tables.layout import Layout
from reput.sinks.tables.tablerows import rows_of
from reput.sinks.tables.upkeep import RegularUpkeep, TableUpkeep
from reput.store.bodies.declaration import BodyColumns
from reput.store.config import StoreSettings
from reput.store.errors import UsageError
from reput.store.rows.rowform import DEFAULT_FORM, RowForm


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTarget(ABC):
    """The part of a ``store.follower.FollowerTarget`` that is common to tables. Raises UsageError
    without the library of the format."""

    FORMAT: ClassVar[tuple[str, str, str]]
    """Its name in messages, the package that it needs, and the extra that brings this."""
    LOSING: ClassVar[str]
    """How the position may get lost while rows stay, for messages."""

    body_columns: BodyColumns | None = None
    store_id: str | None = None
    """The store's identity in the table; None takes the output's, for a table of its own."""
    interval_seconds: float
    """Minimum time between two commits while there is little to write."""
    form: RowForm = DEFAULT_FORM
    """The form of a new table's rows; a table keeps the one that it began with."""
    compact_every_seconds: float | None = None
    """Compact the table and expire what is not needed at this interval; None leaves that to
    others."""
    layout: Layout
    """The layout of a new table."""
    only_bad: bool = False
    """Whether it is the table of bad records."""
    name: str
    position_is_apart: bool = False

    def __post_init__(self) -> None:
        table, package, extra = self.FORMAT
        try:
            import_module(package)
        except ImportError as error:
            raise UsageError(
                f"{table} needs the package {package}: pip install 'reput[{extra}]'"
            ) from error
        check_store_id(self.store_id, table)

    def open(self, store_id: str, settings: StoreSettings) -> TableFollower:  # noqa: ARG002
        """Return the follower of this table."""
        store = TableStore(
            self.store_id or store_id,
            is_shared=self.store_id is not None,
            option=f"`{type(self).__name__}.store_id=`",
            losing=self.LOSING,
        )
        writer, upkeep_of = self._writer(store)
        every = self.compact_every_seconds
        upkeep = None if every is None else RegularUpkeep(upkeep_of(), self.name, every)
        rows = rows_of(self.body_columns, only_bad=self.only_bad)
        return TableFollower(writer, store, rows, self.form, upkeep)

    @abstractmethod
    def _writer(self, store: TableStore) -> tuple[TableWriter, Callable[[], TableUpkeep]]:
        """Return a writer to the table, and what makes an upkeep that goes with it."""
