"""Commits in rare states, without Spark: what a start finds of another writer or of a killed one.

What is on disk is read as bytes, and what would be there after a power cut is the recorder's.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.errors import CommitLogError
from reput.store.state.watermark import Watermark
from tests.streaming.test_commit import (
    FILE_SIZE,
    TIME,
    cut,
    ledger,
    opened,
    output,
    plain,
    store,
    units,
    watermark,
)
from tests.support.derived_output import DerivedOutput
from tests.support.operations import before_operations
from tests.support.power_cuts import Disk
from tests.support.recorder import Recorder
from tests.support.several_paths import spread
from tests.support.wire import PlainLog, file_name

__all__ = ["output", "plain", "store"]


def checkpoint(output: Path) -> tuple[int, ...]:
    """The six fields of RocketMQ's checkpoint file; a broker 5.5 begins to dispatch at the last."""
    return struct.unpack_from(">qqqqqq", (output / "checkpoint").read_bytes())


def lost(start: int, end: int) -> dict[str, object]:
    """The ledger's line about a range whose files retention took."""
    return {"physical_offset": start, "end_physical_offset": end, "reason": "segment_deleted"}


@pytest.mark.parametrize("index", [True, False])
def test_the_time_of_an_index_that_a_broker_built_stays(
    output: Path, store: Path, plain: PlainLog, *, index: bool
) -> None:
    """A broker deletes the index files that are younger than the third field. Where this run builds
    none, they are the broker's; where it does, a run that was cut short may have lost the last."""
    (store / "broker.conf").write_text(f"messageIndexEnable={str(index).lower()}\n")
    output.mkdir()
    known = struct.pack(">qqqqq", TIME, TIME, TIME + 5, 0, 0)
    (output / "checkpoint").write_bytes(known.ljust(4096, b"\0"))
    found = []
    for _ in range(2):
        with opened(store, output) as run:
            run.commit(0, plain.spans[9][1])
        found.append(checkpoint(output)[2])
    assert found == [TIME + 5, 0 if index else TIME + 5]


def test_a_cut_log_is_at_once_in_rocketmqs_checkpoint(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """A broker that starts before the next message comes begins its recovery by it."""
    with opened(store, output) as run:
        run.commit(0, plain.end)
        run.committer.end()
    assert checkpoint(output)[:2] == (TIME + 59, TIME + 59)
    cut(store, plain, 40)
    with opened(store, output):
        assert checkpoint(output)[:5] == (TIME + 39, TIME + 39, 0, 0, plain.spans[39][0])


def test_a_log_that_is_empty_again_has_nothing_in_rocketmqs_checkpoint(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """The sixth field, from which a broker 5.5 dispatches, is an offset also where there is no last
    message; all queues are gone with it."""
    (store / "broker.conf").write_text("enableAcceleratedRecovery=true\n")
    with opened(store, output) as run:
        run.commit(0, plain.end)
        run.committer.end()
    assert checkpoint(output)[5] == plain.spans[-1][0]
    shutil.rmtree(output / "consumequeue")
    plain.put(0, bytes(plain.end))
    plain.write(store / "commitlog")
    with opened(store, output):
        assert checkpoint(output)[4:] == (0, 0)


def test_a_repeated_batch_lists_no_loss_of_what_is_dispatched(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """Retention has taken a part of it meanwhile: only what nobody has dispatched is lost."""
    end = plain.spans[5][1]
    with opened(store, output) as run:
        run.commit(0, end)
        first = lose_files(store, 2)
        assert run.commit(0, plain.end).quarantined_bytes == first - end
    assert ledger(output) == [lost(end, first)]


def test_damage_whose_line_is_gone_is_listed_when_its_batch_comes_again(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """A replay is what brings a lost ledger back."""
    start, end = plain.spans[22]
    plain.put(start + 4, b"XXXX")
    plain.write(store / "commitlog")
    lines = []
    for _ in range(2):
        with opened(store, output) as run:
            counts = run.commit(0, plain.end)
        assert counts.quarantined_bytes == end - start
        lines.append(ledger(output))
        (output / "reput" / "quarantine.jsonl").unlink()
    assert lines[0] == lines[1] != []


def lose_files(store: Path, count: int) -> int:
    """Retention takes the log's first files; where the log begins then."""
    for number in range(count):
        (store / "commitlog" / file_name(number * FILE_SIZE)).unlink(missing_ok=True)
    return count * FILE_SIZE


def test_a_lost_range_is_listed_once_after_a_start_that_was_interrupted(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """It had listed the range and not moved the watermark; then the log lost more."""
    end = plain.spans[5][1]
    with opened(store, output) as run:
        run.commit(0, end)
    with (output / "reput" / "quarantine.jsonl").open("a") as file:
        file.write(json.dumps(lost(end, 2 * FILE_SIZE)) + "\n")
    first = lose_files(store, 3)
    with opened(store, output):
        assert watermark(output).end_offset == first
    assert ledger(output) == [lost(end, first)]


def durable_end(tree: dict[str, bytes]) -> int:
    data = tree.get("reput/watermark", b"")
    slots = [Watermark.unpack(data[at : at + 4096]) for at in (0, 4096)]
    found = max((one for one in slots if one), key=lambda one: one.sequence, default=None)
    return -1 if found is None else found.end_offset


def test_a_lost_range_is_listed_before_the_watermark_passes_it(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """Wherever the power is cut: what is skipped is in the ledger, or comes again."""
    end = plain.spans[5][1]
    with opened(store, output) as run:
        run.commit(0, end)
    first = lose_files(store, 2)
    with Recorder(output) as recorder, opened(store, output):
        pass
    recorder.check()
    passed = 0
    for count in range(len(recorder.operations) + 1):
        tree = dict(Disk.after(recorder, count).durable())
        if durable_end(tree) >= first:
            passed += 1
            assert b"segment_deleted" in tree["reput/quarantine.jsonl"], count
    assert passed


@pytest.mark.parametrize("is_ours", [False, True])
def test_what_another_writer_or_a_killed_run_left_is_durable_before_a_watermark_covers_it(
    output: Path,
    store: Path,
    plain: PlainLog,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_ours: bool,
) -> None:
    """A broker syncs its queues once a minute, and is killed before that. What a start finds of
    another writer or of a run that was cut short, it has no writes of its own for."""
    with opened(store, output) as run:
        run.commit(0, plain.end)
        if not is_ours:
            run.committer.end()
    for path in () if is_ours else (output / "reput").iterdir():
        if path.is_file():
            path.unlink()
    synced: list[int] = []
    sync_file_system = fsops.sync_file_system

    def noted(fd: int, path: Path) -> None:
        sync_file_system(fd, path)
        synced.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(fsops, "sync_file_system", noted)
    before: list[bool] = []

    def tell(operation: str, path: str) -> None:
        if operation == "pwrite" and path.endswith("/watermark"):
            before.append(output.stat().st_ino in synced)

    with before_operations(tell), opened(store, output):
        pass
    assert before
    assert all(before)


def test_rocketmqs_checkpoint_names_a_record_of_a_log_that_was_cut(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """The sixth field is where a broker 5.5 begins to dispatch after a crash. One that keeps it
    finds it there after a cut too, and at no moment of the start an offset that the log has no
    record at, but for the one that it has had since the cut."""
    output.mkdir()
    (output / "checkpoint").write_bytes(struct.pack(">qqqqqq", 0, 0, 0, 0, 0, plain.spans[3][0]))
    with opened(store, output) as run:
        run.commit(0, plain.end)
        run.committer.end()
    before, last = plain.spans[-1][0], plain.spans[39][0]
    cut(store, plain, 40)
    found: list[int] = []

    def note(*_: object) -> None:
        found.append(checkpoint(output)[5])

    with before_operations(note), opened(store, output):
        note()
    assert found[0] == before
    assert found[-1] == last
    assert {*found} == {before, last}


def test_an_index_that_is_built_from_earlier_on_begins_there(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """One that was asked for later has no entry yet when older messages are dispatched again: it
    is complete from the first of them on, and a lost entry of any of them is missed."""
    (store / "broker.conf").write_text("maxHashSlotNum=10\nmaxIndexNum=20\n")
    plain.append(topic=b"A", queue_offset=30, properties=b"KEYS\x01k\x02")
    plain.write(store / "commitlog")
    derived = DerivedOutput(store, output)
    derived.start(index=False)
    derived.start(index=True)
    assert watermark(output).index_begin == plain.end
    derived.start(index=True, replay_from="earliest")
    assert watermark(output).index_begin == plain.spans[0][0]
    assert len(derived.index()[0].entries) == 1
    assert derived.verify().differences == ()
    for path in (output / "index").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    assert derived.verify().differences != ()


def test_a_batch_that_misses_a_disk_lists_nothing_as_lost(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """A log's second disk goes while it is dispatched: what is there again later has not been
    skipped for ever."""
    directories = spread(store, [store / "second"])
    away, ends = store / "away", [end for _, end in plain.spans]
    end = next(end for end in ends if FILE_SIZE // 2 < end < FILE_SIZE)
    with opened(store, output) as run:
        run.commit(0, end)
        directories[1].rename(away)
        directories[1].mkdir()
        with pytest.raises(CommitLogError, match=r"may not be mounted: nothing of \[1024, 2048\)"):
            run.commit(end, plain.end)
        assert ledger(output) == []
        directories[1].rmdir()
        away.rename(directories[1])
        run.commit(end, plain.end)
    assert units(output, "A/0") == [start for start, _ in plain.spans[::2]]
