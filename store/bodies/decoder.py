"""Formats of bodies, as the columns of topics use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import pyarrow as pa

from reput.store.errors import UsageError


class BadBodyError(ValueError):
    """A body that does not fit its declaration; the message says why, without the body."""


class BodyDecoder(Protocol):
    """The columns of one topic's bodies."""

    @property
    def fields(self) -> Mapping[str, pa.DataType]:
        """The columns' types by name."""
        ...

    def decode(self, body: bytes) -> dict[str, Any]:
        """Return a body's columns as values of Python for ``pa.array``. Raises BadBodyError."""
        ...


def check_names(names: Iterable[str]) -> None:
    """Raise UsageError for columns whose names differ only in case, which are equal for engines
    that read tables."""
    spelled = dict[str, str]()
    for name in names:
        if (other := spelled.setdefault(name.lower(), name)) != name:
            raise UsageError(f"columns {other!r} and {name!r} differ only in case")
