"""The sixth long of RocketMQ 5.5's checkpoint: up to where a broker need not dispatch again.

The oracle is the golden log: a value must be a record's start, and no message before it may lack a
unit, whatever a run or a repair is killed at. What RocketMQ itself makes of it:
``tests/interop/test_accelerated_recovery.py``.
"""

from __future__ import annotations

import random
import struct
from itertools import count
from pathlib import Path

import pytest

from reput.store.state.storecheckpoint import StoreCheckpoint
from reput.store.state.watermark import read_watermark
from reput.upkeep.verify.difference import Damage
from tests.support.derived_output import DerivedOutput
from tests.support.golden import log_records
from tests.support.processes import is_killed_at
from tests.support.seeds import seed
from tests.upkeep.verify.test_rules import half, kinds

__all__ = ["seed"]

KILL_STEP = 5


def unpack(directory: Path) -> DerivedOutput:
    """A store whose broker is to recover by the value; nothing is dispatched yet."""
    output = DerivedOutput.unpack("plain", directory)
    with (output.store / "broker.conf").open("a") as conf:
        conf.write("\nenableAcceleratedRecovery=true\n")
    return output


def covered(output: DerivedOutput) -> int:
    found = StoreCheckpoint.read(output.root)
    assert found is not None
    return found.logics_physical_offset


def put(output: DerivedOutput, value: int) -> None:
    path = output.root / "checkpoint"
    data = path.read_bytes()
    path.write_bytes(data[:40] + struct.pack(">q", value) + data[48:])


def test_it_is_where_the_last_message_starts(ram_path: Path) -> None:
    """As RocketMQ 5.5.1 writes it; an output for 5.3.3 has zeros there."""
    output = unpack(ram_path)
    output.start()
    last = log_records(output.store)[-1]
    assert last.dispatched_to_queue
    assert covered(output) == last.physical_offset
    assert output.verify().differences == ()
    for_old = DerivedOutput.build("plain", ram_path / "old")
    assert not any((for_old.root / "checkpoint").read_bytes()[40:])


@pytest.mark.extended
def test_a_killed_run_claims_nothing_that_is_not_durable(ram_path: Path, seed: int) -> None:
    """From its first operation to its last."""
    output, rng = unpack(ram_path), random.Random(seed)
    starts = {r.physical_offset for r in log_records(output.store)}
    output.start(part=half)
    first = covered(output)
    kept = ram_path / "kept"
    output.keep(kept)
    for ordinal in count(rng.randrange(1, 1 + KILL_STEP), KILL_STEP):
        output.restore(kept)
        killed = is_killed_at(ordinal, output.start)
        found = read_watermark(output.state)
        assert found is not None
        assert covered(output) in starts
        assert first <= covered(output) <= found.last_record_offset, ordinal
        output.start()
        assert output.verify().differences == ()
        if not killed:
            break
    assert covered(output) > first


def test_a_repair_takes_back_what_it_cuts(ram_path: Path, seed: int) -> None:
    """Before it cuts, wherever it is killed; the next run claims all of it again."""
    output, rng = unpack(ram_path), random.Random(seed)
    output.start()
    whole = covered(output)
    path = rng.choice(output.files()["consumequeue"])
    with path.open("r+b") as out:
        out.write(bytes(20))
    kept = ram_path / "kept"
    output.keep(kept)
    lowered = output.verify().replay_from
    assert lowered is not None
    units = path.read_bytes()
    for ordinal in count(rng.randrange(1, 1 + KILL_STEP), KILL_STEP):
        output.restore(kept)
        killed = is_killed_at(ordinal, lambda: output.verify(repair=True))
        assert covered(output) <= lowered or path.read_bytes() == units, ordinal
        if not killed:
            break
    assert covered(output) == lowered
    assert output.verify().differences == ()
    output.start()
    assert covered(output) == whole


@pytest.mark.parametrize("shift", [-1, 1], ids=["within", "beyond"])
def test_a_wrong_value_is_found_and_healed(ram_path: Path, shift: int) -> None:
    """RocketMQ would cut its log at a byte where no record starts. An older value, as RocketMQ
    leaves it for a minute, and none at all are right."""
    output = unpack(ram_path)
    output.start()
    whole = covered(output)
    for right in (0, log_records(output.store)[7].physical_offset):
        put(output, right)
        assert output.verify().differences == ()
    put(output, whole + shift)
    assert kinds(output) == {("checkpoint", Damage.FIELDS)}
    output.verify(repair=True)
    assert covered(output) == whole
