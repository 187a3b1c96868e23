"""A message that damage has taken closes its queue up: that is said, with the groups concerned."""

from __future__ import annotations

import json
import logging
import re
import shutil
import struct
import threading
from pathlib import Path

import pytest

from reput.cli import rebuild as command
from reput.store.config import OnQueueGap
from reput.store.state.movedpositions import MovedQueue, warn_of_moved
from reput.streaming.config import DispatcherConfig
from reput.streaming.progress import Progress
from reput.upkeep.compare import Comparison
from reput.upkeep.rebuild import Rebuilt, rebuild
from tests.streaming.test_begin_again import Site, sparkless, units
from tests.support.configs import configured
from tests.support.sparkless import dispatch

LOST = 7
"""The message of Orders that is damaged."""


def damaged(directory: Path) -> Site:
    """Thirty messages, one of them damaged; of four groups, two have committed beyond it."""
    site = Site(directory)
    site.put("Orders", range(30))
    at = site.offsets[LOST][1]
    site.plain.put(at, struct.pack(">i", 0))
    site.write()
    (site.output.store / "config").mkdir()
    committed = {"g1": 20, "g2": LOST, "g3": LOST + 1, "g4": 0}
    table = {f"Orders@{group}": {"0": offset} for group, offset in committed.items()}
    table["Other@g4"] = {"0": 100}
    path = site.output.store / "config" / "consumerOffset.json"
    path.write_text(json.dumps({"offsetTable": table}))
    return site


@pytest.mark.parametrize(("count", "rest"), [(8, "RocketMQ"), (10, "2 queues more; "), (30, "22 ")])
def test_a_log_names_eight_queues(caplog: pytest.LogCaptureFixture, count: int, rest: str) -> None:
    """A line for each, and one that counts the others and says what it means."""
    warn_of_moved([MovedQueue("T", number, 3, 4, 5, 0) for number in range(count)])
    *named, last = caplog.messages
    assert [line.split()[7] for line in named] == [f"queue={number}" for number in range(8)]
    assert last.startswith(rest)


def test_a_rebuild_names_ten_queues(tmp_path: Path) -> None:
    """The others are counted."""
    moved = tuple(MovedQueue("T", number, 3, 4, 5, 0) for number in range(33))
    parts = [*command._parts(Rebuilt(Progress(), Comparison(), [], moved=moved), tmp_path, True)]
    assert parts[:10] == [queue.line for queue in moved[:10]]
    assert str(parts[10]).startswith("23 queues more; RocketMQ closes gaps up")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, None])
def test_groups_that_cannot_be_read_keep_nothing_from_being_dispatched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    """A broker is writing its file, or the disk has lost it: the queue is named all the same."""
    site = damaged(tmp_path)
    path = site.output.store / "config" / "consumerOffset.json"
    path.unlink()
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)
    site.output.start()
    at = site.offsets[LOST + 1][1]
    assert MovedQueue("Orders", 0, LOST, LOST + 1, at, 0).line in caplog.messages
    assert sum(str(path) in line for line in caplog.messages) == 1
    assert units(site) == [place for offset, place in site.offsets if offset != LOST]


def test_a_queue_that_closes_up_is_named_and_blank_keeps_places(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By a run, once; by a rebuild, as fields; the advised rebuild has each message at its
    offset, and nothing to say."""
    caplog.set_level(logging.WARNING, "reput")
    site = damaged(tmp_path)
    site.output.start()
    at = site.offsets[LOST + 1][1]
    wanted = MovedQueue("Orders", 0, LOST, LOST + 1, at, 2)
    said = [line for line in caplog.messages if "no longer equal" in line]
    assert said == [wanted.line]
    assert "topic=Orders queue=0 position=7 queue_offset=8" in said[0]
    assert said[0].endswith("groups_beyond=2")
    assert len([line for line in caplog.messages if "--on-queue-gap blank" in line]) == 1
    caplog.clear()
    site.put("Orders", range(31, 33))
    site.write()
    site.output.start()
    # another gap, in another run
    assert [line for line in caplog.messages if "no longer equal" in line]

    config = DispatcherConfig(site.output.store, site.output.root)
    done = rebuild(config, threading.Event(), build=sparkless, dry_run=True)
    assert done.moved == (wanted,)
    caplog.clear()
    config = configured(site.output.store, site.output.root, on_queue_gap=OnQueueGap.BLANK)
    done = rebuild(config, threading.Event(), build=sparkless)
    assert done.moved == ()
    assert not any("no longer equal" in line for line in caplog.messages)
    places = units(site)
    offsets = dict(site.offsets)
    assert [places[offset] for offset in offsets if offset != LOST] == [
        physical for offset, physical in site.offsets if offset != LOST
    ]


def test_each_queue_is_named_once_in_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another queue closes up, and then the first one again."""
    caplog.set_level(logging.WARNING, "reput")
    site, cuts = Site(tmp_path), []
    for number, topic in enumerate(("Orders", "Other", "Orders", "Other")):
        first = 10 * (number // 2)
        site.put(topic, range(first, first + 3))
        site.put(topic, range(first + 5, first + 8))
        cuts.append(site.plain.end)
    site.write()
    dispatch(DispatcherConfig(site.output.store, site.output.root, once=True), cuts)
    said = [line for line in caplog.messages if "no longer equal" in line]
    assert [re.findall("topic=([A-Z][a-z]+) ", line) for line in said] == [["Orders"], ["Other"]]


def test_queues_that_are_built_again_are_listed_as_they_are_then(tmp_path: Path) -> None:
    """Retention has taken what lay before a gap, and somebody the queues: they begin at the gap's
    other side, and the ledger lists none that is not there."""
    site = Site(tmp_path)
    site.put("Orders", range(5))
    site.put("Other", range(100))
    site.put("Orders", range(8, 10))
    site.write()
    site.output.start()
    ledger = site.output.state / "quarantine.jsonl"
    assert "queue offset 8 at position 5" in ledger.read_text()
    site.expire(site.offsets[5][1])
    shutil.rmtree(site.output.root / "consumequeue")
    site.output.start()
    fresh = site.fresh()
    assert site.queue() == site.queue(fresh) != {}
    assert ledger.read_text() == ""
