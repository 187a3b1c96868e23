"""Damage of the log beside queues and index that were built before: everything else is compared.

RocketMQ's own stores, without a watermark, and outputs; damage in the middle of the first file,
zeros, a missing file, a body that differs from its CRC, and a torn tail. What could not be compared
is counted against RocketMQ's own bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.errors import CommitLogError
from reput.store.log.record import Record
from reput.store.state.built import settings_of
from reput.upkeep.verify.run import Verification, verify
from tests.support.derived_output import DerivedOutput
from tests.support.golden import log_records, unpack_golden
from tests.support.index_model import read_content
from tests.support.wire import UNIT, file_name

BATCH_UNIT_SIZE = 46
Range = tuple[int, int]


class DamagedLog:
    """A store whose log is damaged at chosen records."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.log = store / "commitlog"
        self.records = log_records(store)
        self.file_size = next(self.log.iterdir()).stat().st_size
        self.lost: list[Range] = []
        """The damaged ranges, in order."""
        self.reasons: list[str] = []

    def _write(self, offset: int, data: bytes) -> None:
        with (self.log / file_name(offset - offset % self.file_size)).open("r+b") as file:
            file.seek(offset % self.file_size)
            file.write(data)

    def _lose(self, reason: str, start: int, end: int) -> None:
        self.reasons.append(reason)
        self.lost.append((start, end))

    def overwrite(self, records: list[Record], reason: str, data: bytes = b"\xff") -> None:
        """Write one byte all over records that follow each other."""
        start, end = records[0].physical_offset, _end(records[-1])
        self._write(start, data * (end - start))
        self._lose(reason, start, end)

    def file_of(self, number: int) -> list[Record]:
        """The records of a file."""
        start = number * self.file_size
        inside = range(start, start + self.file_size)
        return [one for one in self.records if one.physical_offset in inside]

    def remove(self, number: int) -> None:
        """Remove a file."""
        start = number * self.file_size
        (self.log / file_name(start)).unlink()
        self._lose("segment_deleted", start, start + self.file_size)

    def tear(self) -> None:
        """The last record lacks its end."""
        last = self.records[-1]
        self._write(_end(last) - 20, bytes(20))
        start = last.physical_offset
        self._lose("torn_tail", start, start - start % -self.file_size)

    def verify(self, output: Path | None = None, *, verify_crc: bool = False) -> Verification:
        """Compare."""
        root = output or self.store
        settings = settings_of(root, read_store_settings(self.store))
        return verify(replace(settings, verify_crc=verify_crc), root)

    def is_lost(self, offset: int) -> bool:
        """Whether the record at an offset is in a damaged range."""
        return any(start <= offset < end for start, end in self.lost)

    def units(self, root: Path | None = None) -> list[int]:
        """The physical offsets of all units of messages, RocketMQ's or an output's."""
        found, self.blanks = [], 0
        for tree, size in (("consumequeue", UNIT.size), ("batchconsumequeue", BATCH_UNIT_SIZE)):
            for path in (root or self.store).glob(f"{tree}/*/*/*"):
                data = path.read_bytes()
                for at in range(0, len(data) - size + 1, size):
                    offset, length = struct.unpack_from(">qi", data, at)
                    if 0 < length < 2147483647:
                        found.append(offset)
                    self.blanks += length == 2147483647
        return found

    def entries(self) -> list[int]:
        """The physical offsets of all entries of the index."""
        sizes = read_store_settings(self.store)
        layout = sizes.max_hash_slot_num, sizes.max_index_num
        paths = sorted(self.store.glob("index/*"))
        return [entry[1] for path in paths for entry in read_content(path, *layout).entries]

    def assert_reported(self, found: Verification) -> None:
        """The damage is named, by places that exist, and everything else was compared."""
        assert [(one.physical_offset, one.end_physical_offset) for one in found.damage] == self.lost
        assert [one.reason for one in found.damage] == self.reasons
        for one in found.damage:
            start = one.physical_offset - one.physical_offset % self.file_size
            path = self.log / file_name(start)
            assert one.path == (str(path) if path.exists() else None)
        for offsets, compared, unseen in (
            (self.units(), found.units, found.unseen_units),
            (self.entries(), found.index_entries, found.unseen_index_entries),
        ):
            lost = sum(map(self.is_lost, offsets))
            # a blank before a queue's first unit is compared, where nothing of it is lost
            assert compared - (len(offsets) - lost) in range(self.blanks + 1)
            assert unseen == lost

    def spoil_a_unit(self, root: Path) -> tuple[str, int]:
        """One unit of a sound message beyond the first damage leads elsewhere; its place."""
        for path in sorted((root / "consumequeue").glob("*/*/*")):
            data = path.read_bytes()
            for at in range(0, len(data), UNIT.size):
                offset, size, tags = UNIT.unpack_from(data, at)
                if size > 0 and offset > self.lost[0][1] and not self.is_lost(offset):
                    spoilt = data[:at] + UNIT.pack(offset + 1, size, tags) + data[at + UNIT.size :]
                    path.write_bytes(spoilt)
                    return str(path.relative_to(root)), at
        raise AssertionError("no unit follows the damage")


def _end(record: Record) -> int:
    return record.physical_offset + record.total_size


def _damage_all(log: DamagedLog) -> None:
    first, files = log.file_of(0), log.records[-1].physical_offset // log.file_size + 1
    log.overwrite(first[5:12], "bad_magic")
    log.overwrite(first[40:41], "bad_magic")
    log.remove(1)
    if files > 3:
        log.overwrite(log.file_of(2)[7:20], "zero_hole", b"\0")
    log.overwrite(log.file_of(files - 1)[3:5], "bad_magic")
    log.tear()


def _damage_the_first(log: DamagedLog) -> None:
    log.overwrite(log.records[:9], "bad_magic")


def _remove_the_first_after_damage(log: DamagedLog) -> None:
    log.overwrite(log.file_of(0)[-2:-1], "bad_magic")
    log.remove(1)


@pytest.mark.parametrize(
    "name", ["plain", "mixed", "ext", "batch", "lmq", "killed", "wide", "queues-5.5.1"]
)
@pytest.mark.parametrize("damage", [_damage_all, _damage_the_first, _remove_the_first_after_damage])
def test_the_rest_of_a_brokers_store_is_compared(
    ram_path: Path, name: str, damage: Callable[[DamagedLog], None]
) -> None:
    """All of it is right; then one unit is not, and it alone is named."""
    log = DamagedLog(unpack_golden(name, ram_path))
    damage(log)
    found = log.verify()
    assert found.differences == ()
    log.assert_reported(found)
    place = log.spoil_a_unit(log.store)
    assert [(one.path, one.position) for one in log.verify().differences] == [place]


@pytest.mark.parametrize("name", ["plain", "mixed", "ext", "batch"])
def test_a_queue_of_which_nothing_is_sound(ram_path: Path, name: str) -> None:
    """Its units and ext units are taken as they are, and counted."""
    log = DamagedLog(unpack_golden(name, ram_path))
    queues: dict[tuple[bytes, int], list[Record]] = {}
    for record in log.records:
        queues.setdefault((record.topic, record.queue_id), []).append(record)
    for record in min(queues.values(), key=len):
        log.overwrite([record], "bad_magic")
    found = log.verify()
    assert found.differences == ()
    assert found.unseen_units == sum(map(log.is_lost, log.units()))


@pytest.mark.parametrize("name", ["plain", "mixed", "ext", "batch", "lmq"])
def test_a_log_that_lost_its_front_as_well(ram_path: Path, name: str) -> None:
    """The first files are expired, which is no damage; the first that is left is damaged."""
    log = DamagedLog(unpack_golden(name, ram_path))
    (log.log / file_name(0)).unlink()
    log.overwrite(log.file_of(1)[:15], "bad_magic")
    log.overwrite(log.file_of(2)[3:9], "zero_hole", b"\0")
    found = log.verify()
    assert found.differences == ()
    assert [(one.physical_offset, one.end_physical_offset) for one in found.damage] == log.lost
    place = log.spoil_a_unit(log.store)
    assert [(one.path, one.position) for one in log.verify().differences] == [place]


def test_a_body_that_differs_from_its_crc(ram_path: Path) -> None:
    """It is damage where CRCs are compared, and a message as any other elsewhere."""
    log = DamagedLog(unpack_golden("plain", ram_path))
    record = log.records[100]
    assert record.body is not None
    body = record.physical_offset + 88
    log._write(body, bytes([record.body[0] ^ 1]))
    found = log.verify()
    assert (found.damage, found.differences) == ((), ())
    log._lose("bad_body_crc", record.physical_offset, _end(record))
    found = log.verify(verify_crc=True)
    assert found.differences == ()
    log.assert_reported(found)


@pytest.mark.parametrize("name", ["plain", "ext", "batch"])
def test_queues_that_were_built_beside_the_damage(ram_path: Path, name: str) -> None:
    """They have no units of it, and what nobody has listed is reported once more."""
    output = DerivedOutput.unpack(name, ram_path)
    log = DamagedLog(output.store)
    log.overwrite(log.file_of(0)[5:12], "bad_magic")
    log.remove(1)
    output.start()
    listed = output.verify()
    assert (listed.damage, listed.differences) == ((), ())
    for path in output.state.iterdir():
        if path.name in ("watermark", "quarantine.jsonl"):
            path.unlink()
    found = log.verify(output.root)
    assert found.differences == ()
    assert [(one.physical_offset, one.end_physical_offset) for one in found.damage] == log.lost
    assert (found.unseen_units, found.unseen_index_entries) == (0, 0)
    assert (found.units, found.index_entries) == (len(log.units(output.root)), listed.index_entries)


def test_damage_after_the_dispatch(ram_path: Path) -> None:
    """An output is compared in the same way, and neither repaired nor sealed meanwhile."""
    output = DerivedOutput.build("plain", ram_path)
    log = DamagedLog(output.store)
    log.overwrite(log.file_of(1)[5:12], "bad_magic")
    found = output.verify()
    assert found.differences == ()
    log.assert_reported(found)
    place = log.spoil_a_unit(output.root)
    assert [(one.path, one.position) for one in output.verify().differences] == [place]
    for dry_run in (True, False):
        with pytest.raises(CommitLogError, match="nothing was cut"):
            verify(output.settings(), output.root, repair=True, dry_run=dry_run)
    assert len(output.verify(sealed=True).damage) == 1
    assert not (output.state / "seal.json").exists()


def test_a_torn_tail_of_a_log_that_grows(ram_path: Path) -> None:
    """A record that is whole when it is looked at again is none."""
    log = DamagedLog(unpack_golden("plain", ram_path))
    last = log.records[-1]
    path = log.log / file_name(last.physical_offset - last.physical_offset % log.file_size)
    whole = path.read_bytes()
    log.tear()
    assert [one.reason for one in log.verify().damage] == ["torn_tail"]

    settings = read_store_settings(log.store)
    found = verify(settings, log.store, show=lambda _: path.write_bytes(whole) and None)
    assert found.damage == ()
