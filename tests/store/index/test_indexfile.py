"""Index files: keys and hashes, putKey against a plain model, queries against a plain scan.

Axes: random keys, times and sizes, so small that files roll, slots collide and clocks run
backwards; stale slots; damaged chains. Golden stores and crashes are in ``tests/sinks/test_index``.
"""

from __future__ import annotations

import itertools
import os
import random
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reput.store import fsops
from reput.store.errors import IndexFileError, OutputError, UsageError
from reput.store.index.indexfile import (
    IndexFiles,
    IndexHeader,
    IndexLayout,
    index_key_hash,
    index_keys,
    new_index_file_name,
)
from reput.store.index.mappedindexfile import MappedIndexFile
from reput.store.log.record import Record
from reput.store.log.sysflag import SysFlag
from tests.support.index_model import Content, key_with_hash, read_content
from tests.support.index_outputs import IndexOutput, batch_of, entries_of, random_log

NAME = "20261121073730214"


def test_a_file_without_a_number_begins_with_entry_1() -> None:
    """RocketMQ's IndexHeader.load does so where indexCount is not positive."""
    for index_count in (0, -1, 1, 2):
        data = bytes(36) + index_count.to_bytes(4, "big", signed=True)
        assert IndexHeader.decode(data).index_count == max(index_count, 1)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, []),
        ({b"UNIQ_KEY": b"u"}, [b"T#u"]),
        ({b"KEYS": b"b a b"}, [b"T#b", b"T#a", b"T#b"]),
        ({b"KEYS": b"  a  u ", b"UNIQ_KEY": b"u"}, [b"T#u", b"T#a", b"T#u"]),
        ({b"KEYS": b" "}, []),
        ({b"KEYS": b"a\tb", b"TAGS": b"t"}, [b"T#a\tb"]),
        ({b"UNIQ_KEY": b"u u"}, [b"T#u u"]),
    ],
)
def test_keys_are_those_of_build_index(found: dict[bytes, bytes], expected: list[bytes]) -> None:
    """The unique key first, then KEYS split at single spaces; a ROLLBACK has none."""
    record = Record(b"T", property_map=found)
    assert index_keys(record) == expected
    assert index_keys(replace(record, sys_flag=SysFlag.PREPARED)) == expected
    assert index_keys(replace(record, sys_flag=SysFlag.ROLLBACK)) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({b"TAGS": b"TagA"}, [b"T#T#TagA"]),
        ({b"KEYS": b"k", b"TAGS": b"a || b", b"UNIQ_KEY": b"u"}, [b"T#u", b"T#k", b"T#T#a || b"]),
        ({b"KEYS": b"T#a", b"TAGS": b"a"}, [b"T#T#a", b"T#T#a"]),
        ({b"KEYS": b"k"}, [b"T#k"]),
    ],
)
def test_tags_are_the_last_key_where_asked(
    found: dict[bytes, bytes], expected: list[bytes]
) -> None:
    """Whole, and after those of KEYS, as RocketMQ 5.5 does (formats.md §8)."""
    record = Record(b"T", property_map=found)
    assert index_keys(record, index_tags=True) == expected
    assert index_keys(replace(record, sys_flag=SysFlag.PREPARED), index_tags=True) == expected
    assert index_keys(replace(record, sys_flag=SysFlag.ROLLBACK), index_tags=True) == []


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"", 0),
        (b"T#a", 84 * 961 + 35 * 31 + 97),
        (b"polygenelubricants", 0),  # hashes to -2147483648, which has no absolute value
        ("标签😀".encode(), 825518074),
        (b"TagA", 2598919),
        (b"\xed\xa0\x80", 0xFFFD),
    ],
)
def test_hashes_are_javas(key: bytes, expected: int) -> None:
    """abs(String.hashCode()) of the decoded text."""
    assert index_key_hash(key) == expected


def test_names_count_up_where_the_clock_does_not(tmp_path: Path) -> None:
    """17 digits of local time; a file from the future is followed by the next number."""
    name = new_index_file_name(None)
    assert len(name) == 17
    assert name >= NAME
    assert new_index_file_name(tmp_path / name) > name
    future = "29991231235959999"
    assert new_index_file_name(tmp_path / future) == "29991231235960000"


@pytest.mark.parametrize(
    ("slots", "entries"),
    [(0, 10), (1, 1), (-1, 100), (5_000_000, 1 << 27), ((2**31 - 80) // 4, 2)],
)
def test_sizes_with_which_no_file_works_are_refused(slots: int, entries: int) -> None:
    """A file takes one entry at least, and its size is a Java int."""
    with pytest.raises(UsageError, match="maxHashSlotNum"):
        IndexLayout(slots, entries)
    assert IndexLayout((2**31 - 80) // 4 - 1, 2).file_size == 2**31 - 4


def test_the_default_file_has_rocketmqs_size() -> None:
    """formats.md §1."""
    assert IndexLayout().file_size == 420000040


def test_other_names_are_listed_and_other_sizes_refused(tmp_path: Path) -> None:
    """A file that RocketMQ would not load is left alone; one of other settings is named."""
    layout = IndexLayout(1, 2)
    files = IndexFiles(tmp_path / "index", layout)
    assert (files.paths(), files.foreign_names()) == ([], [])
    files.directory.mkdir()
    unfinished = NAME[:-1] + "5.tmp"
    for name in ("notes", "20261121", unfinished):
        (files.directory / name).write_bytes(b"")
    MappedIndexFile.create(files.directory / NAME, layout, None).close()
    assert [path.name for path in files.paths()] == [NAME]
    assert files.foreign_names() == ["20261121", unfinished, "notes"]
    assert [path.name for path in files.unfinished_paths()] == [unfinished]
    with pytest.raises(IndexFileError, match=r"84 bytes but maxHashSlotNum.*give 88"):
        IndexFiles(files.directory, IndexLayout(2, 2)).paths()


def test_a_file_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    """A directory in its place: an error of ours, and no half-made file."""
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "in the way").mkdir()
    with pytest.raises(OutputError, match=NAME):
        MappedIndexFile.create(tmp_path / NAME, IndexLayout(1, 2), None)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_file_without_room_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever step finds the disk full."""
    layout = IndexLayout(1, 2)
    for ordinal in itertools.count(1):
        failing = fsops._Failpoints(f"*:{ordinal}=ENOSPC")
        monkeypatch.setattr(fsops, "_failpoints", failing)
        try:
            MappedIndexFile.create(tmp_path / NAME, layout, None).close()
        except OutputError:
            left = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
            assert left in ({}, {NAME: layout.file_size})
        else:
            break
    assert ordinal > 4


def test_entries_are_put_as_rocketmq_does(ram_path: Path, seed: int) -> None:
    """One file, filled in random pieces: the model's header, slots and entries after each."""
    for case in range(150):
        rng = random.Random(f"{seed}:{case}")
        sizes = rng.choice((1, 2, 7, 50)), rng.choice((2, 3, 10, 60))
        path = ram_path / str(case)
        times = rng.choice((0, -5, 1_700_000_000_000)), rng.choice((0, 3, 1 << 40))
        before = IndexHeader(0, times[0], 0, times[1])
        file = MappedIndexFile.create(path, IndexLayout(*sizes), before)
        begin, offset = max(times[0], 0), times[1]
        model = Content(*sizes, begin, begin, offset, offset)
        if rng.random() < 0.3:
            # stale slots count where they say an entry that is there, as in RocketMQ
            model.slots = {rng.randrange(sizes[0]): rng.choice((-1, 1, 5, 1 << 30))}
            slot, index = next(iter(model.slots.items()))
            with path.open("r+b") as out:
                out.seek(40 + 4 * slot)
                out.write(struct.pack(">i", index))
        log = random_log(ram_path / f"log-{case}", rng, rng.choice((1, 10, 40)))
        entries = entries_of(log.messages)
        at = 0
        while at < len(entries.offsets):
            piece = slice(at, at + rng.choice((1, 2, 30)))
            parts = entries.offsets[piece], entries.hashes[piece], entries.store_timestamps[piece]
            put = file.put(*parts)
            for offset, key_hash, time in list(zip(*parts, strict=True))[:put]:
                assert model.put_key(int(key_hash), int(offset), int(time))
            assert read_content(path, *sizes) == model, f"seed={seed} case={case}"
            assert file.is_full is (model.index_count == sizes[1])
            at += put
            if put < len(parts[0]):
                assert file.is_full
                assert not model.put_key(0, 0, 0)
                break
        file.close()


def test_times_at_javas_limits(tmp_path: Path) -> None:
    """timeDiff stays within an int, and a second that has not passed does not count."""
    begin = 1_700_000_000_000
    times = [
        begin,
        begin + 999,
        begin - 999,
        begin + (1 << 31) * 1000,
        begin + (1 << 31) * 1000 - 1,
    ]
    file = MappedIndexFile.create(tmp_path / NAME, IndexLayout(3, 9), None)
    count = len(times)
    file.put(np.arange(count, dtype=np.int64), np.zeros(count, np.int32), np.array(times, np.int64))
    file.close()
    found = read_content(tmp_path / NAME, 3, 9)
    assert [entry[2] for entry in found.entries] == [0, 0, 0, 2147483647, 2147483647]
    assert found.hash_slot_count == 1


def test_queries_find_what_a_scan_finds(ram_path: Path, seed: int) -> None:
    """Newest first, whole seconds, both ends inclusive.

    In one file: the first entry of a follow-up file has a wrong time (formats.md §8), with which a
    walk in time finds another end; tests/interop asks RocketMQ itself over several files.
    """
    for case in range(30):
        rng = random.Random(f"{seed}:{case}")
        layout = IndexLayout(rng.choice((1, 3, 50)), 2000)
        directory = ram_path / str(case)
        log = random_log(directory / "log", rng, rng.choice((1, 30, 120)), sound_clock=True)
        output, messages = IndexOutput(directory / "output", layout, log), log.messages
        writer = output.writer(0)
        writer.write(batch_of(messages))
        writer.close()
        model = output.model()
        files = IndexFiles(output.root / "index", layout)
        times = [message.store_timestamp + rng.choice((-1, 0, 1, 1000)) for message in messages]
        for _ in range(30):
            hashes = {3, *(entry[0] for content in model for entry in content.entries)}
            key_hash = rng.choice(sorted(hashes))
            begin, end = sorted((rng.choice(times), rng.choice(times)))
            count = rng.choice((1, 5, 64, 1000))
            found = files.query_offset(b"T#" + key_with_hash(key_hash), count, begin, end)
            expected = [
                offset
                for content in reversed(model)
                for offset in content.select(key_hash, begin, end)
            ]
            place = f"seed={seed} case={case}"
            assert list(found.phy_offsets) == expected[:count], place
            assert found.index_last_update_timestamp == model[-1].end_timestamp
            assert found.index_last_update_phyoffset == model[-1].end_phy_offset


def test_queries_look_into_older_files_and_not_beyond_the_end(ram_path: Path, seed: int) -> None:
    """Over many small files, without bounds of time: the newest entries before an offset."""
    for case in range(15):
        rng = random.Random(f"{seed}:{case}")
        layout = IndexLayout(rng.choice((1, 7)), rng.choice((4, 12)))
        directory = ram_path / str(case)
        log = random_log(directory / "log", rng, 60, sound_clock=True)
        output, messages = IndexOutput(directory / "output", layout, log), log.messages
        writer = output.writer(0)
        writer.write(batch_of(messages))
        writer.close()
        model = output.model()
        assert len(model) > 3
        entries = [entry for content in model for entry in content.entries]
        files = IndexFiles(output.root / "index", layout)
        for end in (*rng.sample([message.offset for message in messages], 8), None):
            key_hash, count = rng.choice(entries)[0], rng.choice((1, 3, 1000))
            found = files.query_offset(b"T#" + key_with_hash(key_hash), count, 0, 1 << 62, end)
            expected = [
                offset
                for each, offset, *_ in reversed(entries)
                if each == key_hash and (end is None or offset < end)
            ]
            assert list(found.phy_offsets) == expected[:count], f"seed={seed} case={case}"


def test_a_time_at_which_a_file_begins_is_looked_for_in_the_one_before(tmp_path: Path) -> None:
    """Messages of one millisecond may be in several files; of a later time none is in older
    ones."""
    layout, at, before = IndexLayout(3, 4), 1_700_000_000_000, None
    for number in range(3):
        file = MappedIndexFile.create(tmp_path / f"{int(NAME) + number}", layout, before)
        offsets = 3 * number + np.arange(3)
        assert file.put(offsets, np.zeros(3, np.int32), np.full(3, at)) == 3
        before = file.header
        file.close()
    files = IndexFiles(tmp_path, layout)
    key = b"T#" + key_with_hash(0)
    assert files.query_offset(key, 64, at, at).phy_offsets == tuple(reversed(range(9)))
    assert files.query_offset(key, 64, at + 1, at + 5000).phy_offsets == ()


def test_a_query_without_files_finds_nothing(tmp_path: Path) -> None:
    """No directory yet."""
    found = IndexFiles(tmp_path / "index", IndexLayout()).query_offset(b"T#k", 10, 0, 1 << 62)
    assert (found.phy_offsets, found.index_last_update_timestamp) == ((), 0)


def test_the_first_message_is_that_of_the_oldest_file(tmp_path: Path) -> None:
    """By its header and its first entry, of which the lower one counts."""
    layout = IndexLayout(2, 4)
    files = IndexFiles(tmp_path, layout)
    assert files.first_phy_offset() is None
    for name, begin, entry in (("20200101000000000", 700, 500), ("20200102000000000", 1, 1)):
        data = bytearray(layout.file_size)
        struct.pack_into(">q", data, 16, begin)
        struct.pack_into(">iq", data, layout.entry_position(1), 7, entry)
        (tmp_path / name).write_bytes(data)
    assert IndexFiles(tmp_path, layout).first_phy_offset() == 500
    data = bytearray((tmp_path / "20200101000000000").read_bytes())
    struct.pack_into(">q", data, 16, 300)
    (tmp_path / "20200101000000000").write_bytes(data)
    assert IndexFiles(tmp_path, layout).first_phy_offset() == 300
    # what a full disk leaves of a copy; a pipe of such a name is none
    for length in (0, 8, 39):
        (tmp_path / "20200101000000000").write_bytes(data[:length])
        assert IndexFiles(tmp_path, layout).first_phy_offset() == 0
    os.mkfifo(tmp_path / "20190101000000000")
    (tmp_path / "20180101000000000").mkdir()
    assert IndexFiles(tmp_path, layout).first_phy_offset() == 0
    assert len(IndexFiles(tmp_path, layout).named_paths()) == 2


def test_a_damaged_chain_ends(tmp_path: Path, seed: int) -> None:
    """Random bytes in slots and entries: a query comes back, with no more than it may."""
    rng = random.Random(seed)
    layout = IndexLayout(2, 30)
    path = tmp_path / NAME
    MappedIndexFile.create(path, layout, None).close()
    for _ in range(200):
        small = struct.pack(">i", rng.choice((1, 2, 3, 29, 30, 31, 1 << 30)))
        data = bytearray(
            b"".join(rng.choice((small, bytes(4))) for _ in range(layout.file_size // 4))
        )
        data[:40] = IndexHeader(0, 1 << 60, 0, 9, 2, rng.choice((2, 20, 1 << 30))).encode()
        path.write_bytes(data)
        found = IndexFiles(tmp_path, layout).query_offset(b"", 64, 0, 1 << 62)
        assert len(found.phy_offsets) <= 29


def test_space_is_there_before_it_is_mapped(tmp_path: Path) -> None:
    """Creation takes the blocks of slots, a put those of entries; also in a sparse file."""
    layout = IndexLayout(1000, 10_000)
    path = tmp_path / NAME
    for _ in range(2):
        file = MappedIndexFile.create(path, layout, None)
        assert layout.entry_position(1) <= path.stat().st_blocks * 512 < layout.file_size
        zeros = np.zeros(2, np.int64)
        file.put(zeros, zeros.astype(np.int32), zeros)
        assert path.stat().st_blocks * 512 >= layout.file_size
        file.close()
        os.truncate(path, 0)
        os.truncate(path, layout.file_size)
        assert path.stat().st_blocks == 0


def test_a_slot_beyond_the_last_entry_leads_nowhere(tmp_path: Path) -> None:
    """RocketMQ takes no slot whose number is greater than indexCount: what stands there is left
    from before a cut."""
    layout, path = IndexLayout(1, 10), tmp_path / NAME
    file = MappedIndexFile.create(path, layout, None)
    times = np.full(2, 1_700_000_000_000)
    file.put(np.array([100, 200]), np.full(2, 3, np.int32), times)
    file.close()
    key = b"T#" + key_with_hash(3)
    assert IndexFiles(tmp_path, layout).query_offset(key, 9, 0, 1 << 62).phy_offsets == (200, 100)
    data = bytearray(path.read_bytes())
    struct.pack_into(">iqii", data, layout.entry_position(5), 3, 777, 0, 2)
    for slot, found in (
        (5, ()),
        (9, ()),
        (10, ()),
        (-1, ()),
        (0, ()),
        (2, (200, 100)),
        (1, (100,)),
    ):
        struct.pack_into(">i", data, 40, slot)
        path.write_bytes(data)
        result = IndexFiles(tmp_path, layout).query_offset(key, 9, 0, 1 << 62)
        assert result.phy_offsets == found, slot


def test_an_entry_of_zeros_is_lost_unless_it_is_the_logs_first(tmp_path: Path) -> None:
    """A key of the first message may hash to 0, and is in the first second of the file."""
    layout, path = IndexLayout(2, 10), tmp_path / NAME
    file = MappedIndexFile.create(path, layout, None)
    assert file.first_lost_entry() is None
    times = np.full(4, 1_700_000_000_000)
    file.put(np.array([0, 0, 100, 200]), np.array([0, 4, 0, 6], np.int32), times)
    assert file.first_lost_entry() is None
    file.close()
    for number in (4, 3, 2):
        data = bytearray(path.read_bytes())
        start = layout.entry_position(number)
        data[start : start + 20] = bytes(20)
        path.write_bytes(data)
        file = MappedIndexFile(path, layout)
        assert file.first_lost_entry() == number
        file.close()


def test_a_restored_file_has_zeros_where_no_entry_is(tmp_path: Path) -> None:
    """Entry 0 is none, and what follows the last one is nothing, as in a file that RocketMQ has
    just filled so far."""
    layout, path, fresh = IndexLayout(3, 10), tmp_path / NAME, tmp_path / "fresh"
    times = np.array([1_700_000_000_000, 1_700_000_005_000])
    parts = np.array([100, 200]), np.array([4, 7], np.int32), times
    for place in (path, fresh):
        file = MappedIndexFile.create(place, layout, None)
        assert file.put(*parts) == 2
        file.close()
    data = bytearray(path.read_bytes())
    for number in (0, 3, 9):
        start = layout.entry_position(number)
        data[start : start + 20] = b"\7" * 20
    data[:52] = bytes(52)
    path.write_bytes(data)
    file = MappedIndexFile(path, layout)
    kept = file.sound_entries(1 << 40, 3)
    file.restore(kept, None, dict(zip((100, 200), times.tolist(), strict=True)).get)
    file.close()
    assert path.read_bytes() == fresh.read_bytes()
