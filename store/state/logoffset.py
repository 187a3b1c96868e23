"""The source's offset as Spark keeps it: canonical JSON with the store's id and a checksum.

``{"crc": .., "offset": .., "store": ".."}``. Spark compares offsets as JSON text, so the keys have
a fixed order. It does not checksum its offset log (a changed digit would silently skip data), so
``crc`` covers both other fields.
"""

from __future__ import annotations

import zlib
from typing import Any

from store import jsontext

MAX_OFFSET = (1 << 63) - 1


def offset_json(store_id: str, offset: int) -> dict[str, Any]:
    """The offset as the dict that Spark's Python source API expects."""
    return {"crc": _crc(store_id, offset), "offset": offset, "store": store_id}


def parse_offset(value: object, store_id: str | None = None) -> int | None:
    """The log offset in a dict or JSON text.

    None if it is damaged or, with ``store_id`` given, belongs to another store.
    """
    if isinstance(value, str):
        try:
            value = jsontext.parse(value)
        except ValueError:
            return None
    if not isinstance(value, dict):
        return None
    offset, found = value.get("offset"), value.get("store")
    if type(offset) is not int or not isinstance(found, str) or not 0 <= offset <= MAX_OFFSET:
        return None
    # half of a surrogate pair, which JSON may hold, cannot be encoded
    if (
        not found.isascii()
        or value.get("crc") != _crc(found, offset)
        or store_id not in (None, found)
    ):
        return None
    return offset


def _crc(store_id: str, offset: int) -> int:
    return zlib.crc32(f"{store_id}:{offset}".encode())
