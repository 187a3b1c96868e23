"""The writer of index files, held against RocketMQ's own files and a plain model of its rules.

Axes: golden stores, random messages and file sizes, batch borders, overlaps, restarts, power cuts,
kills, full disks, cut logs. Compared is the content of all files (header, slots, entries), not
their names, which are times, and not what no entry uses.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.brokerconf import parse_properties
from reput.store.errors import IndexFileError, NoSpaceError, SyncError
from reput.store.index.indexfile import IndexLayout, index_key_hash, index_keys
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.record import Record
from reput.store.runs.dispatch import DispatchCounts
from reput.store.state.storecheckpoint import StoreCheckpoint
from tests.support.golden import tree
from tests.support.index_model import Content, Message, read_content
from tests.support.index_outputs import IndexLog, IndexOutput, batch_of, random_log, write_log
from tests.support.power_cuts import Disk, Power
from tests.support.processes import is_killed_at, open_files
from tests.support.recorder import Recorder, read_tree
from tests.support.wire import file_name, read_log

GOLDEN_WITH_INDEX = ("plain", "mixed", "wide", "killed", "lmq", "batch", "ext")
Store = tuple[Path, IndexOutput]


@pytest.fixture(params=GOLDEN_WITH_INDEX)
def store(
    request: pytest.FixtureRequest, golden: Callable[[str], Path], tmp_path: Path
) -> tuple[Path, IndexOutput]:
    """A golden store, and an empty output for all its messages."""
    root = golden(request.param)
    settings = parse_properties((root / "broker.conf").read_bytes())
    layout = IndexLayout(int(settings["maxHashSlotNum"]), int(settings["maxIndexNum"]))
    last, data = read_log(root / "commitlog")[-1]
    log = CommitLog([root / "commitlog"])
    messages = []
    for found in records(log, 0, last + len(data)):
        assert isinstance(found, Record)
        hashes = tuple(index_key_hash(key) for key in index_keys(found))
        end = found.physical_offset + found.total_size
        messages.append(Message(found.physical_offset, end, found.store_timestamp, hashes))
    log.close()
    return root, IndexOutput(tmp_path / "output", layout, IndexLog(root / "commitlog", messages))


def golden_contents(root: Path, layout: IndexLayout) -> list[Content]:
    """RocketMQ's files."""
    return [
        read_content(path, layout.max_hash_slot_num, layout.max_index_num)
        for path in sorted((root / "index").iterdir())
    ]


def test_one_batch_builds_the_golden_files(store: Store) -> None:
    """Everything at once; then everything again, in this run and the next: nothing changes."""
    root, output = store
    expected = golden_contents(root, output.layout)
    writer = output.writer(0)
    for _ in range(2):
        assert writer.write(batch_of(output.messages)) == DispatchCounts()
        assert output.contents() == expected
    assert sum(len(content.entries) for content in expected) > 2000
    writer.close()
    before = tree(output.root)
    for durable_end in (output.messages[-1].end, None):
        again = output.writer(durable_end)
        again.write(batch_of(output.messages))
        assert tree(output.root) == before
        again.close()
    checkpoint = StoreCheckpoint.read(root)
    assert checkpoint is not None
    assert again.index_msg_timestamp == writer.index_msg_timestamp
    if len(expected) > 1:
        assert again.index_msg_timestamp == checkpoint.index_msg_timestamp


@pytest.mark.extended
def test_random_batches_kills_and_power_cuts_build_the_golden_files(
    store: Store, seed: int
) -> None:
    """Batches repeat, wholly or in part; runs end without a sync; pages beyond the watermark
    hold anything."""
    root, output = store
    build(output, random.Random(seed), 40)
    assert output.contents() == golden_contents(root, output.layout)


def build(output: IndexOutput, rng: random.Random, batch_count: int) -> None:
    """Dispatch all messages in random batches, with every kind of interruption."""
    messages = output.messages
    cuts = sorted({rng.randrange(len(messages)) for _ in range(batch_count)} | {len(messages)})
    with Power(output.root) as power:
        writer, done, durable = output.writer(messages[0].offset), 0, 0
        while durable < len(messages):
            end = next((cut for cut in cuts if cut > done), len(messages))
            earlier = rng.choice((rng.randrange(durable, done + 1), rng.randrange(done + 1)))
            start = rng.choice((done, earlier))
            if end > start:
                writer.write(batch_of(messages[start:end], rng))
            done = end
            kind = rng.choice(("sync", "sync", "more", "kill", "power", "power"))
            if kind == "sync" or done == len(messages):
                writer.sync()
                durable = done
            if kind in ("kill", "power"):
                fail = power.fail if kind == "power" else power.kill
                fail(rng, writer.close)
                done = durable
                writer = output.writer(
                    messages[durable].offset if durable < len(messages) else messages[-1].end
                )
        writer.close()


def test_rocketmqs_own_files_are_adopted_unchanged(store: Store) -> None:
    """durable_end=None trusts what is there: the whole log is then dispatched already."""
    root, output = store
    shutil.copytree(root / "index", output.root / "index")
    before = tree(output.root)
    writer = output.writer(None)
    writer.write(batch_of(output.messages))
    writer.close()
    assert tree(output.root) == before


def test_any_messages_are_indexed_as_rocketmq_does(ram_path: Path, seed: int) -> None:
    """Small files, odd clocks, few keys; interrupted or not: the model's files."""
    for case in range(80):
        rng = random.Random(f"{seed}:{case}")
        layout = IndexLayout(rng.choice((1, 2, 7, 50)), rng.choice((2, 3, 10, 60)))
        log = random_log(ram_path / str(case) / "log", rng, rng.choice((1, 5, 40)))
        output = IndexOutput(ram_path / str(case) / "output", layout, log)
        build(output, rng, rng.choice((1, 5, 20)))
        assert output.contents() == output.model(), f"seed={seed} case={case}"


def test_a_cut_log_is_cut_in_the_index(ram_path: Path, seed: int) -> None:
    """Entries past the cut are gone, those before it stay; the rest is dispatched anew."""
    for case in range(50):
        rng = random.Random(f"{seed}:{case}")
        layout = IndexLayout(rng.choice((1, 7)), rng.choice((2, 10, 60)))
        log = random_log(ram_path / str(case) / "log", rng, 30)
        output = IndexOutput(ram_path / str(case) / "output", layout, log)
        messages = log.messages
        writer = output.writer(0)
        writer.write(batch_of(messages))
        kept = rng.randrange(len(messages))
        writer.truncate(messages[kept].offset)
        place = f"seed={seed} case={case}"
        entries = [entry for content in output.contents() for entry in content.entries]
        model = [entry for content in output.model(kept) for entry in content.entries]
        assert entries == model, place
        for path, content in zip(output.paths(), output.contents(), strict=True):
            # as in a file that never had more
            assert not any(path.read_bytes()[layout.entry_position(content.index_count) :]), place
        writer.write(batch_of(messages[kept:]))
        # what came since is cut as well
        writer.truncate(messages[kept].offset)
        entries = [entry for content in output.contents() for entry in content.entries]
        assert entries == model, place
        writer.write(batch_of(messages[kept:]))
        writer.close()
        assert output.contents() == output.model(), place


def test_messages_without_keys_ask_for_files(tmp_path: Path) -> None:
    """The first message makes the first file; one after a full file makes the next."""
    log = write_log(tmp_path / "log", [(5000, ()), (6000, (7,)), (7000, ())])
    output = IndexOutput(tmp_path / "output", IndexLayout(3, 2), log)
    messages = log.messages
    writer = output.writer(0)
    assert output.paths() == []
    for done, files in ((1, 1), (2, 1), (3, 2)):
        writer.write(batch_of(messages[:done]))
        assert output.contents() == output.model(done)
        assert len(output.paths()) == files
        # a new run finds and keeps them
        writer.close()
        writer = output.writer(messages[done - 1].end)
        assert output.contents() == output.model(done)
    assert output.contents()[1].begin_timestamp == 6000
    writer.close()


def test_the_checkpoint_has_the_time_of_the_file_that_was_filled_last(tmp_path: Path) -> None:
    """The clock may have stepped back since; a file without a time leaves it (IndexService.flush:
    RocketMQ deletes files that end beyond the checkpoint)."""
    log = write_log(tmp_path / "log", [(5000, (5,)), (3000, (7,)), (0, (9,)), (4000, (5,))])
    output = IndexOutput(tmp_path / "output", IndexLayout(3, 2), log)
    writer, times = output.writer(0), list[int]()
    for message in log.messages:
        writer.write(batch_of([message]))
        times.append(writer.index_msg_timestamp)
    writer.close()
    assert times == [0, 5000, 3000, 3000]


def test_a_torn_entry_that_the_log_confirms_is_none(tmp_path: Path) -> None:
    """In a file beyond the watermark, half of an entry makes it the first message's."""
    log = write_log(tmp_path / "log", [(1, (5,)), (1, (7,)), (1, (9,)), (1, (5,))])
    output = IndexOutput(tmp_path / "output", IndexLayout(3, 2), log)
    writer = output.writer(0)
    writer.write(batch_of(log.messages))
    writer.close()
    with output.paths()[3].open("r+b") as out:
        out.seek(output.layout.entry_position(1) + 4)
        out.write(bytes(8))
    writer = output.writer(log.messages[2].offset)
    assert [content.entries for content in output.contents()[:2]] == [
        content.entries for content in output.model(2)
    ]
    assert [content.entries for content in output.contents()[2:]] == [[]]
    writer.write(batch_of(log.messages[2:]))
    writer.close()
    assert output.contents() == output.model()


def test_what_a_start_restores_survives_a_power_cut(tmp_path: Path) -> None:
    """No later start looks at the slots of a full file again once the next one has entries."""
    log = write_log(tmp_path / "log", [(1, (5, 7)), (1, ()), (1, (9,))])
    output = IndexOutput(tmp_path / "output", IndexLayout(3, 3), log)
    writer = output.writer(0)
    writer.write(batch_of(log.messages[:2]))
    writer.close()
    full, _ = output.paths()
    with full.open("r+b") as out:
        out.seek(40)
        out.write(bytes(4 * 3))
    with Recorder(output.root) as recorder:
        writer = output.writer(log.messages[2].offset)
        writer.write(batch_of(log.messages[2:]))
        writer.sync()
        survives = Disk.after(recorder).durable()
        writer.close()
    assert output.contents() == output.model()
    assert survives[f"index/{full.name}"] == full.read_bytes()


def test_a_closed_file_survives_a_power_cut_whole(tmp_path: Path) -> None:
    """Header and slots too, which RocketMQ reads from the file that was the last one."""
    log = write_log(tmp_path / "log", [(1, (5, 7)), (2, (9,))])
    output = IndexOutput(tmp_path / "output", IndexLayout(3, 8), log)
    output.root.mkdir()
    with Recorder(output.root) as recorder:
        writer = output.writer(0)
        writer.write(batch_of(log.messages))
        writer.close()
    assert output.contents() == output.model()
    assert Disk.after(recorder).durable() == read_tree(output.root)


def test_entries_of_an_adopted_file_survive_a_power_cut(tmp_path: Path) -> None:
    """A file that another writer has begun is gone on with, and what is added is synced."""
    log = write_log(tmp_path / "log", [(1, (5, 7)), (2, (9,))])
    layout = IndexLayout(3, 8)
    output = IndexOutput(tmp_path / "output", layout, log)
    writer = output.writer(0)
    writer.write(batch_of(log.messages[:1]))
    writer.close()
    (path,) = output.paths()
    with Recorder(output.root) as recorder:
        writer = output.writer(None)
        writer.write(batch_of(log.messages[1:]))
        writer.sync()
        survives = Disk.after(recorder).durable()[f"index/{path.name}"]
        writer.close()
    assert output.contents() == output.model()
    assert survives is not None
    entries = layout.entry_position(1)
    assert survives[entries:] == path.read_bytes()[entries:]


@pytest.mark.parametrize("lost", [2, 3, 5])
def test_lost_entries_of_an_adopted_file_are_built_again(tmp_path: Path, lost: int) -> None:
    """A power cut may keep the page with the header, which counts them, and lose theirs."""
    log = write_log(tmp_path / "log", [(1, (5, 7)), (2, (9,)), (3, (5,)), (4, (11,))])
    output = IndexOutput(tmp_path / "output", IndexLayout(3, 8), log)
    writer = output.writer(0)
    writer.write(batch_of(log.messages))
    writer.close()
    (path,) = output.paths()
    with path.open("r+b") as file:
        file.seek(output.layout.entry_position(lost))
        file.write(bytes(20))
    writer = output.writer(None)
    writer.write(batch_of(log.messages))
    writer.close()
    assert output.contents() == output.model()


def test_zeros_of_the_last_entry_may_be_a_hole(tmp_path: Path) -> None:
    """A sparse copy holds no page of zeros, although an entry ends in one."""
    log = write_log(tmp_path / "log", [(1, (5,))])
    output = IndexOutput(tmp_path / "output", IndexLayout(1006, 3), log)
    assert output.layout.entry_position(1) == 4096 - 12
    writer = output.writer(0)
    writer.write(batch_of(log.messages))
    writer.close()
    (path,) = output.paths()
    data = path.read_bytes()
    path.write_bytes(data[:4096])
    with path.open("r+b") as copy:
        copy.truncate(len(data))
    assert path.read_bytes() == data
    output.writer(log.messages[0].end).close()
    assert output.contents() == output.model()


def test_where_the_log_forgot_a_message_the_file_says_when(tmp_path: Path) -> None:
    """No record at an offset any more: the header's begin, and the last entry's second."""
    log = write_log(tmp_path / "log", [(1_000_700 + 700 * at, (at,)) for at in range(20)])
    output = IndexOutput(tmp_path / "output", IndexLayout(3, 99), log)
    writer = output.writer(0)
    writer.write(batch_of(log.messages))
    writer.close()
    (tmp_path / "log" / file_name(0)).unlink()
    output.log.refresh()
    assert log.messages[5].offset < output.log.min_offset
    output.writer(log.messages[5].offset).close()
    (found,) = output.contents()
    (expected,) = output.model(5)
    assert expected.end_timestamp - expected.begin_timestamp == 2800
    expected.end_timestamp -= 800
    assert found == expected


def run_all(output: IndexOutput, cuts: list[int]) -> None:
    """Every batch that the watermark, a plain file here, has not passed."""
    watermark = output.root.with_suffix(".watermark")
    done = int(watermark.read_text()) if watermark.exists() else 0
    messages = output.messages
    writer = output.writer(messages[done - 1].end if done else 0)
    for end in cuts:
        if end > done:
            writer.write(batch_of(messages[done:end]))
            writer.sync()
            watermark.write_text(str(end))
            done = end
    writer.close()


@pytest.mark.extended
def test_killed_anywhere_it_ends_the_same(ram_path: Path, seed: int) -> None:
    """kill -9 before every operation of a few batches, and of the run after it."""
    rng = random.Random(seed)
    log = random_log(ram_path / "log", rng, 8)
    cuts = sorted({*rng.sample(range(1, 8), 3), 8})
    for ordinal in count(1):
        output = IndexOutput(ram_path / str(ordinal), IndexLayout(5, 8), log)
        killed = is_killed_at(ordinal, partial(run_all, output, cuts))
        is_killed_at(rng.randrange(1, 12), partial(run_all, output, cuts))
        run_all(output, cuts)
        assert output.contents() == output.model(), f"killed at {ordinal}"
        if not killed:
            break
    assert ordinal > 15


def fail_at(monkeypatch: pytest.MonkeyPatch, points: str) -> None:
    monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(points))


@pytest.mark.parametrize("operation", ["mkdir", "open", "allocate", "mmap", "rename"])
def test_a_full_disk_stops_between_entries_and_goes_on(
    ram_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """NoSpaceError in the middle of a message or not; the same batch again completes it."""
    rng = random.Random(seed)
    log = write_log(ram_path / "log", [(1, rng.choices((1, 2, 8), k=n % 6)) for n in range(30)])
    output, messages = IndexOutput(ram_path / "output", IndexLayout(5, 4), log), log.messages
    writer, failures = output.writer(0), 0
    # a directory is tried before its parent, which is missing, and again after it
    later = 3 if operation == "mkdir" else 2
    for _ in range(200):
        fail_at(monkeypatch, f"{operation}:{later if failures else 1}=ENOSPC")
        try:
            writer.write(batch_of(messages))
        except NoSpaceError:
            failures += 1
            assert not list(ram_path.glob("**/*.tmp"))
        else:
            break
    else:
        pytest.fail("it comes no further")
    assert failures >= (2 if operation == "mkdir" else 3)
    writer.close()
    assert output.contents() == output.model()


def test_a_start_that_finds_the_disk_full_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whichever step does, with a watermark or without one: a run tries again until there is room,
    for as long as that takes."""
    layout = IndexLayout(7, 20)
    log = random_log(tmp_path / "log", random.Random(seed), 40)
    output = IndexOutput(tmp_path / "output", layout, log)
    writer = output.writer(0)
    writer.write(batch_of(output.messages))
    writer.close()
    for durable_end in (output.messages[-1].end, output.messages[20].end, 0, None):
        before = tmp_path / "before"
        shutil.copytree(output.root, before)
        for ordinal in count(1):
            failing = fsops._Failpoints(f"*:{ordinal}=ENOSPC")
            with monkeypatch.context() as patch:
                patch.setattr(fsops, "_failpoints", failing)
                is_open = False
                # the error's frames hold what is mapped
                with suppress(NoSpaceError, SyncError):
                    output.writer(durable_end).close()
                    is_open = True
            assert open_files(output.root) == 0, (durable_end, ordinal)
            if is_open:
                break
        assert ordinal > 1 or durable_end is None
        shutil.rmtree(output.root)
        before.rename(output.root)


def test_a_failed_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """msync's failure is as final as fsync's; nothing to sync is no call."""
    log = random_log(tmp_path / "log", random.Random(0), 10)
    output, messages = IndexOutput(tmp_path / "output", IndexLayout(5, 4000), log), log.messages
    writer = output.writer(0)
    writer.write(batch_of(messages))
    fail_at(monkeypatch, "sync:1=EIO")
    with pytest.raises(SyncError, match=r"cannot sync .*Input/output error"):
        writer.sync()
    writer.sync()
    fail_at(monkeypatch, "sync:1=EIO")
    writer.sync()
    fail_at(monkeypatch, "")
    writer.close()


def test_files_of_other_settings_are_not_touched(tmp_path: Path) -> None:
    """They would be read as damage and cut."""
    log = random_log(tmp_path / "log", random.Random(0), 10)
    output, messages = IndexOutput(tmp_path / "output", IndexLayout(5, 40), log), log.messages
    writer = output.writer(0)
    writer.write(batch_of(messages))
    writer.close()
    before = tree(output.root)
    output.layout = IndexLayout(5, 41)
    with pytest.raises(IndexFileError, match="set them as the file's writer did"):
        output.writer(messages[-1].end)
    assert tree(output.root) == before
