"""The watermark file: the one durable position, whatever was torn or damaged.

Held against the layout in its module's table (read here with struct), zlib, and kill -9.
"""

from __future__ import annotations

import os
import signal
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from reput.checkpoints.watermark import WatermarkFile, new_store_id
from reput.store import fsops
from reput.store.errors import NoSpaceError, OutputError, OwnershipError, SyncError
from reput.store.files import WATERMARK_FILE
from reput.store.log.commitlog import CommitLog
from reput.store.state.output import fingerprint
from reput.store.state.watermark import SLOT_SIZE, Watermark, read_watermark
from tests.support.processes import fork, is_killed_at
from tests.support.wire import read_log

USED = 80
STORE_ID = "00112233445566778899aabbccddeeff"
FIRST = Watermark(STORE_ID, 1000, 3, 0, 900, 0xFFFFFFFF, 1_700_000_000_000)


def write(directory: Path, *ends: int) -> list[Watermark]:
    """Advance to each end; what was written."""
    file = WatermarkFile(directory)
    written = [file.advance(replace(FIRST, end_offset=end)) for end in ends]
    file.close()
    return written


def test_a_slot_of_another_format_is_none() -> None:
    """A later version of the file may have other fields after another magic, with a CRC as well."""
    sound = FIRST.pack()
    assert Watermark.unpack(sound.ljust(SLOT_SIZE, b"\0")) == FIRST
    other = b"REPUTWM2" + sound[8:76]
    slot = other + struct.pack(">I", zlib.crc32(other))
    assert Watermark.unpack(slot.ljust(SLOT_SIZE, b"\0")) is None


def test_a_watermark_is_read_back(tmp_path: Path) -> None:
    """By this process and the next; none before the first."""
    assert read_watermark(tmp_path) is None
    with closing(WatermarkFile(tmp_path)) as file:
        assert file.current is None
    assert read_watermark(tmp_path) is None  # an empty file holds none either
    written = write(tmp_path, 1000, 2000, 3000)
    assert [one.sequence for one in written] == [1, 2, 3]
    assert read_watermark(tmp_path) == written[-1] == replace(FIRST, end_offset=3000, sequence=3)
    assert write(tmp_path, 4000)[0].sequence == 4
    found = read_watermark(tmp_path)
    assert found is not None
    assert found.end_offset == 4000
    # where the log was cut, the newest position is not the highest
    write(tmp_path, 500)
    assert read_watermark(tmp_path) == replace(FIRST, end_offset=500, sequence=5)


def test_slots_are_laid_out_as_documented(tmp_path: Path) -> None:
    """Two slots, written in turn; every field at its offset, the CRC over the 76 bytes before."""
    write(tmp_path, 1000, 2000)
    data = (tmp_path / WATERMARK_FILE).read_bytes()
    assert len(data) == 2 * SLOT_SIZE
    for slot, end, sequence in ((data[SLOT_SIZE:], 1000, 1), (data[:SLOT_SIZE], 2000, 2)):
        assert slot[:8] == b"REPUTWM1"
        assert slot[8:24].hex() == STORE_ID
        assert struct.unpack_from(">qqqq", slot, 24) == (3, sequence, end, 900)
        assert struct.unpack_from(">Iq", slot, 56) == (0xFFFFFFFF, 1_700_000_000_000)
        assert struct.unpack_from(">q", slot, 68) == (-1,)
        assert struct.unpack_from(">I", slot, 76)[0] == zlib.crc32(slot[:76])
        assert slot[USED:] == bytes(SLOT_SIZE - USED)


def test_every_damaged_byte_of_a_slot_makes_the_other_count(tmp_path: Path) -> None:
    """Each bit of the newer slot flipped: the older position, never another one."""
    older, newer = write(tmp_path, 1000, 2000)
    path = tmp_path / WATERMARK_FILE
    data = bytearray(path.read_bytes())
    at = newer.sequence % 2 * SLOT_SIZE
    for index in range(at, at + USED):
        for bit in range(8):
            data[index] ^= 1 << bit
            path.write_bytes(data)
            assert read_watermark(tmp_path) == older, (index, bit)
            data[index] ^= 1 << bit
    data[:USED] = bytes(USED)
    data[SLOT_SIZE] ^= 1
    path.write_bytes(data)
    assert read_watermark(tmp_path) is None


def test_a_torn_write_leaves_the_watermark_before_it(tmp_path: Path) -> None:
    """The third write stored up to any byte over the first one's slot: second or third counts."""
    write(tmp_path, 1000, 2000)
    before = (tmp_path / WATERMARK_FILE).read_bytes()
    second = read_watermark(tmp_path)
    third = write(tmp_path, 3000)[0]
    after = (tmp_path / WATERMARK_FILE).read_bytes()
    at = third.sequence % 2 * SLOT_SIZE
    results = set()
    for torn in range(USED + 1):
        stored = before[:at] + after[at : at + torn] + before[at + torn :]
        (tmp_path / WATERMARK_FILE).write_bytes(stored)
        found = read_watermark(tmp_path)
        assert found in (second, third)
        results.add(found)
        # whoever goes on writes over the torn slot, not over the good one
        goes_on = write(tmp_path, 5000)[0]
        assert read_watermark(tmp_path) == goes_on
        assert found is not None
        assert goes_on.sequence == found.sequence + 1
        assert found.pack() in (tmp_path / WATERMARK_FILE).read_bytes()
    assert results == {second, third}


@pytest.mark.parametrize("length", [0, 1, USED - 1, SLOT_SIZE - 1, SLOT_SIZE, SLOT_SIZE + USED - 1])
def test_a_cut_file_never_gives_another_position(tmp_path: Path, length: int) -> None:
    """Shorter than it was: what is whole counts, and the next write makes it whole again."""
    older, newer = write(tmp_path, 1000, 2000)
    path = tmp_path / WATERMARK_FILE
    path.write_bytes(path.read_bytes()[:length])
    assert read_watermark(tmp_path) in (None, older, newer)
    written = write(tmp_path, 3000)[0]
    assert read_watermark(tmp_path) == written
    assert path.stat().st_size == 2 * SLOT_SIZE


def test_killed_anywhere_the_old_or_the_new_watermark_counts(tmp_path: Path) -> None:
    """kill -9 before every operation, the second and third write cut in half or not."""
    for failpoints in ("", "pwrite:2=short,", "pwrite:3=short,"):
        for ordinal in count(1):
            directory = tmp_path / f"{failpoints[:8]}{ordinal}"
            directory.mkdir()
            killed = is_killed_at(ordinal, partial(write, directory, 1000, 2000, 3000), failpoints)
            found = read_watermark(directory)
            end = found.end_offset if found else 0
            # operations: open, size, then a write and a sync for each; killed before `ordinal`
            synced = max(0, (ordinal - 1 - 2) // 2)
            assert 1000 * synced <= end <= 1000 * (synced + 1)
            if not killed:
                assert end == 3000
                break


@pytest.mark.parametrize(
    ("point", "error"),
    [
        ("pwrite:1=ENOSPC", NoSpaceError),
        ("pwrite:1=EIO", OutputError),
        ("sync:1=EIO", SyncError),
    ],
)
def test_a_failed_write_keeps_the_old_watermark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, error: type[Exception]
) -> None:
    """In memory at least; a later try gets through and counts, but for one after a failed sync: the
    process cannot know what the disk has."""
    write(tmp_path, 1000, 2000)
    with closing(WatermarkFile(tmp_path)) as file:
        before = file.current
        monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(point))
        with pytest.raises(error, match=WATERMARK_FILE):
            file.advance(replace(FIRST, end_offset=3000))
        assert file.current == before
        if error is SyncError:
            with pytest.raises(OwnershipError, match=r"epoch=.*end=2000 .*end=3000"):
                file.advance(replace(FIRST, end_offset=3000))
            return
        written = file.advance(replace(FIRST, end_offset=3000))
        assert written.sequence == 3
        assert read_watermark(tmp_path) == written


@pytest.mark.parametrize("left", [b"", bytes(2 * SLOT_SIZE), b"\xff" * 2 * SLOT_SIZE, None])
def test_a_watermark_that_is_gone_ends_the_run(tmp_path: Path, left: bytes | None) -> None:
    """Emptied, damaged in both slots, or removed: its owner writes no more, in memory neither."""
    write(tmp_path, 1000, 2000)
    path = tmp_path / WATERMARK_FILE
    with closing(WatermarkFile(tmp_path)) as file:
        if left is None:
            path.unlink()
        else:
            path.write_bytes(left)
        with pytest.raises(OwnershipError, match=r"left it at epoch=3 end=2000 and finds nothing"):
            file.advance(replace(FIRST, end_offset=3000))
        with pytest.raises(OwnershipError, match="finds nothing"):
            file.check_owned()
    assert (path.read_bytes() if path.exists() else None) == left


@pytest.mark.parametrize("written", [1, 2, 3])
@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_write_that_was_held_up_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int, more: int
) -> None:
    """A process stands still between its check and its write, and one that sees no lock of it takes
    over. Woken, it is refused at once; what it wrote moves the watermark back by one at most, and
    its position never counts."""
    write(tmp_path, *(1000 * number for number in range(1, written + 1)))

    def stand_still(*args: Any) -> None:
        monkeypatch.undo()
        os.kill(os.getpid(), signal.SIGSTOP)
        fsops.pwrite(*args)

    def late() -> None:
        file = WatermarkFile(tmp_path)
        monkeypatch.setattr(fsops, "pwrite", stand_still)
        with pytest.raises(OwnershipError, match=r"left it at epoch=3 end=9000 and finds epoch=4"):
            file.advance(replace(FIRST, end_offset=9000))

    pid = fork(late)
    os.waitpid(pid, os.WUNTRACED)
    try:
        file = WatermarkFile(tmp_path)
        ours = replace(FIRST, epoch=4, end_offset=1000 * written)
        ends = [file.take_over(ours).end_offset]
        for at in range(more):
            ends.append(file.advance(replace(ours, end_offset=ours.end_offset + at)).end_offset)
        file.close()
    finally:
        os.kill(pid, signal.SIGCONT)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0
    found = read_watermark(tmp_path)
    assert found is not None
    assert (found.epoch, found.end_offset) in [(4, end) for end in ends[-2:]]


def test_identities_are_fresh_uuids() -> None:
    """32 hex digits, never the same."""
    ids = {new_store_id() for _ in range(100)}
    assert len(ids) == 100
    assert {len(bytes.fromhex(one)) for one in ids} == {16}


def test_a_fingerprint_tells_records_apart(golden: Callable[[str], Path]) -> None:
    """CRC-32 of a record's first 88 bytes; 0 where there is none; each record has its own."""
    directory = golden("plain") / "commitlog"
    log = CommitLog([directory])
    stored = read_log(directory)
    for offset, data in stored:
        assert fingerprint(log, offset) == zlib.crc32(data[:88])
    assert len({fingerprint(log, offset) for offset, _ in stored}) == len(stored)
    assert fingerprint(log, -1) == 0
    assert fingerprint(log, 1 << 40) == 0
    log.close()
