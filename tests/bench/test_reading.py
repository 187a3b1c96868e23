"""The reading rows: the log's rare tags, the reader's pass, and what is no time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import logs, read_worker, reading
from bench.logs import RARE_TAG
from bench.processes import BenchError
from reput.readers.messagestore import MessageStore
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.record import Record
from tests.support.plain_queues import plain_queue


def test_one_of_so_many_messages_of_each_queue_has_the_rare_tag(tmp_path: Path) -> None:
    """From the first one of each on; the others keep theirs."""
    with logs.log_writer(tmp_path, 100, queue_count=3, file_size=4 << 20, rare_tag_every=7) as one:
        log = one.grow(3 << 20)
    tags: dict[tuple[bytes, int], list[bytes]] = defaultdict(list)
    for found in records(CommitLog([tmp_path / "commitlog"]), 0, log.end_offset):
        assert isinstance(found, Record)
        tags[found.topic, found.queue_id].append(found.property_map[b"TAGS"])
    assert len(tags) == 24
    for queue in tags.values():
        rare = [index for index, tag in enumerate(queue) if tag == RARE_TAG.encode()]
        assert rare == list(range(0, len(queue), 7))


def test_a_pass_counts_messages_and_bytes(golden: Callable[[str], Path]) -> None:
    """Units alone read less than a tag's messages, those less than all."""
    store = golden("plain")
    expected = list(plain_queue(store, store / "consumequeue" / "Topic_1" / "0"))
    with MessageStore(store) as opened:
        everything = read_worker.one_pass(opened, "Topic_1", 0, None, None)
        units = read_worker.one_pass(opened, "Topic_1", 0, list(reading.UNITS), None)
        tagged = read_worker.one_pass(opened, "Topic_1", 0, None, "Tag2")
    assert everything["messages"] == everything["looked_at"] == len(expected)
    assert units["messages"] == len(expected)
    assert tagged["messages"] == sum(m.values.get("TAGS") == "Tag2" for m in expected)
    assert units["read_bytes"] < tagged["read_bytes"] < everything["read_bytes"]
    assert everything["read_bytes"] > sum(m.record.total_size for m in expected)


def test_a_pass_that_lost_messages_is_no_time() -> None:
    """Whole passes and those of the rare tag."""
    assert reading.checked({"looked_at": 250, "messages": 250}, None)
    assert reading.checked({"looked_at": 250, "messages": 3}, RARE_TAG)
    for messages, tag in ((249, None), (2, RARE_TAG), (4, RARE_TAG)):
        with pytest.raises(BenchError, match="found"):
            reading.checked({"looked_at": 250, "messages": messages}, tag)
