"""A run builds the indexes that the store's settings ask for, unless its own say otherwise."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from reput.store.files import LEDGER_FILE
from reput.store.state.built import settings_of
from reput.streaming.indexes import Indexes
from tests.support.configs import configured
from tests.support.derived_output import DerivedOutput
from tests.support.golden import log_records


@pytest.mark.parametrize(
    ("conf", "index", "built"),
    [
        ("", None, True),
        ("messageIndexEnable=false\n", None, False),
        ("messageIndexEnable=false\n", True, True),
        ("indexFileWriteEnable=false\nindexRocksDBEnable=true\n", None, False),
        ("indexFileWriteEnable=false\n", True, True),
        ("messageIndexEnable=true\n", False, False),
    ],
)
def test_index_files_follow_two_settings(
    conf: str, index: bool | None, built: bool, tmp_path: Path
) -> None:
    """RocketMQ 5.4 and newer write none where the index is in RocksDB alone."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "broker.conf").write_text(conf)
    config = configured(tmp_path, tmp_path, index=index)
    settings = settings_of(tmp_path, config.given_settings(), config.flags)
    assert Indexes.of(config, settings).extras.index == built


def test_a_jump_in_a_light_queue_is_listed_once(ram_path: Path, seed: int) -> None:
    """The ledger of a run with restarts equals that of one without: after a restart the queue
    offset of a light queue's last message is read from the message's properties."""
    rng = random.Random(seed)
    whole = DerivedOutput.build("lmq", ram_path)
    starts = [found.physical_offset for found in log_records(whole.store)]
    output = DerivedOutput(whole.store, ram_path / "restarted")
    for border in sorted(rng.sample(starts[1:], 3)):
        output.start(part=lambda _, border=border: border)
    output.start()
    ledgers = [
        (found.state / LEDGER_FILE).read_text("utf-8").splitlines() for found in (output, whole)
    ]
    assert sorted(ledgers[0]) == sorted(ledgers[1])
    assert ledgers[0]
