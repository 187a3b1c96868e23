"""The position of a store in an Iceberg table.

It stands in the summary of each snapshot that has committed one, and in a table property, with that
snapshot's sequence number and id. Neither suffices: a rollback of the main branch takes rows back
and leaves properties as they are, and an expiry removes snapshots while their rows stay.

| event | summaries | property |
|---|---|---|
| a commit of another writer | the mark is in an ancestor | as it was |
| expiry of all marked snapshots | no mark | right |
| rollback of the main branch | the nearest mark is right | beyond the rows |

A rollback after which another writer commits, and all older snapshots expire, cannot be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from reput.store.errors import StoreError
from reput.store.rows.rowform import RowForm

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

MAIN = "main"
_POSITION = "reput.position."


@dataclass(frozen=True, slots=True)
class Found:
    """A position, and the snapshot that has committed it."""

    position: int
    sequence_number: int
    snapshot_id: int

    def __str__(self) -> str:
        return f"{self.position} {self.sequence_number} {self.snapshot_id}"

    @classmethod
    def parse(cls, text: str) -> Found:
        """Read what ``str`` has written."""
        return cls(*map(int, text.split()))


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one store."""

    store_id: str

    @property
    def position_key(self) -> str:
        """The name of the position, in summaries and properties."""
        return f"{_POSITION}{self.store_id}"

    def summary(self, end: int) -> dict[str, str]:
        """The properties of a snapshot that commits a position."""
        return {self.position_key: str(end)}

    def properties(
        self, end: int, metadata: TableMetadata, form: RowForm | None, *, is_cut: bool
    ) -> dict[str, str]:
        """The table properties of such a commit; ``metadata`` has its snapshot. ``form`` is that of
        the first rows."""
        snapshot = _head(metadata)
        assert snapshot is not None
        found = Found(end, snapshot.sequence_number or 0, snapshot.snapshot_id)
        changed = {self.position_key: str(found)}
        if form is not None:
            limit = form.max_inflated_bytes or 0
            changed[self._key("form")] = f"{int(form.include_internal)} {limit}"
        if is_cut:
            before = metadata.properties.get(self._key("cuts"), "")
            changed[self._key("cuts")] = f"{before},{found}".removeprefix(",")
        return changed

    def form(self, properties: Mapping[str, str]) -> RowForm | None:
        """The form of the store's rows; None where there are none."""
        text = properties.get(self._key("form"))
        if text is None:
            return None
        internal, limit = map(int, text.split())
        return RowForm(internal != 0, limit or None)

    def find(self, metadata: TableMetadata) -> Found | None:
        """The position of the rows on the main branch; None where the store has none.

        Raises StoreError where the branch was rolled back beyond all marks, or to rows of a log
        that was cut since.
        """
        text = metadata.properties.get(self.position_key)
        newest = None if text is None else Found.parse(text)
        snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        is_rolled_back = False
        for current in line(_head(metadata), snapshots):
            mark = _mark(current, self.position_key)
            sequence_number = current.sequence_number or 0
            if mark is not None:
                found = Found(int(mark), sequence_number, current.snapshot_id)
                self._check_cuts(found, metadata.properties)
                return found
            is_rolled_back = newest is not None and sequence_number < newest.sequence_number
        if newest is not None and is_rolled_back:
            head = _head(metadata)
            assert head is not None
            raise StoreError(
                f"the table was rolled back to its snapshot {head.snapshot_id}, before all that "
                f"tell a position of the store {self.store_id}, and so the position of its rows is "
                f"unknown: set its main branch to snapshot {newest.snapshot_id} or to a later one"
            )
        return newest

    def _check_cuts(self, found: Found, properties: Mapping[str, str]) -> None:
        cuts = properties.get(self._key("cuts"), "")
        for cut in map(Found.parse, cuts.split(",") if cuts else ()):
            if found.sequence_number < cut.sequence_number and found.position > cut.position:
                raise StoreError(
                    f"the table was rolled back to its snapshot {found.snapshot_id}, which holds "
                    f"messages up to physical offset {found.position}, but the log was cut at "
                    f"{cut.position} since: set its main branch to snapshot {cut.snapshot_id} or "
                    "to a later one",
                    physical_offset=cut.position,
                )

    def _key(self, name: str) -> str:
        return f"reput.{name}.{self.store_id}"


def only_marks(metadata: TableMetadata) -> set[int]:
    """The snapshots that must not expire, since they alone tell a position: after a rollback of the
    main branch the property is beyond the rows."""
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found = set[int]()
    for key, text in metadata.properties.items():
        if key.startswith(_POSITION):
            newest = Found.parse(text).snapshot_id
            marked = (one for one in line(_head(metadata), snapshots) if _mark(one, key))
            found |= {one.snapshot_id for one in islice(marked, 1)} - {newest}
    return found


def line(head: Snapshot | None, snapshots: Mapping[int, Snapshot]) -> Iterator[Snapshot]:
    """Yield a snapshot and those before it on its branch, by their ids, as far as they are
    there."""
    while head is not None:
        yield head
        head = snapshots.get(head.parent_snapshot_id or 0)


def _mark(snapshot: Snapshot, key: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary[key]


def _head(metadata: TableMetadata) -> Snapshot | None:
    return metadata.snapshot_by_name(MAIN)
