"""ConsumeQueueExt files: read, placed, rebuilt, cut.

Held against the golden store (bytes that RocketMQ wrote with three SQL92 consumers) and against
RocketMQ's own ConsumeQueueExt, driven unit by unit over many small files (formats.md §6).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reput.filters import consumers
from reput.store import configjson
from reput.store.errors import QueueFileError
from reput.store.files import CONSUME_QUEUE_EXT_DIRECTORY
from reput.store.log import java, record
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from reput.store.queue import consumequeueext
from reput.store.queue.consumequeueext import (
    NO_ADDRESS,
    ConsumeQueueExtFiles,
    ExtUnit,
    Placement,
    is_ext_addr,
    place,
    real_offset,
)
from reput.store.queue.unsynced import UnsyncedFiles
from tests.interop import rocketmq
from tests.support.golden import difference
from tests.support.wire import UNIT, file_name

GOLDEN_FILE_SIZE = 49152
GOLDEN_CONSUMERS = {"Topic_0": ["g1", "g2"], "Topic_1": ["g3"]}


def put(files: ConsumeQueueExtFiles, end: int, units: list[ExtUnit], root: Path) -> Placement:
    """Place units of one width and write them."""
    maps = b"".join(unit.bit_map or b"" for unit in units)
    placement = place(
        end,
        files.file_size,
        np.array([unit.tags_code for unit in units], np.int64),
        np.array([unit.msg_store_time for unit in units], np.int64),
        np.frombuffer(maps, np.uint8).reshape(len(units), -1),
    )
    written = UnsyncedFiles()
    files.write(placement, root, written)
    written.close()
    return placement


def stored_units(files: ConsumeQueueExtFiles) -> list[tuple[int, ExtUnit]]:
    return [found for start in files.starts for found in files.units(start)]


def expected_units(root: Path) -> dict[tuple[str, int], list[ExtUnit]]:
    """The ext units that each queue must have, from the log and the filters alone, in log order."""
    document = configjson.read(root / "config" / "consumerFilter.json")
    filters = consumers.from_json(document)
    found: dict[tuple[str, int], list[ExtUnit]] = {}
    log = CommitLog([root / "commitlog"])
    for item in records(log, log.min_offset, LogTail(log).settled()):
        if isinstance(item, Record) and item.dispatched_to_queue:
            topic = item.topic.decode()
            names = filters.names(topic)
            values = {
                name: java.decode(value)
                for key, value in item.property_map.items()
                if (name := java.decode(key)) in names
            }
            unit = ExtUnit(
                record.tags_code(item), item.store_timestamp, filters.bit_map(topic, values)
            )
            found.setdefault((topic, item.queue_id), []).append(unit)
    log.close()
    return found


def test_golden_units_are_what_the_log_and_the_filters_say(golden: Callable[[str], Path]) -> None:
    """Every unit of every queue: tag hash, store time, recomputed bit map; and each is found at
    the address that stands in the queue."""
    root = golden("ext")
    expected = expected_units(root)
    listed = configjson.read(root / "config" / "consumerFilter.json")
    assert listed == json.loads((root / "config" / "consumerFilter.json").read_text())
    total, maps = 0, set()
    found = len(list(root.glob("consumequeue_ext/*/*/*")))
    for (topic, queue_id), units in expected.items():
        directory = root / CONSUME_QUEUE_EXT_DIRECTORY / topic / str(queue_id)
        files = ConsumeQueueExtFiles(directory, GOLDEN_FILE_SIZE)
        assert [unit for _, unit in stored_units(files)] == units
        queue = b"".join(
            path.read_bytes()
            for path in sorted((root / "consumequeue" / topic / str(queue_id)).iterdir())
        )
        addresses = [code for _, size, code in UNIT.iter_unpack(queue) if size]
        assert [files.read(address) for address in addresses] == units
        assert files.read_many(np.array(addresses)) == units
        assert [real_offset(address) for address in addresses] == [
            offset for offset, _ in stored_units(files)
        ]
        # without its last file, in another order, with a tagsCode that is no address
        asked = [*reversed(addresses), NO_ADDRESS, addresses[0] + 1]
        files.path(files.starts[-1]).unlink()
        files.refresh()
        assert files.read(addresses[-1]) is None
        assert files.read_many(np.array(asked)) == [files.read(address) for address in asked]
        total += len(units)
        maps |= {(topic, unit.bit_map) for unit in units}
        assert all((unit.bit_map is None) is (topic not in GOLDEN_CONSUMERS) for unit in units)
    assert (found, total) == (len(expected), sum(map(len, expected.values())))
    assert total > 3000
    assert len(maps) > 8


def test_golden_files_are_rebuilt_byte_for_byte(
    golden: Callable[[str], Path], tmp_path: Path, seed: int
) -> None:
    """From the log's records in order, in random batches, with a cut and a second try between."""
    root, rng = golden("ext"), random.Random(seed)
    output = tmp_path / "out"
    for (topic, queue_id), units in expected_units(root).items():
        directory = output / CONSUME_QUEUE_EXT_DIRECTORY / topic / str(queue_id)
        files = ConsumeQueueExtFiles(directory, GOLDEN_FILE_SIZE)
        end, done, last = 0, 0, NO_ADDRESS
        while done < len(units):
            batch = units[done : done + rng.randrange(1, 200)]
            placement = put(files, end, batch, output)
            if last != NO_ADDRESS and rng.random() < 0.4:
                # killed before the queue's units were written: cut, and the same batch again
                files = ConsumeQueueExtFiles(directory, GOLDEN_FILE_SIZE)
                assert files.truncate_by_max_address(last) == end
                continue
            end, done, last = placement.end, done + len(batch), int(placement.addresses[-1])
    theirs = root / CONSUME_QUEUE_EXT_DIRECTORY
    assert difference(output / CONSUME_QUEUE_EXT_DIRECTORY, theirs) == []


class Scenario:
    """Random units for both implementations: lines for RocketMQ, files for ours."""

    def __init__(self, seed: int, root: Path, file_size: int) -> None:
        self.rng = random.Random(seed)
        self.root = root
        self.files = ConsumeQueueExtFiles(root / "topic" / "0", file_size)
        self.end = 0
        self.addresses: list[int] = []
        self.lines: list[str] = []
        self.told: list[str] = []

    def say(self, line: str, answer: str) -> None:
        self.lines.append(line)
        self.told.append(answer)

    def put_some(self) -> None:
        rng, width = self.rng, self.rng.choice((0, 0, 14, 27, 27, 60))
        units = [
            ExtUnit(
                rng.choice((0, -1, 2598919, -(1 << 31), rng.randrange(1 << 41))),
                rng.randrange(1 << 41),
                rng.randbytes(width) or None,
            )
            for _ in range(rng.randrange(1, 30))
        ]
        placement = put(self.files, self.end, units, self.root)
        self.end = placement.end
        for unit, address in zip(units, placement.addresses.tolist(), strict=True):
            self.addresses.append(address)
            bits = unit.bit_map.hex() if unit.bit_map else "-"
            self.say(f"put {unit.tags_code} {unit.msg_store_time} {bits}", str(address))

    def say_end(self, line: str) -> None:
        self.say(line, str(self.end - (1 << 63)))

    def read_some(self) -> None:
        wrong = [0, 2598919, -5, self.addresses[-1] + (1 << 30)]
        for address in self.rng.choices(self.addresses, k=10) + wrong:
            if real_offset(address) == 0 and 0 not in self.files.starts:
                continue  # RocketMQ gives the first unit of whatever file is first
            unit = self.files.read(address)
            answer = "-"
            if unit is not None:
                bits = unit.bit_map.hex() if unit.bit_map else "-"
                answer = f"{unit.tags_code} {unit.msg_store_time} {bits}"
            self.say(f"get {address}", answer)


@pytest.mark.usefixtures("release")
@pytest.mark.parametrize("file_size", [100, 137, 1000, 4096])
def test_units_are_placed_as_rocketmq_places_them(
    tmp_path: Path, seed: int, file_size: int
) -> None:
    """Widths change, files roll: the same addresses, the same bytes in the same files."""
    theirs = tmp_path / "theirs"
    scenario = Scenario(seed, tmp_path / "ours", file_size)
    for _ in range(60):
        scenario.put_some()
        scenario.say_end("end")
    scenario.read_some()
    assert rocketmq.ask_ext(theirs, file_size, scenario.lines) == scenario.told
    assert difference(tmp_path / "ours", theirs) == []
    assert len(scenario.files.starts) > 3


@pytest.mark.usefixtures("release")
@pytest.mark.parametrize("file_size", [137, 1000])
def test_recovery_and_truncations_are_those_of_rocketmq(
    tmp_path: Path, seed: int, file_size: int
) -> None:
    """Restarts, cuts after an address, removal before one, appends after each: the same ends,
    addresses, units and files. Not compared: stale bytes, which RocketMQ leaves and we clear."""
    rng = random.Random(seed)
    theirs = tmp_path / "theirs"
    scenario = Scenario(seed, tmp_path / "ours", file_size)
    scenario.put_some()
    for _ in range(4):
        for _ in range(6):
            choice = rng.randrange(4)
            alive = [a for a in scenario.addresses if scenario.files.read(a) is not None]
            address = rng.choice([*alive[len(alive) // 2 :], 1, 2598919])
            if choice == 0:
                # an address of nothing cuts nothing
                end = scenario.files.truncate_by_max_address(address)
                scenario.end = end if is_ext_addr(address) else scenario.end
                scenario.addresses = [a for a in alive if real_offset(a) < scenario.end]
                scenario.say_end(f"max {address}")
            elif choice == 1:
                for start in scenario.files.files_before(address):
                    scenario.files.path(start).unlink()
                    scenario.files.starts.remove(start)
                scenario.say_end(f"min {address}")
            scenario.put_some()
            scenario.read_some()
        answers = rocketmq.ask_ext(theirs, file_size, scenario.lines)
        assert list(zip(scenario.lines, answers, strict=True)) == list(
            zip(scenario.lines, scenario.told, strict=True)
        )
        scenario.lines, scenario.told = [], []
        scenario.files = ConsumeQueueExtFiles(scenario.files.directory, file_size)
        scenario.end = scenario.files.find_end()
        scenario.say_end("recover")
        ours = plain_units(scenario.files.directory)
        found = plain_units(theirs / "topic" / "0")
        assert found[: len(ours)] == ours
        if len(found) > len(ours):
            return  # the ends are equal: stale bytes, which RocketMQ would take up or fail on
        assert len(stored_units(scenario.files)) == len(ours)


def test_the_least_tag_hash_is_no_address() -> None:
    """Integer.MIN_VALUE is the hash of some tag (formats.md §6)."""
    assert not is_ext_addr(-(1 << 31))
    assert is_ext_addr(-(1 << 31) - 1)


def plain_units(directory: Path) -> list[tuple[str, bytes]]:
    """File names and units, by sizes alone as formats.md §6 says; stale bytes may say any size."""
    units = []
    for path in sorted(directory.iterdir()):
        data, at = path.read_bytes(), 0
        while (size := int.from_bytes(data[at : at + 2], signed=True)) > 0:
            units.append((path.name, data[at : at + size]))
            at += size
    return units


def test_a_unit_that_fits_nowhere_has_no_address(tmp_path: Path) -> None:
    """Larger than a file or than a size can say: nothing is written, the queue keeps the tag."""
    files = ConsumeQueueExtFiles(tmp_path / "q", 100)
    assert put(files, 0, [ExtUnit(1, 2, bytes(77))], tmp_path).addresses.tolist() == [NO_ADDRESS]
    assert put(files, 0, [ExtUnit(1, 2, bytes(76))], tmp_path).end == 96
    large = ConsumeQueueExtFiles(tmp_path / "r", 1 << 20)
    assert put(large, 0, [ExtUnit(1, 2, bytes(32748))], tmp_path).addresses[0] == NO_ADDRESS
    assert put(large, 0, [ExtUnit(1, 2, bytes(32747))], tmp_path).end == 32767
    assert not (tmp_path / "q" / file_name(100)).exists()
    limit = consumequeueext.MAX_REAL_OFFSET
    codes = np.arange(3, dtype=np.int64)
    placed = place(limit - 45, 1 << 40, codes, codes, np.empty((3, 0), np.uint8)).addresses
    assert [is_ext_addr(address) for address in placed.tolist()] == [True, True, False]


def test_damage_ends_a_file_without_an_error(tmp_path: Path, seed: int) -> None:
    """Any bytes: units up to the damage, then the end; reading any address gives a unit or None."""
    rng = random.Random(seed)
    for case in range(300):
        directory = tmp_path / str(case)
        files = ConsumeQueueExtFiles(directory, 300)
        put(files, 0, [ExtUnit(index, index, bytes(7)) for index in range(9)], tmp_path)
        path = directory / file_name(0)
        data = bytearray(path.read_bytes())
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(1, 9))
        path.write_bytes(data[:300].ljust(300, b"\0"))
        before = [unit for offset, unit in files.units(0) if offset + unit.size <= at]
        assert before == [ExtUnit(index, index, bytes(7)) for index in range(at // 27)][:9]
        assert 0 <= files.find_end() <= 300
        for offset in range(300):
            files.read(offset - (1 << 63))


def test_a_cut_leaves_zeros(tmp_path: Path) -> None:
    """At every unit over several files: earlier bytes stay, none remain past it."""
    units = [ExtUnit(index, index, bytes((index,)) * 7) for index in range(1, 20)]
    for keep in range(len(units)):
        files = ConsumeQueueExtFiles(tmp_path / str(keep), 100)
        addresses = put(files, 0, units, tmp_path).addresses.tolist()
        whole = plain_units(files.directory)
        end = files.truncate_by_max_address(addresses[keep])
        assert plain_units(files.directory) == whole[: keep + 1]
        assert end == files.find_end() == real_offset(addresses[keep]) + 27
        last = (files.directory / file_name(files.starts[-1])).read_bytes()
        assert not any(last[end - files.starts[-1] :])
        assert files.read(addresses[-1]) == (units[-1] if keep == len(units) - 1 else None)
    files.clear_from(0)
    assert list(files.directory.iterdir()) == []
    assert (files.find_end(), files.starts) == (0, [])


def test_a_file_of_another_size_is_named(tmp_path: Path) -> None:
    """The path, the size found and the setting are in the error."""
    files = ConsumeQueueExtFiles(tmp_path / "q", 100)
    put(files, 0, [ExtUnit(1, 2, None)], tmp_path)
    (tmp_path / "q" / file_name(100)).touch()
    (tmp_path / "q" / "notes").write_bytes(b"x")
    assert ConsumeQueueExtFiles(tmp_path / "q", 100).starts == [0]
    with pytest.raises(QueueFileError, match="100 bytes but mappedFileSizeConsumeQueueExt is 200"):
        ConsumeQueueExtFiles(tmp_path / "q", 200)
