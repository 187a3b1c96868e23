"""The entry that is named where two stores differ: real stores, changed in one place each time.

The places are found with plain ``struct`` walks of the files, after formats.md.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reput.store.errors import StoreError, UsageError
from reput.store.state.built import hash_slot_count
from reput.upkeep.compare import KINDS, StoreDifference, compare_stores
from tests.support.processes import open_files

GOLDEN_SLOTS = {"plain": 5000, "mixed": 1000, "ext": 5000, "batch": 5000}
CHANGES = 25

Golden = Callable[[str], Path]
Place = tuple[Path, int, int, str, str]
"""File, first byte of an entry, bytes of it, place and entry as they must be named."""


@pytest.fixture
def pair(golden: Golden, tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """A golden store and a copy of it."""

    def make(name: str) -> tuple[Path, Path]:
        store = golden(name)
        return store, shutil.copytree(store, tmp_path / "copy")

    return make


def differences(left: Path, right: Path, name: str, **options: object) -> list[StoreDifference]:
    found = compare_stores(left, right, hash_slot_count=GOLDEN_SLOTS[name], **options)  # type: ignore[arg-type]
    return found.differences


def flip(rng: random.Random, path: Path, start: int, length: int) -> None:
    """Change one byte of [start, start + length)."""
    data = bytearray(path.read_bytes())
    data[start + rng.randrange(length)] ^= rng.randrange(1, 256)
    path.write_bytes(data)


def queue_files(store: Path, kind: str) -> list[Path]:
    return sorted(path for path in (store / kind).glob("*/*/*") if path.is_file())


def fixed_units(store: Path, kind: str, size: int) -> Iterator[Place]:
    """Every written unit of a kind whose units have all the same size."""
    for path in queue_files(store, kind):
        data = path.read_bytes()
        place = "/".join(path.parts[-3:-1])
        for at in range(0, len(data) - size + 1, size):
            if struct.unpack_from(">i", data, at + 8)[0] > 0:
                yield path, at, size, place, f"unit {(int(path.name) + at) // size}"


def ext_units(store: Path) -> Iterator[Place]:
    """Every ext unit but its two size fields, which say where others begin."""
    for path in queue_files(store, "consumequeue_ext"):
        data = path.read_bytes()
        at = 0
        while (size := struct.unpack_from(">h", data, at)[0]) > 0:
            place = "/".join(path.parts[-3:-1])
            yield path, at + 2, 16, place, f"ext offset {int(path.name) + at}"
            at += size


def index_places(store: Path, slots: int) -> Iterator[Place]:
    """Every index entry, every slot that is used, and the header."""
    for number, path in enumerate(sorted((store / "index").iterdir())):
        data = path.read_bytes()
        place = f"file {number} ({path.name} | {path.name})"
        entries = 40 + 4 * slots
        for entry in range(1, struct.unpack_from(">i", data, 36)[0]):
            yield path, entries + 20 * entry, 20, place, f"entry {entry}"
        for slot in range(slots):
            if struct.unpack_from(">i", data, 40 + 4 * slot)[0]:
                yield path, 40 + 4 * slot, 4, place, f"slot {slot}"
        for _ in range(200):
            yield path, 0, 36, place, "header"


@pytest.mark.parametrize("name", GOLDEN_SLOTS)
def test_a_store_equals_its_copy(pair: Callable[[str], tuple[Path, Path]], name: str) -> None:
    """Every kind that RocketMQ wrote is compared, every queue of it."""
    store, copy = pair(name)
    assert hash_slot_count([store / "none", store]) == GOLDEN_SLOTS[name]
    found = compare_stores(store, copy, hash_slot_count=GOLDEN_SLOTS[name])
    assert found.is_equal
    assert found.compared == {
        kind: 1 if (store / kind).is_file() else len(list((store / kind).glob(pattern)))
        for kind in KINDS
        if (store / kind).exists()
        for pattern in ("*" if kind == "index" else "*/*",)
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("plain", "consumequeue"), ("mixed", "consumequeue"), ("ext", "consumequeue"),
        ("ext", "consumequeue_ext"), ("batch", "batchconsumequeue"), ("mixed", "index"),
    ],
)  # fmt: skip
def test_one_changed_entry_is_the_one_that_is_named(
    pair: Callable[[str], tuple[Path, Path]], name: str, kind: str, seed: int
) -> None:
    """One byte, anywhere in a written entry; nothing else is named."""
    store, copy = pair(name)
    places = {
        "consumequeue": lambda: fixed_units(copy, kind, 20),
        "consumequeue_ext": lambda: ext_units(copy),
        "batchconsumequeue": lambda: fixed_units(copy, kind, 46),
        "index": lambda: index_places(copy, GOLDEN_SLOTS[name]),
    }[kind]()
    rng = random.Random(seed)
    for path, start, length, place, entry in rng.sample(list(places), CHANGES):
        before = path.read_bytes()
        flip(rng, path, start, length)
        for left, right in ((store, copy), (copy, store)):
            found = differences(left, right, name)
            assert [(one.kind, one.place, one.entry) for one in found] == [(kind, place, entry)]
            assert found[0].left != found[0].right
            if entry.startswith("entry "):
                copied = found[0].right if right == copy else found[0].left
                assert copied is not None
                written = struct.unpack_from(">iqii", path.read_bytes(), start)
                assert tuple(copied.values()) == written
        path.write_bytes(before)


def test_an_ext_unit_of_another_size_is_the_one_that_is_named(
    pair: Callable[[str], tuple[Path, Path]], seed: int
) -> None:
    """Its size begins it, and the unit before ends there."""
    store, copy = pair("ext")
    rng = random.Random(seed)
    places = [place for place in ext_units(copy) if place[1] > 2]
    for path, start, _, place, entry in rng.sample(places, 20):
        before = path.read_bytes()
        flip(rng, path, start - 2, 1)
        for left, right in ((store, copy), (copy, store)):
            found = differences(left, right, "ext")
            assert [(one.place, one.entry) for one in found] == [(place, entry)]
        path.write_bytes(before)


def test_the_first_of_many_changes_is_named_for_every_queue(
    pair: Callable[[str], tuple[Path, Path]], seed: int
) -> None:
    """Units are changed all over; each queue's lowest counts, over all of its files."""
    store, copy = pair("plain")
    rng = random.Random(seed)
    lowest: dict[str, int] = {}
    for path, start, length, place, entry in rng.sample(
        list(fixed_units(copy, "consumequeue", 20)), 200
    ):
        flip(rng, path, start, length)
        number = int(entry.removeprefix("unit "))
        lowest[place] = min(number, lowest.get(place, number))
    found = differences(store, copy, "plain")
    assert {one.place: one.entry for one in found} == {
        place: f"unit {number}" for place, number in lowest.items()
    }


def test_fields_are_rocketmqs(pair: Callable[[str], tuple[Path, Path]]) -> None:
    """An ext address is the ext offset that it stands for; what was never written is nothing."""
    store, copy = pair("ext")
    found = {}
    for path, start, length, place, entry in fixed_units(copy, "consumequeue", 20):
        data = path.read_bytes()
        offset, size, code = struct.unpack_from(">qiq", data, start)
        if code < -(1 << 31) and start:
            path.write_bytes(data[:start] + bytes(length) + data[start + length :])
            found[place] = (entry, {"offset": offset, "size": size, "ext_offset": code + (1 << 63)})
            break
    shown = differences(store, copy, "ext")
    assert {one.place: (one.entry, one.left) for one in shown} == found
    assert [one.right for one in shown] == [None]


def test_the_unit_of_the_logs_first_message_is_shown(
    pair: Callable[[str], tuple[Path, Path]],
) -> None:
    """Its physical offset is 0, as that of a unit that was never written."""
    store, copy = pair("plain")
    path, start, _, place, entry = next(
        (path, start, *more)
        for path, start, *more in fixed_units(copy, "consumequeue", 20)
        if path.read_bytes()[start : start + 8] == bytes(8)
    )
    data = bytearray(path.read_bytes())
    _, size, code = struct.unpack_from(">qiq", data, start)
    struct.pack_into(">q", data, start + 12, code + 1)
    path.write_bytes(data)
    sides = [{"offset": 0, "size": size, "tags_code": code + more} for more in (0, 1)]
    assert differences(store, copy, "plain") == [
        StoreDifference("consumequeue", place, entry, *sides)
    ]


def test_checkpoint_fields(pair: Callable[[str], tuple[Path, Path]]) -> None:
    """Only those that differ; a missing checkpoint is a difference."""
    store, copy = pair("plain")
    stored = bytearray((copy / "checkpoint").read_bytes())
    old = struct.unpack_from(">q", stored, 8)[0]
    struct.pack_into(">q", stored, 8, 77)
    (copy / "checkpoint").write_bytes(stored)
    sides = {"logics_msg_timestamp": old}, {"logics_msg_timestamp": 77}
    assert differences(store, copy, "plain") == [
        StoreDifference("checkpoint", "", "fields", *sides)
    ]
    (copy / "checkpoint").unlink()
    (found,) = differences(store, copy, "plain")
    assert found.left and found.right is None


def test_what_one_side_lacks_is_a_difference(pair: Callable[[str], tuple[Path, Path]]) -> None:
    """A queue, a queue's file, an index file: named, on whichever side they are missing."""
    store, copy = pair("mixed")
    first, last = (queue_files(copy, "consumequeue")[at] for at in (0, -1))
    length = last.stat().st_size
    last.unlink()
    shutil.rmtree(first.parent)
    index = sorted((copy / "index").iterdir())
    index[-1].unlink()
    for left, right, swapped in ((store, copy, False), (copy, store, True)):
        found = differences(left, right, "mixed")
        named = {
            (one.kind, one.place, one.entry): (one.right, one.left) if swapped else
            (one.left, one.right) for one in found
        }  # fmt: skip
        assert named == {
            ("consumequeue", "/".join(first.parts[-3:-1]), "queue"): ({"files": 1}, None),
            ("consumequeue", "/".join(last.parts[-3:-1]), f"file {last.name}"): (
                {"bytes": length}, None,
            ),
            ("index", "file 2", ""): ({"file": index[-1].name}, None),
        }  # fmt: skip


def test_space_that_was_never_written_is_no_difference(
    pair: Callable[[str], tuple[Path, Path]],
) -> None:
    """Files cut after their last unit; an index whose indexCount is 0 on disk, or 1."""
    store, copy = pair("plain")
    for path in queue_files(copy, "consumequeue"):
        data = path.read_bytes().rstrip(b"\0")
        path.write_bytes(data)
    for root, count in ((store, 0), (copy, 1)):
        header = struct.pack(">qqqqii", 0, 0, 0, 0, 0, count)
        (root / "index" / "99990101000000000").write_bytes(header + bytes(4 * 5000 + 400))
    assert differences(store, copy, "plain") == []


def test_index_files_are_matched_in_order(pair: Callable[[str], tuple[Path, Path]]) -> None:
    """Their names are times and say nothing."""
    store, copy = pair("mixed")
    for path in (copy / "index").iterdir():
        path.rename(path.with_name(str(int(path.name) + 10**9)))
    assert differences(store, copy, "mixed") == []


def test_holes_and_blocks(tmp_path: Path, seed: int) -> None:
    """Large sparse files: one unit far along, with holes, zeros or the same bytes before it."""
    rng = random.Random(seed)
    size = 20 * 300_000
    roots = [tmp_path / "left", tmp_path / "right"]
    paths = [root / "consumequeue" / "T" / "0" / ("0" * 20) for root in roots]
    for _ in range(20):
        shared = [(rng.randrange(size), rng.randbytes(rng.choice((1, 20, 70_000)))) for _ in "abc"]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for at, data in shared:
                    file.seek(at)
                    file.write(data)
                file.truncate(size)
        assert compare_stores(*roots).is_equal
        at = rng.choice((rng.randrange(size), (1 << 20) * rng.randrange(1, 5), size - 1, 0))
        with paths[1].open("r+b") as file:
            file.seek(at)
            old = file.read(1)
            file.seek(at)
            file.write(bytes([old[0] ^ 1]))
        (found,) = compare_stores(*roots).differences
        assert found.entry == f"unit {at // 20}"
        zeros = paths[0].read_bytes()
        paths[0].write_bytes(zeros)
        assert compare_stores(*roots).differences == [found]


def test_kinds_and_topics_choose(pair: Callable[[str], tuple[Path, Path]]) -> None:
    """Only the chosen files are compared."""
    store, copy = pair("plain")
    shutil.rmtree(copy / "index")
    shutil.rmtree(copy / "consumequeue" / "Topic_1" / "0")
    assert [one.kind for one in differences(store, copy, "plain")] == ["consumequeue", "index"]
    assert [one.kind for one in differences(store, copy, "plain", kinds=["index"])] == ["index"]
    assert differences(store, copy, "plain", topics=["Topic_2"]) == []
    assert [one.kind for one in differences(store, copy, "plain", topics=["Topic_1"])] == [
        "consumequeue"
    ]


def test_an_index_that_is_too_short_for_its_slots(golden: Golden) -> None:
    """Without the setting RocketMQ's default counts; the line says what to give."""
    store = golden("plain")
    with pytest.raises(UsageError, match=r"5000000 slots; set maxHashSlotNum .*`broker_conf=`"):
        compare_stores(store, store)


def test_what_cannot_be_read_is_named(
    pair: Callable[[str], tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in a file's place is not followed; a failing disk gives both files' names."""
    store, copy = pair("plain")
    first, second = queue_files(copy, "consumequeue")[:2]

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        with pytest.raises(StoreError, match=f" or {first}: Input/output error"):
            compare_stores(store, copy)
    first.unlink()
    first.symlink_to(second)
    assert [one.entry for one in differences(store, copy, "plain")] == [f"file {first.name}"]


@pytest.mark.parametrize("value", ["0", "-1"])
def test_slots_that_are_no_number(tmp_path: Path, value: str) -> None:
    """The file, the key and the value are named."""
    path = tmp_path / "broker.conf"
    path.write_text(f"maxHashSlotNum={value}\n")
    with pytest.raises(UsageError, match=f"maxHashSlotNum in {path} is '{value}'"):
        hash_slot_count([tmp_path])


UNIT = struct.pack(">qiq", 100, 50, 7)


def made_store(root: Path, files: tuple[bytes, ...], *queues: str) -> Path:
    """A store of queues with the same files, of four units each."""
    for queue in queues or ("T/0",):
        directory = root / "consumequeue" / queue
        directory.mkdir(parents=True)
        for number, data in enumerate(files):
            (directory / f"{80 * number:020}").write_bytes(data.ljust(80, b"\0"))
    return root


@pytest.mark.parametrize(
    ("before", "last", "is_spare"),
    [
        (4 * UNIT, b"", True),
        (3 * UNIT, b"", False),
        (4 * UNIT, UNIT, False),
        (4 * UNIT, bytes(60) + UNIT, False),
    ],
    ids=["spare", "before-its-time", "unit", "last-unit"],
)
def test_an_empty_file_after_a_full_one_is_no_difference(
    tmp_path: Path, before: bytes, last: bytes, is_spare: bool
) -> None:
    """RocketMQ leaves one for a message that it drops; any other last file is a difference. A
    checkpoint that neither side has is not compared."""
    left = made_store(tmp_path / "left", (before, last))
    right = made_store(tmp_path / "right", (before,))
    for pair in ((left, right), (right, left)):
        found = compare_stores(*pair)
        assert found.compared == {"consumequeue": 1}
        named = [] if is_spare else [f"file {80:020}"]
        assert [one.entry for one in found.differences] == named


def test_queues_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """By topics first."""
    left = made_store(tmp_path / "left", (UNIT,), "T/10", "T/2", "S/3")
    (tmp_path / "right").mkdir()
    found = compare_stores(left, tmp_path / "right").differences
    assert [one.place for one in found] == ["S/3", "T/2", "T/10"]


def test_a_read_may_give_a_part(
    pair: Callable[[str], tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As POSIX has it; the rest is read from where it ended. No file stays open."""
    store, copy = pair("plain")
    read = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda fd, buffers, at: read(fd, [memoryview(buffers[0])[:999]], at)
    )
    assert differences(store, copy, "plain") == []
    *_, (path, start, length, place, entry) = fixed_units(copy, "consumequeue", 20)
    assert start > 2 * 999
    flip(random.Random(1), path, start, length)
    found = differences(store, copy, "plain")
    assert [(one.place, one.entry) for one in found] == [(place, entry)]
    assert open_files(store) + open_files(copy) == 0


def test_an_index_without_room_for_an_entry(tmp_path: Path) -> None:
    """It has all of its slots, or it is too short for them; an empty one has nothing to compare."""
    paths = [tmp_path / side / "index" / "1" for side in ("left", "right")]
    for path in paths:
        path.parent.mkdir(parents=True)
    roots = tmp_path / "left", tmp_path / "right"
    for size in (0, 40 + 4 * 10):
        for path in paths:
            path.write_bytes(bytes(size))
        assert compare_stores(*roots, hash_slot_count=10).is_equal
    for path in paths:
        path.write_bytes(bytes(40 + 4 * 10 - 1))
    with pytest.raises(UsageError, match="too short for 10 slots"):
        compare_stores(*roots, hash_slot_count=10)
