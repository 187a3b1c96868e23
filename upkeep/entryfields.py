"""The fields of an entry by their names, for those who show what differs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reput.store.files import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
)
from reput.store.index.indexfile import INDEX_ENTRY_DTYPE
from reput.store.queue.batchconsumequeue import BATCH_UNIT_DTYPE
from reput.store.queue.consumequeue import UNIT_DTYPE
from reput.store.queue.consumequeueext import ExtUnit, is_ext_addr, real_offset

Fields = dict[str, int | str]
ENTRY_DTYPES: Mapping[str, np.dtype[np.void]] = {
    CONSUME_QUEUE_DIRECTORY: UNIT_DTYPE,
    BATCH_CONSUME_QUEUE_DIRECTORY: BATCH_UNIT_DTYPE,
    INDEX_DIRECTORY: INDEX_ENTRY_DTYPE,
}
"""The entries of one size, by kind."""


def entry_fields(data: bytes, dtype: np.dtype[np.void]) -> Fields | None:
    """Return the fields of an entry's bytes, a unit's ext address as the ext offset; None for bytes
    that were never written."""
    if not any(data):
        return None
    entry = np.frombuffer(data, dtype)[0]
    fields: Fields = {name: int(entry[name]) for name in dtype.names or ()}
    if dtype == UNIT_DTYPE and is_ext_addr(tags_code := int(entry["tags_code"])):
        del fields["tags_code"]
        fields["ext_offset"] = real_offset(tags_code)
    return fields


def ext_unit_fields(unit: ExtUnit) -> Fields:
    """Return the fields of an ext unit."""
    return {
        "size": unit.size,
        "tags_code": unit.tags_code,
        "msg_store_time": unit.msg_store_time,
        "bit_map": (unit.bit_map or b"").hex(),
    }


def fields_text(fields: Fields | None) -> str:
    """Return an entry's fields as one side has them; ``nothing`` for None."""
    if fields is None:
        return "nothing"
    return ", ".join(f"{name} {value}" for name, value in fields.items())
