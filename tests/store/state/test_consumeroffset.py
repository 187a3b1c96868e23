"""Committed offsets on disk: what a reader finds after kills, torn writes and other writers."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from store.errors import OwnershipError
from store.state.consumeroffset import (
    CONSUMER_OFFSET_FILE,
    JOURNAL,
    ConsumerOffsetFile,
    Offsets,
    TopicGroup,
    read_committed,
)
from tests.support.processes import holder, is_killed_at

KEYS = (TopicGroup("T", "g"), TopicGroup("%RETRY%g", "g"), TopicGroup("中", "g@broadcast"))
Step = tuple[bool, Offsets]
"""Whether to replace the file, and the commits."""


def random_steps(rng: random.Random, count: int) -> list[Step]:
    """The first replaces, as the class asks for."""
    return [
        (
            number == 0 or rng.random() < 0.3,
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
    with ConsumerOffsetFile(root) as file:
        assert file.load(root) == {}
        for number, (is_whole, commits) in enumerate(steps, 1):
            if is_whole:
                file.replace(expected[number], 1)
            else:
                file.append(commits)
            done(number)


def test_a_kill_at_any_operation_loses_nothing_that_was_committed(
    tmp_path: Path, seed: int
) -> None:
    """A reader finds all that was done, and may find what was being done; a writer the same."""
    steps = random_steps(random.Random(seed), 8)
    expected = states(steps)
    ordinal, is_killed = 0, True
    while is_killed:
        ordinal += 1
        root = tmp_path / str(ordinal)
        root.mkdir()
        count = root / "done"
        is_killed = is_killed_at(
            ordinal, lambda root=root, count=count: write(root, steps, lambda n: note(count, n))
        )
        done = int(count.read_text()) if count.exists() else 0
        found = read_committed(root) or {}
        assert found in expected[done : done + 2], ordinal
        with ConsumerOffsetFile(root) as file:
            assert file.load(root) == found
            file.replace(found, 0)
            file.append({KEYS[0]: {9: 9}})
        assert (read_committed(root) or {})[KEYS[0]][9] == 9
    assert ordinal > 25
    assert found == expected[-1]


def note(path: Path, number: int) -> None:
    path.write_text(str(number))


def test_a_torn_journal_counts_up_to_its_last_whole_line(tmp_path: Path, seed: int) -> None:
    """Cut anywhere, or with a changed byte: never an offset that nobody committed."""
    rng = random.Random(seed)
    steps = [(number == 0, commits) for number, (_, commits) in enumerate(random_steps(rng, 5))]
    write(tmp_path, steps, lambda _: None)
    expected = states(steps)
    journal = tmp_path / JOURNAL
    data = journal.read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data)):
        whole = sum(end - 1 <= cut for end in ends)
        journal.write_bytes(data[:cut])
        assert read_committed(tmp_path) == expected[max(1, whole)]
        changed = bytearray(data)
        changed[cut] ^= 1 << rng.randrange(7)
        journal.write_bytes(changed)
        assert read_committed(tmp_path) == expected[max(1, sum(end <= cut for end in ends))]


def test_a_file_that_a_broker_wrote_stands_above_the_journal(tmp_path: Path) -> None:
    """It went on from the file after we had written it."""
    write(tmp_path, [(True, {KEYS[0]: {0: 1}}), (False, {KEYS[0]: {0: 2}})], lambda _: None)
    assert read_committed(tmp_path) == {KEYS[0]: {0: 2}}
    (tmp_path / CONSUMER_OFFSET_FILE).write_text('{"offsetTable":{"T@g":{0:7}}}')
    assert read_committed(tmp_path) == {KEYS[0]: {0: 7}}


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
