"""Torn tails: the log's last three records come byte by byte, and a dispatcher starts at each.

Nothing partial is dispatched or taken for damage, what is whole is dispatched, and the end is what
the plain models make of the whole log.
"""

from __future__ import annotations

import random

from tests.support.small_store import SmallStore
from tests.support.wire import PlainLog, random_fields
from tests.torture.cases import Case, Kind

LOG_FILE_SIZE = 2048
TORN = 3


def random_log(rng: random.Random) -> PlainLog:
    """Messages whose last ones are small; the end of a file may lie between them."""
    log = PlainLog(LOG_FILE_SIZE, rng.choice((0, LOG_FILE_SIZE * 7)))
    for queue_offset in range(rng.randrange(TORN, 20)):
        fields = random_fields(rng)
        block = rng.choice((b"", b"TAGS\x01a\x02", b"KEYS\x01k1 k2\x02"))
        fields |= {"queue_offset": queue_offset, "properties": block, "queue_id": 0, "sys_flag": 0}
        fields["body"] = rng.randbytes(rng.choice((0, 1, 30)))
        log.append(**fields)
    return log


def _run(case: Case) -> str:
    """One log, every byte of its last records; how many starts that were."""
    whole = random_log(case.rng())
    first, last = whole.spans[-TORN][0], whole.end
    torn = PlainLog(whole.file_size, whole.start, bytearray(whole.image), whole.spans, whole.end)
    torn.put(first, bytes(last - first))
    store = SmallStore(case.emptied(), torn)
    starts = 0
    for at in range(first, last):
        byte = whole.bytes_at((at, at + 1))
        if byte == b"\0" and at > first:
            continue  # as it was
        torn.put(at, byte)
        torn.write(store.output.store / "commitlog")
        store.output.start()
        starts += 1
        complete = [end for start, end in whole.spans if _is_whole(whole, torn, start, end)]
        assert store.end in _sealed_ends(whole, max(complete, default=whole.start)), at
        assert {reason for _, _, reason in store.listed()} <= {"queue_offset_gap"}
    assert store.end == whole.end
    store.check()
    return f"{starts // 100 * 100} starts or more"


def _is_whole(whole: PlainLog, torn: PlainLog, start: int, end: int) -> bool:
    return whole.bytes_at((start, end)) == torn.bytes_at((start, end))


def _sealed_ends(whole: PlainLog, end: int) -> set[int]:
    """The end of the last whole record, or where the next file begins if its BLANK is there too."""
    following = next((start for start, _ in whole.spans if start >= end), end)
    return {end, following}


KIND = Kind("torn tails", _run, 200, sample=1)
