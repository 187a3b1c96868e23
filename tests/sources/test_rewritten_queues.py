"""Queues that are others than those that a stream has read: an error, or each new message once.

The readers are called as Spark calls them. Axes: a broker's queues over a log that lost its end and
grew again, the same dispatched by reput, queues that were built anew over the same log, queues that
are shorter, one queue and several, within one run and over a restart, repeated batches.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from reput.sources.consumequeue import ConsumeQueueStreamReader
from reput.sources.queueoptions import EVIDENCE
from reput.store.errors import CommitLogDataLossError, UsageError
from reput.store.queue.view import QueueView
from reput.streaming.config import DispatcherConfig
from tests.sources import test_queue_contract
from tests.sources.test_rewritten_log import LAX, bodies
from tests.support.micro_batches import Checkpoint, Rows, Run, plain, some_batches
from tests.support.rewritten_store import RewrittenStore, old_form
from tests.support.sparkless import dispatch
from tests.support.wire import UNIT, file_name


def reader(store: RewrittenStore, **options: Any) -> ConsumeQueueStreamReader:
    """The reader as Spark's planner makes it, from the queues' start."""
    return test_queue_contract.stream_reader(
        store.root, **{"startingOffsets": "earliest", **options}
    )


def run(store: RewrittenStore, checkpoint: Checkpoint, **options: Any) -> Rows:
    """Restart with Trigger.AvailableNow; the rows that are read."""
    return Run(reader(store, **options), checkpoint, available_now=True).all()


@pytest.mark.parametrize("clock", [False, True], ids=["later", "clock back"])
@pytest.mark.parametrize("size", [100, 63], ids=["same size", "smaller"])
@pytest.mark.parametrize("grown", [80, 50, 30, 0])
@pytest.mark.parametrize("queues", [1, 3])
def test_new_messages_come_once_or_there_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, queues: int, grown: int, size: int,
    *, clock: bool,
) -> None:  # fmt: skip
    """A broker's queues, cut with its log at its start."""
    store, checkpoint = RewrittenStore(tmp_path / "store", 1 << 13), Checkpoint()
    first = store.fill(200, queues=queues)
    assert sorted(bodies(run(store, checkpoint))) == sorted(first)
    store.lose(50, clock=clock)
    others = store.fill(grown, "other", size, queues)
    with pytest.raises(CommitLogDataLossError, match=r"LOG_REWRITTEN: the log has changed") as said:
        run(store, checkpoint)
    assert "set failOnDataLoss to false" in str(said.value)
    with caplog.at_level(logging.WARNING):
        found = bodies(run(store, checkpoint, **LAX))
    assert "LOG_REWRITTEN" in caplog.text
    assert sorted(body for body in found if body in others) == sorted(others)
    again = [body for body in found if body not in others]
    assert len(again) == len(set(again)) <= 100
    assert set(again) <= set(first[:150])
    more = store.fill(20, "more", queues=queues)
    caplog.clear()
    assert sorted(bodies(run(store, checkpoint))) == sorted(more)
    assert not caplog.text


@pytest.mark.parametrize("grown", [80, 30])
def test_queues_that_reput_has_cut_are_followed(tmp_path: Path, grown: int) -> None:
    """Units at the same index have another physical offset, or the same one. Before reput has cut
    them, a restart says what to do, which is done here."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    output = {"output": tmp_path / "output"}
    config = DispatcherConfig(store.root, tmp_path / "output")
    store.fill(200, queues=2)
    dispatch(config)
    assert len(run(store, checkpoint, **output)) == 200
    store.lose(50, clock=True)
    others = store.fill(grown, "other", 120, queues=2)
    with pytest.raises(UsageError, match="run the dispatcher, which cuts the queues"):
        run(store, checkpoint, **output)
    dispatch(config)
    with pytest.raises(CommitLogDataLossError, match="LOG_REWRITTEN"):
        run(store, checkpoint, **output)
    found = bodies(run(store, checkpoint, **output, **LAX))
    assert sorted(body for body in found if body in others) == sorted(others)
    more = store.fill(9, "more", queues=2)
    dispatch(config)
    assert sorted(bodies(run(store, checkpoint, **output))) == sorted(more)


def test_a_queue_that_is_cut_within_one_run_stops_it(tmp_path: Path) -> None:
    """By reput, while the query runs; the other queue has not moved."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    output = {"output": tmp_path / "output"}
    config = DispatcherConfig(store.root, tmp_path / "output")
    store.fill(100, queues=2)
    dispatch(config)
    strict, lax = (Run(reader(store, **output, **options), Checkpoint()) for options in ({}, LAX))
    assert len(strict.batch() or ()) == len(lax.batch() or ()) == 100
    store.lose(10)
    others = store.fill(10, "other", 140, queues=2)
    with pytest.raises(UsageError, match="run the dispatcher"):
        # the watermark stands still, so a look comes with the next start of a query
        run(store, checkpoint, **output)
    dispatch(config)
    with pytest.raises(CommitLogDataLossError, match="LOG_REWRITTEN"):
        strict.batch()
    found = bodies(lax.batch() or [])
    assert sorted(body for body in found if body in others) == sorted(others)
    assert lax.batch() is None


@pytest.mark.parametrize("how", ["built anew", "replaced"])
def test_queues_that_change_within_one_run_up_to_the_same_offsets(tmp_path: Path, how: str) -> None:
    """Over the same log: the queue closes up, and ends where it ended with one message more. The
    output is built anew over a message that is damaged by now, or a queue alone is another when the
    dispatcher starts again."""
    store, root = RewrittenStore(tmp_path / "store"), tmp_path / "output"
    config = DispatcherConfig(store.root, root)
    store.fill(100)
    dispatch(config)
    strict, lax = (
        Run(reader(store, output=root, **options), Checkpoint()) for options in ({}, LAX)
    )
    assert len(strict.batch() or ()) == len(lax.batch() or ()) == 100
    start, _ = store.plain.spans[13]
    if how == "built anew":
        store.plain.image[start + 4 : start + 8] = bytes(3) + b"\x01"  # the magic code
        shutil.rmtree(root)
    else:
        path = root / "consumequeue" / "T" / "0" / file_name(0)
        units = path.read_bytes()
        path.write_bytes(units[: 13 * UNIT.size] + units[14 * UNIT.size :] + bytes(UNIT.size))
        (root / "reput" / "ends").unlink()
    others = store.fill(1, "other")
    dispatch(config)
    with pytest.raises(CommitLogDataLossError, match="QUEUE_REWRITTEN"):
        strict.batch()
    assert bodies(lax.batch() or []) == others


@pytest.mark.parametrize("new", [0, 1, 12])
def test_a_queue_that_closed_up_is_read_on_after_its_last_message(tmp_path: Path, new: int) -> None:
    """As after a rebuild over a damaged log: the messages after the damage moved forward. Nothing
    comes again, and no new one is left out, however many there are."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(40)
    run(store, checkpoint)
    others = store.fill(new, "new")
    store.replace_queue([number for number in range(40 + new) if number != 7])
    case = "START_ABOVE_MAX: topic T queue 0 was requested from 40, but ends at 39"
    with pytest.raises(CommitLogDataLossError, match=case if not new else "QUEUE_REWRITTEN: topic"):
        run(store, checkpoint)
    assert bodies(run(store, checkpoint, **LAX)) == others
    assert bodies(run(store, checkpoint, **LAX)) == []
    planned = len(checkpoint.planned)
    more = store.fill(3, "more")
    store.replace_queue([number for number in range(43 + new) if number != 7])
    assert bodies(run(store, checkpoint, **LAX)) == more
    assert bodies(run(store, checkpoint)) == []
    assert len(checkpoint.planned) == planned + 1


@pytest.mark.parametrize("count", [5, 29, 30, 31, 60])
def test_a_queue_that_begins_again_is_read_from_its_beginning(tmp_path: Path, count: int) -> None:
    """A topic that was deleted and made again, over the same log."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(30)
    run(store, checkpoint)
    others = store.fill(count, "again")
    store.replace_queue(list(range(30, 30 + count)))
    with pytest.raises(CommitLogDataLossError, match=r"QUEUE_REWRITTEN|START_ABOVE_MAX"):
        run(store, checkpoint)
    assert bodies(run(store, checkpoint, **LAX)) == others
    assert bodies(run(store, checkpoint)) == []


def test_queues_that_changed_in_the_same_way_are_counted(tmp_path: Path) -> None:
    """The first of them is named, whatever order a set has; each has lost its last unit."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(410, queues=41)
    run(store, checkpoint)
    for queue in range(1, 41):
        path = max((store.root / "consumequeue" / "T" / str(queue)).iterdir())
        data = path.read_bytes()
        kept = data[: (len(data.rstrip(b"\0")) - 1) // UNIT.size * UNIT.size]
        path.write_bytes(kept.ljust(len(data), b"\0"))
    first = "topic T queue 1 was requested from 10, but ends at 9"
    with pytest.raises(CommitLogDataLossError, match=f"{first}, and 39 more queues like it"):
        run(store, checkpoint)


def test_queues_that_changed_in_several_ways_are_counted_by_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two have lost their last unit, and one is another queue."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(40, queues=4)
    run(store, checkpoint)
    for queue in (1, 2):
        store.replace_queue([number for number in range(36) if number % 4 == queue], queue=queue)
    store.replace_queue([number for number in range(40) if number % 4 == 0], queue=3)
    with caplog.at_level(logging.WARNING):
        run(store, checkpoint, **LAX)
    said = [record.getMessage() for record in caplog.records]
    (rewritten,) = [line for line in said if "QUEUE_REWRITTEN: topic T queue 3 " in line]
    (above,) = [line for line in said if "START_ABOVE_MAX: topic T queue 1 " in line]
    assert "more queues" not in rewritten
    assert "and 1 more queues like it" in above


def test_a_queue_that_comes_back_is_not_read_again(tmp_path: Path) -> None:
    """As while reput dispatches anew what a rewind has cut; its messages lie in the same log."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(40)
    query = Run(reader(store, **LAX), checkpoint)
    assert len(query.all()) == 40
    for count in (10, 39, 40):
        store.replace_queue(list(range(count)))
        assert run(store, checkpoint, **LAX) == []
    others = store.fill(5, "other")
    assert bodies(run(store, checkpoint)) == others


def test_messages_put_before_an_offset_are_read(tmp_path: Path) -> None:
    """A queue that was built without some of them, and has them now: which ones they are cannot be
    told, so all come again."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(20)
    store.replace_queue([number for number in range(20) if number not in (3, 4)])
    assert len(run(store, checkpoint)) == 18
    store.write()
    with pytest.raises(CommitLogDataLossError, match="QUEUE_REWRITTEN"):
        run(store, checkpoint)
    assert bodies(run(store, checkpoint, **LAX)) == store.bodies


def test_messages_put_before_an_offset_are_read_where_the_log_changed_too(tmp_path: Path) -> None:
    """The message before the offset is an old one then, and not the one that was read there."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(40)
    store.replace_queue(list(range(1, 40, 2)))
    assert len(run(store, checkpoint)) == 20
    store.lose(2)
    store.fill(3, "new")
    with pytest.raises(CommitLogDataLossError, match="LOG_REWRITTEN"):
        run(store, checkpoint)
    assert bodies(run(store, checkpoint, **LAX)) == store.bodies


@pytest.mark.parametrize("lost", [5, 30, 130])
def test_a_repeated_batch_gives_what_is_left_of_it(tmp_path: Path, lost: int) -> None:
    """Its planned end may lie beyond a queue's end; the rest is of the next batch."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    first = store.fill(100, queues=3)
    run(store, checkpoint)
    first += store.fill(100, "second", queues=3)
    assert Run(reader(store), checkpoint).plan()
    store.lose(lost)
    others = store.fill(60, "other", 77, queues=3)
    with pytest.raises(CommitLogDataLossError, match="LOG_REWRITTEN"):
        run(store, checkpoint)
    repeated = bodies(Run(reader(store, **LAX), checkpoint).read())
    assert not set(repeated) & set(others)
    found = bodies(run(store, checkpoint, **LAX))
    assert sorted(body for body in found if body in others) == sorted(others)
    assert set(first[100:-lost]) <= set(found) <= set(first[:-lost] + others)


def test_an_offset_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """It has no evidence; its first batch gives it some. Where a queue is shorter, all of it is
    read again."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(60, queues=2)
    run(store, checkpoint)
    checkpoint.planned[-1] = old_form(checkpoint.planned[-1])
    assert json.loads(checkpoint.planned[-1]) == {"T": {"0": 30, "1": 30}}
    assert run(store, checkpoint) == []
    assert len(checkpoint.planned) == 1
    shorter = Checkpoint(list(checkpoint.planned), 1)
    more = store.fill(10, "more", queues=2)
    assert sorted(bodies(run(store, checkpoint))) == sorted(more)
    assert EVIDENCE in checkpoint.planned[-1]
    store.lose(20)
    with pytest.raises(CommitLogDataLossError, match="START_ABOVE_MAX"):
        run(store, shorter)
    assert sorted(bodies(run(store, shorter, **LAX))) == sorted(store.bodies)


def test_retention_is_no_loss_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The files of the last messages are gone, in the log and in the queue."""
    store, checkpoint = RewrittenStore(tmp_path / "store", 4096), Checkpoint()
    store.fill(400)
    assert len(run(store, checkpoint)) == 400
    store.fill(20, "more")
    (store.root / "consumequeue" / "T" / "0" / f"{0:020d}").unlink()
    store.expire(store.plain.spans[400][0] // 4096)
    kept = [span for span in store.plain.spans[400:] if span[0] // 4096 >= 400 * 192 // 4096]
    rows = run(store, checkpoint)
    assert [row["physicalOffset"] for row in rows] == [start for start, _ in kept]
    assert "REWRITTEN" not in caplog.text


def test_batches_that_end_in_a_lost_file_go_on(tmp_path: Path) -> None:
    """Each of them over a restart: what was read there has no evidence in the log, and its offset
    is one all the same. The next one has some again."""
    store, checkpoint = RewrittenStore(tmp_path / "store", 4096), Checkpoint()
    store.fill(70)
    sorted((store.root / "commitlog").iterdir())[1].unlink()
    options = {"maxOffsetsPerTrigger": 4, **LAX}
    while Run(reader(store, **options), checkpoint).batch() is not None:
        pass
    assert [row["queueOffset"] for row in checkpoint.rows] == list(range(70))
    assert json.loads(checkpoint.planned[-1])["/evidence"]["units"] == {
        "T": str(store.plain.spans[-1][0])
    }


def test_a_start_beyond_a_queues_end_is_waited_for(tmp_path: Path) -> None:
    """Nothing lies before it yet that has been read; another queue has evidence."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(10, queues=2)
    options = {"initialOffsetPath": str(tmp_path / "pinned"), **LAX}
    starts = json.dumps({"T": {"0": 8, "1": 3}})
    assert run(store, checkpoint, startingOffsets=starts, **options)
    store.fill(14, queues=2)
    run(store, checkpoint, **options)
    read = [(row["queueId"], row["queueOffset"]) for row in checkpoint.rows]
    assert sorted(read) == [(0, each) for each in range(8, 12)] + [
        (1, each) for each in range(3, 12)
    ]


def test_a_topic_that_is_taken_out_keeps_its_evidence(tmp_path: Path) -> None:
    """Taken in again, it is held against the message that was read last."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.put(b"other", topic="U")
    store.fill(3)
    run(store, checkpoint, topics="T,U")
    store.fill(1, "new")
    run(store, checkpoint, topics="T")
    before, after = (json.loads(text)["/evidence"]["units"] for text in checkpoint.planned)
    assert after["U"] == before["U"] == str(store.plain.spans[0][0])
    assert after["T"] == str(store.plain.spans[-1][0])


def test_offsets_have_one_text_and_are_starts(tmp_path: Path) -> None:
    """An idle query gets its own offset back; a user may give one as startingOffsets, with its
    evidence or without, in any order; a changed character of it is noticed or means the same."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(31, queues=3)
    store.put(b"x", topic="Other", queue=12)
    store.write()
    run(store, checkpoint)
    (text,) = checkpoint.planned
    assert list(json.loads(text)) == ["Other", "T", EVIDENCE]
    query = reader(store)
    for _ in range(3):
        found = query.latestOffset(json.loads(text), query.getDefaultReadLimit())
        assert json.dumps(found) == text
    turned = {
        topic: dict(reversed(offsets.items()))
        for topic, offsets in reversed(json.loads(old_form(text)).items())
    }
    for given in (text, old_form(text), json.dumps(turned)):
        assert json.dumps(reader(store, startingOffsets=given).initialOffset()) == text


def test_a_damaged_digit_of_an_offset_is_noticed(tmp_path: Path) -> None:
    """Spark does not check its offset log: another queue or offset, or another place, size or
    checksum of the message before it, is an error, and so is a letter in its place."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(31)
    run(store, checkpoint)
    (text,) = checkpoint.planned
    store.fill(9, "more")
    older = range(text.index(" ", text.index('"log"') + len('"log": ')), text.index('", "units"'))
    for at, letter in enumerate(text):
        if letter.isdigit() and at not in older:
            # what is no JSON is noticed by Spark
            others = ("1" if letter != "1" else "2", *("x" if at > text.index(EVIDENCE) else ""))
            for other in others:
                changed = text[:at] + other + text[at + 1 :]
                with pytest.raises(CommitLogDataLossError):
                    run(store, Checkpoint([changed], 1))


def test_an_idle_look_reads_no_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are; and a batch looks at those that have moved."""
    store, checkpoint = RewrittenStore(tmp_path / "store"), Checkpoint()
    store.fill(120, queues=60)
    query = reader(store)
    known = Run(query, checkpoint)
    assert len(known.batch() or ()) == 120
    assert known.batch() is None
    looked: list[int] = []
    unit_before = QueueView.unit_before

    def counted(queue: QueueView, offset: int) -> tuple[int, int] | None:
        looked.append(offset)
        return unit_before(queue, offset)

    monkeypatch.setattr(QueueView, "unit_before", counted)
    before = query._store().queues.refreshes
    while query._store().queues.refreshes < before + 3:
        assert known.batch() is None
    assert not looked
    store.put(b"one more", queue=7)
    store.write()
    while (rows := known.batch()) is None:
        pass
    assert bodies(rows) == [b"one more"]
    assert 0 < len(looked) < 10


def test_any_cut_of_any_log_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Batches of random sizes, cuts at random places, restarts and repeated batches: each message
    that is in the queues at the end was read, and no row says that it is damaged."""
    rng = random.Random(seed)
    for case in range(25):
        store = RewrittenStore(tmp_path / str(case), rng.choice((1024, 4096, 1 << 16)))
        checkpoint, read = Checkpoint(), set[bytes]()
        for step in range(rng.randint(3, 8)):
            store.change(rng, f"{case}.{step}.")
            read.update(bodies(some_batches(rng, partial(reader, store, **LAX), checkpoint)))
        read.update(bodies(run(store, checkpoint, **LAX)))
        assert set(store.bodies) <= read, case


def test_a_limited_stream_is_told_of_the_rest_before_more_comes(tmp_path: Path) -> None:
    """Nothing changes between the calls: only at the last message is there nothing to look for."""
    store, output = RewrittenStore(tmp_path / "store"), tmp_path / "output"
    store.fill(5)
    dispatch(DispatcherConfig(store.root, output))
    query = reader(store, output=output, maxOffsetsPerTrigger=2)
    ends = [query.initialOffset()]
    for _ in range(4):
        ends.append(query.latestOffset(ends[-1], query.getDefaultReadLimit()))
    query.stop()
    unlimited = reader(store, output=output)
    assert ends[3] == ends[4] == unlimited.latestOffset(ends[0], ReadAllAvailable())
    unlimited.stop()
    assert len({json.dumps(end) for end in ends}) == 4


def test_a_queue_that_is_away_while_the_end_is_fixed_keeps_its_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back before the batch is planned, with nothing new: its messages do not come
    again."""
    monkeypatch.setattr("reput.sources.queues.POLL_SHARE", 1e9)  # each look is due at once
    store = RewrittenStore(tmp_path / "store", 1 << 13)
    store.fill(30, queues=3)
    before, lax = reader(store), reader(store, failOnDataLoss="false")
    read = before.latestOffset(before.initialOffset(), ReadAllAvailable())
    queue = min((store.root / "consumequeue").glob("*/1"))
    queue.rename(tmp_path / "away")
    lax.prepareForTriggerAvailableNow()
    (tmp_path / "away").rename(queue)
    assert plain(lax.latestOffset(read, ReadAllAvailable())) == plain(read)
