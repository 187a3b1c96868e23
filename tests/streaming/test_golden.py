"""From the commitlog alone: the consume queues that RocketMQ itself built, byte for byte."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reput.store.config import read_store_settings
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.logtail import LogTail
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.progress import Progress
from tests.support.configs import configured
from tests.support.golden import difference, relaid_queues, tree

pytestmark = pytest.mark.usefixtures("spark")


def dispatch(store: Path, output: Path, **options: object) -> Progress:
    """One ``--once`` run in this process."""
    config = configured(store, output, once=True, **options)
    return run_dispatcher(config, threading.Event())


@pytest.mark.parametrize("name", ["plain", "mixed"])
def test_log_that_grows_between_runs_gives_the_same_queues(
    golden: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """The log is laid down in four steps, cut at arbitrary bytes; torn tails are waited for."""
    full, store, output = golden(name), tmp_path / "growing", tmp_path / "output"
    (store / "commitlog").mkdir(parents=True)
    (store / "broker.conf").write_bytes((full / "broker.conf").read_bytes())
    files = sorted((full / "commitlog").iterdir())
    size = files[0].stat().st_size
    settings = read_store_settings(full)
    end = LogTail(CommitLog(settings.commit_log_directories)).settled()
    for step in (0.2, 0.5, 0.77, 1.0):
        cut = int(end * step)
        for file in files:
            visible = max(0, min(size, cut - int(file.name)))
            whole = visible == size or step == 1.0
            data = file.read_bytes() if whole else file.read_bytes()[:visible]
            (store / "commitlog" / file.name).write_bytes(data.ljust(size, b"\0"))
        progress = dispatch(store, output)
        assert progress.end_offset <= max(cut, size) if step < 1.0 else progress.end_offset == end
    assert difference(output / "consumequeue", full / "consumequeue") == []


def test_replay_changes_no_byte_and_counts_every_entry_as_duplicate(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """``--replay-from earliest`` over built queues."""
    store, output = golden("mixed"), tmp_path / "output"
    first = dispatch(store, output)
    again = dispatch(store, output, replay_from="earliest", max_bytes_per_trigger=1 << 20)
    assert difference(output / "consumequeue", store / "consumequeue") == []
    assert again.counts.messages == again.counts.duplicates == first.counts.messages > 0
    nothing = dispatch(store, output)
    assert nothing.counts.messages == 0


def test_replay_from_the_middle_restores_deleted_queue_files(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """A queue that somebody deleted is built again from the log."""
    store, output = golden("plain"), tmp_path / "output"
    dispatch(store, output)
    for file in (output / "consumequeue" / "Topic_1" / "0").iterdir():
        file.unlink()
    dispatch(store, output, replay_from="earliest")
    assert difference(output / "consumequeue", store / "consumequeue") == []


def test_dispatch_into_the_store_itself(golden: Callable[[str], Path]) -> None:
    """Without its queues a store is rebuilt in place, and its log stays as it was."""
    store = golden("plain")
    kept = store.with_name("kept")
    (store / "consumequeue").rename(kept)
    before = {file.name: file.read_bytes() for file in (store / "commitlog").iterdir()}
    dispatch(store, store)
    assert difference(store / "consumequeue", kept) == []
    assert before == {file.name: file.read_bytes() for file in (store / "commitlog").iterdir()}


def test_adopting_queues_that_rocketmq_built(golden: Callable[[str], Path]) -> None:
    """With --adopt the queues of a broker are taken as they are: all duplicates, no change."""
    store = golden("wide")
    kept = {p: p.read_bytes() for p in (store / "consumequeue").rglob("*") if p.is_file()}
    progress = dispatch(store, store, adopt=True)
    assert progress.counts.duplicates == progress.counts.messages > 0
    assert kept == {p: p.read_bytes() for p in (store / "consumequeue").rglob("*") if p.is_file()}


def test_live_query_follows_a_log_that_grows(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """A running query sees every append; it is stopped when the watermark has arrived."""
    assert spark is not None
    full, store, output = golden("plain"), tmp_path / "live", tmp_path / "output"
    (store / "commitlog").mkdir(parents=True)
    (store / "broker.conf").write_bytes((full / "broker.conf").read_bytes())
    settings = read_store_settings(full)
    log = CommitLog(settings.commit_log_directories)
    end = LogTail(log).settled()
    found = list(records(log, 0, end))
    starts = [record.physical_offset for record in found if hasattr(record, "physical_offset")]
    stop = threading.Event()
    step = iter([*starts[700::700], end])

    def grow(progress: Progress) -> None:
        cut = next(step, None)
        if cut is None:
            if progress.end_offset == end:
                stop.set()
            return
        for file in sorted((full / "commitlog").iterdir()):
            visible = max(0, min(log.file_size, cut - int(file.name)))
            if visible:
                data = file.read_bytes()
                if visible < log.file_size and cut != end:
                    data = data[:visible].ljust(log.file_size, b"\0")
                target = store / "commitlog" / file.name
                with target.open("r+b" if target.exists() else "wb") as out:
                    out.write(data)

    config = DispatcherConfig(store, output, latency_ms=0)
    progress = run_dispatcher(config, stop, grow)
    assert progress.end_offset == end
    assert difference(output / "consumequeue", full / "consumequeue") == []
    # it knows its log again, whose last file came while it ran
    again = dispatch(store, output)
    assert again.end_offset == end
    assert again.counts.messages == again.counts.duplicates, "what Spark has not confirmed"


def test_retention_follows_the_log_and_a_restart_goes_on(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """With ``retention`` files go with the log's front; queues end as they would without."""
    store, output = golden("plain"), tmp_path / "output"
    dispatch(store, output, mapped_file_size_consume_queue=200)
    before = tree(output / "consumequeue")
    files = sorted((store / "commitlog").iterdir())
    for path in files[:3]:
        path.unlink()
    dispatch(store, output, mapped_file_size_consume_queue=200, replay_from="earliest")
    assert tree(output / "consumequeue") == before
    dispatch(
        store, output, mapped_file_size_consume_queue=200, replay_from="earliest", retention=True
    )
    after = tree(output / "consumequeue")
    log_min = int(files[3].name)
    for name, data in before.items():
        last_of_queue = max(n for n in before if n.rpartition("/")[0] == name.rpartition("/")[0])
        gone = name != last_of_queue and int.from_bytes(data[-20:-12], "big") < log_min
        assert after.get(name) == (None if gone else data), name
    assert len(after) < len(before)


def test_retention_follows_the_log_although_a_run_finds_nothing_new(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may have ended before the run has looked at anything else."""
    monkeypatch.setattr("reput.streaming.dispatcher.POLL_SECONDS", 600.0)
    store, output = golden("plain"), tmp_path / "output"
    dispatch(store, output, mapped_file_size_consume_queue=200)
    files = sorted((store / "commitlog").iterdir())
    kept = relaid_queues(store, 200, int(files[3].name))
    for path in files[:3]:
        path.unlink()
    again = dispatch(store, output, mapped_file_size_consume_queue=200, retention=True)
    assert again.batches == 0
    assert tree(output / "consumequeue") == kept


@pytest.mark.extended
def test_retention_follows_the_log_while_no_message_comes(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker removes old files of an idle log; the queues follow, and the run goes on."""
    monkeypatch.setattr("reput.streaming.commit.RETENTION_SECONDS", 0.0)
    store, output, stop = golden("plain"), tmp_path / "output", threading.Event()
    files = sorted((store / "commitlog").iterdir())
    end = dispatch(store, tmp_path / "other").end_offset
    log_min = int(files[3].name)
    kept = relaid_queues(store, 200, log_min)
    deadline = time.monotonic() + 60

    def show(progress: Progress) -> None:
        if progress.end_offset == end and files[0].exists():
            assert tree(output / "consumequeue") == relaid_queues(store, 200)
            for path in files[:3]:
                path.unlink()
        # by their number: one may go while it is read
        there = [path for path in (output / "consumequeue").rglob("*") if path.is_file()]
        if (len(there) == len(kept) and not files[0].exists()) or time.monotonic() > deadline:
            stop.set()

    config = configured(store, output, mapped_file_size_consume_queue=200, retention=True)
    progress = run_dispatcher(config, stop, show)
    assert tree(output / "consumequeue") == kept
    assert len(kept) < len(relaid_queues(store, 200))
    assert (progress.batches, progress.end_offset) == (1, end)
