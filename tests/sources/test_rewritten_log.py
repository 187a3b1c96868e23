"""A log that lost its end and grew again under a stream: an error, or each new message once.

The readers are called as Spark calls them (``tests.support.micro_batches``), over logs that the
test wrote. Axes: bodies of the same length and another one, identical but for a property, a log
that is still shorter, files of any number, a clock that goes on or is put back, within one run and
over a restart, a batch that is repeated.
"""

from __future__ import annotations

import json
import logging
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from reput.sources.commitlog import CommitLogStreamReader
from reput.sources.commitlogoptions import CommitLogOptions
from reput.store.errors import CommitLogDataLossError
from reput.store.log.logtail import LogTail
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.support.micro_batches import Checkpoint, Rows, Run, some_batches
from tests.support.rewritten_store import RewrittenStore, old_form


def reader(store: RewrittenStore, **options: Any) -> CommitLogStreamReader:
    """The reader as Spark's planner makes it, from the log's start."""
    given = {"path": str(store.root), "startingOffsets": "earliest"}
    given |= {key: str(value) for key, value in options.items()}
    return CommitLogStreamReader(CommitLogOptions(given), from_arrow_schema(ROWS_SCHEMA))


def run(store: RewrittenStore, checkpoint: Checkpoint, **options: Any) -> Rows:
    """Restart with Trigger.AvailableNow; the rows that are read."""
    return Run(reader(store, **options), checkpoint, available_now=True).all()


def bodies(rows: Rows) -> list[bytes]:
    """Bodies; no row of damage is among them."""
    assert [row["corruptReason"] for row in rows] == [None] * len(rows)
    return [row["body"] for row in rows]


LAX = {"failOnDataLoss": "false"}


@pytest.mark.extended
@pytest.mark.parametrize("clock", [False, True], ids=["later", "clock back"])
@pytest.mark.parametrize("size", [100, 63, 131], ids=["same size", "smaller", "larger"])
@pytest.mark.parametrize("grown", [80, 50, 30, 0])
@pytest.mark.parametrize("file_size", [1 << 16, 1 << 11], ids=["one file", "many files"])
def test_new_messages_come_once_or_there_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file_size: int, grown: int, size: int,
    *, clock: bool,
) -> None:  # fmt: skip
    """200 messages are read; the last 50 are lost and others written. With failOnDataLoss a restart
    says so, until its advice is followed: then it reads all others, and again some that it
    names."""
    store, checkpoint = RewrittenStore(tmp_path / "store", file_size), Checkpoint()
    first = store.fill(200)
    assert bodies(run(store, checkpoint)) == first
    end = store.plain.end
    store.lose(50, clock=clock)
    others = store.fill(grown, "other", size)
    case = "LOG_SHRANK" if store.plain.end < end else "LOG_REWRITTEN"
    with pytest.raises(CommitLogDataLossError, match=case) as caught:
        run(store, checkpoint)
    assert "set failOnDataLoss to false" in str(caught.value)
    assert "\n" not in str(caught.value)
    with caplog.at_level(logging.WARNING):
        rows = run(store, checkpoint, **LAX)
    found = bodies(rows)
    assert found[len(found) - grown :] == others
    again = found[: len(found) - grown]
    assert again == first[150 - len(again) : 150]
    assert len(again) <= 50
    if again:
        (low, high), *_ = (
            map(int, match) for match in re.findall(r"messages of \[(\d+), (\d+)\)", caplog.text)
        )
        places = [row["physicalOffset"] for row in rows[: len(again)]]
        assert low <= min(places) <= max(places) < high
    more = store.fill(20, "more")
    caplog.clear()
    assert bodies(run(store, checkpoint)) == more
    assert not caplog.text


def test_a_log_that_is_shorter_is_followed_from_its_end(tmp_path: Path) -> None:
    """It need not pass the old offset first; and within one run."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(200)
    query = Run(reader(store, **LAX), checkpoint)
    assert len(query.all()) == 200
    store.lose(50)
    again = bodies(query.all())
    assert len(again) <= 50
    for number in range(5):
        assert bodies(query.all()) == []
        others = store.fill(3, f"other{number}", 80)
        found: list[bytes] = []
        while len(found) < len(others):
            # the log's last record is sealed by a look some milliseconds later
            found += bodies(query.all())
        assert found == others


def test_a_log_that_changes_within_one_run_stops_it(tmp_path: Path) -> None:
    """At its next look, also where the log ends at the same place."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(200)
    query = Run(reader(store), checkpoint)
    assert len(query.all()) == 200
    store.lose(50, clock=True)
    store.fill(50, "x")
    with pytest.raises(CommitLogDataLossError, match="LOG_REWRITTEN"):
        query.batch()


def test_a_record_that_differs_in_its_properties_alone_is_another_one(tmp_path: Path) -> None:
    """Same place, size, body, queue offset and times."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    for number in range(9):
        store.put(b"body", properties=b"KEYS\x01a%d\x02" % number)
    store.write()
    run(store, checkpoint)
    store.lose(2, clock=True)
    for number in range(2):
        store.put(b"body", properties=b"KEYS\x01b%d\x02" % number)
    store.write()
    with pytest.raises(CommitLogDataLossError, match="LOG_REWRITTEN"):
        run(store, checkpoint)
    rows = run(store, checkpoint, **LAX)
    assert [row["keys"] for row in rows[-2:]] == ["b0", "b1"]


def test_a_smaller_record_in_the_place_of_a_blank_is_read(tmp_path: Path) -> None:
    """The log lost the BLANK with what followed it, and nothing that was before it."""
    store, checkpoint = RewrittenStore(tmp_path / "store", 2048), Checkpoint()
    store.fill(7, size=150)
    assert store.plain.end % 2048 > 1024
    store.put(b"b" * 900)
    store.write()
    limited = Run(reader(store, maxOffsetsPerTrigger=7), checkpoint)
    assert len(limited.batch() or ()) == 7
    assert json.loads(checkpoint.planned[0])["offset"] < 2048
    # the batch ends at the file's end where a limit in bytes prefers it
    by_bytes = Checkpoint()
    assert len(Run(reader(store, maxBytesPerTrigger=2048), by_bytes).batch() or ()) == 7
    assert json.loads(by_bytes.planned[0])["offset"] == 2048
    store.lose(1)
    others = store.fill(1, "small", 60)
    assert bodies(run(store, checkpoint)) == others
    with pytest.raises(CommitLogDataLossError, match=r"LOG_(SHRANK|REWRITTEN)"):
        run(store, by_bytes)
    assert bodies(run(store, by_bytes, **LAX)) == others


@pytest.mark.parametrize("lost", [5, 30, 90, 130])
def test_a_repeated_batch_gives_what_is_left_of_it(tmp_path: Path, lost: int) -> None:
    """A batch was planned and not committed when the log lost its end: its planned end may lie
    beyond the log's, or within a record. The rest of the new log is of the next batch."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    first = store.fill(100)
    assert bodies(run(store, checkpoint)) == first
    first += store.fill(100, "second")
    query = Run(reader(store), checkpoint)
    assert query.plan()
    store.lose(lost)
    others = store.fill(60, "other", 77)
    with pytest.raises(CommitLogDataLossError, match=r"LOG_(SHRANK|REWRITTEN)"):
        run(store, checkpoint)
    repeated = bodies(Run(reader(store, **LAX), checkpoint).read())
    kept = first[:-lost]
    assert not set(repeated) & set(others)
    rows = bodies(run(store, checkpoint, **LAX))
    assert [body for body in rows if body in others] == others
    assert set(kept[100:]) <= set(rows)
    assert set(rows) <= set(kept + others)


@pytest.mark.parametrize("grown", [80, 30])
def test_an_offset_of_an_earlier_version_goes_on(tmp_path: Path, grown: int) -> None:
    """It has no evidence; its first batch gives it some."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(200)
    run(store, checkpoint)
    checkpoint.planned[-1] = old_form(checkpoint.planned[-1])
    assert "evidence" not in checkpoint.planned[-1]
    assert bodies(run(store, checkpoint)) == []
    assert len(checkpoint.planned) == 1
    more = store.fill(10, "more")
    assert bodies(run(store, checkpoint)) == more
    assert "evidence" in checkpoint.planned[-1]
    store.lose(30)
    store.fill(grown, "other")
    with pytest.raises(CommitLogDataLossError):
        run(store, checkpoint)


def test_a_log_shorter_than_an_offset_of_an_earlier_version_is_read_again(tmp_path: Path) -> None:
    """Nothing shows which of its messages were read."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(200)
    run(store, checkpoint)
    checkpoint.planned[-1] = old_form(checkpoint.planned[-1])
    store.lose(100)
    store.fill(20, "other")
    with pytest.raises(CommitLogDataLossError, match="LOG_SHRANK: requested from"):
        run(store, checkpoint)
    assert bodies(run(store, checkpoint, **LAX)) == store.bodies


def test_retention_is_no_loss_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The last record's file is gone, and the log goes on where the offset is; a missing file
    between others shows nothing either."""
    store, checkpoint = RewrittenStore(tmp_path / "store", 4096), Checkpoint()
    while store.plain.end // 4096 < 3 or store.plain.end % 4096 < 3000:
        store.put(b"m" * 100)
    store.write()
    query = Run(reader(store, maxBytesPerTrigger=2 * 4096), checkpoint)
    query.batch()
    assert json.loads(checkpoint.planned[0])["offset"] == 2 * 4096
    store.expire(2)
    kept = [span for span in store.plain.spans if span[0] >= 2 * 4096]
    rows = run(store, checkpoint)
    assert [row["physicalOffset"] for row in rows] == [start for start, _ in kept]
    store.fill(40, "more")
    sorted((store.root / "commitlog").iterdir())[3].unlink()
    run(store, checkpoint, **LAX)
    assert "LOG_" not in caplog.text


def test_any_cut_of_any_log_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Batches of random sizes, cuts at random places, restarts and repeated batches: each message
    that is in the log at the end was read, and none of a row that says it is damaged."""
    rng = random.Random(seed)
    for case in range(25):
        store = RewrittenStore(tmp_path / str(case), rng.choice((1024, 4096, 1 << 16)))
        checkpoint, read = Checkpoint(), set[bytes]()
        for step in range(rng.randint(3, 8)):
            store.change(rng, f"{case}.{step}.")
            read.update(bodies(some_batches(rng, partial(reader, store, **LAX), checkpoint)))
        read.update(bodies(run(store, checkpoint, **LAX)))
        assert set(store.bodies) <= read, case


def test_an_idle_look_reads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some small reads, however long the log is, and the same offset."""
    store, checkpoint = RewrittenStore(tmp_path / "store", 1 << 20), Checkpoint()
    store.fill(3000)
    monkeypatch.setattr(LogTail, "DAMAGE_GRACE_SECONDS", 0.0)
    query = reader(store)
    Run(query, checkpoint).all()
    read: list[int] = []
    log = query._store()[1]
    read_into = log.read_into

    def counted(offset: int, buffer: memoryview) -> int:
        read.append(len(buffer))
        return read_into(offset, buffer)

    offset = json.loads(checkpoint.planned[-1])
    while not query._log_tail().is_idle:
        query.latestOffset(offset, query.getDefaultReadLimit())
    monkeypatch.setattr(log, "read_into", counted)
    assert query.latestOffset(offset, query.getDefaultReadLimit()) is offset
    assert sum(read) < 1000
