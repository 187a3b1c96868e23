"""Rebuilds of a part of an output, without Spark: what they leave of all that stays."""

from __future__ import annotations

import shutil
import struct
import threading
from pathlib import Path
from typing import Any

from reput.streaming.config import DispatcherConfig
from reput.upkeep.rebuild import Rebuilt, rebuild
from tests.streaming.test_begin_again import Site, sparkless
from tests.support.configs import configured
from tests.support.derived_output import DerivedOutput


def built(config: DispatcherConfig, **choice: Any) -> Rebuilt:
    """Rebuild it by a run without Spark."""
    return rebuild(config, threading.Event(), build=sparkless, **choice)


def repeated(directory: Path) -> Site:
    """The offsets of Orders and of Other begin again in the log; all of it is dispatched."""
    site = Site(directory)
    for count in (40, 30):
        site.put("Orders", range(count))
        site.put("Other", range(count // 2))
    site.write()
    site.output.start()
    return site


def from_now_on(site: Site) -> DispatcherConfig:
    """Orders is to begin where its offsets began again."""
    begins = {"Orders": site.offsets[40][1]}
    return configured(site.output.store, site.output.root, topic_begins=begins)


def test_a_start_after_a_rebuild_of_a_topic_misses_nothing(tmp_path: Path) -> None:
    """The rebuilt queue is shorter than the one that was recorded, and a start goes on with it."""
    site = repeated(tmp_path)
    built(from_now_on(site), topics=["Orders"])
    site.put("Orders", range(30, 35))
    site.write()
    site.output.start()
    assert site.output.verify().differences == ()


def test_a_damaged_line_of_the_ledger_stays_with_all_others(tmp_path: Path) -> None:
    """It may have told of any topic; a rebuild of one leaves the file as it is."""
    site = repeated(tmp_path)
    path = site.output.state / "quarantine.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = b"#" + lines[3][1:]
    path.write_bytes(b"".join(lines))
    built(from_now_on(site), topics=["Orders"])
    assert path.read_bytes() == b"".join(lines)


def test_the_lines_of_other_topics_stay(tmp_path: Path) -> None:
    """The lines of the rebuilt topic go: all of its messages are in its queue now."""
    site = repeated(tmp_path)
    path = site.output.state / "quarantine.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    others = [line for line in lines if b'"Other"' in line]
    assert 0 < len(others) < len(lines)
    built(from_now_on(site), topics=["Orders"])
    assert path.read_bytes() == b"".join(others)


def times(root: Path) -> tuple[int, ...]:
    """The fields of RocketMQ's checkpoint: times of messages in log, queues and full index files,
    how far a master has flushed, and the last message."""
    return struct.unpack_from(">qqqqq", (root / "checkpoint").read_bytes())


def test_an_index_that_stays_keeps_its_time(tmp_path: Path) -> None:
    """The queues of a broker's own store are built anew, and its index is left as it is."""
    site = Site(tmp_path, "maxIndexNum=30\n")
    site.put("Orders", range(100))
    site.write()
    store = DerivedOutput(site.output.store, site.output.store)
    store.start()
    shutil.rmtree(store.state)
    before = times(store.root)
    assert before[2] > 0
    built(configured(store.store, store.root, index=False))
    assert (store.root / "consumequeue.replaced-1").is_dir()
    assert times(store.root) == before


def test_an_index_that_is_built_from_the_logs_beginning_is_known_to_be_whole(
    tmp_path: Path,
) -> None:
    """It was switched on late. The positions stay, but for what says where the index begins, and
    the time of its full files."""
    site = Site(tmp_path, "maxIndexNum=30\n")
    site.put("Orders", range(50))
    site.write()
    site.output.start(index=False)
    site.put("Orders", range(50, 60))
    site.write()
    site.output.start(index=True)
    assert site.output.verify().index_entries == 10
    assert times(site.output.root)[2] == 0
    built(DispatcherConfig(site.output.store, site.output.root), kinds=["index"])
    found = site.output.verify()
    assert (found.index_entries, found.differences) == (60, ())
    # the first two files hold 29 entries each
    assert times(site.output.root)[2] == 1_000_000 + site.offsets[57][1]
