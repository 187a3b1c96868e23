"""The positions of an output in rare states: what is possible for the log is no damage, and what is
not is found.

RocketMQ's checkpoint and the watermark's slots are changed by their documented bytes; the logs are
golden ones, and one whose clock steps back.
"""

from __future__ import annotations

import random
import shutil
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from reput.store.state.watermark import read_watermark
from reput.upkeep.verify.difference import Damage
from tests.support.derived_output import DerivedOutput
from tests.support.golden import log_records
from tests.support.grown_log import FILE_SIZE, GrownLog
from tests.upkeep.test_rewind_listed import LISTED, output_of
from tests.upkeep.verify.test_rules import kinds, went_on

SLOT_SIZE, SLOT_USED = 4096, 80
LOGICS, MASTER_FLUSHED, CONFIRM = 8, 24, 32
"""Bytes of fields of RocketMQ's checkpoint (formats.md)."""


def put(output: DerivedOutput, **fields: int) -> None:
    """Change fields of the checkpoint, named by their constants here."""
    path = output.root / "checkpoint"
    data = bytearray(path.read_bytes())
    for name, value in fields.items():
        struct.pack_into(">q", data, globals()[name], value)
    path.write_bytes(data)


def grown(directory: Path, seed: int, *steps_back: int) -> tuple[GrownLog, list[DerivedOutput]]:
    """A log whose clock was set back by so many seconds, one time after the other, and one output
    of each state."""
    log, outputs = GrownLog(directory / "store", random.Random(seed), ext=False), []
    for number, seconds in enumerate((0, *steps_back)):
        log.back(seconds)
        log.grow(40)
        outputs.append(DerivedOutput(log.root, directory / str(number)))
        outputs[-1].start()
    return log, outputs


@pytest.mark.parametrize("slot", [0, 1])
def test_bytes_after_a_slot_are_found_and_healed(ram_path: Path, slot: int) -> None:
    """So are bytes after the file's end: the watermark has two slots of a page each."""
    output = DerivedOutput.build("plain", ram_path)
    path = output.state / "watermark"
    whole = path.read_bytes()
    assert len(whole) == 2 * SLOT_SIZE
    for at in (SLOT_USED, SLOT_SIZE - 1):
        data = bytearray(whole)
        data[slot * SLOT_SIZE + at] = 1
        path.write_bytes(data)
        (found,) = output.verify().differences
        assert (found.kind, found.damage, found.entry) == ("watermark", Damage.SLOT, slot)
        assert found.position == slot * SLOT_SIZE
    path.write_bytes(whole + b"\0")
    (found,) = output.verify(repair=True).differences
    assert (found.damage, found.expected, found.found) == (
        Damage.FILE_SIZE, (2 * SLOT_SIZE,), (2 * SLOT_SIZE + 1,)
    )  # fmt: skip
    assert output.verify().differences == ()
    assert path.stat().st_size == 2 * SLOT_SIZE


def test_a_master_may_have_flushed_the_log_up_to_its_end(ram_path: Path) -> None:
    """RocketMQ's masterFlushedOffset is where a record starts, or the log's end, and nowhere
    else."""
    output = DerivedOutput.build("plain", ram_path)
    first, *_, last = log_records(output.store)
    end = last.physical_offset + last.total_size
    for offset in (0, first.total_size, last.physical_offset, end):
        put(output, MASTER_FLUSHED=offset)
        assert output.verify().differences == (), offset
    for offset in (1, end - 1, end + 1, -1, 1 << 50):
        put(output, MASTER_FLUSHED=offset)
        assert kinds(output) == {("checkpoint", Damage.FIELDS)}, offset


def test_the_last_record_of_a_killed_run_may_be_in_no_queue(ram_path: Path) -> None:
    """A half message, or one that was rolled back: the message before it tells the time. Of a
    record that is in a queue the time is its own."""
    output = DerivedOutput.build("mixed", ram_path)
    records = log_records(output.store)
    logics, tried = 0, {True: 0, False: 0}
    for before, record in pairwise(records[:-1]):
        if before.dispatched_to_queue:
            logics = before.store_timestamp
        if record.store_timestamp == logics or not logics:
            continue
        put(output, CONFIRM=record.physical_offset, LOGICS=logics)
        is_queued = record.dispatched_to_queue
        if tried[is_queued] < 3:
            tried[is_queued] += 1
            assert kinds(output) == ({("checkpoint", Damage.FIELDS)} if is_queued else set())
    assert min(tried.values()) > 0


def test_a_checkpoint_may_be_older_than_the_log_that_is_left(ram_path: Path) -> None:
    """A killed run leaves one of its last second, and retention takes the record that it names."""
    output, older = went_on(ram_path)
    path = output.root / "checkpoint"
    confirmed = struct.unpack_from(">q", older, CONFIRM)[0]
    for log_file in sorted((output.store / "commitlog").iterdir()):
        size = log_file.stat().st_size
        if int(log_file.name) + size <= confirmed + size:
            log_file.unlink()
    assert min(int(one.name) for one in (output.store / "commitlog").iterdir()) > confirmed
    assert output.verify().differences == ()
    path.write_bytes(older)
    assert output.verify().differences == ()


def test_positions_of_a_log_whose_clock_steps_back(ram_path: Path, seed: int) -> None:
    """The time of the index is that of its last full file, though an earlier one ends later; and a
    checkpoint that is older may hold later times."""
    _, (first, second, third) = grown(ram_path, seed, 3600, 7200)
    for output in (first, second, third):
        assert output.verify().differences == ()
    ends = [content.end_timestamp for content in third.index()]
    assert len(ends) > 3 and ends[-2] < max(ends)
    path = third.root / "checkpoint"
    for older in (first, second):
        path.write_bytes((older.root / "checkpoint").read_bytes())
        assert third.verify().differences == ()


def test_a_watermark_that_was_lost_fits_a_log_whose_clock_steps_back(
    ram_path: Path, seed: int
) -> None:
    """Its time is that of the last message, not the latest of all: the checkpoint, which was right
    before, is so after a repair."""
    _, (_, output) = grown(ram_path, seed, 3600)
    before, path = read_watermark(output.state), output.state / "watermark"
    path.write_bytes(bytes(path.stat().st_size))
    output.verify(repair=True)
    after = read_watermark(output.state)
    assert before is not None and after is not None
    assert after.last_store_timestamp == before.last_store_timestamp
    assert output.verify().differences == ()


def test_missing_lines_of_a_ledger_are_known_of_a_whole_log_alone(
    ram_path: Path, seed: int
) -> None:
    """Queues have gaps; what was listed of messages that the log has lost nobody knows."""
    log, (output,) = grown(ram_path, seed)
    end = log.plain.end
    for queue_offset in (0, 9, 10):
        log.plain.append(topic=b"Gap", queue_offset=queue_offset)
    log.write()
    assert end > FILE_SIZE
    output.start()
    path = output.state / "quarantine.jsonl"
    path.write_bytes(b"")
    assert kinds(output) == {("quarantine.jsonl", Damage.LINE)}
    min((log.root / "commitlog").iterdir()).unlink()
    assert kinds(output) == set()


def test_an_index_that_is_switched_off_leaves_its_time(ram_path: Path) -> None:
    """In the checkpoint, as RocketMQ keeps it, which compares nothing."""
    output = DerivedOutput.build("mixed", ram_path)
    time = struct.unpack_from(">q", (output.root / "checkpoint").read_bytes(), 16)[0]
    output.start(index=False)
    assert output.verify().differences == ()
    assert struct.unpack_from(">q", (output.root / "checkpoint").read_bytes(), 16)[0] == time > 0


def test_lists_that_do_not_fit_are_no_damage_of_the_log(ram_path: Path) -> None:
    """Where the ledger is lost, too: only its line is missing."""
    output, plain = output_of(ram_path, LISTED["lists that do not fit"][1])
    (output.state / "quarantine.jsonl").write_bytes(b"")
    found = output.verify()
    assert found.damage == ()
    assert [(one.kind, one.damage) for one in found.differences] == [
        ("quarantine.jsonl", Damage.LINE)
    ]
    assert f'"physical_offset": {plain.spans[2][0]},' in str(found.differences[0].expected)


def test_a_watermark_and_an_index_that_are_lost_at_once(ram_path: Path) -> None:
    """Nothing tells from where on the index had entries: all of the log is dispatched again."""
    output = DerivedOutput.build("mixed", ram_path)
    (output.state / "watermark").write_bytes(bytes(20))
    shutil.rmtree(output.root / "index")
    assert output.verify(repair=True).replay_from == 0
    output.start()
    assert output.unequal() == []
