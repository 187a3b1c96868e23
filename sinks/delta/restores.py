"""Positions of a table that somebody restored to an older version.

RESTORE takes rows back, and leaves the application transactions as they were: the newest position
is then beyond the rows. So the newest commit that counts is looked for in the table's history. It
is this store's last one, unless a RESTORE follows it; then it is the last one of the version that
came back. A RESTORE beside a commit of ours needs no care: it changes the metadata, and the library
refuses ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from reput.store.errors import StoreError

if TYPE_CHECKING:
    from deltalake import DeltaTable

POSITION_MARK = "reputPosition"
"""In commitInfo, the position that a commit includes as a transaction."""
STORE_MARK = "reputStore"
"""In commitInfo, the application id of that transaction; commits of earlier versions lack it."""
CUT_MARK = "reputCut"
"""In commitInfo, marks a commit that took rows back because the log was cut at its position."""
_FIRST_READ = 1
_READ_GROWTH = 8


def position_of_rows(table: DeltaTable, app_id: str) -> int | None:
    """The position of an application that fits the rows of the table's newest version.

    Raises StoreError if it cannot be known, or if rows of a log that was cut came back.
    """
    position: int | None = table.transaction_version(app_id)
    if position is None:
        return None
    newest = version = table.version()
    cuts = list[tuple[int, int]]()
    for commit in _newest_first(table):
        ours = POSITION_MARK in commit and commit.get(STORE_MARK, app_id) == app_id
        if commit["version"] > version:
            if ours and CUT_MARK in commit:
                cuts.append((int(commit[POSITION_MARK]), commit["version"]))
        elif ours:
            break
        elif commit.get("operation") == "RESTORE":
            version = _restored_version(table, commit)
    if version == newest:
        return position
    position = _at_version(table, version).transaction_version(app_id)
    for cut, cut_version in cuts:
        if position is not None and position > cut:
            raise StoreError(
                f"the table was restored to its version {version}, which holds messages up to "
                f"physical offset {position}, but the log was cut at {cut} since: restore it to "
                f"version {cut_version} or a later one",
                physical_offset=cut,
            )
    return position


def _newest_first(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Yield the commits up to the table's version. Few are read at first, because a commit of ours
    is among the newest."""
    count, before = _FIRST_READ, table.version() + 1
    while True:
        commits = table.history(count)
        for commit in commits:
            if commit["version"] < before:
                before = commit["version"]
                yield commit
        if len(commits) < count:
            return
        count *= _READ_GROWTH


def _restored_version(table: DeltaTable, commit: dict[str, Any]) -> int:
    """The version that a RESTORE brought back."""
    target = commit.get("operationParameters", {})
    # Spark names both, one of them as null
    if target.get("version") is not None:
        return int(target["version"])
    if target.get("datetime") is not None:
        moment = datetime.fromtimestamp(int(target["datetime"]) / 1000, UTC)
        return _at_version(table, moment).version()
    raise StoreError(
        f"the table was restored by its version {commit['version']} to a time that it does not "
        f"name in a known form: {target}; restore it to a version by its number"
    )


def _at_version(table: DeltaTable, version: int | datetime) -> DeltaTable:
    from deltalake import DeltaTable  # noqa: PLC0415
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    older = DeltaTable(table.table_uri)
    try:
        older.load_as_version(version)
    except DeltaError as error:
        raise StoreError(
            f"the table was restored to its version {version}, which cannot be read, and so the "
            f"position of its rows is unknown: {error}; restore it to a version that can be read"
        ) from error
    return older
