"""Rare states of two stores that are compared: spare and empty files, a side that lacks a file,
short reads, files that go. Their bytes are made by hand, after formats.md.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from reput.store.errors import StoreError
from reput.upkeep.compare import PairReader, StoreDifference, compare_stores
from tests.support import wire

UNIT = wire.UNIT.pack(100, 50, 7)
FILE_SIZE = 2 * len(UNIT)
FULL, EMPTY = 2 * UNIT, bytes(FILE_SIZE)
SLOTS = 4
HEADER = struct.pack(">qqqqii", 1, 2, 3, 4, 1, 2)


def written(root: Path, files: dict[str, bytes]) -> Path:
    """A store of these files below its root."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def queue(*files: bytes, kind: str = "consumequeue", place: str = "T/0") -> dict[str, bytes]:
    """The files of one queue, one after the other."""
    return {
        f"{kind}/{place}/{wire.file_name(number * FILE_SIZE)}": data
        for number, data in enumerate(files)
    }


def found(left: Path, right: Path) -> list[StoreDifference]:
    """The differences, with an index of few slots."""
    return compare_stores(left, right, hash_slot_count=SLOTS).differences


def open_files() -> list[Path]:
    """The descriptors of this process."""
    return sorted(Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    ("kind", "files", "is_spare"),
    [
        ("consumequeue", (FULL, EMPTY), True),
        ("consumequeue", (FULL, FULL, EMPTY), True),
        ("consumequeue", (UNIT + bytes(20), EMPTY), False),
        ("consumequeue", (FULL, bytes(20) + UNIT), False),
        ("consumequeue", (FULL, EMPTY[:-1] + b"\1"), False),
        ("consumequeue_ext", (FULL, EMPTY), False),
        ("batchconsumequeue", (FULL, EMPTY), False),
    ],
)
def test_a_spare_file_is_no_difference(
    tmp_path: Path, kind: str, files: Sequence[bytes], is_spare: bool
) -> None:
    """RocketMQ makes the next file for a message that it then drops: after a full one, empty, and
    of a consume queue alone. Either side may have it; any other file that is missing is named."""
    more = written(tmp_path / "more", queue(*files, kind=kind))
    fewer = written(tmp_path / "fewer", queue(*files[:-1], kind=kind))
    file = f"file {wire.file_name(FILE_SIZE * (len(files) - 1))}"
    there = {"bytes": FILE_SIZE}
    for left, right, sides in ((more, fewer, (there, None)), (fewer, more, (None, there))):
        wanted = [] if is_spare else [StoreDifference(kind, "T/0", file, *sides)]
        assert found(left, right) == wanted


def test_a_queue_that_lost_its_files_lacks_the_first(tmp_path: Path) -> None:
    """Its directory is there, and nothing in it tells a size of files."""
    store = written(tmp_path / "store", queue(FULL, FULL))
    empty = tmp_path / "empty"
    (empty / "consumequeue" / "T" / "0").mkdir(parents=True)
    first = f"file {wire.file_name(0)}"
    there = {"bytes": FILE_SIZE}
    assert found(store, empty) == [StoreDifference("consumequeue", "T/0", first, there, None)]
    assert found(empty, store) == [StoreDifference("consumequeue", "T/0", first, None, there)]


def test_the_first_file_that_either_side_lacks_is_named(tmp_path: Path) -> None:
    """The left store lacks the first, and the right one the last."""
    names = [f"consumequeue/T/0/{wire.file_name(at * FILE_SIZE)}" for at in range(3)]
    left = written(tmp_path / "left", dict.fromkeys(names[1:], FULL))
    right = written(tmp_path / "right", dict.fromkeys(names[:2], FULL))
    (one,) = found(left, right)
    assert (one.entry, one.left, one.right) == (
        f"file {wire.file_name(0)}", None, {"bytes": FILE_SIZE},
    )  # fmt: skip


def test_what_only_the_longer_file_has_is_a_difference(tmp_path: Path) -> None:
    """Whichever side it is on; the shorter one was never written there."""
    short = written(tmp_path / "short", queue(UNIT))
    long = written(tmp_path / "long", queue(UNIT + UNIT))
    fields = {"offset": 100, "size": 50, "tags_code": 7}
    assert found(short, long) == [StoreDifference("consumequeue", "T/0", "unit 1", None, fields)]
    assert found(long, short) == [StoreDifference("consumequeue", "T/0", "unit 1", fields, None)]


def test_queues_are_named_by_topic_and_number(tmp_path: Path) -> None:
    """Queue 2 stands before queue 10."""
    places = ["A/2", "A/10", "B/0"]
    left, right = (
        written(tmp_path / name, {
            path: data for place in places for path, data in queue(unit, place=place).items()
        })
        for name, unit in (("left", UNIT), ("right", bytes(20)))
    )  # fmt: skip
    assert [one.place for one in found(left, right)] == places


def test_an_index_of_slots_alone(tmp_path: Path) -> None:
    """It has its header and its slots, and room for no entry; one of no byte has nothing at all.
    What is no index file by its name is none, nor is a directory."""
    name = "index/20260101000000000"
    bare = HEADER + bytes(4 * SLOTS)
    left = written(tmp_path / "left", {name: bare, "index/20260101000000001": b""})
    right = written(tmp_path / "right", {name: bare, "index/20260101000000002": b""})
    written(right, {"index/20260101000000000.tmp": b"x", "index/20260101000000009/file": b"x"})
    assert found(left, right) == []
    (right / name).write_bytes(bare[:-1] + b"\1")
    assert [one.entry for one in found(left, right)] == [f"slot {SLOTS - 1}"]


def test_a_header_that_was_never_written(tmp_path: Path) -> None:
    """It counts as zeros, with an index count of 1, on either side."""
    name = "index/20260101000000000"
    left = written(tmp_path / "left", {name: HEADER + bytes(4 * SLOTS + 20)})
    right = written(tmp_path / "right", {name: bytes(40 + 4 * SLOTS + 20)})
    (one,), (turned,) = found(left, right), found(right, left)
    assert (one.entry, one.left, one.right) == (turned.entry, turned.right, turned.left)
    assert one.entry == "header" and one.left and one.right
    assert tuple(one.left.values()) == (1, 2, 3, 4, 1, 2)
    assert tuple(one.right.values()) == (0, 0, 0, 0, 0, 1)


def test_a_checkpoint_that_either_side_lacks(tmp_path: Path) -> None:
    """It is a difference, and none of a comparison of some topics."""
    store = written(
        tmp_path / "store", {"checkpoint": struct.pack(">qqq", 1, 2, 3).ljust(4096, b"\0")}
    )
    other = written(tmp_path / "other", queue(FULL))
    written(store, queue(FULL))
    (one,), (turned,) = found(store, other), found(other, store)
    assert (one.kind, one.right, turned.left) == ("checkpoint", None, None)
    assert one.left == turned.right and one.left is not None
    limited = compare_stores(store, other, topics=["T"])
    assert limited.is_equal and limited.compared == {"consumequeue": 1}


def test_the_mark_of_a_files_end_is_no_unit(tmp_path: Path) -> None:
    """Its size is -1 (formats.md §6): shown as it is, beside a file that goes on or was never
    written there."""
    unit = struct.pack(">hqqh", 20, 7, 1000, 0)
    files = {
        name: queue(unit + rest.ljust(40, b"\0"), kind="consumequeue_ext")
        for name, rest in (("marked", struct.pack(">h", -1)), ("blank", b""), ("more", unit))
    }
    marked, blank, more = (written(tmp_path / name, file) for name, file in files.items())
    fields = {"size": 20, "tags_code": 7, "msg_store_time": 1000, "bit_map": ""}
    for right, wanted in ((blank, None), (more, fields)):
        assert found(marked, right) == [
            StoreDifference("consumequeue_ext", "T/0", "ext offset 20", {"size": -1}, wanted)
        ]


def test_reads_may_be_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may give a part of what it is asked for: the rest is read, too."""
    left = written(tmp_path / "left", queue(UNIT + UNIT))
    right = written(tmp_path / "right", queue(UNIT + wire.UNIT.pack(100, 50, 8)))
    preadv = os.preadv

    def short(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return preadv(fd, [memoryview(buffers[0])[:7]], offset)

    monkeypatch.setattr(os, "preadv", short)
    assert [one.entry for one in found(left, right)] == ["unit 1"]
    assert found(left, left) == []


def test_no_file_stays_open(tmp_path: Path) -> None:
    """A comparison of several queues closes each, the last one too."""
    store = written(tmp_path / "store", {**queue(FULL, FULL), **queue(FULL, place="T/1")})
    before = open_files()
    assert found(store, store) == []
    assert open_files() == before


def test_a_file_that_goes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one of its pair is not, though it was opened first."""
    left, right = (written(tmp_path / name, queue(FULL)) for name in ("left", "right"))
    gone = right / "consumequeue" / "T" / "0" / wire.file_name(0)
    take = PairReader.take

    def removed(reader: PairReader, one: str, other: str) -> int:
        gone.unlink()
        return take(reader, one, other)

    monkeypatch.setattr(PairReader, "take", removed)
    with pytest.raises(StoreError) as raised:
        found(left, right)
    assert str(raised.value) == f"cannot read {gone}: No such file or directory"
    assert raised.value.fields["path"] == str(gone)
