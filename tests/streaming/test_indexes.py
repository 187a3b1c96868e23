"""A run builds the indexes that the store's settings ask for, unless its own say otherwise."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from reput.sources.commitlog import store_settings
from reput.sources.commitlogoptions import CommitLogOptions
from reput.store.files import LEDGER_FILE
from reput.store.runs.dispatch import BatchSettings
from reput.store.state.built import settings_of
from reput.streaming.dispatcher import runs_options
from reput.streaming.indexes import Indexes
from tests.support.configs import configured
from tests.support.derived_output import DerivedOutput
from tests.support.golden import log_records
from tests.support.wire import PlainLog


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


def test_tasks_of_spark_read_with_the_settings_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told in words, and have another working directory on another machine."""
    (tmp_path / "disk" / "log").mkdir(parents=True)
    (tmp_path / "store").mkdir()
    (tmp_path / "own.conf").write_text(
        f"storePathCommitLog={tmp_path}/disk/log\nmessageDelayLevel=7s\nmaxIndexNum=99\n"
    )
    monkeypatch.chdir(tmp_path)
    config = configured(
        Path("store"), Path("output"), broker_conf=Path("own.conf"), verify_crc=True,
        mapped_file_size_commit_log=1 << 16, index_tags=True,
    )  # fmt: skip
    settings = settings_of(config.output, config.given_settings(), config.flags)
    indexes = Indexes.of(config, settings)
    given = runs_options(config, indexes)
    monkeypatch.chdir("/")
    options = CommitLogOptions(given)
    seen = store_settings(options)
    assert options["verifyCrc"] is True
    assert options["output"] == str(tmp_path / "output")
    assert options["gather"] == indexes.extras
    assert indexes.extras.index_tags
    assert seen.root == tmp_path / "store"
    assert seen.commit_log_directories == settings.commit_log_directories
    assert seen.message_delay_levels_ms == settings.message_delay_levels_ms == (7000,)
    assert seen.mapped_file_size_commit_log == 1 << 16


def test_what_the_driver_scans_has_the_delay_levels_of_its_batch(tmp_path: Path) -> None:
    """They may have changed since the run began; the tags code of a delayed message is the time of
    its delivery (RocketMQ: ``CommitLog.checkMessageAndReturnSize``)."""
    plain = PlainLog(1 << 14)
    plain.append(
        topic=b"SCHEDULE_TOPIC_XXXX", queue_id=1, store_timestamp=1000, properties=b"DELAY\x012\2"
    )
    plain.write(tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text("messageDelayLevel=1s 2s\n")
    config = configured(tmp_path, tmp_path)
    settings, log = config.open_store()
    with closing(log):
        live = BatchSettings(frozenset(), (1000, 70_000))
        batch = Indexes.of(config, settings).scan_unchanged(log, 0, plain.end, live)
    ((run,),) = batch.runs_by_queue().values()
    assert run.units["tags_code"].tolist() == [71_000]


def test_the_driver_scans_the_log_as_it_is_now(tmp_path: Path) -> None:
    """Its files may have come, or moved, since the last batch."""
    plain = PlainLog(1 << 14)
    plain.append(queue_offset=0)
    plain.write(tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text(f"mappedFileSizeCommitLog={1 << 14}\n")
    config = configured(tmp_path, tmp_path)
    settings, log = config.open_store()
    with closing(log):
        for queue_offset in range(1, 300):
            plain.append(queue_offset=queue_offset)
        plain.write(tmp_path / "commitlog")
        live = BatchSettings(frozenset(), settings.message_delay_levels_ms)
        batch = Indexes.of(config, settings).scan_unchanged(log, 0, plain.end, live)
    assert plain.end > 1 << 14
    assert batch.message_count == 300


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
