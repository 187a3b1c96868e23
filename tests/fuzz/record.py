"""Records: any bytes are a record, a BLANK, nothing yet or damage, and kernels say the same."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from reput.store.index.indexfile import index_keys
from reput.store.log import cursor, kernels, record
from reput.store.log.record import Record
from reput.store.log.status import Outcome, Status
from tests.support import wire

COUNT = 60


def seeds() -> Iterator[bytes]:
    """Yield records at offset 0, after a byte that tells how much of the file follows."""
    rng = random.Random(1)
    for _ in range(COUNT):
        yield bytes([rng.randrange(256)]) + wire.message(0, **wire.random_fields(rng))  # type: ignore[arg-type]


def check(data: bytes) -> None:
    """Decode the bytes; a record holds what it is encoded to."""
    room, data = data[0] if data else 8, data[1:]
    file_end = len(data) + room
    found = record.decode(data, 0, file_end, verify_crc=bool(room & 1))
    if isinstance(found, Record):
        assert found.total_size <= min(len(data), file_end - 8)
        assert -(1 << 63) <= record.tags_code(found) < 1 << 63
        assert all(isinstance(key, bytes) for key in index_keys(found))
        assert record.fields_for_json(found)["physical_offset"] == 0
        again = record.decode(record.encode(found), 0, file_end)
        assert isinstance(again, Record)
        assert (again.topic, again.body, again.property_map) == (
            found.topic, found.body, found.property_map,
        )  # fmt: skip
    if not room & 1 and room >= 8:
        status, pos = _by_kernel(data, file_end)
        whole = not isinstance(found, Outcome) or found.status is Status.BAD_PROPERTY
        assert (pos > 0) is whole
        assert whole or status == found.status  # type: ignore[union-attr]


def _by_kernel(data: bytes, file_end: int) -> tuple[int, int]:
    array = np.frombuffer(data, np.uint8)
    bounds = (cursor.NO_LIMIT, 1, cursor.NO_LIMIT)
    status, pos, _, _ = kernels.hop_records(array, len(data), 0, file_end, 0, *bounds)
    return status, pos
