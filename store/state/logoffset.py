"""The source's offset as Spark keeps it: canonical JSON with the store's id and a checksum.

``{"crc": .., "evidence": "..", "offset": .., "store": ".."}``. Spark compares offsets as JSON text,
so the keys have a fixed order. It does not checksum its offset log (a changed digit would silently
skip data), so ``crc`` covers the store and the offset. ``evidence`` (``store.state.evidence``)
begins with a checksum of its own, so that a reader that knows only the other fields can read them.
It is left out where there is none: offsets of a dispatcher, whose watermark has its own, and those
of earlier versions.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from reput.store import jsontext
from reput.store.state.evidence import Evidence, evidence_text, parse_evidence

MAX_OFFSET = (1 << 63) - 1
_KEYS = {"crc", "evidence", "offset", "store"}


@dataclass(frozen=True, slots=True)
class LogOffset:
    """A position in the log, and what was before it."""

    offset: int
    evidence: Evidence = ()


def offset_json(store_id: str, offset: int, evidence: Evidence = ()) -> dict[str, Any]:
    """The offset as the dict that Spark's Python source API expects."""
    plain = {"crc": _crc(store_id, offset), "offset": offset, "store": store_id}
    if not evidence:
        return plain
    text = evidence_text(evidence)
    return dict(sorted({**plain, "evidence": f"{_crc(store_id, offset, text):08x} {text}"}.items()))


def parse_offset(value: object, store_id: str | None = None) -> int | None:
    """The log offset in a dict or JSON text.

    None if it is damaged or, with ``store_id`` given, belongs to another store.
    """
    log_offset = parse_log_offset(value, store_id)
    return None if log_offset is None else log_offset.offset


def parse_log_offset(value: object, store_id: str | None = None) -> LogOffset | None:
    """Return the same as ``parse_offset``, with its evidence."""
    if isinstance(value, str):
        try:
            value = jsontext.parse(value)
        except ValueError:
            return None
    if not isinstance(value, dict) or not value.keys() <= _KEYS:
        return None
    offset, owner = value.get("offset"), value.get("store")
    if type(offset) is not int or not isinstance(owner, str) or not 0 <= offset <= MAX_OFFSET:
        return None
    # half of a surrogate pair, which JSON may hold, cannot be encoded
    if (
        not owner.isascii()
        or value.get("crc") != _crc(owner, offset)
        or store_id not in (None, owner)
    ):
        return None
    if "evidence" not in value:
        return LogOffset(offset)
    crc, _, text = str(value["evidence"]).partition(" ")
    evidence = parse_evidence(text)
    if not evidence or not text.isascii() or crc != f"{_crc(owner, offset, text):08x}":
        return None
    return LogOffset(offset, evidence) if evidence[0].end <= offset else None


def _crc(store_id: str, offset: int, *more: str) -> int:
    return zlib.crc32(":".join((store_id, str(offset), *more)).encode())
