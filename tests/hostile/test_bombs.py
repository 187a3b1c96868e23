"""A little that becomes a lot: cases 13, 17, 19 and 20 of the threat model."""

from __future__ import annotations

import itertools
import os
import random
import struct
import tracemalloc
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from reput.store.index.indexfile import IndexFiles
from reput.store.log.compression import inflate
from reput.store.queue.consumequeueext import ConsumeQueueExtFiles
from tests.hostile.stores import dispatched, log_with
from tests.support.small_store import ENTRIES, SLOTS, SmallStore

FOREVER = 1 << 62


def test_case_13_keys_without_number(tmp_path: Path) -> None:
    """As many as 32 KiB of properties hold: all are indexed, as RocketMQ does, in time that is
    proportional to them."""
    keys = b" ".join([b"k"] * 16_000)
    plain = log_with({"topic": b"T", "properties": b"KEYS\x01" + keys + b"\x02"}, file_size=1 << 16)
    store = dispatched(tmp_path, plain)
    counts = [len(content.entries) for content in store.output.index()]
    assert sum(counts) == 16_000 + 4
    assert counts[0] == ENTRIES - 1


def zeros(codec: str, count: int) -> bytes:
    """A body that inflates to so many zeros."""
    if codec == "zlib":
        return zlib.compress(bytes(count), 9)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as out:
        out.write(bytes(count))
    return sink.getvalue().to_pybytes()


CODECS = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}


@pytest.mark.parametrize("codec", CODECS)
def test_case_17_a_body_that_inflates_a_thousand_times(tmp_path: Path, codec: str) -> None:
    """A dispatch does not look at it; a reader stops at its limit, and shows it as it is stored."""
    limit, body = 1 << 20, zeros(codec, 32 << 20)
    plain = log_with({"topic": b"T", "body": body, "sys_flag": CODECS[codec]}, file_size=1 << 20)
    store = SmallStore(tmp_path, plain)
    store.output.start()
    store.check()
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    assert inflate(body, codec, limit) is None
    assert tracemalloc.get_traced_memory()[1] < 3 * limit
    tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 3 * limit
    assert inflate(zeros(codec, limit), codec, limit) == bytes(limit)


@pytest.mark.parametrize("codec", [*CODECS, "unknown"])
def test_case_17_bodies_that_are_no_stream(codec: str, seed: int) -> None:
    """Cut, changed or random: None, or other bytes, within the limit."""
    rng = random.Random(seed)
    whole = zeros(codec, 5000) if codec in CODECS else b"x" * 50
    for _ in range(100):
        body = bytearray(whole[: rng.randrange(len(whole) + 1)])
        for _ in range(rng.randrange(3)):
            if body:
                body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        found = inflate(bytes(body), codec, 1 << 16)
        assert found is None or len(found) <= 1 << 16


def test_case_19_keys_of_one_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 keys with the same ``hashCode`` are one chain: a search takes a step for each entry and
    no more."""
    keys = [b"".join(pair) for pair in itertools.product((b"Aa", b"BB"), repeat=9)]
    plain = log_with(*({"properties": b"KEYS\x01%s\x02" % key} for key in keys), file_size=1 << 18)
    store = dispatched(tmp_path, plain)
    steps = count_reads(monkeypatch)
    index = IndexFiles(store.output.root / "index", store.output.layout)
    found = index.query_offset(b"Topic#" + keys[0], 10_000, 0, FOREVER)
    assert len(found.phy_offsets) == 512
    assert len(steps) < 512 + 3 * ENTRIES


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every read by position from now on."""
    steps: list[int] = []
    pread = os.pread

    def counted(fd: int, size: int, at: int) -> bytes:
        steps.append(at)
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", counted)
    return steps


POINTERS = (-1, 0, 1, 5, ENTRIES, ENTRIES + 1, 1 << 30, (1 << 31) - 1, -(1 << 31))


def test_case_20_index_pointers_anywhere(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots, counts and links that are cyclic, or lead out of the file: a search ends, within as
    many steps as there are entries."""
    fields = [{"properties": b"KEYS\x01k%d\x02" % (number % 5)} for number in range(60)]
    store = dispatched(tmp_path, log_with(*fields, file_size=1 << 16))
    (path,) = (store.output.root / "index").iterdir()
    whole = path.read_bytes()
    index = IndexFiles(path.parent, store.output.layout)
    steps = count_reads(monkeypatch)
    for case in range(200):
        rng, data = random.Random(f"{seed}:{case}"), bytearray(whole)
        for _ in range(20):
            slot, entry = (
                40 + 4 * rng.randrange(SLOTS),
                40 + 4 * SLOTS + 20 * rng.randrange(ENTRIES),
            )
            at = rng.choice((36, slot, slot, entry + 16, entry + 16, entry + 16))
            struct.pack_into(">i", data, at, rng.choice(POINTERS))
        path.write_bytes(data)
        for key in range(5):
            steps.clear()
            index.query_offset(b"Topic#k%d" % key, 1000, 0, FOREVER)
            assert len(steps) <= ENTRIES + 2, f"{seed=} {case=}"


def test_case_20_ext_addresses_anywhere(tmp_path: Path, seed: int) -> None:
    """No unit there, or some unit; never an error, whatever the address or the file is."""
    rng, size = random.Random(seed), 400
    for name in ("0" * 20, "0" * 17 + "400"):
        (tmp_path / name).write_bytes(rng.randbytes(size))
    files = ConsumeQueueExtFiles(tmp_path, size)
    for case in range(500):
        near = -(1 << 63) + rng.randrange(-3, 900)
        address = max(rng.choice((near, rng.randrange(-(1 << 63), 1 << 63))), -(1 << 63))
        found = files.read(address)
        assert found is None or found.size <= size, f"{seed=} {case=}"
