"""The golden stores, unpacked, and how their trees are compared."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from reput.store.log import record
from reput.store.log.record import Record
from tests.support.wire import file_name, read_log

GOLDEN_DIRECTORY = Path(__file__).parent.parent / "golden"
GOLDEN_NAMES = ("plain", "mixed", "wide", "killed", "broker", "orders-5.5.0", "orders-5.5.1")
"""The stores whose consume queues hold nothing but each message's own unit."""
ALL_GOLDEN_NAMES = (*GOLDEN_NAMES, "ext", "lmq", "batch", "queues-5.5.0", "queues-5.5.1")
"""RocketMQ 5.3.3 wrote those without a release in their name."""
GOLDEN_CASES = tuple(
    name
    if name in ("mixed", "killed", "ext", "lmq", "batch", "queues-5.5.1")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in ALL_GOLDEN_NAMES
)
"""The same for what compares each record with a plain decoder: ``make test`` takes the stores that
have something of their own, among them that of a killed broker."""


def unpack_golden(name: str, into: Path) -> Path:
    """Unpack one golden store; returns its root."""
    with tarfile.open(GOLDEN_DIRECTORY / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    return into / name


def log_records(store: Path) -> list[Record]:
    """Every record of a store's sound log."""
    decoded = (
        record.decode(data, offset, offset + len(data) + record.END_FILE_MIN_BLANK_LENGTH)
        for offset, data in read_log(store / "commitlog")
    )
    return [found for found in decoded if isinstance(found, Record)]


def tree(root: Path) -> dict[str, bytes]:
    """Relative file names and contents below ``root``."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def difference(ours: Path, theirs: Path) -> list[str]:
    """Names of files that one tree lacks or that differ; empty for equal trees."""
    left, right = tree(ours), tree(theirs)
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


def relaid_queues(store: Path, file_size: int, log_min: int = 0) -> dict[str, bytes]:
    """RocketMQ's consume queues in files of another size; without those that it would have removed
    where the log begins at ``log_min``."""
    kept = {}
    for queue in (store / "consumequeue").glob("*/*"):
        units = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
        end = next(at for at in range(0, len(units), 20) if not any(units[at + 8 : at + 12]))
        starts = range(0, end, file_size)
        for start in starts:
            data = units[start : min(start + file_size, end)].ljust(file_size, b"\0")
            if start == starts[-1] or int.from_bytes(data[-20:-12], "big") >= log_min:
                kept[f"{queue.relative_to(store / 'consumequeue')}/{start:020d}"] = data
    return kept


def destroy(store: Path, found: Iterable[Record]) -> None:
    """Overwrite records with zeros."""
    size = next((store / "commitlog").iterdir()).stat().st_size
    for lost in found:
        start = lost.physical_offset - lost.physical_offset % size
        with (store / "commitlog" / file_name(start)).open("r+b") as out:
            out.seek(lost.physical_offset - start)
            out.write(bytes(lost.total_size))
