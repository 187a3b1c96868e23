"""A start over a log whose last file ends with a BLANK, or no longer does."""

from __future__ import annotations

import struct
from pathlib import Path

from reput.checkpoints.agreement import what_differs
from reput.store.log.commitlog import CommitLog
from reput.store.state.watermark import read_watermark
from tests.support.small_store import SmallStore
from tests.support.wire import BLANK_MAGIC, PlainLog

FILE_SIZE = 1024


def test_a_replay_begins_at_the_end_of_a_log_that_ends_with_its_file(tmp_path: Path) -> None:
    """A BLANK ends the last file, and the broker has not begun another one."""
    plain = PlainLog(FILE_SIZE)
    plain.append()
    plain.put(plain.end, struct.pack(">iI", FILE_SIZE - plain.end, BLANK_MAGIC))
    store = SmallStore(tmp_path, plain)
    store.output.start()
    assert store.end == FILE_SIZE
    store.output.start(replay_from=str(FILE_SIZE))
    assert store.end == FILE_SIZE


def test_a_record_in_the_place_of_a_blank_is_another_log(tmp_path: Path) -> None:
    """The last record is the one that was dispatched, and yet the log is not."""
    plain = PlainLog(FILE_SIZE)
    plain.append()
    blank = plain.end
    plain.put(blank, struct.pack(">iI", FILE_SIZE - blank, BLANK_MAGIC))
    store = SmallStore(tmp_path, plain)
    store.output.start()
    found = read_watermark(store.output.state)
    assert found is not None
    plain.append(queue_offset=1)
    log = CommitLog([plain.write(store.output.store / "commitlog")])
    said = what_differs(log, None, found)
    log.close()
    assert said is not None
    assert f"a record is at physical offset {blank}, below the watermark {FILE_SIZE}" in said
