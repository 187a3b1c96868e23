"""A verification calls only damage damage, and finds damage that needs more than one look.

RocketMQ's own repetitions, an index that began later, a log that lost its front, lost positions, a
ledger, a killed repair.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from reput.checkpoints.watermark import WatermarkFile
from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import CommitLogError, IndexFileError, ReputError, StoreError, UsageError
from reput.store.runs.dispatch import DispatchBatch
from reput.store.state.built import record_build, settings_of
from reput.store.state.watermark import read_watermark
from reput.upkeep.expiry import expire
from reput.upkeep.verify.difference import Damage
from reput.upkeep.verify.run import verify
from tests.support.derived_output import DerivedOutput
from tests.support.file_damage import damage_file
from tests.support.golden import log_records
from tests.support.outputs import Output, QueueLog, Setup
from tests.support.processes import is_killed_at
from tests.support.wire import UNIT, read_log

Golden = Callable[[str], Path]
MIN_LONG = -(1 << 63)


def half(batch: DispatchBatch) -> int:
    """Where a message in the middle of a batch begins."""
    offsets = sorted({int(offset) for run in batch.runs for offset in run.units["offset"]})
    return offsets[len(offsets) // 2]


def went_on(directory: Path) -> tuple[DerivedOutput, bytes]:
    """An output of two runs, and RocketMQ's checkpoint file as the first one left it."""
    output = DerivedOutput.unpack("mixed", directory)
    output.start(part=half)
    older = (output.root / "checkpoint").read_bytes()
    output.start()
    return output, older


def kinds(output: DerivedOutput) -> set[tuple[str, Damage]]:
    return {(found.kind, found.damage) for found in output.verify().differences}


def heal(output: DerivedOutput) -> None:
    """Repair, run, and nothing is left."""
    output.verify(repair=True)
    assert output.verify().differences == ()
    output.start()
    assert output.verify().differences == ()


def test_ext_units_that_nothing_points_to_are_rocketmqs(golden: Golden) -> None:
    """A crash and the dispatch after it leave copies, in between and at the end
    (formats.md §13 no. 4)."""
    store = golden("ext")
    queue = store / "consumequeue" / "Topic_0" / "0" / "0".zfill(20)
    ext = store / "consumequeue_ext" / "Topic_0" / "0" / "0".zfill(20)
    units, data = list(UNIT.iter_unpack(queue.read_bytes())), ext.read_bytes()
    used = [unit for unit in units if unit[1] > 0]
    middle = len(used) // 2
    first, cut = used[middle - 2][2] - MIN_LONG, used[middle][2] - MIN_LONG
    last = used[-1][2] - MIN_LONG
    end = last + struct.unpack_from(">h", data, last)[0]
    orphans, more = data[first:cut], data[last:end]
    moved = data[:cut] + orphans + data[cut:end] + more
    ext.write_bytes(moved.ljust(len(data), b"\0"))
    for index in range(middle, len(used)):
        units[index] = (*units[index][:2], units[index][2] + len(orphans))
    queue.write_bytes(b"".join(UNIT.pack(*unit) for unit in units))
    assert verify(read_store_settings(store), store).differences == ()
    ext.write_bytes((moved[: cut + 3] + b"\7" + moved[cut + 4 :]).ljust(len(data), b"\0"))
    assert verify(read_store_settings(store), store).differences == ()  # whose tag is it?
    ext.write_bytes((moved[: cut + 1] + b"\7" + moved[cut + 2 :]).ljust(len(data), b"\0"))
    (found,) = verify(read_store_settings(store), store).differences
    assert (found.kind, found.damage, found.entry) == ("consumequeue_ext", Damage.UNIT, middle)
    assert (found.path, found.position) == (str(ext.relative_to(store)), cut + len(orphans))
    assert found.physical_offset == used[middle][0]


def test_an_index_entry_that_rocketmq_put_twice(golden: Golden) -> None:
    """It does so with the newest message when it starts after a crash (formats.md §13 no. 5); an
    output of ours has none."""
    store = golden("plain")
    output = DerivedOutput(store, store)
    (content,) = output.index()
    *_, last = content.entries
    repeated = [entry for entry in content.entries if entry[1] == last[1]]
    path = next((store / "index").iterdir())
    data, size = bytearray(path.read_bytes()), 40 + 4 * content.slot_num
    for key_hash, offset, time_diff, _ in repeated:
        slot = key_hash % content.slot_num
        number = content.index_count
        entry = (key_hash, offset, time_diff, content.slots.get(slot, 0))
        content.entries.append(entry)
        content.slots[slot] = number
        struct.pack_into(">iqii", data, size + 20 * number, *entry)
        struct.pack_into(">i", data, 40 + 4 * slot, number)
    struct.pack_into(">i", data, 36, content.index_count)
    path.write_bytes(data)
    assert output.verify().differences == ()
    data[size + 20 * (content.index_count - 1)] ^= 1
    path.write_bytes(data)
    assert kinds(output) == {("index", Damage.STRAY)}


def test_an_index_that_was_switched_on_later(ram_path: Path, seed: int) -> None:
    """Keys before it are no difference; from there on every one must be there."""
    output = DerivedOutput.unpack("mixed", ram_path)
    output.start(index=False, part=half)
    begun = read_watermark(output.state)
    assert begun is not None
    output.start(index=True)
    assert output.verify().differences == ()
    whole = output.index()
    assert 0 < len(whole) < len(output.index(output.store))
    for number in range(len(whole)):
        path = sorted((output.root / "index").iterdir())[number]
        path.unlink()
        found = output.verify()
        assert {d.kind for d in found.differences} == {"index"}, f"{seed=} {path}"
        assert found.replay_from is not None
        assert found.replay_from >= begun.end_offset
        heal(output)
        assert output.index() == whole


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_index_file_is_made_again(ram_path: Path, number: int) -> None:
    """So is the first one, although the index then seems to begin later; those before stay."""
    output = DerivedOutput.build("mixed", ram_path)
    paths = sorted((output.root / "index").iterdir())
    kept = [(path.name, path.stat().st_ino) for path in paths[:number]]
    paths[number].unlink()
    heal(output)
    after = sorted((output.root / "index").iterdir())
    assert [(path.name, path.stat().st_ino) for path in after[:number]] == kept
    assert output.unequal() == []


def test_an_entry_that_no_record_explains(ram_path: Path) -> None:
    """In its chain, its slot and the header it is right: only the log tells."""
    output = DerivedOutput.build("plain", ram_path)
    (content,) = output.index()
    path = next((output.root / "index").iterdir())
    data, number = bytearray(path.read_bytes()), content.index_count
    start = 40 + 4 * content.slot_num
    slot = next(slot for slot in range(content.slot_num) if slot not in content.slots)
    struct.pack_into(">iqii", data, start + 20 * number, slot, content.end_phy_offset, 0, 0)
    struct.pack_into(">i", data, 40 + 4 * slot, number)
    struct.pack_into(">ii", data, 32, content.hash_slot_count + 1, number + 1)
    path.write_bytes(data)
    found = [d for d in output.verify().differences if d.damage is Damage.STRAY]
    assert [(d.path, d.position, d.entry) for d in found] == [
        (f"index/{path.name}", start + 20 * number, number)
    ]
    heal(output)
    assert output.unequal() == []


def test_files_of_another_layout_are_no_damage(ram_path: Path) -> None:
    """Settings that fit no file are said, and nothing is changed."""
    output = DerivedOutput.build("mixed", ram_path)
    before = output.index()
    settings = replace(read_store_settings(output.store), max_hash_slot_num=999)
    with pytest.raises(IndexFileError, match=r"maxHashSlotNum.*broker\.conf"):
        verify(settings, output.root, repair=True)
    assert output.index() == before


def test_messages_beyond_the_watermark_are_let_be(ram_path: Path) -> None:
    """After a crash anything may stand beyond it; entries and units below count, of every kind."""
    for name in ("ext", "batch", "mixed"):
        output = DerivedOutput.build(name, ram_path / name)
        file = WatermarkFile(output.state)
        current = file.current
        assert current is not None
        middle = current.end_offset // 2
        offsets = {offset for c in output.index() for _, offset, _, _ in c.entries}
        lowered = min(offset for offset in offsets if offset > middle)
        file.advance(replace(current, end_offset=lowered, last_record_offset=-1, last_record_crc=0))
        file.close()
        assert output.verify().differences == (), name
        output.start()
        assert output.unequal() == [], name


@pytest.mark.extended
@pytest.mark.parametrize("name", ["mixed", "ext", "batch"])
def test_a_log_that_lost_its_front(ram_path: Path, seed: int, name: str) -> None:
    """Only entries and units of messages that are gone may differ; everything else is as it was,
    after any damage."""
    output, rng = DerivedOutput.build(name, ram_path), random.Random(seed)
    files = sorted((output.store / "commitlog").iterdir())
    for path in files[: len(files) // 2]:
        path.unlink()
    log_min = int(files[len(files) // 2].name)
    output.start()
    assert output.verify().differences == ()

    def entries() -> list[tuple[int, int]]:
        found = [entry for content in output.index() for entry in content.entries]
        return [(key_hash, offset) for key_hash, offset, _, _ in found if offset >= log_min]

    whole = entries()
    for case in range(10):
        place = f"{seed=} {case=}"
        _, paths = rng.choice(sorted(output.files().items()))
        path = rng.choice(paths)
        place += f" {damage_file(rng, path)} of {path.relative_to(output.root)}"
        with suppress(UsageError):
            found = output.verify(repair=True)
            place += f" {found}"
        output.start(adopt=True)
        assert output.verify().differences == (), place
        assert entries() == whole, place


def test_both_slots_of_the_watermark_lost(ram_path: Path) -> None:
    """A start says what to do; a repair compares all, and the position is there again."""
    output = DerivedOutput.build("mixed", ram_path)
    before = read_watermark(output.state)
    assert before is not None
    path = output.state / "watermark"
    path.write_bytes(bytes(20))
    with pytest.raises(StoreError, match=r"watermark is damaged.*reput verify /.* --repair "):
        output.start()
    queue = output.root / "consumequeue"
    lost = next(path for path in sorted(queue.rglob("*")) if path.is_file())
    lost.unlink()
    found = output.verify(repair=True)
    assert {d.kind for d in found.differences} == {"watermark", "consumequeue"}
    after = read_watermark(output.state)
    assert after is not None
    assert after.end_offset == found.replay_from
    output.start()
    assert output.unequal() == []
    after = read_watermark(output.state)
    assert after is not None
    assert after.end_offset == before.end_offset


def test_a_watermark_that_was_lost_comes_back_whole(ram_path: Path) -> None:
    """With nothing else to repair no batch follows that would complete it, and RocketMQ's
    checkpoint is compared with it."""
    output = DerivedOutput.build("batch", ram_path)
    before, checkpoint = read_watermark(output.state), output.root / "checkpoint"
    assert before is not None
    written = checkpoint.read_bytes()
    (output.state / "watermark").write_bytes(bytes(20))
    output.verify(repair=True)
    output.start()
    after = read_watermark(output.state)
    assert after is not None
    kept = {"store_id": before.store_id, "epoch": before.epoch, "sequence": before.sequence}
    assert replace(after, **kept) == before
    assert checkpoint.read_bytes() == written
    checkpoint.write_bytes(written + bytes(20))
    assert kinds(output) == {("checkpoint", Damage.FILE_SIZE)}


def test_an_older_checkpoint_is_no_damage(ram_path: Path) -> None:
    """A killed dispatcher leaves one, of a second before."""
    output, older = went_on(ram_path)
    path = output.root / "checkpoint"
    assert path.read_bytes() != older
    path.write_bytes(older)
    assert output.verify().differences == ()
    path.write_bytes(older[:8] + struct.pack(">q", 1) + older[16:])
    assert kinds(output) == {("checkpoint", Damage.FIELDS)}


def test_a_checkpoint_may_be_as_far_as_the_log_and_no_further(ram_path: Path) -> None:
    """A broker flushes the log before it dispatches: physicMsgTimestamp is then that of a record
    that no queue has yet, and never of one that the log does not have."""
    output = DerivedOutput.unpack("mixed", ram_path)
    output.start(part=half)
    path, last = output.root / "checkpoint", log_records(output.store)[-1].store_timestamp
    written = path.read_bytes()
    assert struct.unpack_from(">q", written)[0] < last
    path.write_bytes(struct.pack(">q", last) + written[8:])
    assert output.verify().differences == ()
    for beyond in (last + 1, (1 << 63) - 1):
        path.write_bytes(struct.pack(">q", beyond) + written[8:])
        assert kinds(output) == {("checkpoint", Damage.FIELDS)}
    heal(output)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["mixed", "ext", "batch"])
def test_a_repair_that_is_killed_is_done_again(ram_path: Path, seed: int, name: str) -> None:
    """Anywhere; every second time a dispatcher runs before the next repair."""
    output, rng = DerivedOutput.build(name, ram_path), random.Random(seed)
    for kind, paths in output.files().items():
        if kind != "watermark":
            damage_file(rng, rng.choice(paths))
    kept = ram_path / "kept"
    output.keep(kept)
    for ordinal in count(rng.choice((1, 2, 3)), 3):
        output.restore(kept)
        killed = is_killed_at(ordinal, lambda: output.verify(repair=True))
        if ordinal % 2:
            with suppress(ReputError):
                output.start()
        heal(output)
        assert output.unequal() == [], f"{seed=} {ordinal=}"
        if not killed:
            assert ordinal > 5
            return


@pytest.mark.extended
def test_a_killed_repair_leaves_no_units_beyond_the_watermark(ram_path: Path) -> None:
    """A batch queue without its first file: what is left of it must not be gone on with."""
    output = DerivedOutput.build("batch", ram_path)
    (first, *_) = output.files()["batchconsumequeue"]
    first.unlink()
    output.keep(ram_path / "kept")
    for ordinal in count(1):
        output.restore(ram_path / "kept")
        killed = is_killed_at(ordinal, lambda: output.verify(repair=True))
        output.verify(repair=True)
        output.start()
        assert output.unequal() == [], ordinal
        if not killed:
            break
    assert ordinal > 5
    assert not (output.state / "abort").exists()


def built(log: QueueLog, root: Path) -> tuple[Setup, StoreSettings]:
    """An output with all of a log."""
    setup = log.setup(root, 200)
    output = Output(setup)
    output.run(log.plain.end)
    output.close()
    directories = setup.log.segments.directories
    return setup, StoreSettings(root, directories, mapped_file_size_consume_queue=200)


def test_the_ledger_is_compared_and_healed(ram_path: Path, seed: int) -> None:
    """Each line: damaged, changed, lost; nothing that was listed is lost unsaid."""
    rng, log = random.Random(seed), QueueLog(200)
    for queue_offset in (0, 1, 2, 7, 8, 3, 20, 21, 4, 30):
        log.append(queue_offset)
    setup, settings = built(log, ram_path)
    assert verify(settings, setup.root).differences == ()
    path = setup.state / "quarantine.jsonl"
    whole = path.read_bytes()
    listed = [json.loads(line) for line in whole.splitlines()]
    assert len(listed) > 3
    for case in range(60):
        path.write_bytes(whole)
        damage = damage_file(rng, path)
        place = f"{seed=} {case=} {damage}"
        data = path.read_bytes() if path.exists() else b""
        # bytes after the last newline are a torn line, which the next writer cuts
        is_damaged = data[: data.rfind(b"\n") + 1] != whole
        found = verify(settings, setup.root, repair=True).differences
        said = {(d.kind, d.damage) for d in found}
        assert said == ({("quarantine.jsonl", Damage.LINE)} if is_damaged else set()), place
        assert verify(settings, setup.root).differences == (), place
        lines = path.read_bytes().split(b"\n")[:-1]  # the part after the last newline is torn
        after = [json.loads(line) for line in lines]
        assert [entry for entry in listed if entry not in after] == [], place


def test_the_place_of_a_wrong_line_is_its_byte(ram_path: Path) -> None:
    """Each line of the ledger is tried."""
    log = QueueLog(200)
    for queue_offset in (0, 7, 3, 20, 4, 30):
        log.append(queue_offset)
    setup, settings = built(log, ram_path)
    path = setup.state / "quarantine.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) > 3
    for number in range(len(lines)):
        path.write_bytes(b"".join([*lines[:number], b"{" + lines[number], *lines[number + 1 :]]))
        (found, _lacking) = verify(settings, setup.root).differences
        assert found.position == len(b"".join(lines[:number]))


@pytest.mark.parametrize("wrong", [b"\xed\xa0\x80", b"\xff", b"\xc3("])
def test_a_line_that_is_no_utf8_is_damaged(ram_path: Path, wrong: bytes) -> None:
    """Python's json takes the half of a surrogate; it is kept as the text of an entry."""
    log = QueueLog(200)
    for queue_offset in (0, 7, 3, 20):
        log.append(queue_offset)
    setup, settings = built(log, ram_path)
    path = setup.state / "quarantine.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"reason": "', b'"reason": "' + wrong, 1))
    assert path.read_bytes() != whole
    found = verify(settings, setup.root, repair=True).differences
    assert {(one.kind, one.damage) for one in found} == {("quarantine.jsonl", Damage.LINE)}
    assert verify(settings, setup.root).differences == ()
    after = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [one for one in map(json.loads, whole.splitlines()) if one not in after] == []
    assert "damaged_ledger_line" in {entry["reason"] for entry in after}


def test_a_lost_ledger_of_a_damaged_log_says_what_to_do(ram_path: Path) -> None:
    """Damage to the log that is not listed may be new: nothing is cut for it."""
    log = QueueLog(200)
    for queue_offset in range(10):
        log.append(queue_offset)
    setup, settings = built(log, ram_path)
    path = next(iter(sorted((ram_path / "commitlog").iterdir())))
    data = bytearray(path.read_bytes())
    data[log.borders()[4] + 4] ^= 1
    path.write_bytes(data)
    with pytest.raises(CommitLogError, match=r"quarantine\.jsonl.*--replay-from earliest"):
        verify(settings, setup.root, repair=True)


@pytest.mark.parametrize("name", ["plain", "mixed", "batch"])
def test_tags_that_are_indexed_from_some_message_on(ram_path: Path, seed: int, name: str) -> None:
    """As RocketMQ 5.5 continues the index of RocketMQ 5.3, wherever it comes to it: sound. A tag
    that is missing afterwards is damage, and so is a key."""
    rng, output = random.Random(seed), DerivedOutput.unpack(name, ram_path)
    offsets = [one.physical_offset for one in log_records(output.store)]
    settings = read_store_settings(output.store)
    untagged = DerivedOutput(output.store, ram_path / "untagged")
    untagged.start()
    tagged = DerivedOutput(output.store, ram_path / "tagged")
    tagged.start(index_tags=True)
    least, most = (one.verify().index_entries for one in (untagged, tagged))
    assert least < most
    for number, end in enumerate((offsets[1], *rng.sample(offsets, 3), offsets[-1])):
        mixed = DerivedOutput(output.store, ram_path / str(number))
        mixed.start(part=lambda _, end=end: end)
        record_build(mixed.root, replace(settings, index_tags=True))
        mixed.start()
        found = mixed.verify()
        assert found.differences == (), f"{seed=} {end=}"
        assert least <= found.index_entries <= most
        (mixed.state / "built.json").unlink()
        assert mixed.verify() == found
    for path, entry in (tagged, most - 1), (mixed, 1):
        damage_entry(path, rng.randrange(1, entry + 1))
        assert len(path.verify().differences) > 0


def damage_entry(output: DerivedOutput, number: int) -> None:
    """Another hash in one entry of the index."""
    for path in output.files()["index"]:
        layout = output.layout
        if number < layout.max_index_num:
            data = bytearray(path.read_bytes())
            data[layout.entry_position(number)] ^= 1
            path.write_bytes(data)
            return
        number -= layout.max_index_num - 1


def test_an_index_that_is_no_longer_built_does_not_say_where_the_log_was_cut(
    ram_path: Path,
) -> None:
    """Switched off by either setting, it may be older than a cut before this one."""
    output = DerivedOutput.build("plain", ram_path)
    layout = output.layout
    for path in output.files()["index"]:
        data = bytearray(path.read_bytes())
        for number in range(1, layout.max_index_num):
            data[layout.entry_position(number)] ^= 1
        path.write_bytes(data)
    offset, record = read_log(output.store / "commitlog")[-1]
    last = max((output.store / "commitlog").iterdir())
    with last.open("r+b") as file:
        file.seek(offset - int(last.name))
        file.write(bytes(len(record)))
    conf = output.store / "broker.conf"
    stated = conf.read_text()
    for setting in ("messageIndexEnable", "indexFileWriteEnable"):
        conf.write_text(f"{stated}\n{setting}=false\n")
        settings = settings_of(output.root, read_store_settings(output.store))
        for look in output.verify, partial(expire, settings, output.root, apply=False):
            with pytest.raises(CommitLogError, match=f"cuts 1 units from {offset} on"):
                look()
