"""Upkeep of a Delta table, by its library: OPTIMIZE and VACUUM."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from reput.sinks.delta.localtable import LocalTable, without_password
from reput.sinks.tables.upkeep import Compaction, Expiry
from reput.store import jsontext
from reput.store.errors import UsageError

if TYPE_CHECKING:
    from deltalake import DeltaTable


class DeltaUpkeep:
    """The upkeep of one table; a ``sinks.tables.upkeep.TableUpkeep``."""

    def __init__(self, url: str, local: LocalTable | None) -> None:
        """``local`` is the table's, shared with its writer in this process: neither goes on after a
        sync that failed."""
        self._url = url
        self._local = local

    def compact(self, target_bytes: int | None = None) -> Compaction:
        """Join small files of each partition, by one commit."""
        table = self._load()
        with self._synced():
            metrics = table.optimize.compact(target_size=target_bytes)
        removed, added = (jsontext.parse(metrics[name]) for name in ("filesRemoved", "filesAdded"))
        return Compaction(
            removed["totalFiles"], removed["totalSize"], added["totalFiles"], added["totalSize"]
        )

    def expire(self) -> Expiry:
        """Remove files that no version within the table's retention has. Versions go by
        themselves, with the table's checkpoints."""
        table = self._load()
        with self._synced():
            return Expiry(0, len(table.vacuum(dry_run=False, full=True)))

    def _load(self) -> DeltaTable:
        from deltalake import DeltaTable  # noqa: PLC0415
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

        if self._local is not None:
            self._local.settle()
        try:
            return DeltaTable(self._url)
        except TableNotFoundError as error:
            raise UsageError(f"there is no Delta table at {without_password(self._url)}") from error

    def _synced(self) -> AbstractContextManager[None]:
        return nullcontext() if self._local is None else self._local.synced()
