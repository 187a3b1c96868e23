"""A kernel that reads on by itself scans what one scans that Python feeds buffer by buffer.

Axes: buffers smaller than a record and larger, reads by each call, damaged bytes, a file that was
cut while it is open. What a scan finds is compared with the plain decoder in ``test_kernels``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reput.store.config import read_store_settings
from reput.store.log import cursor, properties
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from reput.store.runs import scan
from reput.store.runs.dispatch import Wanted
from reput.workload.appender import Appender


def found_by(log: CommitLog, end: int) -> list[tuple[Any, ...]]:
    """All that a scan gives, arrays as bytes."""
    wanted = Wanted(index=True, multi_dispatch=True)
    return [
        tuple(
            part.tobytes() if isinstance(part, np.ndarray) else repr(part)
            for part in astuple(item)
        )
        for item in scan.scan(log, log.min_offset, end, extras=wanted)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=[] if turn == place else pytest.mark.slow)
        for turn, name in enumerate(("plain", "mixed", "batch"))
        for place, size in enumerate((300, 4096, 1 << 20))
    ],
)
def test_reads_of_the_kernel_change_nothing(
    golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, seed: int, name: str, size: int
) -> None:
    """The same runs, index entries, damaged ranges and counts."""
    store, rng = golden(name), random.Random(seed)
    monkeypatch.setattr(cursor, "BUFFER_SIZE", size)
    files = sorted((store / "commitlog").iterdir())
    log = read_store_settings(store).open_log()
    with closing(log):
        end = LogTail(log).settled()
        for damage in (None, "flip", "zeros", "cut"):
            victim = rng.choice(files[:-1])
            at = rng.randrange(victim.stat().st_size)
            if damage is not None:
                log.segments.open(next(each for each in log.segments.listed if each.path == victim))
                with victim.open("r+b") as out:
                    if damage == "cut":
                        out.truncate(at)
                    else:
                        out.seek(at)
                        length = 1 if damage == "flip" else rng.randrange(1, 2000)
                        out.write(rng.randbytes(1) if damage == "flip" else bytes(length))
            results = []
            for reads in (0, 1, 3, 16):
                monkeypatch.setattr(scan, "READS_PER_CALL", reads)
                results.append(found_by(log, end))
            assert len(results[0]) > 1
            assert results[1:] == results[:1] * 3


def test_a_file_that_is_replaced_while_it_is_scanned_is_scanned_to_its_end(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread refreshes the log between two calls of the kernel's, and the next file that is
    opened would take the number of a file that was let go."""
    store, inner = golden("plain"), scan.scankernel.scan_file
    log = read_store_settings(store).open_log()
    held: list[int] = []

    def scan_file(fd: int, start: int, *arguments: Any) -> Any:
        path = next(each.path for each in log.segments.listed if each.start == start)
        path.rename(tmp_path / "moved")
        path.write_bytes(bytes(log.file_size))
        log.refresh()
        held.append(os.open(path, os.O_RDONLY))
        try:
            return inner(fd, start, *arguments)
        finally:
            (tmp_path / "moved").rename(path)
            log.refresh()

    monkeypatch.setattr(scan, "READS_PER_CALL", 1)
    monkeypatch.setattr(cursor, "BUFFER_SIZE", 4096)
    with closing(log):
        end = LogTail(log).settled()
        expected = found_by(log, end)
        monkeypatch.setattr(scan.scankernel, "scan_file", scan_file)
        found = found_by(log, end)
    for fd in held:
        os.close(fd)
    assert len(held) > len(log.segments.listed)
    assert found == expected


@pytest.mark.parametrize("is_last", [False, True])
def test_a_large_record_fits_with_all_its_light_queues(tmp_path: Path, *, is_last: bool) -> None:
    """However large its body is, and where the range ends within it (a forged split does that)."""
    names = [b"light-%05d" % number for number in range(1_500)]
    body, offsets = bytes(17 << 20), b",".join(b"%d" % number for number in range(len(names)))
    lists = {b"INNER_MULTI_DISPATCH": b",".join(names), b"INNER_MULTI_QUEUE_OFFSET": offsets}
    block = properties.format_block(lists)
    with Appender(tmp_path, file_size=1 << 26) as broker:
        first = broker.append(Record(topic=b"T" * 127, body=body, properties=block))
        start = 0
        if not is_last:
            broker.append(Record(topic=b"T" * 127, body=b"small", properties=block))
        end = broker.end_offset
    with closing(CommitLog([tmp_path / "commitlog"])) as log:
        wanted = Wanted(index=True, multi_dispatch=True)
        found = [*scan.scan(log, start, 1_000 if is_last else end, extras=wanted)]
    runs = [run for one in found if isinstance(one, scan.PackedChunk) for run in scan.runs_of(one)]
    assert {run.topic for run in runs} == {b"T" * 127, *names}
    assert {run.first_physical_offset for run in runs} == {first.physical_offset}
    assert {len(run) for run in runs} == {1 if is_last else 2}
