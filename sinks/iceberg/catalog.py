"""Catalogs of Iceberg tables, from the user's file.

The file is TOML: a table for each catalog, with pyiceberg's properties, for example::

    [lake]
    type = "sql"
    uri = "sqlite:////data/lake.db"
    warehouse = "file:///data/lake"

A commit is one request to the catalog: it compares the table's head and replaces it. A bare
directory has no such request, and object stores let a later writer win.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reput.store.errors import UsageError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

TYPES = ("rest", "sql")
_FILE_IO = "py-io-impl"
_LOADING_MODE = "snapshot-loading-mode"


@dataclass(frozen=True, slots=True)
class TableName:
    """CATALOG.NAMESPACE.TABLE; a namespace may have several parts."""

    catalog: str
    identifier: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Raises UsageError."""
        catalog, *identifier = text.split(".")
        if len(identifier) < 2 or not all((catalog, *identifier)):
            raise UsageError(f"an Iceberg table is CATALOG.NAMESPACE.TABLE, not {text!r}")
        return cls(catalog, tuple(identifier))

    @property
    def namespace(self) -> tuple[str, ...]:
        """The identifier without the table."""
        return self.identifier[:-1]

    def suffixed(self, name: str) -> TableName:
        """The table of one of several stores."""
        return TableName(self.catalog, (*self.namespace, f"{self.identifier[-1]}_{name}"))

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.identifier))


def read_catalog(path: Path, name: str) -> dict[str, Any]:
    """Return the properties of one catalog of a file. Raises UsageError."""
    try:
        catalogs = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the Iceberg catalogs of {path}: {error}") from error
    found = catalogs.get(name)
    if not isinstance(found, dict):
        known = ", ".join(sorted(catalogs)) or "none"
        raise UsageError(f"{path} has no catalog [{name}]; it has {known}")
    # auth and ssl are tables of their own
    properties = {
        key: value if isinstance(value, dict) else _text(value) for key, value in found.items()
    }
    _check(properties, f"catalog [{name}] of {path}")
    return properties


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(properties: Mapping[str, Any], place: str) -> None:
    kind = properties.get("type")
    if kind not in TYPES:
        why = (
            "; a bare directory cannot tell two writers apart: use sqlite beside the table"
            if kind in ("hadoop", "file", "in-memory")
            else ""
        )
        raise UsageError(f"{place} has type = {kind!r}; it must be {' or '.join(TYPES)}{why}")
    if _FILE_IO in properties:
        raise UsageError(f"{place} has {_FILE_IO}: leave it out, since local files must be synced")
    _check_loading(properties, place)
    if is_unsynced(properties, properties.get("warehouse")):
        raise UsageError(
            f"{place} has a local warehouse, whose metadata the server writes without a sync: use "
            "an object store, or a catalog of type sql"
        )


def _check_loading(properties: Mapping[str, Any], place: str) -> None:
    if properties.get(_LOADING_MODE, "all") != "all":
        raise UsageError(
            f"{place} has {_LOADING_MODE} = {properties[_LOADING_MODE]}: leave it out, since it "
            "hides a table that was rolled back"
        )


def local_path(location: str | None) -> Path | None:
    """The directory of a warehouse or a table, if it is on this machine."""
    if location is None:
        return None
    parts = urlsplit(location)
    if parts.scheme:
        # pyiceberg takes the path as it stands: %20 is no blank
        return Path(parts.path) if parts.scheme == "file" else None
    return Path(location).absolute()


def is_unsynced(properties: Mapping[str, Any], location: str | None) -> bool:
    """Whether a server writes metadata to a local path, where nobody syncs it. A REST catalog may
    call its warehouse by a name that is no path."""
    is_path = location is not None and location.startswith(("/", "file:"))
    return properties.get("type") == "rest" and is_path


def open_catalog(name: str, properties: Mapping[str, Any]) -> Catalog:
    """Connect, with syncs of local files and a limit for each request. Raises UsageError where the
    server sets a property that cannot be used."""
    synced = {**properties, _FILE_IO: "reput.sinks.iceberg.localfiles.SyncedFileIO"}
    if properties["type"] == "rest":
        from reput.sinks.iceberg.restcatalog import LimitedRestCatalog  # noqa: PLC0415

        catalog = LimitedRestCatalog(name, **synced)
        _check_loading(catalog.properties, f"the server of catalog [{name}]")
        return catalog
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415

    return SqlCatalog(name, **synced)
