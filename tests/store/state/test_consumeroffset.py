"""Committed offsets on disk: what a reader finds after kills, torn writes and other writers."""

from __future__ import annotations

import copy
import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from reput.store.brokerlock import BrokerLock
from reput.store.errors import OwnershipError
from reput.store.files import CONSUMER_OFFSET_FILE, OFFSET_JOURNALS
from reput.store.state import consumeroffset
from reput.store.state.consumeroffset import (
    ConsumerOffsetFile,
    Offsets,
    SharedConsumerOffsetFile,
    TopicGroup,
    first_position,
    read_committed,
)
from tests.support.operations import killed_before, once_before
from tests.support.power_cuts import Disk, mount
from tests.support.processes import holder, is_killed_at
from tests.support.recorder import Recorder

KEYS = (TopicGroup("T", "g"), TopicGroup("%RETRY%g", "g"), TopicGroup("中", "g@broadcast"))
APPEND, REPLACE, BEGIN = range(3)
Step = tuple[int, Offsets]
"""A deed on the file, and the commits; after BEGIN the next commits replace it."""


def random_steps(rng: random.Random, count: int) -> list[Step]:
    """The first replaces, as the class asks for."""
    return [
        (
            rng.choice((APPEND, APPEND, REPLACE, BEGIN)) if number else REPLACE,
            {rng.choice(KEYS): {rng.randrange(3): rng.randrange(1 << 40)} for _ in range(2)},
        )
        for number in range(count)
    ]


def states(steps: list[Step]) -> list[Offsets]:
    """The committed offsets before the first step, and after each."""
    found: list[Offsets] = [{}]
    for _, commits in steps:
        after = copy.deepcopy(found[-1])
        for key, queues in commits.items():
            after.setdefault(key, {}).update(queues)
        found.append(after)
    return found


def write(root: Path, steps: list[Step], done: Callable[[int], object]) -> None:
    expected = states(steps)
    begun = b""
    with ConsumerOffsetFile(root) as file:
        assert file.load(root) == {}
        for number, (kind, commits) in enumerate(steps, 1):
            if kind == REPLACE:
                # also where a server ends that has begun to
                file.replace(expected[number], 1)
                begun = b""
            else:
                before, begun = begun, b""
                if before and kind == BEGIN:
                    file.finish_replacing(before)
                if kind == BEGIN:
                    begun = file.begin_replacing(expected[number - 1], 1)
                file.append(commits)
                if before and kind == APPEND:
                    file.finish_replacing(before)
            done(number)


def kills(
    work: Callable[[Path, list[Step], Callable[[int], object]], None],
    steps: list[Step],
    directory: Path,
) -> Iterator[tuple[Path, int]]:
    """Kill ``work`` at each of its operations in turn, and at last let it end; yield the root that
    it wrote to, and the number of steps that it had done."""
    ordinal, is_killed = 0, True
    while is_killed:
        ordinal += 1
        root = directory / str(ordinal)
        (root / "output").mkdir(parents=True)
        count = root / "done"
        is_killed = is_killed_at(ordinal, partial(work, root, steps, partial(note, count)))
        yield root, int(count.read_text()) if count.exists() else 0
    assert ordinal > 25


@pytest.mark.extended
def test_a_kill_at_any_operation_loses_nothing_that_was_committed(
    tmp_path: Path, seed: int
) -> None:
    """A reader finds all that was done, and may find what was being done; a writer the same."""
    steps = random_steps(random.Random(seed), 8)
    expected = states(steps)
    for root, done in kills(write, steps, tmp_path):
        found = read_committed(root) or {}
        assert found in expected[done : done + 2], root
        with ConsumerOffsetFile(root) as file:
            assert file.load(root) == found
            file.replace(found, 0)
            file.append({KEYS[0]: {9: 9}})
        assert (read_committed(root) or {})[KEYS[0]][9] == 9
    assert found == expected[-1]


def test_a_power_cut_at_any_operation_loses_nothing_that_was_committed(
    ram_path: Path, seed: int
) -> None:
    """Servers start and end, with the next file begun or not; offsets may go back."""
    rng = random.Random(seed)
    root = ram_path / "disk"
    root.mkdir()
    found: list[Offsets] = [{}]
    with Recorder(root) as recorder:
        for _ in range(9):
            with ConsumerOffsetFile(root) as file:
                assert file.load(root) == found[-1]
                file.replace(found[-1], 0)
                for number in range(3):
                    begun = file.begin_replacing(found[-1], 1) if rng.random() < number / 2 else b""
                    commits = {KEYS[0]: {0: rng.choice((len(found), rng.randrange(3)))}}
                    file.append(commits)
                    found.append(commits)
                    recorder.note("done", len(found) - 1)
                    if begun:
                        file.finish_replacing(begun)
    recorder.check()
    told = [(at, number) for at, _, number in recorder.notes if isinstance(number, int)]
    disk = Disk(recorder.begin, recorder.directories())
    for count, operation in enumerate(recorder.operations, 1):
        disk.apply(operation)
        done = max((number for at, number in told if at <= count), default=0)
        for image in (*disk.chosen_images(), disk.random_image(rng)):
            mount(image.tree, root)
            assert (read_committed(root) or {}) in found[done : done + 2], f"{count=}"


def test_a_kill_at_any_operation_and_a_later_power_cut_lose_no_commit(ram_path: Path) -> None:
    """The next process finds names and lines of which the disk may know nothing yet."""
    root, is_killed, number = ram_path / "disk", True, 0
    root.mkdir()
    while is_killed:
        number += 1
        with Recorder(root) as recorder:
            with killed_before(number), ConsumerOffsetFile(root) as file:
                file.replace({KEYS[0]: {0: 1}}, 0)
                file.write({KEYS[0]: {1: 2}})
                file.begin_replacing({KEYS[0]: {0: 1, 1: 2}}, 1)
                file.write({KEYS[0]: {2: 3}})
                is_killed = False
            with SharedConsumerOffsetFile(root, root) as shared:
                before = shared.read()
                after = shared.update(lambda _: {KEYS[1]: {0: 4}})
                disk = Disk.after(recorder).durable()
        assert after == {**before, KEYS[1]: {0: 4}}
        mount(disk, root)
        assert read_committed(root) == after, f"{number=}"
        mount({}, root)
    assert before == {KEYS[0]: {0: 1, 1: 2, 2: 3}}
    assert number > 15


def test_a_commit_during_a_sync_is_durable_after_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has what was written before the sync began, and may lack what came later."""
    during: list[Offsets] = [{KEYS[0]: {0: 2}}]
    with Recorder(tmp_path) as recorder, ConsumerOffsetFile(tmp_path) as file:
        file.replace({}, 0)
        file.write({KEYS[0]: {0: 1}})
        sync = os.fdatasync

        def slow(fd: int) -> None:
            sync(fd)
            if during:
                file.write(during.pop())

        monkeypatch.setattr(os, "fdatasync", slow)
        file.sync()
        monkeypatch.setattr(os, "fdatasync", sync)
        file.sync()
        disk = Disk.after(recorder).durable()
    mount(disk, tmp_path)
    assert read_committed(tmp_path) == {KEYS[0]: {0: 2}}


def test_a_commit_whose_write_a_sync_overtakes_is_durable_after_the_next_one(
    tmp_path: Path,
) -> None:
    """The sync of another thread ends before the bytes are written."""
    with Recorder(tmp_path) as recorder, ConsumerOffsetFile(tmp_path) as file:
        file.replace({}, 0)
        file.append({KEYS[0]: {0: 1}})
        with once_before(lambda operation, _: operation == "pwrite", file.sync):
            file.write({KEYS[0]: {0: 2}})
        file.sync()
        disk = Disk.after(recorder).durable()
    mount(disk, tmp_path)
    assert read_committed(tmp_path) == {KEYS[0]: {0: 2}}


def note(path: Path, number: int) -> None:
    path.write_text(str(number))


def test_a_torn_journal_counts_up_to_its_last_whole_line(tmp_path: Path, seed: int) -> None:
    """Cut anywhere, or with a changed byte: never an offset that nobody committed."""
    rng = random.Random(seed)
    steps = [(REPLACE, {}), *((APPEND, commits) for _, commits in random_steps(rng, 4))]
    write(tmp_path, steps, lambda _: None)
    expected = states(steps)
    journal = tmp_path / OFFSET_JOURNALS[0]
    data = journal.read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data)):
        whole = sum(end <= cut for end in ends)
        journal.write_bytes(data[:cut])
        assert read_committed(tmp_path) == expected[max(1, whole)]
        changed = bytearray(data)
        changed[cut] ^= 1 << rng.randrange(7)
        journal.write_bytes(changed)
        assert read_committed(tmp_path) == expected[max(1, sum(end <= cut for end in ends))]


def test_a_file_that_a_broker_wrote_stands_above_the_journal(tmp_path: Path) -> None:
    """It went on from the file after we had written it."""
    write(tmp_path, [(REPLACE, {KEYS[0]: {0: 1}}), (APPEND, {KEYS[0]: {0: 2}})], lambda _: None)
    assert read_committed(tmp_path) == {KEYS[0]: {0: 2}}
    (tmp_path / CONSUMER_OFFSET_FILE).write_text('{"offsetTable":{"T@g":{0:7}}}')
    assert read_committed(tmp_path) == {KEYS[0]: {0: 7}}


def test_files_of_the_same_offsets_differ(tmp_path: Path) -> None:
    """Their counters grow: a journal belongs to one of them, which its CRC tells. Names are text as
    RocketMQ's JSON has them, which escapes no letter."""
    offsets: Offsets = {KEYS[2]: {0: 7}}
    with ConsumerOffsetFile(tmp_path) as file:
        file.load(tmp_path)
        contents = []
        for _ in range(3):
            file.replace(offsets, 0)
            contents.append((tmp_path / CONSUMER_OFFSET_FILE).read_bytes())
    assert len({*contents}) == 3
    assert all('"中@g@broadcast":{0:7'.encode() in content for content in contents)


def test_one_process_writes(tmp_path: Path) -> None:
    """Another is refused until the first has ended; a reader never is."""
    with (
        holder(lambda: ConsumerOffsetFile(tmp_path).__enter__()),
        pytest.raises(OwnershipError, match=r"consumerOffset\.json is written by another process"),
        ConsumerOffsetFile(tmp_path),
    ):
        pass
    assert read_committed(tmp_path) is None
    with ConsumerOffsetFile(tmp_path) as file:
        file.replace({KEYS[0]: {0: 1}}, 1)
        assert read_committed(tmp_path) == {KEYS[0]: {0: 1}}


def commit_in_turn(root: Path, steps: list[Step], done: Callable[[int], object]) -> None:
    """As a member does; any but APPEND here means that the member leaves, and another one comes."""
    number = 0
    while number < len(steps):
        with SharedConsumerOffsetFile(root / "output", root) as file:
            while number < len(steps):
                kind, commits = steps[number]
                number += 1
                file.update(lambda _, commits=commits: commits)
                done(number)
                if kind != APPEND:
                    break


@pytest.mark.extended
def test_a_kill_between_sharing_processes_loses_nothing(tmp_path: Path, seed: int) -> None:
    """At any operation: what was committed is there for the others, who go on."""
    steps = random_steps(random.Random(seed), 8)
    expected = states(steps)
    for root, done in kills(commit_in_turn, steps, tmp_path):
        with SharedConsumerOffsetFile(root / "output", root) as file:
            found = file.read()
            assert found in expected[done : done + 2], root
            assert file.update(lambda _: {KEYS[0]: {9: 9}}) == file.read()
            assert file.read()[KEYS[0]][9] == 9
    assert found == expected[-1]


def test_processes_that_share_lose_no_commit_of_each_other(tmp_path: Path) -> None:
    """Each counts in a queue of its own; and all in one, as a plan may read what is committed."""
    root, count, writers = tmp_path / "store", 30, 4
    (root / "output").mkdir(parents=True)
    key = TopicGroup("T", "g")

    def work(number: int) -> None:
        with SharedConsumerOffsetFile(root / "output", root) as file:
            for offset in range(1, count + 1):
                file.update(
                    lambda found, offset=offset: {
                        key: {number: offset, 99: found.get(key, {}).get(99, 0) + 1}
                    }
                )

    children = []
    for number in range(writers):
        pid = os.fork()
        if pid == 0:
            try:
                work(number)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * writers
    expected = {key: {**dict.fromkeys(range(writers), count), 99: count * writers}}
    assert read_committed(root / "output") == expected
    # the journal's commits are in the file as well, for a broker
    (root / "output" / OFFSET_JOURNALS[0]).unlink()
    assert read_committed(root / "output") == expected


def test_no_line_after_a_torn_one_comes_back(tmp_path: Path) -> None:
    """A power cut may tear one line and leave the next; the next commit may end where it began."""
    journal = tmp_path / OFFSET_JOURNALS[0]
    with SharedConsumerOffsetFile(tmp_path, tmp_path) as file:
        file.update(lambda _: {KEYS[0]: {0: 1}})
        first = journal.read_bytes()
        file.update(lambda _: {KEYS[0]: {0: 2}})
        later = journal.read_bytes()[len(first) :]
        assert later.endswith(b'{"T@g":{"0":2}}\n')
        journal.write_bytes(first + b"x" * len(later) + later)
        assert file.read() == {KEYS[0]: {0: 1}}
        file.update(lambda _: {KEYS[0]: {0: 3}})
        assert file.read() == {KEYS[0]: {0: 3}}


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("after", [0, 1])
def test_whoever_leaves_last_gives_a_broker_the_commits_of_both_journals(
    tmp_path: Path, before: int, after: int
) -> None:
    """A server was killed while it replaced the file: each journal may have commits, or none. A
    broker reads the file alone."""
    expected = {KEYS[0]: {0: 1}}
    with ConsumerOffsetFile(tmp_path) as file:
        file.replace(expected, 0)
        for queue in range(1, 1 + before):
            file.append({KEYS[0]: {queue: 2}})
            expected[KEYS[0]][queue] = 2
        file.begin_replacing(expected, 1)
        for queue in range(5, 5 + after):
            file.append({KEYS[0]: {queue: 3}})
            expected[KEYS[0]][queue] = 3
    with SharedConsumerOffsetFile(tmp_path, tmp_path) as shared:
        assert shared.read() == expected
    for name in OFFSET_JOURNALS:
        (tmp_path / name).unlink()
    assert read_committed(tmp_path) == expected


def test_a_store_gives_its_offsets_to_those_who_share(tmp_path: Path) -> None:
    """Once, with its journal; and a file that someone else wrote meanwhile counts."""
    store, output = tmp_path / "store", tmp_path / "output"
    write(store, [(REPLACE, {KEYS[0]: {0: 1}}), (APPEND, {KEYS[0]: {1: 2}})], lambda _: None)
    output.mkdir()
    with SharedConsumerOffsetFile(output, store) as file:
        assert file.read() == {KEYS[0]: {0: 1, 1: 2}}
        file.update(lambda _: {KEYS[1]: {0: 3}})
        file.update(lambda _: {KEYS[1]: {0: 4}})
        expected = {KEYS[0]: {0: 1, 1: 2}, KEYS[1]: {0: 4}}
        assert read_committed(output) == expected
        (output / CONSUMER_OFFSET_FILE).write_text('{"offsetTable":{"T@g":{0:7}}}')
        assert file.update(lambda _: {KEYS[1]: {2: 5}}) == {KEYS[0]: {0: 7}, KEYS[1]: {2: 5}}
    assert read_committed(output) == {KEYS[0]: {0: 7}, KEYS[1]: {2: 5}}
    assert read_committed(store) == {KEYS[0]: {0: 1, 1: 2}}


def test_sharing_and_having_alone_exclude_each_other(tmp_path: Path) -> None:
    """A server beside consumers, whoever came first; a forked child keeps nothing."""
    refused = pytest.raises(OwnershipError, match="stop that server, command or consumer")
    with (
        holder(lambda: ConsumerOffsetFile(tmp_path).__enter__()),
        refused,
        SharedConsumerOffsetFile(tmp_path, tmp_path),
    ):
        pass
    with SharedConsumerOffsetFile(tmp_path, tmp_path):
        with SharedConsumerOffsetFile(tmp_path, tmp_path):
            pass
        with refused, ConsumerOffsetFile(tmp_path):
            pass
        child = holder(lambda: None)
        child.__enter__()
    with ConsumerOffsetFile(tmp_path):
        pass
    child.__exit__(None, None, None)


def test_an_output_of_ones_own_has_offsets_beside_its_dispatcher(tmp_path: Path) -> None:
    """A store's running broker writes that store's alone; the dispatcher writes none."""
    store, output = tmp_path / "store", tmp_path / "output"
    for root in (store, output):
        root.mkdir()
    with (
        holder(lambda: [BrokerLock(root).__enter__() for root in (store, output)]),
        SharedConsumerOffsetFile(output, store) as file,
    ):
        assert file.update(lambda _: {KEYS[0]: {0: 3}}) == {KEYS[0]: {0: 3}}
    assert read_committed(output) == {KEYS[0]: {0: 3}}


def test_a_file_is_replaced_where_it_is_old_or_its_journal_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker reads the file alone. One whose time lies ahead, since a clock was set back, is old
    as well; and what has no file yet."""
    monkeypatch.setattr(consumeroffset, "REPLACE_SECONDS", 1000.0)
    path = tmp_path / CONSUMER_OFFSET_FILE
    with ConsumerOffsetFile(tmp_path) as file:
        file.load(tmp_path)
        assert file.is_due
        file.replace({}, 0)
        file.append({KEYS[0]: {0: 1}})
        for age, is_due in ((10, False), (2000, True), (-2000, True), (500, False)):
            os.utime(path, times=(time.time() - age,) * 2)
            assert file.is_due is is_due, age
        length = (tmp_path / OFFSET_JOURNALS[0]).stat().st_size
        for most, is_due in ((length + 1, False), (length, True)):
            monkeypatch.setattr(consumeroffset, "MAX_JOURNAL_BYTES", most)
            assert file.is_due is is_due, most


def test_commits_of_either_journal_go_into_the_file(tmp_path: Path) -> None:
    """After a kill while the file is replaced, the first journal may have some, and the second
    none: a broker would not know of them."""
    expected = {KEYS[0]: {0: 1}}
    with ConsumerOffsetFile(tmp_path) as file:
        file.replace({}, 0)
        assert not file.has_commits
        file.append(expected)
        file.begin_replacing(expected, 1)
    with ConsumerOffsetFile(tmp_path) as file:
        assert file.load(tmp_path) == expected
        assert file.has_commits
    with SharedConsumerOffsetFile(tmp_path, tmp_path):
        pass
    for name in OFFSET_JOURNALS:
        (tmp_path / name).unlink()
    assert read_committed(tmp_path) == expected
    with ConsumerOffsetFile(tmp_path) as file:
        file.load(tmp_path)
        assert not file.has_commits


def test_an_output_whose_offsets_are_gone_takes_none_over(tmp_path: Path) -> None:
    """Its groups were deleted, and the store's offsets are those before it had its own: who looks
    must see what the next commit begins with."""
    store, output = tmp_path / "store", tmp_path / "output"
    write(store, [(REPLACE, {KEYS[0]: {0: 1}})], lambda _: None)
    write(output, [(REPLACE, {})], lambda _: None)
    with SharedConsumerOffsetFile(output, store) as file:
        assert file.update(lambda _: {}) == {}
        assert file.read() == {}


def test_where_a_group_begins() -> None:
    """As asked where a topic is new to it, else with a queue's first message."""
    assert first_position({}, 7, 3) == 7
    assert first_position({1: 0}, 7, 3) == 3
