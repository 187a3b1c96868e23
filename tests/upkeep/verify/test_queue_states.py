"""Queues, exts and index files in rare states, as they are compared and healed.

An empty file after a full one, messages that have no unit, ext units of messages that are gone,
index files that a killed repair has begun to remove.
"""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest

from reput.upkeep.verify.difference import Damage
from reput.upkeep.verify.repairplan import planned_changes
from reput.upkeep.verify.run import verify
from tests.streaming.test_begin_again import QUEUE_FILE_SIZE, Site, batch_site
from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree
from tests.support.grown_log import GrownLog
from tests.support.operations import before_operations
from tests.support.sealed import Sealed
from tests.support.wire import UNIT, file_name
from tests.upkeep.verify.test_rules import kinds

MIN_LONG = -(1 << 63)
MAX_EXT_UNIT_SIZE = (1 << 15) - 1
"""RocketMQ states the size of an ext unit in a short (formats.md)."""
SPARE = QUEUE_FILE_SIZE // UNIT.size


def filled(directory: Path, count: int) -> tuple[Site, Path]:
    """So many messages of one queue, and the queue's directory."""
    site = Site(directory)
    site.put("Orders", range(count))
    site.write()
    site.output.start()
    return site, site.output.root / "consumequeue" / "Orders" / "0"


@pytest.mark.parametrize(
    ("count", "files", "strays"),
    [
        (SPARE, {SPARE: QUEUE_FILE_SIZE}, []),
        (SPARE, {SPARE: QUEUE_FILE_SIZE - 1}, [SPARE]),
        (SPARE - 1, {SPARE: QUEUE_FILE_SIZE}, [SPARE]),
        (SPARE, {2 * SPARE: QUEUE_FILE_SIZE}, [2 * SPARE]),
        (SPARE, {SPARE: QUEUE_FILE_SIZE, 2 * SPARE: QUEUE_FILE_SIZE}, [2 * SPARE]),
    ],
)
def test_an_empty_file_belongs_after_a_full_one_alone(
    tmp_path: Path, count: int, files: dict[int, int], strays: list[int]
) -> None:
    """RocketMQ makes it for a message that it then drops (formats.md §5): one, of the right
    size."""
    site, queue = filled(tmp_path, count)
    for unit, size in files.items():
        (queue / file_name(unit * UNIT.size)).write_bytes(bytes(size))
    found = site.output.verify(repair=True).differences
    assert [(one.damage, one.path.rpartition("/")[2]) for one in found] == [
        (Damage.FILE, file_name(unit * UNIT.size)) for unit in strays
    ]
    assert site.output.verify().differences == ()


def test_an_empty_file_is_no_queue(tmp_path: Path) -> None:
    """No full file is before it: the queue has never had a message."""
    site, queue = filled(tmp_path, SPARE)
    other = queue.parent / "7" / file_name(0)
    other.parent.mkdir()
    other.write_bytes(bytes(QUEUE_FILE_SIZE))
    assert [one.path for one in site.output.verify().differences] == [
        str(other.relative_to(site.output.root))
    ]


@pytest.mark.parametrize("is_last", [False, True])
def test_a_file_of_the_only_queue_that_was_cut_is_damage(tmp_path: Path, *, is_last: bool) -> None:
    """Its other files show that the size which is set is the right one."""
    site, queue = filled(tmp_path, 3 * SPARE)
    before = tree(queue)
    path = (max if is_last else min)(queue.iterdir())
    path.write_bytes(path.read_bytes()[:-5])
    found = site.output.verify(repair=True).differences
    assert {(one.damage, one.path) for one in found} >= {
        (Damage.FILE_SIZE, str(path.relative_to(site.output.root)))
    }
    assert site.output.verify().differences == ()
    site.output.start()
    assert tree(queue) == before


@pytest.mark.parametrize("is_batch", [False, True])
def test_lines_about_messages_without_a_unit_are_missed(tmp_path: Path, *, is_batch: bool) -> None:
    """Offsets that were seen before, and a queue that no directory can have: where the ledger is
    lost, a verification says what it lacks, for both kinds of queues."""
    site = batch_site(tmp_path) if is_batch else Site(tmp_path)
    site.put("Orders", range(6))
    site.put("Orders", range(2, 4))
    site.plain.append(topic=b"Orders", queue_id=-1, store_timestamp=1_000_000 + site.plain.end)
    site.write()
    site.output.start()
    assert site.output.verify().differences == ()
    ledger = site.output.state / "quarantine.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    # a batch queue takes any offset
    assert len(lines) == (1 if is_batch else 3)
    ledger.write_bytes(b"")
    found = site.output.verify(repair=True).differences
    assert [one.damage for one in found] == len(lines) * [Damage.LINE]
    assert sorted(ledger.read_bytes().splitlines(keepends=True)) == sorted(lines)


def test_all_queues_are_counted(ram_path: Path, seed: int) -> None:
    """Queues of which the log has no message any more are among them."""
    log = GrownLog(ram_path / "store", random.Random(seed), ext=False)
    log.plain.append(topic=b"Old", store_timestamp=1)
    log.grow(60)
    output = DerivedOutput(log.root, ram_path / "output")
    output.start()
    queues = [*output.root.glob("consumequeue/*/*"), *output.root.glob("batchconsumequeue/*/*")]
    assert output.verify().queues == len(queues) > 4
    min((log.root / "commitlog").iterdir()).unlink()
    assert output.verify().queues == len(queues)


def test_ext_files_of_a_queue_that_never_was_do_not_belong(ram_path: Path, seed: int) -> None:
    """No unit leads there; a repair removes them with their directories' files."""
    log = GrownLog(ram_path / "store", random.Random(seed), ext=True)
    log.grow(20)
    output = DerivedOutput(log.root, ram_path / "output")
    output.start()
    stray = output.root / "consumequeue_ext" / "Nowhere" / "0" / file_name(0)
    stray.parent.mkdir(parents=True)
    shutil.copy(next(output.root.glob("consumequeue_ext/A/*/*")), stray)
    found = output.verify(repair=True).differences
    assert [(one.kind, one.topic, one.damage) for one in found] == [
        ("consumequeue_ext", "Nowhere", Damage.FILE)
    ]
    assert not stray.exists()
    assert output.verify().differences == ()


def test_an_ext_is_cut_with_its_queue(ram_path: Path) -> None:
    """After the last unit to which the queue still leads: the next run writes on there."""
    output = DerivedOutput.build("ext", ram_path)
    path = output.root / "consumequeue" / "Topic_0" / "0" / file_name(0)
    ext = output.root / "consumequeue_ext" / "Topic_0" / "0" / file_name(0)
    data = bytearray(path.read_bytes())
    address = UNIT.unpack_from(data, 5 * UNIT.size)[2] - MIN_LONG
    data[5 * UNIT.size] ^= 1
    path.write_bytes(data)
    before = ext.read_bytes()
    assert any(before[address:])
    output.verify(repair=True)
    assert ext.read_bytes()[:address] == before[:address]
    assert not any(ext.read_bytes()[address:])
    output.start()
    assert output.unequal() == []


@pytest.mark.parametrize("more", [0, 1, 19, 20, MAX_EXT_UNIT_SIZE])
def test_a_long_range_of_gone_ext_units_is_healed_in_whole_units(ram_path: Path, more: int) -> None:
    """No unit is shorter than 20 bytes, nor longer than a short can say."""
    output = DerivedOutput.unpack("ext", ram_path)
    with (output.store / "broker.conf").open("a") as conf:
        conf.write("mappedFileSizeConsumeQueueExt=131072\n")
    output.start()
    logs = sorted((output.store / "commitlog").iterdir())
    logs[0].unlink()
    log_min = int(logs[1].name)
    path = output.root / "consumequeue" / "Topic_0" / "0" / file_name(0)
    ext = output.root / "consumequeue_ext" / "Topic_0" / "0" / file_name(0)
    units = list(UNIT.iter_unpack(path.read_bytes()))
    first = next(at for at, unit in enumerate(units) if unit[0] >= log_min)
    address, size = units[first][2] - MIN_LONG, len(ext.read_bytes())
    broken = MAX_EXT_UNIT_SIZE + more
    last_gone = struct.pack(">hqqh", 20, 0, 0, 0)
    live = ext.read_bytes()[address:].rstrip(b"\0")
    ext.write_bytes((bytes(broken) + last_gone + live).ljust(size, b"\0"))
    moved = broken + len(last_gone) - address
    for at, unit in enumerate(units):
        if at >= first and unit[2] < 0:
            units[at] = (*unit[:2], unit[2] + moved)
    units[first - 1] = (*units[first - 1][:2], MIN_LONG + broken)
    path.write_bytes(b"".join(UNIT.pack(*unit) for unit in units))
    (found,) = output.verify(repair=True).differences
    assert (found.damage, found.position, found.found) == (Damage.EXPIRED, 0, (broken,))
    assert output.verify().differences == ()
    after, at, sizes = ext.read_bytes(), 0, []
    assert after[broken:].rstrip(b"\0") == last_gone + live
    while at < broken:
        sizes.append(struct.unpack_from(">h", after, at)[0])
        at += sizes[-1]
    assert at == broken and min(sizes) >= 20


def test_index_files_are_removed_the_newest_first(ram_path: Path) -> None:
    """From the first damaged one on, as a dry run says: a repair that is killed leaves none of
    which an earlier one is gone."""
    output = DerivedOutput.build("mixed", ram_path)
    files = sorted((output.root / "index").iterdir())
    assert len(files) > 2
    for path in files[1:]:
        data = bytearray(path.read_bytes())
        data[output.layout.entry_position(2)] ^= 1
        path.write_bytes(data)
    dry = verify(output.settings(), output.root, repair=True, dry_run=True)
    changes = {one.place: one.change for one in planned_changes(dry.differences, dry.replay_from)}
    assert changes["index"] == f"its files from {files[1].name} on are removed"
    removed: list[str] = []

    def note(operation: str, path: str) -> None:
        if operation == "unlink" and Path(path).parent.name == "index":
            removed.append(Path(path).name)

    with before_operations(note):
        output.verify(repair=True)
    assert removed == [path.name for path in reversed(files[1:])]
    output.start()
    assert output.unequal() == []


def test_an_index_is_built_anew_from_where_the_log_begins(ram_path: Path) -> None:
    """The log has lost the place where it once began."""
    output = DerivedOutput.build("mixed", ram_path)
    logs = sorted((output.store / "commitlog").iterdir())
    logs[0].unlink()
    shutil.rmtree(output.root / "index")
    found = output.verify(repair=True)
    assert found.replay_from == int(logs[1].name)
    before = (output.state / "quarantine.jsonl").exists()
    output.start()
    assert (output.state / "quarantine.jsonl").exists() == before
    assert output.verify().differences == ()


def test_a_repair_records_the_settings_of_what_it_cuts(ram_path: Path) -> None:
    """They were read from bytes that may be gone after it."""
    output = DerivedOutput.build("plain", ram_path)
    path = output.state / "built.json"
    whole = path.read_bytes()
    path.unlink()
    queue = output.files()["consumequeue"][0]
    queue.write_bytes(b"damaged!" + queue.read_bytes()[8:])
    verify(output.settings(), output.root, repair=True, dry_run=True)
    assert not path.exists()
    assert kinds(output) == {("consumequeue", Damage.UNIT)}
    output.verify(repair=True)
    assert path.read_bytes() == whole


def test_both_slots_of_a_sealed_outputs_watermark_lost(ram_path: Path, seed: int) -> None:
    """It is an output of ours all the same, and compared with the whole log."""
    sealed = Sealed(ram_path, seed)
    path = sealed.output.state / "watermark"
    path.write_bytes(b"\xff" * path.stat().st_size)
    by_seal, by_log = sealed.answers()
    assert by_seal == by_log
    assert isinstance(by_log, tuple) and {one.kind for one in by_log[0]} == {"watermark"}


def test_a_seal_of_another_version_does_not_hold(ram_path: Path, seed: int) -> None:
    """Its checksum does not cover the version."""
    sealed = Sealed(ram_path, seed)
    assert sealed.data.count(b'{"version": 1, ') == 1
    sealed.path.write_bytes(sealed.data.replace(b'{"version": 1, ', b'{"version": 2, '))
    assert sealed.output.verify(sealed=True).seal_end == 0
    assert tree(sealed.output.state)["seal.json"].startswith(b'{"version": 1, ')
