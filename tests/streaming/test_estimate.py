"""A disk that seems too small for the queues and index of a whole log is said beforehand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.streaming.estimate import SAMPLED_FILES, estimated_bytes, warn_of_little_space
from tests.support.plain_queues import plain_units, queue_directories
from tests.support.smalldisk import SmallDisk
from tests.support.wire import PlainLog

BUILT = (("plain", True), ("plain", False), ("mixed", True))
"""Golden stores, and whether with their index."""
ENTRY = 20
"""Bytes of a unit, and of an index entry."""


def built_bytes(store: Path, *, with_index: bool) -> int:
    """Units and index entries that RocketMQ made of a golden store's log."""
    units = sum(len(plain_units(one)) for one in queue_directories(store))
    if not with_index:
        return ENTRY * units
    counts = (int.from_bytes(path.read_bytes()[36:40]) for path in (store / "index").iterdir())
    return ENTRY * (units + sum(count - 1 for count in counts))


@pytest.mark.parametrize(("name", "with_index"), BUILT)
def test_an_estimate_is_near_what_a_broker_built(
    golden: Callable[[str], Path], name: str, with_index: bool
) -> None:
    """From a part of the records, within a fourth."""
    store = golden(name)
    settings = replace(read_store_settings(store), message_index_enable=with_index)
    with closing(settings.open_log()) as log:
        end = log.segments.end
        estimate = estimated_bytes(log, end, settings)
    assert 0.75 < estimate / built_bytes(store, with_index=with_index) < 1.25


@pytest.mark.parametrize("index_tags", [False, True])
def test_tags_take_room_where_they_are_indexed(tmp_path: Path, index_tags: bool) -> None:
    """RocketMQ 5.5 has an entry for each message's tags."""
    log = PlainLog(1 << 12)
    for number in range(100):
        log.append(topic=b"Topic", queue_offset=number, properties=b"TAGS\1a\2")
    log.write(tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text(f"mappedFileSizeCommitLog={log.file_size}\n")
    settings = replace(read_store_settings(tmp_path), index_tags=index_tags)
    with closing(settings.open_log()) as opened:
        estimate = estimated_bytes(opened, log.end, settings)
    assert 0.75 < estimate / (ENTRY * 100 * (1 + index_tags)) < 1.25


def test_files_beyond_the_end_take_no_sample(tmp_path: Path) -> None:
    """Every other one of as many files as are looked at holds messages of another size."""
    log, end = PlainLog(1 << 12), SAMPLED_FILES << 12
    while log.end < end + (2 << 12):
        is_odd = (log.end >> 12) % 2
        body = b"x" * (1500 if is_odd else 100)
        log.append(topic=b"Topic", queue_id=0, queue_offset=len(log.spans), body=body)
    log.write(tmp_path / "commitlog")
    units = sum(start < end for start, _ in log.spans)
    (tmp_path / "broker.conf").write_text(
        f"mappedFileSizeCommitLog={log.file_size}\nmessageIndexEnable=false\n"
    )
    settings = read_store_settings(tmp_path)
    with closing(settings.open_log()) as opened:
        assert 0.75 < estimated_bytes(opened, end, settings) / (ENTRY * units) < 1.25


def test_what_a_log_has_removed_needs_no_room(tmp_path: Path) -> None:
    """A broker's log begins far beyond 0, and no unit of an older message is built."""
    log = PlainLog(1 << 12, start=1 << 40)
    for number in range(100):
        log.append(topic=b"Topic", queue_id=0, queue_offset=number)
    log.write(tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text(
        f"mappedFileSizeCommitLog={log.file_size}\nmessageIndexEnable=false\n"
    )
    settings = read_store_settings(tmp_path)
    with closing(settings.open_log()) as opened:
        assert 0.75 < estimated_bytes(opened, log.end, settings) / (ENTRY * 100) < 1.25


def test_a_small_disk_is_said(
    golden: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with what is needed and what is there; a disk with room is not."""
    caplog.set_level(logging.WARNING, "reput")
    settings = read_store_settings(golden("broker"))
    with (
        closing(settings.open_log()) as log,
        closing(SmallDisk(tmp_path / "small", 64 << 10)) as disk,
    ):
        end = log.segments.end
        needed = estimated_bytes(log, end, settings)
        warn_of_little_space(tmp_path / "roomy" / "output", log, end, settings)
        assert caplog.messages == []
        warn_of_little_space(disk.path / "output", log, end, settings)
        (line,) = caplog.messages
        assert f"need about {needed} bytes" in line
        assert "another `output=`" in line
