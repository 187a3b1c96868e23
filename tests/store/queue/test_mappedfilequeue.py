"""A queue's file as a whole: its checksum, where its data ends and its last byte.

Held against the bytes that the test wrote. A real queue file has six million bytes, so what is read
in parts is asked of files that take several.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reput.store.queue.consumequeue import ConsumeQueueFiles
from reput.store.queue.mappedfilequeue import crc32_of, data_end, used_end
from reput.store.queue.unsynced import UnsyncedFiles
from tests.support.power_cuts import Disk
from tests.support.recorder import Recorder, read_tree
from tests.support.wire import UNIT

MIB = 1 << 20


@contextmanager
def opened(path: Path, pieces: dict[int, bytes], size: int) -> Iterator[int]:
    """A sparse file of ``size`` bytes with some pieces of data."""
    with path.open("w+b") as file:
        file.truncate(size)
        for at, data in pieces.items():
            os.pwrite(file.fileno(), data, at)
        yield file.fileno()


def test_a_checksum_is_that_of_all_bytes_of_a_range(tmp_path: Path, seed: int) -> None:
    """Ranges lie within one read, or over several, up to the file's end and beyond it."""
    data = random.Random(seed).randbytes(5 * MIB // 2)
    with opened(tmp_path / "file", {0: data}, len(data)) as fd:
        for start in (0, 1, MIB - 1, MIB, 2 * MIB + 3):
            for end in (start, start + 1, start + MIB, start + MIB + 1, len(data), len(data) + MIB):
                assert crc32_of(fd, start, end) == zlib.crc32(data[start:end]), (start, end)


def test_the_last_byte_of_a_sparse_file_is_found(tmp_path: Path) -> None:
    """After holes of any number, and before zeros that are data; none is found in zeros alone."""
    page = bytes(4096)
    cases: tuple[tuple[dict[int, bytes], int], ...] = (
        ({}, 0),
        ({0: page}, 0),
        ({0: b"a"}, 1),
        ({7: b"a" + page}, 8),
        ({0: b"a", MIB: b"b", 2 * MIB: page}, MIB + 1),
        ({3 * MIB - 1: b"c"}, 3 * MIB),
    )
    for pieces, used in cases:
        with opened(tmp_path / "file", pieces, 3 * MIB) as fd:
            assert used_end(fd) == used, pieces
            assert used_end(fd, max(used - 1, 0)) == used, pieces
            # from beyond it there is none
            assert used_end(fd, used + 1) == used + 1, pieces
            written = max((at + len(data) for at, data in pieces.items()), default=0)
            assert written <= data_end(fd) < written + len(page), pieces


def test_a_queue_that_begins_anew_is_durable_with_its_names(ram_path: Path) -> None:
    """It was removed, as a topic that was made again has it, and has files of the same names: a
    power cut after the next sync leaves them with all their bytes."""
    units = [UNIT.pack(100 * at, 100, at) for at in range(12)]
    with Recorder(ram_path) as recorder:
        files, unsynced = ConsumeQueueFiles(ram_path / "T" / "0", 100), UnsyncedFiles()
        files.write(0, b"".join(units), ram_path, unsynced)
        unsynced.sync()
        files.remove_all()
        assert (files.starts, read_tree(ram_path)) == ([], {"T": None, "T/0": None})
        files.write(0, b"".join(units[::-1]), ram_path, unsynced)
        assert files.starts == [0, 100, 200]
        unsynced.sync()
    recorder.check()
    found = Disk.after(recorder).durable()
    assert found == read_tree(ram_path)
    written = b"".join(data for _, data in sorted(found.items()) if data)
    assert written == b"".join(units[::-1]).ljust(300, b"\0")
