"""RocketMQ 5.5.1's own store class on checkpoints of ours: ``enableAcceleratedRecovery`` has it
begin at the sixth long after a crash, and refuse to start where there is none.

Aim: it starts, dispatches only what it would on its own files, and changes no unit. The index is
not compared after that: this recovery removes its newest file and makes it anew from the sixth long
on alone (formats.md §13), whosever files they are.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.state.built import settings_of
from reput.store.state.storecheckpoint import StoreCheckpoint
from reput.streaming.config import DispatcherConfig
from reput.upkeep.rebuild import rebuild
from reput.upkeep.verify.run import verify
from tests.interop.rocketmq import NEWEST, HarnessError, boot
from tests.streaming.test_golden import dispatch
from tests.support.golden import difference, log_records, tree

pytestmark = [
    pytest.mark.usefixtures("spark", "release"),
    pytest.mark.parametrize("release", [NEWEST], indirect=True),
]


@pytest.fixture
def newest(golden: Callable[[str], Path]) -> Path:
    """A store of a RocketMQ 5.5.1 broker that recovers so."""
    return golden("orders-5.5.1")


def covered(output: Path) -> int:
    found = StoreCheckpoint.read(output)
    assert found is not None
    return found.logics_physical_offset


def damaged_kinds(store: Path) -> set[str]:
    settings = settings_of(store, read_store_settings(store))
    return {found.kind for found in verify(settings, store).differences}


def recover(store: Path) -> int:
    """Start after a crash; how many messages it dispatched."""
    (store / "abort").touch()
    queues = tree(store / "consumequeue")
    found = boot(store, enableAcceleratedRecovery=True)
    assert found["clean"]
    assert tree(store / "consumequeue") == queues
    return found["dispatched"]


@pytest.mark.extended
def test_a_store_of_5_5_keeps_what_a_recovery_goes_by(newest: Path, tmp_path: Path) -> None:
    """Taken over, verified, rebuilt, and recovered each time: the value stays RocketMQ's, whose
    recovery looks at the one message that it names."""
    theirs = covered(newest)
    assert theirs == [r for r in log_records(newest) if r.dispatched_to_queue][-1].physical_offset
    copy = shutil.copytree(newest, tmp_path / "copy")
    dispatch(newest, newest, adopt=True)
    assert covered(newest) == theirs
    assert damaged_kinds(newest) == set()
    assert recover(newest) == 1
    assert damaged_kinds(newest) == {"index"}
    rebuild(DispatcherConfig(newest, newest), threading.Event())
    assert covered(newest) == theirs
    assert damaged_kinds(newest) == set()
    assert recover(newest) == recover(copy) == 1
    assert covered(newest) == covered(copy) == theirs


@pytest.mark.extended
def test_an_output_elsewhere_is_for_the_release_of_its_store(newest: Path, tmp_path: Path) -> None:
    """Dispatched in parts: put beside a log of its own, a broker recovers with it."""
    output = tmp_path / "output"
    dispatch(newest, output, max_bytes_per_trigger=64 << 10)
    assert covered(output) == covered(newest)
    for part in ("commitlog", "config"):
        shutil.copytree(newest / part, output / part)
    shutil.copy(newest / "broker.conf", output)
    assert recover(output) == 1
    assert difference(output / "consumequeue", newest / "consumequeue") == []


@pytest.mark.extended
def test_a_store_of_5_3_is_recovered_where_its_property_file_asks_for_it(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Without the line our checkpoint is 5.3.3's, with zeros there, and 5.5.1 refuses it."""
    store = golden("mixed")
    for name in ("consumequeue", "index"):
        shutil.rmtree(store / name)
    (store / "checkpoint").unlink()
    dispatch(store, store)
    assert covered(store) == 0
    with pytest.raises(HarnessError, match="logicsPhysicalOffset is invalid"):
        recover(shutil.copytree(store, tmp_path / "refused"))
    with (store / "broker.conf").open("a") as conf:
        conf.write("\nenableAcceleratedRecovery=true\n")
    dispatch(store, store)
    assert covered(store) > 0
    assert damaged_kinds(store) == set()
    assert recover(store) == 1
