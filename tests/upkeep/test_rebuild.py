"""Damaged stores rebuilt by the real dispatcher: RocketMQ's bytes come back, the old are kept."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reput.checkpoints.ownership import Ownership
from reput.store import fsops
from reput.store.brokerlock import BrokerLock
from reput.store.config import read_store_settings
from reput.store.errors import NoSpaceError, OutputError, OwnershipError, StoreError, UsageError
from reput.store.log.record import Record
from reput.store.state.built import settings_of
from reput.store.state.storecheckpoint import StoreCheckpoint
from reput.store.state.watermark import read_watermark
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.upkeep.rebuild import Rebuilt, drop_old, rebuild
from reput.upkeep.verify.run import verify
from reput.workload.appender import Appender
from tests.support.batch_queue import messages_of, model_of, model_tree
from tests.support.cli import REPUT, ROOT
from tests.support.configs import configured
from tests.support.golden import difference, tree
from tests.support.processes import holder
from tests.support.seeds import seed
from tests.support.wire import PlainLog

__all__ = ["seed"]

pytestmark = pytest.mark.usefixtures("spark")

Golden = Callable[[str], Path]


@pytest.fixture
def damaged(golden: Golden, tmp_path: Path, seed: int) -> tuple[Path, Path, dict[str, bytes]]:
    """A store of RocketMQ's whose queues are damaged, a sound copy of its queues, and its files."""
    rng = random.Random(seed)
    store = golden("plain")
    sound = shutil.copytree(store / "consumequeue", tmp_path / "sound")
    files = sorted(path for path in (store / "consumequeue").rglob("*") if path.is_file())
    changed, cut, gone = rng.sample(files, 3)
    data = bytearray(changed.read_bytes())
    data[rng.randrange(20)] ^= 1 + rng.randrange(255)
    changed.write_bytes(data)
    cut.write_bytes(b"")
    shutil.rmtree(gone.parent)
    return store, sound, tree(store)


def build(store: Path, output: Path | None = None, **options: object) -> Rebuilt:
    # the index is built anew, under other names: tests/cli has it
    config = configured(store, output or store, index=False)
    return rebuild(config, threading.Event(), **options)  # type: ignore[arg-type]


def unchanged(store: Path, before: dict[str, bytes]) -> bool:
    """Everything is as it was, but for the locks of whoever owns the store."""
    after = {name: data for name, data in tree(store).items() if name.split("/")[0] != "reput"}
    return {name: data for name, data in after.items() if name != "lock"} == before


def test_damaged_queues_are_replaced_and_kept(
    damaged: tuple[Path, Path, dict[str, bytes]],
) -> None:
    """Byte for byte RocketMQ's; index and log stay, positions come along; the old can go."""
    store, sound, before = damaged
    done = build(store)
    assert 2 <= len(done.comparison.differences) <= 3
    assert done.comparison.compared == {"consumequeue": 24}
    assert difference(store / "consumequeue", sound) == []
    kept = tree(store / "consumequeue.replaced-1")
    assert kept == {
        name.removeprefix("consumequeue/"): data
        for name, data in before.items()
        if name.startswith("consumequeue/")
    }
    for kind in ("commitlog", "index"):
        assert {k: v for k, v in tree(store).items() if k.startswith(f"{kind}/")} == {
            k: v for k, v in before.items() if k.startswith(f"{kind}/")
        }
    found = read_watermark(store / "reput")
    assert found and found.end_offset == done.progress.end_offset == done.progress.log_end
    positions = StoreCheckpoint.read(store)
    assert positions and positions.confirm_phy_offset == found.last_record_offset
    assert run_dispatcher(DispatcherConfig(store, store, once=True), threading.Event()).batches == 0
    assert drop_old(store) == [
        store / f"{name}.replaced-1" for name in ("checkpoint", "consumequeue", "reput")
    ]
    assert {path.name for path in store.iterdir()} == {
        "broker.conf", "checkpoint", "commitlog", "config", "consumequeue", "index", "lock",
        "reput",
    }  # fmt: skip


def test_positions_of_messages_that_the_log_has_lost_do_not_come_along(tmp_path: Path) -> None:
    """The log was cut and grew again, with times before those that the checkpoint knows; what a
    broker alone knows, how far its master flushed, comes along."""
    store, times = tmp_path / "store", ((0, 300), (0, 200), (50, 150))
    lost, log = PlainLog(16384), PlainLog(16384)
    for plain, parts in ((lost, times[:1]), (log, times[1:])):
        for number, (step, count) in enumerate(parts):
            for index in range(count):
                stored = 1_700_000_000_000 + (index + step) * 1000
                queue_offset = index + 200 * number
                keys = f"KEYS\1k{queue_offset}\2".encode()
                plain.append(properties=keys, queue_offset=queue_offset, store_timestamp=stored)
    lost.write(store / "commitlog")
    (store / "broker.conf").write_text(
        "mappedFileSizeCommitLog=16384\nmaxHashSlotNum=10\nmaxIndexNum=51\n"
    )
    config = DispatcherConfig(store, store, once=True)
    run_dispatcher(config, threading.Event())
    before = StoreCheckpoint.read(store)
    assert before is not None
    replace(before, master_flushed_offset=lost.spans[100][0]).write(store)
    shutil.rmtree(store / "commitlog")
    log.write(store / "commitlog")
    rebuild(config, threading.Event())
    after = StoreCheckpoint.read(store)
    assert after is not None
    assert after.index_msg_timestamp < before.index_msg_timestamp
    assert after.master_flushed_offset == lost.spans[100][0]
    assert verify(read_store_settings(store), store).differences == ()


def test_dry_run_changes_nothing(damaged: tuple[Path, Path, dict[str, bytes]]) -> None:
    """The difference is reported, and nothing is left."""
    store, _, before = damaged
    done = build(store, dry_run=True)
    assert not done.comparison.is_equal
    assert done.kept == []
    assert unchanged(store, before)
    assert not (store / ".reput-rebuild").exists()


def test_only_the_topics_that_were_asked_for_are_replaced(
    damaged: tuple[Path, Path, dict[str, bytes]],
) -> None:
    """Other queues keep their damage, positions stay: the next run finds all of it built."""
    store, sound, _ = damaged
    others = tree(store / "consumequeue")
    done = build(store, topics=["Topic_1", "Topic_2"], kinds=["consumequeue"])
    assert done.comparison.compared["consumequeue"] == 8
    for name, data in tree(store / "consumequeue").items():
        chosen = name.split("/")[0] in ("Topic_1", "Topic_2")
        assert data == ((sound / name).read_bytes() if chosen else others[name])
    assert sorted(path.name for path in (store / "consumequeue.replaced-1").iterdir()) == [
        "Topic_1", "Topic_2",
    ]  # fmt: skip
    assert read_watermark(store / "reput") is None
    with holder(Ownership(store).__enter__):
        # which nothing gets to that has to wait for its turn to build
        for topic, match in ("Topic_", "did you mean Topic_"), ("../x", "not a plain"):
            with pytest.raises(UsageError, match=match):
                build(store, topics=["Topic_1", topic])
    with pytest.raises(UsageError, match="no message for the requested parts"):
        build(store, kinds=["batchconsumequeue"])


def test_topics_of_an_output_go_on_where_it_stood(golden: Golden, tmp_path: Path) -> None:
    """An output of our own, half way through the log: its watermark stays, the rest follows."""
    store, output, part = golden("plain"), tmp_path / "output", tmp_path / "part"
    shutil.copytree(store, part)
    log = sorted((part / "commitlog").iterdir())
    for path in log[3:]:
        path.unlink()
    run_dispatcher(DispatcherConfig(part, output, once=True), threading.Event())
    stood = read_watermark(output / "reput")
    for path in sorted((store / "commitlog").iterdir())[3:]:
        shutil.copy(path, part / "commitlog")
    build(part, output, topics=["Topic_3"])
    assert read_watermark(output / "reput") == stood
    assert difference(output / "consumequeue" / "Topic_3", store / "consumequeue" / "Topic_3") == []
    run_dispatcher(DispatcherConfig(part, output, once=True), threading.Event())
    assert difference(output / "consumequeue", store / "consumequeue") == []


def test_queues_alone_of_an_output_that_lags(golden: Golden, tmp_path: Path) -> None:
    """They are ahead of watermark and index then; the next run gives the index the keys of the
    rest."""
    store, output, part = golden("plain"), tmp_path / "output", tmp_path / "part"
    shutil.copytree(store, part)
    log = sorted((part / "commitlog").iterdir())
    for path in log[3:]:
        path.unlink()
    config = DispatcherConfig(part, output, once=True)
    run_dispatcher(config, threading.Event())
    for path in sorted((store / "commitlog").iterdir())[3:]:
        shutil.copy(path, part / "commitlog")
    rebuild(config, threading.Event(), kinds=["consumequeue"])
    assert difference(output / "consumequeue", store / "consumequeue") == []
    run_dispatcher(config, threading.Event())
    found = verify(settings_of(output, config.given_settings()), output)
    assert found.index_entries > 0
    assert found.differences == ()


def test_refused_while_a_broker_or_dispatcher_runs(
    damaged: tuple[Path, Path, dict[str, bytes]],
) -> None:
    """Nothing is built then."""
    store, _, before = damaged
    for owner in (BrokerLock(store), Ownership(store)):
        with holder(owner.__enter__), pytest.raises(OwnershipError):
            build(store)
        assert unchanged(store, before)


def test_a_stopped_rebuild_replaces_nothing(damaged: tuple[Path, Path, dict[str, bytes]]) -> None:
    """As SIGTERM does, before the first batch."""
    store, _, before = damaged
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoreError, match="nothing was replaced"):
        rebuild(DispatcherConfig(store, store), stop)
    assert unchanged(store, before)


def test_space_is_looked_at_before(
    damaged: tuple[Path, Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The existing files take more than is free."""
    store, _, before = damaged
    full = list(os.statvfs(store))
    full[4] = 0
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(full))
    with pytest.raises(NoSpaceError, match="0 are free; make room"):
        build(store)
    assert unchanged(store, before)


@pytest.mark.parametrize("operation", ["exchange:1", "exchange:3", "pwrite:1"])
def test_an_error_leaves_old_or_new_and_the_next_rebuild_finishes(
    damaged: tuple[Path, Path, dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
) -> None:
    """In the middle of the swap, and while it is built."""
    store, sound, before = damaged
    with monkeypatch.context() as patch:
        patch.setattr(fsops, "_failpoints", fsops._Failpoints(f"{operation}=EIO"))
        with pytest.raises(OutputError):
            build(store)
    aside = {name for name in tree(store) if name.startswith(".reput-rebuild/")}
    if operation == "exchange:3":
        assert difference(store / "consumequeue", sound) == []
        assert read_watermark(store / "reput") is None
    elif operation == "exchange:1":
        assert before.items() <= tree(store).items()
        assert aside
    else:
        assert unchanged(store, before)
    build(store)
    assert difference(store / "consumequeue", sound) == []
    assert not (store / ".reput-rebuild").exists()


@pytest.mark.extended
def test_a_killed_rebuild_is_finished_by_the_next_start(
    damaged: tuple[Path, Path, dict[str, bytes]],
) -> None:
    """The whole process, kill -9 within the swap; then a run finds the new store."""
    store, sound, _ = damaged
    environment = {**os.environ, fsops.FAILPOINTS_VARIABLE: "exchange:2=kill"}
    done = subprocess.run(
        [*REPUT, "rebuild", str(store)], cwd=ROOT, env=environment, check=False, timeout=300,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    assert difference(store / "consumequeue", sound) == []
    assert read_watermark(store / "reput") is None
    progress = run_dispatcher(DispatcherConfig(store, store, once=True), threading.Event())
    assert progress.batches == 0
    assert read_watermark(store / "reput") is not None
    assert (store / "reput.replaced-1").is_dir()


def test_a_topic_that_is_there_as_the_wrong_kind_is_built_as_the_right_one(ram_path: Path) -> None:
    """By one command, which the refusal names, in both directions: the queues of the wrong kind go
    out of the way even where no other topic has any of that kind."""
    store, output = ram_path / "store", ram_path / "output"
    with Appender(store, file_size=1 << 16) as appender:
        for index in range(100):
            appender.append(Record(topic=b"T", queue_id=index % 2, body=b"body"))
    settings = read_store_settings(store)
    messages = messages_of(store, settings.message_delay_levels_ms)
    batch_size = settings.mapper_file_size_batch_consume_queue
    config = configured(store, output, once=True, index=False)
    run_dispatcher(config, threading.Event())
    simple = tree(output / "consumequeue")
    batch = model_tree(model_of(messages, frozenset({b"T"}), batch_size))
    (store / "config").mkdir()
    for number, kind in enumerate(("BatchCQ", "SimpleCQ"), 1):
        topics = {"T": {"attributes": {"queue.type": kind}}}
        (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
        with pytest.raises(StoreError, match=f"reput rebuild {store} --output {output} --topic T$"):
            run_dispatcher(config, threading.Event())
        done = build(store, output, topics=["T"])
        assert len(done.kept) == 1
        is_batch = kind == "BatchCQ"
        assert tree(output / "batchconsumequeue") == (batch if is_batch else {})
        assert tree(output / "consumequeue") == ({} if is_batch else simple)
        wrong = "consumequeue" if is_batch else "batchconsumequeue"
        kept = tree(output / f"{wrong}.replaced-{number}" / "T")
        assert kept == {name[2:]: data for name, data in (simple if is_batch else batch).items()}
        assert run_dispatcher(config, threading.Event()).counts.messages == 0
        assert verify(settings, output).differences == ()
