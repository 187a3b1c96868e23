"""The logs that are measured: their parts, their second view, and the proof that nobody wrote."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from bench import kernel_worker, logs
from bench.logs import Log
from bench.processes import BenchError
from reput.store.log.commitlog import CommitLog
from tests.support.golden import log_records

FILE_SIZE = 4 << 20


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Three files, grown in two steps."""
    with logs.log_writer(tmp_path_factory.mktemp("log"), 100, file_size=FILE_SIZE) as writer:
        small = writer.grow(1 << 20)
        large = writer.grow(2 * FILE_SIZE + 1)
    assert small.end_offset < large.end_offset
    assert large.marks[: len(small.marks)] == small.marks
    return large


@pytest.mark.parametrize("count", [1, 2, 3])
def test_parts_hold_every_message_once(log: Log, count: int) -> None:
    """They join, and a scan of each ends where it was told to."""
    parts = log.parts(count)
    assert (parts[0][0], parts[-1][1]) == (0, log.end_offset)
    assert all(left[1] == right[0] for left, right in pairwise(parts))
    opened = CommitLog([log.store / "commitlog"])
    found = [kernel_worker.one_pass(opened, start, end)["messages"] for start, end in parts]
    assert found == [kernel_worker.hop_pass(opened, start, end)["messages"] for start, end in parts]
    opened.close()
    assert sum(found) == log.message_count
    assert min(found) > 0


def test_the_file_kept_ready_is_not_of_the_log(log: Log) -> None:
    """It holds nothing, so that neither dd nor another system reads it."""
    names = [path.name for path in sorted((log.store / "commitlog").iterdir())]
    assert [path.name for path in log.files] == names[:-1]


def test_a_view_is_the_same_files(log: Log, tmp_path: Path) -> None:
    """Hard links: a second system's page cache is the first one's."""
    view = logs.link_view(log, tmp_path / "view")
    linked = sorted((view / "commitlog").iterdir())
    assert [path.samefile(mine) for path, mine in zip(linked, log.files, strict=True)] == [True] * 3


def test_a_changed_byte_changes_the_digest(tmp_path: Path) -> None:
    """At the head and at the tail of what was written."""
    with logs.log_writer(tmp_path, 100, file_size=FILE_SIZE) as writer:
        log = writer.grow(1 << 20)
    for position in (0, log.end_offset - 1):
        before = logs.digest(log)
        with log.files[0].open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1]))
        assert logs.digest(log) != before


def test_entries_are_counted_in_queue_files(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """RocketMQ's own files: as many as the log has messages; one queue fewer is noticed."""
    store = golden("plain")
    count = sum(record.dispatched_to_queue for record in log_records(store))
    log = Log(store, 0, count, 0, (), 0)
    logs.check_queues(store, log)
    queue = next((store / "consumequeue").glob("*/0"))
    shutil.move(queue, tmp_path / "gone")
    with pytest.raises(BenchError, match="queue entries of"):
        logs.check_queues(store, log)
