"""A rebuild whose queues tasks of Spark write: all that one writer builds, byte for byte.

tests/deploy has it on a cluster whose workers are killed; here the tasks are on this machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reput.store.config import OnQueueGap
from reput.store.errors import StoreError
from reput.store.log.record import Record
from reput.store.state.storecheckpoint import StoreCheckpoint
from reput.store.state.watermark import Watermark, read_watermark
from reput.streaming import executors
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.executors import build_on_executors
from reput.streaming.progress import Progress
from reput.upkeep.rebuild import rebuild
from reput.workload.appender import Appender
from tests.streaming.test_bad_input import TOPICS, forged_log
from tests.streaming.test_golden_indexes import TREES, check_equal
from tests.support.cli import Call
from tests.support.configs import configured
from tests.support.golden import destroy, log_records, tree

pytestmark = pytest.mark.usefixtures("spark")

Golden = Callable[[str], Path]


def on_executors(store: Path, output: Path, **options: object) -> Progress:
    """Build a fresh output."""
    config = configured(store, output, **options)
    return rebuild(config, threading.Event(), build=build_on_executors).progress


def by_one_writer(store: Path, output: Path, **options: object) -> Progress:
    config = configured(store, output, once=True, **options)
    return run_dispatcher(config, threading.Event())


def watermark(output: Path) -> Watermark:
    found = read_watermark(output / "reput")
    assert found is not None
    return replace(found, store_id="", sequence=0, epoch=0)


def ledger(output: Path) -> list[bytes]:
    path = output / "reput" / "quarantine.jsonl"
    return sorted(path.read_bytes().splitlines()) if path.exists() else []


def check_same(ours: Path, theirs: Path) -> None:
    """Every kind of queue, ledger, watermark and checkpoint, and nothing besides them."""
    for name in TREES:
        assert tree(ours / name) == tree(theirs / name), name
    assert ledger(ours) == ledger(theirs)
    assert watermark(ours) == watermark(theirs)
    assert StoreCheckpoint.read(ours) == StoreCheckpoint.read(theirs)
    assert {path.name for path in (ours / "reput").iterdir()} <= {
        path.name for path in (theirs / "reput").iterdir()
    }
    assert not [*ours.glob(".reput*")]


@pytest.mark.extended
@pytest.mark.parametrize("name", ["lmq", "mixed", "queues-5.5.1"])
def test_queues_and_index_equal_rocketmqs(golden: Golden, tmp_path: Path, name: str) -> None:
    """Ext, batch and light queues, delayed messages, keys and tags; positions and ledger are those
    of one writer, and the next run goes on from them."""
    store, ours, theirs = golden(name), tmp_path / "ours", tmp_path / "theirs"
    tags = name == "queues-5.5.1"
    done = on_executors(store, ours, index_tags=tags)
    check_equal(ours, store, index=True)
    assert done.counts == by_one_writer(store, theirs, index_tags=tags).counts
    check_same(ours, theirs)
    assert by_one_writer(store, ours).counts.messages == 0


def test_relative_paths_are_the_drivers(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors have another working directory, as those of this session do once it is changed."""
    store = golden("lmq")
    monkeypatch.chdir(store.parent)
    on_executors(Path(store.name), Path("ours"))
    check_equal(tmp_path / "ours", store, index=True)


def test_the_ledger_lists_what_one_writer_lists(golden: Golden, tmp_path: Path) -> None:
    """Damage, gaps, unusable names and queue ids, in several parts."""
    store, ours, theirs = golden("mixed"), tmp_path / "ours", tmp_path / "theirs"
    destroy(store, log_records(store)[900::900])
    odd = tmp_path / "odd"
    with Appender(odd, file_size=1 << 20) as appender:
        for number in range(3000):
            topic = [*TOPICS.values()][number % len(TOPICS)] if number % 100 == 0 else b"Good"
            queue_id = -1 if number % 70 == 0 else number % 3
            appender.append(Record(topic=topic, queue_id=queue_id, body=bytes(1000)))
    for source in (store, odd):
        done = on_executors(source, ours / source.name, on_queue_gap=OnQueueGap.BLANK)
        expected = by_one_writer(source, theirs / source.name, on_queue_gap=OnQueueGap.BLANK)
        assert ledger(ours / source.name)
        assert done.counts == expected.counts
        check_same(ours / source.name, theirs / source.name)


def test_parts_that_do_not_join_are_built_by_one_writer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cut falls on a record forged inside a body: no entry of it, and no message is lost."""
    store = tmp_path / "store"
    real = forged_log(store)
    with caplog.at_level("WARNING", "reput"):
        on_executors(store, tmp_path / "ours")
    assert "do not join: one writer builds the queues" in caplog.text
    assert [path.name for path in (tmp_path / "ours" / "consumequeue").iterdir()] == ["Real"]
    assert watermark(tmp_path / "ours").last_record_offset == real[-1].physical_offset
    by_one_writer(store, tmp_path / "theirs")
    check_same(tmp_path / "ours", tmp_path / "theirs")


def test_what_a_task_refuses_is_said_in_one_line(
    golden: Golden, tmp_path: Path, call: Call
) -> None:
    """A gap with --on-queue-gap fail; nothing is left. --drop-old has no work for executors."""
    store, output = golden("lmq"), tmp_path / "output"
    words = ("rebuild", store, "--output", output, "--executors")
    done = call(*words, "--on-queue-gap", "fail")
    assert done.returncode == 1
    assert "queue offsets jump in topic" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert {path.name for path in output.iterdir()} <= {"lock", "reput"}
    done = call(*words, "--drop-old")
    assert done.returncode == 2
    assert "--drop-old builds nothing" in done.stderr
    done = call(*words, "--topic", "Topic_0", "--dry-run")
    assert done.returncode == 1
    assert "a dry run: nothing was replaced" in done.stdout
    assert not [*output.glob(".reput*")]


def test_a_stop_replaces_nothing(
    golden: Golden,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While the job runs: its tasks are cancelled, which is no failure, and nothing is left of
    them. The stop is looked for so often that no job has ended by then."""
    monkeypatch.setattr(executors, "POLL_SECONDS", 0.001)
    store, output = golden("mixed"), tmp_path / "output"
    stop = threading.Event()
    config = DispatcherConfig(store, output)
    with (
        caplog.at_level("INFO", "reput"),
        pytest.raises(StoreError, match="stopped before everything was built"),
    ):
        rebuild(config, stop, lambda _: stop.set(), build=build_on_executors)
    assert "executors wrote the queues" not in caplog.text
    assert {path.name for path in output.iterdir()} <= {"lock", "reput"}
