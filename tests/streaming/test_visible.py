"""The visible end: readers of this machine see what is not durable yet, and never see it go back.

What readers see is compared with the plain writer's log, before each operation on the output's
files. A start under another boot is one whose boot has another name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from reput.checkpoints.watermark import WatermarkFile
from reput.readers.messagestore import MessageStore
from reput.store import fsops
from reput.store.config import read_store_settings
from reput.store.state import visible
from reput.store.state.built import settings_of
from reput.store.state.visible import EndReader, read_end
from reput.upkeep.verify.run import verify
from tests.streaming.test_commit import opened, output, plain, store, units, watermark
from tests.support.wire import UNIT, PlainLog, file_name

__all__ = ["output", "plain", "store"]
HOUR_MS = 3_600_000


def starts_of(plain: PlainLog) -> list[int]:
    """Where each message of the log begins."""
    return [start for start, _ in plain.spans]


def seen(output: Path) -> int:
    """The end that readers of this machine see now."""
    found = read_end(output / "reput")
    assert found is not None
    return found.end_offset


def write_two_batches(store: Path, output: Path, plain: PlainLog) -> None:
    """Dispatch forty messages, of which the last twenty are not synced, and end as by a kill."""
    starts = starts_of(plain)
    with opened(store, output, durable_latency_ms=HOUR_MS) as run:
        run.commit(0, starts[20])
        run.commit(starts[20], starts[40])
    assert (watermark(output).end_offset, seen(output)) == (starts[20], starts[40])


@contextmanager
def watched(output: Path, plain: PlainLog) -> Iterator[list[int]]:
    """Look before each operation on a file; yield the ends that were seen. All units before them
    are the log's."""
    starts, ends, reader = starts_of(plain), list[int](), EndReader(output / "reput")

    def look(*_: object) -> None:
        found = reader.read()
        assert found is not None
        ends.append(found.end_offset)
        for number, queue in enumerate(("A/0", "B/0")):
            expected = [start for start in starts[number::2] if start < found.end_offset]
            assert units(output, queue)[: len(expected)] == expected

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(fsops._failpoints, "reach", look)
        yield ends
        look()


def another_boot(patches: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give the boot another name, as after a power cut, or on another machine."""
    other = tmp_path / "boot_id"
    other.write_text("0b6d4b0c-6d9c-4a77-8c5c-9a4fbd0d7f3a\n")
    patches.setattr(visible, "BOOT_ID_FILE", other)


def be_killed_at_a_start(store: Path, output: Path) -> None:
    """Die after the readers' end has the new epoch, and before the watermark has it."""

    class KilledError(Exception):
        pass

    def killed(*_: object) -> None:
        raise KilledError

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("reput.checkpoints.watermark.WatermarkFile.take_over", killed)
        with pytest.raises(KilledError), opened(store, output):
            pass


def test_readers_see_what_is_not_durable_yet(output: Path, store: Path, plain: PlainLog) -> None:
    """They read the messages themselves; a second later, at the latest, these are durable."""
    starts = starts_of(plain)
    with opened(store, output, durable_latency_ms=HOUR_MS) as run:
        run.commit(0, starts[20])
        with MessageStore(store, output=output) as reader:
            assert reader.queue("A", 0).max_offset() == 10
            run.commit(starts[20], starts[40])
            reader.refresh()
            assert reader.queue("A", 0).max_offset() == 20
            found = reader.queue("B", 0).units(0, 100)
            assert [unit.physical_offset for unit in found] == starts[1:40:2]
        assert watermark(output).end_offset == starts[20]
        run.committer.tend()
        assert watermark(output).end_offset == starts[20]
        run.committer._durable_due = 0.0
        run.committer.tend()
        assert watermark(output).end_offset == seen(output) == starts[40]
        run.commit(starts[40], plain.end)
        run.committer.end()
    assert watermark(output).end_offset == seen(output) == plain.end
    assert not (output / "reput" / "abort").exists(), "what was not durable yet is in the end"


def test_nothing_that_was_seen_is_taken_back_by_a_start_after_a_kill(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """Neither the end nor a unit before it, at any moment; the units beyond it are cleared."""
    starts = starts_of(plain)
    write_two_batches(store, output, plain)
    path = output / "consumequeue" / "A" / "0" / file_name(0)
    with path.open("r+b") as file:
        file.seek(20 * 20)
        file.write(UNIT.pack(starts[40], 51, 0))
    with watched(output, plain) as ends, opened(store, output) as run:
        assert watermark(output).end_offset == starts[20]
        assert units(output, "A/0") == starts[:40:2]
        run.commit(starts[20], starts[30])
        assert seen(output) == starts[40]
        run.commit(starts[30], plain.end)
        run.committer.end()
    assert ends == sorted(ends)
    assert {starts[40], plain.end} <= {*ends} <= {*starts[40:], plain.end}
    assert units(output, "A/0") == starts[::2]


@pytest.mark.parametrize("is_same_boot", [True, False])
@pytest.mark.parametrize("reached", [20, pytest.param(30, marks=pytest.mark.extended)])
def test_a_run_that_ends_before_it_reaches_what_was_seen_takes_nothing_back(
    output: Path, store: Path, plain: PlainLog, tmp_path: Path, *, reached: int, is_same_boot: bool
) -> None:
    """A start, a stop and a start after a kill; under another boot the last one clears what waits
    beyond the watermark."""
    starts = starts_of(plain)
    write_two_batches(store, output, plain)
    with watched(output, plain) as ends, opened(store, output) as run:
        if reached > 20:
            run.commit(starts[20], starts[reached])
        run.committer.end()
    with pytest.MonkeyPatch.context() as patches:
        if not is_same_boot:
            another_boot(patches, tmp_path)
        with watched(output, plain) as later, opened(store, output) as run:
            kept = starts[40] if is_same_boot else starts[reached]
            assert (watermark(output).end_offset, seen(output)) == (starts[reached], kept)
            assert units(output, "A/0") == starts[: starts.index(kept) : 2]
            run.commit(starts[reached], plain.end)
            run.committer.end()
    assert {*ends} == {starts[40]}
    assert later == sorted(later)
    assert units(output, "A/0") == starts[::2]
    assert not (output / "reput" / "abort").exists()


@pytest.mark.parametrize("boot", ["another", "none"])
def test_what_was_seen_under_another_boot_is_cleared_and_written_again(
    output: Path, store: Path, plain: PlainLog, tmp_path: Path, boot: str
) -> None:
    """A power cut may have left anything beyond the watermark; so it is where a boot has no
    name."""
    starts = starts_of(plain)
    write_two_batches(store, output, plain)
    with pytest.MonkeyPatch.context() as patches:
        another_boot(patches, tmp_path)
        if boot == "none":
            (tmp_path / "boot_id").unlink()
        assert seen(output) == starts[20]
        with opened(store, output) as run:
            assert units(output, "A/0") == starts[:20:2]
            run.commit(starts[20], plain.end)
            assert seen(output) == plain.end
    assert units(output, "A/0") == starts[::2]


def test_what_a_log_that_was_cut_has_no_more_is_taken_back(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """The last message before the visible end is another one now."""
    starts = starts_of(plain)
    write_two_batches(store, output, plain)
    path = max(path for path in (store / "commitlog").iterdir() if int(path.name) <= starts[39])
    with path.open("r+b") as file:
        file.seek(starts[39] - int(path.name) + 60)
        file.write(b"\1")
    with opened(store, output):
        assert units(output, "A/0") == starts[:20:2]
        assert seen(output) == watermark(output).end_offset == starts[20]


def test_an_end_that_the_log_does_not_reach_is_taken_back(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """The last message before it is there; of the BLANK after it the log has nothing any more,
    and will have another message in its place."""
    starts = starts_of(plain)
    following = next(start for start in starts[22:] if start % plain.file_size == 0)
    kept = starts.index(following)
    with opened(store, output, durable_latency_ms=HOUR_MS) as run:
        run.commit(0, starts[20])
        run.commit(starts[20], following)
    assert plain.spans[kept - 1][1] < following == seen(output)
    plain.cut(plain.spans[kept - 1][1])
    shutil.rmtree(store / "commitlog")
    plain.write(store / "commitlog")
    with opened(store, output) as run:
        assert units(output, "A/0") == starts[:20:2]
        assert seen(output) == watermark(output).end_offset == starts[20]
        run.commit(starts[20], plain.end)
        assert units(output, "A/0") == starts[:kept:2]


def test_an_end_whose_last_message_the_log_has_lost_is_taken_back(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """Nothing tells whether the log had that message still: here it was cut before it, went on
    with others, and lost the file of its place. Messages of the others have their units."""
    starts = starts_of(plain)
    write_two_batches(store, output, plain)
    plain.cut(plain.spans[19][1])
    for number in range(20):
        plain.append(topic=b"A", queue_offset=10 + number, body=bytes(300))
    shutil.rmtree(store / "commitlog")
    plain.write(store / "commitlog")
    lost = starts[39] // plain.file_size * plain.file_size
    assert starts[20] < lost
    (store / "commitlog" / file_name(lost)).unlink()
    with opened(store, output) as run:
        assert seen(output) == watermark(output).end_offset == starts[20]
        run.commit(starts[20], plain.end)
    kept = [start for start in starts_of(plain)[20:] if not 0 <= start - lost < plain.file_size]
    assert 0 < len(kept) < 20
    assert units(output, "A/0") == starts[:20:2] + kept


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_an_end_of_another_owner_does_not_count(
    output: Path, store: Path, plain: PlainLog, *, is_made_anew: bool
) -> None:
    """Where a watermark has a new epoch, or is another output's whose epochs began again, nothing
    of the old owner's slots is read."""
    write_two_batches(store, output, plain)
    moved, before = WatermarkFile(output / "reput"), watermark(output)
    if is_made_anew:
        moved.advance(replace(before, store_id=before.store_id[::-1]))
    else:
        moved.advance(replace(before, epoch=before.epoch + 1))
    moved.close()
    assert seen(output) == watermark(output).end_offset == starts_of(plain)[20]


def test_with_ext_units_a_start_goes_back_to_the_watermark(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """Their files are cut where a queue is opened, so that the next kill would leave units that
    point to nothing."""
    starts = starts_of(plain)
    (store / "broker.conf").write_text("messageIndexEnable=false\nenableConsumeQueueExt=true\n")
    write_two_batches(store, output, plain)
    with opened(store, output) as run:
        assert seen(output) == starts[20]
        run.commit(starts[20], starts[22])
    with opened(store, output) as run:
        run.commit(starts[22], plain.end)
        run.committer.end()
    settings = settings_of(output, read_store_settings(store))
    assert verify(settings, output).differences == ()
    assert units(output, "A/0") == starts[::2]


@pytest.mark.parametrize("damage", ["newest", "both", "short"])
def test_a_torn_slot_leaves_the_one_before(
    output: Path, store: Path, plain: PlainLog, damage: str
) -> None:
    """A reader that meets a write falls back by one step; without a slot it takes the watermark."""
    starts = starts_of(plain)
    with opened(store, output, durable_latency_ms=HOUR_MS) as run:
        for start, end in zip(starts[::10], starts[10:50:10], strict=False):
            run.commit(start, end)
    reader = EndReader(output / "reput")
    path = output / "reput" / "visible"
    data = bytearray(path.read_bytes())
    ends = [read_end_of(bytes(data), keep) for keep in (0, 1)]
    newest = ends.index(starts[40])
    assert sorted(ends) == [starts[30], starts[40]]
    for slot in (newest,) if damage == "newest" else (0, 1):
        data[slot * 128 + 40] ^= 1
    path.write_bytes(data[:50] if damage == "short" else data)
    found = reader.read()
    assert found is not None
    assert found.end_offset == (starts[30] if damage == "newest" else starts[10])


def read_end_of(data: bytes, slot: int) -> int:
    """The end in a slot, by the table of the format: after boot id, magic, identity, epoch and
    sequence."""
    return int.from_bytes(data[slot * 128 + 56 : slot * 128 + 64])


def test_a_new_owner_between_two_reads_takes_nothing_back(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """A reader that has the old owner's watermark finds slots of the new one alone."""
    starts = starts_of(plain)
    write_two_batches(store, output, plain)
    reader = EndReader(output / "reput")
    read, went_on = reader._watermark.read, []

    def overtaken() -> object:
        found = read()
        if not went_on:
            went_on.append(None)
            with opened(store, output, durable_latency_ms=HOUR_MS) as run:
                run.commit(starts[20], starts[50])
                run.commit(starts[50], plain.end)
        return found

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(reader._watermark, "read", overtaken)
        found = reader.read()
    assert found is not None
    assert found.end_offset == plain.end


def test_a_start_that_was_killed_leaves_no_end_for_the_next_one(
    output: Path, store: Path, plain: PlainLog
) -> None:
    """It carried the end into its own epoch and died before its watermark; then the log was cut,
    and the next owner has that epoch."""
    starts = starts_of(plain)
    write_two_batches(store, output, plain)
    be_killed_at_a_start(store, output)
    assert seen(output) == starts[40]
    for path in (store / "commitlog").iterdir():
        if int(path.name) > starts[25]:
            path.unlink()
    last = max((store / "commitlog").iterdir())
    os.truncate(last, starts[25] - int(last.name))
    os.truncate(last, 1024)
    with opened(store, output):
        assert seen(output) == watermark(output).end_offset == starts[20]


def test_a_repair_leaves_no_end_of_its_epoch(output: Path, store: Path, plain: PlainLog) -> None:
    """A start that was killed had the epoch that the repair takes."""
    starts = starts_of(plain)
    write_two_batches(store, output, plain)
    be_killed_at_a_start(store, output)
    path = output / "consumequeue" / "A" / "0" / file_name(0)
    with path.open("r+b") as file:
        file.seek(5 * 20)
        file.write(UNIT.pack(starts[10], 4711, 0))
    settings = settings_of(output, read_store_settings(store))
    assert verify(settings, output, repair=True).differences
    assert seen(output) == watermark(output).end_offset == starts[10]


def test_a_failed_sync_leaves_the_watermark_and_is_made_again(
    output: Path, store: Path, plain: PlainLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt writes again what was not durable."""
    starts = starts_of(plain)

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with opened(store, output, durable_latency_ms=HOUR_MS) as run:
        run.commit(0, starts[20])
        run.commit(starts[20], starts[40])
        with monkeypatch.context() as patches, pytest.raises(fsops.SyncError):
            patches.setattr(os, "fsync", fails)
            patches.setattr(os, "fdatasync", fails)
            run.committer.make_durable()
    assert (watermark(output).end_offset, seen(output)) == (starts[20], starts[40])
    with opened(store, output) as run:
        run.commit(starts[20], plain.end)
    assert watermark(output).end_offset == plain.end
    assert units(output, "A/0") == starts[::2]
